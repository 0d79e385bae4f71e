"""docs/backup.md: what was copied comes back, by the page's own commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
from tests.support.broker import BrokerProcess
from tests.support.pages import ROOT, blocks, typed

pytestmark = pytest.mark.process
PAGE = ROOT / "docs" / "backup.md"
COPY, RESTORE, TOPIC = [
    b.text.replace("examples/", f"{ROOT}/examples/")
    for b in blocks(PAGE, "sh")
    if b.why_not is None
]
NOWHERE = "127.0.0.1:1"
SCHEMA = pa.schema(
    [
        pa.field("city", pa.string(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("stops", pa.list_(pa.struct([pa.field("name", pa.string())]))),
        pa.field("length", pa.duration("us")),
        pa.field("opens", pa.time64("ns")),
        pa.field("bytes", pa.binary()),
    ]
)


def send(client: quiverlog.Client, first: int, count: int) -> None:
    with client.producer("trips") as producer:
        producer.send([{"n": n} for n in range(first, first + count)]).result(timeout=30)


def numbers(client: quiverlog.Client) -> list[int]:
    found: list[int] = client.read("trips").to_arrow().column("n").to_pylist()
    return found


@pytest.mark.parametrize("is_orderly", [True, False], ids=["stopped", "snapshot"])
def test_one_broker_comes_back_as_it_was_copied(is_orderly: bool, tmp_path: Path) -> None:
    """A snapshot of the disk is what a killed broker leaves."""
    with BrokerProcess(data_dir=tmp_path / "quiverlog-data") as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("trips", "n long")
            send(client, 0, 100)
        assert (broker.stop() == 0) if is_orderly else (broker.kill() is None)
        typed(COPY, tmp_path, NOWHERE)
        broker.start()
        with quiverlog.connect(broker.bootstrap) as client:
            send(client, 100, 100)
            assert numbers(client) == list(range(200))
        broker.stop()
        typed(RESTORE, tmp_path, NOWHERE)
        broker.start()
        with quiverlog.connect(broker.bootstrap) as client:
            assert numbers(client) == list(range(100))
            send(client, 500, 1)
            assert numbers(client) == [*range(100), 500]
            consumer = client.consumer("trips", start={0: 150}, follow=True)
            with pytest.raises(quiverlog.OffsetOutOfRange):
                consumer.poll()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[quiverlog.Client]:
    with BrokerProcess() as broker, quiverlog.connect(broker.bootstrap) as connected:
        yield connected


Seen = dict[tuple[int, int], tuple[dict[str, object], int]]


def seen(client: quiverlog.Client, topic: str) -> Seen:
    """Place to row and time."""
    place = ["_partition", "_offset", "_timestamp"]
    table = client.read(topic, columns=[*SCHEMA.names, *place]).to_arrow()
    times = table.column("_timestamp").cast(pa.int64()).to_pylist()
    places = zip(*(table.column(name).to_pylist() for name in place[:2]), strict=True)
    rows = table.select(SCHEMA.names).to_pylist()
    return {at: (row, time) for at, row, time in zip(places, rows, times, strict=True)}


def test_a_topic_goes_to_parquet_and_back(client: quiverlog.Client, tmp_path: Path) -> None:
    """Columns, keys, settings, order and times are kept; offsets begin at 0, and are printed."""
    settings: dict[str, str | int] = {"retention.ms": 3_600_000, "durability": "memory"}
    settings |= {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": 1}
    client.create_topic("trips", SCHEMA, partitions=3, key=["city"], config=settings)
    with client.producer("trips") as producer:
        for n in range(40):
            producer.send({"city": f"city {n % 7}", "stops": [{"name": str(n)}], "opens": None})
            if n % 10 == 0:
                producer.flush()
    ends = client.list_offsets("trips")
    gone = {partition: 3 for partition, end in ends.items() if end and end > 3}
    client.delete_records("trips", gone)
    before = seen(client, "trips")

    bootstrap = ",".join(f"{b.host}:{b.port}" for b in client.metadata().brokers.values())
    printed = typed(TOPIC, tmp_path, bootstrap)
    after = seen(client, "trips-again")
    assert {(p, o - gone.get(p, 0)): row for (p, o), row in before.items()} == after
    for partition in gone:
        line = f"partition {partition}: offsets 3 to {ends[partition] - 1} begin at 0 now\n"
        assert line in printed
    old, new = client.describe_topic("trips"), client.describe_topic("trips-again")
    assert new.schema == old.schema
    assert new.key_columns == ("city",)
    assert {k: v.value for k, v in new.configs.items()} == {
        k: v.value for k, v in old.configs.items()
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "Save a topic as one Parquet file"),
        ("keep trips trips.parquet", "Save a topic as one Parquet file"),
        ("save trips trips.parquet " + NOWHERE, "topic_backup: Cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(
    words: str, reason: str, tmp_path: Path
) -> None:
    script = f"python {ROOT}/examples/topic_backup.py {words} 2>&1 || true"
    printed = typed(script, tmp_path, NOWHERE)
    assert printed.startswith(reason)
    assert "Traceback" not in printed
