"""What `produce` prints on stderr while rows come by and by: those too that came last."""

from __future__ import annotations

import io
import os
import pty

import pyarrow as pa
import pytest

from quiverlog.cli.formats.read_files import Source
from quiverlog.cli.rows import produce_progress
from quiverlog.cli.rows.produce_progress import shown_progress
from tests.support.until import until


class Read:
    done = 0


def source(total: int | None = None) -> Source:
    return Source(pa.schema([]), iter(()), Read(), total)


def test_the_last_rows_are_shown_while_the_pipe_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_progress, "_LINE_EVERY_S", 0.01)
    rows, printed = 0, ""

    def shows(text: str) -> bool:
        nonlocal printed
        printed += capsys.readouterr().err
        return text in printed

    with shown_progress("-", source(), lambda: rows, is_quiet=False):
        rows = 3
        until(lambda: shows("3 rows, "))
        rows = 1003
        until(lambda: shows("1,003 rows, "))
    lines = printed.splitlines()
    assert len(lines) == 2, "no line without new rows"


@pytest.mark.parametrize(("total", "is_quiet"), [(10, False), (None, True)])
def test_a_file_and_a_quiet_person_get_no_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    total: int | None,
    is_quiet: bool,
) -> None:
    monkeypatch.setattr(produce_progress, "_LINE_EVERY_S", 0.0)
    with shown_progress("-", source(total), lambda: 5, is_quiet=is_quiet) as progress:
        progress.show(10)
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_rows_that_nothing_came_after(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    rows, printed = 0, b""

    def shows(text: bytes) -> bool:
        nonlocal printed
        printed += os.read(ours, 65_536)
        return text in printed

    with io.TextIOWrapper(os.fdopen(theirs, "wb", buffering=0), write_through=True) as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        with shown_progress("-", source(), lambda: rows, is_quiet=False):
            rows = 7
            until(lambda: shows(b"7 rows, "))
        monkeypatch.undo()
    os.close(ours)


def test_slow_rows_have_a_rate() -> None:
    rate = produce_progress._Rate(lambda: 3)
    rate._since_s -= 6
    assert rate.words() == "3 rows, 0.5 rows/s"
