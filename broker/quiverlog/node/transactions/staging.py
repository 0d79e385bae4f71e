"""Led partitions of `__staged`: what lies there is counted, published, and given up.

Rows of kind 0 come by PRODUCE and are fed to the index when they are appended; this broker adds a
row of kind 1 when a decided transaction is to be published, and one of kind 2 when that is done.

Invariants: rows are forwarded only behind a row of kind 1 that is safe. PUBLISH is answered without
an error only when all targets have acknowledged them, or where the log start has passed the rows.
"""

from __future__ import annotations

import heapq
import struct
from array import array
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import add
from typing import Any, Final, Literal, NamedTuple, overload

from quiverlog.batch.header import BatchHeader
from quiverlog.batch.ipc_metadata import read_ipc_metadata
from quiverlog.batch.structure import plan_of
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED
from quiverlog.core.partition.levels import safe_offset
from quiverlog.core.partition.partition import PartitionState
from quiverlog.core.transactions.staged import (
    AttemptRange,
    Done,
    Key,
    New,
    Staged,
    key_of,
)
from quiverlog.core.transactions.staged_rows import (
    KIND_BATCH,
    KIND_DONE,
    KIND_PUBLISH,
    DoneRow,
    End,
    PublishRow,
    PublishTarget,
    StagedRow,
    check_bytes,
    decode_row,
    encode_value,
)
from quiverlog.errors import (
    CoordinatorNotReady,
    CorruptBatch,
    CorruptLog,
    InvalidRequest,
    NotLeader,
    QuiverlogError,
    TransactionBusy,
    UnsupportedFormat,
)
from quiverlog.limits import (
    BATCH_HEADER_BYTES,
    STAGED_BYTES_DEFAULT_MAX,
    STAGED_BYTES_DISK_SHARE,
    TRANSACTION_ATTEMPT_BYTES,
)
from quiverlog.node.partitions.appends import Appends
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.transactions.forwarding import Forwarding, Source
from quiverlog.node.transactions.hosted import Hosted, Hosting
from quiverlog.node.transactions.leaders import Local
from quiverlog.node.transactions.queues import Item, Publish, TargetKey, Waiting
from quiverlog.node.transactions.replay import Read
from quiverlog.types import (
    PUBLISH_LEADER_EPOCHS_END,
    Compression,
    Durability,
    Now,
    PublishId,
)
from quiverlog.wire.messages import Request
from quiverlog.wire.transaction_messages import (
    CountedTarget,
    CountStagedRequest,
    CountStagedResponse,
    PublishedTarget,
    PublishRequest,
    PublishResponse,
    PublishWait,
    StagedRows,
)

__all__ = ["StagedKind", "Staging"]


_SCHEMA: Final = INTERNAL_TOPICS[STAGED].schema
_Code = Literal["b", "i", "q"]
_SIZES: Final[dict[_Code, int]] = {"b": 1, "i": 4, "q": 8}
_TOPIC_ID_BYTES: Final = 16
_RETRY_US: Final = 500_000
_TRIM_US: Final = 1_000_000
"""Log starts move this often: in between, thousands of transactions may be published."""

_LOOKS_PER_STEP: Final = 1_000
_MISSING_IDS_MAX: Final = 1_000

Published = Callable[[PublishResponse | None, QuiverlogError | None, Now], None]


# --- rows in the log ----------------------------------------------------------------------------
# Validity, ends and values of each column lie one after the other, in the order of the columns.
_KIND, _ID, _EPOCH, _SEQUENCE, _ATTEMPT, _TOPIC_ID, _PARTITION, _ROW_COUNT, _BATCH = (
    1, 3, 6, 8, 10, 13, 16, 18, 20,
)  # fmt: skip
"""The buffer with a column's numbers, or with its ends; then its values are in the next."""
_BUFFERS: Final = 22


class _Columns:
    """The columns of a staged batch, from its first bytes. Raises CorruptBatch."""

    __slots__ = ("_body", "_buffers", "needed", "row_count")

    def __init__(self, header: BatchHeader, view: memoryview) -> None:
        message = view[BATCH_HEADER_BYTES:]
        size = header.total_bytes - BATCH_HEADER_BYTES
        # Nearly all are of this library's encoder.
        shape = plan_of(_SCHEMA).shape
        metadata = shape.read(message, size) if shape is not None else None
        metadata = metadata or read_ipc_metadata(message, size)
        if metadata.compression is not Compression.NONE:
            raise CorruptBatch("a staged batch is not compressed.")
        if len(metadata.buffers) != 2 * _BUFFERS or metadata.row_count != header.row_count:
            raise CorruptBatch("a staged batch has other columns, or another number of rows.")
        self._body = message[metadata.body_at :]
        self._buffers = metadata.buffers
        self.row_count = header.row_count
        body_at = BATCH_HEADER_BYTES + metadata.body_at
        # The payload is the last buffer, as all encoders write it; where not, it is read, too.
        last = 2 * (_BATCH + 1)
        ends = map(add, self._buffers[:last:2], self._buffers[1:last:2])
        self.needed = min(body_at + max(ends), header.total_bytes)

    def numbers(self, buffer: int, code: _Code) -> tuple[int, ...]:
        count = self.row_count + (buffer in (_ID, _ATTEMPT, _TOPIC_ID, _BATCH))
        at, length = self._buffers[2 * buffer : 2 * buffer + 2]
        try:
            if length >= count * _SIZES[code]:
                return struct.unpack_from(f"<{count}{code}", self._body, at)
        except struct.error:
            pass
        raise CorruptBatch("a column of a staged batch is too short.")

    def values(self, buffer: int) -> list[memoryview]:
        ends = self.numbers(buffer, "i")
        at, length = self._buffers[2 * buffer + 2 : 2 * buffer + 4]
        data = self._body[at : at + length]
        bounds = [0, *ends, len(data)]
        if bounds != sorted(bounds):
            raise CorruptBatch("the ends of a column of a staged batch are wrong.")
        return [data[first:end] for first, end in pairwise(ends)]

    def sizes(self) -> list[int]:
        """Of the column `batch`, whose values are not read."""
        ends = self.numbers(_BATCH, "i")
        return [end - first for first, end in pairwise(ends)]


def _records(
    header: BatchHeader, kinds: Sequence[int], columns: _Columns
) -> Iterator[tuple[int, Any]]:
    names = [str(name, "utf-8") for name in columns.values(_ID)]
    epochs, sequences = columns.numbers(_EPOCH, "q"), columns.numbers(_SEQUENCE, "q")
    if any(kinds):
        values = columns.values(_BATCH)
        for row, kind in enumerate(kinds):
            if kind == KIND_BATCH:
                raise CorruptBatch("a staged batch has rows of clients and of brokers.")
            key = (names[row], epochs[row], sequences[row])
            yield header.base_offset + row, decode_row(kind, *key, bytes(values[row]))
        return
    rows = zip(
        names,
        epochs,
        sequences,
        map(bytes, columns.values(_ATTEMPT)),
        map(bytes, columns.values(_TOPIC_ID)),
        columns.numbers(_PARTITION, "i"),
        columns.numbers(_ROW_COUNT, "i"),
        columns.sizes(),
        strict=True,
    )
    for offset, staged in enumerate(map(StagedRow._make, rows), header.base_offset):
        sizes = len(staged.attempt), len(staged.topic_id)
        if sizes != (TRANSACTION_ATTEMPT_BYTES, _TOPIC_ID_BYTES):
            raise CorruptBatch("an attempt or a topic id of a staged row has a wrong length.")
        if staged.byte_count < 0 or staged.row_count < 1:
            raise CorruptBatch("a staged row has an impossible size.")
        yield offset, staged


class StagedKind:
    """What `Hosted` needs of `__staged`."""

    schema = _SCHEMA
    level = int(Durability.REPLICATED)
    takes_snapshots = False

    __slots__ = ("_staging",)

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def new_machine(self, replica: Replica, leader_epoch: int) -> Staged:
        return self._staging.new_index(replica, leader_epoch)

    def row(self, record: PublishRow | DoneRow) -> tuple[Any, ...]:
        kind = KIND_PUBLISH if isinstance(record, PublishRow) else KIND_DONE
        return (kind, *key_of(record), b"", b"", -1, 0, encode_value(record))

    def decode(self, header: BatchHeader, prefix: memoryview, read: Read) -> list[tuple[int, Any]]:
        try:
            columns = _Columns(header, prefix)
            if columns.needed > len(prefix) or columns.needed == header.total_bytes:
                columns = _Columns(header, read(columns.needed))
            kinds = columns.numbers(_KIND, "b")
            if any(kinds):
                columns = _Columns(header, read(header.total_bytes))
                kinds = columns.numbers(_KIND, "b")
            return list(_records(header, kinds, columns))
        except (UnicodeDecodeError, CorruptLog, UnsupportedFormat) as error:
            raise CorruptBatch(f"a staged row cannot be read: {error}.") from error

    def capture(self, machine: Staged) -> Iterator[Any]:
        raise NotImplementedError

    def serving(self, hosted: Hosted, now: Now) -> None:
        self._staging.serving(hosted, now)

    def stopped(self, hosted: Hosted, error: QuiverlogError, now: Now) -> None:
        self._staging.stopped(hosted, error, now)


# --- serving ------------------------------------------------------------------------------------
class _Items(Sequence[Item]):
    """Rows of a publish, made as they are sent: there may be 125,000."""

    __slots__ = ("_base_sequences", "_target")

    def __init__(self, target: PublishTarget) -> None:
        self._target = target
        self._base_sequences = array("i", (base for _, base, _ in target.rows()))
        assert len(self._base_sequences) == len(target.row_counts)

    def __len__(self) -> int:
        return len(self._base_sequences)

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | Sequence[Item]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        target = self._target
        return Item(target.offsets[at], self._base_sequences[at], target.row_counts[at])


class _Led:
    """A partition that is served. `missing`: by id, decided rows that are lost."""

    __slots__ = (
        "done_end", "hosted", "missing", "source", "staged", "trim_is_due", "trim_to", "waiters",
    )  # fmt: skip

    def __init__(self, hosted: Hosted, staged: Staged, source: Source) -> None:
        self.hosted = hosted
        self.staged = staged
        self.source = source
        self.trim_is_due = False
        # The next log start, and what must be on the disks before it.
        self.trim_to: tuple[int, int] | None = None
        # Behind the newest row of kind 2, and all that was replayed.
        self.done_end = hosted.replica.log.log_end_offset
        self.waiters: dict[Key, list[_Turn]] = {}
        self.missing: dict[str, int] = {}

    def miss(self, transactional_id: str, row_count: int) -> None:
        self.missing[transactional_id] = self.missing.get(transactional_id, 0) + row_count
        if len(self.missing) > _MISSING_IDS_MAX:
            del self.missing[next(iter(self.missing))]
        assert len(self.missing) <= _MISSING_IDS_MAX


class StagedRoom(NamedTuple):
    """`byte_count`: from the first row that is neither published nor dead. `bytes_max`: 0 where
    this broker leads no partition of `__staged`."""

    byte_count: int
    bytes_max: int
    oldest_us: int


class _Turn:
    """What is to be done at a time; `then`: of a PUBLISH that is not answered."""

    __slots__ = ("call", "is_over", "then")

    def __init__(self, call: Callable[[_Turn, Now], None], then: Published | None = None) -> None:
        self.call = call
        self.then = then
        self.is_over = False


class Staging:
    """`bytes_max`: of all rows that are staged in partitions that this broker leads.

    holds_rows: False where none are staged, as the last call of `indexes` has found.
    """

    __slots__ = (
        "_appends", "_counters", "_disk_bytes", "_forwarded", "_forwarding", "_hosting", "_led",
        "_number", "_turns", "_view", "bytes_max", "holds_rows", "local",
    )  # fmt: skip

    def __init__(
        self,
        hosting: Hosting,
        forwarding: Forwarding,
        appends: Appends,
        view: MetadataView,
        config: NodeConfig,
    ) -> None:
        self._hosting = hosting
        self._forwarding = forwarding
        self._appends = appends
        self._view = view
        self._disk_bytes = config.disk_bytes
        self.set_bytes_max(config.staged_bytes_max)
        self._led: dict[tuple[bytes, int], _Led] = {}
        self.holds_rows = False
        # By partition: a leader epoch, and the numbers of publishes that were given in it. A row
        # that had one may be trimmed before the index is built again.
        self._counters: dict[int, tuple[int, int]] = {}
        self._forwarded: list[tuple[_Led, PublishRow, Publish | None]] = []
        self._turns: list[tuple[int, int, _Turn]] = []
        self._number = 0
        self.local: dict[type[Request], Local] = {
            CountStagedRequest: lambda request, then, now: then(self.count(request), None, now),
            PublishRequest: self.publish,
        }
        hosting.kinds[STAGED] = StagedKind(self)

    def set_bytes_max(self, bytes_max: int, _now: Now | None = None) -> None:
        """`staged.bytes.max`."""
        share = self._disk_bytes // STAGED_BYTES_DISK_SHARE or STAGED_BYTES_DEFAULT_MAX
        self.bytes_max = bytes_max or min(share, STAGED_BYTES_DEFAULT_MAX)

    # --- leaderships ---------------------------------------------------------------------------
    def new_index(self, replica: Replica, leader_epoch: int) -> Staged:
        partition = replica.name.partition
        known_epoch, count = self._counters.get(partition, (leader_epoch, 0))
        assert known_epoch <= leader_epoch, "a number would be given twice"
        return Staged(
            lambda number: PublishId(partition, leader_epoch, number).pack(),
            count if known_epoch == leader_epoch else 0,
        )

    def serving(self, hosted: Hosted, now: Now) -> None:
        staged = hosted.machine
        assert isinstance(staged, Staged)
        staged.begin(now.mono_us)
        assert _place(hosted.replica) not in self._led, "the life before has stopped"
        led = _Led(hosted, staged, self._forwarding.begin(hosted.replica))
        self._led[_place(hosted.replica)] = led
        self.holds_rows = True
        for row in staged.unfinished():
            self._forward(led, row, now)
        self._trim_later(led, now)

    def stopped(self, hosted: Hosted, error: QuiverlogError, now: Now) -> None:
        led = self._led.pop(_place(hosted.replica))
        assert led.hosted is hosted
        partition = hosted.replica.name.partition
        self._counters[partition] = (hosted.leader_epoch, led.staged.next_publish)
        self._forwarding.stop(led.source)
        for key in list(led.waiters):
            self._answer(led, key, None, error, now)
        assert not led.waiters, "each PUBLISH has its answer"

    def _is_led(self, led: _Led) -> bool:
        return self._led.get(_place(led.hosted.replica)) is led

    def _find(self, partition: int, *, under_lease: bool) -> _Led:
        """Raises CoordinatorNotReady, NotLeader, and as `Lookup.replica`."""
        topic = self._view.image.topics.get(STAGED)
        if topic is None:
            raise CoordinatorNotReady(f"there is no {STAGED!r} yet.")
        hosted = self._hosting.find(topic.topic_id, partition)
        hosted.serve(under_lease=under_lease)
        if hosted.leader_epoch >= PUBLISH_LEADER_EPOCHS_END:
            # Its publishes would have numbers of other partitions.
            raise NotLeader(f"{hosted.replica.name}: no leader epoch is left.")
        led = self._led[_place(hosted.replica)]
        assert led.hosted is hosted
        return led

    # --- rows of clients -----------------------------------------------------------------------
    def check_room(self, replica: Replica, rows: Sequence[StagedRow]) -> None:
        """Raises StagingFull, TransactionTooLarge: the rows are more than are staged here; and as
        `_find`."""
        led = self._find(replica.name.partition, under_lease=False)
        led.staged.check_room(rows)
        added: dict[str, int] = {}
        newest: dict[str, StagedRow] = {}
        for row in rows:
            newest[row.transactional_id] = row
            added[row.transactional_id] = added.get(row.transactional_id, 0) + row.byte_count
        # A client chooses among the partitions, so a bound on one of them would bound nothing.
        all_staged = [one.staged for one in self._led.values()]
        held, added_in_all = sum(one.bytes_held for one in all_staged), sum(added.values())
        for name, byte_count in added.items():
            held_by_id = sum(one.bytes_of(name) for one in all_staged)
            others = any(one.has_others(newest[name]) for one in all_staged)
            check_bytes(
                name, byte_count, held_by_id, added_in_all, held, self.bytes_max, has_others=others
            )

    def admitted(self, replica: Replica, base_offset: int, rows: Sequence[StagedRow]) -> None:
        """Feed the rows to the index when they are appended."""
        self._appends.watch(replica, partial(self._appended, replica, base_offset, rows))

    def _appended(
        self, replica: Replica, base_offset: int, rows: Sequence[StagedRow], now: Now
    ) -> None:
        led = self._led.get(_place(replica))
        if led is None:
            return  # The replay that is under way reads them, too.
        assert led.hosted.is_serving
        assert base_offset + len(rows) <= replica.state.log_end_offset, "they are in the log"
        self.holds_rows = True
        for offset, row in enumerate(rows, base_offset):
            led.staged.stage(offset, row, now.mono_us)

    # --- COUNT_STAGED --------------------------------------------------------------------------
    def count(self, request: CountStagedRequest) -> CountStagedResponse:
        """Raises as `_find`, FencedLeaderEpoch, UnknownLeaderEpoch, NotEnoughReplicas."""
        led = self._find(request.partition, under_lease=True)
        state = led.hosted.replica.state
        state.check_leader_epoch(request.leader_epoch)
        key = Key(request.transactional_id, request.epoch, request.sequence)
        ranges = [
            AttemptRange(one.attempt, one.row_count, one.first_offset, one.next_offset)
            for one in request.attempts
        ]
        if any(len(one.attempt) != TRANSACTION_ATTEMPT_BYTES for one in ranges):
            raise InvalidRequest(f"an attempt has {TRANSACTION_ATTEMPT_BYTES} bytes.")
        safe = safe_offset(int(state.durability), state)
        counted = led.staged.count(key, ranges, safe)
        response = CountStagedResponse(is_whole=counted.is_whole)
        if counted.is_whole:
            end = max((one.next_offset for one in ranges), default=0)
            response.durability = _level_below(end, state)
            response.targets = [
                CountedTarget(*target, row_count) for target, row_count in counted.targets.items()
            ]
        return response

    # --- PUBLISH -------------------------------------------------------------------------------
    def publish(self, request: PublishRequest, then: Published, now: Now) -> None:
        """`then` when all rows are in their topics and safe, or with a retriable error: after
        `max_wait_ms` TransactionBusy. Raises as `count`, ThrottledBroker, and what a produce gets.
        """
        led = self._find(request.partition, under_lease=True)
        replica = led.hosted.replica
        replica.state.check_leader_epoch(request.leader_epoch)
        if any(len(one) != TRANSACTION_ATTEMPT_BYTES for one in request.attempts):
            raise InvalidRequest(f"an attempt has {TRANSACTION_ATTEMPT_BYTES} bytes.")
        key = Key(request.transactional_id, request.epoch, request.sequence)
        answer = led.staged.publish(
            key,
            request.attempts,
            request.first_offset,
            request.next_offset,
            request.durability,
            request.row_count,
            replica.log.log_start_offset,
        )
        if isinstance(answer, Done):
            then(self._response(led, answer.row), None, now)
            return
        if isinstance(answer, New):
            row = answer.row
            number = PublishId.unpack(row.producer_id)
            assert number.staged_partition == request.partition
            assert number.leader_epoch == led.hosted.leader_epoch, "leaders share no numbers"
            # A power failure that took it would have its rows published twice.
            led.hosted.propose(
                [row], now, partial(self._publish_safe, led, answer), Durability.REPLICATED_FLUSHED
            )
        waiter = _Turn(partial(self._expire, led, key), then)
        led.waiters.setdefault(key, []).append(waiter)
        self._at(now.mono_us + max(0, request.max_wait_ms) * 1000, waiter)

    def _publish_safe(
        self,
        led: _Led,
        new: New,
        _offset: int,
        error: QuiverlogError | None,
        now: Now,
    ) -> None:
        if error is not None:
            self._answer(led, key_of(new.row), None, error, now)
            return
        if new.missing_count:
            tid = new.row.transactional_id
            led.miss(tid, new.missing_count)
            self._forwarding.log_lost(led.source, new.missing_count, transactional_id=tid)
        self._forward(led, new.row, now)

    def _forward(self, led: _Led, row: PublishRow, now: Now) -> None:
        assert self._is_led(led), "rows are forwarded by the leader alone"
        targets: dict[TargetKey, Sequence[Item]] = {
            (one.topic_id, one.partition): _Items(one) for one in row.targets
        }
        if not targets:
            self._forwarded.append((led, row, None))
            return
        publish = Publish(
            row.producer_id,
            row.durability,
            targets,
            lambda publish: self._forwarded.append((led, row, publish)),
        )
        self._forwarding.add(led.source, publish, now)

    def _finish(self, led: _Led, row: PublishRow, publish: Publish | None, now: Now) -> None:
        """Record that all targets have acknowledged all rows."""
        ends: list[End] = []
        level = int(Durability.REPLICATED_FLUSHED)
        if publish is not None:
            assert not publish.todo, "all targets have acknowledged"
            for target in row.targets:
                end_offset = publish.ends.get((target.topic_id, target.partition))
                if end_offset is not None:  # Else the topic is deleted, or its rows are lost.
                    end = End(target.topic_id, target.partition, end_offset, target.row_count)
                    ends.append(end)
            if publish.level is not None:
                level = publish.level
            if publish.missing_count:
                led.miss(row.transactional_id, publish.missing_count)
        done = DoneRow(*key_of(row), tuple(ends), level)
        self._record_done(led, done, now)
        # The row of kind 2 only spares the next leader sending the rows again.
        self._answer(led, key_of(row), self._response(led, done), None, now)

    def _record_done(self, led: _Led, done: DoneRow, now: Now) -> None:
        if not self._is_led(led):
            return  # The next leader finds the same out by sending the rows again.
        try:
            then = partial(self._done_safe, led, done)
            led.hosted.propose([done], now, then, at_leisure=True)
        except QuiverlogError as error:
            self._done_safe(led, done, -1, error, now)

    def _done_safe(
        self, led: _Led, done: DoneRow, offset: int, error: QuiverlogError | None, now: Now
    ) -> None:
        if error is None:
            assert 0 <= offset < led.hosted.replica.state.log_end_offset
            led.done_end = max(led.done_end, offset + 1)
            self._trim_later(led, now)
        elif self._is_led(led):
            # Nothing was stored, as where the disk is full. Its targets keep what they have.
            again = _Turn(lambda _turn, now: self._record_done(led, done, now))
            self._at(now.mono_us + _RETRY_US, again)

    def _response(self, led: _Led, done: DoneRow | None) -> PublishResponse:
        if done is None:
            return PublishResponse(durability=led.hosted.replica.state.durability)
        targets = [PublishedTarget(*end) for end in done.ends]
        return PublishResponse(targets=targets, durability=Durability(done.durability))

    def _answer(
        self,
        led: _Led,
        key: Key,
        response: PublishResponse | None,
        error: QuiverlogError | None,
        now: Now,
    ) -> None:
        for waiter in led.waiters.pop(key, ()):
            assert not waiter.is_over, "a PUBLISH is answered once"
            waiter.is_over = True
            assert waiter.then is not None
            waiter.then(response, error, now)

    # --- giving up -----------------------------------------------------------------------------
    def indexes(self) -> dict[int, Staged]:
        """Return those that are served here and have rows, by partition."""
        found = {one.hosted.replica.name.partition: one.staged for one in self._led.values()}
        found = {partition: staged for partition, staged in found.items() if staged.batch_count}
        self.holds_rows = bool(found)
        return found

    def give_up(self, partition: int, key: Key, now: Now) -> int:
        """Drop rows that the coordinator has answered are dead, or published; returns how many
        batches. Raises as `_find`."""
        led = self._find(partition, under_lease=False)
        self._trim_later(led, now)
        return led.staged.give_up(key)

    def _trim_later(self, led: _Led, now: Now) -> None:
        if not led.trim_is_due:
            led.trim_is_due = True
            self._at(now.mono_us + _TRIM_US, _Turn(partial(self._trim, led)))

    def _trim(self, led: _Led, _turn: _Turn, now: Now) -> None:
        assert led.trim_is_due, "one is due at a time"
        led.trim_is_due = False
        if not self._is_led(led):
            return
        state = led.hosted.replica.state
        end = min(led.staged.trim_offset(), state.high_watermark)
        offset, done_end = led.trim_to or (end, led.done_end)
        assert offset <= state.high_watermark, "only safe rows are given up"
        if safe_offset(int(Durability.REPLICATED_FLUSHED), state) < done_end:
            # A power failure that took the row of kind 2 would leave a publish without its rows.
            led.trim_to = offset, done_end
        else:
            led.trim_to = None
            if offset > state.log_start_offset:
                # Not promised: the next leader comes to the same start, from an earlier one, too.
                trims = self._hosting.trims
                trims.trim(led.hosted.replica, offset, now, _ignore, promised=False)
        if led.trim_to is not None or end > offset:
            self._trim_later(led, now)

    # --- looking -------------------------------------------------------------------------------
    def ids(self) -> list[list[str]]:
        """Return the ids with rows here, or that lack some, by partition."""
        return [[*led.staged.ids(), *led.missing] for led in self._led.values()]

    def room(self, now_us: int) -> StagedRoom:
        """Return what is staged here in all. Any thread may ask."""
        held = [led.staged for led in list(self._led.values())]
        oldest = [one.oldest_us for one in held]
        return StagedRoom(
            sum(one.bytes_held for one in held),
            self.bytes_max if held else 0,
            max((now_us - us for us in oldest if us is not None), default=0),
        )

    def staged_of(self, transactional_id: str, now: Now) -> list[StagedRows]:
        found = []
        for (_, partition), led in sorted(self._led.items()):
            one = led.staged.staged_of(transactional_id)
            missing_count = led.missing.get(transactional_id, 0)
            rows = StagedRows(partition, missing_count=missing_count)
            if one is not None:
                rows.row_count, rows.byte_count = one.row_count, one.byte_count
                rows.oldest_ms = max(0, now.mono_us - one.oldest_us) // 1000
            if one is not None or missing_count:
                found.append(rows)
        return found

    def waits(self, now: Now) -> list[PublishWait]:
        """Return what waits at this broker, of all ids."""
        return [self._wait(one, one.row_count, now) for one in self._forwarding.queues.waiting()]

    def waits_of(
        self, ids: Collection[str], now: Now
    ) -> Generator[None, object, dict[str, list[PublishWait]]]:
        """Return the targets that transactions of these ids have not reached."""
        found: dict[str, list[PublishWait]] = {}
        for led in list(self._led.values()):
            waiting: dict[TargetKey, Waiting] | None = None
            for number, row in enumerate(list(led.staged.unfinished()), 1):
                if number % _LOOKS_PER_STEP == 0:
                    yield None
                if row.transactional_id not in ids:
                    continue
                if waiting is None:
                    waiting = {one.key: one for one in self._forwarding.queues.waiting(led.source)}
                for target in row.targets:
                    one = waiting.get((target.topic_id, target.partition))
                    if one is not None:
                        row_count = min(one.row_count, target.row_count)
                        waits = found.setdefault(row.transactional_id, [])
                        waits.append(self._wait(one, row_count, now))
        return found

    def _wait(self, one: Waiting, row_count: int, now: Now) -> PublishWait:
        topic_id, partition = one.key
        topic = self._view.image.topics_by_id.get(topic_id)
        return PublishWait(
            "" if topic is None else topic.name,
            topic_id,
            partition,
            0 if one.error is None else one.error.code,
            "" if one.error is None else one.error.message,
            max(0, now.wall_us - max(0, now.mono_us - one.since_us)),
            row_count,
        )

    # --- turns ---------------------------------------------------------------------------------
    @property
    def is_needed(self) -> bool:
        return bool(self._forwarded)

    def next_us(self) -> int | None:
        if self._forwarded:
            return AT_ONCE_US
        turns = self._turns
        while turns and turns[0][2].is_over:  # Most are answered long before.
            heapq.heappop(turns)
        return turns[0][0] if turns else None

    def _at(self, due_us: int, turn: _Turn) -> None:
        self._number += 1
        heapq.heappush(self._turns, (due_us, self._number, turn))

    def run(self, now: Now) -> None:
        forwarded, self._forwarded = self._forwarded, []
        for led, row, publish in forwarded:
            self._finish(led, row, publish, now)

    def tick(self, now: Now) -> None:
        self.run(now)
        while self._turns and self._turns[0][0] <= now.mono_us:
            turn = heapq.heappop(self._turns)[2]
            if not turn.is_over:
                turn.call(turn, now)

    def _expire(self, led: _Led, key: Key, waiter: _Turn, now: Now) -> None:
        waiters = led.waiters[key]
        waiters.remove(waiter)
        if not waiters:
            del led.waiters[key]
        waiter.is_over = True
        assert waiter.then is not None
        busy = TransactionBusy("the transaction is committed, and its rows are being published.")
        waiter.then(None, busy, now)


def _level_below(offset: int, state: PartitionState) -> Durability:
    """Return the strongest level that the rows below `offset` have."""
    if state.leadership is None or not state.leadership.is_replicated:
        levels = (Durability.FLUSHED, Durability.MEMORY)
    else:
        levels = (Durability.REPLICATED_FLUSHED, Durability.REPLICATED)
    return next((one for one in levels if safe_offset(int(one), state) >= offset), levels[-1])


def _place(replica: Replica) -> tuple[bytes, int]:
    return replica.topic.topic_id, replica.name.partition


def _ignore(_result: object, _error: BaseException | None, _now: Now) -> None:
    """A log start that did not move is moved with the next."""
