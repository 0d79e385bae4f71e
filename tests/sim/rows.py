"""What is written and read in the simulation: unique numbers, and bytes that do no harm.

Owns the schemas (one more nullable column per schema id) and the making of batches. A value is
`producer number << 32 | count`: unique over a run, ascending for each producer.
"""

from __future__ import annotations

import random
from typing import Final

import pyarrow as pa

from quiverlog.batch.header import BatchHeader
from quiverlog.batch.schema import SchemaHistory, serialize_schema
from quiverlog.types import Compression
from tests.support.batches import encode_data

__all__ = ["HISTORY", "SCHEMAS_MAX", "encode_rows", "schema_bytes", "schema_of"]

SCHEMAS_MAX: Final = 6
_COLUMNS: Final = [("value", pa.int64()), ("padding", pa.binary())]
_PADDING_BYTES_MAX: Final = 200
_ALIGNMENT: Final = 8
_AHEAD_MAX: Final = 100

pa.set_cpu_count(1)  # Batches are small: handing them to another thread takes longer than the work.


def schema_of(schema_id: int) -> pa.Schema:
    """The schema that a topic has after this many changes."""
    extra = [(f"extra{number}", pa.int32()) for number in range(2, schema_id + 1)]
    return pa.schema([*_COLUMNS, *extra])


def schema_bytes(schema_id: int) -> bytes:
    """As it travels."""
    return bytes(serialize_schema(schema_of(schema_id)))


HISTORY: Final = SchemaHistory({number: schema_of(number) for number in range(1, SCHEMAS_MAX + 1)})


def encode_rows(
    values: list[int],
    rng: random.Random,
    *,
    schema_id: int,
    at_us: int,
    producer: tuple[int, int],
    sequence: int,
    lookalike: tuple[int, int] | None = None,
) -> bytes:
    """One stored batch.

    Args:
        lookalike: the payload holds bytes that are a whole batch of this offset and leader epoch.
    """
    if lookalike is not None:
        padding = [_lookalike(rng, *lookalike)] * len(values)
    else:
        padding = [rng.choice((b"a", b"b")) * rng.randrange(_PADDING_BYTES_MAX)] * len(values)
    columns = [pa.array(values, pa.int64()), pa.array(padding, pa.binary())]
    columns += [pa.array(values, pa.int64()).cast(pa.int32(), safe=False)] * (schema_id - 1)
    return bytes(
        encode_data(
            pa.record_batch(columns, schema=schema_of(schema_id)),
            at_us=at_us,
            schema_id=schema_id,
            producer=(*producer, sequence),
            compression=Compression.LZ4 if rng.random() < 0.05 else Compression.NONE,
        )
    )


def _lookalike(rng: random.Random, offset: int, epoch: int) -> bytes:
    """A batch of one row inside the payload, at any alignment, its checksum right."""
    data = pa.record_batch([pa.array([-1]), pa.array([b"never written"])], schema=schema_of(1))
    inner = encode_data(data, at_us=0)
    header = BatchHeader.unpack(memoryview(inner))
    header._replace(
        base_offset=offset + rng.randrange(1, _AHEAD_MAX), leader_epoch=rng.choice((0, epoch, 99))
    ).pack_into(inner)
    return bytes(_ALIGNMENT * rng.randrange(8)) + bytes(inner) * 3
