"""The command line against a real broker process: topics, rows in, rows out, looking inside."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quiverlog
from quiverlog.cli import main
from quiverlog.cli.console.failures import ExitCode
from quiverlog.wire.messages import MetadataRequest
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.process

CSV = "id,name,price\n" + "".join(f"{i},name {i},{i}.50\n" for i in range(1000))
SCHEMA = "id long not null, name string, price decimal(10,2)"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def topic(request) -> str:
    return request.node.name.replace("[", "-").replace("]", "").replace("/", "-")


class Command:
    """`quiverlog ...` in this process, against the test's broker."""

    def __init__(self, broker: BrokerProcess, capfdbinary) -> None:
        self.broker = broker
        self._captured = capfdbinary

    def fails(self, *words: str) -> tuple[int, str]:
        code = main([*words, "--bootstrap-server", self.broker.bootstrap])
        captured = self._captured.readouterr()
        assert captured.out == b""
        return code, captured.err.decode()

    def bytes_of(self, *words: str) -> bytes:
        code = main([*words, "--bootstrap-server", self.broker.bootstrap])
        captured = self._captured.readouterr()
        assert code == 0, captured.err.decode()
        return captured.out

    def __call__(self, *words: str) -> str:
        return self.bytes_of(*words).decode()

    def json(self, *words: str):
        return json.loads(self(*words, "--format", "json"))

    def rows(self, topic: str, *words: str) -> list[dict]:
        lines = self("consume", "-t", topic, "--format", "json", *words).splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def cli(broker: BrokerProcess, capfdbinary) -> Command:
    return Command(broker, capfdbinary)


@pytest.fixture
def rows_csv(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    return path


def test_the_life_of_a_topic(cli: Command, topic: str):
    made = cli.json("topic", "create", topic, "--schema", SCHEMA, "-p", "3", "--key", "id",
                    "-c", "retention.ms=3600000")  # fmt: skip
    shape = {"partitions": 3, "replication_factor": 1, "durability": "flushed"}
    assert made == [{"name": topic, "created": True, **shape}]
    code, err = cli.fails("topic", "create", topic, "--schema", SCHEMA)
    assert (code, err.count("\n")) == (ExitCode.FAILED, 1)
    assert "TOPIC_EXISTS 23" in err
    assert (
        cli("topic", "create", topic, "--schema", SCHEMA, "--if-not-exists")
        == f"exists {topic}: 3 partitions, 1 replica, durability flushed\n"
    )

    (listed,) = [t for t in cli.json("topic", "list") if t["name"] == topic]
    assert (listed["partitions"], listed["key"], listed["durability"]) == (3, ["id"], "flushed")
    assert topic in cli("topic", "list")

    (described,) = cli.json("topic", "describe", topic)
    assert described["schemas"][0]["schema"] == SCHEMA
    assert described["configs"]["retention.ms"] == {"value": "3600000", "source": "topic"}
    assert [p["high_watermark"] for p in described["partitions"]] == [0, 0, 0]

    cli("topic", "alter", topic, "-p", "4", "-c", "segment.bytes=1048576", "-d", "retention.ms",
        "--schema", SCHEMA + ", more int")  # fmt: skip
    (described,) = cli.json("topic", "describe", topic)
    assert len(described["partitions"]) == 4
    assert described["configs"]["retention.ms"]["source"] == "default"
    assert described["configs"]["segment.bytes"]["value"] == "1048576"
    assert [s["schema"] for s in described["schemas"]] == [SCHEMA, SCHEMA + ", more int"]
    text = cli("topic", "describe", topic)
    assert "segment.bytes" in text
    assert "more" in text

    assert cli.json("topic", "delete", topic, "--yes") == [{"name": topic, "deleted": True}]
    assert cli("topic", "delete", topic, "--yes", "--if-exists") == f"no topic {topic}\n"
    code, err = cli.fails("topic", "describe", topic)
    assert code == ExitCode.FAILED
    assert "UNKNOWN_TOPIC 20" in err


def test_csv_in_and_every_format_out(cli: Command, topic: str, rows_csv: Path, tmp_path: Path):
    made = cli.json("produce", str(rows_csv), "-t", topic, "--create", "--schema", SCHEMA,
                    "-p", "2", "--key", "id")  # fmt: skip
    assert (made["rows"], len(made["partitions"])) == (1000, 2)
    assert {p["durability"] for p in made["partitions"]} == {"flushed"}
    assert sum(p["last_offset"] - p["first_offset"] + 1 for p in made["partitions"]) == 1000

    expected = [{"id": i, "name": f"name {i}", "price": f"{i}.50"} for i in range(1000)]
    assert sorted(cli.rows(topic), key=lambda row: row["id"]) == expected

    stream = pa.ipc.open_stream(
        io.BytesIO(cli.bytes_of("consume", "-t", topic, "--format", "arrow"))
    )
    assert sorted(stream.read_all()["id"].to_pylist()) == list(range(1000))

    cli("consume", "-t", topic, "-o", str(tmp_path / "out.parquet"))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 1000
    assert str(table.schema.field("price").type) == "decimal128(10, 2)"

    lines = cli("consume", "-t", topic, "--format", "csv").splitlines()
    assert lines[0] == '"id","name","price"'
    assert sorted(lines[1:]) == sorted(f'{i},"name {i}",{i}.50' for i in range(1000))

    head, *body = cli("consume", "-t", topic, "--max-rows", "3").splitlines()
    assert head.split() == ["id", "name", "price"]
    assert len(body) == 3


def test_a_file_of_one_topic_fills_another(
    cli: Command, topic: str, rows_csv: Path, tmp_path: Path
):
    cli("produce", str(rows_csv), "-t", topic, "--create")
    for suffix in ("parquet", "arrow", "json"):
        path, copy = str(tmp_path / f"rows.{suffix}"), f"{topic}-{suffix}"
        cli("consume", "-t", topic, "-o", path)
        cli("produce", path, "-t", copy, "--create")
        assert cli.rows(copy) == cli.rows(topic), suffix


def test_columns_partitions_limits_and_starts(cli: Command, topic: str, rows_csv: Path):
    cli("produce", str(rows_csv), "-t", topic, "--create", "-p", "2", "--partition", "1")
    only = cli.rows(topic, "--columns", "name,id", "--max-rows", "1", "--partition", "1")
    assert only == [{"name": "name 0", "id": 0}]
    assert cli.rows(topic, "--partition", "0") == []
    cli("produce", str(rows_csv), "-t", topic, "--partition", "0")
    trimmed = cli.json("topic", "trim", topic, "--before", "0=1000", "--yes")
    assert trimmed["log_start_offsets"] == {"0": 1000}
    cli("produce", str(rows_csv), "-t", topic, "--partition", "0")
    assert len(cli.rows(topic, "--partition", "0")) == 1000
    assert len(cli.rows(topic)) == 2000
    assert [row["id"] for row in cli.rows(topic, "--from", "1=990")] == list(range(990, 1000))
    assert cli.rows(topic, "--from", "latest") == []
    assert cli.rows(topic, "--from", "2100-01-01") == []
    assert len(cli.rows(topic, "--from", "2020-01-01T00:00:00Z")) == 2000
    assert len(cli.rows(topic, "--from", "0=1500,1=900")) == 600
    assert cli.rows(topic, "--max-rows", "0") == []

    row = cli.rows(topic, "--metadata", "--from", "1=999")[0]
    assert (row["_topic"], row["_partition"], row["_offset"]) == (topic, 1, 999)
    assert datetime.fromisoformat(row["_timestamp"]).year >= 2024

    code, err = cli.fails("consume", "-t", topic, "--columns", "nope")
    assert code == ExitCode.FAILED
    assert "'nope'" in err
    code, err = cli.fails("consume", "-t", topic, "--from", "1=5000")
    assert code == ExitCode.FAILED
    assert "OFFSET_OUT_OF_RANGE" in err
    code, err = cli.fails("consume", "-t", topic, "--from", "0=5")
    assert code == ExitCode.FAILED
    assert "1000 to 2000" in err


def test_trim(cli: Command, topic: str, rows_csv: Path):
    cli("produce", str(rows_csv), "-t", topic, "--create")
    trimmed = cli.json("topic", "trim", topic, "--before", "0=400", "--yes")
    assert trimmed["log_start_offsets"] == {"0": 400}
    assert cli.rows(topic)[0]["id"] == 400
    code, err = cli.fails("topic", "trim", topic, "--before", "7=1", "--yes")
    assert code == ExitCode.FAILED
    assert "no partition 7" in err
    cli("topic", "trim", topic, "--before", "latest", "--yes")
    assert cli.rows(topic) == []


def test_the_cluster_is_described(cli: Command, topic: str, rows_csv: Path):
    cli("produce", str(rows_csv), "-t", topic, "--create", "-p", "2")
    found = cli.json("cluster", "describe")
    assert [one["node_id"] for one in found["brokers"]] == [found["controller"]] == [0]
    assert found["partitions"] == found["brokers"][0]["leaders"] >= 2
    assert found["advice"] == []
    shown = cli("cluster", "describe")
    assert cli.broker.bootstrap in shown
    assert "leader" in shown


def test_elect(cli: Command, topic: str, rows_csv: Path):
    cli("produce", str(rows_csv), "-t", topic, "--create", "-p", "2")
    assert cli.json("topic", "elect", topic)["leaders"] == {"0": 0, "1": 0}
    unclean = cli.json("topic", "elect", topic, "--partition", "1", "--unclean", "--yes")
    assert unclean == {"name": topic, "leaders": {"1": 0}}
    assert "LEADER" in cli("topic", "elect", topic)
    code, err = cli.fails("topic", "elect", topic, "--partition", "7")
    assert code == ExitCode.FAILED
    assert "no partition 7" in err


def test_what_does_not_fit_is_refused_whole(cli: Command, topic: str, tmp_path: Path):
    cli("topic", "create", topic, "--schema", "id long, name string")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("id,name,extra\n1,a,b\n")
    code, err = cli.fails("produce", str(wrong), "-t", topic)
    assert code == ExitCode.FAILED
    assert "extra" in err
    assert cli.rows(topic) == []
    cli("produce", str(wrong), "-t", topic, "--columns", "id,name")
    assert cli.rows(topic) == [{"id": 1, "name": "a"}]
    code, err = cli.fails("produce", str(wrong), "-t", "no-such-topic")
    assert code == ExitCode.FAILED
    assert "--create" in err
    code, err = cli.fails("produce", str(tmp_path / "absent.csv"), "-t", topic)
    assert code == ExitCode.FAILED
    assert "absent.csv" in err


def test_a_file_that_breaks_off_is_reported_with_the_rows_before(
    cli: Command, topic: str, tmp_path: Path
):
    schema = pa.schema({"id": pa.int64()})
    path = tmp_path / "rows.arrow"
    with pa.ipc.new_stream(str(path), schema) as writer:
        for start in range(0, 3000, 1000):
            writer.write_batch(
                pa.record_batch([pa.array(range(start, start + 1000))], schema=schema)
            )
    path.write_bytes(path.read_bytes()[:-5000])
    code, err = cli.fails("produce", str(path), "-t", topic, "--create")
    assert code == ExitCode.FAILED
    assert "rows.arrow cannot be read as arrow" in err
    assert f"2,000 rows were stored in {topic} before that." in err
    assert [row["id"] for row in cli.rows(topic)] == list(range(2000))


def test_raw_lines(cli: Command, topic: str, tmp_path: Path):
    log = tmp_path / "app.log"
    log.write_bytes(b"one\ntwo\n")
    cli("produce", str(log), "-t", topic, "--create", "--schema", "raw", "--input-format", "lines")
    assert [row["value"] for row in cli.rows(topic)] == ["b25l", "dHdv"]


def test_a_reader_that_goes_away_is_no_error(broker: BrokerProcess, cli, topic, rows_csv: Path):
    cli("produce", str(rows_csv), "-t", topic, "--create")
    words = [sys.executable, "-m", "quiverlog", "consume", "-t", topic, "--format", "json"]
    with subprocess.Popen(
        [*words, "-b", broker.bootstrap, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        cli("produce", str(rows_csv), "-t", topic)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == b""


def test_follow_shows_rows_as_they_come_and_ends_with_130(
    broker: BrokerProcess, cli, topic, tmp_path: Path
):
    one = tmp_path / "one.json"
    one.write_text('{"id": 1}\n')
    cli("produce", str(one), "-t", topic, "--create")
    # A test run in the background ignores Ctrl-C, and so would its children.
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from quiverlog.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", script, "consume", "-t", topic, "--format", "json"]
    with subprocess.Popen(
        [*words, "-b", broker.bootstrap, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert next_line(process.stdout) == b'{"id":1}\n'
        cli("produce", str(one), "-t", topic)
        assert next_line(process.stdout) == b'{"id":1}\n'
        process.send_signal(2)
        assert process.wait(timeout=30) == ExitCode.INTERRUPTED
        assert process.stderr.read().strip() == b"quiverlog: interrupted"


def next_line(pipe: io.BufferedReader, timeout_s: float = 30.0) -> bytes:
    line, deadline = b"", time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no line in time, only {line!r}"
        byte = os.read(pipe.fileno(), 1)
        assert byte, f"the program ended after {line!r}"
        line += byte
    return line


@pytest.mark.parametrize("kind", ["produce", "latency"])
def test_perf_is_bounded_and_adds_up(cli: Command, topic: str, kind: str):
    result = cli.json("perf", kind, "-t", topic, "--rows", "50")
    assert result["rows"] == 50
    assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert cli.json("topic", "describe", topic)[0]["rows"] == 50
    read = cli.json("perf", "consume", "-t", topic)
    assert read["rows"] == 50
    assert read["rows_per_s"] > 0
    assert "p99_ms" in cli("perf", "consume", "-t", topic, "--rows", "10")


def test_perf_stops_in_time(cli: Command, topic: str):
    began = time.monotonic()
    result = cli.json("perf", "produce", "-t", topic, "--rows", "1000000000", "--duration", "0.3")
    assert 0 < result["rows"] < 1_000_000_000
    assert time.monotonic() - began < 60


def test_perf_leaves_topics_with_other_columns_alone(cli: Command, topic: str):
    cli("topic", "create", topic, "--schema", "id int")
    code, err = cli.fails("perf", "produce", "-t", topic)
    assert code == ExitCode.FAILED
    assert "other columns" in err


@pytest.mark.parametrize("kind", ["produce", "latency"])
@pytest.mark.parametrize(
    ("words", "truth"),
    [
        (("-r", "2"), "--replication-factor: topic {} exists and has 1."),
        (("--partitions", "2"), "--partitions: topic {} exists and has 3."),
        (("--config", "retention.ms=5"), "--config retention.ms: topic {} exists and has 900000."),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[0],
)
def test_perf_refuses_what_is_not_true_of_a_topic_that_is_there(
    cli: Command, topic: str, kind: str, words: tuple[str, ...], truth: str
):
    true = ("--partitions", "3", "-r", "1", "--config", "retention.ms=900000")
    cli("perf", kind, "-t", topic, "--rows", "5", *true)
    cli("perf", kind, "-t", topic, "--rows", "5", *true)
    code, err = cli.fails("perf", kind, "-t", topic, "--rows", "5", *words)
    assert code == ExitCode.USAGE
    assert truth.format(repr(topic)) in err
    assert cli.json("topic", "describe", topic)[0]["rows"] == 10


def test_dump_log_of_a_live_segment(
    cli: Command, broker: BrokerProcess, topic, rows_csv, capfdbinary
):
    cli("produce", str(rows_csv), "-t", topic, "--create")
    (path,) = (p for p in Path(broker.data_dir).rglob("*.log") if p.parent.name.startswith(topic))
    assert main(["dump-log", str(path), "--format", "json"]) == 0
    (dumped,) = json.loads(capfdbinary.readouterr().out)
    assert (dumped["rows"], dumped["problems"]) == (1000, [])
    assert all(batch["crc_ok"] for batch in dumped["batches"])


def test_doctor_tries_every_advertised_address(cli: Command):
    result = cli.json("doctor", "--no-spark")
    (found,) = [f for f in result["findings"] if f["check"] == "broker 0"]
    assert found["status"] == "ok"
    assert cli.broker.bootstrap in found["detail"]


def test_doctor_names_an_address_that_does_not_answer(capfd):
    with BrokerProcess(config={"advertise": "127.0.0.1:1"}) as broker:
        words = ["doctor", "--no-spark", "-b", broker.bootstrap, "--timeout", "2"]
        assert main([*words, "--format", "json"]) == ExitCode.PROBLEMS_FOUND
        findings = json.loads(capfd.readouterr().out)["findings"]
    (problem,) = [f for f in findings if f["status"] == "problem"]
    assert problem["check"] == "broker 0"
    assert "127.0.0.1:1" in problem["detail"]
    assert "advertise" in problem["advice"]


def test_a_producer_is_shown_by_its_id(cli: Command, topic: str, rows_csv: Path) -> None:
    cli("topic", "create", topic, "--schema", SCHEMA)
    cli("produce", "-t", topic, str(rows_csv))
    with quiverlog.connect(cli.broker.bootstrap) as client:
        number = client.raw_call(MetadataRequest(topics=[])).response.cluster_number
    ids = [number << 47 | count for count in range(64)]
    shown = [cli.json("cluster", "producer", str(one), "--topic", topic) for one in ids]
    (found,) = [one for one in shown if one["partitions"]]
    (partition,) = found["partitions"]
    assert partition.pop("idle_s") >= 0
    assert partition == {
        "topic": topic,
        "partition": 0,
        "leader": 0,
        "epoch": 0,
        "next_sequence": 1_000,
        "last_offset": 999,
    }
    text = cli("cluster", "producer", str(found["producer_id"]))
    assert text.startswith(f"Producer {found['producer_id']}, newest epoch 0.\n")
    assert " 999 " in text
    assert cli("cluster", "producer", str(2**40)) == (
        f"The cluster never assigned producer id {2**40}.\nNo leader has state of this producer.\n"
    )
