"""A word at the end of the program about rows that were never acknowledged.

Owns which producers are watched. A program that forgets `flush`, `close` and `with` loses rows
without an error: this is the last place where it can be told.
"""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections import deque
from typing import Any, Final

from .display import names
from .producer_core import ProducerCore

__all__ = ["UnsentRows", "watch"]

LEFT_BEHIND_MAX: Final = 16
"""So many producers that nobody holds any more are remembered with their rows: the last ones."""


class UnsentRows(RuntimeWarning):
    """The program ends, and rows that it gave to a producer are not acknowledged."""


_cores: weakref.WeakSet[ProducerCore] = weakref.WeakSet()
_left_behind: deque[ProducerCore] = deque(maxlen=LEFT_BEHIND_MAX)


def watch(producer: Any, core: ProducerCore) -> None:
    """Look at the core's rows when the program ends."""
    _cores.add(core)
    # With asyncio nobody holds the core of a producer that was dropped with its loop.
    weakref.finalize(producer, _dropped, core).atexit = False


def _dropped(core: ProducerCore) -> None:
    if _has_lost(core):
        _left_behind.append(core)


def _has_lost(core: ProducerCore) -> bool:
    """Rows that wait, or that failed without anybody having asked."""
    return core.buffered_bytes > 0 or not all(one.reported for one in core.failures)


def _tell() -> None:
    """Runs while a background thread may still send: what it sends now may be stored, or not."""
    topics = sorted({core.topic.name for core in (*_cores, *_left_behind) if _has_lost(core)})
    if topics:
        warnings.warn(
            f"The program ends, and rows sent to {names(topics)} are not acknowledged: they may be "
            "lost. End with `flush`, `close` or `with`, or ask for the `result` of each send.",
            UnsentRows,
            stacklevel=2,
        )


def _forget() -> None:
    """In a forked child: the rows are the parent's."""
    _cores.clear()
    _left_behind.clear()


atexit.register(_tell)
os.register_at_fork(after_in_child=_forget)
