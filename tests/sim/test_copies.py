"""Two nodes with the same records: the one leads a partition, the other copies it, byte for byte.

The nodes, their machines, connections and files are the shipped ones. Without a controller the test
gives both the same decisions, and what dies is what the rows survive: the leader's process, the
follower's machine. Rows that were readable stay what they were.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import ClassVar

import pytest

from quiverlog.addresses import Address
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import (
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import ConnectionOpened, RequestReceived
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, batch_of

from .host import Host
from .scenario import Scenario
from .world import World

CLUSTER = "the-cluster"
TOPIC = bytes(range(16))
LEADER, COPY = 0, 1
CREATED: list[Record] = [
    TopicRecord(TOPIC, "t", 1, 2),
    SchemaRecord(TOPIC, 1, 1, serialize_schema(SCHEMA)),
    PartitionRecord(TOPIC, 0, (LEADER, COPY), (LEADER, COPY), LEADER),
]
RECOVER_US = 15_000_000


class Copying:
    """Two hosts, and a client that writes to the leader."""

    created: ClassVar = CREATED

    def __init__(self, seed: int, *, lossy: bool = False) -> None:
        self.lossy = lossy
        """The leader's machine may die, too: as no other node is elected, rows are lost."""
        drawn = Scenario.draw(seed, duration_ms=1_000)
        calm = {
            field.name: 0.0 for field in dataclasses.fields(drawn)
            if isinstance(getattr(drawn, field.name), float)
        }  # fmt: skip
        self.rng = rng = random.Random(f"copies-{seed}")
        self.world = World(dataclasses.replace(drawn, nodes=2, **calm))
        network = self.world.network
        network.loss, network.half_open = rng.choice((0.0, 0.002)), rng.choice((0.0, 0.5))
        network.slow, network.cut_up = rng.choice((0.0, 0.1)), rng.choice((0.0, 0.3))
        self.readable: dict[int, bytes] = {}
        """The bytes of each log as far as readers could see them."""
        self.numbers = itertools.count(1)
        self.connections = itertools.count(10**9)
        self.produced = 0
        self.world.on_started.append(self._started)
        for host in self.world.hosts:
            host.cluster_id = CLUSTER
            host.start()
        self._write_for_ever()

    def _started(self, host: Host) -> None:
        assert host.node is not None
        broker = host.node.broker
        others = {h.node_id: Address(h.name, 1) for h in self.world.hosts if h is not host}
        broker.peers.addresses_changed(others)
        if TOPIC not in broker.metadata.image.topics_by_id:
            self._decide(host, self.created)
        self.world.at(1, self._agree)

    def _decide(self, host: Host, records: list[Record]) -> None:
        assert host.node is not None
        host.node.broker.propose(records, host.now, lambda _result, _error, _now: None)
        host.feed()

    def _agree(self) -> None:
        """A leader that comes back leads, in a new epoch: the other one learns of it."""
        leader, copy = self.world.hosts
        epochs = []
        self._register(leader, copy)
        self._lead_again(leader)
        for host in (leader, copy):
            if host.node is None:
                return
            metadata = host.node.broker.metadata
            known = metadata.image if host is leader else metadata.pending
            topic = known.topics_by_id.get(TOPIC)
            if topic is None or not topic.partitions:
                self.world.at(50_000, self._agree)
                return
            epochs.append(topic.partitions[0].leader_epoch)
        if epochs[0] > epochs[1]:
            change = PartitionChangeRecord(TOPIC, 0, leader_id=LEADER, leader_epoch=epochs[0])
            self._decide(copy, [change])

    def _lead_again(self, leader: Host) -> None:
        """A broker that decides for itself hands over when it has lost rows; not here."""
        if leader.node is None:
            return
        topic = leader.node.broker.metadata.pending.topics_by_id.get(TOPIC)
        if topic is None or not topic.partitions or topic.partitions[0].leader_id == LEADER:
            return
        epoch = topic.partitions[0].leader_epoch + 1
        change = PartitionChangeRecord(TOPIC, 0, LEADER, epoch, (LEADER, COPY))
        self._decide(leader, [change])
        self.world.at(50_000, self._agree)

    def _register(self, leader: Host, copy: Host) -> None:
        """The leader's metadata have this life of the copy, or it would never be in sync."""
        if leader.node is None or copy.node is None:
            return
        own = copy.node.broker.metadata.image.brokers[COPY]
        known = leader.node.broker.metadata.image.brokers.get(COPY)
        if own.broker_epoch >= 0 and known != own:
            self._decide(leader, [own])

    def _write_for_ever(self) -> None:
        leader = self.world.hosts[LEADER]
        if leader.node is not None and (TOPIC, 0) in leader.node.broker.replicas:
            # Each batch is another one, so its checksum names it.
            count = self.rng.choice((1, 3, 400))
            body = bytes(batch_of(range(self.produced, self.produced + count)))
            self.produced += count
            entry = m.ProducePartition(TOPIC, 0, -1, len(body))
            level = self.level(body)
            request = m.ProduceRequest(durability=level, timeout_ms=1_000, partitions=[entry])
            self.asked(level, body)
            self.ask(request, body)
        self.world.at(self.rng.randrange(1_000, 60_000), self._write_for_ever)

    def level(self, body: bytes) -> int:
        """That the next rows are written with; -1: the topic's."""
        return -1

    def asked(self, level: int, body: bytes) -> None:
        """Rows are on their way."""

    def ask(self, request: m.Request, body: bytes = b"") -> None:
        """Of the leader, over a connection of its own."""
        connection = next(self.connections)
        hello = m.HelloRequest(client_id="writer")
        for one in (hello, request):
            one.correlation_id = next(self.numbers)
        self.world.hosts[LEADER].feed(
            ConnectionOpened(connection, "writer:1"),
            RequestReceived(connection, hello, memoryview(b"")),
            RequestReceived(connection, request, memoryview(bytearray(body))),
        )

    # --- what is there -------------------------------------------------------------------------
    def replica(self, node_id: int) -> Replica | None:
        node = self.world.hosts[node_id].node
        return None if node is None else node.broker.assignment.find((TOPIC, 0))

    def rows(self, node_id: int) -> bytes:
        disk = self.world.hosts[node_id].disk
        paths = sorted(p for p in disk.paths() if "/t-0/" in p and p.endswith(".log"))
        return b"".join(bytes(disk.inode(p).data)[SEGMENT_HEADER_BYTES:] for p in paths)

    def check(self) -> None:
        """What could be read at one node is what the other has at that place."""
        for number in () if self.lossy else (LEADER, COPY):
            replica = self.replica(number)
            if replica is not None and not replica.cutting:
                size = replica.log.reader.bytes_between(0, replica.state.high_watermark)[1]
                rows = self.rows(number)[:size]
                for known in self.readable.values():
                    both = min(len(known), len(rows))
                    assert known[:both] == rows[:both], f"node {number} shows other rows"
                if len(rows) > len(self.readable.get(number, b"")):
                    self.readable[number] = rows

    def break_something(self) -> None:
        leader, copy = self.world.hosts
        kind = self.rng.choice(("cut", "kill leader", "kill copy", "power of copy", "stop copy"))
        if self.lossy and self.rng.random() < 0.5 and leader.node is not None:
            leader.power_loss()
        elif kind == "cut":
            self.world.network.cut(leader.name, copy.name)
            self.world.run(self.rng.randrange(10_000, 8_000_000))
            self.world.network.heal()
        elif kind == "kill leader" and leader.node is not None:
            leader.kill()
        elif copy.node is not None and kind != "kill leader":
            {"k": copy.kill, "p": copy.power_loss, "s": copy.stop}[kind[0]]()
        self.world.events[kind] += 1

    def becomes_equal(self) -> bool:
        leader, copy = self.replica(LEADER), self.replica(COPY)
        if leader is None or copy is None or not leader.state.leads:
            return False
        end = leader.log.log_end_offset
        return copy.log.log_end_offset == end == leader.state.high_watermark > 0

    def cuts(self) -> int:
        lines = self.world.hosts[COPY].log_lines
        return sum(line.startswith("info copy cut") for line in lines)


@pytest.mark.parametrize("seed", range(10))
def test_a_copy_becomes_equal_again_after_every_fault(seed: int) -> None:
    suffer(Copying(seed))


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_cut_off_leaves_and_joins_again(seed: int) -> None:
    copying = Copying(seed)
    copying.world.run(RECOVER_US, until=copying.becomes_equal)
    leader, copy = copying.world.hosts
    for _ in range(2):
        copying.world.network.cut(leader.name, copy.name)
        copying.world.run(REPLICA_LAG_MS_MAX * 1_500)
        replica = copying.replica(LEADER)
        assert replica is not None
        assert replica.state.leadership is not None
        assert replica.state.leadership.in_sync.committed == {LEADER}
        shown = replica.state.high_watermark
        copying.world.run(1_000_000)
        assert replica.state.high_watermark == shown, "fewer than the minimum are in sync"
        copying.world.network.heal()
        copying.world.run(RECOVER_US, until=copying.becomes_equal)
        assert replica.state.leadership.in_sync.committed == {LEADER, COPY}
        assert replica.state.high_watermark > shown
        copying.check()
    changes = [line for line in leader.log_lines if "in-sync replicas changed" in line]
    assert len(changes) == 4


def test_rows_that_are_deleted_are_deleted_on_the_copy() -> None:
    copying = Copying(0)
    copying.world.run(RECOVER_US, until=copying.becomes_equal)
    leader, copy = copying.replica(LEADER), copying.replica(COPY)
    assert leader is not None
    assert copy is not None
    before = leader.state.high_watermark
    assert before > 0
    entry = m.DeleteRecordsPartition(TOPIC, 0, before)
    copying.ask(m.DeleteRecordsRequest(partitions=[entry]))
    copying.world.run(RECOVER_US, until=lambda: copy.log.start_saved >= before)
    assert copy.log.log_start_offset == leader.log.log_start_offset == before
    copying.world.hosts[COPY].power_loss()
    copying.world.run(RECOVER_US, until=copying.becomes_equal)
    again = copying.replica(COPY)
    assert again is not None
    assert again.log.log_start_offset == before, "and stay so"


def test_a_copy_loses_what_its_leader_has_lost() -> None:
    """Where the leader comes back with fewer rows and a new epoch, the copy is cut."""
    cuts = 0
    for seed in range(8):
        copying = Copying(seed, lossy=True)
        suffer(copying)
        cuts += copying.cuts()
    assert cuts > 3


def suffer(copying: Copying) -> None:
    copying.world.run(RECOVER_US, until=copying.becomes_equal)
    assert copying.becomes_equal()
    for _ in range(6):
        copying.break_something()
        copying.world.run(copying.rng.randrange(1, 2_000_000))
        copying.check()
    copying.world.network.loss = 0.0
    copying.world.run(5_000_000)
    copying.world.run(RECOVER_US, until=copying.becomes_equal)
    assert copying.becomes_equal(), copying.world.last_words(5)
    copying.check()
    assert copying.rows(COPY) == copying.rows(LEADER) != b""
    assert copying.produced > 100
    for host in copying.world.hosts:
        assert not [line for line in host.log_lines if line.startswith("error")], host.log_lines
