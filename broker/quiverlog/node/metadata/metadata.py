"""The metadata image of this broker, and the way from a proposal to an applied record.

Invariants: records are applied in the order of the log, each once (replication rule 31). `pending`
is the image plus the proposals under way, and falls back to the image when they fail. A decision
that failed after it was proposed may still commit: its directories stay, and its error is
OutcomeUnknown.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    ProducerIdBlockRecord,
    Record,
    RemoveTopicRecord,
    decode_entry,
    encode_entry,
    encode_long_entry,
    topic_of,
)
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import ENTRY_OVERHEAD_BYTES, Entry, EntryKind
from quiverlog.errors import (
    BrokerShuttingDown,
    DiskFull,
    NotController,
    PolicyViolation,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.limits import RAFT_APPEND_BYTES_MAX
from quiverlog.node.metadata.decision import (
    Decision,
    Directories,
    names_created,
    outcome_unknown,
    take_refused,
    why,
)
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.partitions.directories import MadeDirectories
from quiverlog.node.runtime.admission import Admission
from quiverlog.node.runtime.effects import Job
from quiverlog.node.runtime.jobs import Jobs, Starter, Then
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups, Watched
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from quiverlog.storage.metadata.quorum_log import QuorumLog
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["ENTRY_BYTES_MAX", "Metadata"]


_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Waiting decisions are proposed together, up to this size."""
_NOT_WRITTEN: Final = (DiskFull, ThrottledBroker)
"""Errors after which the entry is not on this disk."""
ENTRY_BYTES_MAX: Final = RAFT_APPEND_BYTES_MAX - ENTRY_OVERHEAD_BYTES


_START_RECORDS: Final = 5_000
"""In one entry of a start: all records would exceed an entry's bound with many partitions."""


class Metadata(Watched):
    """The image, and the decisions under way.

    Args:
        view: gets each image that replaces another one.
        on_replayed: called before `begin_to_serve`, with the records of an entry and its version.
        on_applied: called before `then`, with records just applied and the partitions whose
            directories were made for them (None: another broker's decision).
    """

    __slots__ = (
        "_admission", "_are_start_records_applied", "_busy", "_creating", "_failed", "_held",
        "_jobs", "_logging", "_make_directories", "_making", "_on_applied", "_on_replayed",
        "_outbox", "_place", "_queue", "_quorum", "_serving", "_start_records", "_view", "_wakeups",
        "cache", "failures", "image", "pending",
    )  # fmt: skip

    def __init__(
        self,
        jobs: Jobs,
        wakeups: Wakeups,
        admission: Admission,
        outbox: Outbox,
        quorum: Quorum,
        view: MetadataView,
        *,
        make_directories: Callable[[Directories], Job],
        on_applied: Callable[[Sequence[Record], Set[str] | None, Now], None],
        on_replayed: Callable[[Sequence[Record], int], None],
    ) -> None:
        super().__init__()
        self._jobs = jobs
        self._admission = admission
        self._outbox = outbox
        self._quorum = quorum
        self._make_directories = make_directories
        self._queue: deque[Decision] = deque()
        self._logging: deque[Decision] = deque()
        self._failed: deque[tuple[Decision, BaseException]] = deque()
        # By topic name: decisions under way that create it.
        self._creating: Counter[str] = Counter()
        self._busy = False
        self._making = False
        # The index of the next proposed entry; None: nothing is proposed.
        self._place: Place | None = None
        # Records of this start that are not committed yet.
        self._start_records: deque[list[Record]] = deque()
        # Failed decisions: if it has grown, what was read from `pending` may never be committed.
        self.failures = 0
        self._view = view
        self.image = view.image
        self.pending = Image(view.image.given)
        self._wakeups = wakeups
        self._on_applied = on_applied
        self._on_replayed = on_replayed
        # Entries committed while a snapshot reads the image.
        self._held: deque[Entry] = deque()
        # On a full disk the image has them before they are committed.
        self._are_start_records_applied = False
        self._serving = False
        self.cache: dict[str, m.TopicMetadata] = {}

    @property
    def log(self) -> QuorumLog:
        """For reading only."""
        assert self._quorum.log is not None
        return self._quorum.log

    @property
    def is_decided_here(self) -> bool:
        """True on the only voter: all that was decided is applied here."""
        return self._quorum.is_alone

    def remember(self, answer: m.TopicMetadata) -> None:
        self.cache[answer.name] = answer

    @property
    def idle(self) -> bool:
        return not self._busy and not self._queue

    # --- deciding ------------------------------------------------------------------------------
    def propose(
        self, records: list[Record], now: Now, then: Then, directories: Directories | None = None
    ) -> None:
        """Make a decision durable, then apply it, then call `then` with the image.

        OutcomeUnknown: the entry may be on some disk. After DiskFull, StorageFault, NotController
        and ThrottledBroker it never will be applied.

        Raises:
            PolicyViolation: the change is too large.
        """
        assert records
        decision = Decision(records, encode_entry(records), directories or {}, set(), then, [])
        if len(decision.entry) > ENTRY_BYTES_MAX:
            raise PolicyViolation(
                f"the change takes {len(decision.entry)} bytes, allowed are {ENTRY_BYTES_MAX}."
            )
        try:
            self.pending.replay_entry(records)
        except Exception:
            self._reset_pending(records)  # It has the records before the one that failed.
            raise
        self._queue.append(decision)
        self._creating.update(names_created(records))
        self._start_next(now)

    def proposal(self, records: list[Record], now: Now) -> Starter:
        """`propose` for a handler that yields it."""
        return lambda then: self.propose(records, now, then)

    @property
    def are_under_way(self) -> bool:
        return bool(self._queue or self._logging)

    def is_ending(self, name: str) -> bool:
        """True while the deletion of a topic of this name is under way."""
        there = name in self.image.topics or self._creating[name] > 0
        return there and name not in self.pending.topics

    def after_pending(self, now: Now) -> Starter:
        """Return a wait for the end of all decisions that are under way now."""

        def start(then: Then) -> None:
            under_way = self._queue or self._logging
            if under_way:
                # Not of later ones: under constant load there is always one more.
                under_way[-1].after.append(then)
            else:
                then(self.image, None, now)

        return start

    def _start_next(self, now: Now) -> None:
        if self._busy or self.image.frozen or not (self._queue or self._start_records):
            return
        self._guarded(self._start_job, now)

    def _guarded(self, begin: Callable[[Now], None], now: Now) -> None:
        try:
            begin(now)
        except Exception as error:
            self.interrupted(error, now)

    def _start_job(self, now: Now) -> None:
        assert not self._logging
        # Checked before any directory is made: those of a failed decision stay.
        if not self._quorum.check_leading(now):
            return
        self._busy = True
        byte_count = 0
        directories: dict[str, bytes] = {}
        while self._queue and byte_count < _BATCH_BYTES_MAX:
            decision = self._queue.popleft()
            self._logging.append(decision)
            directories.update(decision.directories)
            byte_count += len(decision.entry)
        if directories:
            self._making = True
            self._jobs.start(self._make_directories(directories), self._directories_made)
        else:
            self._propose(now)

    def _directories_made(self, result: object, error: BaseException | None, now: Now) -> None:
        self._making = False
        failed: Mapping[bytes, BaseException]
        if error is not None:
            failed = {t: error for one in self._logging for t in one.directories.values()}
        else:
            assert isinstance(result, MadeDirectories)
            failed = result.failed
            for decision in self._logging:
                decision.note_made(result.made)
        if failed:
            self._refuse(failed, now)
        if self._logging:
            self._guarded(self._propose, now)
        else:
            self._busy = False
            self._start_next(now)

    def _refuse(self, failed: Mapping[bytes, BaseException], now: Now) -> None:
        refused = [*take_refused(self._logging, failed), *take_refused(self._queue, failed)]
        self._reset_pending([record for one, _ in refused for record in one.records])
        for decision, error in refused:
            known = self._as_error(error)
            self._failed.append((decision, known))
            self._finish_failed(known, now)

    def _propose(self, now: Now) -> None:
        # First the leader epochs of the start: no decision may precede them.
        entries = [*map(encode_entry, self._start_records), *(one.entry for one in self._logging)]
        last = self._quorum.propose(entries, now)
        self._place = Place(last.index - len(entries) + 1, last.term)
        self._quorum.go_on(now)

    def leads(self, now: Now) -> None:
        self._start_next(now)

    def interrupted(self, error: BaseException, now: Now) -> None:
        # A job that makes directories goes on, and its end takes up the queue.
        self._busy = self._making
        is_proposed, self._place = self._place is not None, None
        self._fail(error, now, is_proposed=is_proposed)

    def _finish(self, decision: Decision, error: BaseException | None, now: Now) -> None:
        for name in names_created(decision.records):
            self._creating[name] -= 1
            if not self._creating[name]:
                del self._creating[name]
        try:
            decision.then(None if error is not None else self.image, error, now)
        except Exception as failure:
            self._outbox.internal_error("after a decision", failure)
            decision.then(None, failure, now)
        finally:
            for then in decision.after:
                then(self.image, None, now)

    def _fail(self, error: BaseException, now: Now, *, is_proposed: bool) -> None:
        """Fail all decisions under way: each was made on top of those before."""
        known = self._as_error(error)
        first = known
        # On the only disk an entry that was not written is nowhere.
        if is_proposed and not (self._quorum.is_alone and isinstance(known, _NOT_WRITTEN)):
            first = outcome_unknown(known)
        self._failed += [(one, first) for one in self._logging]
        self._failed += [(one, known) for one in self._queue]
        self._logging.clear()
        self._queue.clear()
        self._reset_pending([record for one, _ in self._failed for record in one.records])
        self._finish_failed(known, now)

    def _as_error(self, error: BaseException) -> BaseException:
        if isinstance(error, DiskFull):
            self._admission.disk_filled()
        elif not isinstance(error, QuiverlogError):
            if not isinstance(error, OSError):
                self._outbox.internal_error("logging a decision", error)
            return StorageFault(f"the decision cannot be made durable: {why(error)}.")
        return error

    def _finish_failed(self, error: BaseException, now: Now) -> None:
        if self._failed and not isinstance(error, NotController | BrokerShuttingDown):
            count = len(self._failed)
            self._outbox.log("error", "decisions not durable", count=count, why=str(error))
        self.failures += len(self._failed)
        while self._failed:
            self._finish(*self._failed.popleft(), now)

    def _reset_pending(self, failed: Sequence[Record]) -> None:
        # Only their topics: a full disk refuses decisions one by one, with many topics.
        under_way = [*self._logging, *self._queue]
        records = [*failed, *(record for decision in under_way for record in decision.records)]
        topic_ids = dict.fromkeys(t for record in records if (t := topic_of(record)) is not None)
        self.pending.revert(self.image, topic_ids)
        for decision in under_way:
            self.pending.replay_entry(decision.records)

    # --- start ---------------------------------------------------------------------------------
    def commit_at_start(self, records: list[Record], now: Now) -> None:
        """Commit records by a quorum of one, before any request is served.

        On a full disk they stay pending: readers are served, and nothing is written.

        Raises:
            StorageFault, OSError: not durable, nothing changed.
        """
        assert self._quorum.is_alone
        parts = range(0, len(records), _START_RECORDS)
        self._start_records.extend(records[at : at + _START_RECORDS] for at in parts)
        try:
            self._quorum.settle(now)
        except DiskFull:
            # Nothing may be written under their epochs before they are durable (`disk_space`).
            self._are_start_records_applied = True
            for part in self._start_records:
                self.image.replay_entry(part)
                self.pending.replay_entry(part)
        self._serving = True

    def begin_to_serve(self) -> None:
        """Call `on_applied` for the entries from now on."""
        self._serving = True

    @property
    def has_unsaved_start_records(self) -> bool:
        """True while the disk was too full for the records of this start."""
        return bool(self._start_records)

    def save_start_records(self, now: Now) -> None:
        """Commit the records of the start; without this, the next decision would."""
        if self._start_records:
            self._quorum.try_again(now)

    def give_defaults(self, given: Mapping[str, str]) -> None:
        for one in (self.image, self.pending):
            one.give_defaults(given)
        self.cache.clear()

    def apply(self, entry: Entry, now: Now) -> None:
        if self.image.frozen:
            self._held.append(entry)
            return
        self._take(entry, now)

    def _take(self, entry: Entry, now: Now) -> None:
        place, decision = self._place, None
        if place is not None and entry.index == place.index:
            assert entry.term == place.term, "the proposer still leads, or was interrupted"
            self._place = Place(place.index + 1, place.term)
            if self._start_records:
                records = self._start_records.popleft()
                if self._are_start_records_applied:
                    # Replayed once, at the start: only the version is new.
                    entry = Entry(entry.index, entry.term, EntryKind.NO_OP, b"")
                    self.image.decided(records, entry.index)
                    self.pending.decided(records, entry.index)
            else:
                decision = self._logging.popleft()
        try:
            self._replay(entry, decision)
            self._follow(entry, decision, now)
            if decision is not None:
                self._finish(decision, None, now)
        except Exception as error:
            if decision is None:
                raise
            self._outbox.internal_error("applying a decision", error)
            self._finish(decision, error, now)
        if self._place is not None and not self._start_records and not self._logging:
            self._place = None
            self._busy = False
            self._start_next(now)

    def _replay(self, entry: Entry, decision: Decision | None) -> None:
        self.cache.clear()
        if entry.kind is not EntryKind.DATA:
            self.image.version = entry.index
            return
        records = decode_entry(entry.data) if decision is None else decision.records
        self.image.replay_entry(records, version=entry.index)
        if not self._serving:
            self._on_replayed(records, entry.index)
        if decision is None:
            self.pending.replay_entry(records, version=entry.index)
        else:
            self.pending.decided(records, entry.index)

    def _follow(self, entry: Entry, decision: Decision | None, now: Now) -> None:
        if not self._serving:
            return
        # The entry is committed: a bug in a part cannot take it back.
        try:
            if decision is not None:
                self._on_applied(decision.records, decision.made, now)
            elif entry.kind is EntryKind.DATA:
                records = _of_others(decode_entry(entry.data))
                if records:
                    self._on_applied(records, None, now)
        except Exception as error:
            self._outbox.internal_error("applying a decision", error)
        self._wakeups.changed(self)

    def restore(self, snapshot: Snapshot, now: Now) -> None:
        assert not self.image.frozen
        records = decode_entry(snapshot.records) if snapshot.records else []
        before = self.image
        image, pending = Image(before.given), Image(before.given)
        for one in (image, pending):
            if records:
                one.replay_entry(records)
            one.version = snapshot.meta.index
        self.image = image
        self._view.publish(image)
        self.pending = pending
        self.cache.clear()
        if self._serving:
            now_there = self.image.topics_by_id
            # A snapshot does not list the topics that were deleted before it.
            gone = [RemoveTopicRecord(t) for t in before.topics_by_id if t not in now_there]
            changed = [*_of_others(records), *gone]
            if changed:
                self._on_applied(changed, None, now)
            self._wakeups.changed(self)

    # --- snapshots -----------------------------------------------------------------------------
    @property
    def may_be_captured(self) -> bool:
        # A snapshot holds committed state only (replication rule 29).
        return not self.image.frozen and not self._start_records

    def capture(self) -> Callable[[], bytes]:
        # Encoding takes time by the number of topics; until `captured` nothing is applied, and
        # decisions wait in the queue.
        image = self.image
        image.frozen = True
        return lambda: encode_long_entry(image.snapshot_records())

    def captured(self, now: Now) -> None:
        self.image.frozen = False
        while self._held and not self.image.frozen:
            self.apply(self._held.popleft(), now)
        self._start_next(now)


def _of_others(records: Sequence[Record]) -> list[Record]:
    """Leave out blocks of producer ids: only their own broker assigns from them."""
    return [record for record in records if not isinstance(record, ProducerIdBlockRecord)]
