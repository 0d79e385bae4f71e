"""Reads damaged batches under good CRCs, as a client of a hostile broker would; its own process.

    python -m tests.support.hostile SEED COUNT

Prints how many batches could be read. Before each it writes its number to stderr, so that the one
that ended the process is known. Must not catch anything but the errors that readers promise.
"""

from __future__ import annotations

import decimal
import faulthandler
import random
import struct
import sys

import pyarrow as pa
import pyarrow.compute as pc

from quiverlog.batch.codec import decode_batch, encode_batch, write_crc
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.ipc_metadata import read_ipc_metadata
from quiverlog.batch.schema import SchemaHistory
from quiverlog.errors import QuiverlogError
from quiverlog.types import Compression
from tests.unit.batch.test_codec import EVERY_TYPE, ROWS

HISTORY = SchemaHistory({1: EVERY_TYPE})
WORDS = (-(2**31), -1, 0, 1, 2, 3, 7, 2**20, 2**31 - 1)
BASES = {
    c: bytes(encode_batch(ROWS, schema_id=1, timestamp_us=1, compression=c)) for c in Compression
}


def damaged(base: bytes, choose: random.Random) -> bytearray:
    """A few changes: 32-bit words in the body (offsets live there), bits, bytes of the metadata."""
    batch = bytearray(base)
    metadata = read_ipc_metadata(memoryview(base)[64:])
    body_at = 64 + metadata.body_at
    for _ in range(choose.randint(1, 4)):
        kind = choose.random()
        if kind < 0.6:
            number = choose.randrange(len(metadata.buffers) // 2)
            start, length = metadata.buffers[2 * number : 2 * number + 2]
            at = body_at + start + 4 * choose.randrange(max(1, length // 4))
            struct.pack_into("<i", batch, min(at, len(batch) - 4), choose.choice(WORDS))
        elif kind < 0.8:
            batch[choose.randrange(body_at, len(batch))] ^= 1 << choose.randrange(8)
        else:
            at = choose.randrange(64, body_at - 4)
            struct.pack_into("<i", batch, at, choose.choice((*WORDS, batch[at] ^ 1)))
    write_crc(batch)
    return batch


def use(data: pa.RecordBatch) -> None:
    """Look at every value, in Arrow and in Python."""
    order = pa.array([data.num_rows - 1, 0])
    for column in data.columns:
        column.take(order)
        column.slice(1).nbytes  # noqa: B018 - walks the offsets
        pa.concat_arrays([column, column])
        if not pa.types.is_nested(column.type):
            pc.is_null(column)
            pc.unique(column)
        try:
            column.to_pylist()
        except (UnicodeDecodeError, OverflowError, ValueError, decimal.DecimalException):
            continue  # a value that Python's types cannot show
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_batch(data)


def main(seed: int, count: int) -> int:
    faulthandler.enable()
    choose = random.Random(seed)
    read = 0
    for number in range(count):
        compression = choose.choice(tuple(BASES))
        batch = damaged(BASES[compression], choose)
        print(number, compression.name, file=sys.stderr, flush=True)
        columns = choose.choice((None, None, ["text", "list"], ["map", "struct"], ["i8"]))
        view = memoryview(batch)
        try:
            use(decode_batch(view, BatchHeader.unpack(view), HISTORY, columns))
        except QuiverlogError:
            continue
        read += 1
    print(read)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
