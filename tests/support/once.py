"""Work that tests in several processes need the result of, done once in a run of the suite.

Owns the place of the results (made by tests/conftest.py, gone with the run) and that no process
repeats what another one is doing: it waits. A failure is not kept: each process that needs the
result meets it, too. Outside of a run each process works for itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["RESULTS_VARIABLE", "once"]

RESULTS_VARIABLE: Final = "QUIVERLOG_TEST_RESULTS"

T = TypeVar("T")


def once(key: object, work: Callable[[], T]) -> T:
    """The result of `work`, which `key` names: equal keys have equal texts, and only they."""
    directory = os.environ.get(RESULTS_VARIABLE)
    if directory is None:
        return work()
    path = Path(directory) / hashlib.sha256(repr(key).encode()).hexdigest()
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            found: T = pickle.loads(path.read_bytes())
            return found
        result = work()
        path.write_bytes(pickle.dumps(result))
        return result
