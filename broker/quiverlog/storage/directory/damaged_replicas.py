"""Replicas whose files are damaged: marked, and set aside once other replicas have the rows.

Owns the names of those set aside: `<topic>-<partition>.<8 hex of the topic id>.<number>.damaged`;
the number grows. The files' bytes are never changed: views that readers have stay valid, and the
disk's fault can be examined.
"""

from __future__ import annotations

import re
from typing import Final

from quiverlog.errors import QuiverlogError
from quiverlog.storage.directory.data_directory import PartitionDirectories, typed_errors
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.log.files import DAMAGED, DAMAGED_FILE, aside_name, read_topic_id

__all__ = ["keep_newest", "mark_damaged", "set_aside_damaged"]

_NUMBERED: Final = re.compile(r".+\.(?:[0-9a-f]{8}|unknown)\.([0-9]{1,18})\.damaged", re.DOTALL)
_WHY_BYTES_MAX: Final = 2_000


def mark_damaged(disk: Disk, directory: str, why: str) -> None:
    line = why.encode()[:_WHY_BYTES_MAX] + b"\n"
    with typed_errors(directory):
        disk.write_file_atomic(f"{directory}/{DAMAGED_FILE}", line)


def set_aside_damaged(
    directories: PartitionDirectories, disk: Disk, name: str, topic_id: bytes
) -> str:
    """Rename a partition's directory, durably; return the new name, or "" where there is no
    directory of this topic."""
    path = directories.partition_path(name)
    with typed_errors(path):
        if not disk.exists(path):
            return ""
        if read_topic_id(disk, path) not in (topic_id, b"", None):
            return ""
        found = _kept(disk, directories.path)
        number = 1 + max(found, default=0)
        aside = aside_name(name, topic_id, f".{number}", DAMAGED)
        assert not disk.exists(directories.partition_path(aside)), "numbers grow"
        disk.rename(path, directories.partition_path(aside))
        disk.sync_dir(directories.path)
    return aside


def keep_newest(
    directories: PartitionDirectories, disk: Disk, count_max: int, free_bytes_min: int
) -> list[str]:
    """Remove the oldest of those set aside until `count_max` are left and `free_bytes_min` free;
    return those removed."""
    assert count_max >= 0
    data_path = directories.path
    removed: list[str] = []
    failure: QuiverlogError | None = None
    with typed_errors(data_path):
        found = _kept(disk, data_path)
        for index, number in enumerate(sorted(found)):
            is_too_many = len(found) - index > count_max
            if not is_too_many and disk.free_bytes(data_path) >= free_bytes_min:
                break
            try:
                with typed_errors(found[number]):
                    disk.remove_tree(directories.partition_path(found[number]))
                removed.append(found[number])
            except QuiverlogError as error:
                failure = error
    if failure is not None:
        raise failure
    return removed


def _kept(disk: Disk, data_path: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for name in disk.directories(data_path):
        match = _NUMBERED.fullmatch(name) if name.endswith(DAMAGED) else None
        if match is not None:
            found[int(match[1])] = name
    return found
