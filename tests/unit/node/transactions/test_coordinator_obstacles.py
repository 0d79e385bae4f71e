"""Coordinators that may have been deposed, and what delays the record of a publish."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import NotLeader
from quiverlog.limits import GIB
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.transactions import coordinators as module
from tests.support.transactions import TransactionDriver


@pytest.fixture
def node(tmp_path: Path) -> TransactionDriver:
    return TransactionDriver(tmp_path)


def test_clients_are_answered_under_the_lease_only(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that was deposed would call the epoch of its successor fenced."""
    epoch = node.open().epoch

    def refuse(*_args: object) -> None:
        raise NotLeader("another broker may lead by now")

    monkeypatch.setattr(Lookup, "leader_for_offsets", refuse)
    assert node.open().error_code == NotLeader.code
    assert node.response(node.commit(epoch, 0)).error_code == NotLeader.code
    assert node.abort(epoch, 0).error_code == NotLeader.code
    assert not node.counts


def test_a_full_disk_delays_the_record_of_a_publish(tmp_path: Path) -> None:
    node = TransactionDriver(tmp_path, disk_reserve_bytes=1)
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    node.disk_space(0)
    node.published()
    assert node.machine().applied["app"].publishing is not None
    node.disk_space(GIB)
    node.advance(module.PUBLISH_BACKOFF_MS_MIN)
    node.settle()
    assert node.machine().applied["app"].publishing is None


@pytest.mark.parametrize(("asked", "level"), [(-1, 0), (0, 0), (3, 3)])
def test_a_publish_has_the_level_that_the_commit_asked_for(
    node: TransactionDriver, asked: int, level: int
) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0, durability=asked)
    node.count()
    assert [one.durability for one, _ in node.publishes] == [level]
