"""One partition as its leader sees it: who may write and read, and how far.

Owns the leader epoch checks, the durability rule and the high watermark. Four positions are kept
apart, and `acknowledged` is the one function that says which of them a level rests on:

- `log_start_offset`  the first row that is kept;
- `flushed_offset`    rows below it are on this broker's disk;
- `replicated_offset` rows below it are in the log of every in-sync replica: see `replicated`;
- `log_end_offset`    rows below it are in this broker's log.

Readers see rows below the high watermark, which follows the topic's level, so that what a reader
has seen cannot vanish by the failure that the level promises to survive. It is a position of its
own: it never falls, even when the topic is altered to a safer level. While another broker leads, it
is what that leader has said, as far as rows are here.

The leader knows how far the in-sync followers have come by what they ask for. One that has not
asked yet has nothing.

Invariants: start <= end, flushed <= end, replicated <= end, high watermark <= end. The start may
pass the flushed and the replicated offset (rows of `memory` topics are given up unflushed).

Must not know: files, connections, requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from quiverlog.errors import FencedLeaderEpoch, UnknownLeaderEpoch, UnsupportedDurability
from quiverlog.types import NO_EPOCH, Durability, TopicPartition

__all__ = ["PartitionState", "Positions", "acknowledged", "replicated"]

# Looking a member of an enum up costs as much as five comparisons, on every request.
_TOPIC_DEFAULT: Final = int(Durability.TOPIC_DEFAULT)
_MEMORY: Final = int(Durability.MEMORY)
_FLUSHED: Final = int(Durability.FLUSHED)
_REPLICATED: Final = int(Durability.REPLICATED)


class Positions(Protocol):
    """How far each kind of safety has come; see the module docstring."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def replicated_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...


def acknowledged(level: int, positions: Positions) -> int:
    """Rows below the answer are as safe as `level` promises."""
    if level == _FLUSHED:
        return positions.flushed_offset
    if level == _MEMORY:
        return positions.log_end_offset
    assert level == _REPLICATED, f"{level} is no level of durability"
    return positions.replicated_offset


def replicated(log_end_offset: int, follower_ends: Iterable[int]) -> int:
    """Rows below the answer are in the log of every in-sync replica; a single one has all."""
    return min((log_end_offset, *follower_ends))


class PartitionState:
    """See the module docstring. A new one follows, until `lead`.

    Args:
        name: topic and partition, for messages.
        leader_epoch: the newest that is known.
        durability: the topic's level; acknowledgements are never weaker.
        log_start_offset, log_end_offset, flushed_offset: as recovery found them.
    """

    __slots__ = (
        "_follower_ends",
        "durability",
        "flushed_offset",
        "high_watermark",
        "leader_epoch",
        "leads",
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
    ) -> None:
        assert 0 <= log_start_offset <= log_end_offset
        assert 0 <= flushed_offset <= log_end_offset
        assert leader_epoch >= 0
        self.name = name
        self.leader_epoch = leader_epoch
        self.durability = durability
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        self.high_watermark = log_start_offset
        self.leads = False
        # Of the in-sync followers, by broker: where their logs end, as far as they have said.
        self._follower_ends: dict[int, int] = {}

    @property
    def replicated_offset(self) -> int:
        """Rows below it are in the log of every in-sync replica, as far as the leader knows."""
        return replicated(self.log_end_offset, self._follower_ends.values())

    # --- checking a request ------------------------------------------------------------------
    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a request that was meant for another leader epoch (KIP-320); NO_EPOCH fits any.

        Raises:
            FencedLeaderEpoch: the asker's epoch is older.
            UnknownLeaderEpoch: the asker's epoch is newer than ours.
        """
        if epoch in (self.leader_epoch, NO_EPOCH):
            return
        text = f"{self.name}: the request says leader epoch {epoch}, this is {self.leader_epoch}."
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(text)
        raise UnknownLeaderEpoch(text)

    def required_level(self, asked: int) -> Durability:
        """The level that an acknowledgement must rest on.

        Raises:
            UnsupportedDurability: not a level, weaker than the topic's, or `replicated` on a topic
                that is not replicated.
        """
        if asked in (_TOPIC_DEFAULT, self.durability):
            return self.durability
        if asked == _FLUSHED and self.durability == _MEMORY:
            return Durability.FLUSHED
        if asked not in (_MEMORY, _FLUSHED, _REPLICATED):
            why = f"no durability has the number {asked}"
        elif asked == _REPLICATED:
            why = "the topic is not replicated, so no row can be acknowledged as replicated"
        else:
            why = (
                f"durability {Durability(asked).label} was asked for, the topic's is"
                f" {self.durability.label}, and a request may only ask for more"
            )
        raise UnsupportedDurability(f"{self.name}: {why}.")

    # --- what happened -------------------------------------------------------------------------
    def appended(self, log_end_offset: int) -> bool:
        """The log grew. True when readers may see more."""
        assert log_end_offset >= self.log_end_offset
        self.log_end_offset = log_end_offset
        return self.durability != _FLUSHED and self._advance()

    def flushed(self, flushed_offset: int) -> bool:
        """The disk has everything below `flushed_offset`. True when readers may see more."""
        assert flushed_offset <= self.log_end_offset
        if flushed_offset > self.flushed_offset:
            self.flushed_offset = flushed_offset
        assert self.flushed_offset <= self.log_end_offset
        return self._advance()

    def trimmed(self, log_start_offset: int) -> None:
        """Rows below `log_start_offset` were given up; only what readers may see can be."""
        assert log_start_offset <= self.log_end_offset
        assert not self.leads or log_start_offset <= self.high_watermark
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset

    def set_durability(self, durability: Durability) -> bool:
        """The topic was altered. True when readers may see more; never may they see less."""
        self.durability = durability
        return self._advance()

    # --- leading and following -----------------------------------------------------------------
    def lead(self, leader_epoch: int, in_sync_followers: Iterable[int] = ()) -> bool:
        """Lead under this epoch, with these brokers in sync. True when readers may see more."""
        assert leader_epoch >= self.leader_epoch
        if not self.leads or leader_epoch > self.leader_epoch:
            self._follower_ends = {}  # What they said was said to another leader, or before it.
        self.leader_epoch = leader_epoch
        self.leads = True
        ends = self._follower_ends
        self._follower_ends = {broker: ends.get(broker, 0) for broker in in_sync_followers}
        assert self.replicated_offset <= self.log_end_offset
        return self._advance()

    def follow(self, leader_epoch: int) -> None:
        """Another broker leads under this epoch, or none does."""
        assert leader_epoch >= self.leader_epoch
        self.leader_epoch = leader_epoch
        self.leads = False
        self._follower_ends = {}

    def follower_at(self, broker: int, log_end_offset: int) -> bool:
        """A follower's log ends there. True when readers may see more."""
        assert self.leads
        if broker not in self._follower_ends:
            return False  # It is not in sync: nothing rests on it.
        assert 0 <= log_end_offset <= self.log_end_offset
        self._follower_ends[broker] = log_end_offset
        return self._advance()

    def leader_said(self, high_watermark: int) -> bool:
        """The leader's high watermark, which holds for the rows that are here."""
        assert not self.leads
        assert self.high_watermark <= self.log_end_offset
        limit = min(high_watermark, self.log_end_offset)
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True

    def _advance(self) -> bool:
        if not self.leads:
            return False
        limit = acknowledged(self.durability, self)
        assert limit <= self.log_end_offset
        assert self.high_watermark <= self.log_end_offset
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True
