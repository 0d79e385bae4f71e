"""Follower fetchers: replicas here whose partitions other brokers lead.

One fetcher per leader; without work the cost is per leader, not per partition. Rows are checked,
appended and confirmed with the next fetch.

Invariant: while a truncation runs (`Replica.cutting`) nothing is appended, no flush begins, and the
partition is not led here, whatever the metadata name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.core.replication.follower import Cut, Phase, Skip, Take
from quiverlog.core.replication.peer_fetcher import FetchPlan, Key, PeerFetcher
from quiverlog.errors import (
    CorruptBatch,
    CorruptLog,
    InvalidFetchSession,
    QuiverlogError,
    StorageFault,
)
from quiverlog.limits import REPLICA_FETCH_WAIT_MS
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.replication.follower import Copy, checked_rows
from quiverlog.node.replication.log_starts import FollowedStarts
from quiverlog.node.replication.move_quota import MoveQuota
from quiverlog.node.runtime.effects import Peer, Purpose
from quiverlog.node.runtime.jobs import Jobs
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import Answer, Peers
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.storage.log.jobs import TrimJob, TrimResult
from quiverlog.storage.log.truncation import TruncateJob, TruncateResult
from quiverlog.types import Now
from quiverlog.wire.replica_messages import (
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)

__all__ = ["Replication", "end_of_wait", "fetch_of"]


def fetch_of(plan: FetchPlan, node_id: int, broker_epoch: int) -> ReplicaFetchRequest:
    """Return the request; a broker that is not registered (negative epoch) sends 0, as a new
    one.
    """
    assert plan.session_id or not plan.may_wait, "what begins a session is not held back"
    return ReplicaFetchRequest(
        replica_id=node_id,
        broker_epoch=max(broker_epoch, 0),
        session_id=plan.session_id,
        session_epoch=plan.session_epoch,
        max_wait_ms=REPLICA_FETCH_WAIT_MS if plan.may_wait else 0,
        partitions=plan.entries,
        forgotten=plan.forgotten,
    )


def end_of_wait(session_id: int, node_id: int, broker_epoch: int) -> ReplicaFetchRequest:
    """Return the request that ends the wait of this session's fetch: the follower has news."""
    assert session_id > 0, "only the fetch of a session is held back"
    return ReplicaFetchRequest(
        replica_id=node_id,
        broker_epoch=max(broker_epoch, 0),
        session_id=session_id,
        ends_wait=True,
    )


_ANSWER_MS: Final = REPLICA_FETCH_WAIT_MS + 4_500
"""A leader that does not answer in this time is given up."""


class Replication:
    """The followers here: the host of their state machines.

    `cut_done` is called when a truncation has ended and the partition may be led here again.
    """

    __slots__ = (
        "_broker_epoch", "_copies", "_cut_done", "_fetchers", "_flushes", "_flushing", "_jobs",
        "_node_id", "_outbox", "_peers", "_quota", "_starts", "_to_cut", "_wakeups",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        peers: Peers,
        jobs: Jobs,
        flushes: Flushes,
        wakeups: Wakeups,
        outbox: Outbox,
        starts: FollowedStarts,
        cut_done: Callable[[Key, Now], None],
        quota: MoveQuota,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._peers = peers
        self._jobs = jobs
        self._flushes = flushes
        self._wakeups = wakeups
        self._outbox = outbox
        self._starts = starts
        self._cut_done = cut_done
        self._quota = quota
        self._copies: dict[Key, Copy] = {}
        self._fetchers: dict[int, PeerFetcher] = {}
        self._flushing: set[Key] = set()  # For whose flush their leader waits.
        self._to_cut: dict[Key, Copy] = {}  # Whose cut waits for a flush to be back.

    def follow(
        self, key: Key, replica: Replica, leader_id: int, leader_epoch: int, now: Now
    ) -> None:
        """Follow the leader of this epoch; a negative id: there is none."""
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = Copy(key, replica)
            if replica.fault is not None or replica.damage:
                copy.follower.went_offline()
        copy.follower.led_by(leader_epoch, has_leader=leader_id >= 0)
        self._quota.changed(key, copy.follower, now.mono_us)
        if leader_id != copy.leader_id:
            self._leave_leader(copy)
            copy.leader_id = leader_id
            if leader_id >= 0:
                fetcher = self._fetchers.setdefault(leader_id, PeerFetcher())
                fetcher.add(key, copy.follower, now.mono_us)
        else:
            self._mark_news(copy, now)

    def leave(self, key: Key) -> bool:
        """Stop following: the partition is led here, or goes. False: its log is in truncation."""
        copy = self._copies.get(key)
        if copy is None:
            return True
        self._leave_leader(copy)
        self._quota.forget(key)
        self._starts.drop(copy.replica)
        if copy.replica.cutting and not copy.replica.deleted:
            return False
        del self._copies[key]
        self._to_cut.pop(key, None)
        return True

    def _leave_leader(self, copy: Copy) -> None:
        self._flushing.discard(copy.key)
        if copy.leader_id >= 0:
            self._fetchers[copy.leader_id].remove(copy.key)
            copy.leader_id = -1

    def _mark_news(self, copy: Copy, now: Now) -> None:
        if copy.leader_id >= 0:
            self._fetchers[copy.leader_id].mark_news(copy.key, now.mono_us)

    def shown(self, key: Key) -> Replica | None:
        """Return the replica if readers may have its rows below its high watermark.

        Its log agrees with that of the leader of this epoch, and its disk has no fault.
        """
        copy = self._copies.get(key)
        if copy is None or copy.follower.phase is not Phase.FETCHING:
            return None
        replica = copy.replica
        assert not replica.cutting, "a copy that agrees is not being cut"
        assert not replica.state.leads
        return replica if replica.fault is None else None

    def moved(self, replica: Replica) -> None:
        copy = self._copies.get((replica.topic.topic_id, replica.name.partition))
        if copy is None:
            return
        # An urgent report ends the wait of a fetch under way.
        urgent = copy.key in self._flushing or copy.follower.has_new_start
        if not replica.flush_queued and not replica.flush_running:
            self._flushing.discard(copy.key)
        if copy.leader_id >= 0 and copy.follower.may_fetch and copy.follower.has_news:
            self._fetchers[copy.leader_id].mark_news(copy.key, 0, urgent=urgent)

    def went_offline(self, replica: Replica) -> None:
        """Stop fetching: the replica takes no writes, or its rows are damaged."""
        copy = self._copies.get((replica.topic.topic_id, replica.name.partition))
        if copy is not None:
            copy.follower.went_offline()
            if copy.leader_id >= 0:
                self._fetchers[copy.leader_id].mark_news(copy.key, 0)

    def start_failed(self, replica: Replica, now: Now) -> None:
        """Fetch again later: the start of a replica could not follow its leader's."""
        copy = self._copies.get((replica.topic.topic_id, replica.name.partition))
        if copy is not None and copy.follower.may_fetch:
            copy.follower.failed(now.mono_us)
            self._mark_news(copy, now)

    def set_move_rate(self, bytes_per_s: int, now: Now) -> None:
        for copy in self._quota.set_rate(bytes_per_s, self._copies.values(), now.mono_us):
            self._mark_news(copy, now)

    def deleted_below(self, key: Key, offset: int, now: Now) -> None:
        """Move the start of a replica without a leader: rows were deleted while this broker was
        away.
        """
        if key in self._copies:
            self._starts.follow(self._copies[key].replica, offset, offset, now)

    @property
    def is_needed(self) -> bool:
        return bool(self._fetchers)

    def next_us(self) -> int | None:
        dues = [due for one in self._fetchers.values() if (due := one.next_us()) is not None]
        dues += [one.cut_from_us for one in self._to_cut.values() if one.cut_from_us]
        return min(dues, default=None)

    def run(self, now: Now) -> None:
        for copy in list(self._to_cut.values()):
            self._begin_cut(copy, now)
        for leader_id, fetcher in self._fetchers.items():
            plan = fetcher.next_fetch(now.mono_us)
            if plan is not None:
                self._ask(leader_id, fetcher, plan, now)
                continue
            session_id = fetcher.wait_to_end()
            if session_id is not None:
                self._end_wait(leader_id, session_id, now)

    def _ask(self, leader_id: int, fetcher: PeerFetcher, plan: FetchPlan, now: Now) -> None:
        assert fetcher.in_flight
        assert leader_id != self._node_id, "a broker copies nothing from itself"
        request = fetch_of(plan, self._node_id, self._broker_epoch())
        try:
            self._peers.ask(
                Peer(leader_id, Purpose.FETCH),
                request,
                partial(self._answered, fetcher),
                now,
                timeout_ms=_ANSWER_MS,
            )
        except QuiverlogError:
            fetcher.failed(now.mono_us)

    def _end_wait(self, leader_id: int, session_id: int, now: Now) -> None:
        request = end_of_wait(session_id, self._node_id, self._broker_epoch())
        peer = Peer(leader_id, Purpose.FETCH)
        # If this gets lost, the fetch is answered when its wait ends, or is lost too: no caller
        # waits.
        with contextlib.suppress(QuiverlogError):
            self._peers.ask(peer, request, lambda *_: None, now, timeout_ms=_ANSWER_MS)

    def _answered(
        self, fetcher: PeerFetcher, answer: object, error: BaseException | None, now: Now
    ) -> None:
        if error is not None:
            fetcher.failed(now.mono_us)
            return
        assert isinstance(answer, Answer)
        response = answer.response
        assert isinstance(response, ReplicaFetchResponse)
        if response.error_code:
            if response.error_code == InvalidFetchSession.code:
                fetcher.refused(now.mono_us)
            else:
                fetcher.failed(now.mono_us)
            return
        fetcher.answered(response.session_id)
        at = 0
        for result in response.partitions:
            rows = answer.body[at : at + max(0, result.batch_bytes)]
            at += len(rows)
            action = fetcher.result(result, now.mono_us)
            copy = self._copies.get((result.topic_id, result.partition))
            if copy is not None and result.error_code == CorruptLog.code:
                self._waits_for_damaged(copy, result.error_message)
            if copy is None or action is None:
                continue
            if isinstance(action, Take):
                self._take(copy, result, rows, now)
            else:
                copy.producers = bytes(rows) if isinstance(action, Skip) else b""
                self._is_to_cut(copy, action)

    def _is_to_cut(self, copy: Copy, step: Cut | Skip) -> None:
        copy.step = step
        copy.replica.cutting = True
        self._to_cut[copy.key] = copy
        self._wakeups.changed(copy.replica)

    def _waits_for_damaged(self, copy: Copy, why: str) -> None:
        # Once per offset. Another replica that has the rows takes the leader's place; without one,
        # an operator has to give them up.
        if copy.waits_at != copy.log_end_offset:
            copy.waits_at = copy.log_end_offset
            self._outbox.log(
                "warning",
                "copies wait: rows of the leader are damaged",
                partition=str(copy.replica.name),
                why=why,
            )

    def _take(self, copy: Copy, result: ReplicaFetchResult, rows: memoryview, now: Now) -> None:
        replica = copy.replica
        assert not replica.cutting, "nothing is appended while a log is cut"
        try:
            if len(rows):
                batches = checked_rows(replica, rows)
                assert batches, "bytes that were checked are batches"
                step = copy.follower.rows_of(batches[0][0].leader_epoch)
                if step is not None:
                    self._is_to_cut(copy, step)
                    return
                replica.append_copied(batches, now, result.arrived_us)
                self._flushes.appended(replica)
                self._mark_news(copy, now)
        except StorageFault as error:
            self._flushes.declare_fault(replica, error.message, now)
            self.went_offline(replica)
            return
        except QuiverlogError as error:
            self._outbox.log(
                "warning", "copy refused", partition=str(replica.name), why=error.message
            )
            copy.follower.recheck = isinstance(error, CorruptBatch)
            copy.follower.failed(now.mono_us)
            self._mark_news(copy, now)
            return
        copy.follower.recheck = False
        if replica.state.on_leader_high_watermark(result.high_watermark):
            self._wakeups.changed(replica)
        if copy.wants_flush(result):
            self._flushing.add(copy.key)
            self._flushes.want(replica)
        self._starts.follow(replica, result.log_start_offset, result.log_start_saved, now)
        if self._quota.taken(copy.key, copy.follower, len(rows), now.mono_us):
            self._mark_news(copy, now)

    def _begin_cut(self, copy: Copy, now: Now) -> None:
        replica = copy.replica
        if now.mono_us < copy.cut_from_us:
            return
        copy.cut_from_us = 0
        # A job reads or syncs the files that a cut replaces.
        if replica.flush_running or replica.jobs_running:
            return
        if copy.follower.phase is Phase.OFFLINE:
            del self._to_cut[copy.key]
            replica.cutting = False  # The log stays as it is, for a restart to look at.
            self._cut_done(copy.key, now)
            return
        del self._to_cut[copy.key]
        assert replica.cutting
        if isinstance(copy.step, Cut):
            lost = replica.log.log_end_offset - copy.step.offset
            self._outbox.log("info", "copy cut", partition=str(replica.name), rows=max(0, lost))
        job = copy.begin_cut(now, self._outbox)
        replica.jobs_running += 1
        then = partial(self._cut_back, copy, [job])
        if job is None:
            then(None, None, now)
        else:
            self._jobs.start(job, then)

    def _cut_back(
        self,
        copy: Copy,
        jobs: list[TruncateJob | TrimJob | None],
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        if not jobs:
            return  # Called again after a bug of ours.
        job = jobs.pop()
        replica = copy.replica
        assert replica.jobs_running > 0
        assert replica.cutting
        replica.jobs_running -= 1
        if error is not None and copy.fail_cut(job, error, now):
            self._to_cut[copy.key] = copy
            self._outbox.log(
                "warning", "copy not cut yet", partition=str(replica.name), why=str(error)
            )
            return
        replica.cutting = False
        copy.step = None
        log, state = replica.log, replica.state
        if error is not None:
            self._flushes.declare_fault(replica, f"its end could not be cut: {error}", now)
            self.went_offline(replica)
        elif isinstance(job, TruncateJob):
            assert isinstance(result, TruncateResult)
            state.truncated(log.complete_truncate(job, result))
        elif job is not None:
            assert isinstance(result, TrimResult)
            removal = log.complete_trim(job, result)
            state.skipped(log.log_start_offset)
            if removal is not None:
                self._jobs.start(removal, lambda _result, _error, _now: None)
        if error is None and copy.follower.is_busy:
            copy.follower.cut()
            self._mark_news(copy, now)
            self._starts.go_on(replica, now)
        if not replica.deleted:
            self._flushes.appended(replica)
            self._cut_done(copy.key, now)
