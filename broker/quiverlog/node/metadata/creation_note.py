"""The note of partitions whose directories were never created here (docs/adr/0056).

The only replica of a partition begins if it was never created; if it is lost, an operator decides
(docs/adr/0054). After a crash before its directory was made, or on a full disk, both look alike.
The note in the data directory distinguishes them: up to which metadata version partitions that
other brokers placed here have their directories, and which had none then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import PartitionChangeRecord, PartitionRecord, Record
from quiverlog.node.partitions.offline import Key
from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.types import Now, TopicPartition

__all__ = ["CreationNote", "CreationNoteJob"]

# A note is late by a second and its job, on a full disk by more: it may list a partition with rows
# as never created. That matters only if its directory is removed before the next note.
_PAUSE_US: Final = 1_000_000
_RETRY_US: Final = 5_000_000


class CreationNoteJob:
    __slots__ = ("_directory", "_never_created", "_version", "key", "kind")

    def __init__(
        self, directory: DataDirectory, version: int, never_created: Sequence[Key]
    ) -> None:
        self.key = directory.made_path
        self.kind = "note made directories"
        self._directory = directory
        self._version = version
        self._never_created = never_created

    def run(self) -> None:
        """Raises DiskFull or StorageFault: the last note stays."""
        self._directory.note_made(self._version, self._never_created)


class CreationNote:
    """The note: read by a start, written after changes.

    Args:
        waiting: returns the partitions here without directories, for any reason.
        is_alone: True while no other broker places partitions here.
    """

    __slots__ = (
        "_directory", "_due_us", "_is_alone", "_is_fault_logged", "_is_writing", "_jobs",
        "_metadata", "_node_id", "_noted_never_created", "_noted_version", "_outbox", "_placed",
        "_waiting",
    )  # fmt: skip

    _directory: DataDirectory

    def __init__(
        self,
        node_id: int,
        metadata: MetadataView,
        waiting: Callable[[], Collection[Key]],
        is_alone: Callable[[], bool],
        jobs: Jobs,
        outbox: Outbox,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._waiting = waiting
        self._is_alone = is_alone
        self._jobs = jobs
        self._outbox = outbox
        self._noted_version: int | None = None  # None: there was no note: all were made.
        self._noted_never_created: Collection[Key] = ()
        self._placed: set[Key] = set()  # Placed after the note, as replayed by the start.
        self._due_us: int | None = 0
        self._is_writing = self._is_fault_logged = False

    # --- a start -------------------------------------------------------------------------------
    def load(self, directory: DataDirectory) -> None:
        assert self._noted_version is None, "a broker starts once"
        self._directory = directory
        noted = directory.noted_made()
        if noted is not None:
            self._noted_version, self._noted_never_created = noted

    def replayed(self, records: Sequence[Record], version: int) -> None:
        assert version >= 0
        if self._noted_version is not None and version > self._noted_version:
            self._placed.update(self._placed_by(records))

    def at_start(self) -> frozenset[Key]:
        """Return the single replicas here whose directories were never made; called once."""
        image = self._metadata.image
        # Alone, this broker made each directory before it logged the record.
        if self._is_alone():
            return frozenset()
        found = frozenset(
            key for key in {*self._noted_never_created, *self._placed} if self._is_only(image, key)
        )
        self._noted_never_created = ()
        self._placed.clear()
        assert all(key[0] in image.topics_by_id for key in found)
        return found

    def _is_only(self, image: Image, key: Key) -> bool:
        assert key[1] >= 0
        topic = image.topics_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return False
        if str(TopicPartition(topic.name, key[1])) in self._directory.written:
            return False  # The last stop noted rows of it: the note is another directory's.
        # With other replicas, the controller asks for the logs of all (docs/adr/0047).
        return topic.partitions[key[1]].replicas == (self._node_id,)

    def _placed_by(self, records: Sequence[Record]) -> list[Key]:
        return [
            (one.topic_id, one.partition)
            for one in records
            if isinstance(one, PartitionRecord | PartitionChangeRecord)
            and self._node_id in (one.replicas or ())
        ]

    # --- the note ------------------------------------------------------------------------------
    def applied(self, records: Sequence[Record], now: Now) -> None:
        if self._due_us is None and self._placed_by(records):
            self._due_us = now.mono_us + _PAUSE_US

    def next_us(self) -> int | None:
        return None if self._is_writing or self._is_alone() else self._due_us

    def run(self, now: Now) -> None:
        due_us = self.next_us()
        if due_us is None or now.mono_us < due_us:
            return
        assert not self._is_writing, "one note at a time"
        waiting = sorted(set(self._waiting()))
        self._is_writing = True
        # Their directories are made without a record that would call for another note.
        self._due_us = now.mono_us + _PAUSE_US if waiting else None
        job = CreationNoteJob(self._directory, self._metadata.image.version, waiting)
        self._jobs.start(job, self._written, Urgency.BACKGROUND)

    def _written(self, _result: object, error: BaseException | None, now: Now) -> None:
        assert self._is_writing, "a note that was begun"
        self._is_writing = False
        if error is None:
            self._is_fault_logged = False
            return
        self._due_us = now.mono_us + _RETRY_US
        assert self._due_us > now.mono_us, "a full disk is tried again after a pause"
        if not self._is_fault_logged:
            self._is_fault_logged = True
            self._outbox.log("warning", "made directories not noted", why=str(error))
