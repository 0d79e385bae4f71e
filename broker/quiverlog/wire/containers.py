"""How many arrays and maps a msgpack header has, counted without decoding it.

Owns the bound on messages of lists within lists. An empty array takes one byte of a header and some
two hundred of memory once it is a part with lists of its own: the bound on each list and the bound
on the header's bytes alone would let one answer cost 750 MiB.
"""

from __future__ import annotations

from typing import Final

from quiverlog.errors import QuiverlogError
from quiverlog.limits import RESPONSE_CONTAINERS_MAX

__all__ = ["check_containers", "count_containers"]

_MARKS: Final = bytes((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
"""Bytes with which an array or a map begins. They also occur inside of texts and numbers."""
_LENGTH_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Binaries and texts: the mark is followed by so many bytes of length, then by so many bytes."""
_EXTENSION_BYTES: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""Extensions: as binaries, with a byte of type in between."""
_SIZES: Final = {
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), 1),
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xD4, 0xDC, 0xDE), 3),
    0xD5: 4,
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDD, 0xDF), 5),
    0xD6: 6,
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    0xD7: 10,
    0xD8: 18,
}
"""All other values, with their mark. What is inside of an array or map follows it."""


def check_containers(
    header: memoryview | bytes,
    error: type[QuiverlogError],
    count_max: int = RESPONSE_CONTAINERS_MAX,
) -> None:
    """Raise `error` for a header with more arrays and maps than it may have, as an answer does."""
    if len(header) <= count_max:
        return  # Each takes a byte at least.
    data = bytes(header)
    if len(data) - len(data.translate(None, _MARKS)) <= count_max:
        return
    if count_containers(data, count_max) > count_max:
        raise error(f"this header has at most {count_max} arrays and maps.")


def count_containers(data: bytes, count_max: int) -> int:
    """Arrays and maps of a msgpack value; the count ends above `count_max`."""
    assert count_max >= 0
    at = count = 0
    while at < len(data) and count <= count_max:
        mark = data[at]
        if mark < 0x80 or mark >= 0xE0:
            at += 1
        elif mark < 0xA0:
            at += 1
            count += 1
        elif mark < 0xC0:
            at += 1 + (mark & 0x1F)
        elif width := _LENGTH_BYTES.get(mark, 0):
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        elif width := _EXTENSION_BYTES.get(mark, 0):
            at += 2 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        else:
            at += _SIZES[mark]
            count += mark >= 0xDC
    return count
