"""Views that a node has handed out: nothing may change under them while they may be on their way.

Owns the last of them, with their checksums.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .checker import Violation
from .inodes import Inode

if TYPE_CHECKING:
    from .world import World

__all__ = ["HeldViews"]

_HELD_MAX = 64


class HeldViews:
    def __init__(self, world: World) -> None:
        self._world = world
        self._held: deque[tuple[memoryview, int]] = deque(maxlen=_HELD_MAX)
        self._changes_seen = 0

    def hand_out(self, views: Iterable[memoryview]) -> None:
        """These are on their way."""
        self._held.extend((view, zlib.crc32(view)) for view in views)

    def clear(self) -> None:
        """The process is gone, and its mappings with it."""
        self._held.clear()

    def check(self) -> None:
        """Called between any two operations of the disk, where an exception has no catcher."""
        if Inode.changes == self._changes_seen:
            return
        self._changes_seen = Inode.changes
        for view, checksum in self._held:
            if zlib.crc32(view) != checksum:
                self._world.fail(Violation("bytes changed under a view that a reader holds"))
                return
