"""What a course of faults is made of: a look at a partition, its elections and its links.

Owns the words that `courses` are written in: waiting for something, with a limit; elections as the
controller would make them; links that are late, cut or one-way; brokers that stay away.

Not here: which course is for what; rules about rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import (
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import QuiverlogError
from quiverlog.node.partitions.replica import Replica
from tests.sim.checker import Violation
from tests.sim.network import Link
from tests.sim.rows import schema_of

from .clients import ClusterTrimmer
from .host import ClusterHost
from .promises import ClusterChecker

if TYPE_CHECKING:
    from quiverlog.core.controller.image import Image

    from .cluster import Cluster

__all__ = ["LATE_US", "Course", "Over", "Stage"]

Course = Generator[int, None, None]
"""Does something, and yields for how many microseconds nothing more is done."""

_LOOK_US: Final = 2_000
_FIRST_ID: Final = 100
_PATIENCE_US: Final = 3_000_000
_PROMISED_US: Final = 4_000_000
"""Twice a session, and twice what the controller waits until it looks again."""
LATE_US: Final = 600_000
"""Long enough for two elections, shorter than any wait for an answer."""


class Over(Exception):
    """What a course has waited for has not come."""


class Stage:
    def __init__(self, cluster: Cluster, checker: ClusterChecker) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.checker = checker
        self.rng = random.Random(f"courses-{cluster.scenario.seed}")
        self.key = checker.live()[0]
        self._topics = 0
        self._trimmer = ClusterTrimmer(self.world, checker, self.key)

    # --- looking -------------------------------------------------------------------------------
    def until(
        self,
        condition: Callable[[], object],
        patience_us: int = _PATIENCE_US,
        look_us: int = _LOOK_US,
    ) -> Course:
        """Wait for it."""
        waited_us = 0
        while not condition():
            if waited_us >= patience_us:
                raise Over
            waited_us += look_us
            yield look_us

    def must(self, condition: Callable[[], object], what: str) -> Course:
        """Wait for what the product promises: it comes, as nothing else is in its way."""
        try:
            yield from self.until(condition, _PROMISED_US)
        except Over:
            if not condition():
                raise Violation(f"not within {_PROMISED_US / 1e6:.0f} s: {what}") from None

    def controller(self) -> ClusterHost:
        found = self.cluster.controller()
        if found is None or found.node is None:
            raise Over
        return found

    def image(self) -> Image:
        """The controller's image."""
        node = self.controller().node
        assert node is not None
        return node.broker.metadata.pending

    def partition(self) -> PartitionImage:
        """The first one of the first topic, which all courses are about."""
        topic_id, number = self.key
        return self.image().topics_by_id[topic_id].partitions[number]

    def replica(self, host: ClusterHost) -> Replica | None:
        return None if host.node is None else host.node.broker.assignment.find(self.key)

    def end(self, host: ClusterHost) -> int:
        """Where its log ends; -1: it is not there."""
        replica = self.replica(host)
        return -1 if replica is None else replica.log.log_end_offset

    def log_start(self, host: ClusterHost) -> int:
        replica = self.replica(host)
        return -1 if replica is None else replica.log.log_start_offset

    def leads(self, host: ClusterHost) -> bool:
        """Return whether it leads by its own state."""
        replica = self.replica(host)
        return replica is not None and replica.state.leads

    @property
    def committed(self) -> int:
        """Up to where a reader may have read."""
        return self.cluster.invariants.committed_end(self.key)

    def is_in_sync(self, host: ClusterHost) -> bool:
        return host.is_serving and host.node_id in self.partition().in_sync_replicas

    def is_registered(self, host: ClusterHost) -> bool:
        """Is the life that it is in the one that the metadata name?"""
        known = self.image().brokers.get(host.node_id)
        return host.node is not None and known is not None and (
            bytes(known.incarnation) == host.incarnation
        )  # fmt: skip

    def three(self, *, controller_may_be: int = -1) -> Generator[int, None, list[ClusterHost]]:
        """The three replicas when all is well, in an order in which the one that decides, if it is
        one of them, has this place."""
        yield from self.until(self.cluster.all_in_sync)
        found = [self.cluster.hosts[n] for n in self.partition().replicas]
        self.rng.shuffle(found)
        decides = self.controller()
        if decides in found:
            if controller_may_be < 0:
                self.move_controller()
                raise Over
            found.remove(decides)
            found.insert(controller_may_be, decides)
        return found

    # --- doing ---------------------------------------------------------------------------------
    def decide(self, records: list[Record]) -> None:
        """Decide as the controller."""
        host = self.controller()
        assert host.node is not None
        try:
            host.node.broker.propose(records, host.now, lambda _result, _error, _now: None)
        except QuiverlogError as error:
            raise Over from error
        host.feed()

    def lead(self, host: ClusterHost) -> Course:
        """This broker leads from now on, and has learned of it."""
        partition = self.partition()
        if partition.leader_id != host.node_id:
            if host.node_id not in partition.in_sync_replicas:
                raise Over
            epoch = partition.leader_epoch + 1
            topic_id, number = self.key
            self.decide(
                [
                    PartitionChangeRecord(
                        topic_id, number, leader_id=host.node_id, leader_epoch=epoch
                    )
                ]
            )
        yield from self.until(lambda: self.leads(host))

    def create(self, name: str, hosts: Sequence[ClusterHost]) -> bytes:
        """A topic with one partition on these brokers, without a producer. Returns its id."""
        self._topics += 1
        topic_id = bytes([_FIRST_ID + self._topics]) * 16
        replicas = tuple(host.node_id for host in hosts)
        self.decide(
            [
                TopicRecord(topic_id, name, 1, len(replicas)),
                SchemaRecord(topic_id, 1, 1, bytes(serialize_schema(schema_of(1)))),
                PartitionRecord(topic_id, 0, replicas, replicas, replicas[0]),
            ]
        )
        return topic_id

    def remove(self, name: str) -> None:
        """The topic of this name goes, if there is one."""
        topic = self.image().topics.get(name)
        if topic is not None:
            self.decide([RemoveTopicRecord(topic.topic_id)])

    def has_topic(self, host: ClusterHost, topic_id: bytes) -> bool:
        """Return whether its metadata have this topic."""
        return host.node is not None and (
            topic_id in host.node.broker.metadata.image.topics_by_id
        )  # fmt: skip

    def has_open(self, host: ClusterHost, topic_id: bytes) -> bool:
        """Can the first partition of this topic be used there?"""
        return host.node is not None and (
            host.node.broker.assignment.find((topic_id, 0)) is not None
        )  # fmt: skip

    def decide_leader(self, host: ClusterHost) -> None:
        """This broker is to lead from now on, whether it has learned of it or not."""
        next(self.lead(host), None)

    def move_controller(self) -> None:
        """Another node is to be the controller."""
        host = self.controller()
        self.cluster.goes_down(host)
        host.kill()

    def late(self, source: ClusterHost, target: ClusterHost, delay_us: int = LATE_US) -> None:
        """Messages on this link arrive late."""
        self.world.network.links[source.name, target.name] = Link(delay_us=delay_us)

    def cut(self, one: ClusterHost, *others: ClusterHost) -> None:
        for other in others:
            self.world.network.cut(one.name, other.name)

    def deaf(self, source: ClusterHost, *targets: ClusterHost) -> None:
        """Messages on this link are lost."""
        for target in targets:
            self.world.network.cut_one_way(source.name, target.name)

    def reset(self, one: ClusterHost, other: ClusterHost) -> None:
        """Requests from the one to the other get no answer, and may not have arrived."""
        self.world.network.reset(one.name, other.name)

    def mend(self, one: ClusterHost, *others: ClusterHost) -> None:
        for other in others:
            self.world.network.mend(one.name, other.name)

    def heal(self) -> None:
        """All links work at once."""
        self.world.network.links.clear()
        self.world.network.heal()
        for host in self.cluster.hosts:
            host.stalled_us = 0
            self.cluster.machines.make_room(host)
            if host.node is None and host.down_until_us > self.world.mono_us:
                self.up(host)

    def down(self, host: ClusterHost) -> None:
        """This broker stays away until `up`."""
        host.down_until_us = 1 << 62

    def up(self, host: ClusterHost) -> None:
        host.down_until_us = self.world.mono_us
        host.start()

    def trim(self, before: int) -> None:
        """A client gives up the rows below this one."""
        self._trimmer.trim(before)
