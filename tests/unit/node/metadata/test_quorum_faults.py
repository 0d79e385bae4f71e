"""Disks of a quorum of several fail: what was promised is kept, and the others decide on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.storage.metadata.quorum_jobs import WriteJob, Written
from tests.support.failing_os import failing_calls
from tests.support.members import Member, Members
from tests.unit.node.metadata.test_voters import all_equal, create_in, grow

RUN = WriteJob.run


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def fail_writes_of(member: Member, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(job: WriteJob) -> Written:
        if job._plate.tail.path.startswith(member.config.data_dir):
            raise error
        return RUN(job)

    monkeypatch.setattr(WriteJob, "run", run)


@pytest.mark.parametrize("error", [errors.DiskFull("full"), errors.ThrottledBroker("none left")])
def test_a_follower_without_room_is_left_behind_and_catches_up(
    members: Members, monkeypatch: pytest.MonkeyPatch, error: errors.QuiverlogError
) -> None:
    members.add(1)
    grow(members, 2, 3)
    fail_writes_of(members.by_id[3], monkeypatch, error)
    assert create_in(members, "t") == 0
    members.run(3_000)
    assert not all_equal(members)
    monkeypatch.undo()
    members.run_until(lambda: all_equal(members))


def test_a_leader_whose_disk_fails_gives_way_and_promises_nothing_more(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    fail_writes_of(first, monkeypatch, OSError(errno.EIO, "fsync failed"))
    create_in(members, "unlucky")
    members.run_until(lambda: bool(members.leaders) and first not in members.leaders)
    assert create_in(members, "t") == 0
    term = first.quorum.log.hard_state.term  # type: ignore[union-attr]
    members.run(5_000)
    assert first.quorum.log is not None
    assert first.quorum.log.hard_state.term == term, "nothing is written before a restart"
    monkeypatch.undo()
    first.crash()
    members.run_until(lambda: first.started and all_equal(members))


@pytest.mark.parametrize(("number", "step"), [(errno.EIO, 1), (errno.ENOSPC, 5), (errno.EMFILE, 5)])
def test_each_system_call_of_a_first_start_fails_and_no_quorum_is_founded(
    tmp_path: Path, number: int, step: int
) -> None:
    for nth in range(0, 500, step):
        members = Members(tmp_path / f"{number}-{nth}")
        members.add(1)
        with failing_calls(nth, number) as calls:
            try:
                members.add(2, seeds=(1,))
            except (errors.QuiverlogError, OSError):
                assert 2 not in members.by_id
        second = members.by_id.get(2) or members.add(2, seeds=(1,))
        assert not second.quorum.raft.voters, calls.failed
        members.run_until(lambda second=second: second.started)  # type: ignore[misc]
        assert second.quorum.raft.term == members.by_id[1].quorum.raft.term
        if not calls.failed:
            assert nth > 20, "the start makes calls"
            return
    raise AssertionError("a start ends")
