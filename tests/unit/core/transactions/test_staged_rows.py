"""The bytes of rows of kinds 1 and 2 of `__staged`."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from quiverlog.core.transactions.staged_rows import (
    KIND_DONE,
    KIND_PUBLISH,
    DoneRow,
    End,
    PublishRow,
    PublishTarget,
    decode_row,
    encode_value,
)
from quiverlog.errors import CorruptLog, UnsupportedFormat

TOPIC = bytes(range(16))
PUBLISH = PublishRow(
    "orders",
    3,
    9,
    2**62 | 5 << 52 | 2 << 32 | 1,
    2,
    (PublishTarget(TOPIC, 4, array("q", [100, 103]), array("i", [7, 300])),),
)
DONE = DoneRow("orders", 3, 9, (End(TOPIC, 4, 1307, 307),), 2)


def test_golden_bytes_of_a_publish() -> None:
    golden = bytes.fromhex(
        "94" "01" "cf4050000200000001" "02"  # version, producer id, durability
        "91" "93" "c410" "000102030405060708090a0b0c0d0e0f" "04"  # one target
        "92" "93" "64" "00" "07" "93" "67" "07" "cd012c"  # offset, base sequence, rows: twice
    )  # fmt: skip
    assert encode_value(PUBLISH) == golden
    assert decode_row(KIND_PUBLISH, "orders", 3, 9, golden) == PUBLISH


def test_golden_bytes_of_the_end_of_a_publish() -> None:
    golden = bytes.fromhex(
        "93" "01" "91" "94" "c410" "000102030405060708090a0b0c0d0e0f" "04" "cd051b" "cd0133" "02"
    )  # fmt: skip
    assert encode_value(DONE) == golden
    assert decode_row(KIND_DONE, "orders", 3, 9, golden) == DONE


def test_a_publish_of_nothing_and_its_end() -> None:
    for kind, row in (
        (KIND_PUBLISH, PublishRow("a", 0, 0, 2**62, 3, ())),
        (KIND_DONE, DoneRow("a", 0, 0, (), 3)),
    ):
        assert decode_row(kind, "a", 0, 0, encode_value(row)) == row


def test_the_sequences_of_a_target_begin_at_0_and_follow_each_other() -> None:
    (target,) = PUBLISH.targets
    assert list(target.rows()) == [(100, 0, 7), (103, 7, 300)]
    assert PUBLISH.row_count == target.row_count == 307


@pytest.mark.parametrize("rows", [[(100, 1, 7)], [(100, 0, 7), (101, 8, 1)], [(100, 0, 7)] * 2])
def test_a_gap_in_the_sequences_is_damage(rows: list[tuple[int, int, int]]) -> None:
    value = msgspec.msgpack.encode([1, 2**62, 2, [[TOPIC, 4, rows]]])
    with pytest.raises(CorruptLog, match="partition 4: the sequences"):
        decode_row(KIND_PUBLISH, "a", 0, 0, value)


@pytest.mark.parametrize("kind", [KIND_PUBLISH, KIND_DONE])
def test_bytes_that_are_no_row(kind: int) -> None:
    whole = encode_value(PUBLISH if kind == KIND_PUBLISH else DONE)
    for size in range(len(whole)):
        with pytest.raises(CorruptLog, match=f"kind {kind} in `__staged` cannot be read"):
            decode_row(kind, "a", 0, 0, whole[:size])


@pytest.mark.parametrize("kind", [KIND_PUBLISH, KIND_DONE])
@pytest.mark.parametrize("value", [[2], [2, "another form"], [0, 5, 5, 5]])
def test_another_version(kind: int, value: list[object]) -> None:
    with pytest.raises(UnsupportedFormat, match=f"version {value[0]}, not 1"):
        decode_row(kind, "a", 0, 0, msgspec.msgpack.encode(value))


@pytest.mark.parametrize("kind", [-1, 0, 3])
def test_another_kind(kind: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"has kind {kind}"):
        decode_row(kind, "a", 0, 0, encode_value(DONE))


def test_elements_that_a_later_version_appends_are_passed_over() -> None:
    value = msgspec.msgpack.encode([1, [[TOPIC, 4, 1307, 307]], 2, "later"])
    assert decode_row(KIND_DONE, "orders", 3, 9, value) == DONE
