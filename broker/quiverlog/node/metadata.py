"""What the broker decides about topics, and how a decision becomes true.

Owns the metadata image, its log, the decisions under way, those who wait for another version, and
the cache of what METADATA answers. A decision is made of records:

    propose(records, then)  the records join the view that further decisions are made on (`pending`)
                            and wait for their turn
    directories             what they need on the disk is made first
    append job              all that wait are logged and fsynced together
    applied(records)        they join the image, which everything else is answered from; partitions
                            are opened, changed or removed (`on_applied`); `then` answers

A single broker commits when its log's append is done; with a quorum, its majority takes that place.
No handler assumes in the same call that its decision holds.

Invariants:
- Records are applied in the order in which they were proposed, each once.
- `pending` is the image plus all decisions under way, so that of two that cannot both be, the
  second is refused when it is decided. When an append fails, all decisions under way fail with it,
  and `pending` is the image again. When directories cannot be made, the decisions fail that need
  them, and those behind that are about the same topics.
- An append that failed may be in the file all the same: what it needs on the disk stays there.

Must not know: what partitions are made of, requests.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record, encode_entry, topic_of
from quiverlog.core.controller.records import encode_long_entry as encode_long
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault
from quiverlog.node.admission import Admission
from quiverlog.node.decision import Decision, Directories, names_created, take_refused, why
from quiverlog.node.directory_jobs import MadeDirectories
from quiverlog.node.effects import Job
from quiverlog.node.jobs import Jobs, Starter, Then
from quiverlog.node.outbox import Outbox
from quiverlog.node.wakeups import Wakeups, Watched
from quiverlog.storage.metadata_log import AppendJob, CompactJob, MetadataLog
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["Metadata"]

_APPEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Decisions that wait together are logged together, up to so many bytes."""


class Metadata(Watched):
    """See the module docstring.

    Args:
        make_directories: the job that makes them.
        on_applied: called with the records that have just become true and with the partitions
            whose directories were made for them, before `then` is.
    """

    __slots__ = (
        "_admission",
        "_busy",
        "_creating",
        "_failed",
        "_jobs",
        "_logging",
        "_make_directories",
        "_on_applied",
        "_outbox",
        "_owed",
        "_queue",
        "_wakeups",
        "cache",
        "image",
        "log",
        "pending",
    )

    log: MetadataLog

    def __init__(
        self,
        jobs: Jobs,
        wakeups: Wakeups,
        admission: Admission,
        outbox: Outbox,
        *,
        topic_defaults: Mapping[str, str],
        make_directories: Callable[[Directories], Job],
        on_applied: Callable[[Sequence[Record], Set[str], Now], None],
    ) -> None:
        super().__init__()
        self._jobs = jobs
        self._wakeups = wakeups
        self._admission = admission
        self._outbox = outbox
        self._make_directories = make_directories
        self._on_applied = on_applied
        self._queue: deque[Decision] = deque()
        self._logging: deque[Decision] = deque()
        self._failed: deque[Decision] = deque()
        # Topics that decisions under way create, by name: how many of these.
        self._creating: Counter[str] = Counter()
        self._busy = False
        # Entries of this start that are applied and not in the log.
        self._owed: list[bytes] = []
        self.image = Image(topic_defaults)
        self.pending = Image(topic_defaults)
        self.cache: dict[str, m.TopicMetadata] = {}

    @property
    def idle(self) -> bool:
        """True when neither a decision nor a compaction is under way."""
        return not self._busy and not self._queue

    def remember(self, answer: m.TopicMetadata) -> None:
        """What METADATA says of a topic, until the image changes."""
        self.cache[answer.name] = answer

    # --- start ---------------------------------------------------------------------------------
    def load(self, log: MetadataLog, entries: Sequence[list[Record]]) -> None:
        """Take over the decisions of earlier lives from the log."""
        self.log = log
        for records in entries:
            self.image.replay_entry(records)
        for record in self.image.snapshot_records():
            self.pending.replay(record)
        assert self.pending.version == self.image.version
        assert self.pending.topics.keys() == self.image.topics.keys()

    def commit_at_start(self, records: list[Record]) -> None:
        """Before anybody is served, off the loop: log and apply at once.

        A disk without room makes the log owe them: readers are served, and nothing may be written
        under the epochs that they begin until they are durable.

        Raises:
            StorageFault, OSError: not durable, nothing changed.
        """
        assert self.idle
        entry = encode_entry(records)
        try:
            self.log.append([entry])
        except DiskFull:
            self._owed = [entry]
        self.image.replay_entry(records)
        self.pending.replay_entry(records)
        assert self.pending.version == self.image.version

    @property
    def owes(self) -> bool:
        """True while records of this start are not in the log, because the disk was full."""
        return bool(self._owed)

    def pay(self, now: Now) -> None:
        """Log the records that the start could not log; called when the disk has room again.

        The next decision logs them too, so this is for a broker without decisions.
        """
        if self._owed and not self._busy and not self.log.fault:
            self._busy = True
            try:
                self._append()
            except Exception as error:
                self._busy = False
                self._fail(error, now)

    # --- deciding ------------------------------------------------------------------------------
    def propose(
        self, records: list[Record], now: Now, then: Then, directories: Directories | None = None
    ) -> None:
        """Make a decision of the controller durable, then true, then call `then`.

        `then` gets the image, or DiskFull or StorageFault: it did not become true (and may yet
        after a restart, if the log's fsync failed).
        """
        assert records
        decision = Decision(records, encode_entry(records), directories or {}, set(), then, [])
        try:
            self.pending.replay_entry(records)
        except Exception:
            self._reset_pending(records)
            raise
        self._queue.append(decision)
        self._check_pending()
        self._creating.update(names_created(records))
        self._start_next(now)

    def _check_pending(self) -> None:
        ahead = self.pending.version - self.image.version
        assert ahead == len(self._logging) + len(self._queue), "as many as are under way"

    def proposal(self, records: list[Record], now: Now) -> Starter:
        """`propose`, to be yielded by a handler that waits for it."""
        return lambda then: self.propose(records, now, then)

    def is_ending(self, name: str) -> bool:
        """True while a topic of this name exists, or will, and its end is being decided."""
        there = name in self.image.topics or self._creating[name] > 0
        return there and name not in self.pending.topics

    def after_pending(self, now: Now) -> Starter:
        """Wait until the decisions that are under way now hold or have failed. To be yielded.

        Not for those that come later: under constant load there is always one more.
        """

        def start(then: Then) -> None:
            under_way = self._queue or self._logging
            if under_way:
                under_way[-1].after.append(then)
            else:
                then(self.image, None, now)

        return start

    def _start_next(self, now: Now) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        self._guarded(self._start_job, now)

    def _guarded(self, begin: Callable[[], None], now: Now) -> None:
        """Begin the next job; a log that is out of service refuses all that is under way."""
        try:
            begin()
        except Exception as error:
            self._busy = False
            self._fail(error, now)
            self._start_next(now)

    def _start_job(self) -> None:
        """Take what waits, up to a bound; make the directories that it needs, or log it."""
        assert not self._logging
        # Before any directory is made: those of an append that failed must stay as they are.
        self.log.check_usable()
        byte_count = 0
        directories: dict[str, bytes] = {}
        while self._queue and byte_count < _APPEND_BYTES_MAX:
            decision = self._queue.popleft()
            self._logging.append(decision)
            directories.update(decision.directories)
            byte_count += len(decision.entry)
        assert self._logging, "a job is started for decisions that wait"
        if directories:
            self._jobs.start(self._make_directories(directories), self._directories_made)
        else:
            self._append()

    def _directories_made(self, result: object, error: BaseException | None, now: Now) -> None:
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
            self._guarded(self._append, now)
        else:
            self._busy = False
            self._start_next(now)

    def _refuse(self, failed: Mapping[bytes, BaseException], now: Now) -> None:
        """Refuse the decisions about topics whose directories cannot be made."""
        refused = [*take_refused(self._logging, failed), *take_refused(self._queue, failed)]
        self._reset_pending([record for one, _ in refused for record in one.records])
        for decision, error in refused:
            self._failed.append(decision)
            self._tell_failed(self._as_error(error), now)

    def _append(self) -> None:
        entries = [*self._owed, *(decision.entry for decision in self._logging)]
        assert self._busy, "one job of the log at a time"
        assert entries, "something is to be logged"
        job = self.log.begin_append(entries)
        self._jobs.start(job, partial(self._logged, [job]))

    def _logged(
        self, jobs: list[AppendJob], result: object, error: BaseException | None, now: Now
    ) -> None:
        self._busy = False
        if jobs:  # Only the first time: see `jobs`.
            job = jobs.pop()
            if error is None:
                assert isinstance(result, int)
                self.log.complete_append(job, result)
                self._owed = []
            else:
                self.log.fail_append(job, error)
        if error is not None:
            self._fail(error, now)
        while self._logging:
            decision = self._logging.popleft()
            try:
                self._apply(decision, now)
            except Exception as failure:
                self._outbox.internal_error("applying a decision", failure)
                self._tell(decision, failure, now)
        if self.log.wants_compaction and not self._busy and not self._owed:
            self._compact()
        self._start_next(now)

    def _apply(self, decision: Decision, now: Now) -> None:
        self.cache.clear()
        self.image.replay_entry(decision.records)
        self._check_pending()
        try:
            self._on_applied(decision.records, decision.made, now)
        except Exception as error:
            self._outbox.internal_error("applying a decision", error)
        self._wakeups.changed(self)
        self._tell(decision, None, now)

    def _tell(self, decision: Decision, error: BaseException | None, now: Now) -> None:
        """The decision holds, or has failed: tell its proposer, and who waits for that."""
        for name in names_created(decision.records):
            assert self._creating[name] > 0, "a decision ends once"
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

    def _fail(self, error: BaseException, now: Now) -> None:
        """None of the decisions under way holds: those behind were decided upon those before."""
        self._failed += [*self._logging, *self._queue]
        self._logging.clear()
        self._queue.clear()
        self._reset_pending([record for one in self._failed for record in one.records])
        self._tell_failed(self._as_error(error), now)

    def _as_error(self, error: BaseException) -> BaseException:
        """The error table's name for what became of a decision."""
        if isinstance(error, DiskFull):
            self._admission.disk_filled()
        elif not isinstance(error, QuiverlogError):
            if not isinstance(error, OSError):
                self._outbox.internal_error("logging a decision", error)
            return StorageFault(f"the decision cannot be made durable: {why(error)}.")
        return error

    def _tell_failed(self, error: BaseException, now: Now) -> None:
        self._outbox.log("error", "decisions not durable", count=len(self._failed), why=str(error))
        while self._failed:
            self._tell(self._failed.popleft(), error, now)

    def _reset_pending(self, failed: Sequence[Record]) -> None:
        """The image, and on top of it all that is under way; `failed`: what is so no more.

        A full disk refuses decisions one by one: other topics than theirs are not touched.
        """
        under_way = [*self._logging, *self._queue]
        records = [*failed, *(record for decision in under_way for record in decision.records)]
        topic_ids = dict.fromkeys(t for record in records if (t := topic_of(record)) is not None)
        self.pending.revert(self.image, topic_ids)
        for decision in under_way:
            self.pending.replay_entry(decision.records)
        self._check_pending()

    # --- compaction ----------------------------------------------------------------------------
    def _compact(self) -> None:
        """Replace the log's history by what it adds up to. Failing does no harm: it is kept."""
        # The job reads the image, which takes as long as there are topics. Nothing is applied
        # before it is back: decisions wait in the queue.
        assert not self._busy, "one job of the log at a time"
        assert not self._logging
        image = self.image
        job = self.log.begin_compact(lambda: [encode_long(image.snapshot_records())])
        image.frozen = self._busy = True
        self._jobs.start(job, partial(self._compacted, [job]))

    def _compacted(
        self, jobs: list[CompactJob], result: object, error: BaseException | None, now: Now
    ) -> None:
        self.image.frozen = self._busy = False
        if jobs:
            job = jobs.pop()
            if error is None:
                assert isinstance(result, int)
                self.log.complete_compact(job, result)
            else:
                out_of_service = self.log.fail_compact(job, error)
                level = "error" if out_of_service else "warning"
                self._outbox.log(level, "metadata log not compacted", why=why(error))
        self._start_next(now)
