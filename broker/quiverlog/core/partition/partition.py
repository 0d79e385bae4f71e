"""One partition as its leader sees it: who may write and read, and how far.

Owns the leader epoch checks, the durability rule and the high watermark. Four positions are kept
apart, and `acknowledged` is the one function that says which of them a level rests on:

- `log_start_offset`  the first row that is kept;
- `flushed_offset`    rows below it are on this broker's disk;
- `replicated_offset` rows below it are in the log of every in-sync replica;
- `log_end_offset`    rows below it are in this broker's log.

Readers see rows below the high watermark, which follows the topic's level, so that what a reader
has seen cannot vanish by the failure that the level promises to survive. It is a position of its
own: it never falls, even when the topic is altered to a safer level.

Invariants: start <= end, flushed <= end, replicated <= end, high watermark <= end. The start may
pass the flushed and the replicated offset (rows of `memory` topics are given up unflushed).

Must not know: files, connections, requests.
"""

from __future__ import annotations

from typing import Final, Protocol

from quiverlog.errors import FencedLeaderEpoch, UnknownLeaderEpoch, UnsupportedDurability
from quiverlog.types import NO_EPOCH, Durability, TopicPartition

__all__ = ["PartitionState", "Positions", "acknowledged"]

# Plain numbers: comparing with a member of an enum costs a lookup more, on every append.
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


class PartitionState:
    """See the module docstring.

    Args:
        name: topic and partition, for messages.
        leader_epoch: the epoch under which this broker leads.
        durability: the topic's level; acknowledgements are never weaker.
        log_start_offset, log_end_offset, flushed_offset: as recovery found them.
    """

    __slots__ = (
        "durability",
        "flushed_offset",
        "high_watermark",
        "leader_epoch",
        "log_end_offset",
        "log_start_offset",
        "name",
        "replicated_offset",
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
        self.name = name
        self.leader_epoch = leader_epoch
        self.durability = durability
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        # The leader is the only replica: what it holds, every in-sync replica holds.
        self.replicated_offset = log_end_offset
        self.high_watermark = log_start_offset
        self._advance()

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
        if asked in (Durability.TOPIC_DEFAULT, self.durability):
            return self.durability
        if asked == Durability.FLUSHED and self.durability == Durability.MEMORY:
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
        self.log_end_offset = self.replicated_offset = log_end_offset
        return self.durability != _FLUSHED and self._advance()

    def flushed(self, flushed_offset: int) -> bool:
        """The disk has everything below `flushed_offset`. True when readers may see more."""
        assert flushed_offset <= self.log_end_offset
        if flushed_offset > self.flushed_offset:
            self.flushed_offset = flushed_offset
        return self._advance()

    def trimmed(self, log_start_offset: int) -> None:
        """Rows below `log_start_offset` were given up; only what readers may see can be."""
        assert log_start_offset <= self.log_end_offset
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset

    def set_durability(self, durability: Durability) -> bool:
        """The topic was altered. True when readers may see more; never may they see less."""
        self.durability = durability
        return self._advance()

    def led(self, leader_epoch: int) -> None:
        """Lead under a new epoch from now on."""
        assert leader_epoch >= self.leader_epoch
        self.leader_epoch = leader_epoch

    def _advance(self) -> bool:
        limit = acknowledged(self.durability, self)
        assert limit <= self.log_end_offset
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True
