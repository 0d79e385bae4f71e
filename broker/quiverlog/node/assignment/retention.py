"""When retention checks which log, and the log lines about removed rows.

Each partition led here is checked about once per `retention_check_ms`, in slices that do not stall
the event loop; followers get the leader's log start (replication rule 20).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from quiverlog.errors import QuiverlogError, ThrottledBroker
from quiverlog.node.assignment.assignment import Assignment, report_notes
from quiverlog.node.partitions.cold_reads import Loaded, start_cold
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.partitions.trimming import Trims
from quiverlog.node.runtime.clock import CLOCK_JUMP_US, Clock
from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.log.jobs import RemoveFilesJob
from quiverlog.storage.segment.reading_jobs import NotResident
from quiverlog.types import Now, TopicPartition

__all__ = ["TAKEN_CHARS_MAX", "Retention", "TakenRows"]


_GATHER_US: Final = 1_000_000
"""A killed process loses the lines about removals of this time."""
TAKEN_CHARS_MAX: Final = 4_000
"""Of partitions and rows in one line."""
_ENTRY_CHARS_MAX: Final = len(f"{2**31}:{2**63}-{2**63} ")


class _Topic:
    """`rows`: by partition, the first removed row and the first that stayed."""

    __slots__ = ("byte_count", "chars", "rows", "segments")

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}
        self.segments = self.byte_count = self.chars = 0


class TakenRows:
    """Gathers removed rows into few log lines; `due_us`: when to call `write`."""

    __slots__ = ("_gathers", "_outbox", "_topics", "due_us")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._topics: dict[str, _Topic] = {}
        self._gathers = True
        self.due_us: int | None = None

    def add(
        self,
        name: TopicPartition,
        first: int,
        log_start_offset: int,
        *,
        segments: int,
        byte_count: int,
        now: Now,
    ) -> None:
        assert first <= log_start_offset
        topic = self._topics.setdefault(name.topic, _Topic())
        before = topic.rows.get(name.partition)
        if before is not None and before[1] != first:
            # A client deleted rows in between, or a new topic has this name: another line.
            self._write(name.topic)
            topic, before = self._topics.setdefault(name.topic, _Topic()), None
        topic.rows[name.partition] = (first if before is None else before[0], log_start_offset)
        topic.segments += segments
        topic.byte_count += byte_count
        topic.chars += len(f"{name.partition}:{first}-{log_start_offset} ")
        if not self._gathers or topic.chars > TAKEN_CHARS_MAX - _ENTRY_CHARS_MAX:
            self._write(name.topic)
        elif self.due_us is None:
            self.due_us = now.mono_us + _GATHER_US

    def write(self) -> None:
        for name in list(self._topics):
            self._write(name)
        self.due_us = None

    def stop(self) -> None:
        self.write()
        self._gathers = False  # What ends later is logged at once: nothing calls `write` again.

    def _write(self, name: str) -> None:
        topic = self._topics.pop(name)
        rows = topic.rows
        assert rows
        assert topic.chars <= TAKEN_CHARS_MAX
        self._outbox.log(
            "info",
            "retention took rows",
            topic=name,
            partitions=len(rows),
            rows=sum(end - first for first, end in rows.values()),
            segments=topic.segments,
            bytes=topic.byte_count,
            taken=" ".join(f"{n}:{first}-{end}" for n, (first, end) in sorted(rows.items())),
        )


_SLICE: Final = 32
"""Partitions checked in one call: some 4 us each."""
_TAKE_COST: Final = 16
"""Removing rows costs as much as checking this many partitions."""


class Retention:
    __slots__ = (
        "_ahead_us",
        "_assignment",
        "_clock",
        "_clock_us",
        "_flushes",
        "_jobs",
        "_jumps",
        "_metrics",
        "_outbox",
        "_period_us",
        "_round_us",
        "_taken_rows",
        "_todo",
        "_trims",
        "_went_back",
    )

    def __init__(
        self,
        assignment: Assignment,
        trims: Trims,
        flushes: Flushes,
        jobs: Jobs,
        clock: Clock,
        outbox: Outbox,
        metrics: NodeMetrics,
        *,
        period_ms: int,
    ) -> None:
        self._assignment = assignment
        self._trims = trims
        self._flushes = flushes
        self._jobs = jobs
        self._outbox = outbox
        self._metrics = metrics
        self._period_us = period_ms * 1000
        self._todo: list[Replica] = []
        self._clock = clock
        self._taken_rows = TakenRows(outbox)
        self._round_us = 0
        self._jumps = 0
        self._ahead_us: int | None = None
        """The wall clock minus the monotonic one at the last call."""
        self._went_back = False
        self._clock_us = 0
        """The wall clock at the last check, trusted or not."""

    def next_us(self) -> int:
        due_us = min(self._round_us, self._clock.due_us)
        write_us = self._taken_rows.due_us
        return due_us if write_us is None else min(due_us, write_us)

    def start(self, now: Now) -> None:
        self._clock.start(now, self._newest_row_us())
        self._jumps = self._clock.jumps  # A clock ahead at the start was so for all rows of it.
        self._round_us = now.mono_us + self._period_us
        self._ahead_us = now.wall_us - now.mono_us

    def stop(self) -> None:
        self._ahead_us = None
        self._taken_rows.stop()

    def _newest_row_us(self) -> int | None:
        times = (replica.log.reader.newest_us() for replica in self._assignment.all_open())
        return max((time_us for time_us in times if time_us is not None), default=None)

    def run(self, now: Now) -> None:
        write_us = self._taken_rows.due_us
        if write_us is not None and write_us <= now.mono_us:
            self._taken_rows.write()
        if now.mono_us >= self._clock.due_us:
            self._clock.note(now)
        if now.mono_us >= self._round_us:
            self._look_at_slice(now)

    def _look_at_slice(self, now: Now) -> None:
        believed = self._clock.read(now)
        self._clock_us = now.wall_us
        if self._clock.jumps > self._jumps:
            self._jumps = self._clock.jumps
            self._clock_jumped(now)
        replicas = self._assignment.replicas
        if not self._todo:
            self._todo = list(replicas.values())
        looked = cost = 0
        while looked < len(self._todo) and cost < _SLICE:
            replica = self._todo[looked]
            looked += 1
            report_notes(replica, self._outbox)  # About files that were read since the last round.
            here = replica.state.leads and not replica.deleted
            cost += self._look(replica, believed, Loaded()) if here else 1
        assert cost >= looked, "each costs something, so a slice ends"
        del self._todo[:looked]
        # A round over all partitions takes one period.
        looked = max(looked, 1)
        self._round_us = now.mono_us + self._period_us * looked // max(looked, len(replicas))

    def watch(self, now: Now) -> None:
        """Detect a jump of the wall clock, before a call of the node appends rows."""
        # A clock that was behind for less than a round has stamped rows in between.
        before_us, ahead_us = self._ahead_us, now.wall_us - now.mono_us
        if before_us is None:
            return
        self._ahead_us = ahead_us
        if ahead_us < before_us - CLOCK_JUMP_US:
            self._went_back = True
        elif self._went_back and ahead_us > before_us + CLOCK_JUMP_US:
            self._went_back = False
            self._clock_us = now.wall_us
            self._clock_jumped(now)

    def _clock_jumped(self, now: Now) -> None:
        """Correct arrival times that were stamped while the clock was behind."""
        assert now.wall_us >= 0
        assert self._clock_us == now.wall_us, "the rows are judged by the same clock"
        for replica in self._assignment.all_open():
            if not replica.deleted and replica.log.clock_jumped(now):
                self._flushes.appended(replica)

    def _look(self, replica: Replica, now: Now, loaded: Loaded) -> int:
        """Check one log and return the cost; an error does not stop the others."""
        cost = 1
        try:
            replica.producers.expire(now.mono_us)
            if not self._trims.busy(replica) and self._take(replica, now, loaded):
                cost = _TAKE_COST
            replica.log.roll_if_due(now)
            self._flushes.appended(replica)
        except NotResident as cold:
            self._load(replica, cold, now, loaded)
        except (OSError, QuiverlogError) as error:
            self._failed(replica, error)
        except Exception as error:
            self._outbox.internal_error(f"retention of {replica.name}", error)
        return cost

    def _take(self, replica: Replica, now: Now, loaded: Loaded) -> bool:
        """Begin to remove rows that are too old or too many; False: there are none."""
        # Never above the high watermark (replication rule 20).
        log = replica.log
        target = log.retention_target(
            now,
            replica.state.high_watermark,
            cold_ok=False,
            just_read=loaded.reads,
            clock_us=self._clock_us,
        )
        assert target <= max(replica.state.high_watermark, log.log_start_offset)
        if target <= log.log_start_offset:
            return False
        assert target <= log.log_end_offset, "rows that are not there are not given up"
        then = partial(self._taken, replica, log.log_start_offset)
        self._trims.trim(replica, target, now, then, promised=False)
        return True

    def _load(self, replica: Replica, cold: NotResident, believed: Now, loaded: Loaded) -> None:
        try:
            loaded.take(cold)
        except ThrottledBroker as error:
            self._failed(replica, error)  # The next round tries again.
            return
        then = partial(self._loaded, replica, believed, loaded)
        start_cold(self._jobs, replica, cold, then, Urgency.BACKGROUND)

    def _loaded(
        self,
        replica: Replica,
        believed: Now,
        loaded: Loaded,
        _result: object,
        error: BaseException | None,
        _now: Now,
    ) -> None:
        if error is not None:
            self._failed(replica, error)
        elif replica.state.leads and not replica.deleted:
            self._look(replica, believed, loaded)

    def _taken(
        self,
        replica: Replica,
        start_before: int,
        files: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        if replica.deleted:
            return  # "topic deleted" was logged.
        assert replica.log.log_start_offset >= start_before, "a log's start never goes back"
        if error is not None:
            self._failed(replica, error)
            return
        segments, byte_count = 0, 0
        if isinstance(files, RemoveFilesJob):
            segments, byte_count = files.segment_count, files.byte_count
        self._metrics.retention_segments_deleted += segments
        self._metrics.retention_bytes_deleted += byte_count
        self._taken_rows.add(
            replica.name,
            start_before,
            replica.log.log_start_offset,
            segments=segments,
            byte_count=byte_count,
            now=now,
        )

    def _failed(self, replica: Replica, error: BaseException) -> None:
        self._outbox.log("error", "retention failed", partition=str(replica.name), why=str(error))
