"""Reading one range of one partition with prefetch, for Spark executors.

The next request is sent before the caller gets the last reply's first batch. At most one reply is
held and one is in flight.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiverlog.client.base.commands import (
    Abandon,
    Call,
    Finish,
    FinishAny,
    Operation,
    PendingReply,
    Reply,
    Sleep,
    Start,
)
from quiverlog.client.base.deadline import within
from quiverlog.client.cluster.answers import named
from quiverlog.client.cluster.metadata import partition_info
from quiverlog.client.cluster.replica_choice import (
    IN_SYNC_EVERY_S,
    LEADER,
    FetchFrom,
    ReplicaChoice,
)
from quiverlog.client.cluster.routing import (
    Cluster,
    empty_pause_s,
    is_deposed,
    pause_s,
    throttled_s,
)
from quiverlog.client.cluster.topic_identity import topic_with_id
from quiverlog.client.consumer.fetches import FOLLOWER_TIMEOUT_S, OVERDUE_S
from quiverlog.client.consumer.positions import why_none
from quiverlog.client.consumer.stored_batches import split_fetch
from quiverlog.client.rows.decoding import (
    BatchDecoder,
    ConsumerBatch,
    StoredBatch,
    fetch_error,
    stored_batches,
)
from quiverlog.errors import NotLeader, QuiverlogError
from quiverlog.limits import FETCH_MAX_WAIT_MS_DEFAULT, FETCH_PARTITION_BYTES_DEFAULT
from quiverlog.types import NO_EPOCH, TopicPartition
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.client.blocking_methods import BlockingMethods

__all__ = ["PartitionFetcher"]


class FetchCore:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        topic_id: bytes,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        bytes_max: int,
        last_epoch: int,
        choice: ReplicaChoice,
    ) -> None:
        assert start_offset >= 0
        self.position = start_offset
        self.pending: PendingReply | None = None
        self._cluster = cluster
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._end = end_offset
        self._bytes_max = bytes_max
        self._last_epoch = last_epoch
        self._deadline_s = 0.0
        self._failures = 0
        self._sent_s = 0.0
        self._empty_streak = 0
        # When the broker that answered last takes the next request.
        self._throttled_s = 0.0
        self._choice = choice
        self._follower = LEADER

    def go_back(self, batch: StoredBatch, epoch: int) -> PendingReply | None:
        """Go back to a follower's batch that cannot be decoded, to read it from the leader. Returns
        the request in flight, which the caller abandons."""
        assert batch.follower != LEADER
        assert batch.start < self.position
        self._choice.failed(self._partition, batch.follower, self._cluster.clock())
        self.position, self._last_epoch = batch.start, epoch
        pending, self.pending = self.pending, None
        return pending

    def next(self) -> Operation[list[StoredBatch]]:
        """Return the next reply's batches and send the following request; [] at the end.

        Raises:
            OffsetOutOfRange, LogTruncated, UnknownTopicId, OffsetNotAvailable: the rows are not
                there.
            InvalidResponse: the answer holds other rows.
        """
        held_s = max(0.0, self._throttled_s - self._cluster.clock())
        timeout_s = self._cluster.settings.request_timeout_s + held_s
        limit_s = timeout_s + FETCH_MAX_WAIT_MS_DEFAULT / 1000
        try:
            with self._cluster.waits.of(limit_s) as wait:
                operation = self._next(timeout_s)
                return (yield from within(self._cluster.clock, limit_s, operation, wait))
        except QuiverlogError as error:
            named(error, self._topic, self._partition)
            raise

    def _next(self, timeout_s: float) -> Operation[list[StoredBatch]]:
        self._deadline_s = self._cluster.clock() + timeout_s
        while self.position < self._end:
            try:
                batches = yield from self._take()
            except QuiverlogError as error:
                if not self._leaves_follower(error):
                    yield from self._recover(error)
                continue
            if batches:
                return batches
            if self._cluster.clock() >= self._deadline_s:
                where = TopicPartition(self._topic, self._partition)
                raise (
                    yield from why_none(
                        self._cluster, where, self._topic_id, self.position, self._end
                    )
                )
            yield from self._pause_if_early()
        return []

    def _take(self) -> Operation[list[StoredBatch]]:
        if self.pending is None:
            self.pending = yield from self._start()
        pending, self.pending = self.pending, None
        offset, follower = self.position, self._follower
        reply = yield from self._reply(pending, follower)
        fetched = split_fetch(reply)[0]
        assert isinstance(reply.response, m.FetchResponse)
        self._throttled_s = self._cluster.clock() + throttled_s(reply.response.throttle_ms)
        error = fetch_error(fetched, self._topic, self.position)
        if error is not None:
            raise error
        batches = stored_batches(fetched, self._topic, self.position, self._end, follower=follower)
        if batches:
            self._failures = self._empty_streak = 0
            self.position = batches[-1].next_offset
            self._last_epoch = batches[-1].header.leader_epoch
            assert offset < self.position <= self._end
        self._record_answer(follower, offset, fetched.high_watermark)
        # While it must wait, the caller has these rows first.
        is_held = self._throttled_s > self._cluster.clock()
        if batches and self.position < self._end and not is_held:
            try:
                self.pending = yield from self._start()
            except QuiverlogError as start_error:
                if not (self._leaves_follower(start_error) or start_error.retriable):
                    raise
                # These batches are valid; the next call retries.
        return batches

    def _reply(self, pending: PendingReply, follower: int) -> Operation[Reply]:
        """Raises NotLeader for a silent leader that has a successor."""
        where = TopicPartition(self._topic, self._partition)
        try:
            while follower == LEADER and self._cluster.has_others:
                if (yield FinishAny((pending,), OVERDUE_S)) is not None:
                    break
                if (yield from is_deposed(self._cluster, pending.call.address, [where])):
                    raise NotLeader(f"{pending.call.address} is silent, and no longer leads.")
        except QuiverlogError:
            yield Abandon(pending)
            raise
        reply: Reply = yield Finish(pending)
        return reply

    def _record_answer(self, follower: int, offset: int, high_watermark: int) -> None:
        now_s = self._cluster.clock()
        brought = self.position > offset
        if follower == LEADER:
            self._choice.leader_answered(self._partition, brought=brought, now_s=now_s)
        elif not brought:
            # Rows up to the end are known to exist.
            self._choice.failed(self._partition, follower, now_s)
        else:
            self._choice.follower_answered(
                self._partition,
                follower,
                offset=offset,
                next_offset=self.position,
                high_watermark=high_watermark,
                now_s=now_s,
            )

    def _leaves_follower(self, error: QuiverlogError) -> bool:
        """False: the failure was the leader's."""
        if self._follower == LEADER:
            return False
        self._choice.failed(self._partition, self._follower, self._cluster.clock())
        self._follower = LEADER
        if error.refresh_metadata:
            self._cluster.invalidate_topics()
        return True

    def _pause_if_early(self) -> Operation[None]:
        # A broker that held its answer back sets the pace itself.
        if self._cluster.clock() - self._sent_s < FETCH_MAX_WAIT_MS_DEFAULT / 2000:
            yield Sleep(empty_pause_s(self._empty_streak, self._cluster.jitter()))
            self._empty_streak += 1

    def _start(self) -> Operation[PendingReply]:
        assert self.pending is None, "one request at a time"
        assert self.position < self._end
        held_s = self._throttled_s - self._cluster.clock()
        if held_s > 0:
            yield Sleep(held_s)
        self._follower = LEADER
        # A range that reads followers learns when a nearer one is in sync again.
        age_max_s = IN_SYNC_EVERY_S if self._choice.wants_followers else math.inf
        topic = yield from topic_with_id(
            self._cluster, self._topic, self._topic_id, age_max_s=age_max_s
        )
        info = partition_info(topic, self._partition)
        now_s = self._cluster.clock()
        follower = self._choice.choose(self._partition, info, self._cluster.metadata, now_s)
        request = m.FetchRequest(
            max_wait_ms=FETCH_MAX_WAIT_MS_DEFAULT,
            bytes_max=self._bytes_max,
            partitions=[
                m.FetchPartition(
                    self._topic_id,
                    self._partition,
                    info.leader_epoch,
                    self.position,
                    self._last_epoch,
                    self._bytes_max,
                    self._end,
                    follower != LEADER,
                )
            ],
        )
        timeout_s = self._cluster.settings.request_timeout_s
        if follower == LEADER:
            address = self._cluster.leader_address(topic, self._partition)
        else:
            address = self._cluster.address_of(follower)
            timeout_s = min(timeout_s, FOLLOWER_TIMEOUT_S)
        self._follower = follower
        self._choice.asked(self._partition, follower, now_s)
        timeout_s += FETCH_MAX_WAIT_MS_DEFAULT / 1000
        pending: PendingReply = yield Start(Call(address, request, timeout_s, channel="fetch"))
        self._sent_s = self._cluster.clock()
        return pending

    def _recover(self, error: QuiverlogError) -> Operation[None]:
        wait_s = pause_s(error, self._failures, self._cluster.jitter())
        if not error.retriable or self._cluster.clock() + wait_s >= self._deadline_s:
            raise error
        if error.refresh_metadata:
            self._cluster.invalidate_topics()
        self._failures += 1
        yield Sleep(wait_s)


class PartitionFetcher:
    """Iterates over the rows [start_offset, end_offset) of one partition as `ConsumerBatch`es.

    Args:
        topic_id: another topic under the same name is refused; None takes the one that has the
            name now.
        start_offset, end_offset: may lie inside batches; the batches are sliced.
        columns: only these, in this order; None takes all.
        reader_schema: None takes the topic's newest.
        bytes_max: stored bytes per request.
        last_epoch: leader epoch of the row before `start_offset`, if known: a log that was
            truncated below it is noticed.
        fetch_from, client_rack: as for `Client.consumer`.

    Raises (while iterating):
        OffsetOutOfRange: rows of the range are not kept any more; names what is.
        LogTruncated, UnknownTopicId, OffsetNotAvailable, CorruptBatch, ConnectionFailed.
    """

    def __init__(
        self,
        client: BlockingMethods,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        topic_id: bytes | None = None,
        columns: Sequence[str] | None = None,
        reader_schema: pa.Schema | None = None,
        bytes_max: int = FETCH_PARTITION_BYTES_DEFAULT,
        last_epoch: int = NO_EPOCH,
        verify_crc: bool = True,
        fetch_from: FetchFrom = "leader",
        client_rack: str = "",
    ) -> None:
        spread = int(client.cluster.jitter() * 1_000)
        choice = ReplicaChoice(fetch_from, client_rack, spread)
        # Of the last row that was returned; at first, of the one before the range.
        self._epoch = last_epoch
        self._client = client
        cluster = client.cluster
        if topic_id is None:
            topic_id = client.run(cluster.retrying(lambda: cluster.topic(topic))).topic_id
        self._decoder = BatchDecoder(
            cluster,
            topic,
            topic_id,
            columns=columns,
            reader_schema=reader_schema,
            verify_crc=verify_crc,
        )
        self._core = FetchCore(
            cluster,
            topic,
            topic_id,
            partition,
            start_offset,
            end_offset,
            bytes_max=bytes_max,
            last_epoch=last_epoch,
            choice=choice,
        )
        # Without `reader_schema` later batches may have a newer one.
        self.schema: pa.Schema = client.run(cluster.retrying(self._decoder.prepare))
        self._batches: deque[StoredBatch] = deque()

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self

    def __next__(self) -> ConsumerBatch:
        while True:
            if self._batches:
                # Removed only when decoded: a leader's batch that cannot be fails every call.
                stored = self._batches[0]
                try:
                    batch = self._client.run(self._decoder.decode(stored))
                except QuiverlogError:
                    if stored.follower == LEADER:
                        raise
                    self._batches.clear()
                    self._abandon(self._core.go_back(stored, self._epoch))
                    continue
                self._batches.popleft()
                self._epoch = stored.header.leader_epoch
                return batch
            found = self._client.run(self._core.next())
            if not found:
                raise StopIteration
            self._batches.extend(found)

    def close(self) -> None:
        """Drop the request in flight and the batches at hand."""
        pending, self._core.pending = self._core.pending, None
        self._batches.clear()
        self._abandon(pending)

    def _abandon(self, pending: PendingReply | None) -> None:
        if pending is not None:
            self._client.run(_abandon(pending))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _abandon(pending: PendingReply) -> Operation[None]:
    yield Abandon(pending)
