"""The fetches of a consumer: at most one request per broker and role, replicas, pauses.

A failed or silent follower is replaced by the leader, which also confirms what a follower reports
as error or end. A leader that fails holds up no partition of another one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quiverlog.client.base.arguments import names as shown_names
from quiverlog.client.base.commands import (
    Abandon,
    Call,
    Finish,
    FinishAny,
    Operation,
    PendingReply,
    Reply,
    Start,
)
from quiverlog.client.base.results import Address, FetchedPartition, TopicInfo
from quiverlog.client.base.waits import Wait
from quiverlog.client.cluster.answers import named
from quiverlog.client.cluster.metadata import partition_info
from quiverlog.client.cluster.replica_choice import LEADER, ReplicaChoice
from quiverlog.client.cluster.routing import Cluster, empty_pause_s, pause_s, throttled_s
from quiverlog.client.cluster.topic_identity import topic_with_id
from quiverlog.errors import QuiverlogError
from quiverlog.limits import FETCH_MAX_WAIT_MS_DEFAULT, LEADER_SILENCE_MS, MIB
from quiverlog.wire import messages as m

from .options import ConsumerOptions
from .positions import PartitionKey, Position
from .stored_batches import split_fetch

__all__ = [
    "FOLLOWER_TIMEOUT_S",
    "OVERDUE_S",
    "ROUND_S",
    "Fetches",
    "Pauses",
    "Request",
    "Source",
    "Trouble",
]


# A leader may hold its answer back, and is silent only after that.
OVERDUE_S = (FETCH_MAX_WAIT_MS_DEFAULT + LEADER_SILENCE_MS) / 1000
# While a broker accepts no request, those of other partitions wait.
SILENCE_S = LEADER_SILENCE_MS / 1000
# Shorter than a leader's: the leader can answer instead.
FOLLOWER_TIMEOUT_S = 10.0


class Source(NamedTuple):
    address: Address
    follower: int = LEADER

    @property
    def is_follower(self) -> bool:
        return self.follower != LEADER


@dataclass(slots=True)
class Request:
    pending: PendingReply
    source: Source
    # The offsets asked for: after a `seek` the answer is dropped. Partitions that are not read any
    # more are taken out, and stay out when they are read again.
    offsets: dict[PartitionKey, int]
    sent_s: float
    # Without the time that the caller worked.
    waited_s: float = 0.0
    # `waited_s` when it last had the metadata refreshed.
    looked_s: float = 0.0

    @property
    def is_overdue(self) -> bool:
        # Another broker may lead by now.
        return not self.source.is_follower and self.waited_s - self.looked_s >= OVERDUE_S


@dataclass(slots=True)
class Trouble:
    """A partition that cannot be read at present, since when and why."""

    since_s: float
    error: QuiverlogError
    tries: int = 0
    # It is not asked for before.
    until_s: float = 0.0


@dataclass(slots=True)
class _Pause:
    streak: int = 0
    until_s: float = 0.0


class Pauses:
    """Keep early answers without rows from becoming a busy loop, and the client within its quota:
    after an answer with `throttle_ms` the broker gets no request for that time."""

    __slots__ = ("_clock", "_jitter", "_pauses", "_throttled_s")

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        self._pauses: dict[Source, _Pause] = {}
        # Until when; another source may be the same broker.
        self._throttled_s: dict[Address, float] = {}

    def holds(self, source: Source) -> bool:
        pause, now_s = self._pauses.get(source), self._clock()
        if self._throttled_s.get(source.address, now_s) > now_s:
            return True
        return pause is not None and pause.until_s > now_s

    def ends_s(self) -> list[float]:
        now_s = self._clock()
        ends_s = [pause.until_s for pause in self._pauses.values()]
        return [at_s for at_s in (*ends_s, *self._throttled_s.values()) if at_s > now_s]

    def throttled(self, address: Address, throttle_ms: int) -> None:
        if throttle_ms:
            self._throttled_s[address] = self._clock() + throttled_s(throttle_ms)

    def answered(self, request: Request, *, brought: bool, failed: bool) -> None:
        if brought:
            self._pauses.pop(request.source, None)
            return
        now_s = self._clock()
        # A broker that held its answer back for half of the time sets the pace itself.
        if failed or now_s - request.sent_s >= FETCH_MAX_WAIT_MS_DEFAULT / 2000:
            return
        pause = self._pauses.setdefault(request.source, _Pause())
        pause.until_s = now_s + empty_pause_s(pause.streak, self._jitter())
        pause.streak += 1


# After each round a consumer notices that it was closed.
ROUND_S = 1.0

logger = logging.getLogger("quiverlog")


class Fetches:
    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        # The names of the topics that are read.
        self.names: dict[bytes, str] = {}
        self.requests: list[Request] = []
        self.pauses = Pauses(cluster.clock, cluster.jitter)
        # An answer without its error ends it.
        self.troubles: dict[PartitionKey, Trouble] = {}
        self._retry_s = math.inf
        spread = int(cluster.jitter() * 1_000)
        self.choice = ReplicaChoice(options.fetch_from, options.client_rack, spread)
        self._cluster = cluster
        self._clock = cluster.clock
        self._bytes_max = options.fetch_bytes

    def current_topics(self, keys: Iterable[PartitionKey]) -> Operation[dict[bytes, TopicInfo]]:
        # Each topic once, in the order in which its partitions are asked for.
        found: dict[bytes, TopicInfo] = {}
        for topic_id, _ in keys:
            if topic_id not in found:
                name = self.names[topic_id]
                found[topic_id] = yield from topic_with_id(self._cluster, name, topic_id)
        return found

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """Ignore what is in flight for partitions that are not read any more."""
        for key in keys:
            for request in self.requests:
                request.offsets.pop(key, None)
            self.troubles.pop(key, None)
            self.choice.forget(key)

    def leave_useless(self) -> Operation[None]:
        """Drop requests of which no partition is read any more."""
        for request in [request for request in self.requests if not request.offsets]:
            self.requests.remove(request)
            yield Abandon(request.pending)

    def start(
        self, positions: Mapping[PartitionKey, Position], order: Iterable[PartitionKey]
    ) -> Operation[list[Trouble]]:
        """Ask for what is not under way; return the new failures that may pass."""
        failed: list[Trouble] = []
        while True:
            now_s = self._clock()
            busy = {key for request in self.requests for key in request.offsets}
            busy |= {key for key, trouble in self.troubles.items() if trouble.until_s > now_s}
            wanted = (positions[key] for key in order if key not in busy)
            free = [position for position in wanted if position.wants_rows]
            if not free or (yield from self._start_free(free, failed)):
                pauses = [trouble.until_s for trouble in self.troubles.values()]
                # One that is over only now is still to be tried.
                self._retry_s = min((end_s for end_s in pauses if end_s > now_s), default=math.inf)
                return failed

    def _start_free(self, free: Sequence[Position], failed: list[Trouble]) -> Operation[bool]:
        """False: a follower has failed, so the choice is repeated."""
        assert free
        began_s = self._clock()
        topics = yield from self.current_topics(position.key for position in free)
        sources: dict[Source, list[Position]] = {}
        for position in free:
            try:
                source = self._source(topics[position.topic_id], position)
            except QuiverlogError as error:
                failed.append(self.failed((position.key,), error, began_s))
                continue
            sources.setdefault(source, []).append(position)
        asked = {request.source for request in self.requests}
        # All answers together stay near the caller's bound.
        share = max(MIB, self._bytes_max // max(1, len(sources.keys() | asked)))
        for source, positions in sources.items():
            if source in asked or self.pauses.holds(source):
                continue  # its partitions that are free join the next request
            bytes_max = min(share, self._bytes_max)
            try:
                yield from self._ask(topics, source, positions, bytes_max)
            except QuiverlogError as error:
                assert all(one.source != source for one in self.requests), "nothing was sent"
                keys = [position.key for position in positions]
                if source.is_follower:
                    self.leave_follower(source, keys, error)
                    return False
                failed.append(self.failed(keys, error, began_s))
        return True

    def _ask(
        self,
        topics: Mapping[bytes, TopicInfo],
        source: Source,
        positions: Sequence[Position],
        bytes_max: int,
    ) -> Operation[None]:
        assert bytes_max > 0
        assert all(one.source != source for one in self.requests), "one request for each source"
        request = self._request(topics, source, positions, bytes_max)
        timeout_s = self._cluster.settings.request_timeout_s
        if source.is_follower:
            timeout_s = min(timeout_s, FOLLOWER_TIMEOUT_S)
        offsets = {position.key: position.offset for position in positions}
        assert len(offsets) == len(positions), "a partition is asked for once"
        for key in offsets:
            self.choice.asked(key, source.follower, self._clock())
        timeout_s += request.max_wait_ms / 1000
        within_s = SILENCE_S if self._cluster.has_others else None
        call = Call(source.address, request, timeout_s, channel="fetch")
        pending = yield Start(call, within_s)
        self.requests.append(Request(pending, source, offsets, self._clock()))

    def failed(
        self, keys: Iterable[PartitionKey], error: QuiverlogError, since_s: float
    ) -> Trouble:
        """Have partitions wait for their next try; return the one that fails for longest.

        Raises an error that does not pass.
        """
        chosen = list(keys)
        assert chosen, "an error is that of a partition"
        self.name(error, chosen)
        if not error.retriable:
            raise error
        if error.refresh_metadata:
            self._cluster.invalidate_topics()
        now_s, jitter = self._clock(), self._cluster.jitter()
        for key in chosen:
            trouble = self.troubles.setdefault(key, Trouble(since_s, error))
            trouble.error = error
            trouble.tries += 1
            trouble.until_s = now_s + pause_s(error, trouble.tries, jitter)
        return min((self.troubles[key] for key in chosen), key=lambda one: one.since_s)

    def name(self, error: QuiverlogError, keys: Iterable[PartitionKey]) -> QuiverlogError:
        """Name the partitions in an error; of several topics, only those."""
        chosen = list(keys)
        topics = {self.names[topic_id] for topic_id, _ in chosen}
        # A caller that reads `details` must not take one topic for all.
        if len(topics) == 1:
            return named(error, topics.pop(), *(partition for _, partition in chosen))
        where = shown_names(sorted(topics))
        if "topic" not in error.details and not error.message.startswith(where):
            error.message = f"{where}: {error.message}"
        return error

    def _source(self, topic: TopicInfo, position: Position) -> Source:
        info = partition_info(topic, position.partition)
        node_id = self.choice.choose(position.key, info, self._cluster.metadata, self._clock())
        if node_id == LEADER:
            return Source(self._cluster.leader_address(topic, position.partition))
        return Source(self._cluster.address_of(node_id), node_id)

    def leave_follower(
        self, source: Source, keys: Iterable[PartitionKey], error: QuiverlogError
    ) -> None:
        assert source.is_follower
        chosen = list(keys)
        topics = shown_names(sorted({self.names[topic_id] for topic_id, _ in chosen}))
        logger.debug("%s: read from the leader: %s", topics, error)
        for key in chosen:
            self.choice.failed(key, source.follower, self._clock())
        if error.refresh_metadata:
            self._cluster.invalidate_topics()

    def _request(
        self,
        topics: Mapping[bytes, TopicInfo],
        source: Source,
        positions: Sequence[Position],
        bytes_max: int,
    ) -> m.FetchRequest:
        entries = [
            m.FetchPartition(
                position.topic_id,
                position.partition,
                partition_info(topics[position.topic_id], position.partition).leader_epoch,
                position.offset,
                position.last_epoch,
                bytes_max,
                -1 if position.end is None else position.end,
                source.is_follower,
            )
            for position in positions
        ]
        return m.FetchRequest(
            max_wait_ms=FETCH_MAX_WAIT_MS_DEFAULT, bytes_max=bytes_max, partitions=entries
        )

    # --- answers --------------------------------------------------------------------------------
    def wait(self, deadline_s: float) -> Operation[PendingReply | None]:
        began_s = self._clock()
        pending: PendingReply | None = yield FinishAny(
            [r.pending for r in self.requests], self._wait_s(deadline_s)
        )
        for request in self.requests:
            request.waited_s += self._clock() - began_s
        return pending

    def overdue_wait(self, since_s: float) -> Wait | None:
        """Return the wait for an overdue answer. Safe from any thread."""
        oldest = min(list(self.requests), key=lambda one: one.sent_s, default=None)
        if oldest is None:
            return None
        late_s = max(since_s, oldest.sent_s) + FETCH_MAX_WAIT_MS_DEFAULT / 1000
        if self._clock() <= late_s:
            return None
        address = oldest.source.address
        return Wait(late_s, math.inf, f"an answer of {address} (FETCH)", f"{address}")

    def _wait_s(self, deadline_s: float) -> float:
        now_s = self._clock()
        moments = [now_s + ROUND_S, deadline_s, self._retry_s]
        moments.extend(self.pauses.ends_s())
        return max(0.0, min(moments) - now_s)

    def leave_deposed(self) -> Operation[None]:
        # A machine without power breaks no connection.
        overdue = [request for request in self.requests if request.is_overdue]
        if not overdue or not self._cluster.has_others:
            return
        for request in overdue:
            request.looked_s = request.waited_s
            self._cluster.suspect(request.source.address)
        keys = [key for request in overdue for key in request.offsets]
        yield from self._cluster.refresh([self.names[topic_id] for topic_id, _ in keys])
        topics = yield from self.current_topics(keys)
        for request in overdue:
            metadata, address = self._cluster.metadata, request.source.address
            infos = (partition_info(topics[topic_id], p) for topic_id, p in request.offsets)
            if any(metadata.is_led_elsewhere(info, address) for info in infos):
                self.requests.remove(request)
                yield Abandon(request.pending)

    def take(self, pending: PendingReply) -> Request:
        request = next(r for r in self.requests if r.pending is pending)
        self.requests.remove(request)
        return request

    def finish(self, request: Request) -> Operation[list[FetchedPartition]]:
        """Return the answer, empty where a follower failed."""
        try:
            reply: Reply = yield Finish(request.pending)
            parts = split_fetch(reply)
            assert isinstance(reply.response, m.FetchResponse)
            self.pauses.throttled(request.source.address, reply.response.throttle_ms)
            return parts
        except QuiverlogError as error:
            if request.source.is_follower:
                self.leave_follower(request.source, request.offsets, error)
                return []
            raise
