"""Golden bytes: what was written once can be read for ever, and is still written the same."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.schema import SchemaHistory, deserialize_schema
from quiverlog.types import Compression
from quiverlog.wire import frames
from quiverlog.wire.registry import APIS
from tests.golden import regenerate
from tests.golden.samples import (
    BATCH_ROWS,
    BATCH_SCHEMA,
    CREATED_US,
    batch_samples,
    frame_samples,
    sample,
)
from tests.support.batches import validate_batch

FRAMES = regenerate.load("frames.txt")
FIRST_FRAMES = regenerate.load("frames-first.txt")
"""As they were before any field was appended; this file is never written again."""
BATCHES = regenerate.load("batches.txt")


def test_frames_are_written_as_ever() -> None:
    """A difference is a change of the protocol: see tests/golden/regenerate.py."""
    assert frame_samples() == FRAMES
    assert len(FRAMES) == 2 * len(APIS)


@pytest.mark.parametrize("spec", APIS.values(), ids=lambda spec: spec.api.name)
def test_golden_frames_are_read(spec) -> None:  # type: ignore[no-untyped-def]
    for cls in (spec.request, spec.response):
        receiver = frames.FrameReceiver()
        data = FRAMES[cls.__name__]
        receiver.get_buffer()[: len(data)] = data
        (frame,) = receiver.buffer_updated(len(data))
        if cls is spec.request:
            got = frames.decode_request(frame.header)
        else:
            got = frames.decode_response(frame.header, spec.api)
        wanted = sample(cls)
        wanted.api, wanted.version, wanted.correlation_id = int(spec.api), 1, 7
        assert got == wanted


OLDEST = [spec for spec in APIS.values() if spec.request.__name__ in FIRST_FRAMES]


@pytest.mark.parametrize("spec", OLDEST, ids=lambda spec: spec.api.name)
def test_frames_of_the_first_release_are_read(spec) -> None:  # type: ignore[no-untyped-def]
    """Fields that have been appended since then have their defaults."""
    for cls in (spec.request, spec.response):
        header = FIRST_FRAMES[cls.__name__][8:]
        if cls is spec.request:
            got = frames.decode_request(header)
        else:
            got = frames.decode_response(header, spec.api)
        now = frames.encode(got, 7)[8:]
        ours, theirs = msgspec.msgpack.decode(now), msgspec.msgpack.decode(header)
        assert _begins_with(ours, theirs)


def _begins_with(longer: object, shorter: object) -> bool:
    """Are all fields of `shorter` in `longer`, at their places, at every depth?"""
    if not isinstance(longer, list) or not isinstance(shorter, list):
        return longer == shorter
    return len(longer) >= len(shorter) and all(map(_begins_with, longer, shorter))


@pytest.mark.parametrize("compression", Compression)
def test_golden_batches_are_read(compression: Compression) -> None:
    data = memoryview(bytearray(BATCHES[f"batch-{compression.label}"]))
    history = SchemaHistory({3: deserialize_schema(BATCHES["schema"])})
    assert history.current.equals(BATCH_SCHEMA, check_metadata=True)
    ((header, view),) = split_batches(data)
    assert header._replace(crc32c=0, size=0) == BatchHeader(
        1_000_000,
        5,
        0,
        0,
        1,
        compression << 2,
        2,
        1_001,
        40,
        3,
        3,
        0,
        CREATED_US - 1_000,
        CREATED_US,
    )
    assert decode_batch(view, header, history).to_pylist() == BATCH_ROWS
    for full in (False, True):
        validate_batch(view, schemas=history, bytes_max=10_000, full=full, now_wall_us=CREATED_US)


def test_batches_are_written_as_ever() -> None:
    """Compressed bytes may differ between versions of the compressors; these may not."""
    fresh = batch_samples()
    assert fresh["batch-none"] == BATCHES["batch-none"], (
        f"pyarrow {pa.__version__} writes otherwise"
    )
    assert fresh["schema"] == BATCHES["schema"]


def test_regenerating_refuses_to_change_bytes(monkeypatch, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(regenerate, "HERE", tmp_path)
    assert regenerate.main([]) == 0
    text = (tmp_path / "frames.txt").read_text()
    assert text.count("000000  ") == len(FRAMES)
    (tmp_path / "frames.txt").write_text(text + "[Gone] 1 bytes\n000000  00\n")
    before = (tmp_path / "frames.txt").read_text()
    assert regenerate.main([]) == 1
    assert "Gone" in capsys.readouterr().out
    assert (tmp_path / "frames.txt").read_text() == before
