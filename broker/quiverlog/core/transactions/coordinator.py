"""What a partition of `__transactions` has of its ids, and what it decides.

A question is answered from what is pending: the records that are safe (`apply`) and those that are
proposed (`pend`). It changes nothing; what it returns is to be proposed in the same turn.

Invariants:
- An answer that rests on a pending record is as late as it (`is_waiting`, `is_waiting_to_open`).
- An id's epoch never falls, not even when the id is forgotten; its sequences grow.
- DEAD follows from records and stays true, whichever coordinator is asked later.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from quiverlog.errors import (
    CorruptLog,
    SequenceTaken,
    SequenceTooOld,
    StagingFull,
    TransactionClosed,
    TransactionFenced,
    UnknownTransactionalId,
)
from quiverlog.limits import TRANSACTION_EPOCH_MAX
from quiverlog.types import NO_SEQUENCE, Now

from .records import (
    Closed,
    Committed,
    End,
    Forgotten,
    Last,
    Opened,
    Part,
    Published,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotState,
    instance_hash,
)

__all__ = [
    "EPOCHS_END",
    "FORGET_LOOKS_MAX",
    "IDS_MAX",
    "OLD_INSTANCES_MAX",
    "PINNED_MS_MAX",
    "SINGLE_USE_EXPIRY_MS",
    "SINGLE_USE_IDS_MAX",
    "Aborting",
    "Coordinator",
    "Opening",
    "Resolved",
    "Resolving",
    "Standing",
    "Standings",
]

IDS_MAX: Final = 100_000
"""Ids of one partition of `__transactions`."""
SINGLE_USE_IDS_MAX: Final = 50_000
"""Of these: batch writes leave room for ids that stay."""
OLD_INSTANCES_MAX: Final = 16
EPOCHS_END: Final = TRANSACTION_EPOCH_MAX + 1
"""No id gets this epoch or one above: rows may be staged under any that a client makes up."""
SINGLE_USE_EXPIRY_MS: Final = 3_600_000
"""After its commit: the client may ask again until then."""
PINNED_MS_MAX: Final = 60_000
"""An epoch that keeps a full staging partition from being trimmed is closed after this."""
FORGET_LOOKS_MAX: Final = 1_000
"""Ids that one call of `expired` looks at."""

_OF_SNAPSHOTS: Final = (SnapshotBegin, SnapshotState, SnapshotEnd)


class Opening(NamedTuple):
    records: list[Record]
    epoch: int
    last_sequence: int
    last_committed_us: int
    is_publishing: bool


class Standings(enum.Enum):
    NEW = 0
    COMMITTED_BEFORE = 1
    BUSY = 2
    """An earlier sequence of the id is being published."""


class Standing(NamedTuple):
    kind: Standings
    last: Last | None = None


class Aborting(NamedTuple):
    records: list[Record]
    had_committed: bool


class Resolved(enum.IntEnum):
    LIVE = 0
    DEAD = 1
    PUBLISHING = 2
    PUBLISHED = 3


class Resolving(NamedTuple):
    """With records, the answer is sent only after they are safe."""

    records: list[Record]
    standing: Resolved
    digest: bytes = b""


class Coordinator:
    __slots__ = (
        "_begun_us",
        "_committed_us",
        "_deferred",
        "_forgotten_epoch",
        "_id_count",
        "_is_complete",
        "_is_loading",
        "_opened_us",
        "_overlay",
        "_pended",
        "_pended_counts",
        "_pended_forgotten_epoch",
        "_seen_us",
        "_single_count",
        "_sweep",
        "applied",
        "open_count",
    )

    def __init__(self) -> None:
        self.applied: dict[str, SnapshotState] = {}
        self.open_count = 0  # From `begin` on.
        self._forgotten_epoch = 0
        # Replay: nothing but rows of a snapshot yet; the rows between its begin and its end.
        self._is_complete = False
        self._is_loading = False
        self._deferred: list[Record] = []
        # Proposed and not yet safe; None: forgotten.
        self._pended: deque[Record] = deque()
        self._pended_counts: dict[str, int] = {}
        self._overlay: dict[str, SnapshotState | None] = {}
        self._pended_forgotten_epoch = 0
        # Of what is pending: many may open in one turn.
        self._id_count = 0
        self._single_count = 0
        # Signs of life, when an epoch was opened, and when an id of single use has committed. By
        # the clock that only grows: brokers differ in the other. What was before `begin` counts as
        # just then.
        self._seen_us: dict[str, int] = {}
        self._opened_us: dict[str, int] = {}
        self._committed_us: dict[str, int] = {}
        self._begun_us = 0
        self._sweep: Iterator[str] = iter(())

    # --- records -------------------------------------------------------------------------------
    def apply(self, offset: int, record: Record) -> None:
        assert offset >= 0
        if self._pended:
            oldest = self._pended.popleft()
            assert oldest == record, "records become safe in the order in which they were proposed"
            self._unpend(record.transactional_id)
            self._apply_one(record)
        elif isinstance(record.change, _OF_SNAPSHOTS):
            self._replay_snapshot(offset, record)
        elif self._is_loading:
            self._deferred.append(record)
        else:
            self._is_complete = True
            self._apply_one(record)

    def _replay_snapshot(self, offset: int, record: Record) -> None:
        match record.change:
            case SnapshotBegin():
                if offset == 0:
                    # The log is whole: nothing below is missing.
                    self._is_complete = True
                elif not self._is_complete and not self._is_loading:
                    self._is_loading = True
                    self._forgotten_epoch = record.change.forgotten_epoch
            case SnapshotState():
                if self._is_loading:
                    self.applied[record.transactional_id] = record.change
            case SnapshotEnd():
                if self._is_loading:
                    self._finish_loading()

    def _finish_loading(self) -> None:
        self._is_loading, self._is_complete = False, True
        deferred, self._deferred = self._deferred, []
        for record in deferred:
            self._apply_one(record)

    def _apply_one(self, record: Record) -> None:
        tid, change = record
        if isinstance(change, Forgotten):
            state = self.applied.pop(tid, None)
            self.open_count -= _is_open(state)
            # Its next life may have begun: it was opened while this record became safe.
            if self._find(tid) is None:
                for moments in self._moments():
                    moments.pop(tid, None)
            if state is not None:
                self._forgotten_epoch = max(self._forgotten_epoch, state.epoch)
        elif not isinstance(change, _OF_SNAPSHOTS):
            before = self.applied.get(tid)
            after = self.applied[tid] = _after(before, record)
            self.open_count += _is_open(after) - _is_open(before)

    def begin(self, now: Now) -> None:
        """Called once, when all of the log is replayed and before the first question. Raises
        CorruptLog."""
        if self._is_loading:
            raise CorruptLog(
                "__transactions begins with a snapshot without an end. Its log start moves only"
                " behind the end: rows are lost."
            )
        assert not self._pended
        self._is_complete = True
        self._begun_us = now.mono_us
        self._pended_forgotten_epoch = self._forgotten_epoch
        self._recount()
        self.open_count = sum(map(_is_open, self.applied.values()))

    def pend(self, record: Record) -> None:
        assert self._is_complete, "nothing is proposed before `begin`"
        # Kept in order: an append that fails takes all behind it along.
        self._pended.append(record)
        tid = record.transactional_id
        self._pended_counts[tid] = self._pended_counts.get(tid, 0) + 1
        if isinstance(record.change, _OF_SNAPSHOTS):
            return
        before = self._find(tid)
        after = None if isinstance(record.change, Forgotten) else _after(before, record)
        if after is None and before is not None:
            self._pended_forgotten_epoch = max(self._pended_forgotten_epoch, before.epoch)
        self._overlay[tid] = after
        self._id_count += (after is not None) - (before is not None)
        self._single_count += _is_single(after) - _is_single(before)
        assert 0 <= self._single_count <= self._id_count

    def _unpend(self, tid: str) -> None:
        self._pended_counts[tid] -= 1
        # Others of the id may be proposed behind it.
        if self._pended_counts[tid] == 0:
            del self._pended_counts[tid]
            self._overlay.pop(tid, None)

    def drop_pending(self) -> None:
        self._pended.clear()
        self._pended_counts.clear()
        self._overlay.clear()
        self._pended_forgotten_epoch = self._forgotten_epoch
        self._recount()
        for moments in self._moments():
            for tid in moments.keys() - self.applied.keys():
                del moments[tid]

    def _moments(self) -> tuple[dict[str, int], ...]:
        return self._seen_us, self._opened_us, self._committed_us

    def _recount(self) -> None:
        # Seldom: after a replay, and where an append has failed.
        self._id_count = len(self.applied)
        self._single_count = sum(state.single_use for state in self.applied.values())

    def _find(self, tid: str) -> SnapshotState | None:
        if tid in self._overlay:
            return self._overlay[tid]
        return self.applied.get(tid)

    def is_waiting(self, tid: str) -> bool:
        """Whether records of the id are proposed and not yet safe."""
        return tid in self._pended_counts

    def is_waiting_to_open(self, tid: str) -> bool:
        """The same for what OPEN answers: that rows are published is true before it is recorded."""
        if tid not in self._pended_counts:
            return False
        return _opened_as(self.applied.get(tid)) != _opened_as(self._find(tid))

    def capture(self) -> Iterator[Record]:
        """Yields a snapshot of what is pending now. Its first record is to be proposed in this
        turn, the others in this order, at any time."""
        states: dict[str, SnapshotState | None] = {**self.applied, **self._overlay}
        return _snapshot(self._pended_forgotten_epoch, states)

    # --- signs of life -------------------------------------------------------------------------
    def sign_of_life(self, tid: str, now: Now, *, opens: bool = False) -> None:
        """`opens`: an epoch begins. The id is known, or proposed."""
        self._seen_us[tid] = now.mono_us
        if opens:
            self._opened_us[tid] = now.mono_us

    def silent_us(self, tid: str, now: Now) -> int:
        return max(0, now.mono_us - self._seen_us.get(tid, self._begun_us))

    # --- deciding ------------------------------------------------------------------------------
    def open(
        self,
        tid: str,
        instance: bytes,
        client_id: str,
        timeout_ms: int,
        single_use: bool,
        now: Now,
    ) -> Opening:
        """Raises TransactionFenced, StagingFull."""
        assert instance
        # From what is pending: a commit that may still become safe is never passed over.
        state = self._find(tid)
        if state is not None and state.instance == instance and state.closed is None:
            return _opening([], state.epoch, state)
        if state is not None and instance != state.instance:
            _check_unseen(tid, instance, state)
        self._check_room(state, single_use)
        epoch = 1 + (self._pended_forgotten_epoch if state is None else state.epoch)
        if epoch >= EPOCHS_END:
            raise TransactionFenced(f"the epochs of {tid!r} are used up: take another id.")
        opened = Opened(epoch, instance, client_id, timeout_ms, single_use, now.wall_us)
        return _opening([Record(tid, opened)], epoch, state)

    def _check_room(self, state: SnapshotState | None, single_use: bool) -> None:
        if state is None and self._id_count >= IDS_MAX:
            raise StagingFull(f"this partition has {IDS_MAX:,} transactional ids, the most.")
        if single_use and not _is_single(state) and self._single_count >= SINGLE_USE_IDS_MAX:
            raise StagingFull(
                f"this partition has {SINGLE_USE_IDS_MAX:,} transactional ids of single use, the"
                " most; each goes an hour after its commit."
            )

    def check_commit(self, tid: str, epoch: int, sequence: int, digest: bytes) -> Standing:
        """To be asked again in the turn in which `commit` is: it is true of this moment only."""
        state = self._held(tid)
        last = state.last
        # What has committed is answered first: its epoch may be over by now.
        if last is not None and sequence == last.sequence:
            if digest == last.digest or last.epoch < epoch <= state.epoch:
                return Standing(Standings.COMMITTED_BEFORE, last)
            if epoch == last.epoch:
                raise SequenceTaken(
                    f"transaction {sequence} of {tid!r} has committed with other attempts."
                )
        if last is not None and sequence < last.sequence:
            raise SequenceTooOld(_too_old(tid, sequence, last.sequence))
        _check_epoch(tid, epoch, state)
        if state.publishing is not None:
            return Standing(Standings.BUSY, last)
        return Standing(Standings.NEW)

    def commit(
        self,
        tid: str,
        epoch: int,
        sequence: int,
        digest: bytes,
        attempts: Sequence[bytes],
        parts: Sequence[Part],
        durability: int,
        staged_durability: int,
        now: Now,
    ) -> list[Record]:
        standing = self.check_commit(tid, epoch, sequence, digest)
        assert standing.kind is Standings.NEW, "looked at in this turn"
        assert len({part.staged_partition for part in parts}) == len(parts)
        if _is_single(self._find(tid)):
            self._committed_us[tid] = now.mono_us
        row_count = sum(part.row_count for part in parts)
        committed = Committed(
            epoch,
            sequence,
            digest,
            tuple(attempts),
            tuple(parts),
            durability,
            now.wall_us,
            row_count,
            staged_durability=staged_durability,
        )
        return [Record(tid, committed)]

    def abort(self, tid: str, epoch: int, sequence: int, *, force: bool) -> Aborting:
        # Behind a decision that is pending: then the answer is as late as it.
        state = self._known(tid) if force else self._held(tid)
        is_closed = state.closed is not None
        had_committed = state.last is not None and state.last.sequence == sequence
        if force:
            return Aborting([] if is_closed else [_closing(tid, state)], had_committed)
        has_just_ended = epoch == state.ended_epoch
        if not has_just_ended and (epoch != state.epoch or is_closed):
            raise TransactionFenced(_fenced(tid, epoch, state))
        if sequence < state.last_sequence:
            # Late. To close the epoch would end the transaction after it, and this one may have
            # committed.
            raise SequenceTooOld(_too_old(tid, sequence, state.last_sequence))
        if has_just_ended or had_committed:
            return Aborting([], had_committed)
        return Aborting([_closing(tid, state)], had_committed)

    def published(
        self, tid: str, sequence: int, ends: Sequence[End], durability: int
    ) -> list[Record]:
        """Returns no record where that was recorded before."""
        state = self._find(tid)
        # Publishers answer more than once, and after the id was forgotten.
        if state is None or state.publishing is None or state.publishing.sequence != sequence:
            return []
        return [Record(tid, Published(sequence, tuple(ends), durability))]

    def resolve(
        self, tid: str, epoch: int, sequence: int, now: Now, *, pins_front: bool = False
    ) -> Resolving:
        """What became of the rows that are staged under this epoch and sequence."""
        state = self._find(tid)
        if epoch >= EPOCHS_END:
            return Resolving([], Resolved.DEAD)
        if state is None:
            # A successor may know it: only a record, which a true leader alone gets safe, makes
            # this "dead" true.
            if self._id_count >= IDS_MAX:
                return Resolving([], Resolved.LIVE)
            above = 1 + max(epoch, self._pended_forgotten_epoch)
            return Resolving([Record(tid, Closed(above, "unknown id"))], Resolved.DEAD)
        last = state.last
        if last is not None and (epoch, sequence) == (last.epoch, last.sequence):
            is_publishing = state.publishing is not None
            standing = Resolved.PUBLISHING if is_publishing else Resolved.PUBLISHED
            return Resolving([], standing, last.digest)
        if epoch > state.epoch:
            return Resolving([Record(tid, Closed(epoch + 1, "unknown epoch"))], Resolved.DEAD)
        # The epoch of a Closed was given to no instance. Of sequences before the last the chosen
        # ones are published: the last would have waited for them.
        if epoch < state.epoch or state.closed is not None or sequence <= state.last_sequence:
            return Resolving([], Resolved.DEAD)
        reason = self._to_close(tid, state, now, pins_front)
        if reason is None:
            return Resolving([], Resolved.LIVE)
        return Resolving([_closing(tid, state, reason)], Resolved.DEAD)

    def _to_close(self, tid: str, state: SnapshotState, now: Now, pins_front: bool) -> str | None:
        silent_us = self.silent_us(tid, now)
        if silent_us >= state.timeout_ms * 1000:
            return f"no sign of life for {silent_us // 1_000_000} s"
        open_us = now.mono_us - self._opened_us.get(tid, self._begun_us)
        if pins_front and open_us > PINNED_MS_MAX * 1000:
            return "the staging room is nearly full"
        return None

    def forget(self, tid: str) -> list[Record]:
        """By command: also what is being published."""
        self._known(tid)
        return [Record(tid, Forgotten())]

    def expired(self, now: Now, expiry_ms: int) -> list[Record]:
        """Looks at the next ids, FORGET_LOOKS_MAX at most, round and round."""
        found = []
        looked = list(islice(self._sweep, FORGET_LOOKS_MAX))
        if not looked:
            # A copy: ids come and go during the round.
            self._sweep = iter(list(self.applied))
        for tid in looked:
            state = self.applied.get(tid)
            if state is None or self.is_waiting(tid) or state.publishing is not None:
                continue
            if self._is_expired(tid, state, now, expiry_ms):
                found.append(Record(tid, Forgotten()))
        return found

    def _is_expired(self, tid: str, state: SnapshotState, now: Now, expiry_ms: int) -> bool:
        if self.silent_us(tid, now) >= expiry_ms * 1000:
            return True
        # Without a commit nothing shows that its client is gone.
        if not state.single_use or state.last is None:
            return False
        committed_us = self._committed_us.get(tid, self._begun_us)
        return now.mono_us - committed_us >= SINGLE_USE_EXPIRY_MS * 1000

    def to_publish(self) -> Iterable[tuple[str, Committed]]:
        """What a new coordinator goes on with."""
        for tid, state in self.applied.items():
            if state.publishing is not None:
                yield tid, state.publishing

    def _held(self, tid: str) -> SnapshotState:
        state = self._known(tid)
        if not state.instance:
            # Only a Closed has made it: what is asked about may have committed, and is forgotten.
            raise UnknownTransactionalId(f"no instance has opened transactional id {tid!r}.")
        return state

    def _known(self, tid: str) -> SnapshotState:
        state = self._find(tid)
        if state is None:
            raise UnknownTransactionalId(f"transactional id {tid!r} is not known.")
        return state


def _after(state: SnapshotState | None, record: Record) -> SnapshotState:
    """Return the state behind a record."""
    before = SnapshotState() if state is None else state
    change = record.change
    match change:
        case Opened():
            return _opened(before, change)
        case Committed():
            return replace(before, last=_last(change), publishing=change)
        case Published():
            if before.publishing is None or before.publishing.sequence != change.sequence:
                return before
            assert before.last is not None
            weakest = min(before.last.durability, change.durability)
            last = replace(before.last, durability=weakest)
            return replace(before, last=last, publishing=None, ends=change.ends)
        case Closed():
            ended = before.ended_epoch if before.closed is not None else before.epoch
            return replace(before, epoch=change.epoch, closed=change.reason, ended_epoch=ended)
    raise AssertionError(f"{change} makes no state")


def _snapshot(forgotten_epoch: int, states: Mapping[str, SnapshotState | None]) -> Iterator[Record]:
    yield Record("", SnapshotBegin(forgotten_epoch))
    for tid, state in states.items():
        if state is not None:
            yield Record(tid, state)
    yield Record("", SnapshotEnd())


def _opened(before: SnapshotState, change: Opened) -> SnapshotState:
    old = before.old_instances
    is_other = change.instance != before.instance
    # An id that only a Closed has made had none.
    if is_other and before.instance:
        old = (*old, instance_hash(before.instance))[-OLD_INSTANCES_MAX:]
    return replace(
        before,
        epoch=change.epoch,
        instance=change.instance,
        client_id=change.client_id,
        timeout_ms=change.timeout_ms,
        single_use=change.single_use,
        opened_us=change.now_us,
        closed=None,
        ended_epoch=None if is_other else before.ended_epoch,
        old_instances=old,
    )


def _last(change: Committed) -> Last:
    return Last(
        change.epoch,
        change.sequence,
        change.digest,
        change.now_us,
        change.row_count,
        change.staged_durability,
    )


def _opening(records: list[Record], epoch: int, state: SnapshotState | None) -> Opening:
    if state is None or state.last is None:
        return Opening(records, epoch, NO_SEQUENCE, 0, is_publishing=False)
    last = state.last
    is_publishing = state.publishing is not None
    return Opening(records, epoch, last.sequence, last.committed_us, is_publishing)


def _opened_as(state: SnapshotState | None) -> tuple[object, ...]:
    return () if state is None else (state.epoch, state.closed, state.last_sequence)


def _closing(tid: str, state: SnapshotState, reason: str = "aborted") -> Record:
    return Record(tid, Closed(state.epoch + 1, reason))


def _is_open(state: SnapshotState | None) -> bool:
    return state is not None and state.closed is None


def _is_single(state: SnapshotState | None) -> bool:
    return state is not None and state.single_use


def _check_unseen(tid: str, instance: bytes, state: SnapshotState) -> None:
    # Two holders that take turns would get nowhere: the first is out for good.
    if instance_hash(instance) in state.old_instances:
        raise TransactionFenced(
            f"another instance has opened {tid!r} since (client {state.client_id!r}, epoch"
            f" {state.epoch})."
        )


def _check_epoch(tid: str, epoch: int, state: SnapshotState) -> None:
    if epoch == state.epoch and state.closed is None:
        return
    if epoch == state.ended_epoch:
        reason = "" if state.closed is None else f": {state.closed}"
        raise TransactionClosed(f"epoch {epoch} of {tid!r} was closed{reason}.")
    raise TransactionFenced(_fenced(tid, epoch, state))


def _fenced(tid: str, epoch: int, state: SnapshotState) -> str:
    return f"epoch {epoch} of {tid!r} is not the current one, {state.epoch}."


def _too_old(tid: str, sequence: int, last: int) -> str:
    return f"transaction {sequence} of {tid!r}: {last} has committed since."
