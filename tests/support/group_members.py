"""The shipped member of a group in the world of `group_programs`, in the place of its own programs.

Owns what the heart and the consumer do with a member: messages, time-outs, rows that are read. A
frozen process does nothing; where the program hangs, its heart goes on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quiverlog.client.groups.member import GroupMember, MemberOptions, Phase, Progress
from quiverlog.core.groups.group import Answer, Heartbeat
from quiverlog.core.groups.offsets import Fetched
from quiverlog.core.groups.records import Entry, TopicPartition
from quiverlog.errors import (
    FencedInstance,
    FencedMemberEpoch,
    QuiverlogError,
    RequestTimedOut,
    UnknownMember,
)
from quiverlog.wire import group_messages as g

from .group_programs import REBALANCE_TICKS, SESSION_TICKS
from .group_world import ROWS, TICK_US, GroupWorld, Violation

__all__ = ["ShippedMember"]

TIMEOUT_TICKS = 15
TICK_S = TICK_US / 1_000_000


class ShippedMember:
    def __init__(
        self, world: GroupWorld, group: str, number: int, topics: list[str], *,
        is_static: bool, has_transactions: bool,
    ) -> None:  # fmt: skip
        assert not has_transactions
        self.world, self.group, self.number, self.topics = world, group, number, topics
        self.instance_id = f"i{number}" if is_static else ""
        self.has_transactions = False
        self.is_dead = False
        self.frozen_until = self.hangs_until = 0
        self.fenced = self.life = self._commits_at = 0
        self._new_member()
        world.after(world.rng.randint(1, 100), self._step)

    # --- what the world asks for ---------------------------------------------------------------
    @property
    def owned(self) -> dict[TopicPartition, Any]:
        return {key: self.positions.get(key) for key in self.member.reading}

    def is_valid(self) -> bool:
        is_member = self.member.phase is Phase.MEMBER and not self.is_dead
        return is_member and self.now_s < self.member.program_due_s

    def crash(self, ticks: int) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.world.after(ticks, self._begin_again)

    def leave(self, ticks: int) -> None:
        """As `close` does, without waiting for the commit."""
        if self.is_dead:
            return
        self.member.leave(for_a_while=True)
        self.world.after(30, self.crash, ticks)

    def change_topics(self) -> None:
        rng = self.world.rng
        self.topics = rng.sample(["a", "b", "c"], rng.randint(1, 3))
        self.member.subscribe(self.topics)

    # --- lives ---------------------------------------------------------------------------------
    @property
    def now_s(self) -> float:
        return self.world.now * TICK_S

    def _new_member(self) -> None:
        self.life += 1
        options = MemberOptions(
            self.group, self.instance_id,
            session_timeout_ms=SESSION_TICKS * 100, rebalance_timeout_ms=REBALANCE_TICKS * 100,
            processing_timeout_s=REBALANCE_TICKS * TICK_S,
        )  # fmt: skip
        self.member = GroupMember(options, self.world.rng.randbytes(16), self.topics)
        self.positions: dict[tuple[bytes, int], int] = {}
        self.taken: set[tuple[bytes, int]] = set()
        self._asked: dict[tuple[bytes, int], int] = {}
        self._beat: tuple[Any, int] | None = None
        self._commit: tuple[Any, int] | None = None

    def _begin_again(self) -> None:
        self.is_dead = False
        self._new_member()

    def _step(self) -> None:
        rng, now = self.world.rng, self.world.now
        self.world.after(rng.randint(1, 2), self._step)
        if self.is_dead or now < self.frozen_until:
            return
        self._heart()
        if now >= self.hangs_until and self.member.phase not in (Phase.LEAVING, Phase.GONE):
            self._consume()

    # --- the heart -----------------------------------------------------------------------------
    def _heart(self) -> None:
        member, now = self.member, self.world.now
        if self._beat is not None and member.interrupts:
            member.interrupted()
            self._beat = None
        if self._beat is not None and now - self._beat[1] > TIMEOUT_TICKS:
            request, self._beat = self._beat[0], None
            member.failed(request, RequestTimedOut("late."), 0.1, self.now_s)
        if self._commit is not None and now - self._commit[1] > 8 * TIMEOUT_TICKS:
            self._commit = None
            member.commit_failed(RequestTimedOut("late."), 0.1, self.now_s)
        request = member.next_beat(self.now_s)
        if request is not None:
            self._beat = request, now
            self._send_beat(request)
        commit = member.next_commit(self.now_s)
        if commit is not None:
            self._send_commit(commit)

    def _send_beat(self, request: g.GroupHeartbeatRequest) -> None:
        owned = request.owned
        beat = Heartbeat(
            self.group, request.member_id, request.member_epoch, request.beat,
            None if request.topics is None else tuple(request.topics),
            None if owned is None else frozenset(
                (one.topic_id, p) for one in owned for p in one.partitions
            ),
            request.instance_id,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )  # fmt: skip
        reply = partial(self._answered, self.life, request)
        self.world.coordinators.ask("heartbeat", beat, reply)

    def _answered(
        self, life: int, request: Any, answer: Answer | None, error: QuiverlogError | None
    ) -> None:
        if self.is_dead or life != self.life or self._beat is None or self._beat[0] is not request:
            return
        if self.world.now < self.frozen_until:
            again = partial(self._answered, life, request, answer, error)
            self.world.after(self.frozen_until - self.world.now, again)
            return
        self._beat = None
        if error is not None:
            if isinstance(error, FencedMemberEpoch | UnknownMember):
                if request.member_epoch >= 0 and self.is_valid():
                    raise Violation(f"{self.group}: a member that is alive is fenced: {error!r}")
                self.fenced += 1
            retry_s = 0.3
            if isinstance(error, FencedInstance):
                # Its program would end; this one tries again, as a supervisor does.
                error = RequestTimedOut("held.")
            self.member.failed(request, error, retry_s, self.now_s)
            return
        assert answer is not None
        assignment = None
        if answer.assignment is not None:
            assignment = [
                g.AssignedTopic(one.topic_id, one.topic_id.hex(), list(one.partitions))
                for one in answer.assignment
            ]
        response = g.GroupHeartbeatResponse(
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.interval_ms,
            assignment=assignment,
        )
        self.member.answered(request, response, self.now_s)

    def _send_commit(self, request: g.CommitOffsetsRequest) -> None:
        world = self.world
        self._commit = request, world.now
        delay = world.rng.choice((1, 1, 1, 2, 5, 60)) if world.chaos else 1
        self._commits_at = max(self._commits_at, world.now + delay)
        entries = [
            Entry(one.topic_id, one.partition, one.offset, one.leader_epoch, "")
            for one in request.entries
        ]
        reply = partial(self._committed, self.life, request)
        args = (self.group, request.member_id, request.member_epoch, entries, reply)
        for _ in range(world.rng.choice((0, 1, 1, 1, 2)) if world.chaos else 1):
            world.after(self._commits_at - world.now, world.coordinators.deliver, "commit", args)

    def _committed(self, life: int, request: Any, errors: list[QuiverlogError | None]) -> None:
        for one, error in zip(request.entries, errors, strict=True):
            place = self.group, (one.topic_id, one.partition)
            if error is None:
                known = self.world.acknowledged.get(place, 0)
                self.world.acknowledged[place] = max(known, one.offset)
        if self.is_dead or life != self.life:
            return
        if self._commit is None or self._commit[0] is not request:
            return
        self._commit = None
        results = [
            g.OffsetResult(one.topic_id, one.partition, 0 if error is None else error.code, "")
            for one, error in zip(request.entries, errors, strict=True)
        ]
        self.member.commit_answered(g.CommitOffsetsResponse(entries=results), self.now_s)

    # --- the consumer --------------------------------------------------------------------------
    def _consume(self) -> None:
        member = self.member
        member.came_back()
        change = member.change()
        if self.world.rng.random() < 0.3 and (change is None or change.revoked is None):
            self._read()
            member.came_back()
            change = member.change()
        if change is not None and change.lost is not None:
            self.positions, self._asked, self.taken = {}, {}, set()
            member.lost_over()
        elif change is not None and change.revoked is not None:
            if member.to_commit:
                member.ask_commit()
            if member.has_committed:
                for key in change.revoked:
                    self.positions.pop(key, None)
                    self.taken.discard(key)
                member.revoked(change.revoked.keys())
            return
        elif change is not None and change.added is not None:
            self._take(change.added)
        self._read()

    def _take(self, added: Any) -> None:
        for key in added:
            if self.world.now - self._asked.get(key, -TIMEOUT_TICKS) >= 20:
                self._asked[key] = self.world.now
                one = key
                floor = self.world.acknowledged.get((self.group, one), 0)
                reply = partial(self._fetched, (self.life, self.member.losses), key, floor)
                self.world.coordinators.ask("fetch", self.group, [one], reply)
        if all(key in self.positions for key in added):
            for key in added:
                self.world.take(self, key)
            self.member.taken(added)
            self.taken |= added.keys()
            self._asked = {}

    def _fetched(
        self, life: tuple[int, int], key: tuple[bytes, int], floor: int, found: list[Fetched]
    ) -> None:
        if (
            life != (self.life, self.member.losses)
            or key not in self._asked
            or key in self.positions
        ):
            return
        (one,) = found
        place = self.group, key
        offset = 0 if one.committed is None else one.committed.offset
        if self.world.partitions(key[0]) and not (floor <= offset <= self.world.read.get(place, 0)):
            raise Violation(f"{place}: begins at {offset}, {floor} is committed")
        self.positions[key] = offset

    def _read(self) -> None:
        world, member = self.world, self.member
        # What was fetched before is there, whatever the coordinator has answered since.
        readable = sorted(self.taken & self.positions.keys())
        if not readable:
            return
        key = world.rng.choice(readable)
        count = world.rng.randint(0, 1) if world.chaos else world.rng.randint(10, 60)
        position = min(ROWS, self.positions[key] + count)
        if member.hand_out(key, Progress(position, position % 7), self.now_s):
            self.world.take(self, key)
            self.positions[key] = position
            place = self.group, key
            world.read[place] = max(world.read.get(place, 0), position)
