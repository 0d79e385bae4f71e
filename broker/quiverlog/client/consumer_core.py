"""The consumer's machine: from positions to batches, as operations.

Owns how positions advance, fairness, and the requests under way (one per leader).

Invariants:
- A partition is in at most one request at a time, and rows of it are handed out in offset order.
- A row is skipped only when the caller says so (`seek`, `skip_corrupt`): a batch that cannot be
  decoded stays at the head of what waits, so that every call meets it again.
- At most one reply waits to be handed out; the next request is under way meanwhile. The bytes held
  are bounded by twice `fetch_bytes` (plus one batch where a batch alone is larger).
- A partition that brought rows goes to the end of the next request: as the broker fills a reply
  from the front, every partition gets its turn.
- A leader that answers long polls early and without rows is asked again after a growing pause; a
  partition that has rows and brings none for the request timeout is an error.
"""

from __future__ import annotations

import logging
from collections import deque

from quiverlog.errors import (
    CorruptBatch,
    CorruptLog,
    InvalidArgument,
    InvalidResponse,
    OffsetOutOfRange,
    QuiverlogError,
    UnknownPartition,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.limits import FETCH_MAX_WAIT_MS_DEFAULT, MIB
from quiverlog.types import NO_EPOCH
from quiverlog.wire import messages as m

from .answers import about, named
from .commands import Call, Finish, FinishAny, Operation, PendingReply, Reply, Sleep, Start
from .consumer_options import ConsumerOptions
from .consumer_positions import Position, PositionFinder
from .consumer_requests import Pause, Request
from .decoding import BatchDecoder, StoredBatch, fetch_error, stored_batches
from .results import Address, ConsumerBatch, FetchedPartition, TopicInfo
from .routing import Cluster, backoff_s, empty_pause_s, partition_info
from .stored_batches import split_fetch

__all__ = ["ConsumerCore"]

NEW_PARTITIONS_EVERY_S = 2.0
ROUND_S = 1.0
"""How long one wait lasts at most: a consumer that was closed meanwhile sees it then."""

logger = logging.getLogger("quiverlog")


class ConsumerCore:
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, topic: str, options: ConsumerOptions) -> None:
        self.topic = topic
        self.requests: list[Request] = []
        self.clock = cluster.clock
        self._cluster = cluster
        self._options = options
        self._topic_id = b""
        self._finder = PositionFinder(cluster, topic, b"", options)
        self._positions: dict[int, Position] = {}
        self._order: list[int] = []
        self._decoder = BatchDecoder(cluster, topic, b"")
        self._ready: deque[StoredBatch] = deque()
        self._pauses: dict[Address, Pause] = {}
        self._failures = 0
        self._failing_since_s: float | None = None
        self._look_again_s = 0.0
        self._deferred: QuiverlogError | None = None
        """An error of one partition that came with rows of others: raised after these rows."""

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> offset after the last row that was handed out."""
        return {p.partition: p.delivered for p in self._positions.values()}

    def seek(self, partition: int, offset: int) -> None:
        """Go on from `offset`; rows that were fetched and not handed out are dropped."""
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
        self._deferred = None  # an error that still holds comes with the next answer
        position.offset = position.delivered = offset
        position.last_epoch = NO_EPOCH
        position.is_from_earliest = False
        position.empty_since_s = None

    # --- opening --------------------------------------------------------------------------------
    def open(self) -> Operation[None]:
        """Find the topic, its schema, and where to begin and end."""
        yield from about(self.topic, self._cluster.retrying(self._open))

    def _open(self) -> Operation[None]:
        topic = yield from self._cluster.topic(self.topic, fresh=True)
        self._topic_id = topic.topic_id
        self._finder = PositionFinder(self._cluster, self.topic, topic.topic_id, self._options)
        self._decoder = BatchDecoder(
            self._cluster, self.topic, topic.topic_id, columns=self._options.columns
        )
        yield from self._decoder.prepare(topic.schema_id)
        wanted = self._options.partitions
        chosen = [p.partition for p in topic.partitions] if wanted is None else list(wanted)
        for partition in self._finder.named_partitions(chosen):
            partition_info(topic, partition)
        self._positions = yield from self._finder.resolve(chosen)
        self._order = list(chosen)
        self._look_again_s = self._cluster.clock() + NEW_PARTITIONS_EVERY_S

    # --- reading --------------------------------------------------------------------------------
    def next(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        """The next batch; None at the end, or when `timeout_s` have passed.

        Raises:
            OffsetOutOfRange: the rows at a position are not kept any more.
            LogTruncated: rows that were read were lost with an earlier leader.
            UnknownTopicId: the topic was deleted.
            CorruptBatch: rows cannot be decoded; again at every call, until `seek`.
            InvalidResponse: the broker does not bring the rows there are.
        """
        deadline_s = self.clock() + timeout_s
        while True:
            batch = yield from self._next_ready()
            if batch is not None or self.is_at_end:
                return batch
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                raise deferred
            pause_s = 0.0
            round_began_s = self.clock()
            try:
                yield from self._look_for_new_partitions()
                yield from self._start_fetches()
                pending = yield from self._wait(deadline_s)
                if pending is not None:
                    yield from self._receive(pending)
                    yield from self._start_fetches()  # under way while these rows are used
            except QuiverlogError as error:
                pause_s = self._after_failure(error, round_began_s)
            if self._ready:
                continue
            left_s = deadline_s - self.clock()
            if left_s <= 0:
                return None
            if pause_s:
                yield Sleep(min(pause_s, left_s))

    @property
    def is_at_end(self) -> bool:
        """Everything up to the ends was handed out (never, when following)."""
        return not self._ready and all(p.is_done for p in self._positions.values())

    def _next_ready(self) -> Operation[ConsumerBatch | None]:
        """Decode what waits. What fails stays where it is."""
        while self._ready:
            stored = self._ready[0]
            batch: ConsumerBatch | None = None
            try:
                batch = yield from self._decoder.decode(stored)
            except CorruptBatch as error:
                if not self._options.skip_corrupt:
                    raise
                logger.warning("stepping over rows (skip_corrupt): %s", error.message)
            self._ready.popleft()
            position = self._positions[stored.partition]
            assert position.delivered < stored.next_offset <= position.offset
            position.delivered = stored.next_offset
            if batch is not None:
                return batch
        return None

    def _wait(self, deadline_s: float) -> Operation[PendingReply | None]:
        """The first request that is answered; None when it is time to look around."""
        began_s = self.clock()
        pending: PendingReply | None = yield FinishAny(
            [r.pending for r in self.requests], self._wait_s(deadline_s)
        )
        for request in self.requests:
            request.waited_s += self.clock() - began_s
        return pending

    def _wait_s(self, deadline_s: float) -> float:
        now_s = self.clock()
        moments = [now_s + ROUND_S, deadline_s]
        moments.extend(p.until_s for p in self._pauses.values() if p.until_s > now_s)
        return max(0.0, min(moments) - now_s)

    def _start_fetches(self) -> Operation[None]:
        busy = {p for request in self.requests for p in request.offsets}
        free = [p for p in self._order if p not in busy and not self._positions[p].is_done]
        if not free:
            return
        topic = yield from self._current_topic()
        leaders: dict[Address, list[int]] = {}
        for p in free:
            leaders.setdefault(self._cluster.leader_address(topic, p), []).append(p)
        asked = {request.address for request in self.requests}
        share = max(MIB, self._options.fetch_bytes // max(1, len(leaders.keys() | asked)))
        for address, partitions in leaders.items():
            pause = self._pauses.get(address)
            if address in asked or (pause is not None and pause.until_s > self.clock()):
                continue  # its partitions that are free join the next request
            request = self._request(topic, partitions, min(share, self._options.fetch_bytes))
            timeout_s = self._cluster.settings.request_timeout_s + request.max_wait_ms / 1000
            try:
                pending = yield Start(Call(address, request, timeout_s, channel="fetch"))
            except QuiverlogError as error:
                named(error, self.topic, *partitions)
                raise
            offsets = {p: self._positions[p].offset for p in partitions}
            self.requests.append(Request(pending, address, offsets, self.clock()))

    def _request(self, topic: TopicInfo, partitions: list[int], bytes_max: int) -> m.FetchRequest:
        entries = []
        for p in partitions:
            position = self._positions[p]
            end = -1 if position.end is None else position.end
            entries.append(
                m.FetchPartition(
                    self._topic_id,
                    p,
                    partition_info(topic, p).leader_epoch,
                    position.offset,
                    position.last_epoch,
                    bytes_max,
                    end,
                )
            )
        return m.FetchRequest(
            max_wait_ms=FETCH_MAX_WAIT_MS_DEFAULT, bytes_max=bytes_max, partitions=entries
        )

    def _current_topic(self) -> Operation[TopicInfo]:
        try:
            topic = yield from self._cluster.topic(self.topic)
        except UnknownTopic as error:
            raise UnknownTopicId(f"Topic {self.topic!r} is gone.", topic=self.topic) from error
        if topic.topic_id != self._topic_id:
            raise UnknownTopicId(
                f"Topic {self.topic!r} was deleted and created again.", topic=self.topic
            )
        return topic

    def _receive(self, pending: PendingReply) -> Operation[None]:
        request = next(r for r in self.requests if r.pending is pending)
        self.requests.remove(request)
        assert request.offsets.keys() <= self._positions.keys()
        try:
            reply: Reply = yield Finish(pending)
            parts = split_fetch(reply)
        except QuiverlogError as error:
            if self._failing_since_s is None:  # The wait counts, though it took several rounds.
                self._failing_since_s = self.clock() - request.waited_s
            named(error, self.topic, *request.offsets)
            raise
        failure: QuiverlogError | None = None
        brought = False
        for fetched in parts:
            position = self._positions[fetched.partition]
            if position.offset != request.offsets[fetched.partition]:
                continue  # somebody has called `seek` meanwhile
            try:
                brought = self._take(position, fetched) or brought
                continue
            except QuiverlogError as why:
                partial = why
            if self._moved_start(position, partial, fetched):
                continue
            if self._skipped_damage(position, partial):
                brought = True
                continue
            # What other partitions brought is kept, and handed out before the error is raised. An
            # error that time may heal must not hide one that it cannot.
            if failure is None or failure.retriable:
                failure = partial
        self._pace(request, brought=brought, failed=failure is not None)
        if failure is not None and not self._ready:
            raise failure
        if failure is not None and failure.refresh_metadata:
            self._cluster.forget_topics()
        if failure is not None and not failure.retriable:
            self._deferred = failure
        self._failures = 0
        self._failing_since_s = None

    def _take(self, position: Position, fetched: FetchedPartition) -> bool:
        """Keep what a partition brought; True if there was anything. Raises its error."""
        error = fetch_error(fetched, self.topic, position.offset)
        if error is not None:
            raise error
        batches = stored_batches(fetched, self.topic, position.offset, position.end)
        position.known_end = max(position.known_end, fetched.high_watermark)
        if not batches:
            self._check_stalled(position)
            return False
        self._ready.extend(batches)
        assert batches[-1].next_offset > position.offset, "a reader that does not move spins"
        position.offset = batches[-1].next_offset
        position.last_epoch = batches[-1].header.leader_epoch
        position.is_from_earliest = False
        position.empty_since_s = None
        self._order.remove(position.partition)
        self._order.append(position.partition)
        return True

    def _check_stalled(self, position: Position) -> None:
        """Rows exist and do not come: once is fairness among partitions, for long it is a fault."""
        if position.offset >= position.known_end:
            position.empty_since_s = None
            return
        now_s = self.clock()
        timeout_s = self._cluster.settings.request_timeout_s
        if position.empty_since_s is None:
            position.empty_since_s = now_s
        elif now_s - position.empty_since_s >= timeout_s:
            position.empty_since_s = None
            raise InvalidResponse(
                f"{self.topic}-{position.partition} gave no rows at offset {position.offset} for "
                f"{timeout_s:g} s, although there are rows up to {position.known_end}.",
                topic=self.topic,
                partition=position.partition,
                offset=position.offset,
            )

    def _pace(self, request: Request, *, brought: bool, failed: bool) -> None:
        """A long poll that comes back early with nothing must not become a loop without rest."""
        if brought:
            self._pauses.pop(request.address, None)
            return
        now_s = self.clock()
        if failed or now_s - request.sent_s >= FETCH_MAX_WAIT_MS_DEFAULT / 2000:
            return
        pause = self._pauses.setdefault(request.address, Pause())
        pause.until_s = now_s + empty_pause_s(pause.streak, self._cluster.jitter())
        pause.streak += 1

    def _moved_start(
        self, position: Position, error: QuiverlogError, fetched: FetchedPartition
    ) -> bool:
        """Retention moved the start between the question where it is and the first fetch."""
        if not (isinstance(error, OffsetOutOfRange) and position.is_from_earliest):
            return False
        if fetched.log_start_offset <= position.offset:
            return False
        position.offset = position.delivered = fetched.log_start_offset
        return True

    def _skipped_damage(self, position: Position, error: QuiverlogError) -> bool:
        """Go on behind rows that the broker itself cannot read, where the caller said so."""
        after = error.details.get("next_offset")
        if not (self._options.skip_corrupt and isinstance(error, CorruptLog)):
            return False
        if not isinstance(after, int) or after <= position.offset:
            return False
        logger.warning("stepping over rows (skip_corrupt): %s", error.message)
        position.offset = position.delivered = after
        return True

    def _after_failure(self, error: QuiverlogError, round_began_s: float) -> float:
        """Raise what time will not heal, and what it has not healed; or the pause in seconds."""
        if self._failing_since_s is None:
            self._failing_since_s = round_began_s
        failing_s = self.clock() - self._failing_since_s
        if not error.retriable or failing_s >= self._cluster.settings.request_timeout_s:
            self._failing_since_s = None
            raise named(error, self.topic)
        if error.refresh_metadata:
            self._cluster.forget_topics()
        self._failures += 1
        return backoff_s(self._failures, self._cluster.jitter())

    def _look_for_new_partitions(self) -> Operation[None]:
        """A topic may have grown: its new partitions are read from their first row on."""
        follows_all = self._options.follow and self._options.partitions is None
        if not follows_all or self._cluster.clock() < self._look_again_s:
            return
        self._look_again_s = self._cluster.clock() + NEW_PARTITIONS_EVERY_S
        yield from self._cluster.refresh([self.topic])
        topic = yield from self._current_topic()
        new = [p.partition for p in topic.partitions if p.partition not in self._positions]
        if new:
            self._positions.update((yield from self._finder.added(new)))
            self._order.extend(new)
