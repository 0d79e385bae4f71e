"""The lag of a streaming query, from the progress that Spark reports.

Spark 4.3 accepts no metrics from a Python source, but reports the log's end as `latestOffset` and
the micro-batch's as `endOffset`. Bytes need a request to the brokers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from quiverlog.addresses import parse_addresses
from quiverlog.client.base.arguments import counted
from quiverlog.errors import QuiverlogError
from quiverlog.types import TopicPartition

from . import pool
from .planning.offsets import SourceOffset

__all__ = ["LagListener", "SourceLag", "source_lags"]

logger = logging.getLogger("pyspark_quiverlog.lag")


@dataclass(frozen=True, slots=True)
class SourceLag:
    """The unread rows of one source, when its last micro-batch was planned.

    `ranges`: per partition the next row to read, and the end of the log. `stored_bytes`: their
    size; None where it was not requested, or not available.
    """

    ranges: Mapping[TopicPartition, tuple[int, int]]
    stored_bytes: int | None = None

    @property
    def rows(self) -> dict[TopicPartition, int]:
        """Lag in rows, per partition."""
        return {where: max(0, end - at) for where, (at, end) in self.ranges.items()}

    @property
    def total(self) -> int:
        """Lag in rows."""
        return sum(self.rows.values())

    def __str__(self) -> str:
        rows = list(self.rows.values()) or [0]
        topics = ", ".join(sorted({where.topic for where in self.ranges}))
        text = (
            f"{topics}: {counted(self.total, 'row', 'rows')} behind in "
            f"{counted(len(self.ranges), 'partition', 'partitions')} "
            f"(min {min(rows)}, average {self.total / len(rows):.1f}, max {max(rows)})"
        )
        return text if self.stored_bytes is None else f"{text}, {self.stored_bytes} bytes"


def source_lags(progress: Any) -> list[SourceLag]:
    """Return the lag of each quiverlog source in `query.lastProgress`, or in a listener's progress.

    A source without an end of the log is left out, as in a micro-batch replayed after a restart.
    """
    found = []
    for source in _get(progress, "sources") or ():
        ends, latest = (_positions(_get(source, key)) for key in ("endOffset", "latestOffset"))
        if ends is not None and latest is not None:
            found.append(
                SourceLag({w: (ends.get(w, 0), latest[w]) for w in sorted(latest) if w in ends})
            )
    return found


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _positions(offset: Any) -> dict[TopicPartition, int] | None:
    try:
        read = SourceOffset.from_json(json.loads(offset) if isinstance(offset, str) else offset)
    except (QuiverlogError, ValueError, TypeError, AttributeError):
        return None  # another source's offset
    return {
        TopicPartition(topic, partition): position.offset
        for topic, positions in read.topics.items()
        for partition, position in positions.partitions.items()
    }


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Logs the lag that `source_lags` finds, after each micro-batch.

    `spark.streams.addListener(LagListener())` covers all queries of the session. It logs to
    `pyspark_quiverlog.lag`, at `level`; with `bootstrap_servers` also the stored bytes, requested
    for each source. `last` has the newest lags of running queries, by query id.
    """

    def __init__(self, *, bootstrap_servers: str | None = None, level: int = logging.INFO) -> None:
        self._level = level
        self._endpoint = None
        if bootstrap_servers is not None:
            addresses = tuple(str(a) for a in parse_addresses(bootstrap_servers))
            self._endpoint = pool.Endpoint(addresses, "spark-lag", 10.0, 10.0)
        self.last: dict[str, Sequence[SourceLag]] = {}

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        lags = [self._with_bytes(lag) for lag in source_lags(progress)]
        if not lags:
            return
        self.last[str(progress.id)] = lags
        name = progress.name or progress.id
        for lag in lags:
            logger.log(self._level, "query %s, micro-batch %d, %s", name, progress.batchId, lag)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self.last.pop(str(event.id), None)

    def _with_bytes(self, lag: SourceLag) -> SourceLag:
        behind = {w: (at, end) for w, (at, end) in lag.ranges.items() if end > at}
        if self._endpoint is None:
            return lag
        try:
            sizes = pool.client(self._endpoint).describe_ranges(behind) if behind else {}
        except QuiverlogError as error:  # a listener must not fail for what it only displays
            logger.debug("the bytes of the lag are not available: %s", error)
            return lag
        return SourceLag(lag.ranges, sum(size.byte_count for size in sizes.values()))
