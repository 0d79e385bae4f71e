"""The values behind the golden files: every message with every field set, and three batches."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa

from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import stamp
from quiverlog.batch.schema import normalize_schema, serialize_schema
from quiverlog.types import Compression
from quiverlog.wire import frames
from quiverlog.wire.messages import Message
from quiverlog.wire.registry import APIS

BATCH_SCHEMA = normalize_schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("price", pa.decimal128(8, 2)),
            ("tags", pa.list_(pa.string())),
        ]
    )
)
BATCH_ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "one", "price": Decimal("1.50"), "tags": ["a", "b"]},
    {"id": 2, "name": None, "price": None, "tags": None},
    {"id": -3, "name": "grüße", "price": Decimal("-20.00"), "tags": []},
]
CREATED_US = int(dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC).timestamp()) * 1_000_000


def sample(cls: type[msgspec.Struct]) -> msgspec.Struct:
    """A message or part with every field set to something that is not its default."""
    hints = get_type_hints(cls, include_extras=True)
    preamble = set(Message.__struct_fields__) if issubclass(cls, Message) else set()
    names = [name for name in cls.__struct_fields__ if name not in preamble]
    return cls(**{name: _value(hints[name], name, at) for at, name in enumerate(names, start=1)})


def _value(hint: Any, name: str, number: int) -> Any:
    if get_origin(hint) is Annotated:
        base, bounds = get_args(hint)
        return min(number * 100, bounds.le) if base is int else _value(base, name, number)
    if get_origin(hint) is list and get_origin(inner := get_args(hint)[0]) is UnionType:
        return [sample(kind) for kind in get_args(inner)]
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], name, number)]
    if get_origin(hint) is dict:
        return {f"{name}.key": f"{name}.value"}
    if type(None) in get_args(hint):
        return _value(get_args(hint)[0], name, number)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return sample(hint)
    if hint is bytes:
        return bytes(range(16)) if name == "topic_id" else b"\x01\x02"
    return {str: name, bool: True}[hint]


def frame_samples() -> dict[str, bytes]:
    """One frame of every request and response; correlation id 7, no body."""
    samples = {}
    for spec in APIS.values():
        for cls in (spec.request, spec.response):
            samples[cls.__name__] = frames.encode(sample(cls), 7)  # type: ignore[arg-type]
    return samples


def batch_samples() -> dict[str, bytes]:
    """The same rows in each codec, and their schema."""
    rows = pa.RecordBatch.from_pylist(BATCH_ROWS, schema=BATCH_SCHEMA)
    samples = {"schema": serialize_schema(BATCH_SCHEMA)}
    for compression in Compression:
        batch = encode_batch(
            rows,
            schema_id=3,
            timestamp_us=(CREATED_US - 1_000, CREATED_US),
            compression=compression,
            producer_id=1_001,
            producer_epoch=2,
            base_sequence=40,
        )
        stamp(batch, 0, 1_000_000, 5)
        samples[f"batch-{compression.label}"] = bytes(batch)
    return samples
