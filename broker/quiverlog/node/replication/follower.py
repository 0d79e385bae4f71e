"""One partition replicated here: its replica as the follower state machine reads it."""

from __future__ import annotations

from typing import Final

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.core.replication.follower import Cut, Follower, Skip
from quiverlog.core.replication.peer_fetcher import Key
from quiverlog.errors import CorruptBatch, CorruptLog, DiskFull, ThrottledBroker
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.log.jobs import TrimJob
from quiverlog.storage.log.truncation import TruncateJob
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.types import Durability, Now
from quiverlog.wire.replica_messages import ReplicaFetchResult

__all__ = ["Copy", "checked_rows"]

_AGAIN_US: Final = 1_000_000


class Copy:
    """A follower's replica and its pending step.

    `step`: what is to be done to its log, not before `cut_from_us`. `producers`: the leader's
    producer state where a log begins anew. `waits_at`: the offset where the leader's rows are
    damaged; -1: none known.
    """

    __slots__ = (
        "_put_off", "cut_from_us", "follower", "key", "leader_id", "producers", "replica", "step",
        "waits_at",
    )  # fmt: skip

    def __init__(self, key: Key, replica: Replica) -> None:
        self.key = key
        self.replica = replica
        self.follower = Follower(self)
        self.leader_id = -1
        self.step: Cut | Skip | None = None
        self.producers = b""
        self.waits_at = -1
        self.cut_from_us = 0
        self._put_off: TruncateJob | None = None

    # --- cutting -------------------------------------------------------------------------------
    def begin_cut(self, now: Now, outbox: Outbox) -> TruncateJob | TrimJob | None:
        assert self.step is not None
        assert self.replica.cutting, "nothing is appended meanwhile"
        job, self._put_off = self._put_off, None
        if job is not None:
            self.replica.log.truncate_again(job)
            return job
        if isinstance(self.step, Cut):
            return self.replica.log.begin_truncate(self.step.offset)
        return self._begin_skip(self.step.offset, now, outbox)

    def fail_cut(self, job: TruncateJob | TrimJob | None, error: BaseException, now: Now) -> bool:
        """Note a failed step. True: it is retried, and the log stays in truncation until then."""
        assert self.replica.cutting
        log = self.replica.log
        if isinstance(job, TruncateJob):
            log.fail_truncate(job)
        elif job is not None:
            log.fail_trim(job, error)
        # Lack of disk space or file descriptors loses nothing: a job can run again from any point.
        is_passing = isinstance(error, DiskFull | ThrottledBroker) and not self.replica.deleted
        if not is_passing or (log.fault and not isinstance(job, TruncateJob)):
            self.step = None
            return False
        self._put_off = job if isinstance(job, TruncateJob) else None
        self.cut_from_us = now.mono_us + _AGAIN_US
        assert self.step is not None, "it is done when there is room"
        return True

    def _begin_skip(self, offset: int, now: Now, outbox: Outbox) -> TrimJob:
        try:
            return self.replica.log.begin_skip(offset, self.producers, now)
        except CorruptLog as error:  # A leader of a later version may use another format.
            name, why = str(self.replica.name), error.message
            outbox.log("warning", "producers of a leader not read", partition=name, why=why)
            return self.replica.log.begin_skip(offset)

    # --- flushing ------------------------------------------------------------------------------
    def wants_flush(self, result: ReplicaFetchResult) -> bool:
        """True if a producer waits for a flush here, or may, or the leader does for its epoch."""
        log = self.replica.log
        if self.replica.fault is not None:
            return False
        # The list of epochs, once it is on the disk, vouches for the rows here.
        start = result.epoch_start_offset
        if start >= 0 and log.agreed(result.leader_epoch, start):
            return True
        at_once = self.replica.state.durability is Durability.REPLICATED_FLUSHED
        wanted = log.log_end_offset if at_once else min(result.flush_offset, log.log_end_offset)
        return wanted > log.flushed_offset

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
    def saved_epoch(self) -> int:
        return self.replica.log.saved_epoch

    @property
    def readers_wait(self) -> bool:
        return bool(self.replica.waiters)

    @property
    def epochs(self) -> LeaderEpochs:
        return self.replica.log.epochs


def checked_rows(replica: Replica, rows: memoryview) -> list[tuple[BatchHeader, memoryview]]:
    """Split an answer into batches, and check that their bytes are as their producers sent them.

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
