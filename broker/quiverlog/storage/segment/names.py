"""The names in a partition's directory that are a log's own, and special files under them.

What has a file's name and is none (a directory, a FIFO, a link to nothing) is moved aside, and then
rebuilt, or its rows are missing. Other names are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from quiverlog.errors import StorageFault
from quiverlog.storage.disk.disk import Disk, short_name

__all__ = ["SetAside", "move_aside", "own_offset", "rename_aside", "set_aside"]

_NUMBERED: Final = re.compile(r"(?:producers-)?([0-9]{20})\.(log|index|snapshot)")
_OWN: Final = re.compile(
    r"(?:(?:producers-[0-9]{20}\.snapshot)|(?:[0-9]{20}\.(?:log|index))|partition\.json"
    r"|leader-epochs|log-start|log-start-copy|recovery-point|recovery-point-copy|truncate-to|damaged)"
    r"(?:\.tmp)?"
    r"|[0-9]{20}\.log\.cut"
)
_NUMBER: Final = re.compile(r"[0-9]{20}")
_SUFFIX: Final = ".unusable"
_ATTEMPTS_MAX: Final = 100
_OFFSET_MAX: Final = 2**62 - 1
_NAMES_REMEMBERED: Final = 256


class SetAside(NamedTuple):
    """`names`: files that the log no longer has.

    `left`: names in the directory now, sorted.
    """

    names: tuple[str, ...]
    notes: tuple[str, ...]
    left: list[str]


@lru_cache(_NAMES_REMEMBERED)
def own_offset(name: str, suffix: str) -> int | None:
    if not name.endswith(suffix):
        return None
    match = _NUMBERED.fullmatch(name)
    if match is None or match[2] != suffix:
        return None
    offset = int(match[1])
    return offset if offset <= _OFFSET_MAX else None


@lru_cache(_NAMES_REMEMBERED)
def _is_own(name: str) -> bool:
    if _OWN.fullmatch(name) is None:
        return False
    number = _NUMBER.search(name)
    return number is None or int(number[0]) <= _OFFSET_MAX


def set_aside(disk: Disk, directory: str, entries: Mapping[str, bool]) -> SetAside:
    names = list(entries)
    moved: list[str] = []
    notes: list[str] = []
    for name, is_file in entries.items():
        if is_file and _is_own(name):
            continue
        path = f"{directory}/{name}"
        if not _is_own(name):
            if _SUFFIX not in name:
                notes.append(f"{short_name(path)} is no file of a partition: it was left alone.")
        else:
            new = rename_aside(disk, directory, name, names)
            moved.append(name)
            lost = "the rows in it are missing" if name.endswith(".log") else "it is made anew"
            notes.append(f"{short_name(path)} was not a regular file: moved to {new}; {lost}.")
    assert len(moved) <= len(notes), "each move has a note"
    return SetAside(tuple(moved), tuple(notes), disk.list(directory) if moved else names)


def move_aside(disk: Disk, directory: str, names: Sequence[str]) -> list[str]:
    notes: list[str] = []
    for name in names:
        path = f"{directory}/{name}"
        if disk.exists(path) and not disk.is_file(path):
            new = _free_name(name, disk.list(directory))
            assert not disk.exists(f"{directory}/{new}"), "nothing is renamed over"
            disk.rename(path, f"{directory}/{new}")
            notes.append(f"{name} was not a regular file: moved to {new}")
    return notes


def rename_aside(disk: Disk, directory: str, name: str, taken: Sequence[str]) -> str:
    """Rename a file to a name that no file of a log has, and return it."""
    new = _free_name(name, taken)
    assert new not in taken, "nothing is renamed over"
    try:
        disk.rename(f"{directory}/{name}", f"{directory}/{new}")
    except OSError as error:
        shown = short_name(f"{directory}/{name}")
        raise StorageFault(
            f"{shown} is no file of the log and cannot be moved aside ({error.strerror}):"
            " remove it.",
            file=shown,
        ) from error
    return new


def _free_name(name: str, taken: Sequence[str]) -> str:
    for attempt in range(_ATTEMPTS_MAX):
        new = f"{name}{_SUFFIX}" if attempt == 0 else f"{name}{_SUFFIX}.{attempt}"
        if new not in taken:
            assert not _is_own(new), "the next start would take it for the log's"
            return new
    raise StorageFault(f"there are {_ATTEMPTS_MAX} files like {name}{_SUFFIX}: remove some.")
