"""How far a query is behind, from the progress that Spark reports."""

from __future__ import annotations

import json
import logging
import socket
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pyspark_quiverlog import LagListener, pool, source_lags
from pyspark_quiverlog import lag as module
from pyspark_quiverlog.lag import METRICS
from pyspark_quiverlog.progress import group_of
from quiverlog.client.base.results import RangeSize
from quiverlog.errors import ConnectionFailed, InvalidArgument
from quiverlog.types import TopicPartition

ID = "0" * 32


def offset(**partitions: list[int]) -> dict[str, Any]:
    """An offset of ours: topic -> the next rows of its partitions."""
    topics = {
        topic: {"id": ID, "partitions": {str(p): [row, 0] for p, row in enumerate(rows)}}
        for topic, rows in partitions.items()
    }
    return {"v": 1, "topics": topics}


def progress(*sources: dict[str, Any]) -> Any:
    return SimpleNamespace(id="q1", name="late", batchId=7, sources=list(sources))


BEHIND = {"endOffset": offset(t=[10, 20, 5]), "latestOffset": offset(t=[10, 50, 6])}
OTHERS = [
    {"endOffset": {"t": {"0": 23}}, "latestOffset": {"t": {"0": 24}}},
    {"endOffset": offset(t=[1]), "latestOffset": None},
    {"endOffset": "<log>", "latestOffset": 3},
    {"endOffset": {"v": 99, "topics": {}}, "latestOffset": offset(t=[1])},
]


def test_rows_behind_in_each_partition() -> None:
    (lag,) = source_lags(progress(BEHIND))
    assert [lag.rows[TopicPartition("t", p)] for p in range(3)] == [0, 30, 1]
    assert lag.total == 31
    assert str(lag) == "t: 31 rows behind in 3 partitions (min 0, average 10.3, max 30)"


def test_progress_as_text_or_as_objects() -> None:
    """`lastProgress` has dictionaries, a listener's event has objects with texts."""
    texts = SimpleNamespace(**{key: json.dumps(value) for key, value in BEHIND.items()})
    assert source_lags(progress(texts)) == source_lags({"sources": [BEHIND]})  # type: ignore[arg-type]


def test_a_log_that_lost_its_end_is_not_behind() -> None:
    (lag,) = source_lags(progress({"endOffset": offset(t=[9]), "latestOffset": offset(t=[4])}))
    assert lag.total == 0


@pytest.mark.parametrize("other", OTHERS)
def test_other_sources_have_no_lag(other: dict[str, Any]) -> None:
    """Kafka's, a file source, a replayed micro-batch, offsets of a later version."""
    assert source_lags(progress(other)) == []
    assert source_lags({}) == []


def test_the_listener_logs_and_remembers(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener()
    with caplog.at_level(logging.INFO, "pyspark_quiverlog.lag"):
        listener.onQueryProgress(SimpleNamespace(progress=progress(BEHIND, *OTHERS)))
    assert caplog.messages == [
        "query late, micro-batch 7, t: 31 rows behind in 3 partitions (min 0, average 10.3, max 30)"
    ]
    assert listener.last["q1"][0].total == 31
    listener.onQueryTerminated(SimpleNamespace(id="q1"))
    assert listener.last == {}


class Sizes:
    """A client that returns the sizes of ranges, or whose brokers are gone."""

    def __init__(self, fail: bool, age_s: float | None = 30.0) -> None:
        self.asked: list[Any] = []
        self._fail = fail
        self._first_us = -1 if age_s is None else round((time.time() - age_s) * 1e6)

    def describe_ranges(self, ranges: Any) -> Any:
        self.asked.append(ranges)
        if self._fail:
            raise ConnectionFailed("no broker answers")
        return {w: RangeSize(0, 100, self._first_us) for w in ranges}


@pytest.mark.parametrize(("fail", "stored"), [(False, 200), (True, None)])
def test_bytes_are_asked_for_where_rows_are_behind(
    monkeypatch: pytest.MonkeyPatch, fail: bool, stored: int | None
) -> None:
    """And a listener never fails for what it only shows."""
    sizes = Sizes(fail)
    monkeypatch.setattr(pool, "client", lambda endpoint: sizes)
    listener = LagListener(bootstrap_servers="127.0.0.1:9292")
    listener.onQueryProgress(SimpleNamespace(progress=progress(BEHIND)))
    assert listener.last["q1"][0].stored_bytes == stored
    assert sizes.asked == [{TopicPartition("t", 1): (20, 50), TopicPartition("t", 2): (5, 6)}]


@pytest.mark.parametrize(("age_s", "seconds"), [(30.0, 30.0), (-5.0, 0.0), (None, None)])
def test_seconds_are_the_age_of_the_oldest_row(
    monkeypatch: pytest.MonkeyPatch, age_s: float | None, seconds: float | None
) -> None:
    """Not below 0, where clocks differ; none from a broker that does not bring the time."""
    monkeypatch.setattr(pool, "client", lambda endpoint: Sizes(False, age_s))
    listener = LagListener(bootstrap_servers="127.0.0.1:9292")
    listener.onQueryProgress(SimpleNamespace(progress=progress(BEHIND)))
    (lag,) = listener.last["q1"]
    assert lag.seconds == (seconds if seconds is None else pytest.approx(seconds, abs=2))
    assert str(lag).endswith("bytes" if seconds is None else " s")


def test_the_groups_of_a_query_get_its_title(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most once in five seconds; what fails is tried again after half a minute."""
    at_s = [100.0]
    titles: list[tuple[str, str]] = []
    errors: list[Exception] = []

    def report(where: Any, end: Any, *, title: str) -> None:
        if errors:
            raise errors.pop()
        titles.append((group_of(end), title))

    monkeypatch.setattr(module, "report", report)
    monkeypatch.setattr(module.time, "monotonic", lambda: at_s[0])
    monkeypatch.setattr(pool, "client", lambda endpoint: Sizes(False))
    listener = LagListener(bootstrap_servers="127.0.0.1:9292")
    one, other = BEHIND["endOffset"] | {"_id": "5eed0f00"}, BEHIND["endOffset"] | {"_id": "0" * 8}
    sources = [BEHIND | {"endOffset": one}, BEHIND | {"endOffset": other | {"_group": "billing"}}]
    event = SimpleNamespace(progress=progress(*sources, BEHIND))
    for after_s in (0.0, 4.9, 0.1):
        at_s[0] += after_s
        listener.onQueryProgress(event)
    both = [("spark-5eed0f00", "late, micro-batch 7"), ("billing", "late, micro-batch 7")]
    assert titles == both * 2
    errors.append(ConnectionFailed("away"))
    for after_s in (5.0, 29.9, 0.1):
        at_s[0] += after_s
        listener.onQueryProgress(event)
    assert titles == [*both * 2, both[1], *both]
    LagListener().onQueryProgress(event)
    assert len(titles) == 7


LABELS = r'query="late \"a\\b\"\nc",query_id="q1"'
NAMED = f"""\
# HELP quiverlog_spark_lag_rows Rows of a partition that the query has not read yet.
# TYPE quiverlog_spark_lag_rows gauge
quiverlog_spark_lag_rows{{{LABELS},source="0",topic="t",partition="0"}} 0
quiverlog_spark_lag_rows{{{LABELS},source="0",topic="t",partition="1"}} 30
# HELP quiverlog_spark_lag_bytes Stored bytes of these rows, by source of the query.
# TYPE quiverlog_spark_lag_bytes gauge
quiverlog_spark_lag_bytes{{{LABELS},source="0"}} 100
# HELP quiverlog_spark_lag_seconds Age of the oldest row of a source that is not read yet.
# TYPE quiverlog_spark_lag_seconds gauge
quiverlog_spark_lag_seconds{{{LABELS},source="0"}} 0.0
# HELP quiverlog_spark_micro_batch Number of the query's last micro-batch.
# TYPE quiverlog_spark_micro_batch gauge
quiverlog_spark_micro_batch{{{LABELS}}} 7
"""


def heard(monkeypatch: pytest.MonkeyPatch) -> LagListener:
    monkeypatch.setattr(pool, "client", lambda endpoint: Sizes(fail=False, age_s=-60.0))
    listener = LagListener(bootstrap_servers="127.0.0.1:9292")
    one = {"endOffset": offset(t=[10, 20]), "latestOffset": offset(t=[10, 50])}
    seen = progress(one)
    seen.name = 'late "a\\b"\nc'
    listener.onQueryProgress(SimpleNamespace(progress=seen))
    return listener


def test_the_lag_as_text_of_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = heard(monkeypatch)
    assert listener.prometheus() == NAMED
    listener.onQueryTerminated(SimpleNamespace(id="q1"))
    assert "{" not in listener.prometheus()


def test_prometheus_finds_it_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    address = heard(monkeypatch).serve("127.0.0.1:0")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert answer.read().decode() == NAMED
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    with urllib.request.urlopen(f"http://{address}/metrics?job=late", timeout=10) as answer:
        assert answer.read().decode() == NAMED
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{address}/", timeout=10)


def test_a_closed_listener_answers_no_more_and_its_address_is_free() -> None:
    listener = LagListener()
    addresses = [listener.serve("127.0.0.1:0") for _ in range(2)]
    listener.close()
    listener.close()
    for address in addresses:
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(f"http://{address}/metrics", timeout=10)
    again = listener.serve(addresses[0])
    assert again == addresses[0]
    listener.close()


def test_an_address_of_ipv6_is_returned_in_brackets() -> None:
    assert LagListener().serve("[::1]:0").startswith("[::1]:")


def test_an_address_that_is_taken_is_named() -> None:
    taken = LagListener().serve("127.0.0.1:0")
    with pytest.raises(InvalidArgument, match=f"{taken}: Address already in use. Take another"):
        LagListener().serve(taken)


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_quiverlog.lag._REQUEST_S", 0.05)
    host, _, port = LagListener().serve("127.0.0.1:0").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as silent:
        assert silent.recv(1) == b""


def test_the_lag_as_gauges_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    heard(monkeypatch).instrument(MeterProvider([reader]))
    data = reader.get_metrics_data()
    assert data is not None
    ((scope,),) = (one.scope_metrics for one in data.resource_metrics)
    found = {
        one.name: (one.unit, one.description, [p.value for p in one.data.data_points])
        for one in scope.metrics
    }
    values = {"rows": [0, 30], "bytes": [100], "seconds": [0.0], "batch": [7]}
    assert found == {
        name: (*about, values[name.rpartition(".")[2]]) for name, about in METRICS.items()
    }
    points = next(one for one in scope.metrics if one.name.endswith("rows")).data.data_points
    assert points[1].attributes["partition"] == "1"
