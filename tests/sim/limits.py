"""Production constants that are smaller in the simulation, so that what is rare comes often.

Owns the list. A constant that is gone or was renamed stops the run: it would be rare again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS
from quiverlog.core.transactions import coordinator, staged
from quiverlog.limits import SEGMENT_BYTES_MIN
from quiverlog.node.transactions import coordinators, hosted, queues
from quiverlog.storage.log import flushing
from quiverlog.storage.metadata import metadata_log

__all__ = ["small_limits"]

_SMALL: Final[tuple[tuple[Any, str, int], ...]] = (
    (metadata_log, "_COMPACT_ENTRIES_MIN", 6),
    (metadata_log, "_COMPACT_BYTES_MIN", 256),
    (flushing, "_CHECKPOINT_BYTES", 16 * 1024),
    (staged, "ASK_AFTER_US", 3_000_000),
    (coordinator, "SINGLE_USE_EXPIRY_MS", 8_000),
    (coordinators, "SWEEP_MS", 1_000),
    (hosted, "SNAPSHOT_LOG_BYTES_MIN", 8 * 1024),
    # Leaders die in the middle of a snapshot, and of the rows of one publish for one target.
    (hosted, "_SNAPSHOT_PIECE_RECORDS", 1),
    (queues, "FORWARD_BATCHES_MAX", 2),
)


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """For the length of a run."""
    with contextlib.ExitStack() as stack:
        for module, name, value in _SMALL:
            stack.enter_context(mock.patch.object(module, name, value))
        # Files go when the log start has passed them.
        small = {
            name: dataclasses.replace(shape, segment_bytes=SEGMENT_BYTES_MIN)
            for name, shape in INTERNAL_TOPICS.items()
        }
        stack.enter_context(mock.patch.dict(INTERNAL_TOPICS, small))
        yield
