"""`dump-log` on good, torn and damaged segment files."""

from __future__ import annotations

import json
import tempfile
from array import array
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import BatchHeader, stamp, stamp_times
from quiverlog.cli import main
from quiverlog.cli.tools.dump_log import DumpedBatch, walk
from quiverlog.core.controller.internal_topics import (
    GROUPS,
    INTERNAL_TOPICS,
    STAGED,
    TRANSACTIONS,
)
from quiverlog.core.groups import records as groups
from quiverlog.core.transactions.records import (
    Committed,
    Forgotten,
    Opened,
    Part,
    Record,
    encode_row,
)
from quiverlog.core.transactions.staged_rows import (
    DoneRow,
    End,
    PublishRow,
    PublishTarget,
    encode_value,
)
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.segment.segment import Segment
from quiverlog.types import Compression

SEGMENT_HEADER = 64


def batches(*row_counts: int, first: int = 100) -> bytes:
    parts = []
    for count in row_counts:
        rows = pa.record_batch({"id": pa.array(range(count), pa.int64())})
        batch = encode_batch(
            rows, schema_id=3, timestamp_us=1_700_000_000_000_000, compression=Compression.LZ4,
            producer_id=7, producer_epoch=1, base_sequence=first,
        )  # fmt: skip
        stamp(batch, 0, first, 5)
        parts.append(bytes(batch))
        first += count
    return b"".join(parts)


@cache
def header(first: int) -> bytes:
    """The first bytes of a segment, as storage itself writes them."""
    with tempfile.TemporaryDirectory() as directory:
        made = Segment.create(PosixDisk(), directory, first, 1)
        made.file.close()
        return Path(made.path).read_bytes()


def segment(*row_counts: int, first: int = 100) -> bytes:
    return header(first) + batches(*row_counts, first=first)


def dump(capsys, path: Path, content: bytes, *flags: str) -> tuple[int, dict]:
    path.write_bytes(content)
    code = main(["dump-log", str(path), "--format", "json", *flags])
    (result,) = json.loads(capsys.readouterr().out)
    return code, result


def test_a_good_segment(tmp_path: Path, capsys):
    code, result = dump(capsys, tmp_path / "s.log", segment(10, 1, 5))
    assert (code, result["problems"], result["rows"]) == (0, [], 16)
    offsets = [(b["base_offset"], b["last_offset"], b["row_count"]) for b in result["batches"]]
    assert offsets == [(100, 109, 10), (110, 110, 1), (111, 115, 5)]
    first = result["batches"][0]
    assert (first["position"], first["crc_ok"]) == (SEGMENT_HEADER, True)
    assert (first["leader_epoch"], first["schema_id"], first["compression"]) == (5, 3, "lz4")
    assert (first["producer_id"], first["producer_epoch"], first["base_sequence"]) == (7, 1, 100)
    assert first["timestamp_max_us"] == 1_700_000_000_000_000


def test_a_segment_without_batches(tmp_path: Path, capsys):
    assert dump(capsys, tmp_path / "s.log", segment()) == (
        0,
        {"file": str(tmp_path / "s.log"), "batches": [], "rows": 0, "problems": []},
    )


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"PK and so on" * 10, batches(1)])
def test_other_files_are_no_segments(tmp_path: Path, capsys, content):
    code, result = dump(capsys, tmp_path / "s.log", content)
    assert code == 4
    assert len(result["problems"]) == 1


def test_a_flipped_bit_is_found_and_the_rest_still_shown(tmp_path: Path, capsys):
    content = bytearray(segment(10, 10, 10))
    length = (len(content) - SEGMENT_HEADER) // 3
    content[SEGMENT_HEADER + length + 200] ^= 4
    code, result = dump(capsys, tmp_path / "s.log", bytes(content))
    assert (code, result["rows"]) == (4, 20)
    assert [b["crc_ok"] for b in result["batches"]] == [True, False, True]
    assert result["problems"] == [
        f"position {SEGMENT_HEADER + length}: damaged: {length} bytes, offsets 110 to 119 "
        "cannot be read"
    ]
    _, only = dump(capsys, tmp_path / "s.log", bytes(content), "--problems")
    assert [b["base_offset"] for b in only["batches"]] == [110]


@pytest.mark.parametrize("cut", [1, 63, 64, 100])
def test_a_torn_end_is_named(tmp_path: Path, capsys, cut):
    whole, more = segment(10), batches(10, first=110)
    code, result = dump(capsys, tmp_path / "s.log", whole + more[:cut])
    assert code == 4
    assert len(result["batches"]) == 1
    (problem,) = result["problems"]
    assert problem.startswith(f"position {len(whole)}: torn: {cut} bytes")


def test_a_hole_between_offsets_is_damage(tmp_path: Path, capsys):
    code, result = dump(capsys, tmp_path / "s.log", segment(10) + batches(1, first=120))
    assert code == 4
    assert result["problems"]


def test_the_table_has_a_line_per_batch(tmp_path: Path, capsys):
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(segment(10, 1))
    assert main(["dump-log", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 batches, 11 rows" in out
    assert "2023-11-14 22:13:20" in out


DAMAGED = st.builds(
    lambda cut, tail: segment(2)[:cut] + tail, st.integers(60, 400), st.binary(max_size=200)
)


@given(st.binary(max_size=300) | DAMAGED)
def test_any_bytes_can_be_walked(content):
    end = 0
    for found in walk(memoryview(content)):
        if isinstance(found, DumpedBatch):
            assert found.position >= end
            end = found.position + found.size_bytes
    assert end <= len(content)


# --- internal topics ------------------------------------------------------------------------------
def internal_file(tmp_path: Path, topic: str, *rows: tuple[object, ...]) -> tuple[Path, bytes]:
    """The path of a segment of the topic, and its bytes: a batch for each row."""
    schema = INTERNAL_TOPICS[topic].schema
    content, offset = header(0), 0
    for row in rows:
        columns = [pa.array([value], kind) for value, kind in zip(row, schema.types, strict=True)]
        rows_of_batch = pa.record_batch(columns, schema=schema)
        batch = encode_batch(rows_of_batch, schema_id=1, timestamp_us=0)
        stamp(batch, 0, offset, 1)
        content, offset = content + bytes(batch), offset + 1
    directory = tmp_path / f"{topic}-3"
    directory.mkdir()
    return directory / f"{0:020}.log", content


def test_decisions_are_readable(tmp_path: Path, capsys):
    part = Part(1, 4, 9, 5, (0,))
    committed = Committed(3, 7, b"\1\2", (bytes(16),), (part,), -1, 99, 5)
    opened = Opened(3, b"one", "c", 1_000, False, 98)
    rows = [encode_row(Record("app", one)) for one in (opened, committed, Forgotten())]
    path, content = internal_file(tmp_path, TRANSACTIONS, *rows)
    code, result = dump(capsys, path, content)
    assert (code, result["problems"]) == (0, [])
    one, two, three = (record for batch in result["batches"] for record in batch["records"])
    assert (one["offset"], one["kind"], one["transactional_id"]) == (0, "Opened", "app")
    assert (one["epoch"], one["instance"], one["client_id"]) == (3, b"one".hex(), "c")
    assert (two["kind"], two["sequence"], two["digest"]) == ("Committed", 7, "0102")
    assert two["attempts"] == ["00" * 16]
    assert two["parts"][0]["first_offset"] == 4
    assert three == {"offset": 2, "kind": "Forgotten", "transactional_id": "app"}
    assert main(["dump-log", str(path)]) == 0
    out = capsys.readouterr().out
    assert "1  Committed  transactional_id=app epoch=3 sequence=7 digest=0102" in out


def test_rows_of_groups_are_readable(tmp_path: Path, capsys):
    topic_id = b"t" * 16
    share = groups.Share(topic_id, (1, 2))
    header = groups.GroupRow(groups.GroupType.SIMPLE, 4, "")
    offset = groups.Offset(9, 2, "me", 5)
    pending = groups.Pending(1, 2, b"\1", 3)
    rows = [
        groups.Record(groups.Kind.GROUP, "g", b"", header),
        groups.Record(groups.Kind.TARGET, "g", b"m" * 16, groups.Target(4, (share,))),
        groups.Record(groups.Kind.OFFSET, "g", groups.key_of((topic_id, 7)), offset, is_state=True),
        groups.Record(groups.Kind.OFFSET, "g", groups.key_of((topic_id, 8))),
        groups.Record(groups.Kind.PENDING, "g", b"tid", pending),
        groups.Record(groups.Kind.SNAPSHOT_END, ""),
    ]
    encoded = [groups.encode_row(one) for one in rows]
    path, content = internal_file(tmp_path, GROUPS, *encoded)
    code, result = dump(capsys, path, content)
    assert (code, result["problems"]) == (0, [])
    found = [record for batch in result["batches"] for record in batch["records"]]
    assert (found[0]["kind"], found[0]["group"], found[0]["group_type"]) == ("group", "g", 3)
    assert found[1]["key"] == (b"m" * 16).hex()
    assert found[1]["shares"] == [{"topic_id": topic_id.hex(), "partitions": [1, 2]}]
    assert (found[2]["offset"], found[2]["partition"], found[2]["committed_offset"]) == (2, 7, 9)
    assert found[2]["metadata"] == "me"
    assert found[2]["is_state"]
    assert found[3] == {
        "offset": 3, "kind": "offset", "group": "g", "topic_id": topic_id.hex(), "partition": 8,
        "deleted": True,
    }  # fmt: skip
    assert found[4]["transactional_id"] == "tid"
    assert found[5] == {"offset": 5, "kind": "snapshot_end"}


def test_staged_rows_are_readable(tmp_path: Path, capsys):
    topic_id, attempt = b"t" * 16, b"a" * 16
    target = PublishTarget(topic_id, 4, array("q", [0, 1]), array("i", [2, 3]))
    publish = PublishRow("app", 3, 7, 2**62, 2, (target,))
    done = DoneRow("app", 3, 7, (End(topic_id, 4, 15, 5),), 2)
    rows = [
        (0, "app", 3, 7, attempt, topic_id, 4, 2, b"a batch"),
        (1, "app", 3, 7, b"", b"", -1, 0, encode_value(publish)),
        (2, "app", 3, 7, b"", b"", -1, 0, encode_value(done)),
    ]
    path, content = internal_file(tmp_path, STAGED, *rows)
    code, result = dump(capsys, path, content)
    assert (code, result["problems"]) == (0, [])
    one, two, three = (record for batch in result["batches"] for record in batch["records"])
    key = {"transactional_id": "app", "epoch": 3, "sequence": 7}
    assert one == {
        "offset": 0, "kind": "Staged", **key, "attempt": attempt.hex(),
        "topic_id": topic_id.hex(), "partition": 4, "row_count": 2, "byte_count": 7,
    }  # fmt: skip
    assert two == {
        "offset": 1, "kind": "Publish", **key, "producer_id": 2**62, "durability": 2,
        "targets": [{"topic_id": topic_id.hex(), "partition": 4, "batches": 2, "rows": 5}],
    }  # fmt: skip
    assert (three["offset"], three["kind"], three["durability"]) == (2, "Done", 2)
    assert three["ends"] == [
        {"topic_id": topic_id.hex(), "partition": 4, "end_offset": 15, "row_count": 5}
    ]
    # Elsewhere the same bytes are rows of a user.
    _, result = dump(capsys, tmp_path / "s.log", content)
    assert "records" not in result["batches"][0]


@pytest.mark.parametrize(
    ("topic", "row"),
    [
        (TRANSACTIONS, (2, "app", b"\xc1")),
        (TRANSACTIONS, (99, "app", b"\x91\x01")),
        (STAGED, (1, "app", 3, 7, b"", b"", -1, 0, b"\xc1")),
        (STAGED, (9, "app", 3, 7, b"", b"", -1, 0, b"\x91\x01")),
    ],
)
def test_a_row_that_cannot_be_read_is_a_problem(tmp_path: Path, capsys, topic, row):
    path, content = internal_file(tmp_path, topic, row)
    code, result = dump(capsys, path, content)
    assert code == 4
    (problem,) = result["problems"]
    assert problem.startswith(f"position {SEGMENT_HEADER}: row 0: ")
    assert result["batches"][0]["records"] == []


def test_a_long_list_is_counted_in_the_table(tmp_path: Path, capsys):
    attempts = tuple(n.to_bytes(16, "big") for n in range(11))
    rows = [
        encode_row(Record("app", Committed(3, n, b"", attempts[: 10 + n], (), -1, 99, 5)))
        for n in (0, 1)
    ]
    path, content = internal_file(tmp_path, TRANSACTIONS, *rows)
    path.write_bytes(content)
    assert main(["dump-log", str(path)]) == 0
    ten, eleven = (x for x in capsys.readouterr().out.splitlines() if "Committed" in x)
    assert f"{9:032x}]" in ten
    assert "attempts=11 of them" in eleven


def test_text_that_is_none_is_a_problem(tmp_path: Path, capsys):
    row = encode_row(Record("an id", Forgotten()))
    path, content = internal_file(tmp_path, TRANSACTIONS, row)
    batch = bytearray(content[SEGMENT_HEADER:])
    at = batch.index(b"an id")
    batch[at : at + 5] = b"\xff" * 5
    # With the checksum of these bytes.
    stamp_times(memoryview(batch), BatchHeader.unpack(batch), 0)
    code, result = dump(capsys, path, content[:SEGMENT_HEADER] + bytes(batch))
    assert code == 4
    assert "row 0" in result["problems"][0]
