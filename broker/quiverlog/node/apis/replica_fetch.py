"""REPLICA_FETCH: rows to followers, in the leader's order and bytes, beyond the high watermark.

The follower's report is applied first; then the partitions of its session with news are sent, or
the answer waits for some.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from quiverlog.core.replication.serving import check, record_report
from quiverlog.core.replication.sessions import FetchSession
from quiverlog.errors import (
    CorruptLog,
    InvalidRequest,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
)
from quiverlog.limits import (
    FETCH_MAX_WAIT_MS_MAX,
    REPLICA_FETCH_BYTES_MAX,
    REPLICA_FETCH_ENTRIES_MAX,
    REPLICA_FETCH_PARTITION_BYTES_MAX,
    REPLICA_FETCH_WATERMARK_WAIT_MS,
)
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.broker import Broker
from quiverlog.node.partitions.cold_reads import Loaded
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.replication.fetch_sessions import CopySessions
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.purgatory import Waiter, Waits
from quiverlog.storage.segment.reading import views_of
from quiverlog.storage.segment.reading_jobs import NotResident
from quiverlog.types import NO_EPOCH, Now
from quiverlog.wire.messages import Api
from quiverlog.wire.replica_messages import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)

__all__ = ["ReplicaFetchWaiter", "handle_replica_fetch"]

Key = tuple[bytes, int]


class ReplicaFetchWaiter(Waiter):
    """A fetch of a session. `body`, `byte_count`: rows read for its answer so far."""

    __slots__ = (
        "_is_hastened", "_loaded", "_lookup", "_request", "_sends_all", "_session", "_sessions",
        "_waits", "body", "byte_count", "loading", "response",
    )  # fmt: skip

    api: ClassVar[Api] = Api.REPLICA_FETCH

    def __init__(
        self,
        lookup: Lookup,
        waits: Waits,
        sessions: CopySessions,
        session: FetchSession,
        connection_id: int,
        request: ReplicaFetchRequest,
        deadline_us: int,
    ) -> None:
        super().__init__(connection_id, request.correlation_id, deadline_us)
        self._lookup = lookup
        self._waits = waits
        self._sessions = sessions
        self._session = session
        self._request = request
        self._loaded: dict[Key, Loaded] = {}
        # Whether the wait for lagging partitions was shortened; whether they are sent now.
        self._is_hastened = self._sends_all = False
        self.loading: set[Key] = set()
        self.response = ReplicaFetchResponse(session_id=session.session_id)
        self.response.partitions = []
        self.body: list[memoryview] = []
        self.byte_count = 0

    def look(self, now: Now) -> None:
        """Answer if there is news, or the wait is over."""
        self._take_news()
        if self.response.partitions or now.mono_us >= self.deadline_us:
            self._answer()
        elif self._session.lagging and not self._is_hastened:
            # A moved high watermark waits a little: most often rows come, and carry it.
            self._is_hastened = True
            deadline_us = now.mono_us + REPLICA_FETCH_WATERMARK_WAIT_MS * 1000
            if deadline_us < self.deadline_us:
                self._waits.hasten(self, deadline_us)

    def _take_news(self) -> None:
        session = self._session
        bytes_max = self._request.bytes_max
        if not 0 < bytes_max < REPLICA_FETCH_BYTES_MAX:
            bytes_max = REPLICA_FETCH_BYTES_MAX
        room = REPLICA_FETCH_ENTRIES_MAX - len(self.response.partitions)
        for _ in range(min(len(session.news), room)):
            key = session.next_news()
            assert key is not None
            if key in self.loading:
                continue  # Its job calls `look` when it is back.
            if self.byte_count >= bytes_max:
                session.moved(key)
                break
            self._look_at(key, session.entries[key], bytes_max - self.byte_count)

    def _look_at(self, key: Key, entry: ReplicaFetchPartition, room: int) -> None:
        assert room > 0
        lookup, session = self._lookup, self._session
        views: list[memoryview] = []
        try:
            replica = lookup.replica(*key)
        except QuiverlogError as error:
            result = ReplicaFetchResult(*key, error.code, error.message)
        else:
            result = check(replica.state, replica.log.epochs, session.broker_id, entry)
            result.log_start_saved = replica.log.start_saved
            result.flush_offset = max(replica.flush_offset, self._flush_needed(replica, entry))
            if (
                result.error_code == OffsetOutOfRange.code
                and entry.offset < result.log_start_offset
            ):
                # It continues at the log start, and lacks the producers of the rows before.
                views = [memoryview(replica.producers.snapshot_below(result.log_start_offset))]
            try:
                if not result.error_code and entry.offset < replica.log.log_end_offset:
                    limit = self._request.partition_bytes_max
                    if not 0 < limit < REPLICA_FETCH_PARTITION_BYTES_MAX:
                        limit = REPLICA_FETCH_PARTITION_BYTES_MAX
                    loaded = self._loaded.get(key)
                    if loaded is not None and loaded.error is not None:
                        raise loaded.error
                    answers = replica.log.reader.read_answers(
                        entry.offset,
                        bytes_max=min(limit, room),
                        end_offset=replica.log.log_end_offset,
                        cold_ok=False,
                        just_read=loaded.reads if loaded is not None else (),
                    )
                    views = views_of(answers)
                    end = answers[-1].next_offset if answers else entry.offset
                    assert entry.offset <= end <= replica.log.log_end_offset
                    result.arrived_us = replica.log.reader.arrived_us(entry.offset, end)
            except NotResident as cold:
                in_vain = self._load(key, replica, cold)
                if in_vain is None:
                    return
                result.error_code, result.error_message = in_vain.code, in_vain.message
            except QuiverlogError as error:
                if isinstance(error, CorruptLog):
                    lookup.corrupt_read(replica, error)
                result.error_code, result.error_message = error.code, error.message
            except OSError as error:
                lookup.unreadable(replica, error)
                result.error_code = StorageFault.code
                result.error_message = f"reading failed: {error}."
        self._add(key, result, views)

    def _flush_needed(self, replica: Replica, entry: ReplicaFetchPartition) -> int:
        """Return the offset up to which a copy must flush to join, or to end its move; 0: none."""
        leadership = replica.state.leadership
        if leadership is None or not (leadership.replaced or leadership.leaving):
            return 0
        assert leadership.followers, "the replicas that join or leave follow"
        broker_id = self._session.broker_id
        needed = max(leadership.flush_needed(broker_id), leadership.flush_wanted(broker_id))
        assert needed <= replica.log.log_end_offset, "the leader's log has these rows"
        # Asked for when the copy has the rows; by itself it would flush them much later.
        return needed if entry.offset >= needed else 0

    def _load(self, key: Key, replica: Replica, cold: NotResident) -> QuiverlogError | None:
        """Start a job that reads it; return the error after which that would be in vain."""
        assert key not in self.loading, "one job for a partition at a time"
        loaded = self._loaded.setdefault(key, Loaded())
        try:
            loaded.take(cold)
        except QuiverlogError as error:
            return error
        self.loading.add(key)
        self._lookup.cold_read(replica, cold)(partial(self._is_loaded, key, loaded))
        return None

    def _add(self, key: Key, result: ReplicaFetchResult, views: list[memoryview]) -> None:
        # With OFFSET_OUT_OF_RANGE the body is a snapshot of producers, not rows.
        assert not views or result.error_code in (0, OffsetOutOfRange.code), "rows or an error"
        sent = (
            result.high_watermark,
            result.log_start_offset,
            result.log_start_saved,
            result.flush_offset,
            result.epoch_start_offset,
        )
        session = self._session
        if not views and not result.error_code:
            if session.sent.get(key) == sent:
                return
            if not self._sends_all and session.may_lag(key, sent):
                session.lagging[key] = None
                return
        session.sent[key] = sent
        result.batch_bytes = sum(map(len, views))
        self.byte_count += result.batch_bytes
        self.body += views
        self.response.partitions.append(result)

    def _is_loaded(
        self, key: Key, loaded: Loaded, _result: object, error: BaseException | None, now: Now
    ) -> None:
        assert key in self.loading
        self.loading.remove(key)
        loaded.failed(error, self._lookup)
        self._session.moved(key)
        if not self.done:
            self.look(now)
        else:
            self._sessions.look_again(self._session)

    def wake(self, indexes: object, now: Now) -> None:
        self.look(now)

    def expire(self, now: Now) -> None:
        self._answer()

    def _answer(self) -> None:
        assert not self.done
        self._sends_all = True
        if self._session.lag_no_more():
            self._take_news()
        self._waits.answer(self, self.response, self.body)

    def release(self) -> None:
        self._sessions.release(self._session, self)


def handle_replica_fetch(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, ReplicaFetchRequest)
    if len(request.partitions) > REPLICA_FETCH_ENTRIES_MAX:
        raise InvalidRequest(
            f"{len(request.partitions)} partitions in a request, allowed are"
            f" {REPLICA_FETCH_ENTRIES_MAX}."
        )
    for entry in request.partitions:
        if entry.offset < 0 or entry.flushed_offset < 0 or entry.log_start_offset < 0:
            raise InvalidRequest(f"partition {entry.partition}: an offset is negative.")
        if entry.saved_epoch < NO_EPOCH:
            raise InvalidRequest(
                f"partition {entry.partition}: epoch {entry.saved_epoch} is below {NO_EPOCH}."
            )
    if request.broker_epoch < 0:
        raise InvalidRequest(f"broker epoch {request.broker_epoch} is negative.")
    broker.registered.check_life(request.replica_id, request.broker_epoch)
    if request.ends_wait:
        broker.copy_sessions.end_wait(request.replica_id, request.session_id, now)
        broker.outbox.respond(
            event.connection_id,
            request.correlation_id,
            ReplicaFetchResponse(session_id=request.session_id),
        )
        return
    # First: the fetch that is about to wait may move the high watermark.
    session = _take_in(broker, request, now)
    wait_ms = min(max(request.max_wait_ms, 0), FETCH_MAX_WAIT_MS_MAX)
    if not broker.purgatory.may_park(event.connection_id, 1):
        wait_ms = 0
    waiter = ReplicaFetchWaiter(
        broker.lookup,
        broker.waits,
        broker.copy_sessions,
        session,
        event.connection_id,
        request,
        now.mono_us + wait_ms * 1000,
    )
    before = broker.copy_sessions.park(session, waiter)
    if before is not None and not before.done:
        before.expire(now)
        broker.copy_sessions.park(session, waiter)
    broker.purgatory.park(waiter)
    waiter.look(now)


def _take_in(broker: Broker, request: ReplicaFetchRequest, now: Now) -> FetchSession:
    session, ended = broker.copy_sessions.sessions.request(
        request.replica_id,
        request.broker_epoch,
        request.session_id,
        request.session_epoch,
        now.mono_us,
    )
    assert session.broker_id == request.replica_id
    assert ended is not session
    if ended is not None:
        _end_following(broker, ended, list(ended.entries))
    broker.copy_sessions.sessions.check_room(session, request.partitions)
    _end_following(broker, session, session.take(request.partitions, request.forgotten))
    for entry in request.partitions:
        replica = broker.lookup.find_leader(entry.topic_id, entry.partition)
        if replica is None:
            continue
        state = replica.state
        if entry.recheck:  # The follower got bytes with a bad checksum from here.
            replica.log.distrust(entry.offset)
        if record_report(state, replica.log.epochs, session, entry, broker.registered, now.mono_us):
            broker.wakeups.changed(replica)
        broker.in_sync_changes.follower_fetched(replica, session.broker_id)
        if broker.copied_starts.is_needed:
            broker.copied_starts.look(replica, now)
        if replica.answers:
            replica.answers.advance(state, now)
    return session


def _end_following(broker: Broker, session: FetchSession, keys: list[Key]) -> None:
    for key in keys:
        replica = broker.lookup.find_leader(*key)
        if replica is not None and replica.state.leadership is not None:
            replica.state.leadership.session_ended(session.broker_id)
