"""The short way to a batch's numbers always agrees with the long one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiverlog.batch.ipc_metadata import IpcShape, read_ipc_metadata
from quiverlog.errors import CorruptBatch

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("tags", pa.list_(pa.struct([("key", pa.string()), ("on", pa.bool_())]))),
    ]
)


def message(rows: int, *, codec: str | None = None) -> bytearray:
    data = {
        "id": list(range(rows)),
        "text": [None if row % 3 == 0 else "x" * row for row in range(rows)],
        "tags": [[{"key": "k", "on": True}] * (row % 4) for row in range(rows)],
    }
    batch = pa.RecordBatch.from_pydict(data, schema=SCHEMA)
    return bytearray(_serialize(batch, codec))


def _serialize(batch: pa.RecordBatch, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize())


@pytest.fixture(scope="module")
def shape() -> IpcShape:
    return IpcShape(memoryview(message(1)))


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_it_reads_what_the_walk_reads(shape: IpcShape, rows: int) -> None:
    view = memoryview(message(rows))
    assert shape.read(view) == read_ipc_metadata(view)._replace(as_sample=True)


def test_another_shape_is_left_to_the_walk(shape: IpcShape) -> None:
    other = pa.RecordBatch.from_pydict({"id": [1, 2]})
    assert shape.read(memoryview(_serialize(other, None))) is None
    assert shape.read(memoryview(message(7, codec="zstd"))) is None
    assert shape.read(memoryview(message(7))[:100]) is None


def test_every_changed_byte_means_the_same_on_both_ways(shape: IpcShape) -> None:
    original = message(5)
    taken = 0
    for at in range(read_ipc_metadata(memoryview(original)).body_at):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(original)
            changed[at] ^= flip
            found = shape.read(memoryview(changed))
            if found is not None:
                taken += 1
                walked = read_ipc_metadata(memoryview(changed))
                assert found == walked._replace(as_sample=True)
    assert taken > 100, "numbers may change without changing the shape"


def test_a_body_that_is_not_there_is_left_to_the_walk_which_refuses_it(shape: IpcShape) -> None:
    cut = memoryview(message(1000))[:-8]
    assert shape.read(cut) is None
    with pytest.raises(CorruptBatch, match="claims a body"):
        read_ipc_metadata(cut)


def test_the_beginning_of_a_message_is_enough_where_its_size_is_known(shape: IpcShape) -> None:
    whole = memoryview(message(1000))
    begun = whole[: shape.body_at]
    read = shape.read(whole)
    assert read is not None
    size = shape.body_at + read.body_bytes
    assert shape.read(begun, size) == shape.read(begun, size + 1) == read
    assert shape.read(begun, size - 1) is None
    assert shape.read(begun[:-1], size) is None
    assert shape.read(begun) is None


def test_a_compressed_sample_has_no_shape() -> None:
    with pytest.raises(ValueError, match="no place"):
        IpcShape(memoryview(message(7, codec="lz4")))
