"""The rows of `__transactions`: their bytes, and rows that this broker cannot read."""

from __future__ import annotations

import msgspec
import pytest

from quiverlog.core.transactions.records import (
    Change,
    Closed,
    Committed,
    End,
    Forgotten,
    Last,
    Opened,
    Part,
    Published,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotState,
    decode_row,
    digest_of,
    encode_row,
    instance_hash,
)
from quiverlog.errors import CorruptLog, UnsupportedFormat

A, B = b"a" * 16, b"b" * 16
TOPIC = b"t" * 16
COMMITTED = Committed(3, 7, b"d", (A, B), (Part(4, 10, 30, 5, (0, 1)),), -1, 9, 5)

# Written by hand from the msgpack specification: 9x an array of x, c4 bytes, ax a text, cx numbers.
GOLDEN: list[tuple[Change, int, str]] = [
    (Opened(3, b"i", "c", 900, False, 5), 1, "97 01 03 c40169 a163 cd0384 c2 05"),
    (
        COMMITTED,
        2,
        "9b 01 03 07 c40164 92 c410" + A.hex() + "c410" + B.hex() + "91 95 04 0a 1e 05 92 00 01"
        " ff 09 05 90 02",
    ),
    (
        Published(7, (End(TOPIC, 2, 300),), 2),
        3,
        "94 01 07 91 93 c410" + TOPIC.hex() + "02 cd012c 02",
    ),
    (Closed(4, "aborted"), 4, "93 01 04 a761626f72746564"),
    (Forgotten(), 5, "91 01"),
    (SnapshotBegin(12), 6, "92 01 0c"),
    (
        SnapshotState(
            4,
            b"i",
            "c",
            900,
            True,
            5,
            "aborted",
            3,
            (b"12345678",),
            Last(3, 7, b"d", 9, 5, 2),
            None,
            (End(TOPIC, 2, 300),),
        ),
        7,
        "9d 01 04 c40169 a163 cd0384 c3 05 a761626f72746564 03 91 c4083132333435363738"
        " 96 03 07 c40164 09 05 02 c0 91 93 c410" + TOPIC.hex() + "02 cd012c",
    ),
    (SnapshotEnd(), 8, "91 01"),
]


@pytest.mark.parametrize(("change", "kind", "value"), GOLDEN, ids=lambda one: type(one).__name__)
def test_the_bytes_of_a_row(change: Change, kind: int, value: str) -> None:
    assert encode_row(Record("app", change)) == (kind, "app", bytes.fromhex(value))
    assert decode_row(kind, "app", bytes.fromhex(value)) == Record("app", change)


def test_a_state_with_what_is_being_published_survives() -> None:
    state = SnapshotState(3, b"i", "c", 900, False, 5, publishing=COMMITTED)
    assert decode_row(*encode_row(Record("app", state))) == Record("app", state)


def test_fields_that_a_later_broker_appends_are_passed_over() -> None:
    value = msgspec.msgpack.encode([1, 4, "aborted", "new field"])
    assert decode_row(4, "app", value) == Record("app", Closed(4, "aborted"))


def test_a_row_without_the_fields_that_were_appended() -> None:
    value = msgspec.msgpack.encode([1, 7, []])
    assert decode_row(3, "app", value) == Record("app", Published(7))


def test_a_later_version_is_told_from_damage() -> None:
    with pytest.raises(UnsupportedFormat, match="kind 4, has version 2"):
        decode_row(4, "app", msgspec.msgpack.encode([2, "other"]))
    with pytest.raises(UnsupportedFormat, match="unknown kind 9"):
        decode_row(9, "app", b"")
    with pytest.raises(UnsupportedFormat, match="unknown kind 0"):
        decode_row(0, "app", msgspec.msgpack.encode([1]))


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\x91\x01", b"\x93\x01\xa1x\xa1y"])
def test_a_damaged_row(value: bytes) -> None:
    with pytest.raises(CorruptLog, match="kind 4"):
        decode_row(4, "app", value)


def test_the_digest_is_of_attempts_and_rows_in_any_order() -> None:
    assert digest_of([(A, 1), (B, 2)]) == digest_of([(B, 2), (A, 1)])
    different = {digest_of(pairs) for pairs in ([], [(A, 1)], [(A, 2)], [(B, 1)], [(A, 2), (B, 1)])}
    assert len(different) == 5
    assert {len(one) for one in different} == {32}


def test_hashes_of_instances_are_short() -> None:
    assert len(instance_hash(b"x" * 64)) == 8
    assert instance_hash(b"one") != instance_hash(b"two")
