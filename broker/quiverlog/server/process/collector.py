"""When Python's cyclic garbage collector runs, and over how much.

A full collection looks at every object that is not frozen: some 45 per partition, 40 ms of the loop
for 5,000. What survives one nearly always lives long (a partition, its log, a topic), so it is
frozen, and the next collection sees only about 12,000 new objects: one or two milliseconds. A start
makes next to no garbage, so there are hardly any collections until it ends (`rest`).

Only a cycle that becomes garbage while frozen is not freed: so everything is thawed and looked at
once more when the frozen objects have doubled, preferably in a second without traffic.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Collector"]

_THRESHOLDS: Final = (700, 5, 2)
"""Objects made and not freed, collections of them, and of these, before the next generation's: a
full collection comes after about 12,000 objects."""
_THRESHOLDS_OF_A_START: Final = (500_000, 50, 50)
"""Every 10,000 partitions the newest objects are looked at: garbage has a bound."""
_LOOK_S: Final = 1.0
GROWTH_MIN: Final = 100_000
"""No thaw before the frozen objects have grown so much."""
PATIENCE: Final = 60
"""Seconds without an idle one after which everything is thawed all the same."""


class Collector:
    """Sets the process's garbage collector, until `stop`. `traffic` changes when clients send
    something."""

    def __init__(self, traffic: Callable[[], int]) -> None:
        self._traffic = traffic
        self._traffic_seen = -1
        self._is_at_work = False
        self._thresholds = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        # Frozen objects: at the last thaw, and since. `gc.get_freeze_count` walks them all (28 ms
        # for 5,000 partitions), so a start's are not counted (None) before they matter.
        self._kept: int | None = None
        self._grown = 0
        self._waited = 0

    def rest(self) -> None:
        """A start begins, which makes thousands of objects that live."""
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
        gc.set_threshold(*_THRESHOLDS)  # Earlier, all that the start made would be looked at.
        gc.callbacks.append(self._freeze_survivors)
        self._look_later()

    def stop(self) -> None:
        """Leave the collector as it was."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._freeze_survivors)
            gc.unfreeze()
        if self._is_at_work:
            self._is_at_work = False
            gc.set_threshold(*self._thresholds)

    def thaw(self) -> None:
        """Look at everything; what survives is frozen again."""
        gc.unfreeze()
        self._grown = 0
        gc.collect()
        self._kept, self._grown = self._grown, 0
        self._waited = 0

    def look(self) -> None:
        """Thaw if it is time: called once a second."""
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
            # Some frozen since may be gone again: then it is less, and the next thaw comes sooner.
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
