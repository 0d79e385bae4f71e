"""Which version of the metadata every live broker has to know by now.

Owns what the controller knew when, for three sessions (`Overdue`), and since when callers wait for
a version that a live broker may lack (`Awaited`).

Must not know: brokers, what is in the metadata, what waits for them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Awaited", "Overdue"]

_SESSIONS: Final = 3
_STEPS_PER_SESSION: Final = 10
_AWAITED_STEPS_PER_SESSION: Final = 20
_NONE: Final = -1


class Overdue:
    """Versions that have to be known though no caller waits for them.

    A broker that is answered that it has caught up may lead for a session more (docs/adr/0042). So
    a broker whose metadata come later than three sessions leads nothing after four, whatever they
    say: before a leader in its place may show more rows than it has, because it has copied none for
    the lag time (`REPLICA_LAG_MS_MAX`, five sessions).

    A controller that begins does not know when what it knows was decided: that is due a session
    later.
    """

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


class Awaited:
    """Versions that every live broker must have applied before a caller is answered.

    Since when each is awaited, for as long as a live broker may lack it. A broker that lacks one
    for half a session is answered that it has not caught up, which renews no lease; a session later
    its last lease is over, and the controller fences it. So an answer that waits for all live
    brokers comes within a session and a half of the record, and a record of a fencing later.

    A broker lacks what was decided a moment ago all the time: that alone must cost no broker its
    lease, however often a version is awaited. Hence the half session.
    """

    __slots__ = ("_late_us", "_patience_us", "_since", "_step_us")

    def __init__(self, session_us: int) -> None:
        assert session_us >= _AWAITED_STEPS_PER_SESSION
        self._patience_us = session_us // 2
        self._late_us = self._patience_us + session_us
        self._step_us = session_us // _AWAITED_STEPS_PER_SESSION
        # (version, awaited since), both ascending. What follows within a step joins the one before.
        self._since: deque[tuple[int, int]] = deque()

    def clear(self) -> None:
        """Another node decides, or none."""
        self._since.clear()

    def add(self, version: int, now_us: int) -> None:
        """A caller waits for this version, which holds here."""
        assert version >= 0
        if self._since and now_us < self._since[-1][1] + self._step_us:
            version, now_us = max(version, self._since[-1][0]), self._since.pop()[1]
        assert not self._since or version >= self._since[-1][0], "what holds only grows"
        assert not self._since or now_us >= self._since[-1][1], "so do moments"
        self._since.append((version, now_us))

    def reached(self, version: int) -> None:
        """Every live broker has applied this version."""
        while self._since and self._since[0][0] <= version:
            self._since.popleft()
        assert not self._since or self._since[0][0] > version, "what is left is lacked"

    def due(self, now_us: int) -> int:
        """Who has not applied this version has not caught up; -1: none is due."""
        return self._awaited_for(self._patience_us, now_us)

    def late(self, now_us: int) -> int:
        """Who has not applied this version is to be fenced; -1: none is late."""
        return self._awaited_for(self._late_us, now_us)

    def next_us(self) -> int | None:
        """When a version becomes late; None: none is awaited."""
        return self._since[0][1] + self._late_us if self._since else None

    def _awaited_for(self, duration_us: int, now_us: int) -> int:
        assert duration_us > 0
        found = _NONE
        for version, since_us in self._since:
            if now_us < since_us + duration_us:
                break
            assert version >= found, "the newest counts"
            found = version
        return found
