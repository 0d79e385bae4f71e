"""The metadata version that every live broker must have applied by now."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Awaited", "Overdue"]

_SESSIONS: Final = 3
_STEPS_PER_SESSION: Final = 10
_AWAITED_STEPS_PER_SESSION: Final = 20
_NONE: Final = -1


class Overdue:
    """Versions that must be applied although no caller waits for them.

    A broker that gets "caught up" may lead for one more session (docs/adr/0042). With metadata more
    than three sessions late it leads nothing after four: before a new leader may expose more rows,
    because the old one copied none for the lag time (`REPLICA_LAG_MS_MAX`; it ends first where
    `broker.session.ms` is above 2.4 s).
    """

    __slots__ = ("_due", "_known", "_session_us")

    def __init__(self, session_us: int) -> None:
        assert session_us > 0
        self._session_us = session_us
        self._due = _NONE
        # (moment from which it is due, version), both ascending.
        self._known: deque[tuple[int, int]] = deque()

    def begin(self, version: int, now_us: int) -> None:
        assert version >= 0
        self._due = _NONE
        self._known.clear()
        # A new controller does not have the age of its metadata: all are due a session later.
        self._known.append((now_us + self._session_us, version))

    def version(self, known_here: int, now_us: int) -> int:
        while self._known and self._known[0][0] <= now_us:
            self._due = self._known.popleft()[1]
        newest_us, newest = self._known[-1] if self._known else (0, self._due)
        due_us = now_us + _SESSIONS * self._session_us
        if known_here > newest and due_us >= newest_us + self._session_us // _STEPS_PER_SESSION:
            self._known.append((due_us, known_here))
        assert len(self._known) <= _SESSIONS * _STEPS_PER_SESSION + 2
        assert self._due <= known_here, "no broker can have more than the controller"
        return self._due


class Awaited:
    """Versions that every live broker must have applied before a caller gets its answer.

    A broker that lacks one for half a session gets "not caught up", which renews no lease; a
    session later its lease is over, and the controller fences it.
    """

    __slots__ = ("_late_us", "_patience_us", "_since", "_step_us")

    def __init__(self, session_us: int) -> None:
        assert session_us >= _AWAITED_STEPS_PER_SESSION
        # Brokers always lack the last moment's records: that alone must cost none its lease.
        self._patience_us = session_us // 2
        self._late_us = self._patience_us + session_us
        self._step_us = session_us // _AWAITED_STEPS_PER_SESSION
        # (version, awaited since), both ascending; versions within one step share an entry.
        self._since: deque[tuple[int, int]] = deque()

    def clear(self) -> None:
        self._since.clear()

    def add(self, version: int, now_us: int) -> None:
        assert version >= 0
        if self._since and now_us < self._since[-1][1] + self._step_us:
            version, now_us = max(version, self._since[-1][0]), self._since.pop()[1]
        assert not self._since or version >= self._since[-1][0], "what holds only grows"
        assert not self._since or now_us >= self._since[-1][1], "so do moments"
        self._since.append((version, now_us))

    def reached(self, version: int) -> None:
        while self._since and self._since[0][0] <= version:
            self._since.popleft()
        assert not self._since or self._since[0][0] > version, "what is left is lacked"

    def due(self, now_us: int) -> int:
        return self._awaited_for(self._patience_us, now_us)

    def late(self, now_us: int) -> int:
        return self._awaited_for(self._late_us, now_us)

    def next_us(self) -> int | None:
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
