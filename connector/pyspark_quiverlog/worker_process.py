"""What PySpark's worker process spends around a task of ours, and how we make it less.

PySpark's daemon collects garbage in a worker after every task, and looks at every object of every
loaded module again: about 45 ms of CPU, in each worker that a micro-batch touches. `end_of_work`
collects once and freezes what is left (`gc.freeze`), so that later collections skip it. And the JVM
sends a task in two small segments, of which the second waits for a delayed acknowledgement of the
first, up to 40 ms: `begin_work` has it acknowledged at once.

Both do nothing outside of a worker of PySpark's daemon, and nothing in a worker that has
`QUIVERLOG_CLIENT_WORKER_TUNING=off` in its environment. Must not know: what the task does.
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
"""Fewer objects than this are looked at in about a millisecond: not worth a freeze."""

FREEZES_MAX: Final = 5
"""Per worker. What is frozen in a reference cycle is never freed, so that must be bounded; modules
are loaded by the first tasks, and nothing is gained after them."""

_freezes = 0


def begin_work() -> None:
    """A task's command is being unpickled: the JVM need not wait for us.

    Linux sends the acknowledgement that it had put off, and goes back to delaying later by itself,
    so this is said anew for every task.
    """
    if not _is_on():
        return
    found = _compat.worker_socket()
    if found is not None:
        with contextlib.suppress(OSError):  # a Unix domain socket knows no acknowledgements
            found.setsockopt(*_compat.QUICK_ACKNOWLEDGEMENT, 1)


def end_of_work() -> None:
    """For the end of a task's own work: make the worker's later collections cheap."""
    global _freezes
    if _freezes >= FREEZES_MAX or not _is_on() or not _compat.in_daemon_worker():
        return
    if len(gc.get_objects()) < OBJECTS_MIN:  # without those that are frozen
        return
    _freezes += 1
    gc.collect()
    gc.freeze()


def _is_on() -> bool:
    return os.environ.get(SWITCH, "on").strip().lower() not in ("off", "0", "false", "no")


class SentToTasks:
    """Base of what a planning process pickles last, and a task's worker unpickles first."""

    def __getstate__(self) -> dict[str, Any]:
        end_of_work()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        begin_work()
        self.__dict__.update(state)
