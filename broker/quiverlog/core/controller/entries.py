"""What follows from a broker's coming or going, as entries of the metadata log.

Owns the one rule: it is one entry, which is applied as a whole. Only what is larger than an entry
may be takes several, and then the controller may be lost between two of them. So they stand in an
order in which the image is sound after each, and in which the rest is decided again:
- Who is fenced, stops, or begins a new life loses its partitions first, the record about itself
  comes last: no partition is led by somebody fenced, and the next controller, to whom the broker is
  still unfenced, fences it once more with what is left.
- Who is unfenced is so first: nobody leads who is not.

Must not know: what the records mean for partitions, how entries are agreed on.
"""

from __future__ import annotations

from quiverlog.core.controller.records import BrokerChangeRecord, Record, encode_entry

__all__ = ["in_entries"]


def in_entries(records: list[Record], entry_bytes_max: int) -> list[list[Record]]:
    """The first record is about the broker, the others are about partitions."""
    assert records
    assert entry_bytes_max > 0
    if len(encode_entry(records)) <= entry_bytes_max:
        return [records]
    own, following = records[:1], _bounded(records[1:], entry_bytes_max)
    is_unfencing = isinstance(own[0], BrokerChangeRecord) and own[0].fenced is False
    return [own, *following] if is_unfencing else [*following, own]


def _bounded(records: list[Record], entry_bytes_max: int) -> list[list[Record]]:
    """In their order. A record that is too large by itself is refused where it is proposed."""
    if len(records) <= 1 or len(encode_entry(records)) <= entry_bytes_max:
        return [records] if records else []
    half = len(records) // 2
    return [*_bounded(records[:half], entry_bytes_max), *_bounded(records[half:], entry_bytes_max)]
