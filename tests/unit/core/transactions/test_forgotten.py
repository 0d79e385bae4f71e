"""What comes late for an id that is forgotten."""

from __future__ import annotations

import pytest

from quiverlog.errors import TransactionFenced, UnknownTransactionalId
from tests.unit.core.transactions.test_coordinator import START, Harness


def test_what_is_late_for_a_forgotten_id_is_not_answered_that_it_was_aborted() -> None:
    """Rows that lie staged when it is forgotten have it closed. It may have committed before."""
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    harness.put(harness.coordinator.forget("app"))
    harness.put(harness.coordinator.resolve("app", 1, 0, START).records)
    assert harness.state().closed == "unknown id"
    for epoch in (1, 2):
        with pytest.raises(UnknownTransactionalId):
            harness.coordinator.abort("app", epoch, 0, force=False)
        with pytest.raises(UnknownTransactionalId):
            harness.standing(epoch, 0)
    assert harness.open() == 3
    with pytest.raises(TransactionFenced):
        harness.coordinator.abort("app", 1, 0, force=False)
    with pytest.raises(TransactionFenced):
        harness.standing(1, 0)


def test_an_id_that_only_a_closing_knows_can_be_closed_and_forgotten_by_command() -> None:
    harness = Harness()
    harness.put(harness.coordinator.resolve("app", 1, 0, START).records)
    assert harness.coordinator.abort("app", -1, -1, force=True).records == []
    harness.put(harness.coordinator.forget("app"))
    assert "app" not in harness.coordinator.applied
