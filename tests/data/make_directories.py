"""Makes the kept data directories: `python make_directories.py OUT --commit ID`, in a checkout.

Runs the broker of the checkout in the current directory (which must be on PYTHONPATH, with
`broker` and `connector`), has its own client write topics of every kind, and ends it once in
order and once with SIGKILL under load. Each directory becomes `<name>.tar.xz`. `manifest.json` in
it holds what the same checkout's client then reads from a copy of the directory: every row with
its offset, settings, schemas, and the last batches of idempotent producers, to be sent again.

Owns what the kept directories hold. Used by tests/integration/test_kept_directories.py to read.
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import json
import shutil
import sys
import tarfile
import tempfile
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import quiverlog
from quiverlog.errors import QuiverlogError
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient, make_batch

FOR_EVER = {"retention.ms": -1}
SMALL = {**FOR_EVER, "segment.bytes": 65536}
ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
LONG_NAME = "n" * 249

EVERY_TYPE = pa.schema(
    [
        ("flag", pa.bool_()),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("whole", pa.int32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("span", pa.duration("us")),
        ("price", pa.decimal128(12, 2)),
        ("list", pa.list_(pa.int32())),
        ("record", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("nothing", pa.null()),
    ]
)


def every_type(number: int) -> dict[str, Any]:
    """A row with a value, or a null, in each column."""
    if number % 5 == 4:
        return dict.fromkeys(EVERY_TYPE.names)
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number)
    return {
        "flag": number % 2 == 0,
        "byte": number,
        "short": -number,
        "whole": number * 1000,
        "real": number / 2,
        "double": number / 3,
        "text": f"row {number} é",
        "bytes": bytes([number, 0, 255]),
        "day": moment.date(),
        "moment": moment,
        "local": moment.replace(tzinfo=None),
        "span": dt.timedelta(microseconds=number),
        "price": Decimal(number) / 4,
        "list": [number, None, number + 1],
        "record": {"a": number, "b": None},
        "map": [("k", number)],
        "nothing": None,
    }


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Rows of the schema `ROWS`."""
    return [{"id": n, "text": f"the text of row {n} " * 8} for n in range(first, first + count)]


def send(client: Any, topic: str, first: int, count: int, **options: Any) -> None:
    """Batches of 100 rows."""
    with client.producer(topic, batch_rows=100, **options) as producer:
        producer.send(rows(first, count))


def write_topics(client: Any) -> None:
    """What can be written with the client alone."""
    for durability in ("memory", "flushed"):
        client.create_topic(
            durability, ROWS, partitions=2, config={**SMALL, "durability": durability}
        )
        for partition in (0, 1):
            send(client, durability, 1000 * partition, 900, partition=partition)
    for codec in ("lz4", "zstd"):
        client.create_topic(codec, ROWS, config={**SMALL, "compression.type": codec})
        send(client, codec, 0, 300)
        send(client, codec, 300, 10, compression="none")
    client.create_topic("types", EVERY_TYPE, config=FOR_EVER)
    with client.producer("types") as producer:
        producer.send([every_type(number) for number in range(50)])
    client.create_topic("keys", ROWS, partitions=3, key=["text"], config=FOR_EVER)
    send(client, "keys", 0, 60)
    client.create_topic("bytes", "raw", config=FOR_EVER)
    with client.producer("bytes") as producer:
        producer.send([{"key": b"k", "value": bytes([n]) * n} for n in range(20)])
    client.create_topic(LONG_NAME, ROWS, config=FOR_EVER)
    send(client, LONG_NAME, 0, 5)
    client.create_topic("empty", ROWS, partitions=2, config=FOR_EVER)


def change_topics(client: Any) -> None:
    """Schemas that grow, rows that go, topics that go."""
    client.create_topic("evolved", pa.schema([("a", pa.int8())]), config=FOR_EVER)
    with client.producer("evolved") as producer:
        producer.send([{"a": n} for n in range(10)])
    client.alter_topic("evolved", schema=pa.schema([("a", pa.int32()), ("b", pa.string())]))
    with client.producer("evolved") as producer:
        producer.send([{"a": 100_000 + n, "b": "two"} for n in range(10)])
    widest = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int64()))])
    client.alter_topic("evolved", schema=widest, partitions=2)
    with client.producer("evolved", partition=1) as producer:
        producer.send([{"a": 1 << 40, "b": None, "c": [n]} for n in range(10)])

    client.create_topic("trimmed", ROWS, config=SMALL)
    send(client, "trimmed", 0, 1000)
    client.delete_records("trimmed", {0: 555})
    client.create_topic("emptied", ROWS, config=FOR_EVER)
    send(client, "emptied", 0, 100)
    client.delete_records("emptied", {0: "latest"})

    client.create_topic("small", ROWS, config={**SMALL, "retention.bytes": 100_000})
    send(client, "small", 0, 1500)
    client.create_topic("short", ROWS, config={**SMALL, "retention.ms": 1000})
    send(client, "short", 0, 500)
    wait_for(lambda: client.list_offsets("short", "earliest")[0] == 500)
    client.alter_topic("short", config=FOR_EVER)
    send(client, "short", 500, 20)

    for name in ("deleted", "made-again"):
        client.create_topic(name, ROWS, partitions=3, config=FOR_EVER)
        send(client, name, 0, 30)
        client.delete_topic(name)
    client.create_topic("made-again", ROWS, partitions=2, config=FOR_EVER)
    send(client, "made-again", 5000, 30)


def wait_for(condition: Any, timeout_s: float = 60.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.05)


def write_idempotent(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Topics with producers whose last batch is kept; the batches, with what was answered."""
    kept = []
    with RawClient(broker.address) as client:
        for name, trim in (("idempotent", 0), ("idempotent-trimmed", 25)):
            topic_id = client.create_topic(name, retention_ms=-1, durability="flushed")
            for _ in range(3):
                producer_id, epoch = client.init_producer()
                for sequence in range(0, 40, 10):
                    batch = make_batch(
                        sequence,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        base_sequence=sequence,
                    )
                    offset = client.produce(topic_id, batch).base_offset
                text = base64.b64encode(batch).decode()
                kept.append({"topic": name, "base_offset": offset, "batch": text})
            if trim:
                with quiverlog.connect(broker.bootstrap) as trimmer:
                    trimmer.delete_records(name, {0: trim})
    return kept


def read_directory(client: Any) -> dict[str, Any]:
    """All that a client can see of a broker."""
    topics = {}
    for name in client.list_topics():
        detail = client.describe_topic(name)
        topics[name] = {
            "topic_id": client.metadata([name]).topics[name].topic_id.hex(),
            "configs": {
                key: value.value for key, value in detail.configs.items() if value.source == "topic"
            },
            "schemas": {
                str(entry.schema_id): [f"{f.name}: {f.type} {f.nullable}" for f in entry.schema]
                for entry in detail.schemas
            },
            "start": {str(p): o for p, o in client.list_offsets(name, "earliest").items()},
            "end": {str(p): o for p, o in client.list_offsets(name, "latest").items()},
            "rows": read_rows(client, name),
        }
    return topics


def read_rows(client: Any, topic: str) -> dict[str, list[Any]]:
    """Partition -> [offset, row as text] of every row."""
    found: dict[str, list[Any]] = {str(p): [] for p in client.list_offsets(topic, "latest")}
    for batch in client.consumer(topic, start="earliest"):
        for number, row in enumerate(batch.to_pylist()):
            text = json.dumps(row, default=repr, sort_keys=True, ensure_ascii=False)
            found[str(batch.partition)].append([batch.base_offset + number, text])
    return found


class Load(threading.Thread):
    """Writes to two topics until the broker dies."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.acknowledged: dict[str, int] = {"load-memory": 0, "load-flushed": 0}

    def run(self) -> None:
        try:
            with quiverlog.connect(self.bootstrap) as client:
                for name in self.acknowledged:
                    config = {**SMALL, "durability": name.partition("-")[2]}
                    client.create_topic(name, ROWS, config=config)
                producers = {
                    name: client.producer(name, delivery_timeout=3) for name in self.acknowledged
                }
                for first in range(0, 1_000_000, 50):
                    for name, producer in producers.items():
                        producer.send(rows(first, 50)).result(timeout=5)
                        self.acknowledged[name] = first + 50
        except (QuiverlogError, OSError, TimeoutError):
            return  # The broker is dead, which is what this waits for.


def make(target: Path, *, kill: bool) -> dict[str, Any]:
    """Fill a directory and end the broker; the manifest but for the rows."""
    acknowledged: dict[str, int] = {}
    with BrokerProcess(data_dir=target) as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            write_topics(client)
        broker.restart(kill=kill)  # A second leader epoch, and files that an older life wrote.
        with quiverlog.connect(broker.bootstrap) as client:
            change_topics(client)
            send(client, "flushed", 5000, 100)
        producers = write_idempotent(broker)
        wall_us = time.time_ns() // 1000
        if kill:
            load = Load(broker.bootstrap)
            load.start()
            wait_for(lambda: min(load.acknowledged.values()) >= 1000)
            broker.kill()
            load.join()
            acknowledged = load.acknowledged
        else:
            assert broker.stop() == 0, broker.log_text
    return {"wall_us": wall_us, "producers": producers, "acknowledged": acknowledged}


def expected(directory: Path) -> dict[str, Any]:
    """What this checkout reads from a copy of the directory."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        shutil.copytree(directory, copy)
        with BrokerProcess(data_dir=copy) as broker, quiverlog.connect(broker.bootstrap) as client:
            return read_directory(client)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True, help="what the checkout is")
    options = parser.parse_args(arguments)
    for name, kill in (("clean", False), ("killed", True)):
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place) / "data"
            manifest = make(directory, kill=kill)
            manifest |= {"commit": options.commit, "topics": expected(directory)}
            for topic, count in manifest["acknowledged"].items():
                assert len(manifest["topics"][topic]["rows"]["0"]) >= count, topic
            described = Path(place) / "manifest.json"
            described.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
            archive = options.out / f"{name}.tar.xz"
            with tarfile.open(archive, "w:xz", preset=9) as tar:
                tar.add(directory, "data")
                tar.add(described, "manifest.json")
            print(archive, archive.stat().st_size, "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
