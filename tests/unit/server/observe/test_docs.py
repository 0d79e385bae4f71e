"""docs/monitoring.md names every metric that is exported and every line that is logged."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.observe.metrics_text import MetricsExporter

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
LEVELS = {"debug", "info", "warning", "error"}


def test_an_image_that_listens_everywhere_names_the_consequence() -> None:
    image = (ROOT / "Dockerfile").read_text()
    if "0.0.0.0" not in image:
        return
    comments = " ".join(x.removeprefix("#").strip() for x in image.splitlines() if x[:1] == "#")
    assert "no authentication" in comments
    assert "-p 127.0.0.1:9292:9292" in comments
    assert "-p 127.0.0.1:9292:9292" in (ROOT / "docs" / "broker.md").read_text()


def logged_events() -> Iterator[tuple[str, str]]:
    """(file, event) of `log.info("event", ...)` and `broker.log("info", "event", ...)` calls."""
    for part in ("node", "server"):
        for path in sorted((ROOT / "broker" / "quiverlog" / part).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                    continue
                texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
                if call.func.attr in ("log", "_report") and len(texts) >= 2:
                    yield path.name, texts[1]
                elif call.func.attr in LEVELS and "log" in ast.unparse(call.func.value) and texts:
                    yield path.name, texts[0]


def test_every_log_line_is_explained() -> None:
    events = list(logged_events())
    assert len(events) > 20
    missing = [(f, event) for f, event in events if event.partition(":")[0] not in PAGE]
    assert missing == []


def families() -> list[Metric]:
    exporter = MetricsExporter(ServerMetrics(), list, topics_max=1)
    exporter.shows_offsets = True
    return list(exporter.collect())


@pytest.mark.parametrize("family", families())
def test_every_metric_is_explained(family) -> None:  # type: ignore[no-untyped-def]
    name = family.name.removeprefix("quiverlog_")
    if family.type == "counter":
        name += "_total"
    assert f"`{name}" in PAGE, name
