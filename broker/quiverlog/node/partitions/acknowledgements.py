"""Produces whose rows are in the log and not yet as safe as their answers promise.

Answers of one partition leave in the order of their requests, also when requests span partitions.

Invariant: both queues are in the order of the requests, and all of `confirmed` is older than all
of `unflushed`. A repetition's offset may be lower than its neighbours', which only makes it wait
longer.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final

from quiverlog.core.partition.levels import Positions, safe_offset
from quiverlog.errors import QuiverlogError, RequestTimedOut
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.purgatory import Purgatory, Replier, Waiter
from quiverlog.types import Durability, Now
from quiverlog.wire import messages as m

__all__ = ["Answers", "ProduceWaiter", "fail_result"]

_SWEEP_MIN: Final = 256
_REPLICATED: Final = int(Durability.REPLICATED)


def fail_result(result: m.ProducePartitionResult, error: QuiverlogError) -> None:
    result.error_code = error.code
    result.error_message = error.message
    result.base_offset = -1


class Answers:
    """One partition's answers: `unflushed` until their rows are safe, then `confirmed` until
    earlier answers are out and the whole request is safe.
    """

    __slots__ = ("_sweep_at", "confirmed", "unflushed")

    def __init__(self) -> None:
        self._sweep_at = _SWEEP_MIN
        self.unflushed: deque[tuple[int, ProduceWaiter, m.ProducePartitionResult]] = deque()
        self.confirmed: deque[ProduceWaiter] = deque()

    def __bool__(self) -> bool:
        return bool(self.unflushed or self.confirmed)

    def add(self, end_offset: int, waiter: ProduceWaiter, result: m.ProducePartitionResult) -> None:
        assert not waiter.done, "an answered request waits for nothing"
        self.unflushed.append((end_offset, waiter, result))
        if len(self.unflushed) + len(self.confirmed) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        # Those that have timed out: a disk that hangs must not cost ever more memory.
        self.unflushed = deque(entry for entry in self.unflushed if not entry[1].done)
        self.confirmed = deque(waiter for waiter in self.confirmed if not waiter.done)
        self._sweep_at = max(_SWEEP_MIN, 2 * (len(self.unflushed) + len(self.confirmed)))

    def advance(self, positions: Positions) -> None:
        """Confirm what has become as safe as its answer promises."""
        unflushed = self.unflushed
        while unflushed:
            end_offset, waiter, result = unflushed[0]
            if end_offset and end_offset > safe_offset(result.durability, positions):
                break
            del unflushed[0]
            try:
                self._confirm(waiter, result)
            except Exception as error:
                waiter.broken(error)

    def fail(self, error: QuiverlogError) -> None:
        """Fail every produce that waits for a flush of this log."""
        unflushed = self.unflushed
        while unflushed:
            _, waiter, result = unflushed.popleft()
            if not waiter.done:
                fail_result(result, error)
            try:
                self._confirm(waiter, result)
            except Exception as failure:
                waiter.broken(failure)

    def fail_replicated(self, error: QuiverlogError) -> None:
        """Fail produces that wait for replicas, of which too few are in sync.

        Their rows are stored, and may be replicated after all. `advance` must follow.
        """
        waiting, self.unflushed = self.unflushed, deque()
        for end_offset, waiter, result in waiting:
            fails = end_offset and result.durability >= _REPLICATED
            if fails and not waiter.done:
                fail_result(result, error)
            self.unflushed.append((0 if fails else end_offset, waiter, result))

    def _confirm(self, waiter: ProduceWaiter, result: m.ProducePartitionResult) -> None:
        assert self in waiter.answers
        assert id(result) in waiter.waiting
        del waiter.waiting[id(result)]
        if len(waiter.answers) == 1 and not self.confirmed:
            # One partition, nothing before it: as nearly always.
            if not waiter.waiting and not waiter.done:
                waiter.complete()
            elif waiter.waiting:
                self.confirmed.append(waiter)
            return
        self.confirmed.append(waiter)
        _answer_in_order(waiter)

    def is_next(self, waiter: ProduceWaiter) -> bool:
        confirmed = self.confirmed
        while confirmed and confirmed[0].done:
            confirmed.popleft()
        return bool(confirmed) and confirmed[0] is waiter


def _answer_in_order(waiter: ProduceWaiter) -> None:
    """Answer `waiter` if it is next everywhere, and those that have then become next."""
    candidates = [waiter]
    while candidates:
        candidate = candidates.pop()
        if candidate.done or candidate.waiting:
            continue
        # A producer keeps at most five batches of a partition unanswered, and the broker remembers
        # five to recognise a repetition. If this answer waited for another partition's disk while
        # later ones left, more than five could lie behind it: its repetition after a crash would be
        # refused although it is stored.
        if all(answers.is_next(candidate) for answers in candidate.answers):
            candidate.complete()
            candidates += _next_after(candidate)


def _next_after(waiter: ProduceWaiter) -> list[ProduceWaiter]:
    found: list[ProduceWaiter] = []
    for answers in waiter.answers:
        answers.is_next(waiter)  # Takes those that are done off the queue.
        if answers.confirmed:
            found.append(answers.confirmed[0])
    return found


class ProduceWaiter(Waiter):
    """A produce that is not answered.

    `waiting`: results that are not confirmed, by identity. `entries`: its results, each with the
    queue of its partition.
    """

    __slots__ = ("_metrics", "_purgatory", "_replier", "answers", "entries", "response", "waiting")

    api: ClassVar[m.Api] = m.Api.PRODUCE

    def __init__(
        self,
        connection_id: int,
        correlation_id: int,
        deadline_us: int,
        response: m.ProduceResponse,
        replier: Replier,
        purgatory: Purgatory,
        metrics: NodeMetrics,
    ) -> None:
        super().__init__(connection_id, correlation_id, deadline_us)
        self._replier = replier
        self._purgatory = purgatory
        self._metrics = metrics
        self.response = response
        self.waiting: dict[int, m.ProducePartitionResult] = {}
        self.answers: dict[Answers, None] = {}
        self.entries: list[tuple[Answers, m.ProducePartitionResult]] = []

    def wait(self, answers: Answers, end_offset: int, result: m.ProducePartitionResult) -> None:
        assert not self.answered
        self.waiting[id(result)] = result
        self.answers[answers] = None
        self.entries.append((answers, result))
        answers.add(end_offset, self, result)

    def expect(self) -> None:
        """Wait for all entries, which are staged in steps: none is complete before the last."""
        self.waiting = {id(result): result for result in self.response.partitions}

    def nothing_to_wait_for(self, result: m.ProducePartitionResult) -> None:
        """Count an entry as done whose partition is not here."""
        del self.waiting[id(result)]
        _answer_in_order(self)

    def complete(self) -> None:
        assert not self.waiting
        assert not self.done, "a request is answered once"
        self.answer(self._replier, self.response)
        self._purgatory.finish(self)

    def broken(self, error: Exception) -> None:
        self._purgatory.fail(self, "answering a produce", error)
        for waiter in _next_after(self):
            _answer_in_order(waiter)

    def expire(self, now: Now) -> None:
        """Answer that the outcome is unknown: the rows may yet reach the disk."""
        assert not self.done
        error = RequestTimedOut(
            "the disk did not confirm the rows in time; the outcome is unknown."
        )
        for result in self.waiting.values():
            fail_result(result, error)
        for answers, result in self.entries:
            # Its rows are safe, but an acknowledgement never overtakes an earlier one.
            if not result.error_code and not answers.is_next(self):
                fail_result(result, error)
        self._metrics.produces_timed_out += 1
        self.answer(self._replier, self.response)
        self._purgatory.finish(self)
        for waiter in _next_after(self):
            _answer_in_order(waiter)
