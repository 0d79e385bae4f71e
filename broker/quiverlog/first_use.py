"""The one lock for what a process makes at first use, where two threads may come first.

msgspec describes a type to itself when a decoder for it is made, and shows the second thread that
asks a description that is half made: the process dies of it (SIGSEGV). Making every decoder while
modules are imported would cost each command and each task of Spark some 10 ms, so they are made
late, here.
"""

from __future__ import annotations

import os
import threading
from typing import Final

__all__ = ["MAKING"]

MAKING: Final = threading.Lock()
"""Held for a millisecond at a time, never while anything is waited for."""

# A fork waits: a child would keep for ever what another thread was in the middle of.
os.register_at_fork(
    before=MAKING.acquire, after_in_parent=MAKING.release, after_in_child=MAKING.release
)
