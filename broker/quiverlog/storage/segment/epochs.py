"""The start of each leader epoch: the list that makes truncation visible (KIP-101).

File (framed as in `frames`, magic `QVEPOCHS`): `u32 count`, then per entry `i32 epoch | i64
start_offset`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.frames import pack_file, unpack_file
from quiverlog.types import NO_EPOCH

__all__ = ["EPOCHS_FILE", "LeaderEpochs"]

EPOCHS_FILE: Final = "leader-epochs"
_MAGIC: Final = b"QVEPOCHS"
_VERSION: Final = 1
_COUNT: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<iq")


class LeaderEpochs:
    """`log_end_offset` returns where the newest epoch ends so far."""

    __slots__ = ("_epochs", "_log_end_offset", "_starts", "dirty", "newest", "saved")

    def __init__(self, log_end_offset: Callable[[], int]) -> None:
        self._log_end_offset = log_end_offset
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.newest = NO_EPOCH
        self.dirty = False
        self.saved = NO_EPOCH
        """The newest epoch on the disk, unless its rows were cut since."""

    def __len__(self) -> int:
        return len(self._epochs)

    def copy(self) -> LeaderEpochs:
        end_offset = self._log_end_offset()
        copy = LeaderEpochs(lambda: end_offset)
        copy._epochs, copy._starts = list(self._epochs), list(self._starts)
        copy.newest = self.newest
        return copy

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def latest(self) -> tuple[int, int]:
        return (self._epochs[-1], self._starts[-1]) if self._epochs else (NO_EPOCH, -1)

    def assign(self, epoch: int, start_offset: int) -> None:
        assert start_offset >= 0
        if epoch <= self.newest:
            return
        # An epoch without rows is replaced: two epochs cannot begin at the same row.
        while self._starts and self._starts[-1] >= start_offset:
            del self._epochs[-1], self._starts[-1]
        assert not self._epochs or self._epochs[-1] < epoch
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.newest = epoch
        self.dirty = True

    def epoch_for(self, offset: int) -> int:
        assert len(self._starts) == len(self._epochs)
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def agree(self, epoch: int, offset: int) -> bool:
        known = self.epoch_for(offset)
        return known in (NO_EPOCH, epoch)

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch <= `epoch`, the offset after its last row); (-1, -1) if undefined.

        The newest epoch ends at the log's end, one older than all where the first begins; a newer
        one is undefined.
        """
        if epoch < 0 or epoch > self.newest:
            return NO_EPOCH, -1
        if epoch == self.newest:
            return epoch, self._log_end_offset()
        assert self._epochs[-1] == self.newest
        index = bisect_right(self._epochs, epoch)
        assert index < len(self._starts), "the newest epoch was answered above"
        if index == 0:
            return epoch, self._starts[0]
        return self._epochs[index - 1], self._starts[index]

    def truncate_to(self, offset: int) -> None:
        assert offset >= 0
        while self._starts and self._starts[-1] >= offset:
            del self._epochs[-1], self._starts[-1]
            self.dirty = True
        assert len(self._epochs) == len(self._starts)
        assert not self._starts or self._starts[-1] < offset
        self.newest = self._epochs[-1] if self._epochs else NO_EPOCH
        self.saved = min(self.saved, self.newest)

    def trim(self, offset: int) -> None:
        """Drop the epochs before the first row kept, except that row's own."""
        assert offset >= 0
        count = bisect_right(self._starts, offset) - 1
        if count > 0:
            del self._epochs[:count], self._starts[:count]
            self.dirty = True
            assert self._starts[0] <= offset, "the epoch of the first row is known"
        assert len(self._epochs) == len(self._starts)

    def dump(self) -> bytes:
        assert all(a < b for a, b in pairwise(self._starts)), "no two epochs begin at one row"
        assert all(a < b for a, b in pairwise(self._epochs)), "epochs never fall along a log"
        parts = [_COUNT.pack(len(self._epochs))]
        parts += [_ENTRY.pack(epoch, start) for epoch, start in self.entries()]
        return pack_file(_MAGIC, _VERSION, b"".join(parts))

    def load(self, path: str, data: bytes) -> None:
        payload = unpack_file(path, data, _MAGIC, _VERSION)
        try:
            (count,) = _COUNT.unpack_from(payload)
            entries = list(_ENTRY.iter_unpack(payload[_COUNT.size :]))
        except struct.error:
            count, entries = -1, []
        grow = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
        if len(entries) != count or not grow:
            raise CorruptLog(f"{path}: its entries are cut short or out of order.", file=path)
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        assert len(self._starts) == len(self._epochs) == count
        self.newest = self.saved = self._epochs[-1] if entries else NO_EPOCH
