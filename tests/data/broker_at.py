"""Runs `quiverlog` with the wall clock of another day: `broker_at.py WALL_US broker ...`.

The producers in a kept data directory would be forgotten, and its rows expire, as the real clock
goes on. The clock begins at WALL_US and runs at its usual speed.
"""

from __future__ import annotations

import runpy
import sys
import time

_real = time.time_ns
_shift_ns = int(sys.argv.pop(1)) * 1000 - _real()
time.time_ns = lambda: _real() + _shift_ns
runpy.run_module("quiverlog", run_name="__main__", alter_sys=True)
