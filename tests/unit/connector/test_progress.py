"""Reports of where a query reads: how often, of what, and that no failure reaches the query."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_quiverlog import progress as module
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.progress import ProgressReporter, reporter_of
from quiverlog.client.replay.stream_offsets import SourceOffset
from quiverlog.errors import (
    ConnectionFailed,
    FeatureNotFinalised,
    InvalidGroup,
    NotAuthorized,
    QuiverlogError,
    UnsupportedVersion,
)
from tests.support.until import until

OPTIONS = {"bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}


def start(offset: int, **more: Any) -> dict[str, Any]:
    topics = {"t": {"id": "0a" * 16, "partitions": {"0": [offset, 2]}}}
    return {"v": 1, "topics": topics, "_id": "5eed0f00", **more}


class Reports(ProgressReporter):
    """Reports into a list, or fails."""

    def __init__(self, **options: str) -> None:
        super().__init__(parse_read_options(OPTIONS | options, Use.STREAM_READ))
        self.sent: list[tuple[int, int]] = []
        self.error: QuiverlogError | None = None
        self.tries = 0
        self.count = 1
        self.held = threading.Event()
        self.held.set()

    def _report(self, offset: Any, rows_per_s: int) -> int:
        self.tries += 1
        self.held.wait(10)
        if self.error is not None:
            raise self.error
        self.sent.append((offset.topics["t"].partitions[0].offset, rows_per_s))
        return self.count


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Reports]:
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    return Reports


def test_the_newest_position_is_reported_once(reports: Callable[..., Reports]) -> None:
    one = reports()
    one.held.clear()
    one.moved(start(3))
    until(lambda: one.tries == 1, "the first report is on its way")
    for offset in range(4, 50):
        one.moved(start(offset))
    one.moved(start(50))
    one.moved(start(50))
    one.held.set()
    until(lambda: len(one.sent) == 2, "the newest is reported")
    assert [offset for offset, _ in one.sent] == [3, 50]
    one.moved(start(50))
    one.moved(start(51))
    until(lambda: len(one.sent) == 3, "it goes on")
    assert one.sent[2][0] == 51


def test_rows_per_second(reports: Callable[..., Reports], monkeypatch: pytest.MonkeyPatch) -> None:
    at_s = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: at_s[0])
    one = reports()
    for offset, after_s in ((10, 0.0), (50, 8.0), (53, 0.1)):
        at_s[0] += after_s
        count = len(one.sent)
        one.moved(start(offset))
        until(lambda count=count: len(one.sent) > count, "reported")
    assert one.sent == [(10, 0), (50, 5), (53, 3)]


@pytest.mark.parametrize(
    "kind", [InvalidGroup, NotAuthorized, FeatureNotFinalised, UnsupportedVersion]
)
def test_what_will_not_change_is_not_asked_again(
    reports: Callable[..., Reports], kind: type[QuiverlogError], caplog: pytest.LogCaptureFixture
) -> None:
    one = reports()
    one.error = kind("no")
    one.moved(start(3))
    assert one._thread is not None
    one._thread.join(10)
    one.moved(start(4))
    assert (one.tries, one._thread.is_alive()) == (1, False)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == (kind in (InvalidGroup, NotAuthorized))


def test_a_report_that_failed_is_followed_by_the_next(reports: Callable[..., Reports]) -> None:
    one = reports()
    one.error = ConnectionFailed("away")
    one.moved(start(3))
    until(lambda: one.tries > 1, "it is tried again")
    one.error = None
    until(lambda: bool(one.sent), "it is reported")
    assert one.sent[0] == (3, 0)


def test_a_second_query_of_the_name_is_warned_of_once(
    reports: Callable[..., Reports], caplog: pytest.LogCaptureFixture
) -> None:
    one = reports()
    for offset, count in ((1, 1), (2, 2), (3, 3)):
        one.count = count
        one.moved(start(offset, _group="late"))
        until(lambda offset=offset: [at for at, _ in one.sent][-1:] == [offset], "reported")
        until(lambda offset=offset: len(caplog.records) == (offset > 1), "warned, once")
    assert caplog.messages == [
        "2 queries have the groupId 'late', and are shown as that many members"
    ]


@pytest.mark.parametrize("data", [None, {}, {"v": 1, "topics": {}}, {"v": 9, "_id": "5eed0f00"}])
def test_starts_without_an_id_are_not_reported(reports: Callable[..., Reports], data: Any) -> None:
    one = reports()
    one.moved(data)
    assert one._thread is None


def test_names() -> None:
    offset = SourceOffset.from_json(start(1))
    assert module.group_of(offset) == "spark-5eed0f00"
    assert module.group_of(SourceOffset.from_json(start(1, _group="billing"))) == "billing"
    assert len(reporter_of("5eed0f00")) == 16
    assert reporter_of("5eed0f00") == reporter_of("5eed0f00") != reporter_of("5eed0f01")
