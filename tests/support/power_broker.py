"""Runs `quiverlog` and notes what it flushes: `power_broker.py LEDGER broker ...`.

Each fsync and fdatasync of a file, once it is over, is a line of the ledger: the file's device and
inode, and how long it was before. So a test that ends the process sees what a power failure
leaves for certain, whatever the kernel has in memory.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

_ledger = os.open(sys.argv.pop(1), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)


def _noting(sync: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(descriptor: Any) -> None:
        found = os.fstat(descriptor)
        sync(descriptor)
        os.write(_ledger, b"%d %d %d\n" % (found.st_dev, found.st_ino, found.st_size))

    return call


os.fsync, os.fdatasync = _noting(os.fsync), _noting(os.fdatasync)
runpy.run_module("quiverlog", run_name="__main__", alter_sys=True)
