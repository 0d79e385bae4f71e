"""The coordinators of groups at this broker: what members ask, and what is due by time.

    question -> the machine's records, proposed in the same turn -> safe -> answer

Invariant: an answer is sent when all that it rests on is safe. A heartbeat without news may be held
back: until there is some, for `max_wait_ms`, or until the next one of its member.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.internal_topics import GROUPS, INTERNAL_TOPICS, is_internal
from quiverlog.core.controller.records import PartitionRecord, RemoveTopicRecord
from quiverlog.core.controller.records import Record as MetadataRecord
from quiverlog.core.groups.coordinator import Coordinator, Room
from quiverlog.core.groups.group import Answer, Group, Heartbeat
from quiverlog.core.groups.offsets import Committing, Fetched
from quiverlog.core.groups.reconcile import MemberState
from quiverlog.core.groups.records import (
    Entry,
    Kind,
    Position,
    Record,
    TopicPartition,
    decode_row,
    encode_row,
)
from quiverlog.errors import CoordinatorNotReady, FencedInstance, FencedMemberEpoch, QuiverlogError
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.jobs import Starter
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.tasks import Call, Future, Wait
from quiverlog.node.transactions.hosted import PENDING_RECORDS_MAX, Hosted, Hosting
from quiverlog.node.transactions.kinds import read_batch
from quiverlog.node.transactions.replay import Read
from quiverlog.types import Now

__all__ = ["GroupCoordinators", "GroupsKind"]

SWEEP_MS: Final = 1_000  # Between two looks for what has expired.
CENSUS_MS: Final = 5_000  # Between two counts of the members by their states.
HELD_MAX: Final = 20_000
"""Heartbeats that are held back; those beyond are answered at once."""
RECORDS_AT_ONCE: Final = PENDING_RECORDS_MAX // 2
"""Of a group that is deleted, or of what has expired."""
_CENSUS_PER_TURN: Final = 500

_Key = tuple[str, bytes]


class GroupsKind:
    """`__groups` for `Hosting`."""

    schema: pa.Schema = INTERNAL_TOPICS[GROUPS].schema
    level = int(INTERNAL_TOPICS[GROUPS].durability)
    takes_snapshots = True

    def __init__(self, coordinators: GroupCoordinators) -> None:
        self._coordinators = coordinators
        self._room = Room()

    def new_machine(self, replica: Replica, leader_epoch: int) -> Coordinator:
        return Coordinator(self._room)

    def row(self, record: Record) -> tuple[int, str, bytes, bytes]:
        return encode_row(record)

    def decode(
        self, header: BatchHeader, prefix: memoryview, read: Read
    ) -> list[tuple[int, Record]]:
        columns = read_batch(header, read(header.total_bytes), self.schema).to_pydict()
        rows = zip(*(columns[name] for name in self.schema.names), strict=True)
        return [(header.base_offset + i, decode_row(*row)) for i, row in enumerate(rows)]

    def capture(self, machine: Coordinator) -> Iterator[Record]:
        return machine.capture()

    def serving(self, hosted: Hosted, now: Now) -> None:
        machine = hosted.machine
        assert isinstance(machine, Coordinator)
        machine.begin(now)
        self._coordinators.begin(hosted, machine, now)

    def stopped(self, hosted: Hosted, error: QuiverlogError, now: Now) -> None:
        self._coordinators.stopped(hosted, error, now)


class _Topics:
    """Topics and their partitions by the metadata of this moment, for the machines."""

    __slots__ = ("_view",)

    def __init__(self, view: MetadataView) -> None:
        self._view = view

    def find(self, name: str) -> tuple[bytes, int] | None:
        topic = self._view.image.topics.get(name)
        if topic is None or is_internal(name):
            return None
        return topic.topic_id, len(topic.partitions)

    def partitions(self, topic_id: bytes) -> int:
        topic = self._view.image.topics_by_id.get(topic_id)
        return 0 if topic is None or is_internal(topic.name) else len(topic.partitions)


class _Held(NamedTuple):
    hosted: Hosted
    end: Future


class GroupCoordinators:
    __slots__ = (
        "_census", "_census_us", "_changed", "_counts", "_due_us", "_has_missed", "_held",
        "_hosting", "_image", "_is_due_known", "_later", "_metrics", "_number", "_outbox",
        "_retention_ms", "_serving", "_sweep_us", "_view", "topics",
    )  # fmt: skip

    def __init__(
        self,
        view: MetadataView,
        hosting: Hosting,
        outbox: Outbox,
        metrics: NodeMetrics,
        retention_ms: int,
    ) -> None:
        self._view = view
        self._image = view.image
        self._hosting = hosting
        hosting.kinds[GROUPS] = GroupsKind(self)
        self._outbox = outbox
        self._metrics = metrics
        self._retention_ms = retention_ms
        self.topics = _Topics(view)
        self._serving: dict[Hosted, Coordinator] = {}
        self._held: dict[_Key, _Held] = {}
        # When what is held back ends at the latest: (when, number, key, its end).
        self._later: list[tuple[int, int, _Key, Future]] = []
        self._number = 0
        # Topics whose partitions have come or gone since the last turn; None: any may have.
        self._changed: set[str] | None = set()
        self._has_missed = False  # One that could not be recorded.
        # When the next turn is due, while nothing has asked the machines: each call of the node
        # looks, also those that are about no group.
        self._due_us: int | None = None
        self._is_due_known = False
        self._sweep_us = 0
        self._census: Iterator[str] | None = None
        self._census_us = 0
        self._counts: dict[str, int] = {}

    def set_retention(self, retention_ms: int, _now: Now) -> None:
        assert retention_ms >= 1
        self._retention_ms = retention_ms

    # --- service -------------------------------------------------------------------------------
    def begin(self, hosted: Hosted, machine: Coordinator, now: Now) -> None:
        assert hosted not in self._serving, "the life before has stopped"
        self._serving[hosted] = machine
        self._is_due_known = False
        self._changed = None  # Topics may have changed while no broker served it.

    def stopped(self, hosted: Hosted, error: QuiverlogError, now: Now) -> None:
        assert not hosted.is_serving
        self._serving.pop(hosted, None)
        self._is_due_known = False
        for key in [key for key, one in self._held.items() if one.hosted is hosted]:
            # It asks the coordinator that follows, under its epoch.
            ended = CoordinatorNotReady(f"group {key[0]!r} is not served here now: {error.message}")
            self._held.pop(key).end.set(None, ended, now)
        assert all(one.hosted is not hosted for one in self._held.values())

    def find(self, group: str) -> Hosted:
        """Raises CoordinatorNotReady, NotLeader."""
        assert group, "a name was checked"
        topic = self._view.image.topics.get(GROUPS)
        if topic is None:
            raise CoordinatorNotReady(f"there is no {GROUPS!r} yet: the first member has it made.")
        return self._hosting.find(topic.topic_id, crc32c(group.encode()) % len(topic.partitions))

    def ask(self, group: str) -> tuple[Hosted, Coordinator]:
        """Return the machine of a group. Raises CoordinatorNotReady, NotLeader, CorruptLog."""
        # Under the lease: a coordinator that was deposed would give partitions twice.
        hosted = self.find(group)
        machine = hosted.serve(under_lease=True)
        assert isinstance(machine, Coordinator)
        assert self._serving.get(hosted) is machine, "what serves has begun"
        self._is_due_known = False
        return hosted, machine

    def coordinated(self) -> list[Coordinator]:
        return list(self._serving.values())

    def group(self, name: str) -> Group | None:
        """Return a group that this broker coordinates; None: it does not, or there is none."""
        try:
            _, machine = self.ask(name)
        except QuiverlogError:
            return None
        return machine.groups.get(name)

    # --- time ----------------------------------------------------------------------------------
    def next_us(self) -> int | None:
        if not self._serving:
            return None
        if self._changed is None or self._changed or self._census is not None:
            return AT_ONCE_US
        if not self._is_due_known:
            self._due_us, self._is_due_known = self._next_due_us(), True
        return self._due_us

    def _next_due_us(self) -> int | None:
        due = [at for one in self._serving.values() if (at := one.next_us()) is not None]
        due += [one[0] for one in self._later[:1]]
        if any(machine.groups for machine in self._serving.values()):
            due += [self._sweep_us, self._census_us]
        return min(due, default=None)

    def run(self, now: Now) -> None:
        self._is_due_known = False
        while self._later and self._later[0][0] <= now.mono_us:
            _, _, key, end = heapq.heappop(self._later)
            self._release(key, end, now)
        if self._view.image is not self._image:
            self._image, self._changed = self._view.image, None
        is_sweep = self._sweep_us <= now.mono_us
        changed, self._changed = self._changed, set()
        if is_sweep:
            self._sweep_us = now.mono_us + SWEEP_MS * 1000
            if self._has_missed:
                changed, self._has_missed = None, False
        for hosted, machine in list(self._serving.items()):
            if not machine.groups:
                continue
            if changed is None or changed:
                records = machine.topics_changed(changed, self.topics, now)
                self._has_missed |= not self._record(hosted, records, now)
            if is_sweep or changed is None:
                expired = machine.sweep(self.topics, now, self._retention_ms)
                self._record(hosted, expired[:RECORDS_AT_ONCE], now, at_leisure=True)
        self._tick_next(now)
        self._count(now)

    def _tick_next(self, now: Now) -> None:
        for hosted, machine in list(self._serving.items()):
            at_us = machine.next_us()
            if at_us is not None and at_us <= now.mono_us:
                # One in each turn, which may take a millisecond; the others come first then.
                del self._serving[hosted]
                self._serving[hosted] = machine
                self._tick(hosted, machine, now)
                return

    def applied(self, records: Sequence[MetadataRecord]) -> None:
        """Look for topics whose partitions have come or gone, after an entry of the metadata."""
        for record in records:
            if isinstance(record, RemoveTopicRecord):
                self._changed = None  # Its name is known no more.
            elif isinstance(record, PartitionRecord) and self._changed is not None:
                topic = self._view.image.topics_by_id.get(record.topic_id)
                if topic is not None and not is_internal(topic.name):
                    self._changed.add(topic.name)

    def _tick(self, hosted: Hosted, machine: Coordinator, now: Now) -> None:
        ticked = machine.tick(self.topics, now)
        assert ticked.records or not ticked.fences, "a fence is recorded"
        if not self._record(hosted, ticked.records, now):
            return
        for fence in ticked.fences:
            self._metrics.groups_fenced[fence.reason] += 1
            self._outbox.log(
                "warning",
                "member fenced",
                group=fence.group,
                member=fence.member_id.hex(),
                why=fence.reason,
            )
        for record in ticked.records:
            if record.kind is Kind.TARGET and not record.key:
                self._metrics.group_rebalances += 1

    def _record(
        self, hosted: Hosted, records: list[Record], now: Now, *, at_leisure: bool = False
    ) -> bool:
        """Propose what no request waits for; return whether it is. The machine returns it again."""
        if not records:
            return True
        if not hosted.is_serving:
            return False
        try:
            self.propose(hosted, records, now, _ignore, at_leisure=at_leisure)
        except QuiverlogError as error:
            self._outbox.log("warning", "changes of groups wait", why=error.message)
            return False
        return True

    def _count(self, now: Now) -> None:
        """Count the members by their states, some in each turn."""
        if self._census is None:
            if now.mono_us < self._census_us:
                return
            self._census_us = now.mono_us + CENSUS_MS * 1000
            self._counts = dict.fromkeys(self._metrics.group_members, 0)
            self._census = self._members()
        assert self._counts.keys() == self._metrics.group_members.keys()
        some = list(islice(self._census, _CENSUS_PER_TURN))
        for state in some:
            self._counts[state] += 1
        if len(some) < _CENSUS_PER_TURN:
            self._census = None
            self._metrics.group_members.update(self._counts)

    def _members(self) -> Iterator[str]:
        for machine in self.coordinated():
            for group in list(machine.groups.values()):
                for member_id in list(group.members):
                    if member_id in group.members:
                        yield shown_state(group, member_id).value

    # --- proposing -----------------------------------------------------------------------------
    def propose(
        self,
        hosted: Hosted,
        records: Sequence[Record],
        now: Now,
        then: Callable[[int, QuiverlogError | None, Now], None],
        *,
        at_leisure: bool = False,
    ) -> None:
        """As `Hosted.propose`; members for which there is something new then get their answers."""
        hosted.propose(records, now, then, at_leisure=at_leisure)
        self._is_due_known = False
        machine = self._serving.get(hosted)
        for key in () if machine is None else machine.take_woken():
            held = self._held.get(key)
            if held is not None:
                self._release(key, held.end, now)

    def recorded(
        self, hosted: Hosted, machine: Coordinator, group: str, records: list[Record], now: Now
    ) -> Starter:
        """Wait until the records are safe; without any, until all that the answer rests on is.
        Raises as `Hosted.propose`."""
        future = Future()
        if records or machine.is_waiting(group):
            self.propose(hosted, records, now, lambda *ended: future.set(*ended))
        else:
            future.set(None, None, now)
        return future.wait

    # --- GROUP_HEARTBEAT -----------------------------------------------------------------------
    def heartbeat(
        self, call: Call, beat: Heartbeat, max_wait_ms: int
    ) -> Generator[Wait, object, Answer]:
        """Return the answer when what it rests on is safe. Raises as `Coordinator.heartbeat`."""
        hosted, machine = self.ask(beat.group)
        key = (beat.group, beat.member_id)
        try:
            answer = machine.heartbeat(beat, self.topics, call.now)
        except (FencedInstance, FencedMemberEpoch) as error:
            is_instance = isinstance(error, FencedInstance)
            self._metrics.groups_fenced["instance" if is_instance else "epoch"] += 1
            raise
        if answer.note:
            self._outbox.log(
                "warning",
                "a member reports what it was not given",
                group=beat.group,
                member=beat.member_id.hex(),
                what=answer.note,
            )
        # The newest heartbeat has the newest answer; a member that leaves gets none for another.
        held = self._held.get(key)
        if held is not None:
            self._release(key, held.end, call.now)
        if not (answer.may_wait and max_wait_ms) or len(self._held) >= HELD_MAX:
            yield self.recorded(hosted, machine, beat.group, answer.records, call.now)
            return answer
        wait_ms = min(max_wait_ms, answer.interval_ms)
        assert wait_ms > 0
        # In the turn of the answer: what comes while its records are written is news, too.
        end = self._hold(key, hosted, call.now.mono_us + wait_ms * 1000)
        try:
            yield self.recorded(hosted, machine, beat.group, answer.records, call.now)
        except QuiverlogError:
            self._release(key, end, call.now)
            raise
        yield end.wait
        return (yield from self._woken(call, key, answer))

    def _hold(self, key: _Key, hosted: Hosted, until_us: int) -> Future:
        end = Future()
        assert key not in self._held, "one heartbeat of a member is held back"
        self._held[key] = _Held(hosted, end)
        self._number += 1
        heapq.heappush(self._later, (until_us, self._number, key, end))
        self._is_due_known = False
        return end

    def _release(self, key: _Key, end: Future, now: Now) -> None:
        held = self._held.get(key)
        if held is not None and held.end is end:
            del self._held[key]
        end.set(None, None, now)
        assert end.is_set

    def _woken(self, call: Call, key: _Key, before: Answer) -> Generator[Wait, object, Answer]:
        hosted, machine = self.ask(key[0])
        answer = machine.wake(*key, call.now)
        if answer is None:
            # It was fenced, or has left by another heartbeat: its next one is refused.
            return before
        yield self.recorded(hosted, machine, key[0], answer.records, call.now)
        return answer

    # --- offsets -------------------------------------------------------------------------------
    def commit(
        self, call: Call, group: str, member_id: bytes, epoch: int, entries: list[Entry]
    ) -> Generator[Wait, object, Committing]:
        """Return the errors when what has none is safe. Raises as `Coordinator.commit`."""
        hosted, machine = self.ask(group)
        done = machine.commit(group, member_id, epoch, entries, self.topics, call.now)
        assert len(done.errors) == len(entries), "each entry has its answer"
        yield self.recorded(hosted, machine, group, done.records, call.now)
        return done

    def alter(
        self, call: Call, group: str, entries: list[Entry], *, deletes: bool, is_try: bool
    ) -> Generator[Wait, object, Committing]:
        """As `commit`. `is_try`: change nothing. Raises as `Coordinator.alter`."""
        hosted, machine = self.ask(group)
        done = machine.alter(group, entries, self.topics, call.now, deletes=deletes)
        assert len(done.errors) == len(entries), "each entry has its answer"
        records = [] if is_try else done.records
        yield self.recorded(hosted, machine, group, records, call.now)
        return done

    def fetch(
        self, call: Call, group: str, partitions: Collection[TopicPartition]
    ) -> Generator[Wait, object, list[Fetched]]:
        """Raises as `Coordinator.fetch`."""
        hosted, machine = self.ask(group)
        found = machine.fetch(group, partitions, self.topics)
        assert len(found) == len(partitions)
        yield self.recorded(hosted, machine, group, [], call.now)
        return found

    def report(
        self,
        call: Call,
        group: str,
        reporter: bytes,
        title: str,
        positions: Sequence[Position],
        rows_per_s: float,
    ) -> int:
        """Take where a Spark query reads; nothing waits until it is stored.

        Returns how many queries report under the name. Raises as `Coordinator.report`.
        """
        hosted, machine = self.ask(group)
        records = machine.report(group, reporter, title, positions, rows_per_s, call.now)
        self._record(hosted, records, call.now, at_leisure=True)
        return machine.reporter_count(group, call.now)

    def delete(self, call: Call, group: str) -> Generator[Wait, object, None]:
        """Raises as `Coordinator.delete`."""
        is_whole = False
        while not is_whole:
            hosted, machine = self.ask(group)
            records = machine.delete(group)
            assert records, "there is a group"
            # The header is the last: until then it is a group, whose rest is deleted again.
            is_whole = len(records) <= RECORDS_AT_ONCE
            yield self.recorded(hosted, machine, group, records[:RECORDS_AT_ONCE], call.now)
        self._outbox.log("info", "group deleted", group=group)


def shown_state(group: Group, member_id: bytes) -> MemberState:
    """As `Group.member_state`, which compares partitions; and a member that left for a while."""
    assert member_id in group.members
    if group.members[member_id].is_away:
        return MemberState.LEFT
    return group.member_state(member_id)


def _ignore(_offset: int, _error: QuiverlogError | None, _now: Now) -> None:
    return
