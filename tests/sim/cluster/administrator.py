"""A program that changes topics all the time, through the shipped client, while others use them.

Owns its topics, the names that it uses again, and the rules of a topic's life: what was confirmed
holds at the end (a topic, its partitions, a setting), what was confirmed as deleted is gone for
good. A request without a known outcome takes the topic, or the setting, out of these rules.

Not here: which broker is the controller; the client finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.client.base.results import TopicInfo
from quiverlog.errors import (
    InvalidPartitions,
    InvalidReplicationFactor,
    OffsetOutOfRange,
    QuiverlogError,
    TopicExists,
    UnknownTopic,
)
from tests.sim.checker import Key, Violation
from tests.sim.rows import schema_of

from .programs import Program
from .promises import ClusterChecker, ClusterTopicModel

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Administrator"]

_PARTITIONS_MAX = 3
_BEYOND = (OffsetOutOfRange,)
_NOT_CREATED = (TopicExists, UnknownTopic, InvalidReplicationFactor)


class Administrator(Program):
    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.stopped = False
        self.is_idle = False
        self.confirmed: dict[bytes, dict[str, str]] = {}
        """By topic: settings that were confirmed, and that nothing else was asked for since."""
        self.partitions: dict[bytes, int] = {}
        """By topic: how many were confirmed."""
        self.gone: set[bytes] = set()
        self.uncertain: set[str] = set()
        """Names under which a topic may exist: the outcome of the request is unknown."""
        self._models: dict[str, ClusterTopicModel | None] = {
            f"admin{number}-{letter}": None for letter in "ab"
        }
        self._cluster = cluster
        scenario = cluster.scenario
        has_power = not (scenario.power_interval_ms or scenario.all_power_interval_ms)
        self._creates = has_power or scenario.gate("lost-directories")
        super().__init__(cluster, checker, f"administrator-{number}")

    async def main(self) -> None:
        while not self.stopped:
            await self.nap(self.rng.uniform(0.05, 0.8))
            if not self._creates:
                await self._change(self.rng.choice(self._first_topics()))
                continue
            name = self.rng.choice(list(self._models))
            model = self._models[name]
            if name in self.uncertain or (model is not None and self.rng.random() < 0.15):
                await self._delete(name)
            elif model is None:
                await self._create(name)
            else:
                await self._change(self._any_topic(model))
        self.is_idle = True

    def _first_topics(self) -> list[ClusterTopicModel]:
        """The topics that a run begins with, which stay to its end."""
        return [
            topic
            for topic in self.checker.topics.values()
            if isinstance(topic, ClusterTopicModel) and topic.name.startswith("topic")
        ]

    def _any_topic(self, own: ClusterTopicModel) -> ClusterTopicModel:
        """Mostly one of its own."""
        return self.rng.choice(self._first_topics()) if self.rng.random() < 0.3 else own

    async def _change(self, model: ClusterTopicModel) -> None:
        dice = self.rng.random()
        if dice < 0.35:
            await self._alter(model)
        elif dice < 0.5:
            await self._grow(model)
        elif dice < 0.9:
            await self._trim(model)
        else:
            await self._elect(model)

    def _met(self, error: QuiverlogError, what: str, *allowed: type[QuiverlogError]) -> None:
        self.checker.error(error.code)
        if not (error.retriable or isinstance(error, allowed)):
            raise Violation(f"{self.name}: {what} failed: {error!r}")

    # --- life ----------------------------------------------------------------------------------
    async def _create(self, name: str) -> None:
        configs = self._draw_configs()
        self.uncertain.add(name)
        try:
            info = await self.client().create_topic(
                name,
                schema_of(1),
                partitions=self.rng.randint(1, 2),
                replication_factor=self.rng.choice((2, 3, 3)),
                config=configs,
            )
        except QuiverlogError as error:
            # With few brokers alive there is no room for all replicas.
            self._met(error, f"creating {name}", *_NOT_CREATED)
            return
        assert info is not None
        self._created(name, info, configs)

    def _created(self, name: str, info: TopicInfo, configs: dict[str, str]) -> None:
        if info.topic_id in self.gone:
            raise Violation(f"{name} was deleted and is back")
        self.uncertain.discard(name)
        model = self._models[name] = ClusterTopicModel(name, info.topic_id, dict(configs))
        self.confirmed[info.topic_id] = dict(configs)
        self.partitions[info.topic_id] = len(info.partitions)
        self.checker.add(model, len(info.partitions))
        self.world.events["topic created"] += 1

    def _draw_configs(self) -> dict[str, str]:
        rng = self.rng
        tempo_ms = self._scale * 1_000
        return {
            "segment.bytes": str(rng.choice((65_536, 131_072))),
            "segment.ms": str(rng.choice((1_000, 604_800_000))),
            "index.interval.bytes": "1024",
            "retention.ms": str(rng.choice((-1, -1, 4 * tempo_ms))),
            "retention.bytes": str(rng.choice((-1, -1, 65_536))),
            "durability": rng.choice(("memory", "flushed", "replicated", "replicated_flushed")),
            "min.insync.replicas": rng.choice(("1", "2", "2")),
            "unclean.leader.election.enable": rng.choice(("false", "false", "true")),
        }

    async def _delete(self, name: str) -> None:
        model = self._models[name]
        if model is not None:
            model.doomed = True
        self.uncertain.add(name)
        self._models[name] = None
        try:
            await self.client().delete_topic(name, if_exists=True)
        except QuiverlogError as error:
            self._met(error, f"deleting {name}", UnknownTopic)
            return
        self.uncertain.discard(name)
        if model is not None:
            self.gone.add(model.topic_id)
            self.world.events["topic deleted"] += 1

    # --- changes -------------------------------------------------------------------------------
    async def _alter(self, model: ClusterTopicModel) -> None:
        drawn = self._draw_configs()
        keys = [k for k in drawn if k.startswith(("retention", "min.", "unclean", "durability"))]
        if model.name.startswith("topic"):
            keys = ["retention.ms", "retention.bytes", "min.insync.replicas"]
        key = self.rng.choice(keys)
        value = drawn[key]
        model.asked({key: value})
        confirmed = self.confirmed.setdefault(model.topic_id, {})
        confirmed.pop(key, None)
        try:
            await self.client().alter_topic(model.name, config={key: value})
        except QuiverlogError as error:
            self._met(error, f"altering {model.name}")
            return
        confirmed[key] = value
        self.world.events["topic altered"] += 1

    async def _grow(self, model: ClusterTopicModel) -> None:
        count = sum(key[0] == model.topic_id for key in self.checker.partitions) + 1
        if count > _PARTITIONS_MAX:
            return
        try:
            await self.client().alter_topic(model.name, partitions=count)
        except QuiverlogError as error:
            # A try whose answer was lost may have done it.
            self._met(error, f"growing {model.name}", InvalidPartitions, InvalidReplicationFactor)
            return
        self.partitions[model.topic_id] = count
        self.checker.add(model, count)
        self.world.events["topic grown"] += 1

    async def _trim(self, model: ClusterTopicModel) -> None:
        keys = [key for key in self.checker.partitions if key[0] == model.topic_id]
        key = self.rng.choice(keys)
        known = self.checker.partitions[key]
        end = max(known.seen, default=-1) + 1
        before = self.rng.choice((end, self.rng.randint(0, end)))
        if before <= known.trim_confirmed:
            return
        self.checker.trimmed(key, before)
        try:
            answer = await self.client().delete_records(model.name, {key[1]: before})
        except QuiverlogError as error:
            allowed: list[type[QuiverlogError]] = (
                [OffsetOutOfRange] if known.forgetful or known.topic.retained else []
            )
            self._met(error, f"trimming {known.name}", *allowed)
            return
        self._trimmed(key, before, answer[key[1]])

    def _trimmed(self, key: Key, before: int, start: int) -> None:
        known = self.checker.partitions[key]
        if start < before:
            raise Violation(f"{known.name}: deleted below {before}, begins at {start}")
        self.checker.trim_done(key, before)
        self.world.events["rows deleted"] += 1

    async def _elect(self, model: ClusterTopicModel) -> None:
        unclean = not model.name.startswith("topic") and self.rng.random() < 0.3
        if unclean:
            model.may_be_unclean = True
        try:
            await self.client().elect_leaders(model.name, unclean=unclean)
        except QuiverlogError as error:
            self._met(error, f"electing leaders of {model.name}")

    # --- the end -------------------------------------------------------------------------------
    def check(self) -> None:
        """Raise Violation unless the controller's metadata hold what was confirmed."""
        leader = self._cluster.controller()
        assert leader is not None
        assert leader.node is not None
        image = leader.node.broker.metadata.image
        by_id = {topic.topic_id: topic for topic in image.topics.values()}
        for topic_id in self.gone:
            if topic_id in by_id:
                raise Violation(f"{by_id[topic_id].name} was deleted and is there")
        for topic_id, configs in self.confirmed.items():
            if self.checker.topics[topic_id].doomed:
                continue
            name = self.checker.topics[topic_id].name
            if topic_id not in by_id:
                raise Violation(f"{name} was created and is not there")
            found = by_id[topic_id]
            if len(found.partitions) < self.partitions.get(topic_id, 0):
                raise Violation(f"{name}: {len(found.partitions)} partitions, some are missing")
            for key, value in configs.items():
                if found.configs.get(key) != value:
                    raise Violation(f"{name}: {key} was set to {value}: {found.configs.get(key)}")
