"""One broker in a world made of one seed: its clock, its disk, its network, its death.

Owns simulated time (a heap of moments), the life of the very same `Node` that production runs, the
flushes it asks for (slow, sometimes failing) and the connections to it (dropped, with requests
lost before and answers lost after they took effect). Frames are encoded and decoded as on a wire.

Must not know: what actors want, what is right or wrong (`actors`, `checker`).
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from quiverlog.errors import DiskFull, StorageFault
from quiverlog.node.config import NodeConfig
from quiverlog.node.effects import CloseConnection, Effect, Job, Respond, ShutdownComplete, StartJob
from quiverlog.node.events import (
    ConnectionClosed,
    DiskSpace,
    Event,
    JobDone,
    RequestReceived,
    Shutdown,
    Tick,
)
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.node import Node
from quiverlog.storage.disk import Disk
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.frames import decode_request, decode_response, encode

from .faults import FaultyDisk, PowerLoss
from .scenario import Scenario

__all__ = ["Owner", "World"]

DATA_DIR = "data"
_WALL_START_US = 1_700_000_000_000_000
_PREFIX_BYTES = 8


class Owner(Protocol):
    """Whoever holds a connection."""

    def on_response(self, connection: int, response: m.Response, body: bytes) -> None:
        """An answer arrived."""

    def on_closed(self, connection: int) -> None:
        """The connection is gone; answers that were under way never come."""


class World:
    """See the module docstring. Everything random comes from `rng`, everything timed from `at`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"world-{scenario.seed}")
        self.mono_us = 1_000_000
        self.wall_us = _WALL_START_US
        self.disk = FaultyDisk(self.rng.randrange(2**32))
        self.node: Node | None = None
        self.life = 0
        """Counts the processes; what was meant for an earlier one is dropped."""
        self.connections: dict[int, Owner] = {}
        self.log_lines: list[str] = []
        self.faults: Counter[str] = Counter()
        """What went wrong on purpose, by kind."""
        self.trace = hashlib.blake2b(digest_size=16)
        """Of every frame and every line of the broker's log, with its moment."""
        self.on_started: list[Callable[[], None]] = []
        self.on_died: list[Callable[[bool], None]] = []
        self.calm = False
        """No more faults: the end of a run, when all must come out right."""
        self._open: set[int] = set()
        """Connections that the broker takes for open; a client may have given some up."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._next_connection = 0
        self._arrival_us: dict[int, int] = {}
        self._tick_us: int | None = None
        self._shutdown_done = False

    # --- time ----------------------------------------------------------------------------------
    @property
    def now(self) -> Now:
        return Now(self.mono_us, self.wall_us)

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do `action` after `delay_us` of simulated time."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.mono_us + max(delay_us, 0), self._sequence, action))

    def run(self, duration_us: int, *, until: Callable[[], bool] | None = None) -> None:
        """Let time pass; `until` (looked at after every event) may end it early."""
        end_us = self.mono_us + duration_us
        while self._heap and self._heap[0][0] <= end_us:
            moment_us, _, action = heapq.heappop(self._heap)
            self._advance(moment_us)
            action()
            if until is not None and until():
                return
        if until is None:
            self._advance(end_us)

    def _advance(self, moment_us: int) -> None:
        self.wall_us += moment_us - self.mono_us
        self.mono_us = moment_us

    # --- the broker's life ---------------------------------------------------------------------
    def start(self) -> None:
        """A new process on the disk as it is."""
        assert self.node is None
        self.life += 1
        self._shutdown_done = False
        config = NodeConfig(
            data_dir=DATA_DIR,
            disk_reserve_bytes=0,
            retention_check_ms=self.scenario.retention_check_ms,
            topic_defaults={},
        )
        disk: Disk = self.disk
        node = Node(config, disk, entropy=self.rng.randbytes, metrics=NodeMetrics())
        self.node = node
        self._guarded(lambda: node.start(self.now))
        if self.node is node:
            self._schedule_tick()
            for listener in self.on_started:
                listener()

    def _note(self, what: bytes) -> None:
        self.trace.update(b"%d %d " % (self.mono_us, len(what)))
        self.trace.update(what)

    def power_loss(self) -> None:
        """The machine dies: what was not synced is lost, torn or kept, as the disk decides."""
        self.faults["power loss"] += 1
        self.disk.power_loss()
        self._died(clean=False)

    def kill(self) -> None:
        """The process dies (kill -9): what it wrote stays."""
        self.faults["kill"] += 1
        self.disk.process_death()
        self._died(clean=False)

    def stop(self) -> None:
        """SIGTERM: the node drains and marks its directory clean."""
        self.faults["stop"] += 1
        self._feed(Shutdown())

    def _died(self, *, clean: bool) -> None:
        self.node = None
        self._tick_us = None
        self._open.clear()
        for connection in list(self.connections):
            self._drop(connection)
        for listener in self.on_died:
            listener(clean)
        self.at(self.rng.randrange(1_000, 500_000), self.start)

    def _feed(self, event: Event) -> None:
        node = self.node
        if node is not None:
            self._guarded(lambda: node.handle(event, self.now))

    def _guarded(self, call: Callable[[], list[Effect]]) -> None:
        """Run the node; the disk may decide that the power fails in the middle of it."""
        if not self.calm and self.rng.random() < self.scenario.power_loss_in_call:
            self.disk.fail_power_after(self.rng.choice((0, 1, 2, 5, 20)))
        try:
            effects = call()
        except PowerLoss:
            self.faults["power loss inside a call"] += 1
            self.power_loss()
            return
        except (DiskFull, StorageFault, OSError) as error:
            # Only a start may fail (a full or broken disk): the process says why and ends.
            if self.connections or self.calm:
                raise
            self.log_lines.append(f"start failed: {error}")
            self.faults["start refused"] += 1
            self.kill()
            return
        self.disk.fail_power_after(None)
        self._perform(effects)
        if self.node is not None:
            self._schedule_tick()
        if self._shutdown_done:
            self.disk.process_death()
            self._died(clean=self.disk.exists(f"{DATA_DIR}/clean-shutdown"))

    def _schedule_tick(self) -> None:
        assert self.node is not None
        deadline_us = self.node.next_deadline_us()
        if deadline_us is None:
            return
        if self._tick_us is not None and self._tick_us <= deadline_us:
            return
        self._tick_us = deadline_us
        life = self.life

        def tick() -> None:
            if self.life == life and self._tick_us == deadline_us:
                self._tick_us = None
                self._feed(Tick())

        self.at(deadline_us - self.mono_us, tick)

    def disk_space(self, free_bytes: int) -> None:
        """What the shell would measure."""
        self._feed(DiskSpace(free_bytes))

    # --- effects -------------------------------------------------------------------------------
    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Respond():
                    self._respond(effect)
                case StartJob():
                    self._run_job(effect.job)
                case CloseConnection():
                    self._open.discard(effect.connection_id)
                    self._drop(effect.connection_id)
                case ShutdownComplete():
                    self._shutdown_done = True
                case _:
                    self.log_lines.append(f"{effect.level} {effect.event} {dict(effect.fields)}")
                    self._note(self.log_lines[-1].encode())

    def _run_job(self, job: Job) -> None:
        """A job: its work is done at one moment, its return is noticed at a later one."""
        life = self.life
        slow = self.rng.random() < self.scenario.slow_sync
        work_us = self.rng.randrange(50, 200_000 if slow else 4_000)
        self.faults["slow fsync"] += slow

        def work() -> None:
            if self.life != life or self.node is None:
                return
            result: object = None
            error: BaseException | None = None
            if not self.calm and self.rng.random() < self.scenario.failed_sync:
                self.disk.fail_syncs = 1
            try:
                result = job.run()
            except PowerLoss:
                self.faults["power loss inside a flush"] += 1
                self.power_loss()
                return
            except Exception as failure:
                self.faults["failed fsync"] += 1
                error = failure
            event = JobDone(job, result, error)

            def done() -> None:
                if self.life == life and self.node is not None:
                    self._feed(event)
                else:
                    self.faults["death between flush and its notice"] += 1

            self.at(self.rng.randrange(1, 100_000 if slow else 500), done)

        self.at(work_us, work)

    def _respond(self, effect: Respond) -> None:
        connection = effect.connection_id
        if connection not in self.connections:
            return
        body = b"".join(effect.body)
        frame = encode(effect.response, effect.correlation_id, len(body))
        response = decode_response(memoryview(frame)[_PREFIX_BYTES:], effect.response.api)
        self._note(frame + body)

        def arrive() -> None:
            owner = self.connections.get(connection)
            if owner is not None:
                owner.on_response(connection, response, body)

        if not self.calm and self.rng.random() < self.scenario.lost_response:
            self.faults["lost response"] += 1
            self.at(1, lambda: self.drop(connection))
            return
        self.at(self._latency(-connection - 1), arrive)

    # --- the network ---------------------------------------------------------------------------
    def connect(self, owner: Owner) -> int:
        """A new connection; -1 when nobody listens."""
        if self.node is None:
            return -1
        self._next_connection += 1
        self.connections[self._next_connection] = owner
        self._open.add(self._next_connection)
        return self._next_connection

    def send(self, connection: int, request: m.Request, correlation_id: int, body: bytes) -> None:
        """A request leaves its client; it may never arrive, or arrive and never be answered."""
        frame = encode(request, correlation_id, len(body))
        life = self.life

        def arrive() -> None:
            if self.life != life or connection not in self._open or self.node is None:
                return
            self.faults["late request"] += connection not in self.connections
            decoded = decode_request(memoryview(frame)[_PREFIX_BYTES:])
            self._feed(RequestReceived(connection, decoded, memoryview(bytearray(body))))

        if not self.calm and self.rng.random() < self.scenario.lost_request:
            self.faults["lost request"] += 1
            self.at(1, lambda: self.drop(connection))
            return
        self.at(self._latency(connection), arrive)

    def _latency(self, channel: int) -> int:
        """Random, but a connection keeps its order in each direction."""
        slow = self.rng.random() < self.scenario.slow_network
        arrival_us = self.mono_us + self.rng.randrange(20, 100_000 if slow else 2_000)
        arrival_us = max(arrival_us, self._arrival_us.get(channel, 0) + 1)
        self._arrival_us[channel] = arrival_us
        return arrival_us - self.mono_us

    def drop(self, connection: int) -> None:
        """The connection breaks. The client hears of it at once; the broker perhaps much later.

        Until then it goes on with requests that were under way: they may take effect after the
        client has sent them again over a new connection.
        """
        if connection not in self.connections:
            return
        self._drop(connection)
        life = self.life

        def heard() -> None:
            if self.life == life and connection in self._open:
                self._open.discard(connection)
                self._feed(ConnectionClosed(connection))

        late = not self.calm and self.rng.random() < self.scenario.half_open
        self.at(self.rng.randrange(1_000, 300_000) if late else 0, heard)

    def _drop(self, connection: int) -> None:
        owner = self.connections.pop(connection, None)
        self._arrival_us.pop(connection, None)
        self._arrival_us.pop(-connection - 1, None)
        if owner is not None:
            self.at(1, lambda: owner.on_closed(connection))
