"""A stranger's data cannot steer a terminal, by whatever way a command prints them.

Real pseudo-terminals: what is checked are the bytes that a terminal would get.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog.cli
from quiverlog.cli.console.terminal import printable, shield
from quiverlog.cli.formats.write_files import open_sink

EVIL = "\x1b]0;title\x07\x1b[31mred\x9b31m\u202eright\u2066to\x7fleft\r\u200f"
SHOWN_AS_IS = "grüße 一"
END = "--- the end of a way ---"
STEERING = [c.encode() for c in "\x1b\x07\x9b\u202e\u2066\x7f\u200f"]

PROGRAM = f"""
import sys, click, pyarrow as pa
from quiverlog.cli.console.failures import CommandFailed, report
from quiverlog.cli.console.output import print_fields, print_json, print_table
from quiverlog.cli.console.streams import flush_output, prepare_streams
from quiverlog.cli.console.terminal import clear_screen
from quiverlog.cli.formats.write_files import open_sink
prepare_streams()
evil, plain = {EVIL!r}, {SHOWN_AS_IS!r}
batch = pa.record_batch([[evil, plain]], names=[evil])

def show(way):
    if way == "print":
        print(evil, plain)
    elif way == "clear":
        print("before")
        clear_screen(sys.stdout)
        print("after")
    elif way == "write":
        sys.stdout.write(evil + plain + "\\n")
    elif way == "bytes":
        sys.stdout.buffer.write((evil + plain + "\\n").encode())
    elif way == "echo":
        click.echo(evil + plain)
    elif way == "stderr":
        print(evil, plain, file=sys.stderr)
    elif way == "report":
        report(CommandFailed(evil + plain), debug=True)
    elif way == "fields":
        print_fields({{evil: evil + plain}})
    elif way == "rich":
        print_table([evil], [[evil + plain]])
    elif way == "document":
        print_json({{evil: evil + plain}})
    else:
        with open_sink("-", way, batch.schema) as sink:
            sink.write(batch)

for way in sys.argv[1:]:
    show(way)
    flush_output(0)
    print({END!r}, flush=True)
"""
WAYS = ["print", "write", "bytes", "echo", "stderr", "report", "fields", "rich", "document"]
FORMATS = ["table", "json", "csv"]


def on_terminal(*words: str, term: str = "xterm") -> bytes:
    """What a program writes to the terminal that all its streams are."""
    main, other = os.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", *words],
            stdin=subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": term, "COLUMNS": "400", "PYTHONUTF8": "1"},
        )
        os.close(other)
        shown = b""
        while True:
            try:
                more = os.read(main, 65_536)
            except OSError:  # the last holder of the other side has gone
                break
            if not more:
                break
            shown += more
        assert process.wait(60) == 0, shown.decode(errors="replace")
    finally:
        os.close(main)
    return shown


def shown(*ways: str, term: str = "xterm") -> dict[str, bytes]:
    """What each way shows, by one program."""
    *parts, rest = on_terminal(PROGRAM, *ways, term=term).split(END.encode() + b"\r\n")
    assert not rest
    return dict(zip(ways, parts, strict=True))


@pytest.fixture(scope="module")
def shown_by() -> dict[str, bytes]:
    return shown(*WAYS, *FORMATS)


@pytest.mark.parametrize("way", [*WAYS, *FORMATS])
def test_no_way_of_printing_steers_a_terminal(shown_by: dict[str, bytes], way: str) -> None:
    text = shown_by[way].replace(b"\x1b[1m", b"").replace(b"\x1b[0m", b"")  # rich's own bold head
    assert b"31mred" in text
    assert SHOWN_AS_IS.encode() in text
    assert [code for code in STEERING if code in text] == []
    assert b"\r" not in text.replace(b"\r\n", b"")


@pytest.mark.parametrize(
    ("term", "between"), [("xterm", b"\x1b[2J\x1b[H"), ("dumb", b""), ("", b"")]
)
def test_a_screen_is_cleared_behind_the_shield(term: str, between: bytes) -> None:
    assert shown("clear", term=term)["clear"] == b"before\r\n" + between + b"after\r\n"


def test_json_on_a_terminal_is_json(shown_by: dict[str, bytes]) -> None:
    lines = shown_by["json"].decode().splitlines()
    assert [json.loads(line) for line in lines] == [{EVIL: EVIL}, {EVIL: SHOWN_AS_IS}]
    assert json.loads(shown_by["document"]) == {EVIL: EVIL + SHOWN_AS_IS}


@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_a_file_gets_the_data(tmp_path: Path, file_format: str) -> None:
    batch = pa.record_batch([["\x9b\u202e"]], names=["\x9b"])
    with open_sink(str(tmp_path / "rows"), file_format, batch.schema) as sink:
        sink.write(batch)
    assert "\x9b\u202e" in (tmp_path / "rows").read_text()


def test_what_is_no_terminal_is_not_shielded() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    assert shield(stream) is stream


def test_escapes_are_those_of_json_from_del_on() -> None:
    assert printable("a\x1b\x7f\u202e\U000e0001") == r"a\x1b\u007f\u202e\udb40\udc01"
    assert printable("a\nb\tc\r", keep="\n\t") == "a\nb\tc\\x0d"
    assert printable("\ud800") == r"\ud800"


def test_nothing_in_the_command_line_writes_past_the_shield() -> None:
    """Consoles of rich and raw streams are made in few places; each is `unshielded` on purpose."""
    allowed = {"output.py", "terminal.py"}
    root = Path(quiverlog.cli.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            assert name not in ("__stdout__", "__stderr__"), path
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console":
                assert path.name in allowed, path
                assert "file" in {word.arg for word in node.keywords}, path
            if name == "unshielded":
                assert path.name in allowed, path
