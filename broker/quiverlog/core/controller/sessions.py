"""Broker sessions: the last heartbeat of each broker, and its applied metadata version.

A silent broker first becomes a suspect, and counts as dead only if the controller checks again a
moment later, on time; after a bounded number of late checks the clock decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quiverlog.limits import BROKER_SUSPECT_MS, BROKER_SUSPICIONS_MAX

__all__ = ["UNKNOWN_VERSION", "Sessions"]

UNKNOWN_VERSION: Final = -1
_SUSPECT_US: Final = BROKER_SUSPECT_MS * 1000


@dataclass(slots=True)
class _Session:
    last_contact_us: int
    version: int = UNKNOWN_VERSION
    suspect_us: int | None = None
    suspicions: int = 0


class Sessions:
    __slots__ = ("_sessions", "session_us")

    def __init__(self, session_us: int) -> None:
        assert session_us > _SUSPECT_US
        self.session_us = session_us
        self._sessions: dict[int, _Session] = {}

    def begin(self, node_ids: Iterable[int], now_us: int, last_contact_us: dict[int, int]) -> None:
        # Without an earlier contact a broker gets a full session from now on.
        self._sessions = {
            n: _Session(min(last_contact_us.get(n, now_us), now_us)) for n in node_ids
        }
        assert all(one.last_contact_us <= now_us for one in self._sessions.values())

    def end(self) -> None:
        self._sessions.clear()

    def renew(self, node_id: int, now_us: int, version: int = UNKNOWN_VERSION) -> None:
        assert node_id >= 0
        session = self._sessions.setdefault(node_id, _Session(now_us))
        session.last_contact_us = max(session.last_contact_us, now_us)
        session.version = version
        session.suspect_us, session.suspicions = None, 0

    def remove(self, node_id: int) -> None:
        self._sessions.pop(node_id, None)
        assert node_id not in self._sessions

    def has(self, node_id: int) -> bool:
        return node_id in self._sessions

    def version_of(self, node_id: int) -> int:
        session = self._sessions.get(node_id)
        assert session is None or session.version >= UNKNOWN_VERSION
        return UNKNOWN_VERSION if session is None else session.version

    def is_alive(self, node_id: int, now_us: int) -> bool:
        session = self._sessions.get(node_id)
        assert now_us >= 0
        return session is not None and now_us < session.last_contact_us + self.session_us

    def silent(self, now_us: int) -> list[int]:
        found = []
        for node_id, session in self._sessions.items():
            if now_us < session.last_contact_us + self.session_us:
                continue
            # A loop that was blocked finds expired deadlines and unread heartbeats at once.
            if session.suspect_us is None:
                self._suspect(session, now_us)
            elif now_us >= session.suspect_us + _SUSPECT_US:
                # A late check: the loop was blocked again.
                late = now_us >= session.suspect_us + 2 * _SUSPECT_US
                if late and session.suspicions < BROKER_SUSPICIONS_MAX:
                    self._suspect(session, now_us)
                else:
                    found.append(node_id)
        assert len(found) <= len(self._sessions)
        return found

    def next_us(self) -> int | None:
        assert self.session_us > 0
        return min(map(self._due_us, self._sessions.values()), default=None)

    def _due_us(self, session: _Session) -> int:
        if session.suspect_us is not None:
            return session.suspect_us + _SUSPECT_US
        return session.last_contact_us + self.session_us

    def _suspect(self, session: _Session, now_us: int) -> None:
        session.suspect_us = now_us
        session.suspicions += 1
        assert session.suspicions <= BROKER_SUSPICIONS_MAX
