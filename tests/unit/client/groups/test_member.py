"""A member of a group, step by step, with answers that the test writes down."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quiverlog.client.groups.member import GroupMember, MemberOptions, Phase, Progress
from quiverlog.errors import (
    FencedInstance,
    FencedMemberEpoch,
    InvalidArgument,
    InvalidRequest,
    NotLeader,
    ProcessingTimedOut,
    UnknownMember,
)
from quiverlog.wire import group_messages as g

TOPIC = b"t" * 16
ONE, TWO = (TOPIC, 0), (TOPIC, 1)
SESSION_S = 45.0


class Played:
    """A member, and its coordinator."""

    def __init__(self, **options: Any) -> None:
        self.member = GroupMember(MemberOptions("g", **options), bytes(16), ["t"])
        self.now_s = 100.0

    def beat(self, epoch: int = 1, partitions: list[int] | None = None, wait_ms: int = 5000) -> Any:
        request = self.sent()
        self.answer(request, epoch, partitions, wait_ms)
        return request

    def sent(self) -> Any:
        request = self.member.next_beat(self.now_s)
        assert request is not None
        return request

    def answer(
        self, request: Any, epoch: int, partitions: list[int] | None, ms: int = 5000
    ) -> None:
        some = None if partitions is None else [g.AssignedTopic(TOPIC, "t", partitions)]
        response = g.GroupHeartbeatResponse(
            member_epoch=epoch, heartbeat_interval_ms=ms, assignment=some
        )
        self.member.answered(request, response, self.now_s)

    def join(self, partitions: list[int]) -> None:
        self.beat(partitions=partitions)
        change = self.member.change()
        assert change is not None
        assert change.added is not None
        self.member.taken(change.added)
        request = self.beat()
        assert [one.partitions for one in request.owned] == [partitions]

    def commit(self, *errors: type[Exception] | None) -> Any:
        request = self.member.next_commit(self.now_s)
        assert request is not None
        results = [
            g.OffsetResult(one.topic_id, one.partition, 0 if kind is None else kind.code)  # type: ignore[attr-defined]
            for one, kind in zip(request.entries, errors or [None] * 9, strict=False)
        ]
        self.member.commit_answered(g.CommitOffsetsResponse(entries=results), self.now_s)
        return request

    def process(self, key: Any, offset: int) -> None:
        assert self.member.hand_out(key, Progress(offset, 3), self.now_s)
        self.member.came_back()


def test_a_first_heartbeat_has_all_and_later_ones_what_is_new() -> None:
    played = Played(session_timeout_ms=6_000)
    first = played.beat(epoch=0)
    assert (first.member_epoch, first.topics, first.session_timeout_ms) == (0, ["t"], 6_000)
    assert first.owned == []
    assert played.member.next_beat(played.now_s) is None, "a pace"
    played.now_s += 5
    played.join([0, 1])
    assert played.member.next_beat(played.now_s + 4.99) is None
    played.now_s += 5.0
    later = played.beat()
    assert (later.topics, later.owned, later.max_wait_ms) == (None, None, 5_000)


def test_a_partition_is_given_up_when_it_is_committed() -> None:
    played = Played()
    member = played.member
    played.join([0, 1])
    played.process(TWO, 7)
    played.now_s += 5
    played.beat(partitions=[0])
    change = member.change()
    assert change is not None
    assert change.revoked == {TWO: "t"}
    assert member.owned == {ONE: "t", TWO: "t"}
    assert member.next_beat(played.now_s) is None, "nothing new is reported before"
    assert not member.has_committed
    request = played.commit()
    assert [(one.partition, one.offset, one.leader_epoch) for one in request.entries] == [(1, 7, 3)]
    assert member.has_committed
    member.revoked([TWO])
    assert [one.partitions for one in played.beat().owned] == [[0]]
    assert not member.hand_out(TWO, Progress(9), played.now_s)


def test_a_fenced_member_is_silent_until_the_program_knows() -> None:
    played = Played()
    member = played.member
    played.join([0])
    played.process(ONE, 5)
    played.now_s += 5
    member.failed(played.sent(), UnknownMember("gone."), 0.1, played.now_s)
    assert member.phase is Phase.LOST
    assert member.next_beat(played.now_s + 1_000) is None
    assert member.next_commit(played.now_s) is None, "its rows are others'"
    assert not member.hand_out(ONE, Progress(6), played.now_s)
    change = member.change()
    assert change is not None
    assert (change.lost, change.loss) == ({ONE: "t"}, None)
    member.lost_over()
    assert played.sent().member_epoch == 0
    assert member.next_commit(played.now_s + 9) is None


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_lost_answer_is_asked_for_again_under_its_number(seconds: float) -> None:
    played = Played()
    played.join([0])
    played.now_s += 5
    request = played.sent()
    played.member.failed(request, NotLeader("moved."), seconds, played.now_s)
    if seconds:
        assert played.member.next_beat(played.now_s + seconds - 0.01) is None
    played.now_s += seconds
    assert played.sent() is request


@pytest.mark.parametrize(("after_s", "is_lost"), [(-0.01, False), (0.0, True)])
def test_a_session_without_an_answer_ends_the_membership(after_s: float, is_lost: bool) -> None:
    played = Played()
    played.join([0])
    began_s = played.now_s
    assert played.member.program_due_s == began_s + SESSION_S
    handed = played.member.hand_out(ONE, Progress(1), began_s + SESSION_S + after_s)
    assert handed is not is_lost


@pytest.mark.parametrize(("after_s", "is_late"), [(-0.01, False), (0.0, True)])
def test_a_program_that_is_late_leaves(after_s: float, is_late: bool) -> None:
    played = Played(processing_timeout_s=2.0)
    member = played.member
    played.join([0])
    assert member.hand_out(ONE, Progress(1), played.now_s)
    request = member.next_beat(played.now_s + 2.0 + after_s)
    assert (request is not None and request.member_epoch == -1) is is_late
    member.came_back()
    change = member.change()
    assert isinstance(change and change.loss, ProcessingTimedOut) is is_late
    assert member.next_commit(played.now_s) is None or not is_late


def test_news_end_the_wait_of_a_heartbeat_that_is_held_back() -> None:
    played = Played()
    member = played.member
    played.join([0])
    played.now_s += 5
    request = played.sent()
    assert request.max_wait_ms
    assert not member.interrupts
    member.subscribe(["t", "u"])
    assert member.interrupts
    member.interrupted()
    assert played.beat().topics == ["t", "u"]


def test_one_commit_at_a_time_and_one_a_second() -> None:
    played = Played()
    member = played.member
    played.join([0])
    played.process(ONE, 1)
    request = member.next_commit(played.now_s)
    assert request is not None
    played.process(ONE, 2)
    member.ask_commit()
    assert member.next_commit(played.now_s + 9) is None, "none overtakes another"
    result = g.OffsetResult(*ONE)
    member.commit_answered(g.CommitOffsetsResponse(entries=[result]), played.now_s)
    assert played.commit().entries[0].offset == 2
    played.process(ONE, 3)
    assert member.next_commit(played.now_s + 0.99) is None
    assert member.commit_due_s(played.now_s) == played.now_s + 1.0
    assert member.next_commit(played.now_s + 1.0) is not None


def test_what_a_commit_meets() -> None:
    played = Played(commits_processed=False)
    member = played.member
    played.join([0, 1])
    played.process(ONE, 1)
    assert member.next_commit(math.inf) is None, "by hand alone"
    with pytest.raises(InvalidArgument, match="not assigned to this member"):
        member.ask_commit({(TOPIC, 5): Progress(1)})
    member.ask_commit()
    played.commit(NotLeader)
    assert not member.has_committed, "it is tried again"
    played.now_s += 1
    played.commit(InvalidRequest)
    with pytest.raises(InvalidRequest):
        member.check_commit()
    member.ask_commit({ONE: Progress(9)})
    played.commit(FencedMemberEpoch)
    assert played.sent() is not None, "a heartbeat finds out"


def test_what_ends_a_member_for_good() -> None:
    played = Played(instance_id="one")
    played.member.failed(played.sent(), FencedInstance("taken."), 0.1, played.now_s)
    change = played.member.change()
    assert change is not None
    assert isinstance(change.loss, FencedInstance)
    played.member.lost_over()
    assert played.member.is_over
    with pytest.raises(FencedInstance):
        played.member.change()


@pytest.mark.parametrize(
    ("instance_id", "for_a_while", "epoch"), [("", True, -1), ("a", True, -2), ("a", False, -1)]
)
def test_leaving(instance_id: str, for_a_while: bool, epoch: int) -> None:
    played = Played(instance_id=instance_id)
    played.join([0])
    played.member.leave(for_a_while=for_a_while)
    request = played.sent()
    assert request.member_epoch == epoch
    played.answer(request, epoch, None)
    assert played.member.is_over
