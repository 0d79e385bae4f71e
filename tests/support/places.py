"""Where tests put files: in memory as a rule (scripts/test.sh), on a disk where that is the point.

Owns the choice of the disk. Not here: what is written there.
"""

from __future__ import annotations

import os
import tempfile
from typing import Final

__all__ = ["ON_DISK", "directory_on_disk"]

ON_DISK: Final = next((path for path in ("/var/tmp",) if os.access(path, os.W_OK)), None)
"""Kept over restarts (FHS 5.15), so no file system in memory; None: wherever temporary files go."""


def directory_on_disk(prefix: str = "quiverlog-test-") -> tempfile.TemporaryDirectory[str]:
    """For tests of what only a disk does: fsyncs that take time, pages that leave the memory."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=ON_DISK)
