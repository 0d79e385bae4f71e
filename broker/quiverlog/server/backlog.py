"""Requests of one connection that wait for its next turn.

Owns their copies: fresh frames are views of a receive buffer that all connections share, and die
with the next read of any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.wire.frames import Frame

__all__ = ["Backlog"]


class Backlog:
    """See the module docstring."""

    __slots__ = ("_frames", "_received_ns", "byte_count")

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._received_ns = 0
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def keep(self, frames: Sequence[Frame], received_ns: int, *, fresh: bool) -> None:
        """Keep `frames` for the next turn; none may wait already.

        Args:
            fresh: they are views of the shared receive buffer.
        """
        assert frames
        assert not self._frames, "the connection reads nothing while requests wait"
        self._frames = [_own(frame) for frame in frames] if fresh else list(frames)
        self._received_ns = received_ns
        self.byte_count = sum(len(header) + len(body) for header, body in frames)

    def take(self) -> tuple[list[Frame], int]:
        """All that waits, and when it was received."""
        frames = self._frames
        self.clear()
        return frames, self._received_ns

    def clear(self) -> None:
        """Drop what waits."""
        self._frames = []
        self.byte_count = 0


def _own(frame: Frame) -> Frame:
    return Frame(memoryview(bytes(frame.header)), memoryview(bytearray(frame.body)))
