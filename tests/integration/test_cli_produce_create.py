"""`produce --create`: a topic is made for rows that are ready to be sent, and not before."""

from __future__ import annotations

import fcntl
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiverlog.cli.console.failures import ExitCode
from tests.integration.test_cli_pipes import started
from tests.integration.test_cli_topics_and_rows import Command
from tests.support.broker import BrokerProcess
from tests.support.until import until

pytestmark = pytest.mark.process

NO_FIRST_BATCH = {
    "a value of another type": ("csv", "id\nx\n", ["--schema", "id long"]),
    "a value that is parsed late": ("csv", "d\na\n", ["--schema", "d map<string,long>"]),
    "no value where one must be": (
        "csv", "id,name\n,a\n", ["--schema", "id long not null, name string"]
    ),
    "a column of no topic": ("csv", "id,name\n1,a\n", ["--schema", "id long"]),
    "JSON of another type": ("json", '{"id":1}\n{"id":"x"}\n', ["--schema", "id long"]),
    "JSON that breaks off": ("json", '{"id":', ["--schema", "id long"]),
    "no such partition": ("csv", "id\n1\n", ["--partition", "1"]),
    "no copy to wait for": ("csv", "id\n1\n", ["--durability", "replicated"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def cli(broker: BrokerProcess, capfdbinary) -> Command:
    return Command(broker, capfdbinary)


def topics(cli: Command) -> set[str]:
    return {topic["name"] for topic in cli.json("topic", "list")}


@pytest.mark.parametrize("case", NO_FIRST_BATCH)
def test_what_has_no_first_batch_leaves_no_topic(cli: Command, tmp_path: Path, case: str) -> None:
    suffix, text, options = NO_FIRST_BATCH[case]
    path = tmp_path / f"rows.{suffix}"
    path.write_text(text)
    topic = f"none-{list(NO_FIRST_BATCH).index(case)}"
    code, err = cli.fails("produce", str(path), "-t", topic, "--create", *options)
    assert (code in (ExitCode.FAILED, ExitCode.USAGE), err.count("\n")) == (True, 1), err
    assert topic not in topics(cli), err


def test_columns_without_rows_still_make_a_topic(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,name\n")
    assert cli.json("produce", str(path), "-t", "columns", "--create")["rows"] == 0
    assert "columns" in topics(cli)
    path.write_text("")
    assert cli.json("produce", str(path), "-t", "nothing", "--create")["rows"] == 0
    assert "nothing" not in topics(cli)


def test_a_tab_may_be_written_as_shells_leave_it(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\tname\n1\ta,b\n")
    assert (
        cli.json("produce", str(path), "-t", "tab", "--create", "--delimiter", "\\t")["rows"] == 1
    )
    assert cli.rows("tab") == [{"id": 1, "name": "a,b"}]


def test_types_that_a_topic_has_not_are_those_that_it_is_given(
    cli: Command, tmp_path: Path
) -> None:
    """Rows are looked at in the columns of the topic to be, not in those of the file."""
    columns = {"n": pa.array([1, 2], pa.int16()), "name": pa.array(["a", "b"], pa.large_string())}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    words = ("produce", str(tmp_path / "rows.parquet"), "-t", "odd", "--create")
    assert cli.json(*words)["rows"] == 2
    assert cli.rows("odd") == [{"n": 1, "name": "a"}, {"n": 2, "name": "b"}]


def test_a_new_topic_without_rows_is_reported(cli: Command, tmp_path: Path) -> None:
    """Only the broker can see that the row is too large for the topic: it is there by then."""
    path = tmp_path / "rows.csv"
    path.write_text(f"name\n{'x' * 5_000}\n")
    limit = ("--config", "max.message.bytes=1024")
    code, err = cli.fails("produce", str(path), "-t", "left", "--create", *limit)
    assert (code, "left" in topics(cli)) == (ExitCode.FAILED, True)
    assert err.endswith("The new topic is empty: `quiverlog topic delete left` removes it.\n")
    code, err = cli.fails("produce", str(path), "-t", "left", "--create", *limit)
    assert (code, "removes it" in err) == (ExitCode.FAILED, False)


def test_ctrl_c_before_the_first_row_leaves_no_topic(broker: BrokerProcess, cli: Command) -> None:
    words = ("produce", "-", "-t", "early", "--input-format", "lines")
    with started(broker, *words, "--create", "--schema", "raw", "-q") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"half a line")
        process.stdin.flush()
        until(lambda: is_read(process.stdin))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == ExitCode.INTERRUPTED
        printed = process.stderr.read().decode()
    assert (
        printed == "quiverlog: interrupted: no row was sent, and topic 'early' was not created.\n"
    )
    assert "early" not in topics(cli)


def is_read(pipe: IO[bytes] | None) -> bool:
    """Whether the other side has taken all that was written."""
    assert pipe is not None
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) == 0
