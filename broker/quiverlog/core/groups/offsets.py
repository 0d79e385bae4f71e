"""The committed offsets of one group, and those of transactions that are being decided.

Invariants:
- An offset with a pending transaction is changed by that transaction's settlement alone.
- What pends is settled once, as committed only by the digest that was decided. What a later try of
  the same transaction prepares is not settled by the failure of an earlier one.
- The offsets of a topic belong to its id: a topic made again under the name begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from quiverlog.errors import (
    FencedMemberEpoch,
    GroupFull,
    InvalidRequest,
    QuiverlogError,
    UnknownPartition,
    UnknownTopicId,
    UnstableOffsets,
)
from quiverlog.limits import GROUP_OFFSETS_MAX
from quiverlog.types import Now

from .records import Entry, Kind, Offset, Pending, Record, TopicPartition, key_of
from .topics import Topics

__all__ = [
    "PENDING_PER_GROUP_MAX",
    "RESOLVE_AFTER_MS",
    "SETTLED_KEPT_MS",
    "Committing",
    "Fetched",
    "Offsets",
    "Preparing",
    "Unsettled",
]

PENDING_PER_GROUP_MAX: Final = 10_000
"""Transactional ids with a transaction in the group, also settled ones that are remembered."""
RESOLVE_AFTER_MS: Final = 5_000
"""What pends longer is asked about."""
SETTLED_KEPT_MS: Final = 3_600_000
"""No request between brokers is as late as this."""

Check = Callable[[TopicPartition], QuiverlogError | None]
"""Why the sender may not commit a partition."""


class Committing(NamedTuple):
    """`errors`: of each entry, in order; those without one are in `records`."""

    records: list[Record]
    errors: list[QuiverlogError | None]


class Preparing(NamedTuple):
    """`is_settled`: it was committed before."""

    records: list[Record]
    is_settled: bool = False


class Fetched(NamedTuple):
    """`committed` None: nothing is. `is_unstable`: a transaction decides about a newer one."""

    partition: TopicPartition
    committed: Offset | None
    is_unstable: bool


class Unsettled(NamedTuple):
    """A transaction whose coordinator is to be asked (RESOLVE_STAGED)."""

    group: str
    transactional_id: str
    pending: Pending


class Offsets:
    __slots__ = ("_group", "_pending_of", "_since_us", "committed", "pending")

    def __init__(self, group: str) -> None:
        self._group = group
        self.committed: dict[TopicPartition, Offset] = {}
        self.pending: dict[str, Pending] = {}
        self._pending_of: dict[TopicPartition, str] = {}
        # When this coordinator saw it first.
        self._since_us: dict[str, int] = {}

    # --- rows ----------------------------------------------------------------------------------
    def put_offset(self, partition: TopicPartition, value: Offset | None) -> Offset | None:
        before = self.committed.get(partition)
        if value is None:
            self.committed.pop(partition, None)
        else:
            self.committed[partition] = value
        return before

    def put_pending(self, tid: str, value: Pending | None) -> Pending | None:
        before = self.pending.pop(tid, None)
        for one in () if before is None else before.entries:
            self._pending_of.pop((one.topic_id, one.partition), None)
        if value is not None:
            self.pending[tid] = value
            for one in value.entries:
                self._pending_of[one.topic_id, one.partition] = tid
        if value is None or not value.entries:
            self._since_us.pop(tid, None)
        return before

    def rows(self) -> Iterator[Record]:
        for partition, offset in list(self.committed.items()):
            yield Record(Kind.OFFSET, self._group, key_of(partition), offset)
        for tid, pending in list(self.pending.items()):
            yield Record(Kind.PENDING, self._group, tid.encode(), pending)

    @property
    def unstable(self) -> Mapping[TopicPartition, str]:
        """Partitions with a pending transaction, and its id."""
        return self._pending_of

    @property
    def is_pending(self) -> bool:
        return bool(self._pending_of)

    # --- commits -------------------------------------------------------------------------------
    def commit(
        self, entries: Sequence[Entry], check: Check, topics: Topics, now: Now
    ) -> Committing:
        records: list[Record] = []
        errors: list[QuiverlogError | None] = []
        room = GROUP_OFFSETS_MAX - len(self.committed)
        for one in entries:
            partition = one.topic_id, one.partition
            error = _check_entry(one, topics) or check(partition) or self._unstable(partition)
            if error is None and partition not in self.committed:
                room -= 1
                if room < 0:
                    error = _no_room(self._group)
            errors.append(error)
            if error is None:
                records.append(self._row(one, now))
        return Committing(records, errors)

    def _row(self, one: Entry, now: Now) -> Record:
        value = Offset(one.offset, one.leader_epoch, one.metadata, now.wall_us)
        return Record(Kind.OFFSET, self._group, key_of((one.topic_id, one.partition)), value)

    def _unstable(self, partition: TopicPartition) -> QuiverlogError | None:
        tid = self._pending_of.get(partition)
        if tid is None:
            return None
        return UnstableOffsets(
            f"transaction {self.pending[tid].sequence} of {tid!r} is about to commit an offset of"
            f" partition {partition[1]}."
        )

    def alter(
        self,
        entries: Sequence[Entry],
        check: Check,
        topics: Topics,
        now: Now,
        *,
        deletes: bool = False,
    ) -> Committing:
        """Set offsets by command, or delete them. `check`: that no member has the partition."""
        if not deletes:
            return self.commit(entries, check, topics, now)
        records, errors = [], []
        for one in entries:
            partition = one.topic_id, one.partition
            error = check(partition) or self._unstable(partition)
            errors.append(error)
            if error is None and partition in self.committed:
                records.append(Record(Kind.OFFSET, self._group, key_of(partition)))
        return Committing(records, errors)

    def fetch(self, partitions: Iterable[TopicPartition] | None, topics: Topics) -> list[Fetched]:
        """None: of all that have one."""
        if partitions is None:
            partitions = {**self.committed, **dict.fromkeys(self._pending_of)}
            partitions = [one for one in partitions if topics.partitions(one[0])]
        # Those of a deleted topic go in a sweep; until then they are not returned.
        return [
            Fetched(
                one,
                self.committed.get(one) if topics.partitions(one[0]) else None,
                one in self._pending_of,
            )
            for one in partitions
        ]

    # --- transactions --------------------------------------------------------------------------
    def prepare(
        self,
        tid: str,
        epoch: int,
        sequence: int,
        digest: bytes,
        attempt: int,
        entries: Sequence[Entry],
        check: Check,
        topics: Topics,
        now: Now,
    ) -> Preparing:
        """Have offsets pend, all or none.

        Args:
            digest: of all that the transaction decides, these offsets too; never empty.
            attempt: numbers the tries of all transactions of the id, also those of its later
                coordinators. One is decided only while no later one has begun.

        Raises FencedMemberEpoch, UnstableOffsets, GroupFull, InvalidRequest, UnknownTopicId,
        UnknownPartition.
        """
        if not entries:
            raise InvalidRequest("a transaction was to commit offsets of no partition.")
        before = self.pending.get(tid)
        if before is not None:
            is_same = (before.epoch, before.sequence) == (epoch, sequence)
            if is_same and before.is_committed and before.digest == digest:
                return Preparing([], is_settled=True)
            if is_same and before.entries and before.attempt == attempt:
                return Preparing([])
            _check_newer(tid, before, (epoch, sequence, attempt))
            if before.entries and not is_same:
                raise UnstableOffsets(
                    f"transaction {before.sequence} of {tid!r} is not settled in {self._group!r}."
                )
        self._check_all(tid, entries, check, topics)
        # An earlier try of the same transaction, which is never decided, ends with this.
        pending = Pending(epoch, sequence, digest, attempt, tuple(entries), now.wall_us)
        return Preparing([self._pending_row(tid, pending)])

    def _check_all(self, tid: str, entries: Sequence[Entry], check: Check, topics: Topics) -> None:
        fresh = len({(one.topic_id, one.partition) for one in entries} - self.committed.keys())
        if len(self.committed) + len(self._pending_of) + fresh > GROUP_OFFSETS_MAX:
            raise _no_room(self._group)
        if tid not in self.pending and len(self.pending) >= PENDING_PER_GROUP_MAX:
            raise GroupFull(
                f"{self._group!r} has offsets of {PENDING_PER_GROUP_MAX:,} transactional ids, the"
                " most; settled ones go after an hour."
            )
        for one in entries:
            partition = one.topic_id, one.partition
            error = _check_entry(one, topics) or check(partition)
            if error is None and self._pending_of.get(partition) != tid:
                error = self._unstable(partition)
            if error is not None:
                raise error

    def _pending_row(self, tid: str, pending: Pending) -> Record:
        return Record(Kind.PENDING, self._group, tid.encode(), pending)

    def settle(
        self,
        tid: str,
        epoch: int,
        sequence: int,
        digest: bytes,
        now: Now,
        *,
        attempt: int | None = None,
    ) -> list[Record]:
        """Return the records that settle what pends; none where nothing of the transaction does.

        Args:
            digest: the one that was decided; empty: none was.
            attempt: with an empty digest: the try that has failed; None: none can be decided.
        """
        pending = self.pending.get(tid)
        if pending is None or not pending.entries:
            return []
        # Of another transaction of the id, before or after.
        if (pending.epoch, pending.sequence) != (epoch, sequence):
            return []
        # Its coordinator tries it again meanwhile: the failure of an earlier try comes late.
        if not digest and attempt is not None and attempt < pending.attempt:
            return []
        is_committed = bool(digest) and digest == pending.digest
        settled = replace(pending, entries=(), settled_us=now.wall_us, is_committed=is_committed)
        records = [self._row(one, now) for one in pending.entries] if is_committed else []
        # Last: where only a part of them is stored, it is settled again.
        return [*records, self._pending_row(tid, settled)]

    def unsettled(self, now: Now) -> Iterator[Unsettled]:
        """Yield what has pended for RESOLVE_AFTER_MS. Looks at each."""
        for tid in dict.fromkeys(self._pending_of.values()):
            # From the first look on: a failover gives its coordinator time again.
            since_us = self._since_us.setdefault(tid, now.mono_us)
            if now.mono_us - since_us >= RESOLVE_AFTER_MS * 1000:
                yield Unsettled(self._group, tid, self.pending[tid])

    # --- what goes -----------------------------------------------------------------------------
    def expired(
        self, topics: Topics, now: Now, *, unused_since_us: int | None, retention_ms: int
    ) -> Iterator[Record]:
        """Yield deletions. `unused_since_us`: since when the group has no members, else None."""
        for partition, offset in list(self.committed.items()):
            # It is about to be replaced.
            if partition in self._pending_of:
                continue
            # An image that this coordinator serves by is no older than that of any commit before
            # its election: an id that it does not have was deleted.
            is_old = unused_since_us is not None and (
                now.wall_us - max(unused_since_us, offset.now_us) >= retention_ms * 1000
            )
            if is_old or not topics.partitions(partition[0]):
                yield Record(Kind.OFFSET, self._group, key_of(partition))
        for tid, one in list(self.pending.items()):
            if not one.entries and now.wall_us - one.settled_us >= SETTLED_KEPT_MS * 1000:
                yield Record(Kind.PENDING, self._group, tid.encode())


def _check_entry(one: Entry, topics: Topics) -> QuiverlogError | None:
    if one.offset < 0:
        return InvalidRequest(f"offset {one.offset} of partition {one.partition} is below 0.")
    count = topics.partitions(one.topic_id)
    if not count:
        return UnknownTopicId(f"there is no topic with the id {one.topic_id.hex()}.")
    if not 0 <= one.partition < count:
        return UnknownPartition(f"partition {one.partition}: the topic has {count}.")
    return None


def _check_newer(tid: str, before: Pending, place: tuple[int, int, int]) -> None:
    newest = before.epoch, before.sequence, before.attempt
    if place > newest and not (before.is_committed and place[1] <= before.sequence):
        return
    raise FencedMemberEpoch(
        f"transaction {place[1]} of {tid!r} (epoch {place[0]}, attempt {place[2]}): transaction"
        f" {newest[1]} (epoch {newest[0]}, attempt {newest[2]}) was before it."
    )


def _no_room(group: str) -> QuiverlogError:
    return GroupFull(f"{group!r} has offsets of {GROUP_OFFSETS_MAX:,} partitions, the most.")
