"""What a reader says of itself in FETCH and LIST_OFFSETS.

Owns the refusal of what this broker cannot keep: a level of isolation that does not exist, a
follower where nothing is replicated. A reader that is answered may rely on what it asked for.
"""

from __future__ import annotations

from typing import Final

from quiverlog.errors import InvalidRequest
from quiverlog.types import IsolationLevel

__all__ = ["check_is_consumer", "check_isolation"]

_ISOLATION_LEVELS: Final = frozenset(map(int, IsolationLevel))
"""Both levels show the same rows as long as there are no transactions."""
_CONSUMER: Final = -1


def check_isolation(level: int) -> None:
    """Refuse a level of isolation that does not exist.

    Raises:
        InvalidRequest: it is neither 0 nor 1.
    """
    if level not in _ISOLATION_LEVELS:
        raise InvalidRequest(
            f"no isolation level has the number {level}: 0 is read uncommitted, 1 read committed."
        )


def check_is_consumer(replica_id: int) -> None:
    """Refuse a follower: it would take the high watermark for the end of the log.

    Raises:
        InvalidRequest: the reader says that it is a replica.
    """
    if replica_id != _CONSUMER:
        raise InvalidRequest(
            f"replica_id {replica_id} is a follower's, and this broker has none: give -1."
        )
