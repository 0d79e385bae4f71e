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


def test_a_value_is_quoted_where_logfmt_needs_it() -> None:
    stream = io.StringIO()
    log = make_logger(level="debug", format="logfmt", stream=stream)
    log.debug(
        "x", a='say "no"', b="k=v", c="back\\slash", d="back\\ slash", e=None, f=True, g="", h=1.5,
        timestamp="field", level="field",
    )  # fmt: skip
    head, _, rest = stream.getvalue().partition(" level=")
    assert head.startswith("timestamp=20")
    assert head.endswith("Z")
    assert rest == (
        'debug event=x a="say \\"no\\"" b="k=v" '
        'c=back\\slash d="back\\\\ slash" e= f=true g= h=1.5\n'
    )


def test_the_fields_of_a_json_line_keep_their_order_and_kinds() -> None:
    stream = io.StringIO()
    log = make_logger(level="info", format="json", stream=stream)
    log.info("x", count=3, share=0.5, on=False, why=None, at=("a", 1), raw=memoryview(bytes(70)))
    entry = json.loads(stream.getvalue())
    assert list(entry)[:4] == ["timestamp", "level", "event", "count"]
    del entry["timestamp"]
    assert entry == {
        "level": "info", "event": "x", "count": 3, "share": 0.5, "on": False, "why": None,
        "at": "('a', 1)", "raw": "00" * 64,
    }  # fmt: skip


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
    assert "exception" not in entry
    stream.truncate(stream.seek(0))
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("lost")
    entry = json.loads(stream.getvalue())
    assert (entry["level"], entry["event"], entry["library"]) == ("error", "lost", "asyncio")
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ValueError: broken")
