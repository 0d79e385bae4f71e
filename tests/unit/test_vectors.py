"""docs/vectors is current, and agrees with a second implementation."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.schema import SchemaHistory, deserialize_schema
from quiverlog.cli.app import cli
from quiverlog.core.controller.records import Record
from scripts import vectors
from tests.stranger.client import crc32c, key_hash, partition_of


def load(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((vectors.DIRECTORY / name).read_text())
    return found


@pytest.mark.parametrize("name", vectors.FILES)
def test_the_file_is_current(name: str) -> None:
    """Compressed bytes come from the golden file, so they do not change with the compressors."""
    made = vectors.render(vectors.FILES[name]())
    assert (vectors.DIRECTORY / name).read_text() == made, "python -m scripts.vectors"


def test_there_is_no_other_file() -> None:
    assert {path.name for path in vectors.DIRECTORY.iterdir()} == set(vectors.FILES)


@pytest.mark.parametrize("vector", load("key-hashes.json"), ids=lambda v: v["hash"])
def test_key_hashes_by_hand(vector: dict[str, Any]) -> None:
    found = key_hash(vector["columns"])
    assert f"{found:016x}" == vector["hash"]
    assert partition_of(found, 10) == vector["partition_of_10"]


@pytest.mark.parametrize("vector", load("frames.json"), ids=lambda v: v["name"])
def test_frames_by_hand(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    size, header_size = struct.unpack_from("<II", data)
    assert (size, header_size) == (len(data) - 4, len(data) - 8)
    assert _flat(msgpack.unpackb(data[8:])) == _flat(list(vector["fields"].values()))


@pytest.mark.parametrize("vector", load("producers.json"), ids=lambda v: v["name"])
def test_snapshots_of_producers_by_hand(vector: dict[str, Any]) -> None:
    """By docs/storage-format.md: magic, version, reserved, size, CRC, offset, one array."""
    data = bytes.fromhex(vector["hex"])
    magic, version, reserved, size, crc = struct.unpack_from("<8sHHII", data)
    assert (magic, version, reserved, size) == (b"QVPRODUC", 1, 0, len(data) - 20)
    assert crc == crc32c(data[:16] + data[20:])
    assert struct.unpack_from("<q", data, 20) == (vector["offset"],)
    if vector["producers"]:
        assert msgpack.unpackb(data[28:]) == [vector["version"], _flat(vector["producers"])]
        assert vector["producers"][0]["next_sequence"] == 2, "sequences wrap at 2^31"
    else:
        assert data[28:] == b""


def _flat(value: Any) -> Any:
    """Fields by name and fields by place are the same; so are bytes and their hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        if set(value) == {"hex"}:
            return value["hex"]
        return [_flat(item) for item in value.values()]
    return [_flat(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("vector", load("batches.json"), ids=lambda v: v["name"])
def test_batches_still_decode(vector: dict[str, Any]) -> None:
    history = SchemaHistory(
        {vector["header"]["schema_id"]: deserialize_schema(bytes.fromhex(vector["schema_hex"]))}
    )
    data = memoryview(bytearray.fromhex(vector["hex"]))
    ((header, view),) = split_batches(data)
    assert header._asdict() == vector["header"]
    assert crc32c(bytes(data[20:])) == header.crc32c
    assert vectors.plain(decode_batch(view, header, history).to_pylist()) == vector["rows"]


def test_the_segment_is_one_for_our_own_tools(tmp_path: Path) -> None:
    from click.testing import CliRunner

    for vector in load("segment.json"):
        (tmp_path / vector["name"]).write_bytes(bytes.fromhex(vector["hex"]))
    path = str(tmp_path / "00000000000000000040.log")
    shown = CliRunner().invoke(cli, ["dump-log", path])
    assert shown.exit_code == 0, shown.output
    assert "40" in shown.output
    assert "43" in shown.output


def test_every_record_has_a_vector_and_a_line() -> None:
    """A reader in another language needs each: an unknown type of record stops a start."""
    types = sorted(cls.__struct_config__.tag for cls in get_args(Record))
    assert len(set(types)) == len(types)
    assert [vector["type"] for vector in load("metadata-records.json")] == types
    page = (vectors.DIRECTORY.parent / "storage-format.md").read_text()
    table = re.search(r"<!-- generated: metadata-records -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert table
    assert [int(row) for row in re.findall(r"^\| (\d+) \|", table[1], re.MULTILINE)] == types


@pytest.mark.parametrize("vector", load("metadata-records.json"), ids=lambda v: v["name"])
def test_metadata_records_by_hand(vector: dict[str, Any]) -> None:
    (record,) = msgpack.unpackb(bytes.fromhex(vector["hex"]))
    assert record[0] == vector["type"]
    assert _flat(record[1:]) == _flat(list(vector["fields"].values()))
