"""What the command line prints for values that do not fit, and what it never overwrites."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import quiverlog
from quiverlog.batch.codec import encode_batch
from quiverlog.cli import main
from quiverlog.cli.formats import output_file
from tests.support.broker import BrokerProcess
from tests.unit.client.rows.test_values import LATIN1, decimals, texts

pytestmark = pytest.mark.process

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[quiverlog.Client]:
    with quiverlog.connect(broker.bootstrap) as client:
        yield client


@pytest.fixture
def cli(broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """`quiverlog ...`: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "-b", broker.bootstrap])
        captured = capfdbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return run


def rows_of(client: quiverlog.Client, topic: str) -> int:
    return sum(offset or 0 for offset in client.list_offsets(topic).values())


def store(client: quiverlog.Client, topic: str, column: pa.Array) -> None:
    """As a client that looks at no value stored it."""
    schema = pa.schema([("id", pa.int64()), ("a", column.type)])
    client.create_topic(topic, schema)
    rows = pa.record_batch([pa.array(range(len(column))), column], schema=schema)
    client.raw_produce(topic, {0: [encode_batch(rows, schema_id=1, timestamp_us=1)]})


ROWS = 70_000
"""More than a reader of files gives at once."""


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "arrows"])
@pytest.mark.parametrize(
    ("kind", "shown"), [("text", "M\\xfcller"), ("decimal", "123.45")], ids=["text", "decimal"]
)
def test_a_file_with_values_that_its_types_do_not_hold_is_refused(
    client, cli: Cli, tmp_path: Path, suffix: str, kind: str, shown: str
) -> None:
    topic = f"refused-{suffix}-{kind}"
    if kind == "text":
        column = texts(*[b"good"] * ROWS, LATIN1)
    else:
        column = decimals(*[1] * ROWS, 12345, precision=4, scale=2)
    path = tmp_path / f"rows.{suffix}"
    table = pa.table({"id": pa.array(range(ROWS + 1)), "a": column})
    if suffix == "parquet":
        pq.write_table(table, path, store_decimal_as_integer=False)
    elif suffix == "arrow":
        feather.write_feather(table, path, compression="uncompressed", chunksize=10_000)
    else:
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=10_000)
    client.create_topic(topic, table.schema)
    code, _, err = cli("produce", str(path), "-t", topic, "-q")
    assert code == 1
    assert "column 'a'" in err.lower()
    assert f"row {ROWS} of the file" in err
    assert shown in err
    assert "INVALID_VALUE" in err
    assert rows_of(client, topic) < ROWS + 1


def test_rows_that_cannot_be_read_are_named_and_stepped_over(client, cli: Cli, caplog) -> None:
    store(client, "stored", texts(b"ok", LATIN1, b"ok"))
    code, out, err = cli("consume", "stored", "--format", "json")
    assert (code, out) == (1, "")
    for printed in ("stored-0", "column 'a'", "offset 1", "M\\xfcller", "CORRUPT_BATCH"):
        assert printed in err
    code, out, err = cli("consume", "stored", "--columns", "id", "--format", "lines")
    assert code == 1, "numbers are no lines"
    code, out, err = cli("consume", "stored", "--columns", "id", "--format", "json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [0, 1, 2]
    code, out, err = cli("consume", "stored", "--skip-corrupt", "--format", "json")
    assert (code, out) == (0, "")
    assert "stored-0" in caplog.text  # a program's own handler; without one it goes to stderr
    code, out, err = cli("consume", "stored", "--from", "2", "--format", "json")
    assert (code, out) == (0, '{"id":2,"a":"ok"}\n')
    code, out, err = cli("sql", "select id from stored where a = 'ok'")
    assert code == 1
    assert "column 'a'" in err
    assert "offset 1" in err


def test_maps_with_a_key_twice_are_named_by_sql_and_where(client, cli: Cli) -> None:
    rows = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    store(client, "maps", rows)
    code, out, err = cli("consume", "maps", "--format", "json")
    assert (code, out) == (0, '{"id":0,"a":[["a",1],["a",2]]}\n')
    for words in (("sql", "select * from maps"), ("consume", "maps", "--where", "a is not null")):
        code, _, err = cli(*words)
        assert code == 1, err
        assert "Column 'a'" in err
        assert "same key twice" in err


# --- files that are written -----------------------------------------------------------------------
@pytest.fixture
def rows(client, request) -> str:
    """A topic with two rows."""
    name = re.sub("[^a-z0-9]", "-", request.node.name)
    client.create_topic(name, "id long")
    with client.producer(name) as producer:
        producer.send([{"id": 1}, {"id": 2}])
    return name


KEPT = b"the only copy"


@pytest.mark.parametrize("command", ["consume", "template", "sql"])
@pytest.mark.parametrize("name", ["rows.csv", "rows.json.gz", "rows.parquet"])
def test_a_file_that_is_there_is_not_written_over(
    cli: Cli, rows: str, tmp_path: Path, command: str, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(KEPT)
    words = {
        "consume": ["consume", rows],
        "template": ["consume", rows, "--template", "%s\\n"],
        "sql": ["sql", f'select id from "{rows}"'],
    }[command]
    code, _, err = cli(*words, "-o", str(path))
    assert (code, path.read_bytes()) == (1, KEPT)
    assert f"{path} is there already" in err
    assert "--force" in err
    link = tmp_path / f"link-{name}"
    link.symlink_to(path)
    assert cli(*words, "-o", str(link))[0] == 1
    assert path.read_bytes() == KEPT
    code, _, err = cli(*words, "-o", str(path), "--force")
    assert code == 0, err
    assert path.read_bytes() != KEPT
    path.write_bytes(b"")
    assert cli(*words, "-o", str(path))[0] == 0, "nothing is lost of an empty file"
    assert path.read_bytes()


@pytest.mark.parametrize(
    "offset", ["start", "end", "beginning", "stored", "0", "-2", "+5", "@0:10", "s@1700000000000"]
)
@pytest.mark.parametrize("words", [[], ["--format", "json"], ["--template", "%s"]], ids=len)
def test_an_offset_is_no_name_of_a_file(
    cli: Cli, rows: str, tmp_path: Path, monkeypatch, offset: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("consume", rows, f"--output={offset}", *words)
    assert (code, out) == (2, "")
    assert "--from" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "command", "name"),
    [
        ([], "consume", "/dev/stdout"),
        ([], "sql", "/proc/self/fd/1"),
        (["--format", "parquet"], "consume", "/dev/fd/1"),
        (["--format", "parquet"], "sql", "/dev/stdout"),
    ],
)
def test_what_the_shell_has_opened_is_written_to_as_it_is(
    broker: BrokerProcess, rows: str, tmp_path: Path, command: str, name: str, words: list[str]
) -> None:
    """Where it appends to a file, what the file has stays."""
    asked = ["consume", rows] if command == "consume" else ["sql", f'select id from "{rows}"']
    path = tmp_path / "rows"
    path.write_bytes(KEPT)
    with open(path, "ab") as file:
        line = [sys.executable, "-m", "quiverlog", *asked, "-o", name, *words]
        done = subprocess.run(
            [*line, "-b", broker.bootstrap], stdout=file, stderr=subprocess.PIPE, timeout=120
        )
    assert (done.returncode, done.stderr) == (0, b"")
    written = path.read_bytes()
    assert written.startswith(KEPT)
    assert written.endswith(b"PAR1" if words else b"2\n")


def test_a_descriptor_that_is_not_open_is_named(cli: Cli, rows: str) -> None:
    code, _, err = cli("consume", rows, "-o", "/dev/fd/987654321")
    assert (code, err) == (1, "quiverlog: /dev/fd/987654321: Bad file descriptor\n")
    assert cli("consume", rows, "-o", "/dev/null", "--format", "csv")[0] == 0


def test_a_name_without_a_suffix_needs_a_format(
    cli: Cli, rows: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["consume", rows], ["sql", f'select id from "{rows}"']):
        for name in ("data", "data.gz"):
            code, _, err = cli(*words, "-o", name)
            assert code == 2
            assert "no suffix of a format" in err
        assert list(tmp_path.iterdir()) == []
    assert ("--from" in cli("consume", rows, "-o", "data")[2]) is True
    assert cli("consume", rows, "-o", "data", "--format", "json")[0] == 0
    assert (tmp_path / "data").read_bytes() == b'{"id":1}\n{"id":2}\n'
    assert cli("consume", rows, "-o", "/dev/null")[0] == 0


def test_a_file_that_comes_meanwhile_is_kept(cli: Cli, rows: str, tmp_path, monkeypatch) -> None:
    path = tmp_path / "rows.csv"
    real = output_file.check_free

    def looked(output: str, *, force: bool) -> None:
        real(output, force=force)
        path.write_bytes(KEPT)

    monkeypatch.setattr("quiverlog.cli.rows.consume.check_free", looked)
    code, _, err = cli("consume", rows, "-o", str(path))
    assert (code, path.read_bytes()) == (1, KEPT)
    assert "is there already" in err


def test_the_demo_keeps_earlier_pictures(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    drawn: list[str] = []
    monkeypatch.setattr("quiverlog_demo.run.run_demo", lambda o: drawn.append(str(o.plot)) or 0)
    Path("delays.png").write_bytes(KEPT)
    assert main(["demo"]) == 0
    assert main(["demo", "--force"]) == 0
    assert drawn == ["delays-2.png", "delays.png"]
    assert main(["demo", "--plot", "delays.png"]) == 1
    assert "is there already" in capfd.readouterr().err
    assert len(drawn) == 2
