"""The part of both consumers that does not wait: one round of reading, and what to drop at the end.

Owns how long a `poll` may work, and how soon a `close` is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .commands import Abandon, Operation
from .consumer_batch import ConsumerBatch
from .consumer_core import ROUND_S, ConsumerCore
from .deadline import within

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["POLL_WORK_S", "ConsumerBase"]

POLL_WORK_S = 1.0
"""What a `poll` may take for a connection or metadata, however short its timeout: with less, a
program that polls with timeout=0 would never get on."""


class ConsumerBase:
    """The calls of the core that the blocking and the asyncio consumer share."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next offsets {self.positions}"
        return f"<{type(self).__name__} of {self._core.topic}: {state}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._core.topic

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches, as known; those of a consumer that follows may grow."""
        return self._core.decoder.schema

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> offset after the last row handed out: `start` of a later consumer."""
        return self._core.positions

    def _next(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        """The next batch. Waits in short rounds, so that a `close` is seen."""
        core = self._core
        deadline_s = core.clock() + timeout_s
        left_s = timeout_s
        while not self._closed:
            batch = yield from core.next(min(left_s, ROUND_S))
            left_s = deadline_s - core.clock()
            if batch is not None or core.is_at_end or left_s <= 0:
                return batch
        return None

    def _next_many(self, timeout_s: float) -> Operation[list[ConsumerBatch]]:
        """The next batch, and what is at hand behind it; empty where `_next` has none."""
        batch = yield from self._next(timeout_s)
        if batch is None:
            return []
        return [batch, *(yield from self._core.at_hand())]

    def _poll(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        work_s = max(timeout_s, POLL_WORK_S)
        return (yield from within(self._core.clock, work_s, self._next(timeout_s)))

    def _abandon(self) -> Operation[None]:
        """Drop the requests under way."""
        requests = list(self._core.requests)
        self._core.requests.clear()
        for request in requests:
            yield Abandon(request.pending)
