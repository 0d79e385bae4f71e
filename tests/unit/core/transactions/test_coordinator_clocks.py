"""Coordinators whose clocks of people differ, or jump: only the clock that grows counts."""

from __future__ import annotations

import pytest

from quiverlog.core.transactions.coordinator import (
    PINNED_MS_MAX,
    SINGLE_USE_EXPIRY_MS,
    Coordinator,
    Resolved,
)
from quiverlog.core.transactions.records import Forgotten, Record
from quiverlog.limits import TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT
from quiverlog.types import Now
from tests.unit.core.transactions.test_coordinator import START, TIMEOUT_MS, Harness, expired

DAY_US = 24 * 3_600_000_000


def moment(ms: int, ahead_us: int = 0) -> Now:
    """A moment after the begin, by a clock of people that is ahead of the one before."""
    us = ms * 1000
    return Now(START.mono_us + us, START.wall_us + us + ahead_us)


def successor(before: Harness, now: Now) -> Harness:
    """The coordinator of another broker, whose clock that grows began with its machine."""
    harness = Harness()
    harness.coordinator = Coordinator()
    for offset, record in enumerate(before.log):
        harness.coordinator.apply(offset, record)
    harness.log = list(before.log)
    harness.coordinator.begin(now)
    return harness


@pytest.fixture(params=[-DAY_US, 0, DAY_US], ids=["behind", "alike", "ahead"])
def ahead_us(request: pytest.FixtureRequest) -> int:
    """Of the second coordinator, or of the only one after its clock has jumped."""
    return int(request.param)


@pytest.mark.parametrize("has_failed_over", [False, True])
@pytest.mark.parametrize("over", [-1, 0])
def test_single_use_ends_an_hour_after_the_commit(
    ahead_us: int, has_failed_over: bool, over: int
) -> None:
    """Forgotten at once, the id would have a batch write commit twice."""
    harness = Harness()
    harness.open("batch", single=True)
    harness.committed(1, 0, "batch")
    if has_failed_over:
        harness = successor(harness, moment(0, ahead_us))
    now = moment(SINGLE_USE_EXPIRY_MS + over, ahead_us)
    found = expired(harness, now, TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT)
    assert found == ([Record("batch", Forgotten())] if over == 0 else [])


@pytest.mark.parametrize("has_failed_over", [False, True])
@pytest.mark.parametrize("over", [0, 1])
def test_an_epoch_pins_the_front_for_a_minute(
    ahead_us: int, has_failed_over: bool, over: int
) -> None:
    harness = Harness()
    harness.open()
    if has_failed_over:
        harness = successor(harness, moment(0, ahead_us))
    now = moment(PINNED_MS_MAX + over, ahead_us)
    resolving = harness.coordinator.resolve("app", 1, 0, now, pins_front=True)
    assert resolving.standing is (Resolved.DEAD if over else Resolved.LIVE)


def test_the_minute_begins_with_the_newest_epoch() -> None:
    harness = Harness()
    harness.open()
    harness.open(instance=b"two", now=moment(PINNED_MS_MAX))
    now = moment(2 * PINNED_MS_MAX)
    assert harness.coordinator.resolve("app", 2, 0, now, pins_front=True).standing is Resolved.LIVE


@pytest.mark.parametrize("over", [-1, 0])
def test_signs_of_life_and_expiry_begin_with_a_new_coordinator(ahead_us: int, over: int) -> None:
    harness = Harness()
    harness.open()
    harness.coordinator.sign_of_life("app", moment(10))
    later_ms = 100 * TIMEOUT_MS
    harness = successor(harness, moment(later_ms, ahead_us))
    now = moment(later_ms + TIMEOUT_MS + over, ahead_us)
    standing = harness.coordinator.resolve("app", 1, 0, now).standing
    assert standing is (Resolved.LIVE if over else Resolved.DEAD)
    expiry_ms = TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT
    found = expired(harness, moment(later_ms + expiry_ms + over, ahead_us), expiry_ms)
    assert bool(found) == (over == 0)


def test_an_id_that_is_forgotten_begins_anew() -> None:
    harness = Harness()
    harness.open("batch", single=True)
    harness.committed(1, 0, "batch")
    harness.put(harness.coordinator.forget("batch"))
    assert not any(
        (harness.coordinator._seen_us, harness.coordinator._opened_us,
         harness.coordinator._committed_us)
    )  # fmt: skip


def test_of_ids_that_are_not_known_no_sign_of_life_is_kept() -> None:
    harness = Harness()
    for tid in ("stays", "goes"):
        harness.open(tid)
        harness.coordinator.sign_of_life(tid, START)
    harness.put(harness.coordinator.forget("goes"))
    # The append of these fails, and the coordinator goes on.
    harness.propose(
        harness.coordinator.open("new", b"one", "client", TIMEOUT_MS, False, START).records
    )
    harness.coordinator.sign_of_life("new", START)
    harness.coordinator.drop_pending()
    assert [*harness.coordinator._seen_us] == ["stays"]
