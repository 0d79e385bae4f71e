"""A partition of `__groups`: its groups, the rows that are proposed, and what is due.

A question is answered from what is pending: the rows that are safe and those that are proposed. It
changes none; the records that it returns are to be proposed in the same turn, before the next
question. Its answer is sent when they, and all that was pending (`is_waiting`), are safe.

After a failover members go on under their epochs, and all count as seen at `begin`.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

from quiverlog.errors import (
    CorruptLog,
    GroupFull,
    GroupNotEmpty,
    InvalidGroup,
    InvalidRequest,
    ThrottledBroker,
    UnstableOffsets,
)
from quiverlog.limits import (
    GROUP_INSTANCE_CHARS_MAX,
    GROUP_NAME_CHARS_MAX,
    GROUP_PARTITIONS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_MIN,
    GROUP_SESSION_TIMEOUT_MS_MAX,
    GROUP_SESSION_TIMEOUT_MS_MIN,
    GROUP_TOPICS_MAX,
    GROUPS_PER_BROKER_MAX,
    MEMBER_ID_BYTES,
    MEMBERS_PER_BROKER_MAX,
)
from quiverlog.types import GROUP_NAME, Now

from .assigning import Assigning
from .group import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    Answer,
    Group,
    Heartbeat,
    Live,
)
from .offsets import Committing, Fetched, Preparing, Unsettled
from .records import (
    Entry,
    GroupRow,
    GroupType,
    Kind,
    Observed,
    Position,
    Record,
    TopicPartition,
)
from .topics import Topics

__all__ = [
    "OBSERVERS_PER_GROUP_MAX",
    "Coordinator",
    "Fence",
    "Room",
    "Ticked",
    "check_name",
]

EMPTY_KEPT_MS: Final = 600_000
"""A group without members and offsets."""
OBSERVED_WRITTEN_MS: Final = 10_000
OBSERVERS_PER_GROUP_MAX: Final = 16
REPORTING_MS: Final = 60_000
"""A query that has reported since then still runs."""
LEFT_REMEMBERED: Final = 1_000
"""Members that are gone, whose late heartbeats do not join again."""
SWEEP_ROWS: Final = 1_000
"""That one call of `sweep` looks at, and the rest of a group."""
_RETRY_US: Final = 1_000_000
"""What was returned and could not be proposed is returned again after this."""
_AT_ONCE: Final = 0


class Fence(NamedTuple):
    group: str
    member_id: bytes
    reason: str


class Ticked(NamedTuple):
    records: list[Record]
    fences: list[Fence]


class Room:
    """Counts what all partitions of a broker have."""

    __slots__ = ("_coordinators",)

    def __init__(self) -> None:
        # Those that have ended are gone by themselves.
        self._coordinators: WeakSet[Coordinator] = WeakSet()

    def add(self, one: Coordinator) -> None:
        self._coordinators.add(one)

    def check_group(self) -> None:
        if sum(len(one.groups) for one in self._coordinators) >= GROUPS_PER_BROKER_MAX:
            raise GroupFull(f"this broker has {GROUPS_PER_BROKER_MAX:,} groups, the most.")

    def check_member(self) -> None:
        if sum(one.member_count for one in self._coordinators) >= MEMBERS_PER_BROKER_MAX:
            raise GroupFull(f"this broker has {MEMBERS_PER_BROKER_MAX:,} members, the most.")


class Coordinator:
    __slots__ = (
        "__weakref__",
        "_assigning",
        "_deadlines",
        "_deferred",
        "_dues",
        "_is_complete",
        "_is_loading",
        "_left",
        "_pended",
        "_pended_counts",
        "_room",
        "_sweep",
        "_unseen",
        "_with_pending",
        "_woken",
        "groups",
        "member_count",
    )

    def __init__(self, room: Room | None = None) -> None:
        self.groups: dict[str, Group] = {}
        self.member_count = 0
        self._room = Room() if room is None else room
        self._room.add(self)
        # Replay: nothing but rows of a snapshot yet; the rows between its begin and its end.
        self._is_complete = False
        self._is_loading = False
        self._deferred: list[Record] = []
        # Proposed and not yet safe, with what each has replaced.
        self._pended: deque[tuple[Record, Record]] = deque()
        self._pended_counts: Counter[str] = Counter()
        # (when, group, member): at least one for each member, none later than its end.
        self._deadlines: list[tuple[int, str, bytes]] = []
        self._dues: list[tuple[int, str]] = []
        self._assigning: OrderedDict[str, Assigning] = OrderedDict()
        self._left: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        # Members whose row is there and of which nothing was seen.
        self._unseen: dict[tuple[str, bytes], None] = {}
        self._with_pending: dict[str, None] = {}
        self._woken: dict[str, None] = {}
        self._sweep: Iterator[str] = iter(())

    # --- records -------------------------------------------------------------------------------
    def apply(self, offset: int, record: Record) -> None:
        assert offset >= 0
        if self._pended:
            oldest, _ = self._pended.popleft()
            assert oldest == record, "records become safe in the order in which they were proposed"
            # The row itself was put when it was proposed.
            self._unpend(record.group)
        elif record.is_state or record.kind in (Kind.SNAPSHOT_BEGIN, Kind.SNAPSHOT_END):
            self._replay_snapshot(offset, record)
        elif self._is_loading:
            self._deferred.append(record)
        else:
            self._is_complete = True
            self._put(record)

    def _replay_snapshot(self, offset: int, record: Record) -> None:
        if record.is_state:
            if self._is_loading:
                self._put(record._replace(is_state=False))
        elif record.kind is Kind.SNAPSHOT_END:
            if self._is_loading:
                self._finish_loading()
        elif offset == 0:
            # The log is whole: nothing below is missing.
            self._is_complete = True
        elif not self._is_complete and not self._is_loading:
            self._is_loading = True

    def _finish_loading(self) -> None:
        self._is_loading, self._is_complete = False, True
        deferred, self._deferred = self._deferred, []
        # Rows of the state may be newer than the first of these: all are put again, in order.
        for record in deferred:
            self._put(record)

    def begin(self, now: Now) -> None:
        """Called once, when all of the log is replayed and before the first question. Raises
        CorruptLog."""
        if self._is_loading:
            raise CorruptLog(
                "__groups begins with a snapshot without an end. Its log start moves only behind"
                " the end: rows are lost."
            )
        assert not self._pended
        self._is_complete = True
        for group in self.groups.values():
            group.index()
            if group.is_behind:
                group.target_due(now.mono_us)
                self._note_due(group)
        self._see_all(now)

    def pend(self, record: Record) -> None:
        assert self._is_complete, "nothing is proposed before `begin`"
        self._pended.append((record, self._put(record)))
        self._pended_counts[record.group] += 1

    def _unpend(self, group: str) -> None:
        self._pended_counts[group] -= 1
        if not self._pended_counts[group]:
            del self._pended_counts[group]

    def drop_pending(self) -> None:
        # The newest first: each gives back what it has replaced.
        while self._pended:
            _, before = self._pended.pop()
            self._put(before)
        self._pended_counts.clear()

    def is_waiting(self, group: str) -> bool:
        """Whether records of the group are proposed and not yet safe."""
        return group in self._pended_counts

    def capture(self) -> Iterator[Record]:
        """Yield a snapshot. Its first record is to be proposed in this turn, the others in this
        order, at any time: rows between them are replayed after them."""
        return _snapshot(self, list(self.groups))

    def _put(self, record: Record) -> Record:
        """Take a row; return the one that it replaces."""
        name = record.group
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name)
        before = group.put(record)
        if record.kind is Kind.MEMBER:
            self._count_member(group, record.key, before is not None, record.value is not None)
        elif record.kind is Kind.PENDING:
            self._with_pending.pop(name, None)
            if group.offsets.is_pending:
                self._with_pending[name] = None
        if group.freed:
            self._woken[name] = None
        if group.is_blank:
            del self.groups[name]
            self._assigning.pop(name, None)
        return record._replace(value=before)

    def _count_member(self, group: Group, member_id: bytes, was_in: bool, is_in: bool) -> None:
        self.member_count += is_in - was_in
        if not is_in:
            group.lives.pop(member_id, None)
            self._unseen.pop((group.name, member_id), None)
        elif member_id not in group.lives:
            self._unseen[group.name, member_id] = None

    # --- heartbeats ----------------------------------------------------------------------------
    def heartbeat(self, beat: Heartbeat, topics: Topics, now: Now) -> Answer:
        """Raises InvalidRequest, InvalidGroup, UnknownMember, FencedMemberEpoch, FencedInstance,
        UnsupportedAssignor, GroupFull; ThrottledBroker: a newer heartbeat was before it."""
        check_name(beat.group)
        _check_heartbeat(beat)
        group = self._group_of_members(beat.group)
        member = group.members.get(beat.member_id)
        if member is None and beat.epoch == JOINS:
            if beat.beat <= self._left.get((beat.group, beat.member_id), -1):
                raise ThrottledBroker("the member has left since.")
            self._room.check_member()
            if beat.group not in self.groups:
                self._room.check_group()
        answer = group.heartbeat(beat, topics, now)
        if member is not None and beat.epoch == LEAVES:
            self._remember(group, beat.member_id, beat.beat)
        # A question about a group that is not there makes none: the rows will.
        self._adopt(group, answer.records)
        self._watch(group, beat.member_id)
        self._note_due(group)
        return answer

    def _remember(self, group: Group, member_id: bytes, beat: int) -> None:
        """Heartbeats of the member up to this one do not join it again."""
        self._left[group.name, member_id] = beat
        if len(self._left) > LEFT_REMEMBERED:
            self._left.popitem(last=False)

    def wake(self, group: str, member_id: bytes, now: Now) -> Answer | None:
        """Return the answer to a heartbeat that was held back; None where the member is gone."""
        found = self.groups.get(group)
        answer = None if found is None else found.wake(member_id, now)
        if found is not None and answer is not None:
            self._watch(found, member_id)
        return answer

    def take_woken(self) -> list[tuple[str, bytes]]:
        """Return the members for which there may be something new since the last call."""
        woken = []
        for name in self._woken:
            group = self.groups.get(name)
            if group is not None:
                woken += [(name, one) for one in group.freed if one in group.members]
                group.freed.clear()
        self._woken.clear()
        return woken

    def _group_of_members(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            return Group(name)
        if group.is_observer:
            raise InvalidGroup(f"{name!r} is a Spark query that reports its progress.")
        return group

    def _adopt(self, group: Group, records: Collection[Record]) -> None:
        if records and group.name not in self.groups:
            self.groups[group.name] = group

    def _watch(self, group: Group, member_id: bytes) -> None:
        """Have the member's end looked at, when it may come."""
        live = group.lives.get(member_id)
        if live is None:
            return
        due_us = _end_us(group, member_id, live)[0]
        if live.watched_us is None or due_us < live.watched_us:
            # What is in the heap for it until now is passed over when its time comes.
            live.watched_us = due_us
            heapq.heappush(self._deadlines, (due_us, group.name, member_id))

    def _note_due(self, group: Group) -> None:
        if group.due_us is not None and group.due_us != group.noted_us:
            group.noted_us = group.due_us
            heapq.heappush(self._dues, (group.due_us, group.name))

    # --- what is due ---------------------------------------------------------------------------
    def next_us(self) -> int | None:
        """Return when `tick` is due."""
        if self._assigning or self._unseen:
            return _AT_ONCE
        dues = [heap[0][0] for heap in (self._deadlines, self._dues) if heap]
        return min(dues, default=None)

    def tick(self, topics: Topics, now: Now) -> Ticked:
        """Fence members, begin targets, or compute for about a millisecond."""
        self._see_all(now)
        fenced = self._fenced(topics, now)
        # A target is computed of members that are left, so in another call.
        if fenced.records:
            return fenced
        while self._dues and self._dues[0][0] <= now.mono_us:
            due_us, name = heapq.heappop(self._dues)
            group = self.groups.get(name)
            if group is None or group.due_us != due_us:
                continue
            group.due_us = None
            if group.is_behind and name not in self._assigning:
                if group.target_epoch >= group.epoch:
                    grown = group.topics_changed(topics, now, is_forced=True)
                    self._note_due(group)
                    return Ticked(grown, [])
                self._assigning[name] = Assigning(group, topics)
        if not self._assigning:
            return Ticked([], [])
        # In turns: a large group does not hold up the small ones.
        name, assigning = self._assigning.popitem(last=False)
        records = assigning.step()
        if records is None:
            self._assigning[name] = assigning
            return Ticked([], [])
        group = self.groups[name]
        # Where it cannot be proposed, or the epoch has grown since.
        group.target_due(now.mono_us + _RETRY_US)
        self._note_due(group)
        return Ticked(records, [])

    def _see_all(self, now: Now) -> None:
        """Members whose rows are there and that were not seen count as seen now."""
        for name, member_id in self._unseen:
            group = self.groups[name]
            live = group.lives.get(member_id)
            if live is None:
                live = group.lives[member_id] = Live(now.mono_us)
            if group.standings.get(member_id) and group.standings[member_id].revoking:
                live.revoking_us = now.mono_us
            self._watch(group, member_id)
        self._unseen.clear()

    def _fenced(self, topics: Topics, now: Now) -> Ticked:
        ended: dict[str, dict[bytes, str]] = {}
        while self._deadlines and self._deadlines[0][0] <= now.mono_us:
            watched_us, name, member_id = heapq.heappop(self._deadlines)
            group = self.groups.get(name)
            live = None if group is None else group.lives.get(member_id)
            if group is None or live is None or live.watched_us != watched_us:
                continue
            live.watched_us = None
            if member_id not in group.members:
                # Its join was not stored.
                del group.lives[member_id]
                continue
            due_us, reason = _end_us(group, member_id, live)
            if due_us <= now.mono_us:
                ended.setdefault(name, {})[member_id] = reason
                self._remember(group, member_id, live.beat)
                # Again where it cannot be proposed.
                due_us = now.mono_us + _RETRY_US
            live.watched_us = due_us
            heapq.heappush(self._deadlines, (due_us, name, member_id))
        records: list[Record] = []
        fences = []
        for name, members in ended.items():
            group = self.groups[name]
            records += group.remove(list(members), topics, now)
            self._note_due(group)
            fences += [Fence(name, one, reason) for one, reason in members.items()]
        return Ticked(records, fences)

    def topics_changed(
        self, names: Collection[str] | None, topics: Topics, now: Now
    ) -> list[Record]:
        """Return the records for topics that have come, gone or got partitions; None: any may have.
        To be called when the image changes, and after `begin`."""
        records = []
        for group in self.groups.values():
            if names is None or group.subscribes_to_any(names):
                records += group.topics_changed(topics, now)
                self._note_due(group)
        return records

    # --- offsets -------------------------------------------------------------------------------
    def commit(
        self,
        name: str,
        member_id: bytes,
        epoch: int,
        entries: Sequence[Entry],
        topics: Topics,
        now: Now,
    ) -> Committing:
        """Without a member id: into a group without members, which is made. Raises InvalidGroup,
        UnknownMember, GroupNotEmpty, GroupFull."""
        group = self._to_commit(name, member_id)
        done = group.offsets.commit(entries, group.committer(member_id, epoch), topics, now)
        return done._replace(records=self._with_header(group, done.records, now))

    def _to_commit(self, name: str, member_id: bytes) -> Group:
        check_name(name)
        group = self._group_of_members(name)
        if name not in self.groups and not member_id:
            self._room.check_group()
        return group

    def _with_header(self, group: Group, records: list[Record], now: Now) -> list[Record]:
        if not records or group.header is not None:
            return records
        row = GroupRow(GroupType.SIMPLE, 0, "", emptied_us=now.wall_us)
        return [Record(Kind.GROUP, group.name, b"", row), *records]

    def fetch(
        self, name: str, partitions: Iterable[TopicPartition] | None, topics: Topics
    ) -> list[Fetched]:
        """Raises InvalidGroup. A group that is not there has none."""
        check_name(name)
        return self._group_of_members(name).offsets.fetch(partitions, topics)

    def prepare(
        self,
        name: str,
        tid: str,
        epoch: int,
        sequence: int,
        digest: bytes,
        attempt: int,
        member_id: bytes,
        member_epoch: int,
        entries: Sequence[Entry],
        topics: Topics,
        now: Now,
    ) -> Preparing:
        """Have offsets pend with a transaction (PREPARE_OFFSETS), all or none: `Offsets.prepare`.
        Raises what it and `commit` raise."""
        assert digest
        group = self._to_commit(name, member_id)
        check = group.committer(member_id, member_epoch)
        done = group.offsets.prepare(
            tid, epoch, sequence, digest, attempt, entries, check, topics, now
        )
        return done._replace(records=self._with_header(group, done.records, now))

    def settle(
        self,
        name: str,
        tid: str,
        epoch: int,
        sequence: int,
        digest: bytes,
        now: Now,
        *,
        attempt: int | None = None,
    ) -> list[Record]:
        """See `Offsets.settle`."""
        group = self.groups.get(name)
        if group is None:
            return []
        return group.offsets.settle(tid, epoch, sequence, digest, now, attempt=attempt)

    def unsettled(self, now: Now) -> list[Unsettled]:
        """Return what pends for longer than 5 s: its coordinator is to be asked, and `settle`
        called. To be called every second."""
        return [
            one for name in self._with_pending for one in self.groups[name].offsets.unsettled(now)
        ]

    def alter(
        self,
        name: str,
        entries: Sequence[Entry],
        topics: Topics,
        now: Now,
        *,
        deletes: bool = False,
    ) -> Committing:
        """Set or delete offsets of partitions that no member has; each entry has its error. Raises
        InvalidGroup, GroupFull."""
        group = self._to_commit(name, b"")
        done = group.offsets.alter(entries, group.unheld, topics, now, deletes=deletes)
        return (
            done if deletes else done._replace(records=self._with_header(group, done.records, now))
        )

    def delete(self, name: str) -> list[Record]:
        """Raises InvalidGroup, GroupNotEmpty, UnstableOffsets."""
        check_name(name)
        group = self._group_of_members(name)
        if group.is_blank:
            raise InvalidGroup(f"there is no group {name!r}.")
        if group.members:
            shown = ", ".join(sorted(one.client_id for one in group.members.values())[:3])
            raise GroupNotEmpty(f"{name!r} has {len(group.members)} members, among them {shown}.")
        if group.offsets.is_pending:
            raise UnstableOffsets(f"a transaction is about to commit offsets of {name!r}.")
        return _deletions(group)

    # --- observers -----------------------------------------------------------------------------
    def report(
        self,
        name: str,
        reporter: bytes,
        title: str,
        positions: Sequence[Position],
        rows_per_second: float,
        now: Now,
    ) -> list[Record]:
        """Take where a Spark query reads; no title, or no positions: as before.

        Raises InvalidGroup, GroupFull.
        """
        check_name(name)
        group = self.groups.get(name)
        if group is None:
            self._room.check_group()
            group = Group(name)
        elif group.header is not None and not group.is_observer:
            raise InvalidGroup(f"{name!r} is a group of consumers, not of a Spark query.")
        if reporter not in group.reports and len(group.reports) >= OBSERVERS_PER_GROUP_MAX:
            raise GroupFull(f"{OBSERVERS_PER_GROUP_MAX} queries report as {name!r}, the most.")
        before = group.reports.get(reporter) or group.observed.get(reporter)
        if before is not None:
            # The source reports positions, the driver's listener the title.
            title = title or before.title
            if not positions:
                positions, rows_per_second = before.positions, before.rows_per_second
        row = Observed(title, tuple(positions), rows_per_second, now.wall_us)
        group.reports[reporter] = row
        records = []
        if group.header is None:
            header = GroupRow(GroupType.OBSERVER, 1, "", emptied_us=now.wall_us)
            records.append(Record(Kind.GROUP, name, b"", header))
        written = group.observed.get(reporter)
        if written is None or now.wall_us - written.now_us >= OBSERVED_WRITTEN_MS * 1000:
            records.append(Record(Kind.OBSERVED, name, reporter, row))
        self._adopt(group, records)
        return records

    def reporter_count(self, name: str, now: Now) -> int:
        """Return how many queries have reported under a name within `REPORTING_MS`."""
        since_us = now.wall_us - REPORTING_MS * 1000
        return sum(one.now_us > since_us for one in self.groups[name].reports.values())

    # --- what goes -----------------------------------------------------------------------------
    def sweep(self, topics: Topics, now: Now, retention_ms: int) -> list[Record]:
        """Return the deletions of what has expired, of the next groups, round and round, and rows
        of observers that are behind. To be called every second, and when a topic is deleted."""
        records: list[Record] = []
        looked = 0
        while looked < SWEEP_ROWS:
            name = next(self._sweep, None)
            if name is None:
                self._sweep = iter(list(self.groups))
                break
            group = self.groups.get(name)
            if group is not None and group.is_blank and not (group.lives or group.reports):
                del self.groups[name]  # Nothing of it was stored.
            elif group is not None:
                looked += 1 + len(group.offsets.committed) + len(group.offsets.pending)
                records += _expired(group, topics, now, retention_ms)
        return records


def _expired(group: Group, topics: Topics, now: Now, retention_ms: int) -> list[Record]:
    header = group.header
    if header is not None and header.group_type is GroupType.OBSERVER:
        return _expired_reports(group, now, retention_ms)
    # By the wall clock of rows: no coordinator serves for a week.
    unused_us = None if group.members or header is None else header.emptied_us
    records = list(
        group.offsets.expired(topics, now, unused_since_us=unused_us, retention_ms=retention_ms)
    )
    has_offsets = group.offsets.committed or group.offsets.pending
    # A name that each start of a program makes anew would fill the broker's room in a week.
    if unused_us is None or has_offsets or now.wall_us - unused_us < EMPTY_KEPT_MS * 1000:
        return records
    return _deletions(group)


def _expired_reports(group: Group, now: Now, retention_ms: int) -> list[Record]:
    for reporter, row in group.observed.items():
        group.reports.setdefault(reporter, row)
    records = []
    for reporter, report in list(group.reports.items()):
        written = group.observed.get(reporter)
        if now.wall_us - report.now_us >= retention_ms * 1000:
            del group.reports[reporter]
            records.append(Record(Kind.OBSERVED, group.name, reporter))
        elif written is None or report.now_us - written.now_us >= OBSERVED_WRITTEN_MS * 1000:
            records.append(Record(Kind.OBSERVED, group.name, reporter, report))
    return records if group.reports else _deletions(group)


def _deletions(group: Group) -> list[Record]:
    rows = [record._replace(value=None) for record in group.rows()]
    # The header last: what is stored of it in part is a group still.
    return sorted(rows, key=lambda one: one.kind is Kind.GROUP)


def _end_us(group: Group, member_id: bytes, live: Live) -> tuple[int, str]:
    """Return when the member is fenced, and why."""
    member = group.members.get(member_id)
    if member is None:
        return live.seen_us, "not stored"
    silent_us = live.seen_us + member.session_timeout_ms * 1000
    standing = group.standings.get(member_id)
    # What it was to be asked for may not have been stored.
    is_asked = standing is not None and bool(standing.revoking)
    # A static member that is away has nothing in hand.
    if is_asked and live.revoking_us is not None and not member.is_away:
        unrevoked_us = live.revoking_us + member.rebalance_timeout_ms * 1000
        if unrevoked_us < silent_us:
            return unrevoked_us, "unrevoked"
    return silent_us, "silent"


def _snapshot(coordinator: Coordinator, names: list[str]) -> Iterator[Record]:
    yield Record(Kind.SNAPSHOT_BEGIN, "")
    for name in names:
        group = coordinator.groups.get(name)
        if group is not None:
            for record in list(group.rows()):
                yield record._replace(is_state=True)
    yield Record(Kind.SNAPSHOT_END, "")


def check_name(name: str) -> None:
    """Raises InvalidGroup."""
    if name.startswith("__"):
        raise InvalidGroup(f"group {name[:80]!r}: names that begin with __ are reserved.")
    if not GROUP_NAME.fullmatch(name):
        raise InvalidGroup(
            f"group {name[:80]!r}: a name has 1 to {GROUP_NAME_CHARS_MAX} letters, digits, dots,"
            " underscores and hyphens."
        )


def _check_heartbeat(beat: Heartbeat) -> None:
    if len(beat.member_id) != MEMBER_ID_BYTES:
        raise InvalidRequest(f"a member id has 16 bytes, not {len(beat.member_id)}.")
    if beat.epoch < LEAVES_FOR_A_WHILE:
        raise InvalidRequest(f"member epoch {beat.epoch}: the lowest is -2.")
    if beat.beat < 0:
        raise InvalidRequest(f"heartbeat {beat.beat}: the first is 0 or more.")
    if beat.topics is not None and len(beat.topics) > GROUP_TOPICS_MAX:
        raise InvalidRequest(
            f"{len(beat.topics):,} topics, the most of a member are {GROUP_TOPICS_MAX:,}."
        )
    if beat.owned is not None and len(beat.owned) > GROUP_PARTITIONS_MAX:
        raise InvalidRequest(
            f"{len(beat.owned):,} partitions in one heartbeat, the most are"
            f" {GROUP_PARTITIONS_MAX:,}."
        )
    if len(beat.instance_id) > GROUP_INSTANCE_CHARS_MAX:
        raise InvalidRequest(
            f"an instance id of {len(beat.instance_id)} characters, the most are"
            f" {GROUP_INSTANCE_CHARS_MAX}."
        )
    _check_timeout(
        "session",
        beat.session_timeout_ms,
        GROUP_SESSION_TIMEOUT_MS_MIN,
        GROUP_SESSION_TIMEOUT_MS_MAX,
    )
    _check_timeout(
        "rebalance",
        beat.rebalance_timeout_ms,
        GROUP_REBALANCE_TIMEOUT_MS_MIN,
        GROUP_REBALANCE_TIMEOUT_MS_MAX,
    )


def _check_timeout(name: str, value_ms: int, least_ms: int, most_ms: int) -> None:
    if value_ms != -1 and not least_ms <= value_ms <= most_ms:
        raise InvalidRequest(
            f"a {name} timeout of {value_ms:,} ms: it is from {least_ms:,} to {most_ms:,} ms."
        )
