"""Tables for pipes are written without rich, which takes long to import: the same bytes as its."""

from __future__ import annotations

import io
from itertools import product

import pytest

from quiverlog.cli import output

CELLS = ("", "a", "1,234", "a longer cell", "x" * 60, "100%")
STRANGE = ("[red]", "日本", "a\nb", ":smile:", "\x1b[31m", "y" * 230, "a\tb")


def printed(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[object, ...]], encoding: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace", newline="")
    monkeypatch.setattr("sys.stdout", stream)
    output.print_table(["NAME", "ROWS", "KIND"], rows, right=["ROWS"])
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_as_rich_writes_them(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    tables: list[list[tuple[object, ...]]] = [[], [("t", 5, None), ("much longer", 12345, True)]]
    tables += [[cells, ("z", "7", "w")] for cells in product(CELLS, repeat=3)]
    for strange in STRANGE:
        tables += [[(strange, 1, "k")], [("n", 1, strange), ("o", 2, "k")]]
    found = [printed(monkeypatch, rows, encoding) for rows in tables]
    monkeypatch.setattr(output, "_plain_table", lambda *_: None)
    assert found == [printed(monkeypatch, rows, encoding) for rows in tables]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_that_are_asked_for_come(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed(monkeypatch, [("t", 5, "k")], "utf-8")
