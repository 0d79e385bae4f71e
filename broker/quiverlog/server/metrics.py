"""What the server counts, and how it becomes Prometheus' text.

Owns the counters of requests, connections, the loop and the disk as plain slots (adding to one
costs tens of nanoseconds; a `prometheus_client` counter costs 600), and the collector that turns
them and the node's into metric families when somebody asks.

Invariants: counters only grow; the number of series is bounded (topics beyond `topics_max` are
counted together as `_other`); nothing here is on a request's path but `RequestCounters` and
`Histogram.observe`.

Must not know: connections, the loop, HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from quiverlog.errors import error_class
from quiverlog.node.metrics import NodeMetrics, TopicCounters
from quiverlog.wire.messages import Api

__all__ = ["Histogram", "LogSize", "MetricsExporter", "RequestCounters", "ServerMetrics"]

OTHER_TOPICS: Final = "_other"

_BUCKETS: Final = tuple(range(4, 28, 2))
"""Exported bounds are 2**k microseconds: 16 us, 64 us, ... 67 s."""


class Histogram:
    """Durations by power of two: bucket k counts those of 2**(k-1) up to 2**k - 1 microseconds."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * 65
        self.sum_us = 0

    def observe(self, us: int) -> None:
        """Count one duration, in whole microseconds, not negative."""
        self.counts[us.bit_length()] += 1
        self.sum_us += us

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound in seconds, as Prometheus wants them."""
        found = [(repr(2**k / 1e6), float(sum(self.counts[: k + 1]))) for k in _BUCKETS]
        return [*found, ("+Inf", float(sum(self.counts)))]


class RequestCounters:
    """One API: how often, and how long requests waited, were handled, took in all."""

    __slots__ = ("handling", "queue", "total")

    def __init__(self) -> None:
        self.queue = Histogram()
        self.handling = Histogram()
        self.total = Histogram()

    @property
    def count(self) -> int:
        """Requests handled."""
        return sum(self.handling.counts)


class JobCounters:
    """One kind of job: how often it ran, and for how long in all."""

    __slots__ = ("count", "elapsed_us")

    def __init__(self) -> None:
        self.count = 0
        self.elapsed_us = 0


class ServerMetrics:
    """All counters of the server. `requests` is indexed by API number."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections_accepted",
        "connections_closed_by",
        "connections_open",
        "connections_refused",
        "disk_free_bytes",
        "errors",
        "http_refused",
        "http_requests",
        "job_kinds",
        "job_wait",
        "lines_left_out",
        "loop_lag",
        "loop_lag_max_us",
        "node",
        "peer_failures",
        "peer_requests_dropped",
        "peers_open",
        "reads_paused",
        "requests",
        "sync",
    )

    def __init__(self) -> None:
        self.node = NodeMetrics()
        self.requests = [RequestCounters() for _ in range(max(Api) + 1)]
        self.errors: dict[int, int] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_open = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_closed_by: dict[str, int] = {}
        self.reads_paused = 0
        self.peers_open = 0
        self.peer_failures: dict[str, int] = {}
        self.peer_requests_dropped = 0
        self.loop_lag = Histogram()
        self.loop_lag_max_us = 0
        self.sync = Histogram()
        self.job_wait = Histogram()
        self.job_kinds: dict[str, JobCounters] = {}
        self.http_requests = 0
        self.http_refused = 0
        self.lines_left_out = 0
        self.disk_free_bytes = 0

    def count_job(self, kind: str, elapsed_us: int) -> None:
        """A job of this kind has run for so long."""
        counters = self.job_kinds.get(kind)
        if counters is None:
            counters = self.job_kinds[kind] = JobCounters()
        counters.count += 1
        counters.elapsed_us += elapsed_us

    def count_peer_failure(self, error: str) -> None:
        """A connection to another broker failed, or could not be made."""
        self.peer_failures[error] = self.peer_failures.get(error, 0) + 1

    def count_error(self, code: int) -> None:
        """One answer carried this error code."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def count_closed(self, reason: str) -> None:
        """The broker closed a connection on its own account."""
        self.connections_closed_by[reason] = self.connections_closed_by.get(reason, 0) + 1


class Gauges(NamedTuple):
    """Numbers that are looked up when somebody asks, not counted."""

    memory_bytes: int = 0
    memory_bytes_max: int = 0
    memory_bytes_peak: int = 0
    turns_waiting: int = 0
    jobs_waiting: Mapping[str, int] = {}
    jobs_running: int = 0


class LogSize(NamedTuple):
    """One partition's log, as the exporter asks for it."""

    topic: str
    size_bytes: int
    segments: int


class MetricsExporter:
    """Renders everything as text; `render` may run in a thread while the loop counts on.

    Args:
        log_sizes: asked at every rendering; must be safe to call from that thread.
        topics_max: topics with series of their own.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        log_sizes: Callable[[], Iterable[LogSize]],
        *,
        topics_max: int,
        gauges: Callable[[], Gauges] = Gauges,
    ) -> None:
        self._metrics = metrics
        self._log_sizes = log_sizes
        self.topics_max = topics_max
        self._gauges = gauges
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def describe(self) -> Iterable[Metric]:
        """Describe no metric: without this method the registry would collect at registration, when
        there is no node yet.
        """
        return ()

    def render(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        yield from self._requests()
        yield from self._connections()
        yield from self._peers()
        yield from self._loop_and_disk()
        yield from self._memory_and_jobs()
        yield from self._topics()
        yield from self._logs()
        yield from self._node()

    def _requests(self) -> Iterator[Metric]:
        seen = [(api.name.lower(), self._metrics.requests[api]) for api in Api]
        seen = [(name, counters) for name, counters in seen if counters.count]
        requests = CounterMetricFamily(
            "quiverlog_requests", "Requests handled, by API.", labels=["api"]
        )
        for name, counters in seen:
            requests.add_metric([name], counters.count)
        yield requests
        for part, text in (
            ("queue", "From the bytes' arrival until the request was taken up."),
            ("handling", "On the loop, for the request itself."),
            ("total", "From the bytes' arrival until the answer was handed to the socket."),
        ):
            family = HistogramMetricFamily(
                f"quiverlog_request_{part}_seconds", text, labels=["api"]
            )
            for name, counters in seen:
                histogram = getattr(counters, part)
                family.add_metric([name], histogram.buckets(), histogram.sum_us / 1e6)
            yield family
        errors = CounterMetricFamily(
            "quiverlog_errors", "Errors in answers, by code.", labels=["code", "error"]
        )
        for code, count in sorted(self._metrics.errors.copy().items()):
            errors.add_metric([str(code), error_class(code).code_name()], count)
        yield errors

    def _connections(self) -> Iterator[Metric]:
        m = self._metrics
        yield _gauge("connections", "Open connections of clients.", m.connections_open)
        yield _counter("connections_accepted", "Connections accepted.", m.connections_accepted)
        yield _counter("connections_refused", "Refused: too many.", m.connections_refused)
        closed = CounterMetricFamily(
            "quiverlog_connections_closed", "Closed by the broker.", labels=["reason"]
        )
        for reason, count in sorted(m.connections_closed_by.copy().items()):
            closed.add_metric([reason], count)
        yield closed
        yield _counter("network_received_bytes", "Bytes received from clients.", m.bytes_in)
        yield _counter("network_sent_bytes", "Bytes handed to clients' sockets.", m.bytes_out)
        yield _counter("reads_paused", "Reading paused to hold a client back.", m.reads_paused)

    def _peers(self) -> Iterator[Metric]:
        m = self._metrics
        yield _gauge("peer_connections", "Open connections to other brokers.", m.peers_open)
        failures = CounterMetricFamily(
            "quiverlog_peer_failures", "Failed connections to other brokers.", labels=["error"]
        )
        for error, count in sorted(m.peer_failures.copy().items()):
            failures.add_metric([error], count)
        yield failures
        yield _counter(
            "peer_requests_dropped", "Requests to them that gave way.", m.peer_requests_dropped
        )

    def _loop_and_disk(self) -> Iterator[Metric]:
        m = self._metrics
        yield _histogram("event_loop_lag", "How late the loop runs timers.", m.loop_lag)
        worst, m.loop_lag_max_us = m.loop_lag_max_us, 0
        yield _gauge("event_loop_lag_max_seconds", "Worst since the last look.", worst / 1e6)
        yield _histogram("fsync", "Flushing a log to disk.", m.sync)
        yield _gauge("disk_free_bytes", "Free in the data directory.", m.disk_free_bytes)

    def _memory_and_jobs(self) -> Iterator[Metric]:
        m = self._metrics
        now = self._gauges()
        yield _gauge("memory_bytes", "Held for connections.", now.memory_bytes)
        yield _gauge("memory_bytes_max", "The budget for it.", now.memory_bytes_max)
        yield _gauge("memory_bytes_peak", "The most that was held.", now.memory_bytes_peak)
        yield _gauge("turns_waiting", "Connections that wait for a turn.", now.turns_waiting)
        yield _gauge("jobs_running", "Jobs of the node not finished yet.", now.jobs_running)
        waiting = GaugeMetricFamily(
            "quiverlog_jobs_waiting", "Jobs that no thread has taken yet.", labels=["queue"]
        )
        for queue, count in now.jobs_waiting.items():
            waiting.add_metric([queue], count)
        yield waiting
        yield _histogram("job_wait", "From a job's start by the node until it ran.", m.job_wait)
        jobs = CounterMetricFamily("quiverlog_jobs", "Jobs that ran, by kind.", labels=["kind"])
        busy = CounterMetricFamily(
            "quiverlog_jobs_run_seconds", "Time that they ran, by kind.", labels=["kind"]
        )
        for kind, counters in sorted(m.job_kinds.copy().items()):
            jobs.add_metric([kind], counters.count)
            busy.add_metric([kind], counters.elapsed_us / 1e6)
        yield jobs
        yield busy
        yield _counter("http_requests", "HTTP requests answered.", m.http_requests)
        yield _counter("http_refused", "HTTP connections refused or cut off.", m.http_refused)
        yield _counter("log_lines_left_out", "Log lines left out, by rate.", m.lines_left_out)

    def _topics(self) -> Iterator[Metric]:
        topics = sorted(self._metrics.node.topics.copy().items())
        own, rest = topics[: self.topics_max], topics[self.topics_max :]
        for field, name, text in (
            ("batches_in", "topic_batches_in", "Batches stored."),
            ("rows_in", "topic_rows_in", "Rows stored."),
            ("bytes_in", "topic_bytes_in", "Bytes stored."),
            ("rows_out", "topic_rows_out", "Rows sent."),
            ("bytes_out", "topic_bytes_out", "Bytes sent."),
        ):
            family = CounterMetricFamily(f"quiverlog_{name}", text, labels=["topic"])
            for topic, counters in own:
                family.add_metric([topic], getattr(counters, field))
            if rest:
                family.add_metric([OTHER_TOPICS], _sum(rest, field))
            yield family

    def _logs(self) -> Iterator[Metric]:
        sizes: dict[str, list[int]] = {}
        for log in self._log_sizes():
            entry = sizes.setdefault(log.topic, [0, 0, 0])
            entry[0] += log.size_bytes
            entry[1] += log.segments
            entry[2] += 1
        ordered = sorted(sizes.items())
        rest = ordered[self.topics_max :]
        shown = ordered[: self.topics_max]
        if rest:
            columns = zip(*(entry for _, entry in rest), strict=True)
            shown.append((OTHER_TOPICS, [sum(column) for column in columns]))
        for index, (name, text) in enumerate(
            (
                ("log_size_bytes", "Bytes of log on disk, by topic."),
                ("log_segments", "Segment files, by topic."),
                ("log_partitions", "Partitions held here, by topic."),
            )
        ):
            family = GaugeMetricFamily(f"quiverlog_{name}", text, labels=["topic"])
            for topic, entry in shown:
                family.add_metric([topic], entry[index])
            yield family

    def _node(self) -> Iterator[Metric]:
        """Whatever plain numbers the node keeps, under their own names."""
        node = self._metrics.node
        for name in NodeMetrics.__slots__:
            value = getattr(node, name)
            if isinstance(value, int):
                make = _gauge if name in _NODE_GAUGES else _counter
                yield make(name, name.replace("_", " ").capitalize() + ".", value)


_NODE_GAUGES: Final = frozenset(
    {
        "parked_entries",
        "parked_requests",
        "partitions_led",
        "partitions_offline",
        "partitions_with_faults",
        "disk_full",
    }
)


def _sum(topics: list[tuple[str, TopicCounters]], field: str) -> int:
    return sum(getattr(counters, field) for _, counters in topics)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"quiverlog_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"quiverlog_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets: Any = histogram.buckets()
    return HistogramMetricFamily(
        f"quiverlog_{name}_seconds", text, buckets=buckets, sum_value=histogram.sum_us / 1e6
    )
