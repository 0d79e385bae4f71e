"""Produces between their two steps: admitted, and not appended yet.

One write per log for all requests of one socket read. No other request is handled in between.

Invariant: when `finish` returns, every staged produce is answered or waits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quiverlog.core.partition.levels import safe_offset
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.limits import MIB
from quiverlog.node.partitions.acknowledgements import ProduceWaiter, fail_result
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.admission import Admission
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Purgatory, Wakeups
from quiverlog.types import Durability, Now
from quiverlog.wire import messages as m

__all__ = ["STAGED_BYTES_MAX", "STAGED_ROWS_MAX", "Staged", "StagedEntry", "Staging"]

STAGED_BYTES_MAX: Final = 1 * MIB
"""Small batches that arrive together are written together, up to this size."""
STAGED_ROWS_MAX: Final = 2**30
"""Rows of one log's write: with those of a segment they must fit an index's 32 bits."""
_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
_REPLICATED_FLUSHED: Final = Durability.REPLICATED_FLUSHED
_FLUSHED: Final = frozenset((int(Durability.FLUSHED), int(Durability.REPLICATED_FLUSHED)))

StagedEntry = tuple[Replica, int, m.ProducePartitionResult]
"""The replica, the offset after the entry's last row (0: it was refused), and its result."""


class Staged(NamedTuple):
    """One produce, or a part of one that is staged in steps: then `waiter` will answer it."""

    connection_id: int
    request: m.ProduceRequest
    response: m.ProduceResponse
    entries: list[StagedEntry]
    waiter: ProduceWaiter | None = None


class Staging:
    __slots__ = (
        "_admission",
        "_flushes",
        "_metrics",
        "_outbox",
        "_purgatory",
        "_wakeups",
        "appending",
        "byte_count",
        "produces",
    )

    def __init__(
        self,
        flushes: Flushes,
        wakeups: Wakeups,
        purgatory: Purgatory,
        admission: Admission,
        outbox: Outbox,
        metrics: NodeMetrics,
    ) -> None:
        self._flushes = flushes
        self._wakeups = wakeups
        self._purgatory = purgatory
        self._admission = admission
        self._outbox = outbox
        self._metrics = metrics
        self.produces: list[Staged] = []
        self.appending: dict[Replica, None] = {}
        self.byte_count = 0

    def is_last(self, request: m.ProduceRequest) -> bool:
        """True when `finish` will answer it."""
        return bool(self.produces) and self.produces[-1].request is request

    def finish(self, now: Now) -> None:
        produces, self.produces = self.produces, []
        self.byte_count = 0
        try:
            errors = self._append(now)
        except Exception as error:
            self._abandon(produces, error)
            return
        assert not self.appending
        for staged in produces:
            try:
                self._answer(staged, errors, now)
            except Exception as error:
                self._fail(staged, error)

    def abandon(self) -> None:
        """Fail all: `finish` could not be called, and their bodies are no longer valid."""
        produces, self.produces = self.produces, []
        self._abandon(produces, RuntimeError("produces were left in the staging"))

    def _abandon(self, produces: list[Staged], error: Exception) -> None:
        appending, self.appending = self.appending, {}
        for replica in appending:
            replica.drop_admitted()
            assert not replica.admitted
        for staged in produces:
            self._fail(staged, error)

    def _append(self, now: Now) -> dict[Replica, QuiverlogError]:
        """Append to each log in one write; returns the errors of those that fail."""
        errors: dict[Replica, QuiverlogError] = {}
        appending, self.appending = self.appending, {}
        for replica in appending:
            if not replica.admitted:
                continue
            try:
                if replica.append(now):
                    self._wakeups.changed(replica)
                else:
                    self._wakeups.grown(replica)
                self._flushes.appended(replica)
            except DiskFull as error:
                self._admission.disk_filled()
                errors[replica] = error
            except ThrottledBroker as error:
                errors[replica] = error  # Nothing was tried: the client sends it again.
            except StorageFault as error:
                self._flushes.declare_fault(replica, error.message)
                errors[replica] = error
            except Exception as error:
                self._outbox.internal_error("appending", error)
                errors[replica] = QuiverlogError()
        return errors

    def _answer(self, staged: Staged, errors: dict[Replica, QuiverlogError], now: Now) -> None:
        waits = False
        ends: list[int] = []
        for replica, end_offset, result in staged.entries:
            assert not replica.admitted, "all that was admitted is appended or refused"
            needed = self._needed(replica, end_offset, result, errors)
            ends.append(needed)
            if needed or replica.answers:
                waits = True
        assert len(ends) == len(staged.entries), "each entry has its end"
        waiter = staged.waiter
        if waiter is None and not waits:
            correlation_id = staged.request.correlation_id
            self._outbox.respond(staged.connection_id, correlation_id, staged.response)
            return
        if waiter is None:
            waiter = self.wait_for(staged.connection_id, staged.request, staged.response, now)
        for (replica, _, result), needed in zip(staged.entries, ends, strict=True):
            waiter.wait(replica.answers, needed, result)
            if needed and result.durability in _FLUSHED:
                self._flushes.want(replica, staged.connection_id)
                if result.durability == _REPLICATED_FLUSHED and replica.want_copies_flushed(needed):
                    self._wakeups.grown(replica)
        for replica in dict.fromkeys(replica for replica, _, _ in staged.entries):
            replica.answers.advance(replica.state)  # What is safe only waits for its turn.

    @staticmethod
    def _needed(
        replica: Replica,
        end_offset: int,
        result: m.ProducePartitionResult,
        errors: dict[Replica, QuiverlogError],
    ) -> int:
        """The offset below which rows must be safe before the answer; 0: none."""
        state = replica.state
        level = result.durability
        assert state.flushed_offset <= state.log_end_offset
        if end_offset > state.log_end_offset:
            error = errors.get(replica) or StorageFault(f"{replica.name}: not stored.")
            fail_result(result, error)
        elif end_offset > safe_offset(level, state):
            if replica.fault is None:
                return end_offset
            fail_result(result, replica.fault)
        return 0

    def wait_for(
        self,
        connection_id: int,
        request: m.ProduceRequest,
        response: m.ProduceResponse,
        now: Now,
    ) -> ProduceWaiter:
        timeout_ms = min(max(request.timeout_ms, 1), _TIMEOUT_MS_MAX)
        waiter = ProduceWaiter(
            connection_id,
            request.correlation_id,
            now.mono_us + timeout_ms * 1000,
            response,
            self._outbox,
            self._purgatory,
            self._metrics,
        )
        assert waiter.deadline_us > now.mono_us
        assert waiter.deadline_us <= now.mono_us + _TIMEOUT_MS_MAX * 1000
        self._purgatory.add(waiter)
        return waiter

    def _fail(self, staged: Staged, error: Exception) -> None:
        waiters = self._purgatory.of_request(staged.connection_id, staged.request.correlation_id)
        if waiters:
            for waiter in waiters:
                self._purgatory.fail(waiter, "PRODUCE", error)
            return
        self._outbox.internal_error("PRODUCE", error)
        bug = QuiverlogError()
        response = m.ProduceResponse(error_code=bug.code, error_message=bug.message)
        self._outbox.respond(staged.connection_id, staged.request.correlation_id, response)
