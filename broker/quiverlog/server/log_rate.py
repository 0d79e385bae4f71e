"""How many log lines of one kind are written: what clients can cause must not fill the disk.

A kind is the line's event text. Each kind may have so many lines per window; what comes beyond is
counted and left out, and the count is written with the next line of that kind, or by itself when
the window has ended. Lines without which nobody would know what became of which rows are never left
out: whoever writes them bounds them.

Must not know: where lines go, what they say. The clock is handed in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["KINDS_MAX", "LeftOut", "LineRate"]

WINDOW_S: Final = 10.0
LINES_PER_WINDOW: Final = 100
"""For kinds that operators and the node cause."""
CLIENT_LINES_PER_WINDOW: Final = 10
"""For kinds that any client can cause at will."""
CLIENT_KINDS: Final = frozenset(
    {
        "protocol error",
        "connection closed",
        "connection refused",
        "connection overdue",
        "connections cannot be accepted",
        "http request refused",
        "http connection cut off",
    }
)
WHOLE_KINDS: Final = frozenset(
    {
        "retention took rows",
        "torn tail cut",
        "damaged rows found",
        "partition file",
        "partition offline",
        "partition fault",
        "corrupt log",
        "rows of an unknown topic set aside",
    }
)
"""Never left out. The node writes each once for a partition in a start or a life, however often it
is met again, but for what retention took: that is one line for a topic in a second."""
KINDS_MAX: Final = 1_000
"""Kinds that are told apart; beyond, they count as one."""
_OTHER_KINDS: Final = "other lines"


class LeftOut(NamedTuple):
    """How many lines of one kind were not written."""

    kind: str
    lines: int


class _Window:
    __slots__ = ("began_s", "left_out", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = 0
        self.left_out = 0


class LineRate:
    """See the module docstring."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self.left_out_total = 0

    def admit(self, kind: str, now_s: float) -> LeftOut | None:
        """None: leave this line out. Else: write it, with the count of those left out before it."""
        if kind in WHOLE_KINDS:
            return LeftOut(kind, 0)
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= KINDS_MAX and kind != _OTHER_KINDS:
                return self.admit(_OTHER_KINDS, now_s)
            window = self._windows[kind] = _Window(now_s)
        left_out = 0
        if now_s - window.began_s >= WINDOW_S:
            left_out = window.left_out
            window.began_s, window.written, window.left_out = now_s, 0, 0
        most = CLIENT_LINES_PER_WINDOW if kind in CLIENT_KINDS else LINES_PER_WINDOW
        if window.written >= most:
            window.left_out += 1
            self.left_out_total += 1
            return None
        window.written += 1
        return LeftOut(kind, left_out)

    def ended(self, now_s: float) -> list[LeftOut]:
        """The counts of windows that have ended without another line; each is told once."""
        found = []
        for kind, window in list(self._windows.items()):
            if now_s - window.began_s >= WINDOW_S:
                if window.left_out:
                    found.append(LeftOut(kind, window.left_out))
                del self._windows[kind]
        return found
