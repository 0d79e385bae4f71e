"""The consumer's machine: from positions to batches, as operations. Invariants:

- A partition is in at most one request; the caller receives its rows in offset order.
- A row in the log is skipped only on request (`seek`, `skip_corrupt`).
- At most one reply waits; about twice `fetch_bytes` are held, plus one larger batch.
- A partition that returned rows goes to the end of the next request.
- An early answer without rows is followed by a growing pause; a partition that has rows and
  returns none for the request timeout is an error.
- A partition that cannot be read holds up no other. It is an error when for the request timeout no
  other has had rows either.
- Ctrl-C arrives at calls and loops only: no change is left half done.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quiverlog.client.base.commands import Abandon, Operation, PendingReply, Sleep
from quiverlog.client.base.deadline import within
from quiverlog.client.base.results import FetchedPartition
from quiverlog.client.base.waits import Wait
from quiverlog.client.cluster.answers import about, named
from quiverlog.client.cluster.metadata import partition_info
from quiverlog.client.cluster.replica_choice import IN_SYNC_EVERY_S, LEADER
from quiverlog.client.cluster.routing import Cluster, pause_s
from quiverlog.client.rows.decoding import (
    BatchDecoder,
    ConsumerBatch,
    StoredBatch,
    fetch_error,
    stored_batches,
)
from quiverlog.errors import (
    CorruptBatch,
    InvalidArgument,
    OffsetNotAvailable,
    QuiverlogError,
    UnknownPartition,
    UnknownTopicId,
)

from .fetches import ROUND_S, Fetches, Request, Source, Trouble
from .options import ConsumerOptions
from .positions import Position, PositionFinder, first_gone

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["POLL_WORK_S", "ROUND_S", "ConsumerBase", "ConsumerCore"]


NEW_PARTITIONS_EVERY_S = 2.0

logger = logging.getLogger("quiverlog")


class ConsumerCore:
    def __init__(self, cluster: Cluster, topic: str, options: ConsumerOptions) -> None:
        self.topic = topic
        self.clock = cluster.clock
        self._cluster = cluster
        self._options = options
        self._finder = PositionFinder(cluster, topic, b"", options)
        self._positions: dict[int, Position] = {}
        self._order: list[int] = []
        self.decoder = BatchDecoder(cluster, topic, b"")
        self._ready: deque[StoredBatch] = deque()
        self._fetches = Fetches(cluster, topic, options)
        self._failures = 0
        self._failing_since_s: float | None = None
        # Since when rows are waited for, perhaps without an end: `follow`.
        self._idle_since_s: float | None = None
        self._failure: QuiverlogError | None = None
        self._logged_reasons: set[str] = set()
        cluster.waits.others.add(self)
        self._look_again_s = 0.0
        # The last batch, with `delivered` and `delivered_epoch` before it.
        self._on_its_way: tuple[StoredBatch, int, int] | None = None
        # An error of one partition that arrived with rows of others, which the caller gets first.
        self._deferred: QuiverlogError | None = None

    def waiting(self) -> Wait | None:
        failing_s, failure = self._failing_since_s, self._failure
        if failing_s is None and (troubles := list(self._fetches.troubles.values())):
            return self._wait_for(min(troubles, key=lambda one: one.since_s))
        since_s = self._idle_since_s if failing_s is None else failing_s
        if since_s is None:
            return None
        if failing_s is None and self._options.follow:
            return self._fetches.overdue_wait(since_s)
        until_s = min(since_s + self._patience_s, self._cluster.deadline_s)
        wait = Wait(since_s, until_s, f"rows of {self.topic}", "rows")
        if failure is not None:
            wait.failed(failure, until_s)
        return wait

    def _wait_for(self, trouble: Trouble) -> Wait:
        since_s, idle_s = trouble.since_s, self._idle_since_s
        until_s = min(since_s + self._patience_s, self._cluster.deadline_s)
        if idle_s is None or idle_s > since_s:  # Others have rows.
            until_s = math.inf
        wait = Wait(since_s, until_s)
        wait.failed(trouble.error, until_s)
        return wait

    @property
    def _patience_s(self) -> float:
        is_endless = self._cluster.waits.are_endless
        return math.inf if is_endless else self._cluster.settings.request_timeout_s

    @property
    def requests(self) -> list[Request]:
        return self._fetches.requests

    @property
    def positions(self) -> dict[int, int]:
        return {p.partition: p.delivered for p in self._positions.values()}

    def seek(self, partition: int, offset: int) -> None:
        position = self._positions.get(partition)
        if position is None:
            raise UnknownPartition(
                f"{self.topic}-{partition} is not read here; {sorted(self._positions)} are.",
                topic=self.topic,
                partition=partition,
            )
        if not isinstance(offset, int) or offset < 0:
            raise InvalidArgument(f"seek: {offset!r} is not an offset from 0 on.")
        self._ready = deque(b for b in self._ready if b.partition != partition)
        self._deferred = None  # the next answer repeats an error that still holds
        self._fetches.troubles.pop(partition, None)
        position.seek(offset)

    def handed_out(self) -> None:
        self._on_its_way = None

    def take_back(self) -> None:
        # The caller was interrupted before it received the last batch.
        if self._on_its_way:
            stored, *before = self._on_its_way
            if not (self._ready and self._ready[0] is stored):
                self._ready.appendleft(stored)
            assert self._ready[0] is stored
            position = self._positions[stored.partition]
            position.delivered, position.delivered_epoch = before

    # --- opening --------------------------------------------------------------------------------
    def open(self) -> Operation[None]:
        yield from about(self.topic, self._cluster.retrying(self._open))

    def _open(self) -> Operation[None]:
        # A settled plan has just asked for it.
        topic = yield from self._cluster.topic(self.topic, fresh=not self._options.is_settled)
        if self._options.topic_id and topic.topic_id != self._options.topic_id:
            raise UnknownTopicId(f"Topic {self.topic!r} is not the one that is read any more.")
        self._fetches.topic_id = topic.topic_id
        self._finder = PositionFinder(self._cluster, self.topic, topic.topic_id, self._options)
        self.decoder = BatchDecoder(
            self._cluster,
            self.topic,
            topic.topic_id,
            columns=self._options.columns,
            reader_schema=self._options.reader_schema,
        )
        yield from self.decoder.prepare(topic.schema_id)
        wanted = self._options.partitions
        chosen = [p.partition for p in topic.partitions] if wanted is None else list(wanted)
        for partition in self._finder.named_partitions(chosen):
            partition_info(topic, partition)
        self._positions = yield from self._finder.resolve(chosen)
        self._order = list(chosen)
        assert self._positions.keys() == set(chosen), "each partition has its turn"
        self._look_again_s = self.clock() + self._look_every_s()

    # --- reading --------------------------------------------------------------------------------
    def next(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        """Return the next batch; None at the end, or when `timeout_s` have passed.

        Raises:
            OffsetOutOfRange: the rows at a position were deleted by retention, or lost.
            LogTruncated: rows that were read were lost with an earlier leader.
            CorruptBatch: at every call, until `seek`.
            InvalidResponse: the broker does not return rows that exist.
        """
        deadline_s = self.clock() + timeout_s
        while True:
            batch = yield from self._next_ready()
            if batch is not None or self.is_at_end:
                self._idle_since_s = None
                return batch
            if self._idle_since_s is None:
                self._idle_since_s = self.clock()
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                raise deferred
            wait_s = 0.0
            round_began_s = self.clock()
            try:
                yield from self._look_around()
                yield from self._fetches.leave_deposed()
                yield from self._start()
                pending = yield from self._fetches.wait(deadline_s)
                if pending is not None:
                    yield from self._receive(pending)
                    yield from self._look_for_ends()
                    # In flight while the caller uses these rows.
                    yield from self._start()
            except UnknownTopicId as error:
                resolved = yield from self._cluster.resolve_unknown_id(
                    self.topic, self._fetches.topic_id, error
                )
                wait_s = self._after_failure(resolved, round_began_s)
            except QuiverlogError as error:
                wait_s = self._after_failure(error, round_began_s)
            if self._ready:
                continue
            left_s = deadline_s - self.clock()
            if left_s <= 0:
                return None
            if wait_s:
                yield Sleep(min(wait_s, left_s))

    def at_hand(self) -> Operation[list[ConsumerBatch]]:
        """Return waiting batches, up to one that is compressed or cannot be decoded."""
        batches: list[ConsumerBatch] = []
        try:
            while self._ready and not self._ready[0].header.is_compressed:
                batch = yield from self._next_ready()
                if batch is None:
                    break
                batches.append(batch)
        except QuiverlogError as error:
            logger.debug("the next call meets it again: %s", error)
        return batches

    @property
    def is_at_end(self) -> bool:
        return not self._ready and all(p.is_done for p in self._positions.values())

    def _next_ready(self) -> Operation[ConsumerBatch | None]:
        # A batch stays queued until it is decoded.
        while self._ready:
            stored = self._ready[0]
            batch: ConsumerBatch | None = None
            try:
                batch = yield from self.decoder.decode(stored)
            except QuiverlogError as error:
                if stored.follower != LEADER:
                    self._read_again(stored, error)
                    continue
                if not (self._options.skip_corrupt and isinstance(error, CorruptBatch)):
                    raise
                if "next_offset" not in error.details:
                    raise
                logger.warning("stepping over rows (skip_corrupt): %s", error.message)
            position = self._positions[stored.partition]
            assert position.delivered < stored.next_offset <= position.offset
            self._on_its_way = stored, position.delivered, position.delivered_epoch
            self._ready.popleft()
            position.delivered = stored.next_offset
            position.delivered_epoch = stored.header.leader_epoch
            if batch is not None:
                return batch
        return None

    def _read_again(self, stored: StoredBatch, error: QuiverlogError) -> None:
        position = self._positions[stored.partition]
        logger.warning("rows of a follower are read again from the leader: %s", error.message)
        self._fetches.choice.failed(stored.partition, stored.follower, self.clock())
        self._ready = deque(b for b in self._ready if b.partition != stored.partition)
        assert position.delivered < position.offset, "rows that were handed out are not read again"
        position.offset, position.last_epoch = position.delivered, position.delivered_epoch

    def _start(self) -> Operation[None]:
        for trouble in (yield from self._fetches.start(self._positions, self._order)):
            self._check_patience(trouble)

    def _receive(self, pending: PendingReply) -> Operation[None]:
        request = self._fetches.take(pending)
        assert request.offsets.keys() <= self._positions.keys()
        try:
            parts = yield from self._fetches.finish(request)
        except QuiverlogError as error:
            since_s = self.clock() - request.waited_s  # Includes the wait of earlier rounds.
            self._check_patience(self._fetches.failed(request.offsets, error, since_s))
            return
        current = [
            fetched
            for fetched in parts
            if self._positions[fetched.partition].offset == request.offsets[fetched.partition]
        ]  # Of the others the caller has called `seek` meanwhile.
        if request.source.is_follower:
            self._receive_copies(request, current)
        else:
            self._receive_rows(request, current)

    def _receive_copies(self, request: Request, parts: Sequence[FetchedPartition]) -> None:
        # Rows are progress; the leader is asked about all else.
        source = request.source
        assert source.is_follower
        behind: list[int] = []
        brought = failed = False
        for fetched in parts:
            position = self._positions[fetched.partition]
            offset = position.offset
            try:
                has_rows = self._take(position, fetched, source)
            except QuiverlogError as error:
                failed = True
                self._fetches.leave_follower(source, (fetched.partition,), error)
                continue
            self._fetches.troubles.pop(fetched.partition, None)
            brought = brought or has_rows
            self._fetches.choice.follower_answered(
                fetched.partition,
                source.follower,
                offset=offset,
                next_offset=position.offset,
                high_watermark=fetched.high_watermark,
                now_s=self.clock(),
            )
            if position.offset < position.known_end and not has_rows:
                behind.append(fetched.partition)
        if not brought:  # Else other partitions may have filled the answer.
            for p in behind:
                self._fetches.choice.failed(p, source.follower, self.clock())
        self._fetches.pauses.answered(request, brought=brought, failed=failed or bool(behind))
        if brought:
            self._failures = 0
            self._recovered()

    def _receive_rows(self, request: Request, parts: Sequence[FetchedPartition]) -> None:
        assert not request.source.is_follower
        failures: dict[int, QuiverlogError] = {}
        brought = False
        limit_s = self._cluster.settings.request_timeout_s
        for fetched in parts:
            position = self._positions[fetched.partition]
            try:
                has_rows = self._take(position, fetched, request.source)
                if not (has_rows or brought):  # Else other partitions have filled the answer.
                    position.check_stalled(
                        self.topic, fetched.high_watermark, self.clock(), limit_s
                    )
                self._fetches.choice.leader_answered(
                    fetched.partition, brought=has_rows, now_s=self.clock()
                )
                self._fetches.troubles.pop(fetched.partition, None)
                brought = brought or has_rows
                continue
            except QuiverlogError as why:
                partial = why
            if position.moved_start(partial, fetched):
                continue
            if self._options.skip_corrupt and position.skipped_damage(partial):
                brought = True
                continue
            failures[fetched.partition] = partial
        self._fetches.pauses.answered(request, brought=brought, failed=bool(failures))
        self._receive_failures(failures)
        self._failures = 0
        self._recovered()

    def _receive_failures(self, failures: Mapping[int, QuiverlogError]) -> None:
        assert failures.keys() <= self._positions.keys()
        # Rows of other partitions are returned first. A retriable error must not hide one that is
        # not.
        for p, failure in sorted(failures.items(), key=lambda one: one[1].retriable):
            if failure.retriable:
                self._check_patience(self._fetches.failed((p,), failure, self.clock()))
            elif not self._ready:
                raise failure
            else:
                self._deferred = self._deferred or failure

    def _recovered(self) -> None:
        self._failing_since_s = self._failure = None
        if not self._fetches.troubles:
            self._logged_reasons.clear()

    def _check_patience(self, trouble: Trouble) -> None:
        """Raise the error of a partition that fails for long, if no other has had rows either."""
        assert self._idle_since_s is not None, "a caller waits for rows"
        assert trouble.error.retriable
        since_s = max(trouble.since_s, self._idle_since_s)
        limit_s = min(since_s + self._patience_s, self._cluster.deadline_s)
        if self.clock() >= limit_s and not self._ready:
            self._failing_since_s = since_s  # `_after_failure` comes to the same end.
            self._fetches.troubles.clear()
            raise trouble.error
        self._log(self._wait_for(trouble))

    def _log(self, wait: Wait) -> None:
        if wait.reason not in self._logged_reasons:
            self._logged_reasons.update(self._cluster.waits.log_long(wait))

    def _take(self, position: Position, fetched: FetchedPartition, source: Source) -> bool:
        """Queue a partition's batches; False: there are none. Raises its error."""
        error = fetch_error(fetched, self.topic, position.offset)
        if error is not None:
            raise error
        batches = stored_batches(
            fetched, self.topic, position.offset, position.end, follower=source.follower
        )
        if not source.is_follower:
            position.known_end = max(position.known_end, fetched.high_watermark)
        if not batches:
            return False
        next_offset, epoch = batches[-1].next_offset, batches[-1].header.leader_epoch
        assert next_offset > position.offset, "a reader that does not move spins"
        order = [p for p in self._order if p != position.partition]
        self._ready += batches  # no call from here on
        position.offset, position.last_epoch = next_offset, epoch
        position.is_from_earliest = position.may_be_gone = False
        position.empty_since_s = None
        self._cluster.progressed()
        self._order = [*order, position.partition]
        assert len(self._order) == len(self._positions), "each partition has one turn"
        return True

    def _look_for_ends(self) -> Operation[None]:
        topic_id, positions = self._fetches.topic_id, self._positions.values()
        try:
            gone = yield from first_gone(self._cluster, self.topic, topic_id, positions)
        except OffsetNotAvailable:  # The wait for these rows is over already.
            self._failing_since_s = self.clock() - self._cluster.settings.request_timeout_s
            raise
        if gone is not None and not self._ready:
            raise gone
        self._deferred = self._deferred or gone

    def _after_failure(self, error: QuiverlogError, round_began_s: float) -> float:
        if self._failing_since_s is None:
            self._failing_since_s = round_began_s
        now_s = self.clock()
        limit_s = self._failing_since_s + self._patience_s
        if not error.retriable or now_s >= min(limit_s, self._cluster.deadline_s):
            self._recovered()
            raise named(error, self.topic)
        self._failure = error
        if (wait := self.waiting()) is not None:
            self._log(wait)
        if error.refresh_metadata:
            self._cluster.invalidate_topics()
        self._failures += 1
        return pause_s(error, self._failures, self._cluster.jitter())

    def _look_every_s(self) -> float:
        if self._options.follows_all:
            return NEW_PARTITIONS_EVERY_S
        return IN_SYNC_EVERY_S if self._fetches.choice.wants_followers else math.inf

    def _look_around(self) -> Operation[None]:
        """Refresh the metadata when due; read added partitions from their first row on."""
        if self.clock() < self._look_again_s:
            return
        self._look_again_s = self.clock() + self._look_every_s()
        yield from self._cluster.refresh([self.topic])
        topic = yield from self._fetches.current_topic()
        if not self._options.follows_all:
            return
        new = [p.partition for p in topic.partitions if p.partition not in self._positions]
        if new:
            positions = {**self._positions, **(yield from self._finder.added(new))}
            self._positions, self._order = positions, [*self._order, *new]
            assert len(self._order) == len(self._positions), "each partition has one turn"


# However short a `poll`, it may take this long to connect: one of 0 would never progress.
POLL_WORK_S = 1.0


class ConsumerBase:
    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next offsets {self.positions}"
        return f"<{type(self).__name__} of {self._core.topic}: {state}>"

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches; a consumer that follows may get more."""
        return self._core.decoder.schema

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> offset after the last returned row: `start` of a later consumer."""
        return self._core.positions

    def _next(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        """Return the next batch; wait in short rounds, to notice a `close`."""
        core = self._core
        deadline_s = core.clock() + timeout_s
        left_s = timeout_s
        while not self._closed:
            batch = yield from core.next(min(left_s, ROUND_S))
            left_s = deadline_s - core.clock()
            if batch is not None or core.is_at_end or left_s <= 0:
                return batch
        return None

    def _next_many(self, timeout_s: float) -> Operation[list[ConsumerBatch]]:
        batch = yield from self._next(timeout_s)
        if batch is None:
            return []
        return [batch, *(yield from self._core.at_hand())]

    def _poll(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        work_s = max(timeout_s, POLL_WORK_S)
        return (yield from within(self._core.clock, work_s, self._next(timeout_s)))

    def _abandon(self) -> Operation[None]:
        requests = list(self._core.requests)
        self._core.requests.clear()
        for request in requests:
            yield Abandon(request.pending)
