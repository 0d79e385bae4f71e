"""Production constants that are smaller in the simulation, so that what is rare comes often.

Owns the list. A constant that is gone or was renamed stops the run: it would be rare again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from quiverlog.core.transactions import staged
from quiverlog.node.transactions import hosted
from quiverlog.storage.log import flushing
from quiverlog.storage.metadata import metadata_log

__all__ = ["small_limits"]

_SMALL: Final[tuple[tuple[Any, str, int], ...]] = (
    (metadata_log, "_COMPACT_ENTRIES_MIN", 6),
    (metadata_log, "_COMPACT_BYTES_MIN", 256),
    (flushing, "_CHECKPOINT_BYTES", 16 * 1024),
    (staged, "ASK_AFTER_US", 3_000_000),
    (hosted, "SNAPSHOT_LOG_BYTES_MIN", 8 * 1024),
)


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """For the length of a run."""
    with contextlib.ExitStack() as stack:
        for module, name, value in _SMALL:
            stack.enter_context(mock.patch.object(module, name, value))
        yield
