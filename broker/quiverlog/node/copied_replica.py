"""One partition that is copied here: its replica, as the machine of the copy reads it.

Owns the pair, and the check of rows that came from a leader: they are as their producers sent them.

Must not know: who leads, when a leader is asked.
"""

from __future__ import annotations

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.core.replication.follower import Cut, Follower, Skip
from quiverlog.core.replication.peer_fetcher import Key
from quiverlog.errors import CorruptBatch
from quiverlog.node.replica import Replica
from quiverlog.storage.epochs import LeaderEpochs

__all__ = ["Copy", "checked_rows"]


class Copy:
    """See the module docstring. `step`: what is to be done to its log.

    `waits_at`: where its leader's rows are damaged; -1: nowhere that is known.
    """

    __slots__ = ("follower", "key", "leader_id", "replica", "step", "waits_at")

    def __init__(self, key: Key, replica: Replica) -> None:
        self.key = key
        self.replica = replica
        self.follower = Follower(self)
        self.leader_id = -1
        self.step: Cut | Skip | None = None
        self.waits_at = -1

    @property
    def log_start_offset(self) -> int:
        return self.replica.log.log_start_offset

    @property
    def log_start_saved(self) -> int:
        return self.replica.log.start_saved

    @property
    def log_end_offset(self) -> int:
        return self.replica.log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self.replica.log.flushed_offset

    @property
    def high_watermark(self) -> int:
        return self.replica.state.high_watermark

    @property
    def readers_wait(self) -> bool:
        return bool(self.replica.waiters)

    @property
    def epochs(self) -> LeaderEpochs:
        return self.replica.log.epochs


def checked_rows(replica: Replica, rows: memoryview) -> list[tuple[BatchHeader, memoryview]]:
    """The batches of an answer: their bytes are as their producers have sent them.

    Raises:
        CorruptBatch: the checksum of one is wrong.
    """
    batches = list(split_batches(rows))
    for header, view in batches:
        if crc32c(view[CRC_START:]) != header.crc32c:
            raise CorruptBatch(
                f"{replica.name}: a copied batch at {header.base_offset} is damaged."
            )
    return batches
