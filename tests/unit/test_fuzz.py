"""Damaged and invented input: only typed errors, never a crash, memory within bounds.

The checksum of a changed batch is made good again, so that the layers below it are reached.
`tests/corpus` holds inputs that are tried every time.
"""

from __future__ import annotations

import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.batch.codec import decode_batch, encode_batch, split_batches, write_crc
from quiverlog.batch.schema import SchemaHistory, deserialize_schema, serialize_schema
from quiverlog.errors import CorruptFrame, InvalidSchema, QuiverlogError
from quiverlog.types import Compression
from quiverlog.wire import frames
from tests.golden import regenerate
from tests.golden.samples import CREATED_US
from tests.support.batches import validate_batch
from tests.unit.batch.test_codec import EVERY_TYPE, ROWS

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.bin"))
GOLDEN = regenerate.load("frames.txt")
STREAM = b"".join(GOLDEN.values())
HISTORY = SchemaHistory({1: EVERY_TYPE})
BATCHES = [
    bytes(encode_batch(ROWS, schema_id=1, timestamp_us=CREATED_US, compression=c))
    for c in Compression
]
INTERESTING = [b"\x00" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\x01\0\0\0"]

changes = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.integers(0, 7).map(lambda bit: bytes([1 << bit]))
        | st.binary(min_size=1, max_size=1)
        | st.sampled_from(INTERESTING),
    ),
    min_size=1,
    max_size=12,
)


def changed(data: bytes, edits: list[tuple[int, bytes]], start: int = 0) -> bytearray:
    result = bytearray(data)
    for at, value in edits:
        at = start + at % (len(result) - start - len(value))
        if len(value) == 1:
            result[at] ^= value[0]
        else:
            result[at : at + len(value)] = value
    return result


# --- frames ---------------------------------------------------------------------------------------
def receive(data: bytes) -> int:
    """Take a stream as a broker and as a client would; how many frames came out."""
    count = 0
    receiver = frames.FrameReceiver(frame_bytes_max=1 << 20)
    left = memoryview(data)
    while left:
        room = receiver.get_buffer()
        n = min(len(room), len(left))
        room[:n] = left[:n]
        left = left[n:]
        for frame in receiver.buffer_updated(n):
            count += 1
            for decode in (
                frames.decode_request,
                lambda header: frames.decode_response(header, 3),
                frames.peek_preamble,
                frames.decode_error,
            ):
                try:
                    decode(frame.header)
                except QuiverlogError:
                    continue
    return count


@settings(max_examples=300, deadline=None)
@given(edits=changes, cut=st.integers(0, len(STREAM)))
def test_damaged_streams(edits: list[tuple[int, bytes]], cut: int) -> None:
    try:
        receive(changed(STREAM, edits)[:cut])
    except QuiverlogError:
        return


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=2000))
def test_random_streams(data: bytes) -> None:
    try:
        receive(data)
    except QuiverlogError:
        return


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(GOLDEN)), edits=changes)
def test_damaged_headers_in_whole_frames(name: str, edits: list[tuple[int, bytes]]) -> None:
    assert receive(GOLDEN[name][:8] + changed(GOLDEN[name][8:] + bytes(8), edits)[:-8]) == 1


def test_deep_headers() -> None:
    for deep in (b"\x91" * 200_000, b"\x97\x03\x01\x01" + b"\x91" * 200_000, b"\x81\xa1k" * 70_000):
        with pytest.raises(QuiverlogError):
            frames.decode_request(deep)
        with pytest.raises(CorruptFrame):
            frames.peek_preamble(deep)


# --- batches --------------------------------------------------------------------------------------
def use(batch: bytearray) -> int:
    """Validate; what passes is decoded, read row by row, and encoded again."""
    view = memoryview(batch)
    passed = 0
    for full in (False, True):
        try:
            header = validate_batch(
                view, schemas=HISTORY, bytes_max=1 << 20, full=full, now_wall_us=CREATED_US
            )
        except QuiverlogError:
            continue
        passed += 1
        for columns in (None, ["text", "list"], ["struct"]):
            try:
                read_all(decode_batch(view, header, HISTORY, columns), full=full)
            except QuiverlogError as error:
                is_value = not full and "column" in error.details
                assert header.flags or is_value, "what was let in can be read, but for its values"
    return passed


def read_all(data: pa.RecordBatch, *, full: bool) -> None:
    encode_batch(data, schema_id=1, timestamp_us=0)
    for column in data.columns:
        column.take(pa.array([2, 0]))
        try:
            column.to_pylist()
        except UnicodeDecodeError:
            assert not full, "text was checked"
        except (OverflowError, ValueError, decimal.DecimalException):
            continue  # a moment or number that Python's types cannot show


@settings(max_examples=400, deadline=None)
@given(base=st.sampled_from(BATCHES), edits=changes, everywhere=st.booleans())
def test_damaged_batches_under_a_good_checksum(
    base: bytes, edits: list[tuple[int, bytes]], everywhere: bool
) -> None:
    batch = changed(base, edits, start=0 if everywhere else 64)
    write_crc(batch)
    use(batch)


@settings(max_examples=200, deadline=None)
@given(base=st.sampled_from(BATCHES), at=st.integers(64, len(BATCHES[0]) - 1))
def test_truncated_batches_under_a_good_checksum(base: bytes, at: int) -> None:
    batch = bytearray(base[:at])
    batch[12:16] = (len(batch) - 16).to_bytes(4, "little")
    write_crc(batch)
    if at < len(base):
        assert use(batch) == 0


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=1000), keep=st.integers(0, 200))
def test_random_batches(data: bytes, keep: int) -> None:
    batch = bytearray(BATCHES[0][:keep] + data)
    if len(batch) >= 20:
        batch[12:16] = (len(batch) - 16).to_bytes(4, "little")
        write_crc(batch)
    use(batch)
    try:
        list(split_batches(memoryview(batch)))
    except QuiverlogError:
        return


@settings(max_examples=300, deadline=None)
@given(edits=changes)
def test_damaged_schemas(edits: list[tuple[int, bytes]]) -> None:
    try:
        deserialize_schema(bytes(changed(serialize_schema(EVERY_TYPE), edits)))
    except InvalidSchema:
        return


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus(path: Path) -> None:
    data = path.read_bytes()
    if path.name.startswith("frame"):
        try:
            receive(data)
        except QuiverlogError:
            return
    else:
        use(bytearray(data))


def test_there_is_a_corpus() -> None:
    assert len(CORPUS) >= 10
