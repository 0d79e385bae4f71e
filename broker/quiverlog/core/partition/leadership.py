"""One leadership of a partition: who is in sync, and how far rows are safe on how many brokers.

Owns the in-sync replicas (in_sync.py) and the followers' progress (progress.py) for as long as one
leader epoch lasts, and five rules (numbers as in docs/replication-rules.md):

- Rows are replicated when all of `maximal` have them, and those, too, that are about to join: fit,
  and caught up within the lag time. Else a broker that joins would always be a step behind (5).
- While fewer than `min_in_sync` are in sync nothing more becomes replicated (6).
- In sync may be who is alive and not on its way out, asks with the broker epoch that is registered,
  has done so within the lag time, and has all that is known to be replicated and all of earlier
  leaders (8).
- One whose log was replaced (another disk, or copied again) counts from then on, where logs are
  asked for after a power failure: so it has on its disk what was promised to be on disks. That is
  what had been promised when the metadata changed last. Of later rows each lies on enough disks of
  those that the metadata know, and no disk is lost without a change of theirs (docs/adr/0044).
- Rows of earlier leaders wait until the logs that have them say so (agreement.py).
- Out of sync is who has not had all rows for the lag time (9). An election gives those in sync a
  fresh start: what they said was said to another.

While the partition moves to other replicas, those that leave it count until those that stay have on
their disks what producers were promised to find on `min_in_sync` of them. Then this is proposed,
once more with the members that hold, and the controller ends the move (reassignment.py). Before
that those that leave have asked under this epoch: who led, and did not know it yet, would tell an
end that is no longer the end, and nobody would wait for it any more.

Must not know: logs, requests, how proposals travel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quiverlog.core.partition.agreement import Agreement
from quiverlog.core.partition.in_sync import InSync, Proposal
from quiverlog.core.partition.progress import (
    NEVER_US,
    UNHEARD_EPOCH,
    FollowerProgress,
    Heard,
    Said,
)

__all__ = ["Brokers", "Leadership", "Said"]


class Brokers(Protocol):
    """What the metadata say of brokers."""

    def fit_epoch(self, broker_id: int) -> int | None:
        """The registered broker epoch; None while it is fenced, on its way out, or not known."""


class Leadership:
    """See the module docstring.

    Args:
        node_id: the leader, which is here.
        replicas: all of them, in sync or not.
        agreement: whether rows of earlier leaders may be replicated.
    """

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
        # The lives of the members that were proposed last.
        self._asked_epochs: tuple[int, ...] = ()
        # Followers that are about to join: fit and caught up, when looked at last.
        self._joining: set[int] = set()
        # Whose rows count: `maximal` and those about to join, without the leader.
        self._holding: tuple[FollowerProgress, ...] = ()
        self.adding: frozenset[int] = frozenset()
        self.leaving: frozenset[int] = frozenset()
        # Rows below it may have been promised on disks, by this leader or one before.
        self._promised_offset = self._promised_until_change = agreement.start_offset
        self.replaced: frozenset[int] = frozenset()
        self.is_single = False
        self.set_replicas(replicas, now_us)

    # --- how safe rows are ---------------------------------------------------------------------
    @property
    def is_replicated(self) -> bool:
        """True when there is another replica than the leader."""
        return bool(self.followers)

    @property
    def is_under_min(self) -> bool:
        """True while fewer are in sync than rows have to lie on to be replicated."""
        return len(self.in_sync.committed) < self.min_in_sync

    def replicated_offset(self, log_end_offset: int) -> int:
        """Rows below it are on all that count; 0 while too few are in sync, or do not show that
        they have all rows of earlier leaders."""
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
        """Rows below it are on the disks of `min_in_sync` that are in sync in any case.

        While a partition moves, those that leave count no more when those that are added do.
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
        """True when those that stay are enough without those that leave."""
        if not self.leaving and not self.adding:
            return False
        committed = self.in_sync.committed
        return self.adding <= committed and len(committed - self.leaving) >= self._min_to_stay

    @property
    def _min_to_stay(self) -> int:
        """So many of those that stay are enough, where fewer than the minimum are to stay."""
        stay_count = 1 + len(self.followers) - len(self.leaving)
        assert stay_count >= 1, "somebody holds the partition"
        return min(self.min_in_sync, stay_count)

    @property
    def _have_heard(self) -> bool:
        """True when those in sync that leave know of this leader epoch."""
        leaving = self.leaving & self.in_sync.committed
        return all(f.is_heard for f in self.followers.values() if f.broker_id in leaving)

    # --- what happened -------------------------------------------------------------------------
    def grows(self, log_end_offset: int) -> None:
        """Rows are about to be appended after this end."""
        for follower in self.followers.values():
            follower.leader_grows(log_end_offset)

    def fetched(
        self,
        said: Said,
        heard: Heard | None,
        log_end_offset: int,
        brokers: Brokers,
        now_us: int,
    ) -> None:
        """A follower whose log agrees with the leader's up to its end asks for more.

        Args:
            heard: of its session, as long as the partition is in it.
        """
        assert said.broker_id != self._node_id, "a leader copies from nobody"
        follower = self.followers[said.broker_id]
        follower.heard = heard
        follower.fetched(said, log_end_offset, now_us)
        if follower.broker_id not in self.in_sync.maximal:
            self._look(follower, log_end_offset, brokers, now_us)

    def forgotten(self, broker_id: int) -> None:
        """A follower's session has ended, or is without this partition from now on."""
        follower = self.followers.get(broker_id)
        if follower is not None:
            follower.heard = None

    def set_replicas(self, replicas: Iterable[int], now_us: int) -> None:
        """These are the replicas now; what is known of those that stay is kept."""
        known = self.followers
        self.followers = {}
        for broker_id in replicas:
            if broker_id != self._node_id:
                # Lag is counted from the election on: nobody is out of sync before having asked.
                is_in_sync = broker_id in self.in_sync.committed
                caught_up_us = now_us if is_in_sync else NEVER_US
                self.followers[broker_id] = known.get(broker_id) or FollowerProgress(
                    broker_id, caught_up_us, now_us
                )
        self._joining &= self.followers.keys()
        assert self._node_id not in self.followers
        self._count()

    def move(self, adding: Iterable[int], leaving: Iterable[int]) -> None:
        """The partition moves: these are to begin and to end holding it; none: it does not move.

        Who was to begin, and is given up, is only to end.
        """
        self.adding, self.leaving = frozenset(adding), frozenset(leaving)
        assert not self.adding & self.leaving

    # --- who is in sync ------------------------------------------------------------------------
    def holds(self, partition_epoch: int, members: Iterable[int], now_us: int) -> bool:
        """The controller says who is in sync. False when that was known."""
        before = self.in_sync.committed
        changed = self.in_sync.holds(partition_epoch, members)
        if changed:
            self._promised_until_change = self._promised_offset
        for broker_id in self.in_sync.committed - before:
            # It may join with rows still missing, and has as long as others to come up.
            if broker_id in self.followers:
                follower = self.followers[broker_id]
                follower.caught_up_us = max(follower.caught_up_us, now_us)
        self._joining -= self.in_sync.maximal
        self._count()
        assert self.in_sync.partition_epoch >= partition_epoch
        return changed

    def applied(self, partition_epoch: int, members: Iterable[int], now_us: int) -> None:
        """The controller has answered that this holds now."""
        if not self.holds(partition_epoch, members, now_us):
            self.in_sync.nothing_changed()
            self._count()

    def refused(self, error_code: int) -> None:
        """The controller has refused what was proposed."""
        self.in_sync.refused(error_code)
        self._count()

    def look_at_joining(self, log_end_offset: int, brokers: Brokers, now_us: int) -> None:
        """A moment that `deadline_us` named has come: some may not be about to join any more."""
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
        """What to ask the controller for, if anything is to change and nothing is asked yet.

        Args:
            flushed_offset: of the leader, which matters while the partition moves.
            deleted_below: rows below it never come back, so who joins has given them up for good:
                it may lead next.
        """
        in_sync = self.in_sync
        if in_sync.asking or in_sync.outdated:
            return None
        members = {self._node_id}
        for follower in self.followers.values():
            if follower.broker_id in in_sync.committed:
                stays = follower.is_caught_up(log_end_offset, self._lag_max_us, now_us)
            else:
                stays = follower.log_start_offset >= deleted_below and self._may_join(
                    follower, high_watermark, brokers, now_us
                )
            if stays:
                members.add(follower.broker_id)
        # With the members that hold: who comes or goes does so on its own.
        has_arrived = (
            members == in_sync.committed
            and self._stay_alone
            and self._have_heard
            and self.flushed_offset(flushed_offset) >= self._promised_offset
        )
        if members == in_sync.committed and not in_sync.unsettled and not has_arrived:
            return None
        proposal = in_sync.propose(members)
        assert in_sync.maximal >= members, "what is asked for may hold from now on"
        self._joining -= in_sync.maximal
        self._count()
        # With what the members have said: the controller knows better who was started anew.
        heard = {f.broker_id: f.broker_epoch for f in self.followers.values()}
        self._asked_epochs = tuple(heard.get(one, UNHEARD_EPOCH) for one in proposal.members)
        return proposal._replace(ends_move=has_arrived, broker_epochs=self._asked_epochs)

    def propose_again(self) -> Proposal:
        """What was proposed and is not settled, once more.

        Of the same lives: who was started anew since may lack the rows that it was asked for with.
        """
        proposal = self.in_sync.again()
        assert self._node_id in proposal.members, "a leader is in sync"
        assert len(proposal.members) == len(self._asked_epochs)
        return proposal._replace(broker_epochs=self._asked_epochs)

    def deadline_us(self, log_end_offset: int) -> int | None:
        """When somebody who is behind will have been so for too long; None: nobody is behind."""
        earliest = None
        for follower in self._holding:
            if follower.log_end_offset < log_end_offset or not follower.is_heard:
                due_us = follower.caught_up_us + self._lag_max_us + 1
                if earliest is None or due_us < earliest:
                    earliest = due_us
        return earliest

    def _may_join(
        self, follower: FollowerProgress, high_watermark: int, brokers: Brokers, now_us: int
    ) -> bool:
        end = follower.log_end_offset
        assert follower.broker_id not in self.in_sync.committed
        assert follower.heard_us <= now_us
        has_rows = end >= high_watermark and end >= self.epoch_start_offset
        has_rows = has_rows and self.agreement.is_shown_by(follower)
        if follower.flushed_offset < self.flush_needed(follower.broker_id):
            return False
        # One that is silent has just left, perhaps, and would leave again after the lag time.
        asks = now_us - follower.heard_us <= self._lag_max_us
        return has_rows and asks and self._is_fit(follower, brokers)

    def flush_needed(self, broker_id: int) -> int:
        """A follower that is out of sync has to have on its disk what is below it, to join."""
        assert self._promised_until_change >= self.epoch_start_offset
        return self._promised_until_change if broker_id in self.replaced else 0

    def flush_wanted(self, broker_id: int) -> int:
        """A move ends when those that stay have on their disks what is below it."""
        stays = bool(self.leaving) and broker_id not in self.leaving
        return self._promised_offset if stays else 0

    @staticmethod
    def _is_fit(follower: FollowerProgress, brokers: Brokers) -> bool:
        """Alive, staying, and the one that is registered: not one that was there before it."""
        return follower.is_heard and brokers.fit_epoch(follower.broker_id) == follower.broker_epoch

    def _look(
        self,
        follower: FollowerProgress,
        log_end_offset: int,
        brokers: Brokers,
        now_us: int,
    ) -> None:
        """One that is about to join holds rows back as if it had: else it would never come up."""
        assert self.followers[follower.broker_id] is follower
        is_joining = (
            follower.broker_id not in self.in_sync.maximal
            and follower.is_caught_up(log_end_offset, self._lag_max_us, now_us)
            and self._is_fit(follower, brokers)
        )
        if is_joining != (follower.broker_id in self._joining):
            if is_joining:
                self._joining.add(follower.broker_id)
            else:
                self._joining.discard(follower.broker_id)
            self._count()

    def _count(self) -> None:
        assert self._joining <= self.followers.keys()
        assert self._joining.isdisjoint(self.in_sync.maximal), "who may have joined is not about to"
        counted = self.in_sync.maximal | self._joining
        self._holding = tuple(f for f in self.followers.values() if f.broker_id in counted)
