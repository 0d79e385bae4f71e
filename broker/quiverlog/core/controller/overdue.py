"""Which version of the metadata every live broker has to know by now.

Owns what the controller knew when, for three sessions. Who is told that it has caught up may lead
for a session more (docs/adr/0042). So a broker whose metadata come later than three sessions leads
nothing after four, whatever they say: before somebody who leads in its place may show more rows
than it has, because it has copied none for the lag time (`REPLICA_LAG_MS_MAX`, five sessions).

A controller that begins does not know when what it knows was decided: that is due a session later.

Must not know: brokers, what is in the metadata.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Overdue"]

_SESSIONS: Final = 3
_STEPS_PER_SESSION: Final = 10
_NONE: Final = -1


class Overdue:
    """See the module docstring."""

    __slots__ = ("_due", "_known", "_session_us")

    def __init__(self, session_us: int) -> None:
        assert session_us > 0
        self._session_us = session_us
        self._due = _NONE
        # (moment from which on it is due, version), both ascending.
        self._known: deque[tuple[int, int]] = deque()

    def begin(self, version: int, now_us: int) -> None:
        """This node decides from now on, and knows this version."""
        assert version >= 0
        self._due = _NONE
        self._known.clear()
        self._known.append((now_us + self._session_us, version))

    def version(self, known_here: int, now_us: int) -> int:
        """What is due now; `known_here`: what this node knows by now."""
        while self._known and self._known[0][0] <= now_us:
            self._due = self._known.popleft()[1]
        newest_us, newest = self._known[-1] if self._known else (0, self._due)
        due_us = now_us + _SESSIONS * self._session_us
        if known_here > newest and due_us >= newest_us + self._session_us // _STEPS_PER_SESSION:
            self._known.append((due_us, known_here))
        assert len(self._known) <= _SESSIONS * _STEPS_PER_SESSION + 2
        assert self._due <= known_here, "nobody is asked for what is not known here"
        return self._due
