"""One leadership of a partition: in-sync replicas and replicated offsets, for one leader epoch.

Owns the in-sync set (in_sync.py), the followers' progress (progress.py), and these rules (numbers
as in docs/replication-rules.md):

- Rows are replicated when all of `maximal` have them, and all followers about to join: otherwise a
  follower that joins would always be a step behind (5).
- With fewer than `min_in_sync` in sync, nothing more becomes replicated (6).
- A follower may join when it is not fenced or stopping, asks under its registered broker epoch and
  within the lag time, has all rows that are replicated or of earlier leaders, and lacks the deleted
  ones (8).
- A follower that lacked rows for the lag time leaves; an election restarts its clock (9).

A partition that moves: replicas that leave count until the others hold on disk what producers were
promised on `min_in_sync` disks; then the leader proposes to end the move (reassignment.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quiverlog.core.partition.agreement import Agreement
from quiverlog.core.partition.in_sync import InSync, Proposal
from quiverlog.core.partition.progress import (
    NEVER_FETCHED_EPOCH,
    NEVER_US,
    FollowerProgress,
    FollowerReport,
    FollowerSession,
)

__all__ = ["Brokers", "FollowerReport", "Leadership"]


class Brokers(Protocol):
    def fit_epoch(self, broker_id: int) -> int | None:
        """Return the registered broker epoch; None for a fenced, stopping or unknown broker."""


class Leadership:
    __slots__ = (
        "_asked_epochs",
        "_holding",
        "_joining",
        "_lag_max_us",
        "_node_id",
        "_promised_offset",
        "_promised_until_change",
        "adding",
        "agreement",
        "epoch_start_offset",
        "followers",
        "in_sync",
        "is_single",
        "leader_epoch",
        "leaving",
        "min_in_sync",
        "replaced",
    )

    def __init__(
        self,
        node_id: int,
        leader_epoch: int,
        agreement: Agreement,
        replicas: Iterable[int],
        in_sync: InSync,
        *,
        min_in_sync: int,
        lag_max_us: int,
        now_us: int,
    ) -> None:
        assert leader_epoch >= 0
        assert min_in_sync >= 1, "the leader counts"
        assert lag_max_us >= 0
        self._node_id = node_id
        self._lag_max_us = lag_max_us
        self.leader_epoch = leader_epoch
        self.agreement = agreement
        self.epoch_start_offset = agreement.start_offset
        self.in_sync = in_sync
        self.min_in_sync = min_in_sync
        self.followers: dict[int, FollowerProgress] = {}
        # The broker epochs of the members that were proposed last.
        self._asked_epochs: tuple[int, ...] = ()
        # Followers about to join as of the last look: fit and caught up.
        self._joining: set[int] = set()
        # Followers whose rows count: those in `maximal` and those about to join.
        self._holding: tuple[FollowerProgress, ...] = ()
        self.adding: frozenset[int] = frozenset()
        self.leaving: frozenset[int] = frozenset()
        # Rows below it may have been promised on disks, by this leader or an earlier one.
        self._promised_offset = self._promised_until_change = agreement.start_offset
        self.replaced: frozenset[int] = frozenset()
        self.is_single = False
        self.set_replicas(replicas, now_us)

    # --- how safe rows are ---------------------------------------------------------------------
    @property
    def is_replicated(self) -> bool:
        return bool(self.followers)

    @property
    def is_under_min(self) -> bool:
        return len(self.in_sync.committed) < self.min_in_sync

    def replicated_offset(self, log_end_offset: int) -> int:
        """0 while too few are in sync, or some do not show that they have all rows of earlier
        leaders."""
        if self.is_under_min:
            return 0
        if not self.agreement.is_reached(log_end_offset, self._holding):
            return 0
        end = log_end_offset
        for follower in self._holding:
            if follower.log_end_offset < end:
                end = follower.log_end_offset
        assert 0 <= end <= log_end_offset
        return end

    def flushed_offset(self, leader_flushed_offset: int) -> int:
        """Return the end of the rows on the disks of `min_in_sync` certain members.

        While a partition moves, replicas that leave stop counting once those that are added are in
        sync.
        """
        certain, needed = self.in_sync.certain, self.min_in_sync
        if self._stay_alone:
            certain, needed = certain - self.leaving, self._min_to_stay
        flushed = [leader_flushed_offset] if self._node_id in certain else []
        flushed += [f.flushed_offset for f in self.followers.values() if f.broker_id in certain]
        assert len(flushed) <= len(certain), "each counts once"
        assert needed >= 1
        if len(flushed) < needed:
            return 0
        flushed.sort(reverse=True)
        offset = flushed[needed - 1]
        self._promised_offset = max(self._promised_offset, offset)
        return offset

    @property
    def _stay_alone(self) -> bool:
        if not self.leaving and not self.adding:
            return False
        committed = self.in_sync.committed
        return self.adding <= committed and len(committed - self.leaving) >= self._min_to_stay

    @property
    def _min_to_stay(self) -> int:
        stay_count = 1 + len(self.followers) - len(self.leaving)
        assert stay_count >= 1, "at least one replica holds the partition"
        return min(self.min_in_sync, stay_count)

    @property
    def _leaving_have_fetched(self) -> bool:
        # An earlier leader among the leaving members that has not fetched under this epoch could
        # answer with an outdated end, and no election would wait for it.
        leaving = self.leaving & self.in_sync.committed
        return all(f.has_fetched for f in self.followers.values() if f.broker_id in leaving)

    # --- what happened -------------------------------------------------------------------------
    def grows(self, log_end_offset: int) -> None:
        for follower in self.followers.values():
            follower.leader_grows(log_end_offset)

    def fetched(
        self,
        report: FollowerReport,
        session: FollowerSession | None,
        log_end_offset: int,
        brokers: Brokers,
        now_us: int,
    ) -> None:
        assert report.broker_id != self._node_id, "a leader copies from no other replica"
        follower = self.followers[report.broker_id]
        follower.session = session
        follower.fetched(report, log_end_offset, now_us)
        if follower.broker_id not in self.in_sync.maximal:
            self._look(follower, log_end_offset, brokers, now_us)

    def session_ended(self, broker_id: int) -> None:
        follower = self.followers.get(broker_id)
        if follower is not None:
            follower.session = None

    def set_replicas(self, replicas: Iterable[int], now_us: int) -> None:
        known = self.followers
        self.followers = {}
        for broker_id in replicas:
            if broker_id != self._node_id:
                # Lag counts from the election on: a follower that had no time to fetch is not out
                # of sync.
                is_in_sync = broker_id in self.in_sync.committed
                caught_up_us = now_us if is_in_sync else NEVER_US
                self.followers[broker_id] = known.get(broker_id) or FollowerProgress(
                    broker_id, caught_up_us, now_us
                )
        self._joining &= self.followers.keys()
        assert self._node_id not in self.followers
        self._count()

    def move(self, adding: Iterable[int], leaving: Iterable[int]) -> None:
        """Set which replicas a move adds and removes.

        A replica whose addition was cancelled is only in `leaving`.
        """
        self.adding, self.leaving = frozenset(adding), frozenset(leaving)
        assert not self.adding & self.leaving

    # --- the in-sync set -----------------------------------------------------------------------
    def on_in_sync_set(self, partition_epoch: int, members: Iterable[int], now_us: int) -> bool:
        before = self.in_sync.committed
        changed = self.in_sync.take_over(partition_epoch, members)
        if changed:
            # Each later row lies on enough disks of those in the metadata, and no disk is lost
            # without a change there (docs/adr/0044).
            self._promised_until_change = self._promised_offset
        for broker_id in self.in_sync.committed - before:
            # It may join with rows still missing, and gets the full lag time to catch up.
            if broker_id in self.followers:
                follower = self.followers[broker_id]
                follower.caught_up_us = max(follower.caught_up_us, now_us)
        self._joining -= self.in_sync.maximal
        self._count()
        assert self.in_sync.partition_epoch >= partition_epoch
        return changed

    def applied(self, partition_epoch: int, members: Iterable[int], now_us: int) -> None:
        if not self.on_in_sync_set(partition_epoch, members, now_us):
            self.in_sync.nothing_changed()
            self._count()

    def refused(self, error_code: int) -> None:
        self.in_sync.refused(error_code)
        self._count()

    def look_at_joining(self, log_end_offset: int, brokers: Brokers, now_us: int) -> None:
        for broker_id in list(self._joining):
            self._look(self.followers[broker_id], log_end_offset, brokers, now_us)

    def propose(
        self,
        log_end_offset: int,
        high_watermark: int,
        brokers: Brokers,
        now_us: int,
        *,
        flushed_offset: int = 0,
        deleted_below: int = 0,
    ) -> Proposal | None:
        in_sync = self.in_sync
        if in_sync.asking or in_sync.outdated:
            return None
        members = {self._node_id}
        for follower in self.followers.values():
            if follower.broker_id in in_sync.committed:
                stays = follower.is_caught_up(log_end_offset, self._lag_max_us, now_us)
            else:
                # Deleted rows never come back: a follower that joins, and may lead next, has given
                # them up, too.
                stays = follower.log_start_offset >= deleted_below and self._may_join(
                    follower, high_watermark, brokers, now_us
                )
            if stays:
                members.add(follower.broker_id)
        # Only with unchanged members: joining and leaving are proposals of their own.
        has_arrived = (
            members == in_sync.committed
            and self._stay_alone
            and self._leaving_have_fetched
            and self.flushed_offset(flushed_offset) >= self._promised_offset
        )
        if members == in_sync.committed and not in_sync.unsettled and not has_arrived:
            return None
        proposal = in_sync.propose(members)
        assert in_sync.maximal >= members, "what is asked for may hold from now on"
        self._joining -= in_sync.maximal
        self._count()
        # With the epochs that members reported: the controller finds those that restarted since.
        epochs = {f.broker_id: f.broker_epoch for f in self.followers.values()}
        self._asked_epochs = tuple(epochs.get(one, NEVER_FETCHED_EPOCH) for one in proposal.members)
        return proposal._replace(ends_move=has_arrived, broker_epochs=self._asked_epochs)

    def propose_again(self) -> Proposal:
        proposal = self.in_sync.again()
        assert self._node_id in proposal.members, "a leader is in sync"
        assert len(proposal.members) == len(self._asked_epochs)
        # A member that restarted since may lack the rows on which the proposal rests.
        return proposal._replace(broker_epochs=self._asked_epochs)

    def deadline_us(self, log_end_offset: int) -> int | None:
        earliest = None
        for follower in self._holding:
            if follower.log_end_offset < log_end_offset or not follower.has_fetched:
                due_us = follower.caught_up_us + self._lag_max_us + 1
                if earliest is None or due_us < earliest:
                    earliest = due_us
        return earliest

    def _may_join(
        self, follower: FollowerProgress, high_watermark: int, brokers: Brokers, now_us: int
    ) -> bool:
        end = follower.log_end_offset
        assert follower.broker_id not in self.in_sync.committed
        assert follower.last_fetch_us <= now_us
        has_rows = end >= high_watermark and end >= self.epoch_start_offset
        has_rows = has_rows and self.agreement.is_shown_by(follower)
        if follower.flushed_offset < self.flush_needed(follower.broker_id):
            return False
        # A silent one may just have left, and would leave again after the lag time.
        asks = now_us - follower.last_fetch_us <= self._lag_max_us
        return has_rows and asks and self._is_fit(follower, brokers)

    def flush_needed(self, broker_id: int) -> int:
        """Return up to where an out-of-sync follower must have flushed before it may join."""
        assert self._promised_until_change >= self.epoch_start_offset
        # A replaced log starts over, and elections after a power failure count on disks.
        return self._promised_until_change if broker_id in self.replaced else 0

    def flush_wanted(self, broker_id: int) -> int:
        stays = bool(self.leaving) and broker_id not in self.leaving
        return self._promised_offset if stays else 0

    @staticmethod
    def _is_fit(follower: FollowerProgress, brokers: Brokers) -> bool:
        return (
            follower.has_fetched and brokers.fit_epoch(follower.broker_id) == follower.broker_epoch
        )

    def _look(
        self,
        follower: FollowerProgress,
        log_end_offset: int,
        brokers: Brokers,
        now_us: int,
    ) -> None:
        assert self.followers[follower.broker_id] is follower
        is_joining = (
            follower.broker_id not in self.in_sync.maximal
            and follower.is_caught_up(log_end_offset, self._lag_max_us, now_us)
            and self._is_fit(follower, brokers)
        )
        if is_joining != (follower.broker_id in self._joining):
            # It holds the high watermark back from now on: otherwise it would never catch up with a
            # busy leader.
            if is_joining:
                self._joining.add(follower.broker_id)
            else:
                self._joining.discard(follower.broker_id)
            self._count()

    def _count(self) -> None:
        assert self._joining <= self.followers.keys()
        assert self._joining.isdisjoint(self.in_sync.maximal), "a member cannot join"
        counted = self.in_sync.maximal | self._joining
        self._holding = tuple(f for f in self.followers.values() if f.broker_id in counted)
