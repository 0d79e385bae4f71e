"""The frame of small files: every flipped bit is damage, also one in the version."""

from __future__ import annotations

import pytest

from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.storage.disk.frames import pack_file, unpack_file

MAGIC = b"QVTESTED"


def test_every_flipped_bit_is_damage() -> None:
    data = pack_file(MAGIC, 1, b"payload")
    assert unpack_file("f", data, MAGIC, 1) == b"payload"
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            unpack_file("f", bytes(flipped), MAGIC, 1)


def test_a_newer_version_is_not_damage() -> None:
    with pytest.raises(UnsupportedFormat):
        unpack_file("f", pack_file(MAGIC, 2, b"payload"), MAGIC, 1)
