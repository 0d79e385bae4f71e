"""What the metadata log does off the loop.

Owns two jobs of one key: they run one after another, so the log is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.core.controller.records import Record, encode_entry
from quiverlog.storage.metadata_log import MetadataLog

__all__ = ["AppendJob", "CompactJob"]

_KEY = "metadata"


class AppendJob:
    """Log these entries, durably, all or none."""

    __slots__ = ("_entries", "_log", "key", "kind")

    def __init__(self, log: MetadataLog, entries: Sequence[bytes]) -> None:
        assert entries
        self.key = _KEY
        self.kind = "metadata append"
        self._log = log
        self._entries = entries

    def run(self) -> None:
        """Raises DiskFull, StorageFault or OSError."""
        self._log.append(self._entries)


class CompactJob:
    """Replace the log by the records that add up to the image."""

    __slots__ = ("_log", "_records", "key", "kind")

    def __init__(self, log: MetadataLog, records: list[Record]) -> None:
        self.key = _KEY
        self.kind = "metadata compaction"
        self._log = log
        self._records = records

    def run(self) -> None:
        """Raises DiskFull, StorageFault or OSError: the log is as it was."""
        self._log.compact([encode_entry(self._records)])
