"""A partition on this node: its log, its state and its produces."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.eligible import min_in_sync
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.core.partition.partition import Assigned, PartitionState
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import (
    BatchTooLarge,
    DiskFull,
    NotEnoughReplicasAfterAppend,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.limits import STAGED_UNFLUSHED_BYTES_MAX, UNFLUSHED_BYTES_MAX
from quiverlog.node.partitions.acknowledgements import Answers
from quiverlog.node.runtime.metrics import TopicCounters
from quiverlog.node.runtime.purgatory import Watched
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import STAGED_TOPIC, Now, TopicPartition

__all__ = ["ADMITTED_ROWS_MAX", "Replica", "assigned", "log_config"]

ADMITTED_ROWS_MAX: Final = 2**30
"""Rows of one log's write: with those of a segment they must fit an index's 32 bits."""


def log_config(topic: TopicImage) -> LogConfig:
    return _log_config(topic.config, topic.name == STAGED_TOPIC)


@lru_cache(256)
def _log_config(config: TopicConfig, is_staged: bool) -> LogConfig:
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        unflushed_bytes_max=STAGED_UNFLUSHED_BYTES_MAX if is_staged else UNFLUSHED_BYTES_MAX,
    )


def assigned(topic: TopicImage, partition: PartitionImage) -> Assigned:
    assert partition.replicas, "a partition has a replica"
    return Assigned(
        partition.leader_epoch,
        partition.partition_epoch,
        partition.replicas,
        partition.in_sync_replicas,
        min_in_sync(topic.config, partition),
        tuple(n for n in partition.adding_replicas if n not in partition.removing_replicas),
        partition.removing_replicas,
        partition.replaced_disks,
        topic.replication_factor == 1,
    )


class Replica(Watched):
    __slots__ = (
        "admitted",
        "admitted_bytes",
        "admitted_rows",
        "answers",
        "corrupt",
        "counters",
        "cutting",
        "damage",
        "deleted",
        "fault",
        "flush_offset",
        "flush_queued",
        "flush_running",
        "flush_wanted",
        "jobs_running",
        "log",
        "name",
        "producers",
        "state",
        "topic",
    )

    def __init__(
        self,
        topic: TopicImage,
        name: TopicPartition,
        log: Log,
        producers: ProducerStates,
        leader_epoch: int,
        counters: TopicCounters,
        *,
        node_id: int = 0,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self.log = log
        self.producers = producers
        self.counters = counters
        self.state = PartitionState(
            name,
            leader_epoch=leader_epoch,
            durability=topic.config.durability,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            log_start_offset=log.log_start_offset,
            node_id=node_id,
        )
        self.answers = Answers()
        self.admitted: list[tuple[BatchHeader, memoryview]] = []
        self.admitted_rows = 0
        self.admitted_bytes = 0
        # Followers must flush rows below it.
        self.flush_offset = 0
        self.flush_running = False
        self.flush_queued = False
        # A request waits for the flush that is queued.
        self.flush_wanted = False
        # Jobs that use the log's files by name; a deleted replica's files stay until it is 0.
        self.jobs_running = 0
        self.deleted = False
        # Its log is to be cut: nothing is appended, flushed or led until that is done.
        self.cutting = False
        # Logged once.
        self.corrupt = False
        # What is wrong with the rows; they are to be copied again (repairs.py). Empty: nothing.
        self.damage = ""
        # A failed write or fsync. The kernel may have dropped the pages that it covered: nothing is
        # acknowledged on top of them until a restart has recovered the log from the disk.
        self.fault: StorageFault | None = None

    def check_fault(self) -> None:
        if self.fault is not None:
            # Not itself: what is raised keeps the frames that it passed, with the rows in them.
            raise StorageFault(self.fault.message)

    def found_corrupt(self) -> bool:
        """True the first time."""
        first, self.corrupt = not self.corrupt, True
        return first

    def lead(self, partition: PartitionImage, now: Now) -> bool:
        """Lead by the metadata. True when readers may see more."""
        log = self.log
        is_tail_bare = log.is_tail_bare
        # On becoming leader, not with the first row: a reader that asks where the epoch before
        # ended must be answered even when nothing was written since (KAFKA-10706).
        log.epochs.assign(partition.leader_epoch, log.log_end_offset)
        return self.state.lead(
            assigned(self.topic, partition),
            now.mono_us,
            is_tail_bare=is_tail_bare,
            is_epoch_saved=log.saved_epoch >= partition.leader_epoch,
        )

    @property
    def awaits_own_list(self) -> bool:
        """Rows of earlier leaders wait until the list of epochs is on the disk."""
        leadership = self.state.leadership
        if leadership is None:
            return False
        return leadership.agreement.is_needed and not leadership.agreement.is_epoch_saved

    def look_at_answers(self, now: Now) -> None:
        leadership = self.state.leadership
        if self.answers and leadership is not None:
            if leadership.is_under_min:
                self.fail_replicated(
                    NotEnoughReplicasAfterAppend(
                        f"{self.name}: fewer than {leadership.min_in_sync} replicas are in sync."
                    ),
                    now,
                )
            self.answers.advance(self.state, now)

    def fail_replicated(self, error: QuiverlogError, now: Now) -> None:
        """Fail produces that wait for copies: their rows are here, so the outcome is unknown."""
        if self.answers:
            self.answers.fail_replicated(error)
            self.answers.advance(self.state, now)

    def want_copies_flushed(self, end_offset: int) -> bool:
        """Require copies to flush rows below `end_offset`. True: that is news for them."""
        if end_offset <= self.flush_offset:
            return False
        self.flush_offset = end_offset
        return True

    def admit(self, batches: list[tuple[BatchHeader, memoryview]], now: Now) -> int:
        """As `Appends.admit`."""
        base_offset = offset = self.state.log_end_offset + self.admitted_rows
        byte_count = 0
        try:
            for header, view in batches:
                self.producers.admit(header, offset, now.mono_us)
                offset += header.row_count
                byte_count += len(view)
            if offset - self.state.log_end_offset > ADMITTED_ROWS_MAX:
                raise BatchTooLarge(f"{self.name}: too many rows at once: send them one by one.")
        except Exception:
            self._admit_again(now)
            raise
        assert offset > base_offset, "batches have rows"
        self.admitted_bytes += byte_count
        self.admitted_rows = offset - self.state.log_end_offset
        self.admitted.extend(batches)
        return base_offset

    def _admit_again(self, now: Now) -> None:
        """Some batches of an entry that failed were admitted: only those before it stay."""
        self.producers.drop_admitted()
        offset = self.state.log_end_offset
        for header, _ in self.admitted:
            self.producers.admit(header, offset, now.mono_us)
            offset += header.row_count
        assert offset == self.state.log_end_offset + self.admitted_rows

    def drop_admitted(self) -> None:
        self.admitted, self.admitted_rows, self.admitted_bytes = [], 0, 0
        self.producers.drop_admitted()

    def append(self, now: Now) -> bool:
        """Append what was admitted. True when readers may see more.

        Raises:
            DiskFull, ThrottledBroker: no room, or no descriptor; nothing was stored.
            StorageFault: the disk failed; the caller must declare the fault.
        """
        assert self.state.leads
        batches, self.admitted = self.admitted, []
        rows, self.admitted_rows = self.admitted_rows, 0
        byte_count, self.admitted_bytes = self.admitted_bytes, 0
        state = self.state
        assert batches
        try:
            base_offset = self.log.append(batches, state.leader_epoch, now)
        except (DiskFull, ThrottledBroker):
            self.producers.drop_admitted()
            raise
        except (OSError, QuiverlogError) as error:
            self.producers.drop_admitted()
            raise StorageFault(f"{self.name}: append failed: {error}.") from error
        except BaseException:
            self.producers.drop_admitted()
            raise
        assert base_offset == state.log_end_offset
        assert self.log.log_end_offset == base_offset + rows, "the log has what was admitted"
        self.producers.commit_admitted()
        counters = self.counters
        counters.bytes_in += byte_count
        counters.rows_in += rows
        counters.batches_in += len(batches)
        return state.appended(base_offset + rows)

    def append_copied(
        self, batches: list[tuple[BatchHeader, memoryview]], now: Now, arrived_us: int = -1
    ) -> None:
        """Append batches as the leader's log has them; the log updates `producers`.

        Raises:
            CorruptLog: they do not go on where this log ends.
            DiskFull, ThrottledBroker: no room, or no descriptor; nothing was stored.
            StorageFault: the disk failed; the caller must declare the fault.
        """
        state = self.state
        assert not state.leads
        assert not self.admitted, "what was admitted is dropped when another leads"
        try:
            end_offset = self.log.append_copied(batches, now, arrived_us)
        except OSError as error:
            raise StorageFault(f"{self.name}: append failed: {error}.") from error
        assert end_offset == self.log.log_end_offset
        state.appended(end_offset)
