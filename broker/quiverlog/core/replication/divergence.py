"""Where two copies of a log part, seen from the one that leads.

Owns one rule. A reader or a copy that ends at `offset`, its newest epoch `last_epoch`, agrees with
this log if that epoch is known here and goes up to `offset` at least (KIP-101, KIP-320). Else it is
told the newest epoch that both may share, and where that ended here.
"""

from __future__ import annotations

from typing import Protocol

from quiverlog.types import NO_EPOCH

__all__ = ["Epochs", "diverging"]


class Epochs(Protocol):
    """Which leader epoch began where."""

    def latest(self) -> tuple[int, int]: ...

    def end_offset_for(self, epoch: int) -> tuple[int, int]: ...


def diverging(epochs: Epochs, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """(epoch, its end here) where the logs part; None: they agree, as far as can be said.

    (NO_EPOCH, -1): this log never had so new an epoch.
    """
    if last_epoch == NO_EPOCH:
        return None
    epoch, end_offset = epochs.end_offset_for(last_epoch)
    if epoch == last_epoch and end_offset >= offset:
        return None
    return epoch, end_offset
