"""One replica's process: its Raft, its disk, its jobs and its timer. Does what a host must do.

Owns the duties of `Ready`, the row of jobs (one at a time, each takes time), the state machine, and
what is left of all that after a crash. `plant` is around every call into the Raft, so that one
replica of many can have a bug.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from quiverlog.core.raft.messages import (
    NO_SNAPSHOT,
    Entry,
    EntryKind,
    Message,
    ReplicaKey,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.raft import Raft, Ready
from quiverlog.core.raft.snapshots import SnapshotRead

from .store import Plate, SimStore, State, pack_state, unpack_state
from .world import World

if TYPE_CHECKING:
    from .checker import Checker

__all__ = ["Host"]

_Plant = Callable[[], contextlib.AbstractContextManager[None]]


class Host:
    def __init__(
        self, world: World, checker: Checker, node_id: int, plant: _Plant | None, seeds: range
    ) -> None:
        self.world = world
        self.checker = checker
        self.node_id = node_id
        self.generation = 0
        self.plate = Plate()
        self.raft: Raft | None = None
        self.state = State()
        self.slow = False
        self.paused_until_us = 0
        self.skew_us = node_id * 7_000_000
        """The node's clock began at another time."""
        self.proposed: dict[int, tuple[int, bytes]] = {}
        """index -> (term, data) of what clients of this life wait for."""
        self._plant: _Plant = plant or contextlib.nullcontext
        self._seeds = tuple(seeds)
        self._rng = random.Random(f"host-{node_id}-{world.scenario.seed}")
        self._life = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self._job_write: Write | None = None
        self._busy = False
        self._wake_us = 0

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, f"disk{self.generation}")

    @property
    def now_us(self) -> int:
        return self.world.now_us + self.skew_us

    # --- life ----------------------------------------------------------------------------------
    def start(self) -> None:
        """A process begins with what the plate holds."""
        assert self.raft is None
        self._life += 1
        self._store = SimStore(self.plate)
        has_snapshot = bool(self.plate.snapshot_data)
        self.state = unpack_state(self.plate.snapshot_data) if has_snapshot else State()
        self.proposed.clear()
        self.checker.started(self)
        with self._plant():
            self.raft = Raft(
                self.key,
                self.world.scenario.config,
                self._rng,
                self._store,
                self.plate.hard_state,
                self.now_us,
                seeds=self._seeds,
            )
            self._pump()

    def crash(self) -> None:
        """The power fails: of the write under way some steps are durable."""
        assert self.raft is not None
        self.raft = None
        if self._job_write is not None:
            write = self._job_write
            self.plate.do(write, self._rng.randint(0, self.plate.steps(write)))
            self.world.counts["crash in a write"] += 1
        self.plate.temporary.clear()
        self._jobs.clear()
        self._job_write = None
        self._busy = False
        self.paused_until_us = 0
        self._wake_us = 0
        self._life += 1

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        assert self.raft is None
        self.checker.buried(self.key, self.plate)
        self.generation += 1
        self.plate = Plate(snapshot=NO_SNAPSHOT)

    # --- calls into the Raft -------------------------------------------------------------------
    def call(self, action: Callable[[Raft], None]) -> None:
        """Something happened. While the process is stopped, it waits."""
        if self.raft is None:
            return
        if self.world.now_us < self.paused_until_us:
            life = self._life
            delay_us = self.paused_until_us - self.world.now_us
            self.world.at(delay_us, lambda: self._if_alive(life, lambda: self.call(action)))
            return
        with self._plant():
            action(self.raft)
            self._pump()

    def deliver(self, message: Message) -> None:
        """A message arrived."""

        def step(raft: Raft) -> None:
            self.checker.delivered(self, message)
            raft.step(message, self.now_us)

        self.call(step)

    def _if_alive(self, life: int, action: Callable[[], None]) -> None:
        if self._life == life and self.raft is not None:
            action()

    def _pump(self) -> None:
        raft = self.raft
        assert raft is not None
        self.checker.look(self)
        while raft.has_ready:
            ready = raft.ready()
            self._do(ready)
            raft.advance(ready)
            self.checker.look(self)
        self._set_timer(raft)

    def _set_timer(self, raft: Raft) -> None:
        delay_us = max(raft.next_deadline_us - self.now_us, 0)
        if delay_us > 1 << 50:
            return
        wake_us = self.world.now_us + delay_us
        if self.world.now_us < self._wake_us <= wake_us:
            return  # An earlier timer is set; it looks again.
        self._wake_us = wake_us
        life = self._life

        def ring() -> None:
            if self._wake_us == wake_us:
                self._wake_us = 0
            self._if_alive(life, lambda: self.call(lambda raft: raft.tick(self.now_us)))

        # A loop is never on time.
        self.world.at(delay_us + self._rng.randrange(3_000), ring)

    # --- duties --------------------------------------------------------------------------------
    def _do(self, ready: Ready) -> None:
        for message in ready.messages:
            self.checker.sent(self, message)
            self.world.send(message)
        if ready.write is not None:
            self._start_write(ready.write)
        for read in ready.reads:
            self._start_read(read)
        if ready.restore is not None:
            self.state = unpack_state(self.plate.snapshot_data)
            self.checker.restored(self, ready.restore)
            self.world.counts["snapshot installed"] += 1
        for entry in ready.committed:
            self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        self.state = self.state.applied(entry)
        self.checker.applied(self, entry)
        place = self.proposed.pop(entry.index, None)
        if place is not None and place[0] == entry.term:
            assert place[1] == entry.data
            assert entry.kind is EntryKind.DATA
            self.checker.acknowledged(entry)

    # --- jobs ----------------------------------------------------------------------------------
    def _start_write(self, write: Write) -> None:
        def begin() -> None:
            self._job_write = write

        def done() -> None:
            self._job_write = None
            self.plate.do(write, self.plate.steps(write))
            self._store.show(self.plate)
            self.call(lambda raft: raft.persisted(write, self.now_us))

        self._jobs.append(lambda: self._run_job(begin, done))
        self._next_job()

    def take_snapshot(self) -> None:
        """Write a snapshot of the state machine, and drop (most of) the log behind it."""
        raft = self.raft
        assert raft is not None
        with self._plant():
            point = raft.snapshot_point()
        self.checker.snapshot_begun(self, point)
        if point.index <= self.plate.snapshot.index:
            return
        data = pack_state(self.state, self._rng, self.world.scenario.snapshot_bytes_max)
        kept = self._rng.choice((0, 0, 5, 50))

        def done() -> None:
            self._take(point, data, point.index + 1 - kept)

        self._jobs.append(lambda: self._run_job(lambda: None, done))
        self._next_job()

    def _take(self, point: SnapshotMeta, data: bytes, first_index: int) -> None:
        self.plate.take_snapshot(point, data, first_index)
        self._store.show(self.plate)
        self.world.counts["snapshot taken"] += 1
        self.call(lambda raft: raft.snapshot_taken())

    def _run_job(self, begin: Callable[[], None], done: Callable[[], None]) -> None:
        self._busy = True
        begin()
        life = self._life

        def finish() -> None:
            stopped_us = self.paused_until_us - self.world.now_us
            if stopped_us > 0:
                self.world.at(stopped_us, lambda: self._if_alive(life, finish))
                return
            self._busy = False
            done()
            if self._life == life:
                self._next_job()

        self.world.at(self._job_us(), lambda: self._if_alive(life, finish))

    def _next_job(self) -> None:
        if self._jobs and not self._busy:
            self._jobs.popleft()()

    def _job_us(self) -> int:
        scenario = self.world.scenario
        slow = self.slow or self._rng.random() < scenario.slow_write
        if slow and not self.world.calm:
            self.world.counts["slow write"] += 1
            return 1 + self._rng.randrange(scenario.slow_write_us)
        return 1 + self._rng.randrange(scenario.write_us)

    def _start_read(self, read: SnapshotRead) -> None:
        life = self._life

        def finish() -> None:
            data: bytes | None = None
            done = False
            if self.plate.snapshot == read.snapshot:
                data = self.plate.snapshot_data[read.offset : read.offset + read.bytes_max]
                done = read.offset + len(data) == len(self.plate.snapshot_data)
            self.call(lambda raft: raft.chunk_read(read, data, done, self.now_us))

        self.world.at(self._job_us(), lambda: self._if_alive(life, finish))
