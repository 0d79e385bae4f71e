"""What the opening of a partition found, as lines of the log and numbers."""

from __future__ import annotations

from typing import Final

from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.outbox import Outbox
from quiverlog.node.replica import Replica

__all__ = ["report_notes", "report_recovery"]

_NOTES_MAX: Final = 20
"""Lines about files that do not belong into one partition's directory."""


def report_recovery(replica: Replica, outbox: Outbox, metrics: NodeMetrics) -> None:
    """Say what was scanned, cut, damaged, missing or set aside."""
    report = replica.log.recovery
    assert report.bytes_scanned >= 0
    assert report.bytes_truncated >= 0
    if report.bytes_scanned:
        metrics.recovery_partitions_scanned += 1
    if report.bytes_truncated:
        metrics.recovery_bytes_truncated += report.bytes_truncated
        outbox.log(
            "warning",
            "torn tail cut",
            partition=str(replica.name),
            bytes=report.bytes_truncated,
            log_end_offset=replica.log.log_end_offset,
        )
    report_notes(replica, outbox)
    if report.damages:
        outbox.log(
            "warning",
            "damaged rows found",
            partition=str(replica.name),
            places=len(report.damages),
            first=report.damages[0],
        )


def report_notes(replica: Replica, outbox: Outbox) -> None:
    """Say which files were not believed, or do not belong there; each once."""
    notes = replica.log.recovery.notes
    for note in notes[:_NOTES_MAX]:
        outbox.log("warning", "partition file", partition=str(replica.name), note=note)
    notes.clear()
