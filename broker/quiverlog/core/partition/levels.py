"""What a level of durability rests on: how far rows are as safe as it promises.

`flushed` and `memory` are promises of the leader alone, and with several replicas they end with its
leadership. With one replica there is nothing safer to ask for, and a move is no failure: while one
is copied, its rows are acknowledged when those in sync have them too, so that whoever takes over
has every row that was acknowledged.

Must not know: requests, who waits.
"""

from __future__ import annotations

from typing import Final, Protocol

from quiverlog.types import Durability

__all__ = ["Positions", "safe_offset"]

# Looking a member of an enum up costs as much as five comparisons, on every request.
_MEMORY: Final = int(Durability.MEMORY)
_FLUSHED: Final = int(Durability.FLUSHED)
_REPLICATED: Final = int(Durability.REPLICATED)
_REPLICATED_FLUSHED: Final = int(Durability.REPLICATED_FLUSHED)


class Positions(Protocol):
    """How far each kind of safety has come (partition.py)."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def replicas_flushed_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def may_be_taken_over(self) -> bool: ...


def safe_offset(level: int, positions: Positions) -> int:
    """Rows below the answer are as safe as `level` promises."""
    if level == _REPLICATED:
        return positions.high_watermark
    if level == _REPLICATED_FLUSHED:
        return min(positions.high_watermark, positions.replicas_flushed_offset)
    assert level in (_MEMORY, _FLUSHED), f"{level} is no level of durability"
    own = positions.flushed_offset if level == _FLUSHED else positions.log_end_offset
    assert own <= positions.log_end_offset, "what is not there is on no disk"
    return min(own, positions.high_watermark) if positions.may_be_taken_over else own
