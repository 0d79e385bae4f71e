"""The offset up to which rows have a level of durability.

`flushed` and `memory` are promises of the leader alone, and with several replicas they end with its
leadership.
"""

from __future__ import annotations

from typing import Final, Protocol

from quiverlog.types import Durability

__all__ = ["Positions", "safe_offset"]

# Looking a member up in its enum costs more than the comparison, on every request.
_MEMORY: Final = int(Durability.MEMORY)
_FLUSHED: Final = int(Durability.FLUSHED)
_REPLICATED: Final = int(Durability.REPLICATED)
_REPLICATED_FLUSHED: Final = int(Durability.REPLICATED_FLUSHED)


class Positions(Protocol):
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
    if level == _REPLICATED:
        return positions.high_watermark
    if level == _REPLICATED_FLUSHED:
        return min(positions.high_watermark, positions.replicas_flushed_offset)
    assert level in (_MEMORY, _FLUSHED), f"{level} is no level of durability"
    own = positions.flushed_offset if level == _FLUSHED else positions.log_end_offset
    assert own <= positions.log_end_offset, "what is not there is on no disk"
    # A topic with one replica has no safer level, and a move is no failure: the next leader must
    # have every acknowledged row.
    return min(own, positions.high_watermark) if positions.may_be_taken_over else own
