"""What the blocking and the asyncio consumer share: how they are opened, and short waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quiverlog.client.base.commands import Abandon, Operation
from quiverlog.client.base.deadline import within
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import InvalidArgument

from .core import ROUND_S, ConsumerCore
from .options import ConsumerEnd, ConsumerStart, Partitions, consumer_options, options_by_topic

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["POLL_WORK_S", "ConsumerBase", "consumer_core"]


def consumer_core(
    cluster: Cluster,
    topic: str | Sequence[str],
    *,
    start: ConsumerStart,
    end: ConsumerEnd,
    partitions: Partitions,
    **others: Any,
) -> ConsumerCore:
    """Check a consumer's arguments; `others` are those of `consumer_options`."""
    if isinstance(topic, str):
        options = consumer_options(start=start, end=end, partitions=partitions, **others)
        return ConsumerCore(cluster, topic, options)
    by_topic = options_by_topic(topic, start=start, end=end, partitions=partitions, **others)
    return ConsumerCore(cluster, by_topic, next(iter(by_topic.values())))


# However short a `poll`, it may take this long to connect: one of 0 would never progress.
POLL_WORK_S = 1.0


class ConsumerBase:
    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next offsets {self.positions}"
        return f"<{type(self).__name__} of {self._core.topic}: {state}>"

    @property
    def topic(self) -> str:
        """The topic's name; of several, all names in one text."""
        return self._core.topic

    @property
    def topics(self) -> list[str]:
        """The names of the topics that are read."""
        return list(self._core.readers)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches; a consumer that follows may get more.

        Raises:
            InvalidArgument: several topics are read, with different columns.
        """
        schemas = {name: one.decoder.schema for name, one in self._core.readers.items()}
        first = next(iter(schemas.values()), None)
        if first is None or any(not schema.equals(first) for schema in schemas.values()):
            raise InvalidArgument(
                f"{self.topic}: there is no schema of all; each batch has its own, `data.schema`."
            )
        return first

    @property
    def positions(self) -> dict[Any, int]:
        """Partition -> offset after the last returned row: `start` of a later consumer.

        A partition is a number; where a list of topics is read, a pair of a topic and a number.
        """
        return self._core.positions

    def _next(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        """Return the next batch; wait in short rounds, to notice a `close`."""
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
        batch = yield from self._next(timeout_s)
        if batch is None:
            return []
        return [batch, *(yield from self._core.at_hand())]

    def _poll(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        work_s = max(timeout_s, POLL_WORK_S)
        return (yield from within(self._core.clock, work_s, self._next(timeout_s)))

    def _abandon(self) -> Operation[None]:
        requests = list(self._core.requests)
        self._core.requests.clear()
        for request in requests:
            yield Abandon(request.pending)
