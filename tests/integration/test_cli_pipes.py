"""`produce` and `consume` as parts of a pipe: rows as they come, whole values, Ctrl-C, outages."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import quiverlog
from quiverlog.cli.console.failures import ExitCode
from tests.integration.test_cli_topics_and_rows import Command, next_line
from tests.support.broker import BrokerProcess
from tests.support.until import until

pytestmark = pytest.mark.process

# A test run in the background ignores Ctrl-C, and so would its children.
SCRIPT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from quiverlog.cli import main; sys.exit(main(sys.argv[1:]))"
)
PIPE = subprocess.PIPE


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def cli(broker: BrokerProcess, capfdbinary) -> Command:
    return Command(broker, capfdbinary)


@pytest.fixture
def topic(request) -> str:
    return request.node.name.replace("[", "-").replace("]", "").replace("/", "-")


@contextlib.contextmanager
def started(broker: BrokerProcess, *words: str, **streams) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SCRIPT, *words, "-b", broker.bootstrap]
    pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **streams}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()  # one that has ended is not there to be killed


@pytest.mark.parametrize("file_format", ["csv", "json", "lines"])
def test_rows_of_a_pipe_are_stored_while_it_is_open(broker, cli, topic, file_format):
    rows = {"csv": b"value\none\n", "json": b'{"value":"one"}\n', "lines": b"one\n"}[file_format]
    cli("topic", "create", topic, "--schema", "value string")
    with started(broker, "produce", "-", "-t", topic, "--input-format", file_format) as process:
        assert process.stdin is not None
        process.stdin.write(rows)
        process.stdin.flush()
        assert until(lambda: cli.rows(topic)) == [{"value": "one"}]
        process.stdin.write(rows[-16:] if file_format != "csv" else b"two\n")
        process.stdin.flush()
        until(lambda: len(cli.rows(topic)) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == ExitCode.INTERRUPTED
        assert process.stderr is not None
        printed = process.stderr.read().decode()
        assert (
            printed == f"quiverlog: interrupted: 2 rows are stored in {topic} and acknowledged.\n"
        )


def test_a_pipe_and_a_file_get_whole_values_and_a_terminal_if_it_asks(broker, cli, topic, tmp_path):
    long = "x" * 100
    source = tmp_path / "long.json"
    source.write_text(json.dumps({"a": long}) + "\n")
    cli("produce", str(source), "-t", topic, "--create")
    assert long in cli("consume", topic)
    cli("consume", topic, "-o", str(tmp_path / "out"), "--format", "table")
    assert long in (tmp_path / "out").read_text()
    for words, is_whole in (([], False), (["--wide"], True)):
        master, slave = pty.openpty()
        with started(broker, "consume", topic, *words, stdout=slave) as process:
            os.close(slave)
            shown = b""
            while b"\n" not in shown.partition(b"\n")[2]:
                shown += os.read(master, 4096)
            assert process.wait(timeout=30) == 0
        os.close(master)
        assert (long.encode() in shown) == is_whole


SUFFIXES = ["csv", "csv.gz", "tsv", "json.zst", "jsonl.bz2", "ndjson", "parquet", "arrow",
            "feather", "ipc.lz4", "arrows"]  # fmt: skip


def test_a_suffix_decides_the_format_both_ways(cli, topic, tmp_path):
    source = tmp_path / "rows.json"
    source.write_text("".join(json.dumps({"id": i, "name": f"n{i}"}) + "\n" for i in range(100)))
    cli("produce", str(source), "-t", topic, "--create")
    for suffix in SUFFIXES:
        path, copy = str(tmp_path / f"out.{suffix}"), f"{topic}-{suffix}"
        cli("consume", topic, "-o", path)
        cli("produce", path, "-t", copy, "--create")
        assert cli.rows(copy) == cli.rows(topic), suffix
    assert feather.read_table(tmp_path / "out.feather").num_rows == 100
    assert (tmp_path / "out.csv.gz").read_bytes().startswith(b"\x1f\x8b")
    code, err = cli.fails("consume", topic, "-o", str(tmp_path / "out.xml"))
    assert (code, ".xml is no suffix" in err) == (ExitCode.USAGE, True)
    assert not (tmp_path / "out.xml").exists()


def test_options_that_contradict_a_topic_are_refused(cli, topic, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,name\n1,a\n")
    words = ["produce", str(rows), "-t", topic]
    cli(*words, "--create", "-p", "2", "--key", "id")
    for option, has in (
        (["-p", "9"], "has 2"), (["--key", "name"], "has id"), (["-c", "retention.ms=5"], "has"),
        (["-c", "retention.mss=5"], "no such configuration"),
    ):  # fmt: skip
        for create in ([], ["--create"]):
            code, err = cli.fails(*words, *create, *option)
            assert (code, has in err) == (ExitCode.USAGE, True), err
    assert len(cli.rows(topic)) == 1
    cli(*words, "--create", "-p", "2", "--key", "id")
    assert len(cli.rows(topic)) == 2


@pytest.mark.parametrize("name", ["empty.csv", "empty.json", "empty", "-"])
def test_empty_input_is_no_rows(cli, broker, topic, tmp_path, name):
    path = str(tmp_path / name) if name != "-" else "-"
    if path != "-":
        Path(path).touch()
    topic = topic.replace(".", "_").rstrip("-")
    cli("topic", "create", topic, "--schema", "id long")
    for words in ([topic], [f"{topic}-new", "--create"]):
        with started(broker, "produce", path, "-t", *words) as process:
            out, err = process.communicate(b"", timeout=30)
            assert process.returncode == 0, err
            assert b"0 rows to" in out


def test_closed_streams_are_no_internal_error(cli, broker, topic):
    cli("topic", "create", topic, "--schema", "id long")
    where = f"-b {broker.bootstrap}"
    program = f"{sys.executable} -m quiverlog"
    for command, code in (
        (f"{program} produce - -t {topic} {where} <&-", 1),
        (f"{program} consume {topic} {where} >&-", 1),
        (f"{program} consume {topic} --format json {where} >&-", None),
        (f"{program} consume {topic} --format arrow {where} >&-", 1),
        (f"{program} consume {topic} --format parquet {where} >&-", 1),
        (f"{program} consume {topic} --format csv {where} > /dev/full", 1),
        (f"{program} consume {topic} --format parquet {where} > /dev/full", 1),
    ):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
        assert "internal error" not in done.stderr, (command, done.stderr)
        assert done.stderr.count("\n") <= 1, (command, done.stderr)
        assert code is None or done.returncode == code, (command, done.stderr)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv.gz"])
def test_ctrl_c_leaves_a_readable_file(cli, broker, topic, tmp_path, suffix):
    topic = topic.replace(".", "_")
    rows = tmp_path / "rows.json"
    rows.write_text('{"id": 1}\n{"id": 2}\n')
    cli("produce", str(rows), "-t", topic, "--create")
    path = tmp_path / f"out.{suffix}"
    words = ["-f", "-n", "1000000"] if suffix == "parquet" else ["-f"]
    with started(broker, "consume", topic, "-o", str(path), *words) as process:
        until(lambda: path.exists())
        cli("produce", str(rows), "-t", topic)
        until(lambda: len(cli.rows(topic)) == 4)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == ExitCode.INTERRUPTED
    if suffix == "parquet":
        assert set(pq.read_table(path)["id"].to_pylist()) <= {1, 2}
    elif suffix == "arrow":
        assert set(pa.ipc.open_file(path).read_all()["id"].to_pylist()) <= {1, 2}
    else:
        cli("produce", str(path), "-t", f"{topic}-again", "--create")


def test_where_tail_ranges_and_templates(cli, topic, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "id,city\n" + "".join(f"{i},{'Oslo' if i % 2 else 'Lima'}\n" for i in range(10))
    )
    cli(
        "produce",
        str(rows),
        "-t",
        topic,
        "--create",
        "-p",
        "2",
        "--partition",
        "0",
        "--key",
        "city",
    )
    cli("produce", str(rows), "-t", topic, "--partition", "1")

    assert [r["id"] for r in cli.rows(topic, "--tail", "3")] == [7, 8, 9]
    assert [r["id"] for r in cli.rows(topic, "--tail", "12")] == [8, 9, *range(10)]
    assert cli.rows(topic, "--tail", "0") == []
    assert len(cli.rows(topic, "--tail", "1000")) == 20
    assert len(cli.rows(topic, "--from", "-1h")) == 20
    assert cli.rows(topic, "--from", "2h ago", "--to", "-1h") == []
    assert len(cli.rows(topic, "--from", "8")) == 4
    assert [r["id"] for r in cli.rows(topic, "--from", "0=2", "--to", "4")] == [2, 3]
    assert [r["id"] for r in cli.rows(topic, "--from", "0=2", "--to", "0=4")] == [2, 3]
    assert len(cli.rows(topic, "--to", "1000000")) == 20
    code, _ = cli.fails("consume", topic, "--from", "11")
    assert code == ExitCode.FAILED

    found = cli.rows(topic, "--where", "city = 'Oslo' and _partition = 1 and id > 4 -- odd")
    assert [r["id"] for r in found] == [5, 7, 9]
    chosen = cli.rows(topic, "--where", "_offset = 3", "--columns", "city", "-n", "1")
    assert chosen == [{"city": "Oslo"}]
    for wrong in ("nope = 1", "id >", "city", "id", "sum(id) > 1"):
        code, err = cli.fails("consume", topic, "--where", wrong)
        assert (code, "--where" in err, err.count("\n")) == (ExitCode.USAGE, True, 1), (wrong, err)

    text = cli("consume", topic, "-n", "2", "--template", r"%t/%p@%o %k %{id}%% %s\t|")
    assert text.splitlines() == [
        f'{topic}/0@0 Lima 0% {{"id":0,"city":"Lima"}}\t|',
        f'{topic}/0@1 Oslo 1% {{"id":1,"city":"Oslo"}}\t|',
    ]
    assert cli("consume", topic, "--template", "%{_timestamp}").count("Z\n") == 20
    code, err = cli.fails("consume", topic, "--template", "%{nope}")
    assert (code, "'nope'" in err) == (ExitCode.USAGE, True)


def test_lines_come_back_as_text(cli, topic, tmp_path):
    log = tmp_path / "app.log"
    log.write_bytes(b"one\n\xff\x00 two\n\n")
    cli("produce", str(log), "-t", topic, "--create", "--schema", "raw", "--input-format", "lines")
    assert cli.bytes_of("consume", topic, "--format", "lines") == log.read_bytes()
    assert cli.bytes_of("consume", topic, "--template", "%s") == log.read_bytes()


def test_following_outlives_an_outage_and_reports_it(tmp_path):
    rows = tmp_path / "rows.json"
    with BrokerProcess() as broker:
        words = [sys.executable, "-m", "quiverlog", "produce", str(rows), "-t", "t", "--create"]
        produce = [*words, "-q", "-b", broker.bootstrap]
        rows.write_text('{"id":1}\n')
        subprocess.run(produce, check=True, stdout=PIPE, timeout=60)
        with started(broker, "consume", "t", "-f", "--format", "json") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert next_line(process.stdout) == b'{"id":1}\n'
            broker.kill()
            assert next_line(process.stderr, 60).endswith(b": trying again.\n")
            broker.start()
            assert b"reading on" in next_line(process.stderr, 60)
            rows.write_text('{"id":2}\n')
            subprocess.run(produce, check=True, stdout=PIPE, timeout=60)
            assert next_line(process.stdout) == b'{"id":2}\n'
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == ExitCode.INTERRUPTED


@pytest.mark.parametrize("outage", [signal.SIGKILL, signal.SIGSTOP])
def test_following_prints_what_it_waits_for_before_a_request_is_given_up(outage):
    patient = SCRIPT.replace(
        "from quiverlog.cli import main;",
        "from quiverlog.cli.rows import consume; from quiverlog.cli import main; "
        "consume._FOLLOW_REQUEST_TIMEOUT_S = 600.0;",
    )
    with BrokerProcess() as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", "id long")
        with client.producer("t") as producer:
            producer.send([{"id": 1}])
        command = [sys.executable, "-c", patient, "consume", "t", "-f", "--format", "json"]
        command += ["-b", broker.bootstrap]
        with subprocess.Popen(command, stdout=PIPE, stderr=PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                assert next_line(process.stdout, 60) == b'{"id":1}\n'
                os.kill(broker.pid, outage)
                printed = next_line(process.stderr, 60).decode()
                if outage == signal.SIGSTOP:
                    awaited = f"an answer of {broker.bootstrap} (FETCH)"
                    assert printed == f"quiverlog: waiting for {awaited}.\n"
                    os.kill(broker.pid, signal.SIGCONT)
                else:
                    assert printed.endswith(": trying again.\n"), printed
                    broker.kill()  # which looks after what is dead, too
                    broker.start()
                assert b"reading on" in next_line(process.stderr, 60)
            finally:
                process.kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(broker.pid, signal.SIGCONT)


def test_a_description_fits_a_terminal(cli, topic):
    cli("topic", "create", topic, "--schema", "id long, name string", "-p", "12")
    for line in cli("topic", "describe", topic).splitlines():
        assert len(line) <= 80, line


def test_the_port_for_metrics_is_refused_with_the_other_one(cli, broker):
    command = [sys.executable, "-m", "quiverlog", "topic", "list", "-b", broker.http]
    command += ["--timeout", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "9292" in done.stderr) == (ExitCode.UNREACHABLE, True), done
