"""Decisions of the controller on their way from being made to being proposed, or to failing.

Owns those that wait (`_queue`), those that are with the quorum (`_logging`), and the view that
further decisions are made on (`pending`): the image plus all decisions under way, so that of two
that cannot both be, the second is refused when it is decided. One batch is with the quorum at a
time; what comes meanwhile shares the next.

Invariants:
- When the quorum is interrupted, all decisions under way fail, and `pending` is the image again.
  When directories cannot be made, the decisions fail that need them, and those behind that are
  about the same topics.
- A decision that failed after it was proposed may yet come true: what it needs on the disk stays
  there, and its error says so (OutcomeUnknown). Any other was never proposed, and never holds.

Must not know: how a decision becomes true (metadata.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record, encode_entry, topic_of
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import ENTRY_OVERHEAD_BYTES
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
from quiverlog.node.admission import Admission
from quiverlog.node.decision import (
    Decision,
    Directories,
    names_created,
    outcome_unknown,
    take_refused,
    why,
)
from quiverlog.node.directory_jobs import MadeDirectories
from quiverlog.node.effects import Job
from quiverlog.node.jobs import Jobs, Starter, Then
from quiverlog.node.outbox import Outbox
from quiverlog.node.quorum import Quorum
from quiverlog.node.wakeups import Watched
from quiverlog.types import Now

__all__ = ["ENTRY_BYTES_MAX", "Decisions"]

_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Decisions that wait together are proposed together, up to so many bytes."""
_NOT_WRITTEN: Final = (DiskFull, ThrottledBroker)
"""The entry is not on this disk; of a lone replica that is all there is."""
ENTRY_BYTES_MAX: Final = RAFT_APPEND_BYTES_MAX - ENTRY_OVERHEAD_BYTES


class Decisions(Watched):
    """See the module docstring.

    Args:
        make_directories: the job that makes them.
    """

    __slots__ = (
        "_admission",
        "_busy",
        "_creating",
        "_failed",
        "_jobs",
        "_logging",
        "_make_directories",
        "_making",
        "_outbox",
        "_owed",
        "_place",
        "_queue",
        "_quorum",
        "failures",
        "image",
        "pending",
    )

    def __init__(
        self,
        jobs: Jobs,
        admission: Admission,
        outbox: Outbox,
        quorum: Quorum,
        *,
        topic_defaults: Mapping[str, str],
        make_directories: Callable[[Directories], Job],
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
        # Topics that decisions under way create, by name: how many of these.
        self._creating: Counter[str] = Counter()
        self._busy = False
        self._making = False
        # Where the next of those that were proposed is; None when nothing is.
        self._place: Place | None = None
        # Records of this start that are not decided yet.
        self._owed: deque[list[Record]] = deque()
        # How many decisions have failed: `pending` said then what was never decided.
        self.failures = 0
        self.image = Image(topic_defaults)
        self.pending = Image(topic_defaults)

    @property
    def idle(self) -> bool:
        """True when no decision is under way."""
        return not self._busy and not self._queue

    # --- deciding ------------------------------------------------------------------------------
    def propose(
        self, records: list[Record], now: Now, then: Then, directories: Directories | None = None
    ) -> None:
        """Make a decision of the controller durable, then true, then call `then`.

        `then` gets the image, or OutcomeUnknown: it was proposed, and its entry may be on some
        disk. DiskFull, StorageFault, NotController and ThrottledBroker: it is not true, and never
        will be.

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
            self._reset_pending(records)
            raise
        self._queue.append(decision)
        self._creating.update(names_created(records))
        self._start_next(now)

    def proposal(self, records: list[Record], now: Now) -> Starter:
        """`propose`, to be yielded by a handler that waits for it."""
        return lambda then: self.propose(records, now, then)

    @property
    def are_under_way(self) -> bool:
        """True while `pending` says what is not decided."""
        return bool(self._queue or self._logging)

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
        if self._busy or self.image.frozen or not (self._queue or self._owed):
            return
        self._guarded(self._start_job, now)

    def _guarded(self, begin: Callable[[Now], None], now: Now) -> None:
        """Begin the next step; a quorum that decides nothing here refuses all that is under way."""
        try:
            begin(now)
        except Exception as error:
            self.interrupted(error, now)

    def _start_job(self, now: Now) -> None:
        """Take what waits, up to a bound; make the directories that it needs, or log it."""
        assert not self._logging
        # Before any directory is made: those of a decision that failed must stay as they are.
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
        """Refuse the decisions about topics whose directories cannot be made."""
        refused = [*take_refused(self._logging, failed), *take_refused(self._queue, failed)]
        self._reset_pending([record for one, _ in refused for record in one.records])
        for decision, error in refused:
            known = self._as_error(error)
            self._failed.append((decision, known))
            self._tell_failed(known, now)

    def _propose(self, now: Now) -> None:
        entries = [*map(encode_entry, self._owed), *(one.entry for one in self._logging)]
        last = self._quorum.propose(entries, now)
        self._place = Place(last.index - len(entries) + 1, last.term)
        self._quorum.go_on(now)

    # --- what the quorum says ------------------------------------------------------------------
    def leads(self, now: Now) -> None:
        """See `StateMachine`."""
        self._start_next(now)

    def interrupted(self, error: BaseException, now: Now) -> None:
        """See `StateMachine`."""
        self._busy = self._making  # Their directories are made all the same; then it goes on.
        is_proposed, self._place = self._place is not None, None
        self._fail(error, now, is_proposed=is_proposed)

    def _tell(self, decision: Decision, error: BaseException | None, now: Now) -> None:
        """The decision holds, or has failed: tell who proposed it, and who waits for that."""
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
        """None of the decisions under way holds: those behind were decided upon those before."""
        known = self._as_error(error)
        first = known
        if is_proposed and not (self._quorum.is_alone and isinstance(known, _NOT_WRITTEN)):
            first = outcome_unknown(known)
        self._failed += [(one, first) for one in self._logging]
        self._failed += [(one, known) for one in self._queue]
        self._logging.clear()
        self._queue.clear()
        self._reset_pending([record for one, _ in self._failed for record in one.records])
        self._tell_failed(known, now)

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
        if self._failed and not isinstance(error, NotController | BrokerShuttingDown):
            count = len(self._failed)
            self._outbox.log("error", "decisions not durable", count=count, why=str(error))
        self.failures += len(self._failed)
        while self._failed:
            self._tell(*self._failed.popleft(), now)

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
