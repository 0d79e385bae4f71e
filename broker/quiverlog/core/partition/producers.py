"""The idempotent producers of a partition (KIP-98): new batch, duplicate, or out of order.

A batch carries (producer id, producer epoch, base sequence). Sequences count ROWS, as offsets do:
the next batch must carry `base_sequence + row_count`, modulo 2**31. The last five batches of each
producer are remembered; a batch that matches one is a duplicate and gets its first offset.

Invariants:
- `next_sequence` follows the newest remembered batch; batches are in log order.
- The states follow from the batch headers of the log, apart from expiry. A snapshot stands for the
  headers below it, whose rows may be deleted by now.
- At most `producers_max` are kept. The least recently active is dropped: its next batch is refused
  (UnknownProducerId), and a retry of its very first batch would be stored twice.
- Ids from `PRODUCER_IDS_END` on are publishes: batches of `publishes`, by rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.publishes import Publishes, RunTable, SnapshotEntry
from quiverlog.errors import (
    CorruptLog,
    InvalidProducerEpoch,
    InvalidRequest,
    OutOfOrderSequence,
    UnknownProducerId,
)
from quiverlog.limits import (
    PRODUCER_BATCHES_REMEMBERED,
    PRODUCER_EXPIRY_MS,
    PRODUCERS_PER_PARTITION_MAX,
)
from quiverlog.types import NO_SEQUENCE, PRODUCER_IDS_END

__all__ = ["SEQUENCE_MODULUS", "ProducerProgress", "ProducerStates"]

SEQUENCE_MODULUS: Final = 2**31
"""Sequences wrap here: `base_sequence` is a signed 32-bit field that is never negative."""

_SNAPSHOT_VERSION: Final = 1


class _Producer:
    """`batches`: (base_sequence, row_count, base_offset), oldest first.

    Immutable once it is in a partition's state: a capture copies references only.
    """

    __slots__ = ("batches", "epoch", "next_sequence", "seen_us")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[tuple[int, int, int]] = []
        self.seen_us = 0

    def add(self, header: BatchHeader, base_offset: int, now_us: int) -> None:
        batches = self.batches
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            batches.clear()
        self.seen_us = now_us
        self.next_sequence = (header.base_sequence + header.row_count) % SEQUENCE_MODULUS
        assert 0 <= self.next_sequence < SEQUENCE_MODULUS
        assert not batches or base_offset > batches[-1][2], "batches lie in log order"
        batches.append((header.base_sequence, header.row_count, base_offset))
        if len(batches) > PRODUCER_BATCHES_REMEMBERED:
            del batches[0]
        assert len(batches) <= PRODUCER_BATCHES_REMEMBERED


class ProducerProgress(NamedTuple):
    """`idle_us`: since the newest batch was appended, or since the partition was opened here."""

    epoch: int
    next_sequence: int
    last_offset: int
    idle_us: int


class _Snapshot(msgspec.Struct, array_like=True):
    """`producers`: least recently active first; then the publishes, in the same way."""

    version: int
    producers: list[SnapshotEntry]


_DECODER: Final = msgspec.msgpack.Decoder(_Snapshot)


class ProducerStates:
    __slots__ = (
        "_admitted", "_expiry_us", "_opened_us", "_producers", "_producers_max", "publishes",
    )  # fmt: skip

    def __init__(
        self,
        now_us: int,
        *,
        producers_max: int = PRODUCERS_PER_PARTITION_MAX,
        expiry_us: int = PRODUCER_EXPIRY_MS * 1000,
        own_cluster: int = 0,
    ) -> None:
        assert producers_max > 0
        # Replayed producers count as active from now on: a restart expires none for the old times
        # of its rows.
        self._opened_us = now_us
        self._producers_max = producers_max
        self._expiry_us = expiry_us
        # Insertion order is order of last use: the first key is dropped first.
        self._producers: dict[int, _Producer] = {}
        # The producers whose newest batches are not in the log yet.
        self._admitted: dict[int, _Producer] = {}
        self.publishes = Publishes(own_cluster)

    def __len__(self) -> int:
        return len(self._producers)

    # --- deciding ------------------------------------------------------------------------------
    def check(self, header: BatchHeader) -> int | None:
        """Return the offset of a batch that was stored before; None for a new one, to be
        appended."""
        if header.producer_id < 0:
            return None
        if header.producer_id >= PRODUCER_IDS_END:
            return self.publishes.check(header)
        producer = self._admitted.get(header.producer_id) or self._producers.get(header.producer_id)
        if producer is None:
            return self._check_first(header, known=False)
        if header.producer_epoch == producer.epoch:
            if header.base_sequence == producer.next_sequence:
                return None
            for base_sequence, row_count, base_offset in producer.batches:
                if base_sequence == header.base_sequence and row_count == header.row_count:
                    return base_offset
            raise OutOfOrderSequence(_out_of_order(header, producer.next_sequence))
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} wrote with epoch {header.producer_epoch},"
                f" the newest is {producer.epoch}."
            )
        return self._check_first(header, known=True)

    @staticmethod
    def _check_first(header: BatchHeader, *, known: bool) -> None:
        if header.base_sequence == 0 and header.producer_epoch >= 0:
            return
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRequest(
                f"producer {header.producer_id}: a producer id needs an epoch and a base sequence,"
                f" both at least 0 (got {header.producer_epoch} and {header.base_sequence})."
            )
        if known:
            raise OutOfOrderSequence(_out_of_order(header, 0))
        raise UnknownProducerId(
            f"producer {header.producer_id} starts with sequence {header.base_sequence}, not 0."
        )

    def under_ended_epoch(self, header: BatchHeader) -> tuple[int | None, int]:
        """Returns the offset of a stored batch, and the sequence from which on nothing is stored
        under its epoch: 0 where no row of it is remembered, -1 where a newer epoch has written."""
        pid, epoch = header.producer_id, header.producer_epoch
        producer = self._admitted.get(pid) or self._producers.get(pid)
        if producer is None or producer.epoch < epoch:
            return None, 0
        if producer.epoch > epoch:
            return None, NO_SEQUENCE
        for base_sequence, row_count, base_offset in producer.batches:
            if base_sequence == header.base_sequence and row_count == header.row_count:
                return base_offset, producer.next_sequence
        return None, producer.next_sequence

    def newest_epoch(self, producer_id: int) -> int:
        producer = self._admitted.get(producer_id) or self._producers.get(producer_id)
        return -1 if producer is None else producer.epoch

    def progress(self, producer_id: int, now_us: int) -> ProducerProgress | None:
        producer = self._producers.get(producer_id)
        if producer is None or not producer.batches:
            return None
        last_offset = _end(producer.batches[-1]) - 1
        idle_us = max(0, now_us - producer.seen_us)
        return ProducerProgress(producer.epoch, producer.next_sequence, last_offset, idle_us)

    @property
    def newest_offset(self) -> int:
        newest = (one.batches[-1][2] for one in self._producers.values() if one.batches)
        return max([self.publishes.newest_offset, *newest])

    # --- recording -----------------------------------------------------------------------------
    def admit(self, header: BatchHeader, base_offset: int, now_us: int) -> None:
        """Record a batch that is about to be appended; later batches are checked after it."""
        assert base_offset >= 0
        pid = header.producer_id
        if pid < 0:
            return
        if pid >= PRODUCER_IDS_END:
            self.publishes.admit(header, base_offset)
            return
        # Not in snapshots: after a crash, one ahead of the log would take the retry of a batch that
        # was never stored for a duplicate, and acknowledge lost rows.
        producer = self._admitted.get(pid)
        if producer is None:
            known = self._producers.get(pid)
            producer = _Producer(header.producer_epoch) if known is None else _copy(known)
            self._admitted[pid] = producer
        producer.add(header, base_offset, now_us)

    def commit_admitted(self) -> None:
        for pid, producer in self._admitted.items():
            self._put(pid, producer)
        self._admitted.clear()
        self.publishes.commit_admitted()

    def drop_admitted(self) -> None:
        self._admitted.clear()
        self.publishes.drop_admitted()

    def record(self, header: BatchHeader, base_offset: int, now_us: int) -> None:
        """Record a batch in the log, without the rules of `check`."""
        assert not self._admitted, "recorded batches come after all that are admitted"
        pid = header.producer_id
        if pid < 0:
            return
        if pid >= PRODUCER_IDS_END:
            self.publishes.record(header, base_offset)
            return
        known = self._producers.get(pid)
        producer = _Producer(header.producer_epoch) if known is None else _copy(known)
        producer.add(header, base_offset, now_us)
        self._put(pid, producer)

    def _put(self, pid: int, producer: _Producer) -> None:
        producers = self._producers
        # Removed first, so that it goes to the end: insertion order is order of last use.
        producers.pop(pid, None)
        if len(producers) >= self._producers_max:
            del producers[next(iter(producers))]
        producers[pid] = producer
        assert len(producers) <= self._producers_max
        assert producer.batches, "a producer that is remembered has written"

    def replay(self, header: BatchHeader) -> None:
        self.record(header, header.base_offset, self._opened_us)

    def expire(self, now_us: int) -> int:
        """Forget producers that are silent for long; publishes stay."""
        limit = now_us - self._expiry_us
        known = len(self._producers)
        count = 0
        while self._producers:
            pid = next(iter(self._producers))
            if self._producers[pid].seen_us >= limit:
                break
            del self._producers[pid]
            count += 1
        assert len(self._producers) + count == known
        return count

    # --- snapshots -----------------------------------------------------------------------------
    def capture(self) -> Callable[[], bytes]:
        return partial(_encode, self._producers.copy(), self.publishes.copy())

    def snapshot(self) -> bytes:
        return self.capture()()

    def snapshot_below(self, offset: int) -> bytes:
        return self.capture_below(offset)()

    def capture_below(self, offset: int) -> Callable[[], bytes]:
        """Capture the batches that end at or below `offset`.

        A replica that adds to them the batches from the one around `offset` on gets these states.
        """
        assert offset >= 0
        return partial(_encode_below, self._producers.copy(), self.publishes.copy(), offset)

    def blank(self, now_us: int | None = None) -> ProducerStates:
        """Return empty states with the same bounds; producers found later count as active at
        `now_us`."""
        # None: when the newest of these was active, which may be long after the opening.
        if now_us is None:
            newest = next(reversed(self._producers.values()), None)
            now_us = self._opened_us if newest is None else max(self._opened_us, newest.seen_us)
        return ProducerStates(
            now_us,
            producers_max=self._producers_max,
            expiry_us=self._expiry_us,
            own_cluster=self.publishes.own_cluster,
        )

    def adopt(self, restored: ProducerStates) -> None:
        assert restored is not self
        assert not self._admitted, "nothing is appended while a log is cut"
        self._producers = restored._producers
        self.publishes.adopt(restored.publishes)

    def restore(self, blob: bytes) -> None:
        self._producers.clear()
        self._admitted.clear()
        self.publishes.clear()
        if not blob:
            return
        try:
            snapshot = _DECODER.decode(blob)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"producers.snapshot cannot be read: {error}.") from error
        if snapshot.version != _SNAPSHOT_VERSION:
            raise CorruptLog(f"producers.snapshot has version {snapshot.version}.")
        entries = [one for one in snapshot.producers if one[0] < PRODUCER_IDS_END]
        for entry in snapshot.producers:
            if entry[0] >= PRODUCER_IDS_END:
                self.publishes.restore(entry)
        # The bound may have been lowered since the snapshot.
        for pid, epoch, next_sequence, batches in entries[-self._producers_max :]:
            producer = _Producer(epoch)
            producer.seen_us = self._opened_us
            producer.next_sequence = next_sequence
            producer.batches = batches[-PRODUCER_BATCHES_REMEMBERED:]
            self._producers[pid] = producer
        assert len(self._producers) <= self._producers_max


def _end(batch: tuple[int, int, int]) -> int:
    return batch[2] + batch[1]


def _encode(producers: dict[int, _Producer], publishes: RunTable) -> bytes:
    entries = [(pid, p.epoch, p.next_sequence, p.batches) for pid, p in producers.items()]
    entries += Publishes.entries(publishes)
    return msgspec.msgpack.encode(_Snapshot(_SNAPSHOT_VERSION, entries))


def _encode_below(producers: dict[int, _Producer], publishes: RunTable, offset: int) -> bytes:
    kept: list[SnapshotEntry] = []
    for pid, known in producers.items():
        batches = known.batches
        if _end(batches[-1]) > offset:
            batches = [batch for batch in batches if _end(batch) <= offset]
        if batches:
            following = (batches[-1][0] + batches[-1][1]) % SEQUENCE_MODULUS
            kept.append((pid, known.epoch, following, batches))
    assert len(kept) <= len(producers)
    kept += Publishes.entries(publishes, offset)
    return msgspec.msgpack.encode(_Snapshot(_SNAPSHOT_VERSION, kept))


def _copy(producer: _Producer) -> _Producer:
    copy = _Producer(producer.epoch)
    copy.seen_us = producer.seen_us
    copy.next_sequence = producer.next_sequence
    copy.batches = list(producer.batches)
    assert copy.batches is not producer.batches, "captures share what never changes"
    return copy


def _out_of_order(header: BatchHeader, expected: int) -> str:
    return (
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence"
        f" {header.base_sequence}, expected {expected}."
    )
