"""`python dying_recovery.py N DIRECTORY`: `quorum recover`, killed behind its Nth call that writes.

Owns the counting of calls of the operating system that change a file; the process kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from quiverlog.storage.directory.quorum_recovery import StoppedQuorum
from quiverlog.storage.disk.posix import PosixDisk

_CALLS = ("write", "pwrite", "fsync", "fdatasync", "rename", "replace", "unlink", "truncate")


def main() -> None:
    left = int(sys.argv[1])

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            nonlocal left
            result = call(*args, **more)
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))
    found = StoppedQuorum(PosixDisk(), sys.argv[2])
    found.recover()
    found.close()


if __name__ == "__main__":
    main()
