"""Adversarial clients of a cluster: each writes to, or reads from, one partition, led anywhere.

Owns how they find the leader: METADATA of any broker, NOT_LEADER makes them ask again, and now and
then they stay with a former leader. What they check is the single node's (`producers`, `actors`);
what an acknowledgement is worth is the cluster's (`promises`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quiverlog.errors import (
    FencedLeaderEpoch,
    NotLeader,
    ReplicaNotAvailable,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from quiverlog.types import LATEST, Durability
from quiverlog.wire import messages as m
from tests.sim.actors import Actor, Reader
from tests.sim.checker import Checker, Key, Violation
from tests.sim.host import Host
from tests.sim.network import Connection
from tests.sim.producers import Producer, _Entry, _Partition
from tests.sim.topics import Setup
from tests.sim.world import World

from .patience import patience_us
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = [
    "ClusterProducer", "ClusterReader", "ClusterSetup", "ClusterTrimmer", "put_down_ends",
]  # fmt: skip

_ELSEWHERE = (
    NotLeader.code, FencedLeaderEpoch.code, UnknownLeaderEpoch.code, UnknownTopicId.code,
)  # fmt: skip
_SILENT_US = 3_000_000


class _Routed(Actor):
    """A client of one partition."""

    def __init__(self, world: World, checker: Checker, name: str, key: Key) -> None:
        self.key = key
        self._target = 0
        Actor.__init__(self, world, checker, name)
        self._watch()

    @property
    def host(self) -> Host:
        return self.world.hosts[self._target]

    def log_start(self, key: Key, offset: int) -> None:
        """A broker that is cut off may lack a trim: live copies alone confirm it, and what it has
        shown stays shown."""
        node, floors = self.host.node, self.last.floors
        if node is not None and not node.broker.membership.registration.may_lead(self.host.now):
            floors = {}
        self.checker.log_start(key, offset, self.world.wall_us, floors.get(key, 0))

    def lost(self) -> None:
        super().lost()
        self._elsewhere()

    def connect(self) -> None:
        super().connect()
        if self.connection is None:
            self._elsewhere()

    def _elsewhere(self) -> None:
        """Any broker may answer which one leads."""
        self._target = self.rng.randrange(len(self.world.hosts))

    def _watch(self) -> None:
        """A broker that is cut off answers nothing: the client gives it up in the end."""
        waiting = self.unanswered
        if waiting and waiting[0].sent_us < self.world.mono_us - _SILENT_US:
            self.hang_up()
        self.world.at(self.rng.randrange(200_000, 1_000_000), self._watch)

    def _expect_in_time(self, correlation_id: int, connection: Connection, wait_ms: int) -> None:
        """Brokers are paused and cut off here."""

    def fault_excused(self, message: str) -> bool:
        """A sector that could not be read once keeps its partition out of use until a restart."""
        failures = self.host.disk.failures
        is_bad = failures["EIO read"] or getattr(self.host, "is_rotten", False)
        return super().fault_excused(message) or bool(is_bad)

    def refused(self, key: Key, code: int, message: str) -> None:
        if code == UnknownTopicId.code:
            # A broker that has just started answers before it has all topics.
            self.world.events["topic not known yet"] += 1
            self.hang_up_later(self.rng.randrange(1, 200_000))
            return
        super().refused(key, code, message)
        if code in _ELSEWHERE:
            self._ask_for_leader()

    def _ask_for_leader(self) -> None:
        if self.connection is not None and self.rng.random() < 0.7:
            model = self.checker.partitions[self.key]
            self.ask(m.MetadataRequest(topics=[model.topic.name]))
        else:
            self.hang_up_later(self.rng.randrange(1, 200_000))

    def led_by(self, response: m.MetadataResponse) -> None:
        """METADATA was answered: go where the partition is led."""
        leaders = [
            one.leader_id
            for topic in response.topics
            for one in topic.partitions
            if (topic.topic_id, one.partition) == self.key
        ]
        if leaders and leaders[0] not in (-1, self._target):
            self.hang_up()
            self._target = leaders[0]
        else:
            self.hang_up_later(self.rng.randrange(1_000, 300_000))


class ClusterProducer(_Routed, Producer):
    """Writes to one partition."""

    def __init__(self, world: World, checker: Checker, number: int, key: Key) -> None:
        self.number = number
        self.stopped = False
        self._next_value = 0
        self._identity = None
        self._partitions = {}
        self._requests = {}
        self._order = 0
        _Routed.__init__(self, world, checker, f"producer-{number}", key)

    def keys(self) -> list[Key]:
        return [self.key]

    def _make(self, key: Key, partition: _Partition) -> None:
        super()._make(key, partition)
        # One batch each; the shipped client cuts what it is given as it likes.
        assert isinstance(self.checker, ClusterChecker)
        values = partition.entries[-1].values
        self.checker.histories.sent(key, values, self.world.mono_us)

    def _level(self, entries: object) -> int:
        return int(Durability.TOPIC_DEFAULT)

    def _refused(self, partition: _Partition, entry: _Entry, code: int, message: str) -> None:
        if code == UnknownTopicId.code:
            code, message = NotLeader.code, "no leader of a topic that is not there yet"
        super()._refused(partition, entry, code, message)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.MetadataResponse):
            self.led_by(response)
            return
        before = self.connection
        super().answered(request, response, body)
        if not isinstance(response, m.ProduceResponse) or self.connection is not before:
            return
        if any(part.error_code in _ELSEWHERE for part in response.partitions):
            self._ask_for_leader()


def put_down_ends(client: _Routed, request: m.Request, response: m.ListOffsetsResponse) -> None:
    """Record the leader's answer where readable rows end, as a read of the partition."""
    assert isinstance(request, m.ListOffsetsRequest)
    assert isinstance(client.checker, ClusterChecker)
    if client.checker.all_are_down():
        return
    called_us, now_us = client.last.sent_us, client.world.mono_us
    for asked, got in zip(request.partitions, response.partitions, strict=False):
        if asked.at == LATEST and not got.error_code:
            key = (got.topic_id, got.partition)
            client.checker.histories.end(key, got.offset, called_us, now_us)


class ClusterReader(_Routed, Reader):
    """Reads one partition at odd places, sometimes from a copy of it."""

    def __init__(self, world: World, checker: Checker, number: int, key: Key) -> None:
        self._ends = {}
        _Routed.__init__(self, world, checker, f"reader-{number}", key)

    def keys(self) -> list[Key]:
        return [self.key]

    def _entry(self, key: Key) -> m.FetchPartition:
        entry = super()._entry(key)
        entry.from_follower = self.rng.random() < 0.5
        return entry

    def _listed(self, request: m.Request, response: m.ListOffsetsResponse) -> None:
        put_down_ends(self, request, response)
        super()._listed(request, response)

    def _failed(self, key: Key, got: m.FetchPartitionResult) -> None:
        if got.error_code == ReplicaNotAvailable.code:
            self.hang_up_later(self.rng.randrange(1, 100_000))
        else:
            super()._failed(key, got)

    def led_by(self, response: m.MetadataResponse) -> None:
        if self.rng.random() < 0.5:
            super().led_by(response)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.MetadataResponse):
            self.led_by(response)
        else:
            super().answered(request, response, body)


class ClusterTrimmer(_Routed):
    """Gives up the rows of one partition on request."""

    def __init__(self, world: World, checker: Checker, key: Key) -> None:
        self._before = 0
        _Routed.__init__(self, world, checker, "trimmer-0", key)

    def trim(self, before: int) -> None:
        """Rows below this one are given up, under any leader."""
        self._before = before
        self.checker.trimmed(self.key, before)
        if self.connection is not None:
            self.act()

    def act(self) -> None:
        if self._before > self.checker.partitions[self.key].trim_confirmed:
            entry = m.DeleteRecordsPartition(*self.key, self._before)
            self.ask(m.DeleteRecordsRequest(partitions=[entry]))

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            self.later(1_000)
        elif isinstance(response, m.MetadataResponse):
            self.led_by(response)
        elif isinstance(response, m.DeleteRecordsResponse):
            assert isinstance(request, m.DeleteRecordsRequest)
            if not response.partitions:
                self.hang_up_later(self.rng.randrange(1, 200_000))
                return
            asked, got = request.partitions[0], response.partitions[0]
            if got.error_code:
                self.refused(self.key, got.error_code, got.error_message)
                return
            self.log_start(self.key, got.log_start_offset)
            self.checker.trim_done(self.key, min(got.log_start_offset, asked.before_offset))
            self.world.events["rows deleted"] += 1


class ClusterSetup(_Routed, Setup):
    """Asks where logs begin and end, and reads them, one partition after the other.

    It has patience: what is refused it asks for again, for as long as a cluster may take.
    """

    def __init__(self, cluster: Cluster, checker: Checker, key: Key) -> None:
        self.answers = []
        self._cluster = cluster
        _Routed.__init__(self, cluster.world, checker, f"setup-{key[0][0]}-{key[1]}", key)

    def tries(self) -> Iterator[None]:
        """Once for each try, until the cluster has had its time; a refused call waits."""
        until_us = self.world.mono_us + patience_us(self._cluster)
        while self.world.mono_us < until_us:
            yield

    def offset(self, key: Key, at: int) -> int:
        for _ in self.tries():
            found = self.listed(key, at)
            if found is not None:
                return found
        raise Violation("offsets were never listed")

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.MetadataResponse):
            self.led_by(response)
            return
        if isinstance(response, m.ListOffsetsResponse):
            put_down_ends(self, request, response)
        super().answered(request, response, body)
        parts = getattr(response, "partitions", ())
        if any(part.error_code in _ELSEWHERE for part in parts):
            self._ask_for_leader()

    def call(self, request: m.Request) -> tuple[m.Response, bytes]:
        """Wait a little after an error."""
        response, body = super().call(request)
        if response.error_code or any(p.error_code for p in getattr(response, "partitions", ())):
            self.world.run(100_000)
        return response, body
