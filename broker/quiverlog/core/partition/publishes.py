"""The publishes of a partition: rows of committed transactions, which brokers append (FORWARD).

A batch of one has a `PublishId` as its producer id, the number of the cluster that staged its rows
as its producer epoch, and sequences that count rows from 0. The newest id of each (cluster number,
staging partition), and its next sequence, tell what a FORWARD brings that is not stored yet.

Invariants:
- A leader appends no id that is older than the newest of its key.
- Entries follow from batch headers; a snapshot has those of headers whose rows are gone.
- An entry of the own cluster stays: without it, its publish would be stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import InvalidRequest, OutOfOrderSequence, UnknownProducerId
from quiverlog.limits import PUBLISH_RUNS_REMEMBERED, PUBLISH_STATES_MAX
from quiverlog.types import PRODUCER_IDS_END, PublishId

__all__ = ["Publishes", "Run", "RunTable", "SnapshotEntry", "Stored"]

_SEQUENCES_END: Final = 2**31 - 1
"""The bound of a publish's rows in one target."""


class Run(NamedTuple):
    """Rows of one publish that lie one after the other, in one batch or several."""

    publish_id: int
    base_sequence: int
    row_count: int
    base_offset: int

    @property
    def next_sequence(self) -> int:
        return self.base_sequence + self.row_count

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.row_count


class Stored(NamedTuple):
    """The first `batch_count` batches are stored, below `end_offset`; what follows is new."""

    batch_count: int
    end_offset: int


_Key = tuple[int, int]
RunTable = dict[_Key, tuple[Run, ...]]
"""By cluster number and staging partition, longest silent first: the newest runs, oldest first."""

SnapshotEntry = tuple[int, int, int, list[tuple[int, int, int]]]
"""An entry of a snapshot of producers: id, epoch, next sequence, batches."""


class Publishes:
    """`own_cluster`: the number of this broker's cluster; 0: it has none."""

    __slots__ = ("_admitted", "_table", "own_cluster")

    def __init__(self, own_cluster: int = 0) -> None:
        self.own_cluster = own_cluster
        self._table: RunTable = {}
        # Those with batches that are about to be appended.
        self._admitted: RunTable = {}

    @property
    def table(self) -> Mapping[_Key, tuple[Run, ...]]:
        return self._table

    # --- deciding ------------------------------------------------------------------------------
    def stored(self, headers: Sequence[BatchHeader], begin: int | None = None) -> Stored:
        """Return which of these batches, one after the other of one publish, are stored.

        Args:
            begin: the publisher has lost the rows from here to the first batch, and counted them;
                None: none.

        Raises InvalidRequest or OutOfOrderSequence, whose `next_sequence` is the one that the first
        new batch must have: nothing of them may be appended then.
        """
        assert headers
        _check(headers)
        publish_id = headers[0].producer_id
        runs = self._runs(_key(headers[0]))
        newest = runs[-1] if runs else None
        if newest and publish_id < newest.publish_id:
            # All of it was acknowledged before a newer one of its staging partition was sent.
            return Stored(len(headers), newest.end_offset)
        known = newest.next_sequence if newest and newest.publish_id == publish_id else 0
        first = headers[0].base_sequence
        count, expected = 0, first if begin is not None and begin <= known < first else known
        for header in headers:
            end = header.base_sequence + header.row_count
            if end <= known and expected == known:
                count += 1
            elif header.base_sequence == expected:
                expected = end
            else:
                raise OutOfOrderSequence(
                    f"publish {publish_id} of cluster {header.producer_epoch} came with sequence"
                    f" {header.base_sequence} after {expected}; {known} is the next to be stored.",
                    next_sequence=known,
                )
        assert newest or not count, "what is stored is remembered"
        return Stored(count, newest.end_offset if newest and count else 0)

    def check(self, header: BatchHeader) -> int | None:
        """Return where a batch of the log is remembered, None where it may follow what is.

        Raises OutOfOrderSequence or UnknownProducerId where it can be neither.
        """
        runs = self._runs(_key(header))
        end = header.base_sequence + header.row_count
        if not runs:
            if header.base_sequence:
                raise UnknownProducerId(f"publish {header.producer_id} is not remembered.")
            return None
        for run in runs:
            is_inside = run.base_sequence <= header.base_sequence and end <= run.next_sequence
            if is_inside and run.publish_id == header.producer_id:
                return run.base_offset + header.base_sequence - run.base_sequence
        newest = runs[-1]
        if header.producer_id == newest.publish_id:
            # It may lie around the offset of a snapshot, with its first rows in the last run; or
            # behind rows that its publisher has lost.
            if newest.next_sequence < end:
                return None
        elif header.producer_id > newest.publish_id:
            return None
        raise OutOfOrderSequence(
            f"sequence {header.base_sequence} of publish {header.producer_id} does not follow"
            f" {newest.next_sequence} of {newest.publish_id}."
        )

    @property
    def newest_offset(self) -> int:
        return max((runs[-1].base_offset for runs in self._table.values()), default=-1)

    def _runs(self, key: _Key) -> tuple[Run, ...]:
        return self._admitted.get(key) or self._table.get(key, ())

    # --- recording -----------------------------------------------------------------------------
    def admit(self, header: BatchHeader, base_offset: int) -> None:
        key = _key(header)
        runs = self._runs(key)
        if runs:
            assert runs[-1].publish_id <= header.producer_id, "none is older than the newest"
            assert runs[-1].end_offset <= base_offset, "it lies behind what is stored"
        self._admitted[key] = _grown(runs, header, base_offset)

    def commit_admitted(self) -> None:
        for key, runs in self._admitted.items():
            self._put(key, runs)
        self._admitted.clear()

    def drop_admitted(self) -> None:
        self._admitted.clear()

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """Record a batch in the log, without the rules of `stored`."""
        key = _key(header)
        self._put(key, _grown(self._table.get(key, ()), header, base_offset))

    def _put(self, key: _Key, runs: tuple[Run, ...]) -> None:
        assert runs
        table = self._table
        assert len(runs) <= PUBLISH_RUNS_REMEMBERED
        table.pop(key, None)  # It goes to the end: insertion order is order of last use.
        table[key] = runs
        if len(table) > PUBLISH_STATES_MAX:
            # There is one: the own cluster has no more staging partitions than these.
            del table[next(cluster for cluster in table if cluster[0] != self.own_cluster)]
        assert len(table) <= PUBLISH_STATES_MAX

    # --- snapshots -----------------------------------------------------------------------------
    def copy(self) -> RunTable:
        return self._table.copy()

    def adopt(self, restored: Publishes) -> None:
        assert not self._admitted, "nothing is appended while a log is cut"
        assert not restored._admitted, "a snapshot has what is in the log"
        assert restored.own_cluster == self.own_cluster, "or it would forget other entries"
        self._table = restored._table

    def clear(self) -> None:
        self._table.clear()
        self._admitted.clear()

    def restore(self, entry: SnapshotEntry) -> None:
        """Take in the next entry of a snapshot; those of a key come oldest first."""
        publish_id, cluster, _, batches = entry
        key = (cluster, PublishId.unpack(publish_id).staged_partition)
        runs = (*self._table.get(key, ()), *(Run(publish_id, *batch) for batch in batches))
        if runs:
            self._put(key, runs[-PUBLISH_RUNS_REMEMBERED:])

    @staticmethod
    def entries(table: RunTable, below: int | None = None) -> Iterator[SnapshotEntry]:
        """Yield the entries of a snapshot, of the rows below an offset if one is given."""
        for (cluster, _), known in table.items():
            runs: Iterable[Run] = known if below is None else _below(known, below)
            for publish_id, own in groupby(runs, key=lambda run: run.publish_id):
                batches = [(run.base_sequence, run.row_count, run.base_offset) for run in own]
                yield publish_id, cluster, batches[-1][0] + batches[-1][1], batches


def _check(headers: Sequence[BatchHeader]) -> None:
    first = headers[0]
    for header in headers:
        if header.producer_id < PRODUCER_IDS_END or header.producer_epoch < 0:
            raise InvalidRequest(
                f"producer {header.producer_id} (epoch {header.producer_epoch}) is no publish:"
                f" those have ids from {PRODUCER_IDS_END} on, and the number of a cluster."
            )
        if (header.producer_id, header.producer_epoch) != (first.producer_id, first.producer_epoch):
            raise InvalidRequest(
                f"publish {header.producer_id} of cluster {header.producer_epoch} came with"
                f" {first.producer_id} of {first.producer_epoch}: send one publish at a time."
            )
        if not 0 <= header.base_sequence <= _SEQUENCES_END - header.row_count:
            raise InvalidRequest(
                f"publish {header.producer_id} has {header.row_count} rows from sequence"
                f" {header.base_sequence} on: sequences are 0 to {_SEQUENCES_END - 1}."
            )


def _key(header: BatchHeader) -> _Key:
    return header.producer_epoch, PublishId.unpack(header.producer_id).staged_partition


def _grown(runs: tuple[Run, ...], header: BatchHeader, base_offset: int) -> tuple[Run, ...]:
    if runs and runs[-1].end_offset > base_offset:
        # A snapshot inside this batch had its first rows.
        runs = _below(runs, base_offset)
    assert not runs or runs[-1].end_offset <= base_offset, "no row lies in two runs"
    new = Run(header.producer_id, header.base_sequence, header.row_count, base_offset)
    if runs:
        last = runs[-1]
        joins = last.publish_id == new.publish_id and last.next_sequence == new.base_sequence
        if joins and last.end_offset == base_offset:
            new = last._replace(row_count=last.row_count + new.row_count)
            runs = runs[:-1]
    return (*runs, new)[-PUBLISH_RUNS_REMEMBERED:]


def _below(runs: tuple[Run, ...], offset: int) -> tuple[Run, ...]:
    kept = [run for run in runs if run.base_offset < offset]
    if kept and kept[-1].end_offset > offset:
        kept[-1] = kept[-1]._replace(row_count=offset - kept[-1].base_offset)
    assert not kept or kept[-1].end_offset <= offset, "the newest run lies behind the others"
    return tuple(kept)
