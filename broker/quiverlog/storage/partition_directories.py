"""The partitions' directories: making them, removing them, and judging what a start finds.

A directory on its way out is renamed to `<topic id>-<8 hex>.deleted` first: a crash in the middle
of the removal leaves something that nobody takes for a partition. Rows are only removed when the
metadata log says that their topic was deleted; rows of a topic that it never heard of are set aside
as `<name>.<8 hex>.orphan`, for the operator to judge. What is none of ours is left alone.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from quiverlog.errors import QuiverlogError
from quiverlog.storage.disk import Disk, write_error
from quiverlog.storage.partition_files import (
    DAMAGED,
    EMPTIED_FILE,
    ORPHAN,
    PARTITION_FILE,
    doomed_name,
    is_damaged_id,
    is_doomed_name,
    is_partition_name,
    names_itself,
    orphan_name,
    printable,
    read_topic_id,
    write_partition_file,
)

__all__ = ["PartitionDirectories", "typed_errors"]

_ORPHANS_OF_A_NAME_MAX: Final = 1_000
_REMOVED_AT_ONCE: Final = 16
"""Leftovers that a start removes before it serves, with a flush each."""


@contextlib.contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Errors of the operating system become errors of the table, once, here."""
    try:
        yield
    except OSError as error:
        raise write_error(error.filename or path, error) from error


def _is_of_the_disk(error: QuiverlogError) -> bool:
    """True for a failure of the disk; False for a format from the future."""
    return isinstance(error.__cause__, OSError) or error.retriable


class PartitionDirectories:
    """See the module docstring. `notes`: what the operator should hear."""

    __slots__ = ("_disk", "data_path", "notes")

    def __init__(self, disk: Disk, data_path: str) -> None:
        self._disk = disk
        self.data_path = data_path
        self.notes: list[str] = []

    def partition_path(self, name: str) -> str:
        """The directory of the partition `name` (`<topic>-<partition>`)."""
        return f"{self.data_path}/{name}"

    def partitions(self) -> list[str]:
        """Names of the partitions' directories; those on their way out or aside left out."""
        with typed_errors(self.data_path):
            return [
                name for name in self._disk.directories(self.data_path) if is_partition_name(name)
            ]

    def missing(self, names: Collection[str]) -> list[str]:
        """The names of the partitions that have no directory, sorted."""
        there = set(self.partitions())
        return sorted(name for name in names if name not in there)

    # --- making and removing -------------------------------------------------------------------
    def create_partition(self, name: str, topic_id: bytes) -> bool:
        """Make a partition's directory, replacing what another topic left there.

        The directory of this very topic is kept as it is: False. One whose owner cannot be read
        just now is not replaced: it may hold this topic's rows. Its name is durable after
        `sync_partitions`; its `partition.json` is with the first rows (jobs.FlushJob). Before that
        a power failure may tear it, which `remove_leftovers` expects: thousands of partitions must
        not cost as many flushes.

        Raises:
            DiskFull, StorageFault, ThrottledBroker: nothing new is there.
        """
        assert is_partition_name(name)
        assert len(topic_id) == 16, "another one counts as torn when it is read again"
        path = self.partition_path(name)
        with typed_errors(path):
            if self._disk.exists(path):
                owner = read_topic_id(self._disk, path)
                if owner == topic_id:
                    return False
                if owner is None:
                    raise OSError(errno.EIO, "it cannot be read whose directory this is", path)
                self.remove_partition(name)
            try:
                self._disk.make_dir(path)
                write_partition_file(self._disk, path, name, topic_id)
            except BaseException:
                with contextlib.suppress(OSError, QuiverlogError):
                    self._disk.remove_tree(path)
                raise
        return True

    def sync_partitions(self) -> None:
        """Make the names of all partitions' directories durable."""
        with typed_errors(self.data_path):
            self._disk.sync_dir(self.data_path)

    def remove_partition(self, name: str) -> None:
        """Remove a partition's directory, whoever's it is."""
        self.remove_partitions({name: None})

    def remove_partitions(self, owners: Mapping[str, bytes | None]) -> None:
        """Remove the directories of these partitions, with one flush for all of them.

        One that resists keeps none of the others.

        Args:
            owners: topic id by partition name: a directory that is not that topic's is left
                alone. None stands for any.

        Raises:
            StorageFault, ThrottledBroker: not all are gone; the next start goes on.
        """
        doomed: list[str] = []
        failures: list[QuiverlogError] = []
        for name, topic_id in owners.items():
            try:
                doomed.extend(self._doom(name, topic_id))
            except QuiverlogError as error:
                failures.append(error)
        if doomed:
            self.sync_partitions()
        for path in doomed:
            try:
                with typed_errors(path):
                    self._disk.remove_tree(path)
            except QuiverlogError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _doom(self, name: str, topic_id: bytes | None) -> list[str]:
        """Take the name from a directory, so that nobody takes it for a partition; the new path."""
        path = self.partition_path(name)
        with typed_errors(path):
            if not self._disk.exists(path):
                return []
            owner = read_topic_id(self._disk, path)
            if topic_id is not None and owner not in (topic_id, b""):
                return []
            doomed = self.partition_path(doomed_name(name, owner or b""))
            self._disk.remove_tree(doomed)  # The removal of another life did not finish.
            assert doomed != path
            self._disk.rename(path, doomed)
        return [doomed]

    # --- what a start finds --------------------------------------------------------------------
    def remove_leftovers(
        self,
        owners: Mapping[str, bytes],
        removed: Collection[bytes],
        *,
        written: Collection[str] = (),
        later: dict[str, bytes] | None = None,
    ) -> tuple[list[str], list[str]]:
        """Clear away all that no topic owns. Returns (names removed, names set aside).

        Nothing that lies in the directory keeps a broker from starting: what cannot be removed or
        set aside stays, and is told in `notes`.

        Args:
            owners: topic id by partition name. A directory whose `partition.json` cannot be read
                is kept when its name is owned: rows are worth more than the file that labels them.
            removed: ids of topics that are known to have been deleted.
            written: partitions that must have files, because they had rows when the broker was
                stopped in order. One without any was emptied by somebody: it stays so, and is not
                taken for a new one. (One without rows may have lost its only file, which is not
                durable, to a power failure.)
            later: where there are many, gets those that may be removed while others are served:
                topic id by name, for `remove_partitions`. None removes all of them now.

        Raises:
            UnsupportedFormat: a newer quiverlog wrote a partition.
        """
        gone: list[str] = []
        aside: list[str] = []
        with typed_errors(self.data_path):
            names = self._disk.list(self.data_path)
            directories = frozenset(self._disk.directories(self.data_path))
        for name in names:
            if name not in directories:
                self._note(name, "not a directory")
                continue
            try:
                own = owners.get(name)
                if own and read_topic_id(self._disk, self.partition_path(name)) == own:
                    continue  # Nearly always: a directory with its file in it.
                with typed_errors(self.partition_path(name)):
                    self._judge(name, owners, removed, gone, aside, written, later)
            except QuiverlogError as error:
                if not _is_of_the_disk(error):
                    raise
                self._note(name, error.message)
        assert not set(gone) & set(aside), "a directory has one fate"
        assert not later or not owners.keys() & later.keys(), "a name that is owned is free by now"
        return gone, aside

    def _judge(
        self,
        name: str,
        owners: Mapping[str, bytes],
        removed: Collection[bytes],
        gone: list[str],
        aside: list[str],
        written: Collection[str],
        later: dict[str, bytes] | None,
    ) -> None:
        path = self.partition_path(name)
        shown = printable(name)
        if is_doomed_name(name):
            self._disk.remove_tree(path)
            gone.append(shown)
        elif not name.endswith((ORPHAN, DAMAGED)):
            owner = read_topic_id(self._disk, path)
            if owner not in removed and self._has_damaged_label(name, owner, owners.get(name)):
                self.notes.append(
                    f"data/{shown}: the topic id in its {PARTITION_FILE} was damaged: written anew"
                )
                self._label(name, owners[name])
            elif name in owners and owner in (owners[name], b"", None):
                if owner is None:
                    self._note(name, f"its {PARTITION_FILE} could not be read")
                if owner == owners[name]:
                    return  # A directory with a file in it.
                if name in written and not self._disk.list(path):
                    self._disk.write_file_atomic(f"{path}/{EMPTIED_FILE}", b"")
                else:  # Missing or torn, as a power failure leaves it.
                    self._label(name, owners[name])
            elif owner is None:
                self._note(name, f"its {PARTITION_FILE} cannot be read")
            elif owner in removed or self._is_unfinished(name):
                # A name that is owned must be free before its partition is opened.
                if later is not None and name not in owners and len(gone) >= _REMOVED_AT_ONCE:
                    later[name] = owner
                else:
                    self.remove_partition(name)
                    gone.append(shown)
            elif owner or self._holds_rows(name):
                self._set_aside(name, owner)
                aside.append(shown)
            else:
                self._note(name, "not a partition")

    def unknown_rows(self, owners: Mapping[str, bytes], removed: Collection[bytes]) -> list[str]:
        """Names of the directories with rows that `remove_leftovers` would set aside."""
        found: list[str] = []
        for name in self.partitions():
            path = self.partition_path(name)
            with contextlib.suppress(QuiverlogError), typed_errors(path):
                owner = read_topic_id(self._disk, path)
                own = owners.get(name)
                owned = own is not None and owner in (own, b"", None)
                owned = owned or self._has_damaged_label(name, owner, own)
                if not owned and owner not in removed and self._holds_rows(name):
                    found.append(name)
        return found

    def _has_damaged_label(self, name: str, owner: bytes | None, own: bytes | None) -> bool:
        """True where a few bits make of a partition's topic id one that no topic has.

        Ids are random: two that differ so little are one and the same, damaged. The directory's
        name, and the name in the file, still say whose the rows are.
        """
        return (
            bool(owner and own)
            and is_damaged_id(owner or b"", own or b"")
            and names_itself(self._disk, self.partition_path(name), name)
        )

    def _note(self, name: str, why: str) -> None:
        self.notes.append(f"data/{printable(name)} was left alone: {why}")

    def _label(self, name: str, topic_id: bytes) -> None:
        """Write an owned partition's file anew. Doing without is no error."""
        with contextlib.suppress(QuiverlogError):
            write_partition_file(self._disk, self.partition_path(name), name, topic_id)

    def _is_unfinished(self, name: str) -> bool:
        """True for what `create_partition` leaves when a crash interrupts it."""
        ours = {PARTITION_FILE, f"{PARTITION_FILE}.tmp"}
        return is_partition_name(name) and ours.issuperset(
            self._disk.list(self.partition_path(name))
        )

    def _holds_rows(self, name: str) -> bool:
        return any(file.endswith(".log") for file in self._disk.list(self.partition_path(name)))

    def _set_aside(self, name: str, owner: bytes) -> None:
        path = self.partition_path(name)
        if owner:
            self._label(name, owner)  # The name may be cut.
        for attempt in range(_ORPHANS_OF_A_NAME_MAX):
            aside = self.partition_path(orphan_name(name, owner, attempt))
            if not self._disk.exists(aside):
                break
        self._disk.rename(path, aside)
        self._disk.sync_dir(self.data_path)
