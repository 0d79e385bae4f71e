"""The server's counters.

Counters are plain slots, on a request's path: adding to one of `prometheus_client` takes ten times
as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from quiverlog.errors import QuiverlogError
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.wire.messages import Api

__all__ = [
    "TLS_OUTCOMES",
    "Gauges",
    "Histogram",
    "LogSize",
    "RecentMax",
    "RecentRates",
    "RequestCounters",
    "ServerMetrics",
    "TlsDates",
]

_BUCKETS: Final = tuple(range(4, 28, 2))
"""Exported bounds are 2**k microseconds: 16 us, 64 us, ... 67 s."""


class Histogram:
    """Bucket k counts durations of 2**(k-1) up to 2**k - 1 microseconds."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * 65
        self.sum_us = 0

    def observe(self, us: int) -> None:
        self.counts[us.bit_length()] += 1
        self.sum_us += us

    def buckets(self) -> list[tuple[str, float]]:
        found = [(repr(2**k / 1e6), float(sum(self.counts[: k + 1]))) for k in _BUCKETS]
        return [*found, ("+Inf", float(sum(self.counts)))]


class RecentMax:
    """The largest value of the last one or two minutes."""

    WINDOW_S: Final = 60.0
    __slots__ = ("_before", "_began_s", "_now")

    def __init__(self) -> None:
        self._began_s = 0.0
        # Two windows by time: a read that reset the maximum would hide it from other scrapers.
        self._before = self._now = 0

    def observe(self, value: int, at_s: float) -> None:
        """`at_s` never decreases."""
        self._turn(at_s)
        self._now = max(self._now, value)

    def value(self, at_s: float) -> int:
        age_s = at_s - self._began_s
        if age_s >= 2 * self.WINDOW_S:
            return 0
        return self._now if age_s >= self.WINDOW_S else max(self._before, self._now)

    def _turn(self, at_s: float) -> None:
        age_s = at_s - self._began_s
        if age_s >= self.WINDOW_S:
            self._before = self._now if age_s < 2 * self.WINDOW_S else 0
            self._now, self._began_s = 0, at_s


class RecentRates:
    """How fast totals have grown over the last ten seconds."""

    WINDOW_S: Final = 10.0
    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()

    def observe(self, at_s: float, *totals: float) -> tuple[float, ...] | None:
        """Return how much of each total came in a second; None at the first call. `at_s` grows."""
        samples = self._samples
        samples.append((at_s, totals))
        while len(samples) > 2 and samples[1][0] <= at_s - self.WINDOW_S:
            samples.popleft()
        began_s, before = samples[0]
        if at_s <= began_s:
            return None
        return tuple((b - a) / (at_s - began_s) for a, b in zip(before, totals, strict=True))


TLS_OUTCOMES: Final = (
    "done", "failed", "plain", "plain_taken", "silent", "left", "cut_off", "no_room", "stopped",
)  # fmt: skip


class TlsDates(NamedTuple):
    """When what a listener uses of TLS ends, in seconds since 1970, and the certificate's number.

    `authority_s` 0: the listener asks for no certificates.
    """

    certificate_s: float
    authority_s: float
    serial: str


class RequestCounters:
    __slots__ = ("handling", "queue", "total")

    def __init__(self) -> None:
        self.queue = Histogram()
        self.handling = Histogram()
        self.total = Histogram()

    @property
    def count(self) -> int:
        return sum(self.handling.counts)


class JobCounters:
    __slots__ = ("count", "elapsed_us")

    def __init__(self) -> None:
        self.count = 0
        self.elapsed_us = 0


class ServerMetrics:
    """`requests` is indexed by API number."""

    __slots__ = (
        "audit_lines_lost",
        "bytes_in",
        "bytes_out",
        "connections_accepted",
        "connections_closed_by",
        "connections_open",
        "connections_refused_by",
        "disk_free_bytes",
        "errors",
        "http_refused",
        "http_requests",
        "job_kinds",
        "job_wait",
        "lines_left_out",
        "loop_lag",
        "loop_lag_max",
        "node",
        "peer_failures",
        "peer_links_unproved",
        "peer_requests_dropped",
        "peers_open",
        "reads_paused",
        "requests",
        "sync",
        "tls_dates",
        "tls_files_refused",
        "tls_handshakes",
    )

    def __init__(self) -> None:
        self.node = NodeMetrics()
        self.requests = [RequestCounters() for _ in range(max(Api) + 1)]
        self.errors: dict[int, int] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_open = 0
        self.connections_accepted = 0
        self.connections_refused_by: dict[str, int] = {}
        self.connections_closed_by: dict[str, int] = {}
        self.reads_paused = 0
        self.peers_open = 0
        self.peer_failures: dict[str, int] = {}
        self.peer_links_unproved = 0
        self.peer_requests_dropped = 0
        self.loop_lag = Histogram()
        self.loop_lag_max = RecentMax()
        """Microseconds."""
        self.sync = Histogram()
        self.job_wait = Histogram()
        self.job_kinds: dict[str, JobCounters] = {}
        self.http_requests = 0
        self.http_refused = 0
        self.lines_left_out = 0
        self.audit_lines_lost = 0
        self.disk_free_bytes = 0
        self.tls_dates: dict[str, TlsDates] = {}
        """By listener."""
        self.tls_files_refused: dict[str, int] = {}
        """1 for a listener whose changed files cannot be used."""
        self.tls_handshakes: dict[str, int] = {}

    def count_handshake(self, outcome: str) -> None:
        assert outcome in TLS_OUTCOMES, outcome
        self.tls_handshakes[outcome] = self.tls_handshakes.get(outcome, 0) + 1

    def count_job(self, kind: str, elapsed_us: int) -> None:
        counters = self.job_kinds.get(kind)
        if counters is None:
            counters = self.job_kinds[kind] = JobCounters()
        counters.count += 1
        counters.elapsed_us += elapsed_us

    def count_peer_failure(self, error: str) -> None:
        self.peer_failures[error] = self.peer_failures.get(error, 0) + 1

    def count_error(self, code: int) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def count_refused(self, error: QuiverlogError) -> None:
        name = error.code_name()
        self.connections_refused_by[name] = self.connections_refused_by.get(name, 0) + 1

    def count_closed(self, reason: str) -> None:
        self.connections_closed_by[reason] = self.connections_closed_by.get(reason, 0) + 1


class Gauges(NamedTuple):
    """Numbers that are read at a scrape."""

    memory_bytes: int = 0
    memory_bytes_max: int = 0
    memory_bytes_peak: int = 0
    turns_waiting: int = 0
    jobs_waiting: Mapping[str, int] = {}
    jobs_running: int = 0
    places: Mapping[str, int] = {}
    awaiting_login: int = 0


class LogSize(NamedTuple):
    topic: str
    size_bytes: int
    segments: int
    partition: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
