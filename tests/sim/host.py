"""One node of the world: its disk, its clocks, its process, and what a server does around a `Node`.

Owns the life of the very same `Node` that production runs: starting it on the disk as it is,
cutting the bytes of its connections into requests (the real `FrameReceiver`, one scratch buffer for
all, whose bytes change after every call as they do in a server), handing the requests of one read
to one `handle_many` and ending it: power, kill -9, a clean stop. Its jobs run in `job_runner`. A
bug planted here (`plant`) is there only while this node's own code runs.

Not here: what clients want, the rules about rows (`actors`, `checker`).
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from quiverlog.errors import DiskFull, StorageFault, ThrottledBroker
from quiverlog.limits import HEADER_BYTES_MAX
from quiverlog.node.node import Node
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import (
    Audited,
    CloseConnection,
    ClosePeer,
    ConfigChanged,
    ConnectionMuted,
    ConnectionProved,
    Effect,
    ListenToBrokers,
    PeerAddresses,
    Respond,
    SendToPeer,
    ShutdownComplete,
    StartComplete,
    StartJob,
)
from quiverlog.node.runtime.events import (
    ConnectionClosed,
    DiskSpace,
    Event,
    RequestReceived,
    SecretsChanged,
    Shutdown,
    Tick,
)
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Now
from quiverlog.wire.buffers import BufferPool
from quiverlog.wire.frames import SCRATCH_BYTES, Frame, FrameReceiver, decode_request, encode
from quiverlog.wire.peer_proof import NO_SECRETS, ClusterSecrets

from .checker import Violation
from .faults import Blocked, Death, FaultyDisk
from .job_runner import JobRunner
from .network import Connection
from .peers import SimPeers
from .stats import request_kind
from .views import HeldViews

if TYPE_CHECKING:
    from .world import World

__all__ = ["DATA_DIR", "Host", "Plant"]

DATA_DIR = "data"
_CHUNK_REQUESTS = 64
_OPEN_AGAIN_US = 6_000_000
"""A partition that could not be opened is tried again after 5 s."""
_SCRIBBLE = b"\xee"

Plant = Callable[[], AbstractContextManager[object]]


class _Inbound:
    """The server's end of a connection."""

    __slots__ = ("connection", "inbox", "is_ended", "is_muted", "is_reading", "receiver")

    def __init__(self, connection: Connection, scratch: bytearray, pool: BufferPool) -> None:
        self.connection = connection
        self.inbox = bytearray()
        self.is_reading = self.is_ended = self.is_muted = False
        self.receiver = FrameReceiver(header_bytes_max=HEADER_BYTES_MAX, scratch=scratch, pool=pool)


class Host:
    """`life` counts the processes: what was meant for an earlier one is dropped."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.rng = random.Random(f"host-{node_id}-{world.scenario.seed}")
        self.disk = FaultyDisk(self.rng.randrange(2**32))
        self.disk.happened = world.events
        self._held = HeldViews(world)
        self.disk.looks = self._held.check
        self.wall_offset_us = 0
        self.mono_offset_us = self.rng.randrange(10_000_000)
        self.node: Node | None = None
        self.life = 0
        self.calls = 0
        """How often the node was called."""
        self.log_lines: list[str] = []
        self.plant: Plant = nullcontext
        self.made: Callable[[Node], None] = lambda node: None
        """Called with each new process, before it starts."""
        self.secrets: ClusterSecrets = NO_SECRETS
        self.nonces = random.Random(f"nonces-{node_id}-{world.scenario.seed}")
        self.cluster_id = ""
        """Empty: a cluster of its own."""
        self.fault_until_us = 0
        """Until this moment requests may have met an error that was raised on purpose."""
        self.offline_until_us = 0
        """Until this moment a partition may be offline because it could not be opened."""
        self.stalled_us = 0
        """So much longer does every job take: a disk that hardly moves."""
        self._scratch = bytearray(SCRATCH_BYTES)
        self._pool = BufferPool()
        self._inbound: dict[int, _Inbound] = {}
        self._jobs, self.peers = JobRunner(self), SimPeers(self)
        self._tick_us: int | None = None
        self._shutdown_done = False
        self._started = self._listens = False
        self._failures_seen = 0

    @property
    def now(self) -> Now:
        """Both clocks of this machine."""
        world = self.world
        return Now(world.mono_us + self.mono_offset_us, world.wall_us + self.wall_offset_us)

    # --- the process's life --------------------------------------------------------------------
    def start(self) -> None:
        """A new process on the disk as it is."""
        assert self.node is None
        self.life += 1
        self._jobs, self.peers = JobRunner(self), SimPeers(self)
        self._shutdown_done = self._started = self._listens = False
        disk: Disk = self.disk
        node = Node(self.config(), disk, entropy=self.rng.randbytes, metrics=NodeMetrics())
        self.node = node
        self.made(node)
        if self.wall_offset_us and not self.can_judge_clock:
            self.wall_offset_us = 0
        self._guarded(lambda: node.start(self.now), starting=True)
        if self.node is node:
            self._schedule_tick()

    def config(self) -> NodeConfig:
        """What the operator decided."""
        return NodeConfig(
            data_dir=DATA_DIR,
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            cluster_secrets=self.secrets,
            proof_required=bool(self.secrets),
            disk_reserve_bytes=0,
            # Where two nodes are each a quorum of its own, neither gets the other's heartbeats.
            broker_session_ms=10**9,
            retention_check_ms=self.world.scenario.retention_check_ms,
            topic_defaults={},
            advertised_host=self.name,
        )

    @property
    def is_serving(self) -> bool:
        """Is there a process whose start is complete?"""
        return self.node is not None and self._started

    @property
    def can_judge_clock(self) -> bool:
        """False: a clock that is wrong from the start, and nothing to compare it with."""
        if self._started:
            return True
        paths = (path for path in self.disk.paths() if path.endswith(".log") and "/data/" in path)
        return any(len(self.disk.inode(path).data) > SEGMENT_HEADER_BYTES for path in paths)

    def _has_rows(self) -> bool:
        """Return whether a row was not given up. Without one a start believes any clock."""
        assert self.node is not None
        logs = [replica.log for replica in self.node.broker.replicas.values()]
        return any(log.log_start_offset < log.log_end_offset for log in logs)

    def change_secrets(self, secrets: ClusterSecrets) -> None:
        """The file has these from now on, and the process reads it."""
        self.secrets = secrets
        if self.node is not None:
            self.peers.change_secrets(secrets)
            self.feed(SecretsChanged(secrets))

    def power_loss(self) -> None:
        """The machine dies: what was not synced is lost, torn or kept, as the disk decides."""
        self.world.faults["power loss"] += 1
        self.disk.power_loss()
        self._died(clean=False)

    def kill(self) -> None:
        """The process dies (kill -9): what it wrote stays."""
        self.world.faults["kill"] += 1
        self.disk.process_death()
        self._died(clean=False)

    def stop(self) -> None:
        """SIGTERM: the node drains and marks its directory clean."""
        self.world.faults["stop"] += 1
        self.feed(Shutdown())

    def cut_short(self, where: str) -> None:
        """The disk's fuse has burnt down inside of a start, a call or a job."""
        power = self.disk.fuse_is_power
        self.world.faults[f"{'power loss' if power else 'kill'} inside a {where}"] += 1
        if power:
            self.power_loss()
        else:
            self.kill()

    def _died(self, *, clean: bool) -> None:
        self.node = self._tick_us = None
        self._held.clear()
        self.peers.close()
        inbound, self._inbound = self._inbound, {}
        for one in inbound.values():
            self.world.network.vanish(one.connection)
        self.world.died(self, clean)
        self.world.at(self.rng.randrange(1_000, 500_000), self.start)

    # --- running the node ----------------------------------------------------------------------
    def feed(self, *events: Event) -> None:
        """Events for the node, if there is one."""
        node = self.node
        if node is not None:
            self._guarded(lambda: node.handle_many(events, self.now))

    def _guarded(self, call: Callable[[], list[Effect]], *, starting: bool = False) -> None:
        """Run the node; the disk may decide that everything ends in the middle of it."""
        world, disk = self.world, self.disk
        self.calls += 1
        if not world.calm and self.rng.random() < world.scenario.death_in_call:
            disk.die_after(self.rng.choice((0, 1, 2, 5, 20)), power=self.rng.random() < 0.7)
        disk.on_loop = not starting
        try:
            if self.plant is nullcontext:
                effects = call()
            else:
                with self.plant():
                    effects = call()
        except Death:
            self.cut_short("start" if starting else "call")
            return
        except Blocked as error:
            raise Violation(f"the loop was blocked: {error}") from error
        except Exception as error:
            self._raised(error, starting)
            return
        finally:
            disk.on_loop = False
            disk.die_after(None)
        self._perform(effects)
        if self.node is not None:
            self._schedule_tick()
        self.look_after()
        if self._shutdown_done:
            disk.process_death()
            self._died(clean=disk.exists(f"{DATA_DIR}/clean-shutdown"))

    def _raised(self, error: Exception, starting: bool) -> None:
        """Only a start may fail, and only for a reason: the process reports it and ends."""
        excused = isinstance(error, (DiskFull, StorageFault, ThrottledBroker, OSError)) and (
            self.disk.capacity is not None or self.disk.failures.total()
        )
        if isinstance(error, DiskFull) and self.world.scenario.gate("full-disk-start"):
            excused = False
        if not (starting and excused):
            trace = traceback.format_exception(error)[-1].strip()
            where = "the broker does not start" if starting else "an exception left the node"
            raise Violation(f"{where}: {trace}") from error
        self.log_lines.append(f"start failed: {error}")
        self.world.faults["start refused"] += 1
        self.kill()

    def look_after(self) -> None:
        """To be called whenever code of the node has run.

        Requests that are under way may be answered with an error that was our doing.
        """
        self._held.check()
        total = self.disk.failures.total()
        if total != self._failures_seen:
            self._failures_seen = total
            self.fault_until_us = self.world.mono_us + 1_000_000
            self.offline_until_us = self.world.mono_us + _OPEN_AGAIN_US

    def _schedule_tick(self) -> None:
        assert self.node is not None
        deadline_us = self.node.next_deadline_us()
        if deadline_us is None:
            return
        deadline_us -= self.mono_offset_us
        if self._tick_us is not None and self._tick_us <= deadline_us:
            return
        self._tick_us = deadline_us
        life = self.life

        def tick() -> None:
            if self.life == life and self._tick_us == deadline_us:
                self._tick_us = None
                self.feed(Tick())

        self.world.at(deadline_us - self.world.mono_us, tick)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Respond():
                    self._respond(effect)
                case StartJob():
                    self._jobs.start(effect.job)
                case SendToPeer() | ClosePeer() | PeerAddresses():
                    self.peers.perform(effect)
                case CloseConnection():
                    self._close(effect.connection_id)
                case ShutdownComplete():
                    self._shutdown_done = True
                case ListenToBrokers():
                    self._listens = True
                case StartComplete():
                    self._listens = self._started = True
                    if not self._has_rows():
                        self.wall_offset_us = 0
                    self.world.started(self)
                case ConnectionProved():
                    self.world.events["brokers that have proved that they are"] += 1
                case ConnectionMuted():
                    self._mute(effect)
                case ConfigChanged():
                    self.world.events["configuration followed"] += 1
                case Audited():
                    self.world.events["audited"] += 1
                case _:
                    self.log_lines.append(f"{effect.level} {effect.event} {dict(effect.fields)}")
                    self.world.note(self.log_lines[-1].encode())

    def disk_space(self, free_bytes: int) -> None:
        """What the shell would measure."""
        self.feed(DiskSpace(free_bytes))

    # --- connections ---------------------------------------------------------------------------
    def accept(self, connection: Connection) -> bool:
        """A client connects; False when no process listens."""
        if self.node is None or not self._listens:
            return False
        self._inbound[connection.number] = _Inbound(connection, self._scratch, self._pool)
        self.accepted(connection.number, connection.client_name)
        return True

    def accepted(self, connection_id: int, client_name: str) -> None:
        """A connection of this client is there."""

    def client_name(self, connection_id: int) -> str:
        """Return the client at the other end; empty: the connection is gone."""
        inbound = self._inbound.get(connection_id)
        return "" if inbound is None else inbound.connection.client_name

    def on_bytes(self, connection: Connection, data: bytes) -> None:
        """Endpoint protocol: bytes wait in the kernel until the loop reads them."""
        inbound = self._inbound.get(connection.number)
        if inbound is None or self.node is None:
            return
        inbound.inbox += data
        self._read_soon(inbound)

    def _read_soon(self, inbound: _Inbound) -> None:
        if not (inbound.is_reading or inbound.is_muted):
            inbound.is_reading = True
            self.world.at(self.rng.randrange(1, 1_500), lambda: self._read(inbound))

    def _mute(self, effect: ConnectionMuted) -> None:
        inbound = self._inbound.get(effect.connection_id)
        if inbound is None:
            return
        if inbound.is_muted is effect.is_muted:
            raise Violation(f"a connection is muted twice, or not at all: {effect}")
        self.world.events["connections muted"] += effect.is_muted
        inbound.is_muted = effect.is_muted
        if inbound.inbox:
            self._read_soon(inbound)

    def on_closed(self, connection: Connection) -> None:
        """Endpoint protocol: what the client had sent is read before the loop learns of its end."""
        inbound = self._inbound.get(connection.number)
        if inbound is not None:
            inbound.is_ended = True
            if not inbound.is_reading:
                self._ended(inbound)

    def _ended(self, inbound: _Inbound) -> None:
        number = inbound.connection.number
        if self._inbound.pop(number, None) is not None:
            self.feed(ConnectionClosed(number))

    def _close(self, connection_id: int) -> None:
        inbound = self._inbound.pop(connection_id, None)
        if inbound is not None:
            inbound.connection.close(self)

    def _read(self, inbound: _Inbound) -> None:
        """One read of a socket, and all that comes of it."""
        inbound.is_reading = False
        number = inbound.connection.number
        while inbound.inbox and self.node is not None and number in self._inbound:
            if inbound.is_muted:
                break
            buffer = inbound.receiver.get_buffer()
            size = min(len(buffer), len(inbound.inbox))
            buffer[:size] = inbound.inbox[:size]
            del inbound.inbox[:size]
            frames = inbound.receiver.buffer_updated(size)
            self.world.events["reads that end no frame"] += not frames
            for at in range(0, len(frames), _CHUNK_REQUESTS):
                self._handle(number, frames[at : at + _CHUNK_REQUESTS])
            del buffer
            # The next read of any connection comes to lie here.
            self._scratch[:size] = _SCRIBBLE * min(size, len(self._scratch))
        if inbound.is_ended:
            self._ended(inbound)

    def _handle(self, number: int, frames: Sequence[Frame]) -> None:
        node = self.node
        if node is None:
            return
        counts = self.world.events
        client = self._inbound[number].connection.client_name
        counts["requests handled together"] += len(frames) > 1

        def events() -> Iterator[RequestReceived]:
            for header, body in frames:
                request = decode_request(header)
                counts[request_kind(request, client)] += 1
                yield RequestReceived(number, request, body)

        self._guarded(lambda: node.handle_many(events(), self.now))

    def _respond(self, effect: Respond) -> None:
        inbound = self._inbound.get(effect.connection_id)
        if inbound is None:
            return
        body = effect.body
        head = encode(effect.response, effect.correlation_id, sum(map(len, body)))
        self.world.events["views handed out"] += len(body)
        self._held.hand_out(body)
        frame = b"".join((head, *body))
        self.world.note(frame)
        inbound.connection.send(self, frame)
