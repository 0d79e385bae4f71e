"""Log lines: one event, one line, whatever it carries."""

from __future__ import annotations

import io
import json
import logging

import pytest

from quiverlog.server.observe.logs import bridge_logging, make_logger


def test_logfmt() -> None:
    stream = io.StringIO()
    log = make_logger(level="info", format="logfmt", stream=stream)
    log.info("partition fault", partition="flights-0", why="a\nb", raw=b"\x01\xff", free=12)
    log.debug("not written")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert 'level=info event="partition fault"' in line
    assert "raw=01ff" in line
    assert "free=12" in line


def test_json_with_a_traceback_stays_one_line() -> None:
    stream = io.StringIO()
    log = make_logger(level="warning", format="json", stream=stream)
    log.info("not written")
    try:
        raise ValueError("broken")
    except ValueError as error:
        log.error("internal error", exc_info=error)
    entry = json.loads(stream.getvalue())
    assert entry["event"] == "internal error"
    assert entry["level"] == "error"
    assert "ValueError: broken" in entry["exception"]


@pytest.fixture
def restored_root():  # type: ignore[no-untyped-def]
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_warnings_of_libraries_look_the_same(restored_root: logging.Logger) -> None:
    stream = io.StringIO()
    bridge_logging(make_logger(level="info", format="json", stream=stream))
    logging.getLogger("asyncio").warning("slow %s", "callback")
    entry = json.loads(stream.getvalue())
    assert (entry["event"], entry["library"]) == ("slow callback", "asyncio")
