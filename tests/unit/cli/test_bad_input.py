"""Files, numbers and streams that a person gives to a command: one line, and 1 or 2."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiverlog.batch.schema_text import format_type
from quiverlog.cli import main
from quiverlog.cli.console import streams
from quiverlog.cli.console.failures import CommandFailed, ExitCode, report
from quiverlog.cli.console.output import print_fields, print_json, print_table
from quiverlog.cli.console.streams import prepare_streams
from quiverlog.cli.formats.read_files import open_source
from quiverlog.cli.formats.write_files import open_sink
from quiverlog.cli.rows.read_range import parse_point
from tests.support.scripted_broker import ScriptedBroker

NOISE = random.Random(7).randbytes(3_000)
TOO_LARGE = "9" * 30
NO_BROKER = "127.0.0.1:1"  # no broker may listen on a port this low

BAD_FILES = {
    "half.json": b'{"a":',
    "deep.json": b"[" * 100_000,
    "list.json": b"[1, 2]",
    "fields.json": b'{"fields": [{"name": "a"}]}',
    "names.json": b'{"fields": [5]}',
    "types.json": b'{"fields": [{"name": 5, "type": "int"}]}',
    "utf16.json": b"\xff\xfe\x00",
    "utf16.sql": b"\xff\xfe\x00",
    "surrogate.json": b'{"\\ud800": "int"}',
    "noise.parquet": NOISE,
    "noise.arrow": NOISE,
    "noise.sql": NOISE,
    "empty.parquet": b"",
    "empty.arrow": b"",
    "empty.json": b"",
    "empty.sql": b"",
    "magic.parquet": b"PAR1" + NOISE + b"PAR1",
    "magic.arrow": b"ARROW1\0\0" + NOISE + b"ARROW1",
    "long.sql": b"x int, " * 100_000,
}


def with_damaged_footer() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), out)
    whole = bytearray(out.getvalue())
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    whole[start : start + 8] = b"\xff" * 8
    return bytes(whole)


BAD_FILES["footer.parquet"] = with_damaged_footer()


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_schema_file_that_cannot_be_read(capsys, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD_FILES[name])
    words = ["topic", "create", "t", "--schema-file", str(path), "-b", NO_BROKER, "--timeout", "1"]
    code = main(words)
    error = capsys.readouterr().err
    assert code in (ExitCode.FAILED, ExitCode.USAGE), error
    assert error.count("\n") == 1
    assert name in error or "--schema-file" in error


def test_a_schema_file_without_end_is_not_read_to_its_end(capsys):
    code = main(["topic", "create", "t", "--schema-file", "/dev/zero", "-b", NO_BROKER])
    assert code in (ExitCode.FAILED, ExitCode.USAGE)
    assert "at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list", "-b", ""],
        ["topic", "list", "-b", ",,"],
        ["topic", "list", "-b", "127.0.0.1:99999"],
        ["topic", "list", "-b", "[::1"],
        ["topic", "list", "--timeout", "nan"],
        ["topic", "list", "--timeout", "inf"],
        ["topic", "list", "--timeout", "-inf"],
        ["topic", "list", "--timeout", "1e308"],
        ["perf", "produce", "--duration", "nan"],
        ["perf", "produce", "--rows", TOO_LARGE],
        ["perf", "produce", "--partitions", TOO_LARGE],
        ["perf", "consume", "--rows", TOO_LARGE],
        ["topic", "create", "t", "--schema", "x int", "-p", TOO_LARGE],
        ["topic", "create", "t", "--schema", "x int", "-p", "9" * 5_000],
        ["topic", "create", "t", "--schema", "x int", "-r", TOO_LARGE],
        ["topic", "alter", "t", "-p", TOO_LARGE],
        ["topic", "trim", "t", "-y", "--before", TOO_LARGE],
        ["topic", "trim", "t", "-y", "--before", f"0={TOO_LARGE}"],
        ["topic", "trim", "t", "-y", "--before", f"{TOO_LARGE}=0"],
        ["topic", "trim", "t", "-y", "--before", "9" * 5_000],
        ["consume", "-t", "t", "-n", TOO_LARGE],
        ["consume", "-t", "t", "--partition", TOO_LARGE],
        ["consume", "-t", "t", "--from", f"0={TOO_LARGE}"],
        ["consume", "-t", "t", "--from", f"{TOO_LARGE}=0"],
        ["produce", "-t", "t", "--partition", TOO_LARGE, __file__],
        *(
            ["produce", "-t", "t", "rows.csv", "--delimiter", bad]
            for bad in ("", ",,", "é", '"', "\n")
        ),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_a_value_that_makes_no_sense_is_2(capsys, words):
    if "-b" not in words:
        words = [*words, "-b", NO_BROKER]
    code = main(words)
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (ExitCode.USAGE, 1), error


def test_the_largest_numbers_are_taken():
    assert parse_point(f"{2**31 - 1}={2**63 - 1}", "--from") == {2**31 - 1: 2**63 - 1}


@pytest.fixture
def broker_address() -> Iterator[str]:
    with ScriptedBroker() as broker:
        yield broker.bootstrap


PROGRAM = "import sys; from quiverlog.cli import main; sys.exit(main(sys.argv[1:]))"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command.replace("QUIVERLOG", f'{sys.executable} -c "{PROGRAM}"')],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("command", ["dump-log --format json NONE", "completion bash", "--help"])
def test_a_closed_stdout_is_one_line_and_1(tmp_path, command):
    empty = tmp_path / "00000000000000000000.log"
    empty.touch()
    done = shell(f"QUIVERLOG {command.replace('NONE', str(empty))} >&-")
    assert done.returncode == ExitCode.FAILED, done.stderr
    assert "standard output is closed" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
@pytest.mark.parametrize("command", ["completion bash", "--help", "--version"])
def test_a_full_disk_behind_stdout_is_one_line_and_1(command):
    done = shell(f"QUIVERLOG {command} > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.FAILED, 1), done.stderr


def test_a_closed_stderr_does_not_put_errors_into_the_output():
    done = shell("QUIVERLOG topic nosuch 2>&-")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")


@pytest.mark.parametrize("file_format", ["auto", "csv", "json", "lines", "arrow", "parquet"])
def test_a_closed_stdin_is_no_empty_file(monkeypatch, file_format):
    """As Python gives it to a command; what `<&-` makes of a pipe that was meant."""
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("sys.stdout", sys.stdout)
    monkeypatch.setattr("sys.stderr", sys.stderr)
    monkeypatch.setattr(streams, "_kept", kept := [])
    prepare_streams()
    with (
        pytest.raises(CommandFailed, match=r"stdin cannot be read .*: standard input is closed"),
        open_source("-", file_format) as source,
    ):
        list(source.batches)
    for one in kept:
        one.close()


def test_a_closed_stdin_is_no_empty_query(broker_address):
    done = shell(f"QUIVERLOG sql -b {broker_address} <&-")
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, ""), done.stderr
    assert "standard input is closed" in done.stderr


def test_a_question_with_a_closed_stdin_is_an_error():
    done = shell(f"QUIVERLOG topic delete t -b {NO_BROKER} <&-")
    assert (done.returncode, "--yes" in done.stderr) == (ExitCode.USAGE, True), done.stderr


def test_a_terminal_that_lacks_characters_gets_escapes():
    program = (
        "from quiverlog.cli.console.streams import prepare_streams; prepare_streams();"
        "from quiverlog.cli.console.output import *;"
        "print_fields({'a': 'gr\\xfc\\xdfe'}); print_table(['\\xfc'], [['\\u4e00\\ud800']]);"
        "print_json({'\\xfc': 1})"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert r"gr\xfc\xdfe" in done.stdout
    assert r'"\u00fc": 1' in done.stdout, "JSON stays JSON"


ESCAPE = "\x1b[31mred"


def test_names_cannot_steer_a_terminal(capsysbinary):
    """Column names are a stranger's: any client that may create a topic chooses them."""
    schema = pa.schema([pa.field(ESCAPE, pa.struct([(ESCAPE, pa.int64())]))])
    print_table([ESCAPE], [[ESCAPE]])
    print_fields({"field": ESCAPE})
    print_table(["TYPE"], [[format_type(schema.field(0).type)]])
    with open_sink("-", "table", schema) as sink:
        sink.write(pa.record_batch([pa.array([{ESCAPE: 1}], schema.field(0).type)], schema=schema))
    with open_sink("-", "table", schema):
        pass  # no rows: the head alone
    report(CommandFailed(f"there is no column {ESCAPE}"))
    out, err = capsysbinary.readouterr()
    assert b"\x1b" not in out + err
    assert out.count(b"\\x1b[31mred") >= 6
    assert b"\\x1b[31mred" in err


def test_json_keeps_its_letters_where_they_can_be_shown(capsys):
    print_json({"ü": 1})
    assert '"ü": 1' in capsys.readouterr().out
