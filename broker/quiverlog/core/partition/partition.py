"""One partition as its leader sees it: who may write and read, and how far.

Owns the leader epoch checks, the durability rule and the high watermark. Reads stop at the high
watermark, so that what a reader has seen cannot vanish by the failure that the topic's durability
promises to survive:

- `memory`: the high watermark is the end of the log.
- `flushed`: it is the flushed offset: rows become visible when they are on disk.

Invariants: `high_watermark` never falls, and `high_watermark <= log end` always.

Must not know: files, connections, requests.
"""

from __future__ import annotations

from quiverlog.errors import FencedLeaderEpoch, UnknownLeaderEpoch, UnsupportedDurability
from quiverlog.types import NO_EPOCH, Durability, TopicPartition

__all__ = ["PartitionState"]


class PartitionState:
    """See the module docstring.

    Args:
        name: topic and partition, for messages.
        leader_epoch: the epoch under which this broker leads.
        durability: the topic's level; acknowledgements are never weaker.
        log_end_offset, flushed_offset: as recovery found them.
    """

    __slots__ = (
        "durability",
        "flushed_offset",
        "high_watermark",
        "leader_epoch",
        "log_end_offset",
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
    ) -> None:
        assert 0 <= flushed_offset <= log_end_offset
        self.name = name
        self.leader_epoch = leader_epoch
        self.durability = durability
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        self.high_watermark = 0
        self._advance()

    # --- may they? -----------------------------------------------------------------------------
    def check_leader_epoch(self, epoch: int) -> None:
        """Does the asker believe in the leader that we are? (KIP-320; NO_EPOCH asks nothing.)

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
        raise UnsupportedDurability(
            f"{self.name}: durability {_label(asked)} was asked for, the topic's is"
            f" {self.durability.label}, and a request may only ask for more."
        )

    # --- what happened -------------------------------------------------------------------------
    def appended(self, log_end_offset: int) -> bool:
        """The log grew. True when readers may see more."""
        assert log_end_offset >= self.log_end_offset
        self.log_end_offset = log_end_offset
        return self.durability == Durability.MEMORY and self._advance()

    def flushed(self, flushed_offset: int) -> bool:
        """The disk has everything below `flushed_offset`. True when readers may see more."""
        assert flushed_offset <= self.log_end_offset
        if flushed_offset > self.flushed_offset:
            self.flushed_offset = flushed_offset
        return self._advance()

    def set_durability(self, durability: Durability) -> bool:
        """The topic was altered. True when readers may see more; never may they see less."""
        self.durability = durability
        return self._advance()

    def _advance(self) -> bool:
        memory = self.durability == Durability.MEMORY
        limit = self.log_end_offset if memory else self.flushed_offset
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True


def _label(level: int) -> str:
    try:
        return Durability(level).label
    except ValueError:
        return str(level)
