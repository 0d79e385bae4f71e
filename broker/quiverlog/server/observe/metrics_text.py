"""The counters of server and node as Prometheus' text.

Imported at the first scrape: the start does not wait for the library. Invariant: the number of
series is bounded (topics beyond `topics_max` are counted together as `_other`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from quiverlog.errors import error_class
from quiverlog.node.cluster_gauges import ClusterGauges, TransactionGauges
from quiverlog.node.runtime.metrics import NodeMetrics, TopicCounters
from quiverlog.server.observe.metrics import TLS_OUTCOMES, Gauges, Histogram, LogSize, ServerMetrics
from quiverlog.wire.messages import Api

if TYPE_CHECKING:
    from quiverlog.node.node import Node

__all__ = ["MetricsExporter", "log_sizes"]

OTHER_TOPICS: Final = "_other"
IDLE_WINDOW_S: Final = 10.0


class MetricsExporter:
    """
    `render` may run in a thread while the loop counts.

    Args:
        log_sizes, gauges, cluster, transactions, waiting_rows: called at every rendering, in its
            thread.
        topics_max: topics with series of their own.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        log_sizes: Callable[[], Iterable[LogSize]],
        *,
        topics_max: int,
        gauges: Callable[[], Gauges] = Gauges,
        cluster: Callable[[], ClusterGauges] = ClusterGauges,
        transactions: Callable[[], TransactionGauges] = TransactionGauges,
        waiting_rows: Callable[[], dict[str, int]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._handled = self._handled_before = (clock(), 0)
        """(when, microseconds spent in handlers so far), taken `IDLE_WINDOW_S` apart."""
        self._metrics = metrics
        self._log_sizes = log_sizes
        self.topics_max = topics_max
        self.shows_offsets = False
        self._gauges = gauges
        self._cluster_gauges = cluster
        self._transaction_gauges = transactions
        self._waiting_rows = waiting_rows
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def describe(self) -> Iterable[Metric]:
        # Without this method the registry would collect at registration, before there is a node.
        return ()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text of `/metrics`, in OpenMetrics where `accept` names it, and the type."""
        generate, content_type = choose_encoder(accept)
        return generate(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._connections()
        yield from self._peers()
        yield from self._tls()
        yield from self._loop_and_disk()
        yield from self._memory_and_jobs()
        yield from self._topics()
        yield from self._logs()
        yield from self._node()
        yield from self._quotas()
        yield from self._cluster()
        yield from self._transactions()
        yield from self._groups()

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
            ("queue", "From the arrival of the bytes until handling began."),
            ("handling", "Handling on the event loop."),
            ("total", "From the arrival of the bytes until the answer was given to the socket."),
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
        refused = CounterMetricFamily(
            "quiverlog_connections_refused", "Connections refused, by error.", labels=["error"]
        )
        for name, count in sorted(m.connections_refused_by.copy().items()):
            refused.add_metric([name], count)
        yield refused
        closed = CounterMetricFamily(
            "quiverlog_connections_closed", "Closed by the broker.", labels=["reason"]
        )
        for reason, count in sorted(m.connections_closed_by.copy().items()):
            closed.add_metric([reason], count)
        yield closed
        yield _counter("network_received_bytes", "Bytes received from clients.", m.bytes_in)
        yield _counter("network_sent_bytes", "Bytes handed to clients' sockets.", m.bytes_out)
        yield _counter("reads_paused", "Pauses of reading from a client.", m.reads_paused)

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
            "peer_requests_dropped", "Requests dropped from full queues.", m.peer_requests_dropped
        )
        yield _counter(
            "peer_links_unproved", "Connections to brokers without proof.", m.peer_links_unproved
        )

    def _tls(self) -> Iterator[Metric]:
        m = self._metrics
        expires = GaugeMetricFamily(
            "quiverlog_tls_certificate_expires_seconds",
            "When a listener's certificate, or an authority that it trusts, expires; since 1970.",
            labels=["listener", "of"],
        )
        refused = GaugeMetricFamily(
            "quiverlog_tls_files_refused",
            "1 while a listener's changed files cannot be used.",
            labels=["listener"],
        )
        for listener, dates in sorted(m.tls_dates.copy().items()):
            expires.add_metric([listener, "certificate"], dates.certificate_s)
            if dates.authority_s:
                expires.add_metric([listener, "authority"], dates.authority_s)
            refused.add_metric([listener], m.tls_files_refused.get(listener, 0))
        yield expires
        yield refused
        handshakes = CounterMetricFamily(
            "quiverlog_tls_handshakes", "Handshakes of TLS, by outcome.", labels=["outcome"]
        )
        # From the start, so that the first failure is a growth.
        for outcome in TLS_OUTCOMES:
            handshakes.add_metric([outcome], m.tls_handshakes.get(outcome, 0))
        yield handshakes

    def _loop_and_disk(self) -> Iterator[Metric]:
        m = self._metrics
        yield _histogram("event_loop_lag", "How late the loop runs timers.", m.loop_lag)
        worst = m.loop_lag_max.value(self._clock())
        yield _gauge("event_loop_lag_max_seconds", "Worst of the last minute or two.", worst / 1e6)
        text = "Part of the time since a scrape at least 10 s ago that no request was handled in."
        yield _gauge("handler_idle_ratio", text, self._idle_ratio())
        yield _histogram("fsync", "Flushing a log to disk.", m.sync)
        yield _gauge("disk_free_bytes", "Free in the data directory.", m.disk_free_bytes)

    def _idle_ratio(self) -> float:
        """Return 1 for an idle broker, 0 for a saturated one."""
        now_s = self._clock()
        handled_us = sum(self._metrics.requests[api].handling.sum_us for api in Api)
        # Scrapers share the windows, so that none shortens another's.
        if now_s - self._handled[0] >= IDLE_WINDOW_S:
            self._handled_before, self._handled = self._handled, (now_s, handled_us)
        then_s, before_us = self._handled_before
        if now_s <= then_s:
            return 1.0
        return min(1.0, max(0.0, 1 - (handled_us - before_us) / 1e6 / (now_s - then_s)))

    def _memory_and_jobs(self) -> Iterator[Metric]:
        m = self._metrics
        now = self._gauges()
        places = GaugeMetricFamily(
            "quiverlog_connection_places", "Connections, by kind of place.", labels=["place"]
        )
        for place, count in now.places.items():
            places.add_metric([place], count)
        yield places
        yield _gauge(
            "connections_awaiting_login", "Connections that must log in yet.", now.awaiting_login
        )
        yield _gauge("memory_bytes", "Memory held for connections.", now.memory_bytes)
        yield _gauge(
            "memory_bytes_max", "The budget of memory for connections.", now.memory_bytes_max
        )
        yield _gauge(
            "memory_bytes_peak", "The most memory held for connections.", now.memory_bytes_peak
        )
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
        yield _counter("audit_lines_lost", "Audit lines that were not written.", m.audit_lines_lost)

    def _topics(self) -> Iterator[Metric]:
        # `copy` is atomic: the loop adds topics while this thread renders.
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
        logs = list(self._log_sizes())
        if self.shows_offsets:
            yield from self._offsets(logs)
        for log in logs:
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

    def _offsets(self, logs: list[LogSize]) -> Iterator[Metric]:
        shown = set(sorted({log.topic for log in logs})[: self.topics_max])
        for name, text in (
            ("log_start_offset", "The first row that is kept."),
            ("high_watermark", "Rows below it can be read."),
            ("log_end_offset", "The offset of the next row."),
        ):
            family = GaugeMetricFamily(
                f"quiverlog_partition_{name}", text, labels=["topic", "partition"]
            )
            for log in logs:
                if log.topic in shown:
                    family.add_metric([log.topic, str(log.partition)], getattr(log, name))
            yield family

    def _node(self) -> Iterator[Metric]:
        node = self._metrics.node
        for name in NodeMetrics.__slots__:
            value = getattr(node, name)
            if isinstance(value, int):
                make = _gauge if name in _NODE_GAUGES else _counter
                yield make(name, name.replace("_", " ").capitalize() + ".", value)

        displaced = CounterMetricFamily(
            "quiverlog_displaced", "Other processes under this node id.", labels=["at", "other_at"]
        )
        for pair, count in sorted(node.displaced.copy().items()):
            displaced.add_metric(list(pair), count)
        yield displaced

    def _quotas(self) -> Iterator[Metric]:
        node = self._metrics.node
        beyond = CounterMetricFamily(
            "quiverlog_quota_beyond_bytes", "Bytes beyond quotas.", labels=["direction"]
        )
        muted = CounterMetricFamily(
            "quiverlog_quota_muted_seconds",
            "Time in which clients were muted.",
            labels=["direction"],
        )
        for direction, byte_count in node.quota_bytes_beyond.items():
            beyond.add_metric([direction], byte_count)
            muted.add_metric([direction], node.quota_muted_us[direction] / 1e6)
        yield beyond
        yield muted

    def _cluster(self) -> Iterator[Metric]:
        yield from _gauges(self._cluster_gauges())

    def _transactions(self) -> Iterator[Metric]:
        outcomes = CounterMetricFamily(
            "quiverlog_transactions", "Transactions, by outcome.", labels=["outcome"]
        )
        for outcome, count in self._metrics.node.transactions.items():
            outcomes.add_metric([outcome], count)
        yield outcomes
        yield from _gauges(self._transaction_gauges())
        waiting = GaugeMetricFamily(
            "quiverlog_publish_waiting_rows", "Committed rows that wait.", labels=["topic"]
        )
        topics = sorted(self._waiting_rows().items())
        for topic, count in topics[: self.topics_max]:
            waiting.add_metric([topic], count)
        if rest := topics[self.topics_max :]:
            waiting.add_metric([OTHER_TOPICS], sum(count for _, count in rest))
        yield waiting

    def _groups(self) -> Iterator[Metric]:
        node = self._metrics.node
        members = GaugeMetricFamily(
            "quiverlog_group_members", "Members of groups, by state.", labels=["state"]
        )
        for state, count in node.group_members.items():
            members.add_metric([state], count)
        yield members
        for name, text, label, counts in (
            ("offset_commits", "Committed offsets, by result.", "result", node.offset_commits),
            ("group_fenced", "Fenced members, by reason.", "reason", node.groups_fenced),
        ):
            family = CounterMetricFamily(f"quiverlog_{name}", text, labels=[label])
            for value, count in counts.items():
                family.add_metric([value], count)
            yield family


_NODE_GAUGES: Final = frozenset(
    {
        "cluster_secrets",
        "quota_connections_muted",
        "parked_entries",
        "parked_requests",
        "partitions_damaged",
        "partitions_led",
        "partitions_offline",
        "partitions_with_faults",
        "disk_full",
    }
)


def log_sizes(node: Node | None) -> Iterator[LogSize]:
    if node is None:
        return
    # The list is one atomic copy: the loop opens and closes replicas meanwhile.
    for replica in list(node.broker.replicas.values()):
        log = replica.log.reader
        yield LogSize(
            replica.name.topic,
            log.size_bytes,
            log.segment_count,
            replica.name.partition,
            log.log_start_offset,
            replica.state.high_watermark,
            log.log_end_offset,
        )


def _sum(topics: list[tuple[str, TopicCounters]], field: str) -> int:
    return sum(getattr(counters, field) for _, counters in topics)


def _gauges(now: ClusterGauges | TransactionGauges) -> Iterator[Metric]:
    for name, value in zip(now._fields, now, strict=True):
        yield _gauge(name, name.replace("_", " ").capitalize() + ".", value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"quiverlog_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"quiverlog_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets: Any = histogram.buckets()
    return HistogramMetricFamily(
        f"quiverlog_{name}_seconds", text, buckets=buckets, sum_value=histogram.sum_us / 1e6
    )
