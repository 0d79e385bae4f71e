"""The files as bytes: as docs/storage-format.md describes them, built here a second time and by
hand.

Nothing of the storage code helps to build the expectation, not even its checksum. `GOLDEN` is what
version 1 wrote: a change of it is a change of the format and needs a new version.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog, QuiverlogError, UnsupportedFormat
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.checkpoint import Bounds, RecoveryPoint
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.storage.segment.index import IndexSummary, SparseIndex
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import FlushedMark, pack_segment_header
from tests.sim.disk import SimDisk


def slow_crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(magic: bytes, payload: bytes, version: int = 1) -> bytes:
    head = magic + struct.pack("<HHI", version, 0, len(payload))
    return head + struct.pack("<I", slow_crc32c(head + payload)) + payload


def segment_header() -> bytes:
    disk = SimDisk()
    disk.make_dir("d")
    return disk.read_file(Segment.create(disk, "d", 42, 1_700_000_000_000_000).path)


def index() -> bytes:
    entries = SparseIndex()
    entries.add(0, 64, -(2**63))
    entries.add(7, 4160, 1_000)
    return entries.dump(IndexSummary(42, 60, 2_000, 8_192))


def epochs() -> bytes:
    found = LeaderEpochs(lambda: 30)
    found.assign(2, 0)
    found.assign(5, 20)
    return found.dump()


def snapshot() -> bytes:
    disk = SimDisk()
    disk.make_dir("d")
    checkpoint.write_snapshot(disk, "d", 42, b"states")
    return disk.read_file("d/producers-00000000000000000042.snapshot")


def metadata_log() -> bytes:
    disk = SimDisk()
    log = MetadataLog.open(disk, "m")
    log.append([b"one", b"three"])
    return disk.read_file("m/metadata.log")


def clean_mark() -> bytes:
    disk = SimDisk()
    directory = DataDirectory.open(disk, "n", node_id=3, entropy=lambda n: bytes(range(n)))
    directory.close(clean=True, metadata_bytes=77)
    return disk.read_file("n/clean-shutdown")


_BODY = struct.pack("<qq32x", 42, 1_700_000_000_000_000)
_RECORDS = b"\x03\0\0\0one" + b"\x05\0\0\0three"
_SIZE = struct.pack("<I", len(_RECORDS))

EXPECTED: dict[str, tuple[Callable[[], bytes], bytes]] = {
    "segment": (
        segment_header,
        b"QVSEGMNT" + struct.pack("<HHI", 1, 0, slow_crc32c(_BODY)) + _BODY,
    ),
    "index": (
        index,
        framed(
            b"QVINDEX1",
            struct.pack("<qqqQI", 42, 60, 2_000, 8_192, 2)
            + struct.pack("<IIIIqq", 0, 7, 64, 4160, -(2**63), 1_000),
        ),
    ),
    "leader-epochs": (epochs, framed(b"QVEPOCHS", struct.pack("<Iiqiq", 2, 2, 0, 5, 20))),
    "recovery-point": (
        lambda: checkpoint.pack_recovery_point(RecoveryPoint(60, 42, 8_192), Bounds(45, 63)),
        framed(b"QVRECOVR", struct.pack("<qqQqq", 60, 42, 8_192, 45, 63)),
    ),
    "log-start": (
        lambda: checkpoint.pack_log_start(45),
        framed(b"QVLOGSTA", struct.pack("<q", 45)),
    ),
    "snapshot": (snapshot, framed(b"QVPRODUC", struct.pack("<q", 42) + b"states")),
    "metadata-log": (
        metadata_log,
        b"QVMETLOG\x01\0" + bytes(6) + _SIZE + struct.pack("<I", slow_crc32c(_SIZE + _RECORDS))
        + _RECORDS,
    ),
    "clean-shutdown": (clean_mark, framed(b"QVCLEAN\0", bytes(range(16)) + struct.pack("<Q", 77))),
}  # fmt: skip
GOLDEN: dict[str, str] = {
    "segment": (
        "51565345474d4e54010000004b92101d2a0000000000000000401e18240a06000000000000000000"
        "000000000000000000000000000000000000000000000000"
    ),
    "index": (
        "5156494e444558310100000044000000bf52f4312a000000000000003c00000000000000d0070000"
        "00000000002000000000000002000000000000000700000040000000401000000000000000000080"
        "e803000000000000"
    ),
    "leader-epochs": (
        "515645504f434853010000001c000000ad88d69a0200000002000000000000000000000005000000"
        "1400000000000000"
    ),
    "recovery-point": (
        "51565245434f56520100000028000000d6a7a9ce3c000000000000002a0000000000000000200000"
        "000000002d000000000000003f00000000000000"
    ),
    "log-start": ("51564c4f475354410100000008000000309f52672d00000000000000"),
    "snapshot": ("515650524f445543010000000e0000009db8c6e62a00000000000000737461746573"),
    "metadata-log": (
        "51564d45544c4f47010000000000000010000000d098203a030000006f6e65050000007468726565"
    ),
    "clean-shutdown": (
        "5156434c45414e0001000000180000004325007a000102030405060708090a0b0c0d0e0f4d00000000000000"
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_bytes_are_those_of_the_format(name: str) -> None:
    made, expected = EXPECTED[name]
    assert made().hex() == expected.hex() == GOLDEN[name]


def test_node_json_and_partition_json() -> None:
    disk = SimDisk()
    directory = DataDirectory.open(disk, "n", node_id=3, entropy=lambda n: bytes(range(n)))
    assert disk.read_file("n/node.json") == (
        b'{"magic":"quiverlog-node","version":1,'
        b'"cluster_id":"000102030405060708090a0b0c0d0e0f","node_id":3,'
        b'"directory_id":"000102030405060708090a0b0c0d0e0f","crc32c":2347200280}\n'
    )
    assert directory.data.create_partition("t-0", bytes(range(16)))
    path = directory.data.partition_path("t-0")
    assert disk.read_file(f"{path}/partition.json") == (
        b'{"magic":"quiverlog-partition","version":1,'
        b'"topic_id":"000102030405060708090a0b0c0d0e0f","name":"t-0"}\n'
    )


# --- what else a reader may be given -------------------------------------------------------------
def load_segment(data: bytes) -> object:
    disk = SimDisk()
    disk.make_dir("d")
    file = disk.open("d/00000000000000000042.log", create=True)
    file.append([data])
    segment = Segment(disk, file.path, file, 42)
    segment.check_header()
    return segment.created_us


def load_epochs(data: bytes) -> object:
    found = LeaderEpochs(lambda: 30)
    found.load("e", data)
    return found.entries()


def load_metadata(data: bytes) -> object:
    disk = SimDisk()
    disk.make_dir("m")
    disk.write_file_atomic("m/metadata.log", data)
    try:
        return list(MetadataLog.open(disk, "m").records())
    except QuiverlogError:
        assert disk.read_file("m/metadata.log") == data, "a damaged file must be left as it is"
        raise


def load_clean(data: bytes) -> object:
    disk = SimDisk()
    DataDirectory.open(disk, "n", node_id=3, entropy=bytes).close(clean=False)
    disk.write_file_atomic("n/clean-shutdown", data)
    directory = DataDirectory.open(disk, "n", node_id=3, entropy=bytes)
    assert not disk.exists("n/clean-shutdown")
    return directory.clean


def load_point(disk: SimDisk) -> object:
    point, bounds, *_ = checkpoint.load_recovery_point(disk, "d", disk.list("d"))
    return point, bounds


def _from_disk(name: str, load: Callable[[SimDisk], object]) -> Callable[[bytes], object]:
    def loaded(data: bytes) -> object:
        disk = SimDisk()
        disk.make_dir("d")
        disk.write_file_atomic(f"d/{name}", data)
        return load(disk)

    return loaded


# name: (load, what the golden file gives, what a damaged one gives: an error or a fallback)
READERS: dict[str, tuple[Callable[[bytes], object], object, object]] = {
    "segment": (load_segment, 1_700_000_000_000_000, CorruptLog),
    "index": (
        lambda data: SparseIndex.load("i", data)[0],
        IndexSummary(42, 60, 2_000, 8_192),
        CorruptLog,
    ),
    "leader-epochs": (load_epochs, [(2, 0), (5, 20)], CorruptLog),
    "recovery-point": (
        _from_disk("recovery-point", load_point),
        (RecoveryPoint(60, 42, 8_192), Bounds(45, 63)),
        (RecoveryPoint(), Bounds(0, 0)),
    ),
    "log-start": (
        _from_disk("log-start", lambda disk: checkpoint.load_log_start(disk, "d", ["log-start"])),
        45,
        None,
    ),
    "snapshot": (
        _from_disk(
            "producers-00000000000000000042.snapshot",
            lambda disk: checkpoint.load_snapshot(disk, "d", 42),
        ),
        b"states",
        None,
    ),
    "metadata-log": (load_metadata, [b"one", b"three"], CorruptLog),
    "clean-shutdown": (load_clean, True, False),
}


def outcome(load: Callable[[bytes], object], data: bytes) -> object:
    try:
        return load(data)
    except QuiverlogError as error:
        return type(error)


@pytest.mark.parametrize("name", READERS)
def test_every_byte_counts(name: str) -> None:
    """One bit of every byte in turn. Only a version outside the checksum may be newer."""
    load, whole, damaged = READERS[name]
    data = bytes.fromhex(GOLDEN[name])
    assert load(data) == whole
    for at in range(len(data)):
        for bit in (0, 7):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            found = outcome(load, bytes(bad))
            if at in (8, 9) and name == "metadata-log":
                assert found is UnsupportedFormat, f"byte {at}: {found}"
            elif not ignored(name, at):
                assert found == damaged, f"byte {at}: {found}"


def ignored(name: str, at: int) -> bool:
    """Reserved bytes outside the checksum."""
    return at in range(10, {"segment": 12, "metadata-log": 16}.get(name, 10))


@pytest.mark.parametrize("name", READERS)
def test_every_length_counts(name: str) -> None:
    load, _, damaged = READERS[name]
    data = bytes.fromhex(GOLDEN[name])
    for size in range(len(data)):
        found = outcome(load, data[:size])
        if name == "metadata-log" and size >= 16:
            assert found == []  # An append that never finished.
        else:
            assert found == damaged, f"{size} bytes: {found}"


@pytest.mark.parametrize("name", READERS)
def test_newer_versions_are_refused(name: str) -> None:
    load, _, _ = READERS[name]
    data = bytearray.fromhex(GOLDEN[name])
    payload = bytes(data[20:])
    for version in (0, 2, 0xFFFF):
        bad = framed(bytes(data[:8]), payload, version)
        if name in ("segment", "metadata-log"):
            bad = bytes(data[:8]) + struct.pack("<H", version) + bytes(data[10:])
        if name == "segment" and version != 2:
            assert outcome(load, bad) is CorruptLog, "no release writes these"
        else:
            assert outcome(load, bad) is UnsupportedFormat


def test_the_header_of_a_segment_with_flushed_rows() -> None:
    header = pack_segment_header(42, 1_700_000_000_000_000, FlushedMark(63, 4_160), 45)
    body = struct.pack("<qqqQq8x", 42, 1_700_000_000_000_000, 63, 4_160, 45)
    assert header == b"QVSEGMNT" + struct.pack("<HHI", 1, 0, slow_crc32c(body)) + body
    load, _, _ = READERS["segment"]
    assert load(header) == 1_700_000_000_000_000


def test_a_recovery_point_without_bounds_is_damaged() -> None:
    load, _, damaged = READERS["recovery-point"]
    assert load(framed(b"QVRECOVR", struct.pack("<qqQ", 60, 42, 8_192))) == damaged


@pytest.mark.parametrize("version", [2, 3, 4, 15])
def test_a_newer_segment_with_another_layout_is_refused(version: int) -> None:
    load, _, _ = READERS["segment"]
    data = bytearray.fromhex(GOLDEN["segment"])
    data[8:10] = struct.pack("<H", version)
    data[40] ^= 1
    assert outcome(load, bytes(data)) is UnsupportedFormat


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"magic":"x"}', b"\xff\xfe"])
def test_a_damaged_node_json_stops_the_start(tmp_path: Path, bad: bytes) -> None:
    DataDirectory.open(PosixDisk(), str(tmp_path), node_id=0, entropy=bytes).close(clean=True)
    path = tmp_path / "node.json"
    path.write_bytes(bad)
    with pytest.raises(CorruptLog, match=r"node\.json"):
        DataDirectory.open(PosixDisk(), str(tmp_path), node_id=0, entropy=bytes)
    assert path.read_bytes() == bad
    assert (tmp_path / "clean-shutdown").exists()


def test_a_newer_node_json_is_refused(tmp_path: Path) -> None:
    DataDirectory.open(PosixDisk(), str(tmp_path), node_id=0, entropy=bytes).close(clean=True)
    path = tmp_path / "node.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        DataDirectory.open(PosixDisk(), str(tmp_path), node_id=0, entropy=bytes)
