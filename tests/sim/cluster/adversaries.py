"""Clients that mean no good, or are out of their wits: what they are answered is known beforehand.

Owns five. A producer that sends its requests twice, sends old ones again to any broker, and stays
with former leaders: a repetition is answered with the offset that its rows have, or refused. A
reader with epochs of other times: it is answered under the epoch that it has named, or refused. A
stranger that speaks for brokers: it has none of their numbers right, and nothing that it asks is
done. One that has all the numbers of a partition's leader but the leader epoch, which is the one
before: it is refused, too. And a thief of names, that has all numbers of a broker: it takes the
broker's place, or announces its stop, and the broker has to come back by itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quiverlog.types import NO_EPOCH
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisteredListener,
)
from quiverlog.wire.replica_messages import (
    AlterPartition,
    AlterPartitionRequest,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
)
from tests.sim.checker import Checker, Key, Violation
from tests.sim.producers import _Entry, _Partition
from tests.sim.world import World

from .clients import ClusterProducer, ClusterReader, _Routed
from .glue import CLUSTER_ID
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Deposed", "Impostor", "OddReader", "Repeater", "Thief"]

_REMEMBERED_MAX = 30


class Repeater(ClusterProducer):
    checker: ClusterChecker

    def __init__(self, world: World, checker: Checker, number: int, key: Key) -> None:
        self._done: deque[tuple[_Entry, int, bool]] = deque(maxlen=_REMEMBERED_MAX)
        """Entries that were acknowledged, where, and whether for good."""
        self._repeated: dict[int, _Entry] = {}
        super().__init__(world, checker, number, key)

    def lost(self) -> None:
        super().lost()
        self._repeated.clear()

    def act(self) -> None:
        if self._done and self.rng.random() < 0.2:
            self._again(self.rng.choice(self._done)[0])
        if self.rng.random() < 0.02:
            self.hang_up_later(self.rng.randrange(1, 50_000))  # Then asks any broker.
        super().act()

    def _send(self, entries: list[_Entry]) -> None:
        super()._send(entries)
        if self.rng.random() < 0.3:
            self._again(entries[0])

    def _again(self, entry: _Entry) -> None:
        if self.connection is None:
            return
        request = m.ProduceRequest(
            durability=self._level([entry]),
            timeout_ms=30_000,
            partitions=[m.ProducePartition(*entry.key, self.epoch(entry.key), len(entry.data))],
        )
        self.world.events["produce repeated"] += 1
        self._repeated[self.ask(request, entry.data)] = entry

    def _decided(
        self, partition: _Partition, entry: _Entry, result: m.ProducePartitionResult
    ) -> None:
        if not result.error_code:
            lasts = entry.key not in self.checker.unclean
            lasts = lasts and not self.checker.partitions[entry.key].topic.lossy
            self._done.append((entry, result.base_offset, lasts))
        super()._decided(partition, entry, result)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        repeated = self._repeated.pop(response.correlation_id, None)
        if repeated is None or not isinstance(response, m.ProduceResponse):
            super().answered(request, response, body)
            return
        result = response.partitions[0] if response.partitions else None
        if result is None or result.error_code:
            self.checker.error(response.error_code if result is None else result.error_code)
            return
        self._check_again(repeated, result)

    def _check_again(self, entry: _Entry, result: m.ProducePartitionResult) -> None:
        model = self.checker.partitions[entry.key]
        for done, offset, lasts in self._done:
            if done is entry and lasts and not model.forgetful and result.base_offset != offset:
                raise Violation(
                    f"{model.name}: rows acknowledged at {offset} were stored again, at"
                    f" {result.base_offset}"
                )
        self.world.events["repetition answered"] += 1


class OddReader(ClusterReader):
    def _entry(self, key: Key) -> m.FetchPartition:
        entry = super()._entry(key)
        known = self.epochs.get(key, 0)
        odd = (NO_EPOCH, known, known - 1, known + 1, known + 5)
        entry.leader_epoch = max(NO_EPOCH, self.rng.choice(odd))
        entry.last_epoch = max(NO_EPOCH, self.rng.choice(odd))
        return entry

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.FetchResponse):
            assert isinstance(request, m.FetchRequest)
            for asked, got in zip(request.partitions, response.partitions, strict=False):
                if got.error_code or asked.leader_epoch == NO_EPOCH:
                    continue
                if got.leader_epoch != asked.leader_epoch:
                    raise Violation(
                        f"{self.name} asked under epoch {asked.leader_epoch}, and was answered"
                        f" under {got.leader_epoch}"
                    )
                self.world.events["fetch under the right epoch"] += 1
        super().answered(request, response, body)


class Impostor(_Routed):
    def act(self) -> None:
        self.ask(self.rng.choice((self._register, self._beat, self._copy, self._alter))())

    def _node_id(self) -> int:
        return self.rng.randrange(len(self.world.hosts))

    def _epoch(self) -> int:
        """Not that of any broker: before the first, or long after the last."""
        return self.rng.choice((-1, 0, 2**40))

    def _register(self) -> m.Request:
        return RegisterBrokerRequest(
            cluster_id=self.rng.choice(("", "another-cluster")),
            node_id=self._node_id(),
            incarnation=self.rng.randbytes(16),
            host="nowhere",
            port=9292,
        )

    def _beat(self) -> m.Request:
        return BrokerHeartbeatRequest(
            cluster_id=CLUSTER_ID,
            node_id=self._node_id(),
            broker_epoch=self._epoch(),
            wants_to_stop=True,
        )

    def _copy(self) -> m.Request:
        end = 2**40
        entry = ReplicaFetchPartition(*self.key, self.epochs.get(self.key, 0), end, 0, end)
        epoch = self.rng.choice((-1, 2**40))
        return ReplicaFetchRequest(
            replica_id=self._node_id(), broker_epoch=epoch, partitions=[entry]
        )

    def _alter(self) -> m.Request:
        node_id = self._node_id()
        entry = AlterPartition(
            *self.key, self.rng.randrange(5), self.rng.randrange(5), [node_id], [self._epoch()]
        )
        return AlterPartitionRequest(
            broker_id=node_id, broker_epoch=self._epoch(), partitions=[entry]
        )

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if not isinstance(response, m.HelloResponse):
            parts = getattr(response, "partitions", ())
            if not response.error_code and not any(part.error_code for part in parts):
                raise Violation(f"a stranger was believed: {request}, answered {response}")
            self.checker.error(response.error_code or parts[0].error_code)
            self.world.events["a stranger was refused"] += 1
        if self.rng.random() < 0.1:
            self.hang_up_later(1_000)  # Other brokers get it, too.
        self.later(self.rng.randrange(20_000, 300_000))


class Deposed(Impostor):
    """No broker sends this, as the next leader has another partition epoch, too: the checks of the
    message refuse it all the same.
    """

    def __init__(self, cluster: Cluster, checker: Checker, name: str, key: Key) -> None:
        self._cluster = cluster
        super().__init__(cluster.leisure, checker, name, key)  # type: ignore[arg-type]

    def _elsewhere(self) -> None:
        decides = self._cluster.controller()
        if decides is not None:
            self._target = decides.node_id

    def act(self) -> None:
        decides = self._cluster.controller()
        if decides is None or decides.node is None:
            self.later(50_000)
            return
        image = decides.node.broker.metadata.pending
        partition = image.topics_by_id[self.key[0]].partitions[self.key[1]]
        leads = image.brokers.get(partition.leader_id)
        if leads is None or partition.leader_epoch == 0:
            self.later(50_000)
            return
        before, broker_epoch = partition.leader_epoch - 1, leads.broker_epoch
        entry = AlterPartition(
            *self.key, before, partition.partition_epoch, [leads.node_id], [broker_epoch]
        )
        self.ask(
            AlterPartitionRequest(
                broker_id=leads.node_id, broker_epoch=broker_epoch, partitions=[entry]
            )
        )


class Thief(Deposed):
    """Works as long as there are faults."""

    def act(self) -> None:
        decides = self._cluster.controller()
        if self.world.calm or decides is None or decides.node is None:
            self.later(50_000)
            return
        image = decides.node.broker.metadata.image
        named = [one for one in image.live_brokers() if one.directory_id]
        others = [one for one in named if one.node_id != decides.node_id]
        if others and self.rng.random() < 0.5:
            known = self.rng.choice(others)
            self.ask(
                RegisterBrokerRequest(
                    cluster_id=CLUSTER_ID,
                    node_id=known.node_id,
                    incarnation=self.rng.randbytes(16),
                    directory_id=known.directory_id,
                    host="nowhere",
                    port=9292,
                    listeners=[RegisteredListener(*one) for one in known.listeners],
                    feature_level_max=known.feature_level_max,
                )
            )
        elif named:
            known = self.rng.choice(named)
            self.ask(
                BrokerHeartbeatRequest(
                    cluster_id=CLUSTER_ID,
                    node_id=known.node_id,
                    broker_epoch=known.broker_epoch,
                    metadata_version=image.version,
                    wants_to_stop=True,
                )
            )
        else:
            self.later(50_000)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if not isinstance(response, m.HelloResponse) and not response.error_code:
            self.world.events["a thief was believed"] += 1
        if self.rng.random() < 0.3:
            self.hang_up_later(1_000)
        self.later(self.rng.randrange(100_000, 1_500_000))
