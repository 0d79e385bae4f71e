"""A reader or follower that ends at `offset` with newest epoch `last_epoch` agrees with this log if
that epoch reaches at least to `offset` here (KIP-101, KIP-320). Otherwise it gets the newest epoch
that both may share, and where that ended here."""

from __future__ import annotations

from typing import Protocol

from quiverlog.types import NO_EPOCH

__all__ = ["Epochs", "diverging"]


class Epochs(Protocol):
    def latest(self) -> tuple[int, int]: ...

    def end_offset_for(self, epoch: int) -> tuple[int, int]: ...


def diverging(epochs: Epochs, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """Return (epoch, its end here) where the logs diverge, if they do.

    (NO_EPOCH, -1): `last_epoch` is newer than all epochs of this log.
    """
    if last_epoch == NO_EPOCH:
        return None
    epoch, end_offset = epochs.end_offset_for(last_epoch)
    if epoch == last_epoch and end_offset >= offset:
        return None
    return epoch, end_offset
