"""Writes docs/vectors: `python -m scripts.vectors`, or `--check` to write nothing and compare.

Owns their contents: bytes as hex beside their meaning, for authors of a client or of a reader of
files in another language. Vectors only grow: a change of one is a change of a format.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.batch.partitioner import hash_rows, partition_rows
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller import records as r
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.limits import BATCH_HEADER_BYTES, SCRAM_ITERATIONS_MIN
from quiverlog.storage.log.checkpoint import pack_snapshot
from quiverlog.storage.segment.index import IndexSummary, SparseIndex
from quiverlog.wire.messages import Part
from quiverlog.wire.registry import APIS
from quiverlog.wire.security.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramClient,
    ScramServer,
    derive_keys,
    make_credential,
    prepare_password,
)
from scripts.record_tables import record_types
from tests.golden import regenerate
from tests.golden.samples import BATCH_ROWS, CREATED_US, sample

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "docs" / "vectors"
TOPIC_ID: Final = bytes(range(16))
CREDENTIAL: Final = (SCRAM_SHA_256, TOPIC_ID, SCRAM_ITERATIONS_MIN, bytes(32), b"\1" * 32)
UTC: Final = dt.UTC


def plain(value: Any) -> Any:
    """As JSON has it: bytes as `{"hex": ...}`."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        tag = value.__struct_config__.tag if isinstance(value, Part) else None
        first = {} if tag is None else {"tag": tag}
        return first | {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value if isinstance(value, int | str | None) else str(value)


def frames() -> list[dict[str, Any]]:
    """One frame of every message, every field set; correlation id 7."""
    golden = regenerate.load("frames.txt")
    found = []
    for spec in APIS.values():
        for cls in (spec.request, spec.response):
            message = sample(cls)
            message.api, message.version, message.correlation_id = int(spec.api), 1, 7
            name = cls.__name__
            found.append({"name": name, "fields": plain(message), "hex": golden[name].hex()})
    return found


def batches() -> list[dict[str, Any]]:
    """The same rows in each codec; and one column of int64, the smallest batch there is."""
    golden = regenerate.load("batches.txt")
    found = [
        {
            "name": name.removeprefix("batch-"),
            "schema_hex": golden["schema"].hex(),
            "header": BatchHeader.unpack(data)._asdict(),
            "rows": plain(BATCH_ROWS),
            "hex": data.hex(),
        }
        for name, data in golden.items()
        if name.startswith("batch-")
    ]
    schema = pa.schema([("n", pa.int64())])
    batch = int64_batch([1, 2, 3], 0, 0)
    found.append(
        {
            "name": "int64",
            "schema_hex": serialize_schema(schema).hex(),
            "header": BatchHeader.unpack(batch)._asdict(),
            "rows": [{"n": 1}, {"n": 2}, {"n": 3}],
            "hex": batch.hex(),
        }
    )
    return found


def int64_batch(values: list[int], base_offset: int, leader_epoch: int) -> bytes:
    data = pa.record_batch([pa.array(values, pa.int64())], names=["n"])
    batch = encode_batch(data, schema_id=1, timestamp_us=CREATED_US)
    stamp(batch, 0, base_offset, leader_epoch)
    return bytes(batch)


def segment() -> list[dict[str, Any]]:
    """A segment of two batches, as it lies on the disk, and its index."""
    body = struct.pack("<qq32x", 40, CREATED_US)
    head = b"QVSEGMNT" + struct.pack("<HHI", 1, 0, crc32c(body)) + body
    first, second = int64_batch([1, 2, 3], 40, 0), int64_batch([4, 5], 43, 2)
    data = head + first + second
    index = SparseIndex()
    index.add(0, 64, -(2**63))
    index.add(3, 64 + len(first), CREATED_US)
    return [
        {
            "name": "00000000000000000040.log",
            "base_offset": 40,
            "created_us": CREATED_US,
            "batches": [
                {"position": 64, **BatchHeader.unpack(first)._asdict(), "n": [1, 2, 3]},
                {"position": 64 + len(first), **BatchHeader.unpack(second)._asdict(), "n": [4, 5]},
            ],
            "hex": data.hex(),
        },
        {
            "name": "00000000000000000040.index",
            "base_offset": 40,
            "end_offset": 45,
            "newest_us": CREATED_US,
            "covered_bytes": len(data),
            "relative_offsets": [0, 3],
            "positions": [64, 64 + len(first)],
            "times": [-(2**63), CREATED_US],
            "hex": index.dump(IndexSummary(40, 45, CREATED_US, len(data))).hex(),
        },
    ]


def metadata_records() -> list[dict[str, Any]]:
    """One entry of the metadata log per type of record."""
    schema = serialize_schema(pa.schema([("n", pa.int64())]))
    samples: list[r.Record] = [
        r.SnapshotRecord(12),
        r.BrokerRecord(
            0,
            TOPIC_ID[::-1],
            "broker.example",
            9000,
            "r1",
            (("default", "broker.example", 9000), ("peers", "10.0.0.1", 9001)),
            fenced=True,
            directory_id="0f0e0d0c0b0a09080706050403020100",
        ),
        r.TopicRecord(TOPIC_ID, "events", CREATED_US, 1, ("n",)),
        r.PartitionRecord(TOPIC_ID, 0, (0, 7), (0,), 0, 0, 3, (7,)),
        r.PartitionChangeRecord(TOPIC_ID, 0, 7, 2, (7,), (0, 7), (), unclean=True),
        r.ConfigRecord(TOPIC_ID, "retention.ms", "60000"),
        r.SchemaRecord(TOPIC_ID, 1, CREATED_US, schema),
        r.RemoveTopicRecord(TOPIC_ID),
        r.ProducerIdBlockRecord(1_000),
        r.ProducerEpochRecord(7, 2),
        r.BrokerChangeRecord(0, 40, fenced=False),
        r.BrokerConfigRecord(-1, "log.level", "debug"),
        r.FeatureLevelRecord(2),
        r.TopicChangeRecord(TOPIC_ID, 3),
        r.UnregisterBrokerRecord(0, 40),
        r.ClusterNumberRecord(12_345),
        r.SecurityKeyRecord(bytes(range(32))),
        r.UserRecord("alice", CREATED_US, (CREDENTIAL,), is_admin=True),
        r.RemoveUserRecord("alice"),
        r.TokenRecord("0f1e2d3c", "alice", CREATED_US, CREATED_US + 3_600_000_000, CREDENTIAL),
        r.RuleRecord(12, "user:alice", True, 1, 1, "orders-", True, "10.1.0.0/16"),
        r.RemoveRuleRecord(12),
        r.RuleNumberRecord(13),
        r.QuotaRecord(1, "alice", 10_485_760, 0, 20),
    ]
    assert [type(one) for one in samples] == record_types(), "a vector for every record"
    return [
        {
            "name": type(record).__name__,
            "type": type(record).__struct_config__.tag,
            "fields": plain(record),
            "hex": r.encode_entry([record]).hex(),
        }
        for record in samples
    ]


KEYS: Final[list[list[tuple[str, Any]]]] = [
    [("date32", dt.date(1970, 1, 1))],
    [("date32", dt.date(1969, 12, 31))],
    [("date32", dt.date(2026, 1, 2))],
    [("timestamp[us]", dt.datetime(2026, 1, 2, 3, 4, 5, 678_901))],  # noqa: DTZ001 - wall clock
    [("timestamp[us, UTC]", dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC))],
    [("timestamp[us, UTC]", dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC))],
    [("time64[ns]", dt.time(3, 4, 5, 678_901))],
    [("duration[us]", dt.timedelta(days=-1, microseconds=1))],
    [("int64", 1), ("string", "a")],
    [("string", "a"), ("int64", 1)],
    [("int64", None), ("string", None)],
    [("int32", 42), ("date32", dt.date(2026, 1, 2)), ("string", "UA")],
]
TYPES: Final = {
    "date32": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
    "time64[ns]": pa.time64("ns"),
    "duration[us]": pa.duration("us"),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
}
STORED_AS: Final = {"date32": pa.int32(), "string": pa.string(), "int32": pa.int32()}


def key_hashes() -> list[dict[str, Any]]:
    """Keys of several columns, and of the types that are numbers in disguise."""
    found = []
    for key in KEYS:
        names = [f"k{number}" for number in range(len(key))]
        arrays = [pa.array([value], TYPES[kind]) for kind, value in key]
        data = pa.record_batch(arrays, names=names)
        stored = [
            a.view(STORED_AS.get(k, pa.int64()))[0].as_py()
            for a, (k, _) in zip(arrays, key, strict=True)
        ]
        found.append(
            {
                "columns": [
                    {"type": kind, "value": None if value is None else str(value), "stored": number}
                    for (kind, value), number in zip(key, stored, strict=True)
                ],
                "hash": f"{hash_rows(data, names)[0].as_py():016x}",
                "partition_of_10": partition_rows(data, names, 10)[0][0],
            }
        )
    return found


def producers() -> list[dict[str, Any]]:
    """A snapshot of a partition's producers, and one of a partition that has none."""
    states = ProducerStates(CREATED_US)
    for header, offset in (
        (_numbered(7, 0, 0, 5), 0),
        (_numbered(9, 1, 2**31 - 2, 4), 5),  # its next sequence has wrapped around
        (_numbered(7, 0, 5, 3), 9),
    ):
        states.record(header, offset, CREATED_US)
    found = []
    for offset, blob in ((12, states.snapshot()), (40, b"")):
        version, entries = msgspec.msgpack.decode(blob) if blob else (None, [])
        found.append(
            {
                "name": f"producers-{offset:020d}.snapshot",
                "offset": offset,
                "version": version,
                "producers": [
                    {
                        "producer_id": producer_id,
                        "epoch": epoch,
                        "next_sequence": next_sequence,
                        "batches": [
                            {"base_sequence": base, "row_count": rows, "base_offset": at}
                            for base, rows, at in remembered
                        ],
                    }
                    for producer_id, epoch, next_sequence, remembered in entries
                ],
                "hex": pack_snapshot(offset, blob).hex(),
            }
        )
    return found


def _numbered(producer_id: int, epoch: int, sequence: int, row_count: int) -> BatchHeader:
    empty = BatchHeader.unpack(memoryview(bytes(BATCH_HEADER_BYTES)))
    return empty._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        row_count=row_count,
    )


LOGINS: Final = (
    # RFC 7677, section 3.
    ("RFC 7677", SCRAM_SHA_256, "user", "pencil", "5b6d99689d12358eeca04b141236fa81",
     "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"),
    ("quiverlog", SCRAM_SHA_512, "alice", "pencil", bytes(range(16)).hex(),
     "Y2xpZW50LW5vbmNlLW9mLTI0", "YnJva2VyLW5vbmNlLW9mLTI0"),
    ("quiverlog, a password beyond ASCII", SCRAM_SHA_256, "bob@example.org", "\u2168 \u00aa\u00ad",
     bytes(range(16)).hex(), "Y2xpZW50LW5vbmNlLW9mLTI0", "YnJva2VyLW5vbmNlLW9mLTI0"),
)  # fmt: skip


def scram() -> list[dict[str, Any]]:
    """Logins: the four messages, and what the broker keeps."""
    found = []
    for source, mechanism, user, password, salt_hex, client_nonce, broker_nonce in LOGINS:
        prepared, salt = prepare_password(password), bytes.fromhex(salt_hex)
        kept = make_credential(mechanism, prepared, salt, SCRAM_ITERATIONS_MIN)
        client = ScramClient(
            mechanism, user, partial(derive_keys, mechanism, prepared), client_nonce
        )
        broker = ScramServer(
            mechanism,
            {user: (kept,)}.__getitem__,
            broker_nonce,
            fake_key=b"",
            iterations=SCRAM_ITERATIONS_MIN,
        )
        messages = [client.first]
        messages.append(broker.first(messages[-1]))
        messages.append(client.final(messages[-1]))
        messages.append(broker.final(messages[-1])[0])
        client.check(messages[-1])
        found.append(
            {
                "source": source,
                "mechanism": mechanism,
                "user": user,
                "password": password,
                "prepared": plain(prepared),
                "salt": plain(salt),
                "iterations": kept.iterations,
                "client_nonce": client_nonce,
                "broker_nonce": broker_nonce,
                "stored_key": plain(kept.stored_key),
                "server_key": plain(kept.server_key),
                "messages": [message.decode() for message in messages],
            }
        )
    return found


FILES: Final = {
    "frames.json": frames,
    "batches.json": batches,
    "segment.json": segment,
    "metadata-records.json": metadata_records,
    "producers.json": producers,
    "key-hashes.json": key_hashes,
    "scram.json": scram,
}


def render(vectors: list[dict[str, Any]]) -> str:
    """One vector per line, so that a difference shows which."""
    lines = ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors)
    return f"[\n{lines}\n]\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check = parser.parse_args().check
    stale = 0
    for name, make in FILES.items():
        path, text = DIRECTORY / name, render(make())
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        print(f"docs/vectors/{name}: {'is stale' if check else 'written'}")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
