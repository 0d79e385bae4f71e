"""The exporter: right text, bounded series, and counters that cost next to nothing."""

from __future__ import annotations

import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from quiverlog.errors import TooManyConnections, TooManyConnectionsFromAddress
from quiverlog.node.cluster_gauges import TransactionGauges
from quiverlog.server.observe.metrics import (
    Histogram,
    LogSize,
    RecentMax,
    RecentRates,
    ServerMetrics,
)
from quiverlog.server.observe.metrics_text import MetricsExporter
from quiverlog.wire.messages import Api


def samples(exporter: MetricsExporter) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(exporter.render()[0].decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def exporter_of(metrics: ServerMetrics, logs: list[LogSize], topics_max: int) -> MetricsExporter:
    return MetricsExporter(metrics, lambda: logs, topics_max=topics_max)


@given(st.lists(st.integers(0, 200_000_000), max_size=50))
def test_histogram_counts_every_duration_in_its_bucket(durations_us: list[int]) -> None:
    histogram = Histogram()
    for us in durations_us:
        histogram.observe(us)
    for bound, count in histogram.buckets():
        limit_us = math.inf if bound == "+Inf" else float(bound) * 1e6
        assert count == sum(us < limit_us for us in durations_us)
    assert histogram.sum_us == sum(durations_us)


def test_requests_errors_and_connections() -> None:
    metrics = ServerMetrics()
    counters = metrics.requests[Api.PRODUCE]
    counters.queue.observe(3)
    counters.handling.observe(20)
    counters.total.observe(700)
    metrics.count_error(50)
    metrics.count_error(50)
    metrics.count_closed("idle")
    metrics.connections_open = 4
    for error in (TooManyConnections(), TooManyConnectionsFromAddress(), TooManyConnections()):
        metrics.count_refused(error)
    metrics.sync.observe(900)
    metrics.loop_lag_max.observe(1_500, time.monotonic())
    exporter = exporter_of(metrics, [], 10)
    found = samples(exporter)
    assert found["quiverlog_requests_total{api=produce}"] == 1
    assert found["quiverlog_connections_refused_total{error=TOO_MANY_CONNECTIONS}"] == 2
    assert found["quiverlog_request_handling_seconds_sum{api=produce}"] == pytest.approx(20e-6)
    assert found["quiverlog_request_total_seconds_bucket{api=produce,le=0.000256}"] == 0
    assert found["quiverlog_request_total_seconds_bucket{api=produce,le=0.001024}"] == 1
    assert found["quiverlog_errors_total{code=50,error=CORRUPT_BATCH}"] == 2
    assert found["quiverlog_connections_closed_total{reason=idle}"] == 1
    assert found["quiverlog_connections"] == 4
    assert found["quiverlog_fsync_seconds_count"] == 1
    assert found["quiverlog_event_loop_lag_max_seconds"] == 0.0015
    assert samples(exporter)["quiverlog_event_loop_lag_max_seconds"] == 0.0015, "also to others"
    assert "quiverlog_requests_total{api=fetch}" not in found
    assert not [name for name in found if "version" in name], "HTTP reveals none"
    assert found["process_open_fds"] > 0


def test_a_recent_maximum_lasts_a_minute_for_every_scraper() -> None:
    recent = RecentMax()
    recent.observe(7, 1_000.0)
    recent.observe(3, 1_030.0)
    assert [recent.value(at_s) for at_s in (1_030.0, 1_059.9, 1_061.0)] == [7, 7, 7]
    recent.observe(5, 1_060.0)
    assert recent.value(1_100.0) == 7, "the minute before counts"
    recent.observe(1, 1_120.0)
    assert recent.value(1_121.0) == 5
    assert recent.value(1_240.0) == 0, "nothing was seen for two minutes"
    recent.observe(2, 1_500.0)
    assert recent.value(1_501.0) == 2


def test_rates_are_of_the_last_ten_seconds() -> None:
    rates = RecentRates()
    assert rates.observe(100.0, 0, 5_000) is None, "nothing to compare with"
    assert rates.observe(101.0, 10, 5_000) == (10.0, 0.0)
    for second in range(2, 11):
        rates.observe(100.0 + second, 10 * second, 5_000)
    assert rates.observe(111.0, 100, 5_000) == (9.0, 0.0), "the first second is left out"
    assert rates.observe(150.0, 100, 9_000) == (0.0, 4_000 / 39)


def test_openmetrics_is_given_to_scrapers_that_accept_it() -> None:
    metrics = ServerMetrics()
    metrics.connections_accepted = 3
    metrics.sync.observe(900)
    text, content_type = exporter_of(metrics, [], 10).render("application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    families = {f.name: f for f in openmetrics.text_string_to_metric_families(text.decode())}
    (sample,) = families["quiverlog_connections_accepted"].samples
    assert (sample.name, sample.value) == ("quiverlog_connections_accepted_total", 3)
    plain, plain_type = exporter_of(metrics, [], 10).render("text/html, */*")
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert b"# EOF" not in plain


def test_offsets_of_partitions_are_shown_where_that_is_asked_for() -> None:
    logs = [LogSize("t", 1, 1, partition, 10, 20, 30 + partition) for partition in (0, 1)]
    logs.append(LogSize("u", 1, 1, 0, 1, 2, 3))
    exporter = exporter_of(ServerMetrics(), logs, 1)
    assert not [name for name in samples(exporter) if "quiverlog_partition_" in name]
    exporter.shows_offsets = True
    found = samples(exporter)
    assert found["quiverlog_partition_log_start_offset{partition=0,topic=t}"] == 10
    assert found["quiverlog_partition_high_watermark{partition=1,topic=t}"] == 20
    assert found["quiverlog_partition_log_end_offset{partition=1,topic=t}"] == 31
    assert not [name for name in found if "quiverlog_partition_" in name and "topic=u" in name]


def test_the_idle_ratio_is_of_a_window_that_scrapers_share() -> None:
    metrics = ServerMetrics()
    now_s = [100.0]
    exporter = MetricsExporter(metrics, list, topics_max=1, clock=lambda: now_s[0])
    name = "quiverlog_handler_idle_ratio"
    assert samples(exporter)[name] == 1
    now_s[0] += 10
    metrics.requests[Api.FETCH].handling.observe(2_000_000)
    metrics.requests[Api.PRODUCE].handling.observe(500_000)
    assert samples(exporter)[name] == 0.75
    assert samples(exporter)[name] == 0.75, "the same to another scraper"
    now_s[0] += 1
    assert samples(exporter)[name] == pytest.approx(1 - 2.5 / 11)
    now_s[0] += 9
    assert samples(exporter)[name] == 1
    now_s[0] += 1
    metrics.requests[Api.FETCH].handling.observe(30_000_000)
    assert samples(exporter)[name] == 0, "what began before is counted when it ends"


def test_topics_beyond_the_cap_are_counted_together() -> None:
    metrics = ServerMetrics()
    logs = []
    for number in range(50):
        metrics.node.topic(f"t{number:02}").rows_in = number
        logs += [LogSize(f"t{number:02}", 100, 2), LogSize(f"t{number:02}", 10, 1)]
    found = samples(exporter_of(metrics, logs, 10))
    topics = {match[1] for name in found if (match := re.search(r"topic=(\w+)", name))}
    assert topics == {f"t{number:02}" for number in range(10)} | {"_other"}
    assert found["quiverlog_topic_rows_in_total{topic=t09}"] == 9
    assert found["quiverlog_topic_rows_in_total{topic=_other}"] == sum(range(10, 50))
    assert found["quiverlog_log_size_bytes{topic=t00}"] == 110
    assert found["quiverlog_log_size_bytes{topic=_other}"] == 40 * 110
    assert found["quiverlog_log_segments{topic=_other}"] == 40 * 3
    assert found["quiverlog_log_partitions{topic=t00}"] == 2


def test_a_hostile_topic_name_cannot_break_the_text() -> None:
    metrics = ServerMetrics()
    metrics.node.topic('a"}\nb 1').rows_in = 5
    assert 5 in samples(exporter_of(metrics, [], 10)).values()


def test_every_plain_number_of_the_node_is_exported() -> None:
    metrics = ServerMetrics()
    metrics.node.partitions_led = 7
    metrics.node.batches_refused = 3
    found = samples(exporter_of(metrics, [], 10))
    assert found["quiverlog_partitions_led"] == 7
    assert found["quiverlog_batches_refused_total"] == 3


def counted_ns(metrics: ServerMetrics, rounds: int) -> float:
    """The very statements of a request's way, the clock's reading among them."""
    requests = metrics.requests
    in_flight: dict[int, int] = {}
    received_ns = started_ns = begun_ns = time.perf_counter_ns()
    for correlation_id in range(rounds):
        in_flight[correlation_id] = received_ns
        ended_ns = time.perf_counter_ns()
        counters = requests[2]
        counters.queue.observe((started_ns - received_ns) // 1000)
        counters.handling.observe((ended_ns - started_ns) // 1000)
        started_ns = ended_ns
        arrived_ns = in_flight.pop(correlation_id, 0)
        elapsed_us = (time.perf_counter_ns() - arrived_ns) // 1000
        requests[2].total.observe(elapsed_us)
    return (time.perf_counter_ns() - begun_ns) / rounds


def bare_ns(rounds: int) -> float:
    """The least that three histograms of one request can cost: lists and a loop."""
    in_flight: dict[int, int] = {}
    sums = [0, 0, 0]
    buckets = [[0] * 64 for _ in sums]
    received_ns = started_ns = begun_ns = time.perf_counter_ns()
    for correlation_id in range(rounds):
        in_flight[correlation_id] = received_ns
        ended_ns = time.perf_counter_ns()
        for kind in (0, 1, 2):
            elapsed_us = (ended_ns - started_ns) // 1000
            sums[kind] += elapsed_us
            buckets[kind][elapsed_us.bit_length()] += 1
        started_ns = ended_ns
        in_flight.pop(correlation_id, 0)
        time.perf_counter_ns()
    return (time.perf_counter_ns() - begun_ns) / rounds


def test_counting_one_request_costs_no_more_than_twice_bare_lists() -> None:
    """Interleaved, the best of many of each: a bound in nanoseconds would measure the machine."""
    metrics = ServerMetrics()
    best_counted_ns = best_bare_ns = math.inf
    for _ in range(30):
        best_bare_ns = min(best_bare_ns, bare_ns(2_000))
        best_counted_ns = min(best_counted_ns, counted_ns(metrics, 2_000))
    assert best_counted_ns < 2 * best_bare_ns, f"{best_counted_ns:.0f} beside {best_bare_ns:.0f} ns"


def test_transactions() -> None:
    metrics = ServerMetrics()
    waiting = {"a": 3, "b": 4, "c": 5}
    exporter = MetricsExporter(
        metrics,
        list,
        topics_max=1,
        transactions=lambda: TransactionGauges(2, 100, 1.5, 90.0),
        waiting_rows=lambda: waiting,
    )
    metrics.node.transactions["committed"] += 7
    found = samples(exporter)
    assert found["quiverlog_transactions_total{outcome=committed}"] == 7
    assert found["quiverlog_transactions_total{outcome=aborted}"] == 0
    assert found["quiverlog_transactions_fenced_total"] == 0
    assert found["quiverlog_transactions_open"] == 2
    assert found["quiverlog_staged_bytes"] == 100
    assert found["quiverlog_staged_oldest_seconds"] == 1.5
    assert found["quiverlog_publish_oldest_seconds"] == 90
    assert found["quiverlog_publish_waiting_rows{topic=a}"] == 3
    assert found["quiverlog_publish_waiting_rows{topic=_other}"] == 9
    waiting.clear()
    assert not [name for name in samples(exporter) if name.startswith("quiverlog_publish_waiting")]


def test_groups() -> None:
    metrics = ServerMetrics()
    metrics.node.group_members["stable"] = 3
    metrics.node.group_rebalances = 2
    metrics.node.groups_fenced["silent"] += 1
    metrics.node.offset_commits["committed"] += 10
    found = samples(MetricsExporter(metrics, list, topics_max=1))
    assert found["quiverlog_group_members{state=stable}"] == 3
    assert found["quiverlog_group_members{state=joining}"] == 0
    assert found["quiverlog_group_rebalances_total"] == 2
    assert found["quiverlog_group_fenced_total{reason=silent}"] == 1
    assert found["quiverlog_offset_commits_total{result=committed}"] == 10
    assert found["quiverlog_offset_commits_total{result=refused}"] == 0
