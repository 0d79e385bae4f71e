"""The consumer's machine: from "where shall I begin" to batches, as operations.

Owns the positions, the requests under way (one per leader, with all its partitions) and fairness.

Invariants:

- A partition is in at most one request at a time, and rows of it are handed out in offset order.
- At most one reply waits to be handed out; the next request is under way meanwhile. The bytes held
  are bounded by twice `fetch_bytes` (plus one batch where a batch alone is larger).
- A partition that brought rows goes to the end of the next request: as the broker fills a reply
  from the front, every partition gets its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

from quiverlog.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    QuiverlogError,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.limits import FETCH_MAX_WAIT_MS_DEFAULT, FRAME_BYTES_MAX, HEADER_BYTES_MAX, MIB
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, TopicPartition
from quiverlog.wire import messages as m

from .admin import ask_leaders, at_us, offset_entry, split_fetch
from .commands import Call, Finish, FinishAny, Operation, Reply, Sleep, Start, Ticket
from .decoding import BatchDecoder, StoredBatch, fetch_error, stored_batches
from .results import Address, ConsumerBatch, FetchedPartition, TopicInfo
from .routing import Cluster, backoff_s, check, partition_info

__all__ = ["ConsumerCore", "ConsumerOptions", "End", "Start_", "consumer_options"]

Start_: TypeAlias = (
    "Literal['earliest', 'latest'] | datetime | "
    "Mapping[int, int | Literal['earliest', 'latest'] | datetime]"
)
End: TypeAlias = "Literal['latest'] | Mapping[int, int] | None"

T = TypeVar("T")

FETCH_BYTES_MIN = 64 * 1024
NEW_PARTITIONS_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What a consumer was asked for."""

    start: Start_
    end: End
    follow: bool
    columns: tuple[str, ...] | None
    partitions: tuple[int, ...] | None
    fetch_bytes: int

    def __post_init__(self) -> None:
        if self.follow and self.end is not None:
            raise InvalidArgument("follow=True has no end: leave `end` out.")
        if not FETCH_BYTES_MIN <= self.fetch_bytes <= FRAME_BYTES_MAX - HEADER_BYTES_MAX:
            raise InvalidArgument(
                f"fetch_bytes must lie between {FETCH_BYTES_MIN} and "
                f"{FRAME_BYTES_MAX - HEADER_BYTES_MAX}."
            )
        if not isinstance(self.start, Mapping):
            at_us(self.start)
        if self.columns is not None and not self.columns:
            raise InvalidArgument("columns is empty: leave it out, or name at least one.")
        if self.end is not None and self.end != "latest" and not isinstance(self.end, Mapping):
            raise InvalidArgument(
                f"end={self.end!r} is neither 'latest' nor {{partition: offset}}."
            )


def consumer_options(
    *,
    start: Start_,
    end: End,
    follow: bool,
    columns: str | Sequence[str] | None,
    partitions: Sequence[int] | None,
    fetch_bytes: int,
) -> ConsumerOptions:
    """Check the arguments of `Client.consumer`. Raises InvalidArgument."""
    for name, value in (("start", start), ("end", end)):
        if isinstance(value, Mapping) and not all(isinstance(p, int) for p in value):
            raise InvalidArgument(f"{name}={value!r}: partitions are numbers.")
    if partitions is not None and not (
        isinstance(partitions, Iterable) and all(isinstance(p, int) for p in partitions)
    ):
        raise InvalidArgument(f"partitions={partitions!r} is not a list of numbers.")
    return ConsumerOptions(
        start=start,
        end=end,
        follow=follow,
        # One name is a sequence of letters, too.
        columns=(columns,) if isinstance(columns, str) else _tuple(columns),
        partitions=_tuple(partitions),
        fetch_bytes=fetch_bytes,
    )


def _tuple(values: Iterable[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)


@dataclass(slots=True)
class Position:
    """Where a partition is read: rows from `offset` on are not asked for yet."""

    partition: int
    offset: int
    end: int | None
    last_epoch: int = NO_EPOCH
    delivered: int = 0
    """The offset after the last row that was handed out."""
    is_from_earliest: bool = False
    """Nothing was read yet and the start was the first row kept, which may move on any time."""

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.offset >= self.end


@dataclass(slots=True)
class Request:
    """A fetch under way."""

    ticket: Ticket
    address: Address
    partitions: list[int]


class ConsumerCore:
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, topic: str, options: ConsumerOptions) -> None:
        self.topic = topic
        self.requests: list[Request] = []
        self._cluster = cluster
        self._options = options
        self._topic_id = b""
        self._positions: dict[int, Position] = {}
        self._order: list[int] = []
        self._decoder = BatchDecoder(cluster, topic, b"")
        self._ready: deque[StoredBatch] = deque()
        self._failures = 0
        self._failing_since_s: float | None = None
        self._look_again_s = 0.0

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> offset after the last row that was handed out."""
        return {p.partition: p.delivered for p in self._positions.values()}

    # --- opening --------------------------------------------------------------------------------
    def open(self) -> Operation[None]:
        """Find the topic, its schema, and where to begin and end."""
        yield from self._cluster.retrying(self._open)

    def _open(self) -> Operation[None]:
        topic = yield from self._cluster.topic(self.topic, fresh=True)
        self._topic_id = topic.topic_id
        self._decoder = BatchDecoder(
            self._cluster, self.topic, topic.topic_id, columns=self._options.columns
        )
        yield from self._decoder.prepare(topic.schema_id)
        wanted = self._options.partitions
        chosen = [p.partition for p in topic.partitions] if wanted is None else list(wanted)
        for partition in self._named_partitions(chosen):
            partition_info(topic, partition)
        self._positions = yield from self._begin(chosen)
        self._order = list(chosen)
        self._look_again_s = self._cluster.clock() + NEW_PARTITIONS_EVERY_S

    def _named_partitions(self, chosen: Sequence[int]) -> list[int]:
        named = list(chosen)
        for spec in (self._options.start, self._options.end):
            if isinstance(spec, Mapping):
                named.extend(spec)
        return named

    def _begin(self, partitions: Sequence[int]) -> Operation[dict[int, Position]]:
        """Resolve start and end. Latest is asked for first: rows that come between the two
        questions are then read, not skipped."""
        starts = {p: self._start_of(p) for p in partitions}
        latest: dict[int, int] = {}
        if not self._options.follow or any(isinstance(s, datetime) for s in starts.values()):
            latest = yield from self._offsets(dict.fromkeys(partitions, LATEST))
        asked = {p: at_us(s) for p, s in starts.items() if not isinstance(s, int)}
        found = yield from self._offsets(asked)
        positions = {}
        for p, start in starts.items():
            offset = start if isinstance(start, int) else found[p]
            if offset < 0:  # no row is that young: begin where the next one will be
                offset = latest[p]
            if p in latest and offset > latest[p]:  # nothing would be asked for, nothing refused
                raise (yield from self._beyond(p, offset, latest[p]))
            positions[p] = Position(p, offset, self._end_of(p, latest), delivered=offset)
            positions[p].is_from_earliest = start == "earliest"
        return positions

    def _beyond(self, partition: int, offset: int, end: int) -> Operation[OffsetOutOfRange]:
        first = (yield from self._offsets({partition: EARLIEST}))[partition]
        return OffsetOutOfRange(
            f"{self.topic}-{partition}: offset {offset} is not in the valid range {first} to"
            f" {end}.",
            log_start_offset=first,
            high_watermark=end,
        )

    def _start_of(self, partition: int) -> int | Literal["earliest", "latest"] | datetime:
        start = self._options.start
        if not isinstance(start, Mapping):
            return start
        chosen = start.get(partition, "earliest")
        if isinstance(chosen, int) and chosen < 0:
            raise InvalidArgument(f"start: offset {chosen} of partition {partition} is negative.")
        return chosen

    def _end_of(self, partition: int, latest: Mapping[int, int]) -> int | None:
        if self._options.follow:
            return None
        if isinstance(self._options.end, Mapping):
            return self._options.end.get(partition, latest[partition])
        return latest[partition]

    def _offsets(self, at: Mapping[int, int]) -> Operation[dict[int, int]]:
        if not at:
            return {}
        entries = {
            TopicPartition(self.topic, p): offset_entry(p, a, topic_id=self._topic_id)
            for p, a in at.items()
        }
        _, results = yield from ask_leaders(
            self._cluster, entries, lambda parts: m.ListOffsetsRequest(partitions=parts)
        )
        for result in results.values():
            check(result)
        return {where.partition: result.offset for where, result in results.items()}

    # --- reading --------------------------------------------------------------------------------
    def next(self, timeout_s: float | None = None) -> Operation[ConsumerBatch | None]:
        """The next batch; None at the end, or when `timeout_s` have passed.

        Raises:
            OffsetOutOfRange: the rows at a position are not kept any more.
            LogTruncated: rows that were read were lost with an earlier leader.
            UnknownTopicId: the topic was deleted.
        """
        clock = self._cluster.clock
        deadline_s = None if timeout_s is None else clock() + timeout_s
        while True:
            while self._ready:
                batch = yield from self._hand_out(self._ready.popleft())
                if batch is not None:
                    return batch
            if self.is_at_end:
                return None
            try:
                yield from self._look_for_new_partitions()
                yield from self._start_fetches()
                wait_s = 1.0 if deadline_s is None else min(1.0, deadline_s - clock())
                ticket = yield FinishAny([r.ticket for r in self.requests], max(0.0, wait_s))
                if ticket is not None:
                    yield from self._receive(ticket)
                    yield from self._start_fetches()  # under way while these rows are used
            except QuiverlogError as error:
                yield from self._recover(error)
            if not self._ready and deadline_s is not None and clock() >= deadline_s:
                return None

    @property
    def is_at_end(self) -> bool:
        """Everything up to the ends was handed out (never, when following)."""
        return not self._ready and all(p.is_done for p in self._positions.values())

    def _hand_out(self, stored: StoredBatch) -> Operation[ConsumerBatch | None]:
        batch = yield from self._decoder.decode(stored)
        self._positions[stored.partition].delivered = stored.next_offset
        return batch

    def _start_fetches(self) -> Operation[None]:
        busy = {p for request in self.requests for p in request.partitions}
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
            if address in asked:
                continue  # its partitions that are free join the next request
            request = self._request(topic, partitions, min(share, self._options.fetch_bytes))
            timeout_s = self._cluster.settings.request_timeout_s + request.max_wait_ms / 1000
            ticket = yield Start(Call(address, request, timeout_s, lane="fetch"))
            self.requests.append(Request(ticket, address, partitions))

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

    def _receive(self, ticket: Ticket) -> Operation[None]:
        request = next(r for r in self.requests if r.ticket is ticket)
        self.requests.remove(request)
        reply: Reply = yield Finish(ticket)
        failure: QuiverlogError | None = None
        for fetched in split_fetch(reply):
            position = self._positions[fetched.partition]
            error = fetch_error(fetched, self.topic, position.offset)
            if error is None:
                self._take(position, fetched)
                continue
            if self._moved_start(position, error, fetched):
                continue
            # What other partitions brought is kept; it is handed out before the error is met
            # again. An error that time may heal must not hide one that it cannot.
            if failure is None or failure.retriable:
                failure = error
        if failure is not None and not self._ready:
            raise failure
        if failure is not None and failure.refresh_metadata:
            self._cluster.forget_topics()
        self._failures = 0
        self._failing_since_s = None

    def _take(self, position: Position, fetched: FetchedPartition) -> None:
        batches = stored_batches(fetched, position.offset, position.end)
        if not batches:
            return
        self._ready.extend(batches)
        position.offset = batches[-1].next_offset
        position.last_epoch = batches[-1].header.leader_epoch
        position.is_from_earliest = False
        self._order.remove(position.partition)
        self._order.append(position.partition)

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

    def _recover(self, error: QuiverlogError) -> Operation[None]:
        now_s = self._cluster.clock()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        failing_s = now_s - self._failing_since_s
        if not error.retriable or failing_s >= self._cluster.settings.request_timeout_s:
            raise error
        if error.refresh_metadata:
            self._cluster.forget_topics()
        self._failures += 1
        yield Sleep(backoff_s(self._failures, self._cluster.chance()))

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
            starts = yield from self._offsets(dict.fromkeys(new, EARLIEST))
            for p in new:
                self._positions[p] = Position(p, starts[p], None, delivered=starts[p])
                self._order.append(p)
