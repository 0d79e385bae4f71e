"""The lag of a streaming query, from the progress that Spark reports.

Spark 4.3 accepts no metrics from a Python source, but reports the log's end as `latestOffset` and
the micro-batch's as `endOffset`.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from quiverlog.addresses import Address, parse_address, parse_addresses
from quiverlog.client.base.arguments import counted, extra
from quiverlog.client.replay.stream_offsets import SourceOffset
from quiverlog.errors import InvalidArgument, QuiverlogError
from quiverlog.types import TopicPartition
from quiverlog.version import VERSION

from . import pool
from .progress import AFTER_FAILURE_S, report

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

__all__ = ["METRICS", "LagListener", "SourceLag", "source_lags"]

logger = logging.getLogger("pyspark_quiverlog.lag")


@dataclass(frozen=True, slots=True)
class SourceLag:
    """The unread rows of one source, when its last micro-batch was planned.

    `ranges`: per partition the next row to read, and the end of the log. `stored_bytes`: their
    size; `seconds`: the age of the oldest of them, 0 where there is none; None where it was not
    requested, or not available.
    """

    ranges: Mapping[TopicPartition, tuple[int, int]]
    stored_bytes: int | None = None
    seconds: float | None = None

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
        if self.stored_bytes is not None:
            text += f", {self.stored_bytes} bytes"
        return text if self.seconds is None else f"{text}, {self.seconds:.1f} s"


def source_lags(progress: Any) -> list[SourceLag]:
    """Return the lag of each quiverlog source in `query.lastProgress`, or in a listener's progress.

    A source without an end of the log is left out, as in a replay.
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


def _offset(offset: Any) -> SourceOffset | None:
    try:
        return SourceOffset.from_json(json.loads(offset) if isinstance(offset, str) else offset)
    except (QuiverlogError, ValueError, TypeError, AttributeError):
        return None  # another source's offset


def _positions(offset: Any) -> dict[TopicPartition, int] | None:
    read = _offset(offset)
    return (
        None
        if read is None
        else {
            TopicPartition(topic, partition): position.offset
            for topic, positions in read.topics.items()
            for partition, position in positions.partitions.items()
        }
    )


METRICS: Final = {
    "quiverlog.spark.lag.rows": ("{row}", "Rows of a partition that the query has not read yet."),
    "quiverlog.spark.lag.bytes": ("By", "Stored bytes of these rows, by source of the query."),
    "quiverlog.spark.lag.seconds": ("s", "Age of the oldest row of a source that is not read yet."),
    "quiverlog.spark.micro.batch": ("{batch}", "Number of the query's last micro-batch."),
}
"""Gauges by OpenTelemetry's name: unit, meaning."""
TITLE_EVERY_S: Final = 5.0
"""Between two titles that a listener gives the groups of its queries."""
_REQUEST_S: Final = 10.0
"""A connection's time to send its request."""

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class _Seen:
    name: str
    micro_batch: int
    lags: Sequence[SourceLag]


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Logs the lag that `source_lags` finds after each micro-batch; keeps it as metrics.

    `spark.streams.addListener(LagListener())` covers all queries of the session. It logs to
    `pyspark_quiverlog.lag`, at `level`; with `bootstrap_servers` also the stored bytes; the
    driver reaches these brokers by `security_file`. `last` has the newest lags of running queries,
    by query id.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | None = None,
        security_file: str = "",
        level: int = logging.INFO,
    ) -> None:
        self._level = level
        self._endpoint = None
        if bootstrap_servers is not None:
            addresses = tuple(str(a) for a in parse_addresses(bootstrap_servers))
            access = pool.Access(file=security_file)
            self._endpoint = pool.Endpoint(addresses, "spark-lag", 10.0, 10.0, access)
        self._report_at_s = 0.0
        self._seen: dict[str, _Seen] = {}
        self._servers: list[_Server] = []

    @property
    def last(self) -> dict[str, Sequence[SourceLag]]:
        return {query: seen.lags for query, seen in self._seen.copy().items()}

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        lags = [self._with_bytes(lag) for lag in source_lags(progress)]
        if not lags:
            return
        name = str(progress.name or progress.id)
        self._report(progress, f"{name}, micro-batch {progress.batchId}")
        self._seen[str(progress.id)] = _Seen(name, progress.batchId, lags)
        for lag in lags:
            logger.log(self._level, "query %s, micro-batch %d, %s", name, progress.batchId, lag)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self._seen.pop(str(event.id), None)

    def prometheus(self) -> str:
        """Return the metrics in Prometheus's text format."""
        lines = []
        for metric, (_, meaning) in METRICS.items():
            name = metric.replace(".", "_")
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
            for labels, value in self._samples(metric):
                pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
                lines.append(f"{name}{{{pairs}}} {value}")
        return "\n".join(lines) + "\n"

    def serve(self, listen: str = "127.0.0.1:9464") -> str:
        """Answer Prometheus at `/metrics` of this address until `close()`.

        Returns the address, with the port for 0.

        Raises:
            InvalidArgument: another program has the address, or it is none of this machine.
        """
        address = parse_address(listen, port_min=0)
        try:
            server = _Server(address, _handler(self.prometheus))
        except OSError as error:
            reason = f"{address}: {error.strerror}. Take another address, or port 0 for a free one."
            raise InvalidArgument(reason) from error
        self._servers.append(server)
        Thread(target=server.serve_forever, name="quiverlog-lag", daemon=True).start()
        return str(Address(address.host, server.server_address[1]))

    def close(self) -> None:
        """End what `serve` began."""
        while self._servers:
            server = self._servers.pop()
            server.shutdown()
            server.server_close()

    def instrument(self, meter_provider: MeterProvider | None = None) -> None:
        """Give OpenTelemetry the metrics as gauges; by default its global provider.

        Raises:
            InvalidArgument: OpenTelemetry is not installed.
        """
        api = extra("opentelemetry.metrics", "LagListener.instrument")
        meter = api.get_meter("quiverlog", VERSION, meter_provider)

        def observer(metric: str) -> Callable[[Any], Iterator[Any]]:
            return lambda _: (api.Observation(v, labels) for labels, v in self._samples(metric))

        for metric, (unit, meaning) in METRICS.items():
            meter.create_observable_gauge(metric, [observer(metric)], unit, meaning)

    def _samples(self, metric: str) -> Iterator[Sample]:
        for query, seen in self._seen.copy().items():
            of_query = {"query": seen.name, "query_id": query}
            if metric.endswith("micro.batch"):
                yield of_query, seen.micro_batch
                continue
            for number, lag in enumerate(seen.lags):
                of_source = of_query | {"source": str(number)}
                if metric.endswith("rows"):
                    for where, rows in lag.rows.items():
                        place = {"topic": where.topic, "partition": str(where.partition)}
                        yield of_source | place, rows
                elif metric.endswith("seconds"):
                    if lag.seconds is not None:
                        yield of_source, round(lag.seconds, 3)
                elif lag.stored_bytes is not None:
                    yield of_source, lag.stored_bytes

    def _with_bytes(self, lag: SourceLag) -> SourceLag:
        behind = {w: (at, end) for w, (at, end) in lag.ranges.items() if end > at}
        if self._endpoint is None:
            return lag
        try:
            sizes = pool.client(self._endpoint).describe_ranges(behind) if behind else {}
        except QuiverlogError as error:  # a listener must not fail for what it only displays
            logger.debug("the bytes of the lag are not available: %s", error)
            return lag
        firsts = [size.first_row_us for size in sizes.values() if size.first_row_us >= 0]
        seconds = None
        if len(firsts) == len(sizes):  # Else an older broker has answered.
            seconds = max(0.0, time.time() - min(firsts) / 1e6) if firsts else 0.0
        return SourceLag(lag.ranges, sum(size.byte_count for size in sizes.values()), seconds)

    def _report(self, progress: Any, title: str) -> None:
        """Give the groups that the query's sources are shown as its title."""
        if self._endpoint is None or time.monotonic() < self._report_at_s:
            return
        self._report_at_s = time.monotonic() + TITLE_EVERY_S
        for source in progress.sources or ():
            end = _offset(_get(source, "endOffset"))
            if end is None or not end.query_id:
                continue
            try:
                report(self._endpoint, end, title=title)
            except QuiverlogError as error:
                logger.debug("the title of %s is not reported: %s", title, error)
                self._report_at_s = time.monotonic() + AFTER_FAILURE_S


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Server(ThreadingTCPServer):
    """Not `HTTPServer`, which looks up its host's name."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__(address, handler)


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            body = text().encode() if self.path.partition("?")[0] == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug(format, *args)

    return Handler
