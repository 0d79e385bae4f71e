"""Bugs on a switch: each is planted, and the checker must find it, or it would prove nothing.

Owns the patches, which change the broker's code in this process for the length of a `with`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from quiverlog.core.partition.partition import PartitionState
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.storage import recovery, retention
from quiverlog.storage.index import SparseIndex
from quiverlog.storage.log import Log, SyncTicket
from quiverlog.storage.scan import Damage, Torn, scan
from quiverlog.storage.segment import Segment
from quiverlog.types import Now

from .checker import Violation
from .run import simulate

__all__ = ["BUGS", "Bug", "hunt"]


@dataclass(frozen=True, slots=True)
class Bug:
    """`plant` returns a context in which the bug is there."""

    name: str
    plant: Callable[[], contextlib.AbstractContextManager[object]]


def _acknowledge_before_fsync() -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(SyncTicket, "run", return_value=None)


def _cut_at_first_bad_crc() -> contextlib.AbstractContextManager[object]:
    def careless(view: memoryview, at: int, offset: int, *, verify: bool) -> Iterator[Any]:
        for entry in scan(view, at, offset, verify=verify):
            if isinstance(entry, Damage):
                yield Torn(entry.position, entry.offset)
                return
            yield entry

    return mock.patch.object(recovery, "scan", careless)


def _index_ahead_of_log() -> contextlib.AbstractContextManager[object]:
    add = SparseIndex.add

    def ahead(self: SparseIndex, relative_offset: int, position: int, newest_us: int) -> None:
        add(self, relative_offset + (1 if position > 64 else 0), position, newest_us)

    return mock.patch.object(SparseIndex, "add", ahead)


@contextlib.contextmanager
def _sequences_forgotten() -> Iterator[None]:
    with (
        mock.patch.object(ProducerStates, "replay", return_value=None),
        mock.patch.object(ProducerStates, "restore", return_value=None),
    ):
        yield


def _retention_too_eager() -> contextlib.AbstractContextManager[object]:
    by_time = retention._by_time

    def eager(log: Log, now: Now) -> int:
        return by_time(log, Now(now.mono_us, now.wall_us + log.config.retention_ms * 200))

    return mock.patch.object(retention, "_by_time", eager)


def _off_by_one_in_sliced_fetch() -> contextlib.AbstractContextManager[object]:
    read = Log.read

    def shifted(self: Log, offset: int, *, bytes_max: int, end_offset: int) -> list[memoryview]:
        if offset + 1 < min(end_offset, self.log_end_offset):
            return read(self, offset + 1, bytes_max=bytes_max, end_offset=end_offset)
        return read(self, offset, bytes_max=bytes_max, end_offset=end_offset)

    return mock.patch.object(Log, "read", shifted)


def _trim_not_durable() -> contextlib.AbstractContextManager[object]:
    def lazy(self: Log, offset: int) -> None:
        self._start_saved = offset

    return mock.patch.object(Log, "_save_start", lazy)


def _failed_fsync_ignored() -> contextlib.AbstractContextManager[object]:
    run = SyncTicket.run

    def optimistic(self: SyncTicket) -> None:
        try:
            run(self)
        except OSError:
            self._log.fault = ""

    return mock.patch.object(SyncTicket, "run", optimistic)


def _cache_taken_for_disk() -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(Segment, "rewrite", return_value=None)


def _long_polls_sleep_on() -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(PartitionState, "flushed", _flushed_in_silence)


def _flushed_in_silence(self: PartitionState, flushed_offset: int) -> bool:
    _FLUSHED(self, flushed_offset)
    return False


_FLUSHED = PartitionState.flushed


BUGS = (
    Bug("acknowledge before fsync", _acknowledge_before_fsync),
    Bug("cut at the first bad CRC below the flushed point", _cut_at_first_bad_crc),
    Bug("index ahead of the log", _index_ahead_of_log),
    Bug("sequence state forgotten at restart", _sequences_forgotten),
    Bug("retention takes a row younger than its bound", _retention_too_eager),
    Bug("off-by-one in a sliced fetch", _off_by_one_in_sliced_fetch),
    Bug("trim that is not durable", _trim_not_durable),
    Bug("failed fsync ignored", _failed_fsync_ignored),
    Bug("cache taken for disk after a failed fsync", _cache_taken_for_disk),
    Bug("long polls sleep on when rows come", _long_polls_sleep_on),
)


def hunt(bug: Bug, *, seeds: int, duration_ms: int) -> tuple[int | None, str]:
    """(first seed that catches the bug, what it said), or (None, "").

    It only counts where the healthy broker keeps every promise.
    """
    for seed in range(seeds):
        with bug.plant():
            said = _run(seed, duration_ms)
        if said and not _run(seed, duration_ms):
            return seed, said
    return None, ""


def _run(seed: int, duration_ms: int) -> str:
    try:
        simulate(seed, duration_ms=duration_ms)
    except Violation as violation:
        return str(violation).splitlines()[0].partition(": ")[2]
    return ""
