"""One replica of a partition: leader epoch checks, durability and the high watermark.

- `log_start_offset`         the first row that is kept;
- `flushed_offset`           rows below it are on this broker's disk;
- `high_watermark`           readers get rows below it;
- `replicas_flushed_offset`  rows below it are on the disks of enough in-sync replicas;
- `log_end_offset`           rows below it are in this broker's log.

Invariants: start <= high watermark <= end, flushed <= end. The start may pass the flushed offset:
rows of `memory` topics may be deleted before they are flushed. While the log is open, the high
watermark falls only with a truncation after an unclean election.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quiverlog.core.partition.agreement import Agreement
from quiverlog.core.partition.in_sync import InSync
from quiverlog.core.partition.leadership import Leadership
from quiverlog.core.partition.levels import safe_offset
from quiverlog.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    UnknownLeaderEpoch,
    UnsupportedDurability,
)
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.types import NO_EPOCH, Durability, TopicPartition

__all__ = ["Assigned", "PartitionState"]

# Looking a member up in its enum costs more than the comparison, on every request.
_TOPIC_DEFAULT: Final = int(Durability.TOPIC_DEFAULT)
_MEMORY: Final = int(Durability.MEMORY)
_FLUSHED: Final = int(Durability.FLUSHED)
_REPLICATED: Final = int(Durability.REPLICATED)
_REPLICATED_FLUSHED: Final = int(Durability.REPLICATED_FLUSHED)
_LEVELS: Final = frozenset((_MEMORY, _FLUSHED, _REPLICATED, _REPLICATED_FLUSHED))


class Assigned(NamedTuple):
    """A partition in the metadata, for the broker that leads it.

    `min_in_sync`: at most the number of replicas. `replaced`: replicas whose log does not count
    before they are in sync again. `is_single`: the topic has one replica, even while a move makes
    more.
    """

    leader_epoch: int
    partition_epoch: int = 0
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    min_in_sync: int = 1
    adding: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()
    is_single: bool = False


class PartitionState:
    """The state of one replica; a new one follows, until `lead`.

    The high watermark of a replicated partition is where rows are replicated, at every level of the
    topic. With one replica it follows the topic's level: rows that readers got survive the failures
    that the level promises to survive.

    Acknowledgements are never weaker than `durability`. A follower that lacked rows for
    `lag_max_us` is out of sync.
    """

    __slots__ = (
        "_lag_max_us",
        "_node_id",
        "durability",
        "flushed_offset",
        "high_watermark",
        "leader_epoch",
        "leadership",
        "log_end_offset",
        "log_start_offset",
        "name",
    )

    def __init__(
        self,
        name: TopicPartition,
        *,
        leader_epoch: int,
        durability: Durability,
        log_end_offset: int,
        flushed_offset: int,
        log_start_offset: int = 0,
        node_id: int = 0,
        lag_max_us: int = REPLICA_LAG_MS_MAX * 1000,
    ) -> None:
        assert 0 <= log_start_offset <= log_end_offset
        assert 0 <= flushed_offset <= log_end_offset
        assert leader_epoch >= 0
        self._node_id = node_id
        self._lag_max_us = lag_max_us
        self.name = name
        self.leader_epoch = leader_epoch
        self.durability = durability
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        # Not saved: a restart may lose rows below it.
        self.high_watermark = log_start_offset
        self.leadership: Leadership | None = None

    @property
    def leads(self) -> bool:
        return self.leadership is not None

    @property
    def replicas_flushed_offset(self) -> int:
        leadership = self.leadership
        return 0 if leadership is None else leadership.flushed_offset(self.flushed_offset)

    @property
    def may_be_taken_over(self) -> bool:
        """True when a single-replica topic moves or gains replicas: a copy may lead next, which
        levels below `replicated` do not wait for."""
        leadership = self.leadership
        return leadership is not None and leadership.is_single and leadership.is_replicated

    @property
    def is_current(self) -> bool:
        """False while the previous leader may have served rows that this one does not serve yet."""
        leadership = self.leadership
        return leadership is None or self.high_watermark >= leadership.epoch_start_offset

    # --- checking a request ------------------------------------------------------------------
    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch for another epoch (KIP-320); NO_EPOCH fits
        any."""
        if epoch in (self.leader_epoch, NO_EPOCH):
            return
        text = f"{self.name}: the request has leader epoch {epoch}, this is {self.leader_epoch}."
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(text)
        raise UnknownLeaderEpoch(text)

    def check_seen_epoch(self, epoch: int) -> None:
        """Raise UnknownLeaderEpoch for rows of a newer leader, whose epoch this replica lacks."""
        leadership = self.leadership
        # With one replica there was no other leader: the rows were lost with an earlier log.
        if epoch > self.leader_epoch and (leadership is None or leadership.is_replicated):
            raise UnknownLeaderEpoch(
                f"{self.name}: rows of leader epoch {epoch} were read, this is {self.leader_epoch}."
            )

    def required_level(self, asked: int) -> Durability:
        """Return the level that an acknowledgement must rest on.

        Raises UnsupportedDurability: no level, a weaker one than the topic's, or a level of several
        replicas for a topic with one; NotEnoughReplicas: too few are in sync now.
        """
        durability = self.durability
        if asked in (_TOPIC_DEFAULT, durability):
            level = durability
        elif asked in _LEVELS and asked > durability and self._may_ask(asked):
            level = Durability(asked)
        else:
            raise UnsupportedDurability(f"{self.name}: {self._why_not(asked)}.")
        if level >= _REPLICATED:
            self._check_enough(level)
        assert level >= durability
        return level

    def level_of_committed(self, asked: int) -> Durability:
        """Return the level of committed rows: the strongest of the topic's, the asked one and
        `replicated` that this partition can give. They are stored whatever it is.

        Raises NotEnoughReplicas: too few are in sync now.
        """
        level = max(self.durability, asked, _REPLICATED)
        if not self._may_ask(level):
            level = _FLUSHED
        else:
            self._check_enough(Durability(level))
        assert level >= min(self.durability, _FLUSHED)
        return Durability(level)

    def _may_ask(self, asked: int) -> bool:
        leadership = self.leadership
        return asked < _REPLICATED or (leadership is not None and leadership.is_replicated)

    def _why_not(self, asked: int) -> str:
        if asked not in _LEVELS:
            return f"no durability has the number {asked}"
        if not self._may_ask(asked):
            return "the topic is not replicated, so no row can be acknowledged as replicated"
        return (
            f"durability {Durability(asked).label} was asked for, the topic's is"
            f" {self.durability.label}, and a request may only ask for more"
        )

    def _check_enough(self, level: Durability) -> None:
        leadership = self.leadership
        if leadership is not None and leadership.is_under_min:
            raise NotEnoughReplicas(
                f"{self.name}: {len(leadership.in_sync.committed)} of the"
                f" {leadership.min_in_sync} replicas are in sync that {level.label} asks for."
            )

    # --- what happened -------------------------------------------------------------------------
    def appended(self, log_end_offset: int) -> bool:
        assert log_end_offset >= self.log_end_offset
        leadership = self.leadership
        if leadership is not None and leadership.followers:
            leadership.grows(self.log_end_offset)
            self.log_end_offset = log_end_offset
            return self._advance()
        self.log_end_offset = log_end_offset
        # At `flushed` readers get more with the flush, not before.
        return self.durability != _FLUSHED and self._advance()

    def flushed(self, flushed_offset: int) -> bool:
        assert flushed_offset <= self.log_end_offset
        if flushed_offset > self.flushed_offset:
            self.flushed_offset = flushed_offset
        assert self.flushed_offset <= self.log_end_offset
        return self._advance()

    def trimmed(self, log_start_offset: int) -> None:
        assert log_start_offset <= self.log_end_offset
        assert not self.leads or log_start_offset <= self.high_watermark
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset
            # A follower may get the new log start before the high watermark that covers it.
            self.high_watermark = max(self.high_watermark, log_start_offset)
        assert self.log_start_offset <= self.high_watermark
        assert self.high_watermark <= self.log_end_offset

    def truncated(self, log_end_offset: int) -> None:
        assert self.leadership is None, "a leader's log is never cut"
        assert self.log_start_offset <= log_end_offset <= self.log_end_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = min(self.flushed_offset, log_end_offset)
        self.high_watermark = min(self.high_watermark, log_end_offset)
        assert self.flushed_offset <= self.log_end_offset

    def skipped(self, log_start_offset: int) -> None:
        assert self.leadership is None
        assert log_start_offset > self.log_end_offset
        self.log_start_offset = self.log_end_offset = self.flushed_offset = log_start_offset
        self.high_watermark = log_start_offset
        assert self.high_watermark == self.log_end_offset, "there is no row"

    def set_durability(self, durability: Durability) -> bool:
        """Change the topic's level; return whether readers may get more. They never get less."""
        assert durability != _TOPIC_DEFAULT, "a topic has a level of its own"
        self.durability = durability
        return self._advance()

    # --- leading and following -----------------------------------------------------------------
    def lead(
        self,
        assigned: Assigned,
        now_us: int,
        *,
        is_tail_bare: bool = False,
        is_epoch_saved: bool = True,
    ) -> bool:
        """Lead, or take over newer metadata; return whether readers may get more.

        `is_tail_bare`: the newest epoch in the log's list has no row here. `is_epoch_saved`: the
        list on the disk has the epoch that begins now; otherwise `epoch_saved` follows.
        """
        leader_epoch = assigned.leader_epoch
        assert leader_epoch >= self.leader_epoch
        leadership = self.leadership
        if leadership is None or leadership.leader_epoch != leader_epoch:
            in_sync = InSync(leader_epoch, assigned.partition_epoch, assigned.in_sync)
            assert self.high_watermark <= self.log_end_offset
            has_rows = self.log_start_offset < self.log_end_offset
            may_lack = self.high_watermark < self.log_end_offset
            # With one replica there is no other log to agree with.
            may_part = has_rows and len(assigned.replicas) > 1
            self.leadership = Leadership(
                self._node_id,
                leader_epoch,
                Agreement(
                    leader_epoch,
                    self.log_end_offset,
                    is_needed=may_part and (may_lack or is_tail_bare),
                    is_epoch_saved=is_epoch_saved,
                ),
                assigned.replicas,
                in_sync,
                min_in_sync=assigned.min_in_sync,
                lag_max_us=self._lag_max_us,
                now_us=now_us,
            )
        else:
            leadership.min_in_sync = assigned.min_in_sync
            leadership.set_replicas(assigned.replicas, now_us)
            leadership.on_in_sync_set(assigned.partition_epoch, assigned.in_sync, now_us)
        self.leader_epoch = leader_epoch
        assert self.leadership is not None
        self.leadership.move(assigned.adding, assigned.leaving)
        self.leadership.replaced = frozenset(assigned.replaced)
        self.leadership.is_single = assigned.is_single
        assert self.leadership.leader_epoch == leader_epoch
        return self._advance()

    def epoch_saved(self, epoch: int) -> bool:
        leadership = self.leadership
        assert epoch >= NO_EPOCH
        assert epoch <= self.leader_epoch, "no later epoch is known here"
        if leadership is None or epoch < leadership.leader_epoch:
            return False
        if leadership.agreement.is_epoch_saved:
            return False
        leadership.agreement.is_epoch_saved = True
        return self._advance()

    def follow(self, leader_epoch: int) -> None:
        assert leader_epoch >= self.leader_epoch
        self.leader_epoch = leader_epoch
        self.leadership = None

    def followers_moved(self) -> bool:
        assert self.leadership is not None
        return self._advance()

    def on_leader_high_watermark(self, high_watermark: int) -> bool:
        assert self.leadership is None
        assert self.high_watermark <= self.log_end_offset
        limit = min(high_watermark, self.log_end_offset)
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True

    def _advance(self) -> bool:
        leadership = self.leadership
        if leadership is None:
            return False
        if leadership.followers or self.durability >= _REPLICATED:
            limit = leadership.replicated_offset(self.log_end_offset)
        else:
            limit = safe_offset(self.durability, self)
        assert limit <= self.log_end_offset
        assert self.high_watermark <= self.log_end_offset
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True
