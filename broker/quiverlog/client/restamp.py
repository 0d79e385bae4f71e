"""Give an encoded batch another producer's numbers.

Needed when a batch before it failed for good: its producer id and sequence lie under the checksum,
which is made anew (some 35 us a MiB; encoding again would cost far more).
"""

from __future__ import annotations

from quiverlog.batch.codec import Encoded, write_crc
from quiverlog.batch.header import BatchHeader

__all__ = ["restamp"]


def restamp(batch: Encoded, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write the numbers and the new checksum into a whole encoded batch."""
    header = BatchHeader.unpack(batch)
    assert header.total_bytes == len(batch)
    header._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    ).pack_into(batch)
    write_crc(batch)
