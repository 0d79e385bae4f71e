"""Reduces what PySpark's worker process spends around a task.

After every task the worker collects garbage over all objects, for tens of milliseconds; frozen ones
(`gc.freeze`, by `end_of_work`) do not count. The JVM sends a task in two small segments, and the
second waits up to 40 ms for a delayed acknowledgement of the first: `begin_work` has it sent at
once. `QUIVERLOG_CLIENT_WORKER_TUNING=off` turns both off.
"""

from __future__ import annotations

import contextlib
import gc
import os
from typing import Any, Final

from . import _compat

__all__ = ["FREEZES_MAX", "OBJECTS_MIN", "SWITCH", "SentToTasks", "begin_work", "end_of_work"]

SWITCH: Final = "QUIVERLOG_CLIENT_WORKER_TUNING"

OBJECTS_MIN: Final = 10_000
"""Fewer are collected in about a millisecond: not worth a freeze."""

FREEZES_MAX: Final = 5
"""Per worker: a frozen reference cycle is never freed. The first tasks load the modules, so later
freezes gain little."""

_freezes = 0


def begin_work() -> None:
    if not _is_on():
        return
    found = _compat.worker_socket()
    if found is not None:
        with contextlib.suppress(OSError):  # a Unix domain socket has no acknowledgements
            # For every task: Linux returns to delaying by itself.
            found.setsockopt(*_compat.QUICK_ACKNOWLEDGEMENT, 1)


def end_of_work() -> None:
    global _freezes
    if _freezes >= FREEZES_MAX or not _is_on() or not _compat.in_daemon_worker():
        return
    if len(gc.get_objects()) < OBJECTS_MIN:  # without frozen objects
        return
    _freezes += 1
    gc.collect()
    gc.freeze()


def _is_on() -> bool:
    return os.environ.get(SWITCH, "on").strip().lower() not in ("off", "0", "false", "no")


class SentToTasks:
    """Pickled by a planning process after its work, unpickled by a task's worker before it."""

    def __getstate__(self) -> dict[str, Any]:
        end_of_work()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        begin_work()
        self.__dict__.update(state)
