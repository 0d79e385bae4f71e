"""In-sync sets of partitions led here: when to look at one, and proposals to the controller.

A partition is looked at when a follower out of sync has fetched, when a follower in sync has been
behind for the lag time, when the metadata of it or of brokers changed, after an answer to its
proposal, and while it moves to other brokers, as its offsets change. One request is under way at a
time; an unanswered proposal is sent again unchanged.

Partitions whose followers have all rows cost nothing: only the others have a deadline in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from quiverlog.core.partition.in_sync import (
    PROVES_NOTHING_CHANGED,
    SETTLED_BY_METADATA,
    Proposal,
)
from quiverlog.core.partition.leadership import Brokers, Leadership
from quiverlog.errors import FencedLeaderEpoch, QuiverlogError
from quiverlog.limits import ALTER_PARTITION_ENTRIES_MAX, IN_SYNC_RETRY_MS
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.types import Now
from quiverlog.wire.replica_messages import (
    AlterPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
)

__all__ = ["InSyncChanges"]

_LOOKS_PER_CALL: Final = ALTER_PARTITION_ENTRIES_MAX
"""Partitions looked at in one call of the node, 5 to 10 us each: as many as fill a request.
Smaller requests mean more quorum commits, and a returning broker waits for each.
"""
_RETRY_US: Final = IN_SYNC_RETRY_MS * 1000

AskController = Callable[[AlterPartitionRequest, Then, Now], None]
"""Sends to the controller; the callback gets an AlterPartitionResponse, or an error."""


class _Asked(NamedTuple):
    replica: Replica
    leadership: Leadership
    proposal: Proposal


class InSyncChanges:
    """Proposes changes of in-sync sets, one request at a time.

    Args:
        broker_epoch: returns the epoch of this broker's registration; negative: not registered.
    """

    __slots__ = (
        "_ask",
        "_broker_epoch",
        "_brokers",
        "_deadlines",
        "_due",
        "_in_flight",
        "_logged",
        "_looks",
        "_metrics",
        "_node_id",
        "_numbers",
        "_outbox",
        "_wakeups",
        "_wanting",
    )

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        brokers: Brokers,
        ask: AskController,
        wakeups: Wakeups,
        outbox: Outbox,
        metrics: NodeMetrics,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._brokers = brokers
        self._ask = ask
        self._wakeups = wakeups
        self._outbox = outbox
        self._metrics = metrics
        # Looked at in the next call.
        self._looks: dict[Replica, None] = {}
        # Looked at when the request under way is answered.
        self._wanting: dict[Replica, None] = {}
        # The next deadline of each partition, and (moment, number, partition) in a heap. A heap
        # entry other than the one in `_due` is out of date: a heap has no cheap removal.
        self._due: dict[Replica, int] = {}
        self._deadlines: list[tuple[int, int, Replica]] = []
        self._numbers = count()
        self._in_flight: list[_Asked] | None = None
        # The in-sync set when last looked at.
        self._logged: dict[Replica, frozenset[int]] = {}

    def look_at(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            leadership = replica.state.leadership
            if leadership is not None and leadership.followers:
                self._looks[replica] = None

    def follower_fetched(self, replica: Replica, broker_id: int) -> None:
        """Look if the follower that fetched may join, or a move may end."""
        leadership = replica.state.leadership
        if leadership is not None and (
            leadership.leaving or broker_id not in leadership.in_sync.committed
        ):
            self._looks[replica] = None

    def grown(self, replica: Replica) -> None:
        """Set a deadline for a partition that moved: some followers may be behind now.

        Called also when a partition is deleted, as for every waiter.
        """
        if replica.deleted:
            return
        leadership = replica.state.leadership
        assert leadership is not None
        if leadership.leaving:
            self._looks[replica] = None  # What the leader has flushed may end the move.
        if replica not in self._due and replica not in self._looks:
            assert leadership.followers, "only the leader is in sync"
            if not leadership.in_sync.asking:
                self._set_deadline(replica, leadership.deadline_us(replica.state.log_end_offset))

    def drop(self, replica: Replica) -> None:
        self._looks.pop(replica, None)
        self._wanting.pop(replica, None)
        self._due.pop(replica, None)
        self._logged.pop(replica, None)

    @property
    def is_needed(self) -> bool:
        return bool(self._looks or self._deadlines)

    def next_us(self) -> int | None:
        if self._looks:
            return 0
        deadlines = self._deadlines
        while deadlines and self._due.get(deadlines[0][2]) != deadlines[0][0]:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _set_deadline(self, replica: Replica, due_us: int | None) -> None:
        assert not replica.deleted
        if due_us is None:
            self._due.pop(replica, None)
            return
        known = self._due.get(replica)
        if known != due_us:
            self._due[replica] = due_us
            heapq.heappush(self._deadlines, (due_us, next(self._numbers), replica))

    def run(self, now: Now) -> None:
        self._expire(now)
        asked: list[_Asked] = []
        assert len(self._due) <= len(self._deadlines), "a deadline is found by its moment"
        for replica in list(self._looks)[:_LOOKS_PER_CALL]:
            del self._looks[replica]
            self._look(replica, asked, now)
        if asked:
            self._send(asked, now)

    def _expire(self, now: Now) -> None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now.mono_us:
            due_us, _, replica = heapq.heappop(deadlines)
            if self._due.get(replica) == due_us:
                del self._due[replica]
                self._looks[replica] = None

    def _look(self, replica: Replica, asked: list[_Asked], now: Now) -> None:
        state = replica.state
        leadership = state.leadership
        if leadership is None or replica.deleted or not leadership.followers:
            self.drop(replica)
            return
        self._log_change(replica, leadership.in_sync.committed)
        end = state.log_end_offset
        leadership.look_at_joining(end, self._brokers, now.mono_us)
        in_sync = leadership.in_sync
        assert not in_sync.in_flight or self._in_flight is not None
        if self._in_flight is not None or len(asked) >= ALTER_PARTITION_ENTRIES_MAX:
            self._wanting[replica] = None
        elif not in_sync.asking:
            proposal = leadership.propose(
                end,
                state.high_watermark,
                self._brokers,
                now.mono_us,
                flushed_offset=state.flushed_offset,
                deleted_below=replica.log.start_saved,
            )
            if proposal is not None:
                asked.append(_Asked(replica, leadership, proposal))
            elif not in_sync.outdated:
                self._set_deadline(replica, leadership.deadline_us(end))
        elif not in_sync.in_flight:
            asked.append(_Asked(replica, leadership, leadership.propose_again()))
        self._moved(replica, now)

    def _moved(self, replica: Replica, now: Now) -> None:
        """Advance the high watermark: the set of replicas that count may have changed."""
        if replica.state.followers_moved():
            self._wakeups.changed(replica)
        replica.look_at_answers(now)

    def _send(self, asked: list[_Asked], now: Now) -> None:
        assert self._in_flight is None, "one request is under way"
        assert len(asked) <= ALTER_PARTITION_ENTRIES_MAX
        self._in_flight = asked
        request = AlterPartitionRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        request.partitions = [_entry(one) for one in asked]
        then = partial(self._answered, asked)
        try:
            self._ask(request, then, now)
        except QuiverlogError as error:
            then(None, error, now)

    def _answered(
        self, asked: list[_Asked], answer: object, error: BaseException | None, now: Now
    ) -> None:
        if self._in_flight is not asked:
            return  # Called again after a bug of ours.
        self._in_flight = None
        results: list[AlterPartitionResult] = []
        if error is None:
            assert isinstance(answer, AlterPartitionResponse)
            if not answer.error_code:
                results = answer.partitions
        assert len(asked) <= ALTER_PARTITION_ENTRIES_MAX
        known = {(result.topic_id, result.partition): result for result in results}
        for one in asked:
            key = (one.replica.topic.topic_id, one.replica.name.partition)
            self._settle(one, known.get(key), now)
        assert self._in_flight is None
        self._looks.update(self._wanting)
        self._wanting.clear()

    def _settle(self, asked: _Asked, result: AlterPartitionResult | None, now: Now) -> None:
        replica, leadership, _ = asked
        in_sync = leadership.in_sync
        if replica.state.leadership is not leadership or replica.deleted:
            return
        if not in_sync.in_flight:
            return  # The metadata were faster.
        assert in_sync.asking, "what is in flight was proposed"
        assert result is None or result.partition == replica.name.partition
        code = 0 if result is None else result.error_code
        if result is not None and not code and result.leader_epoch != leadership.leader_epoch:
            code = FencedLeaderEpoch.code  # It was decided, and another broker leads since.
        if code in SETTLED_BY_METADATA:
            leadership.refused(code)
        elif result is None or code:
            # A decision that failed half way may still commit: only these errors prove it did not.
            if code in PROVES_NOTHING_CHANGED:
                leadership.refused(code)
            else:
                in_sync.unanswered()
            self._set_deadline(replica, now.mono_us + _RETRY_US)
        else:
            assert result.leader_epoch == leadership.leader_epoch
            leadership.applied(result.partition_epoch, result.in_sync_replicas, now.mono_us)
            self._looks[replica] = None
        self._moved(replica, now)

    def _log_change(self, replica: Replica, after: frozenset[int]) -> None:
        """Log and count brokers that left or joined, also by the controller's own decision."""
        before = self._logged.get(replica)
        self._logged[replica] = after
        if before is not None and after != before:
            self._metrics.in_sync_shrinks += bool(before - after)
            self._metrics.in_sync_expands += bool(after - before)
            self._outbox.log(
                "info",
                "in-sync replicas changed",
                partition=str(replica.name),
                left=sorted(before - after),
                joined=sorted(after - before),
            )


def _entry(asked: _Asked) -> AlterPartition:
    proposal = asked.proposal
    assert len(proposal.members) == len(proposal.broker_epochs)
    return AlterPartition(
        asked.replica.topic.topic_id,
        asked.replica.name.partition,
        proposal.leader_epoch,
        proposal.partition_epoch,
        list(proposal.members),
        list(proposal.broker_epochs),
        proposal.ends_move,
    )
