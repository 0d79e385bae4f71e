"""The older way to flush a log: a ticket that tells the log itself of its failure.

Goes when the node has moved to `Log.begin_flush`.
"""

from __future__ import annotations

from typing import Protocol

from quiverlog.errors import QuiverlogError
from quiverlog.storage.jobs import FlushJob, FlushResult

__all__ = ["SyncTicket"]


class _HasFault(Protocol):
    fault: str


class SyncTicket:
    """The older way to flush; goes when the node has moved to `begin_flush`."""

    __slots__ = ("_log", "job", "result")

    def __init__(self, log: _HasFault, job: FlushJob) -> None:
        self._log = log
        self.job = job
        self.result = FlushResult()

    def run(self) -> None:
        """Flush. An error is final for the log. Raises OSError or StorageFault."""
        try:
            self.result = self.job.run()
        except (OSError, QuiverlogError) as error:
            self._log.fault = f"flush failed: {error}"
            raise
