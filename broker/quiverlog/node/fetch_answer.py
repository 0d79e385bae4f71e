"""What a FETCH may see, and how much of it travels.

Owns one evaluation of a fetch: entry by entry, never above the high watermark, within the bounds of
the entry and of the request. A reader that asks for it is shown a copy, up to the high watermark
that this broker has heard of, in the same way (docs/adr/0036). What is not in memory is left to
jobs: nothing here waits for a disk.

Bodies are views of the log's files: nothing is copied or decoded. A reader on this machine that
asks for it is told where its rows lie in these files instead (docs/adr/0068).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from quiverlog.errors import (
    CorruptLog,
    LogTruncated,
    OffsetNotAvailable,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.limits import FETCH_PARTITION_BYTES_DEFAULT, FRAME_BYTES_MAX, HEADER_BYTES_MAX, KIB
from quiverlog.node.cold import Loaded
from quiverlog.node.lookup import Lookup
from quiverlog.node.replica import Replica
from quiverlog.storage.segment.reading import Answer, views_of
from quiverlog.storage.segment.reading_jobs import JustRead, NotResident
from quiverlog.types import NO_EPOCH
from quiverlog.wire import messages as m

__all__ = ["FetchAnswer", "ends_wait", "is_short", "out_of_range", "partition_limit", "read_entry"]

FILE_RANGE_BYTES_MIN: Final = 64 * KIB
"""Fewer for each file are with the reader sooner when they are sent: it has none to open then. This
bounds the names in an answer, too."""
_BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER_BYTES_MAX


class Missing(NamedTuple):
    """What has to be loaded, of which partition; `loaded` is to hear what came of it."""

    replica: Replica
    cold: NotResident
    loaded: Loaded


class FetchAnswer:
    """One evaluation of a fetch, entry after entry. `at`: the number of those looked at."""

    __slots__ = (
        "_bytes_max",
        "_loaded",
        "_lookup",
        "at",
        "body",
        "byte_count",
        "final",
        "ranges_bytes",
        "request",
        "response",
        "rows",
    )

    def __init__(self, lookup: Lookup, request: m.FetchRequest) -> None:
        self._lookup = lookup
        self.request = request
        self.response = m.FetchResponse()
        self.response.partitions = []
        self.body: list[memoryview] = []
        self.at = 0
        self.byte_count = 0
        self.ranges_bytes = 0
        self.final = False
        self.rows: list[tuple[Replica, int, int]] = []
        self._loaded: dict[int, Loaded] = {}
        limit = request.bytes_max if request.bytes_max > 0 else lookup.fetch_bytes_default
        self._bytes_max = min(limit, _BODY_BYTES_MAX)

    def look(self, end: int) -> list[Missing]:
        """Look at the entries before `end`, up to the first whose rows are not in memory.

        Returns what to load before the next look: for that one, and for others behind it.
        """
        missing: list[Missing] = []
        missing_bytes = 0
        entries = self.request.partitions
        assert self.at < end <= len(entries)
        for index in range(self.at, end):
            entry = entries[index]
            room = min(self._bytes_max - self.byte_count, partition_limit(entry))
            loaded = self._loaded.get(index) if self._loaded else None
            answers: list[Answer] = []
            replica: Replica | None = None
            try:
                if loaded is not None and loaded.error is not None:
                    found = self._lookup.read(
                        entry.topic_id, entry.partition, from_follower=entry.from_follower
                    )
                    result = _failed(entry, self._lookup.unreadable_here(found, loaded.error))
                else:
                    reads = loaded.reads if loaded is not None else ()
                    in_files = self.request.file_ranges
                    result, answers, replica = read_entry(
                        self._lookup, entry, room, reads, in_files=in_files
                    )
            except NotResident as cold:
                try:
                    loaded = self._loaded.setdefault(index, Loaded())
                    loaded.take(cold)
                except ThrottledBroker as error:
                    result = _failed(entry, error)
                else:
                    replica = self._lookup.replica(
                        entry.topic_id, entry.partition, from_follower=entry.from_follower
                    )
                    missing.append(Missing(replica, cold, loaded))
                    missing_bytes += getattr(cold.job, "size", 0)
                    if self.byte_count + missing_bytes >= self._bytes_max:
                        break
                    continue
            if not missing:
                self._add(entry, result, answers, replica)
        return missing

    def _add(
        self,
        entry: m.FetchPartition,
        result: m.FetchPartitionResult,
        answers: list[Answer],
        replica: Replica | None,
    ) -> None:
        if self.byte_count and result.batch_bytes > self._bytes_max - self.byte_count:
            # Only the first batch of the first partition with rows may exceed the bound.
            answers, result.batch_bytes, result.file_ranges = [], 0, []
        assert len(self.response.partitions) == self.at, "results are in the order of the entries"
        self.response.partitions.append(result)
        self.at += 1
        if ends_wait(result):
            self.final = True
        if answers:
            assert replica is not None
            if result.file_ranges:
                self.ranges_bytes += result.batch_bytes
            else:
                self.body.extend(views_of(answers))
            self.byte_count += result.batch_bytes
            rows = answers[-1].next_offset - entry.offset
            assert rows > 0, "what is read has the row that was asked for"
            self.rows.append((replica, result.batch_bytes, rows))
            assert self.byte_count <= self._bytes_max or len(self.rows) == 1

    @property
    def complete(self) -> bool:
        """True when every entry was looked at."""
        return self.at == len(self.request.partitions)

    def enough(self) -> bool:
        """True when there is no reason to wait for more rows."""
        if self.final or self.byte_count >= self.request.min_bytes:
            return True
        for entry in self.request.partitions:
            if entry.end_offset < 0 or is_short(self._lookup, entry):
                return False
        return True

    def count(self) -> None:
        """Count what leaves: the answer is being sent."""
        for replica, byte_count, rows in self.rows:
            replica.counters.bytes_out += byte_count
            replica.counters.rows_out += rows
        if self.ranges_bytes:
            self._lookup.count_local_read(self.ranges_bytes)


def partition_limit(entry: m.FetchPartition) -> int:
    return entry.bytes_max if entry.bytes_max > 0 else FETCH_PARTITION_BYTES_DEFAULT


def ends_wait(result: m.FetchPartitionResult) -> bool:
    """True for an error. Rows that are not copied yet may come while the fetch waits."""
    assert result.error_code >= 0
    return result.error_code not in (0, OffsetNotAvailable.code)


def is_short(lookup: Lookup, entry: m.FetchPartition) -> bool:
    """True when the entry may get rows by waiting: it has no end, or is not readable up to it."""
    if entry.end_offset < 0:
        return True
    replica = lookup.read(entry.topic_id, entry.partition, from_follower=entry.from_follower)
    return replica is not None and replica.state.high_watermark < entry.end_offset


def read_entry(
    lookup: Lookup,
    entry: m.FetchPartition,
    bytes_max: int,
    just_read: JustRead = (),
    *,
    in_files: bool = False,
) -> tuple[m.FetchPartitionResult, list[Answer], Replica | None]:
    """What one entry gets. Errors are part of the result; `bytes_max` <= 0 reads nothing.

    Args:
        in_files: where it pays, the result has `file_ranges`, and the answers no views.

    Raises:
        NotResident: its rows, or their index, are not in memory.
    """
    result = m.FetchPartitionResult(entry.topic_id, entry.partition)
    replica: Replica | None = None
    answers: list[Answer] = []
    try:
        replica = lookup.replica(entry.topic_id, entry.partition, from_follower=entry.from_follower)
        answers = _read_replica(replica, entry, bytes_max, result, just_read, in_files)
        if entry.offset >= result.high_watermark and not entry.from_follower:
            lookup.check_end(replica)
    except QuiverlogError as error:
        if isinstance(error, CorruptLog):
            lookup.corrupt_read(replica, error)
            damage = error.damage()
            error = lookup.unreadable_here(replica, error)
            if isinstance(error, CorruptLog):
                result.damage_start_offset, result.damage_end_offset = damage
        _fail(result, error)
    except OSError as error:
        if replica is not None:
            lookup.unreadable(replica, error)
        _fail(result, lookup.unreadable_here(replica, StorageFault(f"reading failed: {error}.")))
    for answer in answers:
        result.batch_bytes += answer.byte_count
    return result, answers, replica


def _failed(entry: m.FetchPartition, error: QuiverlogError) -> m.FetchPartitionResult:
    result = m.FetchPartitionResult(entry.topic_id, entry.partition)
    _fail(result, error)
    return result


def _fail(result: m.FetchPartitionResult, error: QuiverlogError) -> None:
    result.error_code = error.code
    result.error_message = error.message


def _read_replica(
    replica: Replica,
    entry: m.FetchPartition,
    bytes_max: int,
    result: m.FetchPartitionResult,
    just_read: JustRead,
    in_files: bool,
) -> list[Answer]:
    state = replica.state
    log = replica.log
    high_watermark = state.high_watermark
    assert high_watermark <= log.log_end_offset
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = log.log_start_offset
    result.high_watermark = high_watermark
    result.last_stable_offset = high_watermark
    if entry.leader_epoch != state.leader_epoch:
        state.check_leader_epoch(entry.leader_epoch)
    if entry.offset > log.log_end_offset and state.leadership is None:
        _check_copied(replica, entry)
    if entry.last_epoch not in (NO_EPOCH, state.leader_epoch) or entry.offset > high_watermark:
        _check_divergence(replica, entry, result)
    if not log.log_start_offset <= entry.offset <= log.log_end_offset:
        raise out_of_range(replica, entry.offset)
    end = high_watermark
    if 0 <= entry.end_offset < end:
        end = entry.end_offset
    assert end <= high_watermark, "nobody sees rows that may vanish"
    if entry.offset >= end or bytes_max <= 0:
        return []
    read = partial(
        log.read_answers,
        entry.offset,
        bytes_max=bytes_max,
        end_offset=end,
        cold_ok=False,
        just_read=just_read,
    )
    if in_files and log.size_bytes >= FILE_RANGE_BYTES_MIN:
        answers = read(in_files=True)
        result.file_ranges = _file_ranges(answers)
        if result.file_ranges or all(answer.views for answer in answers):
            return answers
    return read()


def _file_ranges(answers: list[Answer]) -> list[m.FileRange]:
    """Where the rows lie; empty where they are few, or one of the files cannot be told of."""
    total = sum(answer.byte_count for answer in answers)
    if total < FILE_RANGE_BYTES_MIN * len(answers):
        return []
    ranges = []
    for answer in answers:
        place = answer.segment.file.place()
        if place is None or answer.views:
            return []
        assert answer.byte_count > 0, "a segment that was read gave rows"
        where = (answer.position, answer.byte_count, answer.last_header)
        ranges.append(m.FileRange(*place, *where))
    return ranges


def _check_copied(replica: Replica, entry: m.FetchPartition) -> None:
    """Beyond the end of a copy: the leader may have rows there, unless an older epoch has ended.

    Only the leader knows where the log ends, so a copy never says that an offset is too high.
    """
    assert not replica.state.leads
    assert entry.offset > replica.state.high_watermark, "the end is not in front of what is shown"
    newest_epoch, _ = replica.log.epochs.latest()
    if entry.last_epoch == NO_EPOCH or entry.last_epoch >= newest_epoch:
        raise OffsetNotAvailable(
            f"{replica.name}: offset {entry.offset} has not been copied yet, rows up to"
            f" {replica.log.log_end_offset} have."
        )


def _check_divergence(
    replica: Replica, entry: m.FetchPartition, result: m.FetchPartitionResult
) -> None:
    """Tell a reader whose row before `offset` was truncated where the epochs part (KIP-320)."""
    if entry.last_epoch == NO_EPOCH:
        return
    replica.state.check_seen_epoch(entry.last_epoch)
    epoch, end_offset = replica.log.epochs.end_offset_for(entry.last_epoch)
    if end_offset < 0:
        # The reader has seen an epoch that this log never had: everything after its end is lost.
        epoch, end_offset = replica.state.leader_epoch, replica.log.log_end_offset
    elif epoch == entry.last_epoch and end_offset >= entry.offset:
        return
    result.diverging_epoch = epoch
    assert 0 <= end_offset <= replica.log.log_end_offset
    assert epoch <= replica.state.leader_epoch, "the log has no epoch of the future"
    result.diverging_end_offset = min(end_offset, entry.offset)
    raise LogTruncated(
        f"{replica.name}: the row before offset {entry.offset} was read under leader epoch"
        f" {entry.last_epoch}, which ended at {result.diverging_end_offset}."
    )


def out_of_range(replica: Replica, offset: int) -> OffsetOutOfRange:
    """The error that names the range one may read."""
    start, end = replica.log.log_start_offset, replica.state.high_watermark
    return OffsetOutOfRange(
        f"{replica.name}: offset {offset} is not in the valid range {start} to {end}.",
        log_start_offset=start,
        high_watermark=end,
    )
