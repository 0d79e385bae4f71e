"""The rows that the benchmarks move: 4 typed columns, the same bytes at every run."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("k", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
)
SPARK_SCHEMA = "id long, k int, price double, ts timestamp"
KEYS = 1_000
FIRST_MOMENT_US = 1_700_000_000_000_000

__all__ = ["KEYS", "SCHEMA", "SPARK_SCHEMA", "make_batch", "make_dicts"]


def make_batch(rows: int) -> pa.RecordBatch:
    """`rows` rows of `SCHEMA`; prices differ from row to row but not from run to run."""
    ids = pa.array(range(rows), pa.int64())
    scattered = pc.bit_wise_and(pc.multiply(ids, 2_654_435_761), 0xFFFF_FFFF)
    keys = pc.subtract(scattered, pc.multiply(pc.divide(scattered, KEYS), KEYS)).cast(pa.int32())
    prices = pc.divide(scattered.cast(pa.float64()), 1e4)
    moments = pc.add(ids, FIRST_MOMENT_US).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([ids, keys, prices, moments], schema=SCHEMA)


def make_dicts(rows: int) -> list[dict[str, object]]:
    """The same rows as Python dicts."""
    dicts: list[dict[str, object]] = make_batch(rows).to_pylist()
    return dicts
