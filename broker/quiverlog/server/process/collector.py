"""When Python's cyclic garbage collector runs, and over which objects.

A full collection visits every object that is not frozen: some 45 per partition, 40 ms of the loop
for 5,000. Survivors of one nearly always live long (a partition, its log, a topic), so they are
frozen, and the next collection visits only about 12,000 new objects, in one or two milliseconds.

A cycle that becomes garbage while frozen is not freed: so everything is thawed and collected when
the frozen objects have doubled, preferably in a second without traffic.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Collector"]

_THRESHOLDS: Final = (700, 5, 2)
"""As for `gc.set_threshold`: a full collection comes after about 12,000 new objects."""
_THRESHOLDS_OF_A_START: Final = (500_000, 50, 50)
"""A start makes next to no garbage: one young collection per 10,000 partitions bounds it."""
_LOOK_S: Final = 1.0
GROWTH_MIN: Final = 100_000
"""No thaw before this many more objects are frozen."""
PATIENCE: Final = 60
"""Seconds with traffic after which everything is thawed nevertheless."""


class Collector:
    """Owns the process's garbage collector until `stop`. `traffic` changes when clients send."""

    def __init__(self, traffic: Callable[[], int]) -> None:
        self._traffic = traffic
        self._traffic_seen = -1
        self._is_at_work = False
        self._thresholds = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        # Objects frozen at the last thaw, and since. `gc.get_freeze_count` walks them all (28 ms
        # for 5,000 partitions): None until the start's number matters.
        self._kept: int | None = None
        self._grown = 0
        self._waited = 0

    def rest(self) -> None:
        """Hardly collect during a start, which makes thousands of objects that live."""
        assert not self._is_at_work
        self._is_at_work = True
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS_OF_A_START)

    def start(self) -> None:
        assert self._timer is None
        if not self._is_at_work:
            self.rest()
        gc.freeze()
        self._kept, self._grown = None, 0
        gc.set_threshold(*_THRESHOLDS)  # After `freeze`: else all that the start made is visited.
        gc.callbacks.append(self._freeze_survivors)
        self._look_later()

    def stop(self) -> None:
        """Restore the collector's settings."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._freeze_survivors)
            gc.unfreeze()
        if self._is_at_work:
            self._is_at_work = False
            gc.set_threshold(*self._thresholds)

    def thaw(self) -> None:
        """Collect everything; survivors are frozen again."""
        gc.unfreeze()
        self._grown = 0
        gc.collect()
        self._kept, self._grown = self._grown, 0
        self._waited = 0

    def look(self) -> None:
        """Thaw if it is time; called once a second."""
        traffic = self._traffic()
        idle, self._traffic_seen = traffic == self._traffic_seen, traffic
        if self._grown <= GROWTH_MIN or self._grown <= self._count_kept() + GROWTH_MIN:
            self._waited = 0
            return
        self._waited += 1
        if idle or self._waited >= PATIENCE:
            self.thaw()

    def _count_kept(self) -> int:
        if self._kept is None:
            # Objects frozen since may be freed by now: then it is less, and the thaw comes sooner.
            self._kept = max(0, gc.get_freeze_count() - self._grown)
        return self._kept

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self.look()
        self._look_later()

    def _freeze_survivors(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            self._grown += len(gc.get_objects(generation=2))
            gc.freeze()
