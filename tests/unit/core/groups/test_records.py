"""The rows of `__groups`: their bytes, and rows that this broker cannot read."""

from __future__ import annotations

import msgspec
import pytest

from quiverlog.core.groups.records import (
    Current,
    Entry,
    GroupRow,
    GroupType,
    Held,
    Kind,
    Member,
    Observed,
    Offset,
    Pending,
    Position,
    Record,
    Share,
    Target,
    Value,
    decode_row,
    encode_row,
    key_of,
    partition_of,
)
from quiverlog.errors import CorruptLog, UnsupportedFormat

T = b"t" * 16
T_HEX = "c410" + T.hex()
KEY = T + b"\0\0\0\7"

# Written by hand from the msgpack specification: 9x an array of x, c4 bytes, ax a text, cx numbers.
GOLDEN: list[tuple[Kind, bytes, Value, str]] = [
    (
        Kind.GROUP,
        b"",
        GroupRow(GroupType.CONSUMER, 300, "range", b"d", 5),
        "96 01 01 cd012c a572616e6765 c40164 05",
    ),
    (
        Kind.MEMBER,
        b"m",
        Member(("a", "b"), "r", "i", "c", "h", 900, 300, 7, True),
        "9a 01 92 a161 a162 a172 a169 a163 a168 cd0384 cd012c 07 c3",
    ),
    (Kind.TARGET, b"m", Target(4, (Share(T, (0, 2)),)), f"93 01 04 91 92 {T_HEX} 92 00 02"),
    (Kind.TARGET, b"", Target(4), "93 01 04 90"),
    (
        Kind.CURRENT,
        b"m",
        Current(5, 4, 9, (Held(T, (0, 2), (3, 5)),), (Held(T, (1,), (3,)),)),
        f"96 01 05 04 09 91 93 {T_HEX} 92 00 02 92 03 05 91 93 {T_HEX} 91 01 91 03",
    ),
    (Kind.OFFSET, KEY, Offset(300, -1, "x", 5), "95 01 cd012c ff a178 05"),
    (
        Kind.PENDING,
        b"app",
        Pending(3, 7, b"d", 300, (Entry(T, 7, 300, 2, ""),), 5),
        f"99 01 03 07 c40164 cd012c 91 95 {T_HEX} 07 cd012c 02 a0 05 00 c2",
    ),
    (
        Kind.OBSERVED,
        b"q",
        Observed("query", (Position(T, 1, 300, 2),), 0.5, 5),
        f"95 01 a57175657279 91 94 {T_HEX} 01 cd012c 02 cb3fe0000000000000 05",
    ),
]


@pytest.mark.parametrize(("kind", "key", "value", "row"), GOLDEN, ids=lambda one: str(one)[:20])
def test_the_bytes_of_a_row(kind: Kind, key: bytes, value: Value, row: str) -> None:
    data = bytes.fromhex(row)
    assert encode_row(Record(kind, "g", key, value)) == (int(kind), "g", key, data)
    assert decode_row(int(kind), "g", key, data) == Record(kind, "g", key, value)
    # Of a snapshot the kind is 16 more.
    of_state = Record(kind, "g", key, value, is_state=True)
    assert encode_row(of_state) == (kind + 16, "g", key, data)
    assert decode_row(kind + 16, "g", key, data) == of_state


@pytest.mark.parametrize("kind", Kind)
def test_an_empty_value_deletes(kind: Kind) -> None:
    key = KEY if kind is Kind.OFFSET else b""
    assert encode_row(Record(kind, "g", key)) == (int(kind), "g", key, b"")
    assert decode_row(int(kind), "g", key, b"") == Record(kind, "g", key)


def test_the_numbers_of_kinds_never_change() -> None:
    assert {one.name: int(one) for one in Kind} == {
        "GROUP": 1, "MEMBER": 2, "TARGET": 3, "CURRENT": 4, "OFFSET": 5, "PENDING": 6,
        "OBSERVED": 7, "SNAPSHOT_BEGIN": 8, "SNAPSHOT_END": 9,
    }  # fmt: skip
    assert {one.label: int(one) for one in GroupType} == {"consumer": 1, "observer": 2, "simple": 3}


def test_fields_that_a_later_broker_appends_are_passed_over() -> None:
    value = msgspec.msgpack.encode([1, 300, 2, "m", 5, "new field"])
    assert decode_row(5, "g", KEY, value).value == Offset(300, 2, "m", 5)


def test_a_later_version_is_told_from_damage() -> None:
    with pytest.raises(UnsupportedFormat, match="kind 5, has version 2"):
        decode_row(5, "g", KEY, msgspec.msgpack.encode([2, "other"]))
    for kind in (0, 10, 16, 26, -1):
        with pytest.raises(UnsupportedFormat, match=f"unknown kind {kind}"):
            decode_row(kind, "g", b"", b"")


@pytest.mark.parametrize("value", [b"\xc1", b"\x90", b"\x91\x01", b"\x95\x01\xa1x\xa1y\x01\x01"])
def test_a_damaged_row(value: bytes) -> None:
    with pytest.raises(CorruptLog, match="kind 5"):
        decode_row(5, "g", KEY, value)


@pytest.mark.parametrize("key", [b"", T, KEY + b"x"])
def test_a_damaged_key(key: bytes) -> None:
    with pytest.raises(CorruptLog, match=f"a key of {len(key)} bytes"):
        decode_row(5, "g", key, b"")


def test_the_key_of_a_partition() -> None:
    assert key_of((T, 7)) == KEY
    assert partition_of(KEY) == (T, 7)
