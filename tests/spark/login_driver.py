"""A driver whose queries log in, and that keeps all that Spark shows of them. Run as a program:

python -m tests.spark.login_driver PLAN

PLAN: a `Plan` as JSON. Below its folder: `shown` (plans in every mode, errors, progress, each page
of the UI and of its REST interface), `events` (the event log), `checkpoints` and `local`.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import socket
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.spark import CONF

__all__ = ["FOLDERS", "MODES", "Plan", "copy", "plans_of"]

FOLDERS = ("shown", "events", "checkpoints", "local")
MODES = ("simple", "extended", "codegen", "cost", "formatted")
_LINK = re.compile(r'href="(/[^"#]*)')
_LEFT_OUT = ("/static/", "/kill", "/log", "threadDump", "heapHistogram", "ort=")
"""The last: the same table in another order."""
_PAGES_MAX = 400
_REST = ("jobs", "stages", "executors", "environment", "sql?details=true&planDescription=true")


@dataclass
class Plan:
    """`logins`: the options of each login. Topics: `source`, `batches`, `streamed`."""

    bootstrap: str
    folder: str
    logins: list[dict[str, str]]
    is_connect: bool = False


def plans_of(frame: Any) -> str:
    """All that EXPLAIN prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in MODES:
            frame.explain(mode=mode)
    return shown.getvalue()


def copy(spark: Any, options: dict[str, str], checkpoint: Path, **more: str) -> Any:
    """Copy `source` to `streamed` in two micro-batches; returns the query, which has ended."""
    stream = spark.readStream.format("quiverlog").options(**options, subscribe="source")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "60")
    writer = stream.load().writeStream.format("quiverlog").options(**options)
    writer = writer.options(**{"topic": "streamed", "checkpointLocation": str(checkpoint), **more})
    query = writer.trigger(availableNow=True).start()
    with contextlib.suppress(Exception):  # The caller asks for it.
        query.awaitTermination(120)
    return query


class _Shown:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def add(self, what: str, text: str) -> None:
        self._count += 1
        (self._folder / f"{self._count:03}-{what}").write_text(text)

    def refused(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self.add(what, "".join([*traceback.format_exception(error), str(error), repr(error)]))
        else:
            raise AssertionError(f"{what} was not refused")


def _use(spark: Any, plan: Plan, number: int, shown: _Shown) -> None:
    """Read, write and stream with one login; then as many errors."""
    login = plan.logins[number]
    options = {"bootstrap.servers": plan.bootstrap, **login}
    checkpoints = Path(plan.folder) / "checkpoints"
    frame = spark.read.format("quiverlog").options(**options).load("source")
    shown.add("plans", plans_of(frame))
    print("rows", frame.count())
    frame.write.format("quiverlog").options(**options).mode("append").save("batches")
    query = copy(spark, options, checkpoints / f"{number}")
    print("ended", not query.isActive, query.exception())
    shown.add("progress", f"{query.recentProgress} {query.status}")
    read = spark.read.format("quiverlog").options(**options)
    shown.refused("no-topic", lambda: read.load("absent").count())
    writer = frame.write.format("quiverlog").options(**options).mode("append")
    shown.refused("no-topic-to-write", lambda: writer.save("absent"))
    failed = copy(spark, options, checkpoints / f"{number}-failed", topic="absent")
    shown.add("failed", str(failed.exception()))
    assert failed.exception() is not None
    wrong = {**options, "user": "mallory"} if "user" in options else None
    if wrong is not None:
        reader = spark.read.format("quiverlog").options(**wrong)
        shown.refused("login", lambda: reader.load("source").count())


# --- the UI ---------------------------------------------------------------------------------------
def _page(root: str, path: str) -> str:
    # No proxy is between a test and its own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(root + path, timeout=60) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode(errors='replace')}"


def _keep_pages(port: int, shown: _Shown) -> None:
    """Follow every link from the first page on; the REST interface, too."""
    root = f"http://127.0.0.1:{port}"
    (app,) = json.loads(_page(root, "/api/v1/applications"))
    rest = [f"/api/v1/applications/{app['id']}/{name}" for name in _REST]
    waiting = ["/jobs/", "/SQL/", "/StreamingQuery/", "/environment/", *rest]
    known = set(waiting)
    while waiting:
        path = waiting.pop(0)
        text = _page(root, path)
        shown.add(f"page{re.sub('[^A-Za-z0-9]', '-', path)[:60]}", f"{path}\n{text}")
        links = {html.unescape(one) for one in _LINK.findall(text)}
        new = sorted(one for one in links - known if not any(part in one for part in _LEFT_OUT))
        known.update(new)
        waiting += new
        assert len(known) < _PAGES_MAX, f"more pages than {_PAGES_MAX}"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _session(plan: Plan, port: int) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.remote("local[2]") if plan.is_connect else builder.master("local[2]")
    # As text, so that one may look through it.
    plain = (
        *("spark.eventLog.compress", "spark.broadcast.compress", "spark.shuffle.compress"),
        *("spark.shuffle.spill.compress", "spark.rdd.compress"),
    )
    settings = {
        **CONF,
        **dict.fromkeys(plain, "false"),
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.log.level": "WARN",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"{plan.folder}/events",
        "spark.local.dir": f"{plan.folder}/local",
        "spark.sql.ui.explainMode": "extended",
        "spark.sql.warehouse.dir": f"{plan.folder}/warehouse",
        "spark.sql.shuffle.partitions": "1",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(plan: Plan) -> None:
    for name in FOLDERS:
        (Path(plan.folder) / name).mkdir()
    port = _free_port()
    spark = _session(plan, port)
    import pyspark_quiverlog

    pyspark_quiverlog.register(spark)
    shown = _Shown(Path(plan.folder) / "shown")
    for number in range(len(plan.logins)):
        _use(spark, plan, number, shown)
    _keep_pages(port, shown)
    spark.stop()


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
