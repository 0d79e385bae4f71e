"""Runs `quiverlog` and dies where it is asked to: `dying_broker.py PLACE broker ...`.

A point of a transaction at which a broker is to die is named by a file in the directory PLACE. The
first broker that comes there removes the file, and kills itself: so one of a cluster dies, once,
and it can be asked again while it runs. Bounds are small: snapshots are frequent, logs are flushed,
and the reaper asks soon.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from quiverlog.core.transactions import staged
from quiverlog.node.apis.forward import Forward
from quiverlog.node.partitions import flushing
from quiverlog.node.transactions import hosted
from quiverlog.node.transactions.coordinators import Coordinators
from quiverlog.node.transactions.forwarded import Forwarded
from quiverlog.node.transactions.forwarding import Forwarding
from quiverlog.node.transactions.hosted import Hosted
from quiverlog.node.transactions.queues import Queues
from quiverlog.node.transactions.staging import Staging
from quiverlog.storage.log import flushing as log_flushing

__all__ = ["POINTS", "SILENCE_S"]

POINTS: Final = (
    "decided-not-published",
    "publish-row-not-forwarded",
    "one-of-two-targets",
    "appended-not-acknowledged",
    "forwarded-not-recorded",
    "published-not-recorded",
    "snapshot-half",
)
SILENCE_S: Final = 1
"""Of an attempt, before its coordinator is asked what became of it."""
UNFLUSHED_MS: Final = 500
DIES_WITHIN_S: Final = 1.0
"""Of the one that has removed the file: its one target may not answer."""
SNAPSHOT_LOG_BYTES: Final = 8192
SNAPSHOT_PIECE_RECORDS: Final = 2

_Method = Callable[..., Any]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Dying:
    """`claimed`: the one target that is still sent to."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._claimed: object = None

    def claim(self, point: str) -> bool:
        try:
            os.unlink(self._place / point)
        except FileNotFoundError:
            return False
        return True

    def die_at(self, point: str) -> None:
        if self.claim(point):
            _die()

    def before(self, owner: type, name: str, point: str) -> None:
        """Die where the method is called, and not for an error."""
        method: _Method = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            if not any(isinstance(one, BaseException) for one in args):
                self.die_at(point)
            return method(*args, **more)

        setattr(owner, name, call)

    def wrap(self) -> None:
        self.before(Coordinators, "_publish", "decided-not-published")
        self.before(Staging, "_publish_safe", "publish-row-not-forwarded")
        self.before(Forwarded, "then", "appended-not-acknowledged")
        self.before(Forward, "then", "appended-not-acknowledged")
        self.before(Staging, "_record_done", "forwarded-not-recorded")
        self.before(Coordinators, "_record", "published-not-recorded")
        self._wrap_sending()
        self._wrap_snapshots()
        hosted.SNAPSHOT_LOG_BYTES_MIN = SNAPSHOT_LOG_BYTES  # type: ignore[misc]
        hosted._SNAPSHOT_PIECE_RECORDS = SNAPSHOT_PIECE_RECORDS  # type: ignore[misc]
        staged.ASK_AFTER_US = SILENCE_S * 1_000_000  # type: ignore[misc]
        for module in (flushing, log_flushing):
            module.UNFLUSHED_MS_MAX = UNFLUSHED_MS  # type: ignore[attr-defined]

    def _wrap_sending(self) -> None:
        """Keep all targets but one from what they are to get."""
        send: _Method = Forwarding._send
        acknowledged: _Method = Queues.acknowledged

        def send_one(forwarding: Forwarding, piece: Any, *more: Any) -> None:
            if self._claimed is None and self.claim("one-of-two-targets"):
                self._claimed = piece.key
                timer = threading.Timer(DIES_WITHIN_S, _die)
                timer.daemon = True
                timer.start()
            if self._claimed in (None, piece.key):
                send(forwarding, piece, *more)

        def die(*args: Any) -> None:
            if self._claimed is not None:
                _die()
            acknowledged(*args)

        Forwarding._send = send_one  # type: ignore[method-assign]
        Queues.acknowledged = die  # type: ignore[method-assign]

    def _wrap_snapshots(self) -> None:
        safe: _Method = Hosted._snapshot_safe

        def die(one: Hosted, snapshot: Any, size: int, offset: int, error: Any, now: Any) -> None:
            if error is None and snapshot.begin_offset < 0:
                self.die_at("snapshot-half")
            safe(one, snapshot, size, offset, error, now)

        Hosted._snapshot_safe = die  # type: ignore[method-assign]


if __name__ == "__main__":
    _Dying(Path(sys.argv.pop(1))).wrap()
    runpy.run_module("quiverlog", run_name="__main__", alter_sys=True)
