"""Runs `quiverlog` that asks about staged rows after half a second, in short files of `__staged`.

The product has no option for these: a test of a real broker would last minutes, and write 64 MiB.
"""

from __future__ import annotations

import dataclasses
import runpy

from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED
from quiverlog.core.transactions import staged
from quiverlog.limits import MIB

staged.ASK_AFTER_US = 500_000
INTERNAL_TOPICS[STAGED] = dataclasses.replace(INTERNAL_TOPICS[STAGED], segment_bytes=MIB)
runpy.run_module("quiverlog", run_name="__main__", alter_sys=True)
