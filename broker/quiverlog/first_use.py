"""The lock under which message decoders are made at first use, by whichever thread is first.

msgspec caches a type's description while it builds a decoder. A second thread that builds one for
the same type may read it unfinished: the process dies with SIGSEGV. Making every decoder at import
would cost each command and each Spark task some 10 ms.
"""

from __future__ import annotations

import os
import threading
from typing import Final

__all__ = ["MAKING"]

MAKING: Final = threading.Lock()
"""Held for a millisecond at a time, never while anything is waited for."""

# A fork waits for the lock: the child would inherit it held by a thread that the child lacks.
os.register_at_fork(
    before=MAKING.acquire, after_in_parent=MAKING.release, after_in_child=MAKING.release
)
