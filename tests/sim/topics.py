"""Clients that change topics: one that sets up a run and asks questions, one that never rests.

Owns the rules of a topic's life: what was confirmed as created is there, until its deletion was
asked for; what was confirmed as deleted is gone for good; a topic is one thing (METADATA and
DESCRIBE name all of its partitions, or none); settings that were confirmed are in force; nothing
fails with STORAGE_FAULT unless an operation of the disk really failed.
"""

from __future__ import annotations

from quiverlog.errors import (
    StorageFault,
    TopicExists,
    UnknownTopic,
    error_class,
)
from quiverlog.wire import messages as m

from .actors import Actor
from .checker import Checker, Key, TopicModel, Violation
from .rows import SCHEMAS_MAX, schema_bytes
from .scenario import TopicPlan, draw_configs
from .world import World

__all__ = ["Setup", "TopicAdmin"]

_ATTEMPTS_MAX = 200
_PARTITIONS_MAX = 4


class Setup(Actor):
    """Creates the first topics, and later asks where logs begin and end. Waits for its answers."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.answers: list[tuple[m.Response, bytes]] = []
        super().__init__(world, checker, "setup")

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        self.answers.append((response, body))

    def call(self, request: m.Request) -> tuple[m.Response, bytes]:
        """Ask, and let the world run until the answer is there (again after a lost connection)."""
        wanted = int(type(request).API)
        for _ in range(_ATTEMPTS_MAX):
            self.world.run(5_000_000, until=lambda: self.connection is not None)
            if self.connection is None:
                continue
            self.answers.clear()
            self.ask(request)
            connection = self.connection

            def is_over(asked_on: object = connection) -> bool:
                there = any(response.api == wanted for response, _ in self.answers)
                return there or self.connection is not asked_on

            self.world.run(30_000_000, until=is_over)
            for response, body in self.answers:
                if response.api == wanted:
                    return response, body
        raise Violation(f"{type(request).__name__} was never answered")

    def create(self, plans: tuple[TopicPlan, ...]) -> None:
        """Create all topics."""
        for plan in plans:
            new = m.NewTopic(plan.name, schema_bytes(1), plan.partitions, 1, [], dict(plan.configs))
            self.call(m.CreateTopicsRequest(topics=[new]))
        response, _ = self.call(m.MetadataRequest(topics=[plan.name for plan in plans]))
        assert isinstance(response, m.MetadataResponse)
        for plan, topic in zip(plans, response.topics, strict=True):
            if topic.error_code:
                raise Violation(f"{plan.name} was created and is not there: {topic.error_code}")
            model = TopicModel(plan.name, topic.topic_id, dict(plan.configs))
            self.checker.add(model, plan.partitions)

    def offset(self, key: Key, at: int) -> int:
        """Where a log begins or ends."""
        for _ in range(_ATTEMPTS_MAX):
            found = self.listed(key, at)
            if found is not None:
                return found
        raise Violation("offsets were never listed")

    def listed(self, key: Key, at: int) -> int | None:
        """Where a log begins or ends; None: not answered now."""
        request = m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(*key, at=at)])
        response, _ = self.call(request)
        assert isinstance(response, m.ListOffsetsResponse)
        if response.error_code or response.partitions[0].error_code:
            return None
        return response.partitions[0].offset

    def describe(self) -> dict[bytes, m.TopicDescription]:
        """All topics, by id."""
        response, _ = self.call(m.DescribeTopicsRequest())
        assert isinstance(response, m.DescribeTopicsResponse)
        if response.error_code or any(topic.error_code for topic in response.topics):
            raise Violation(f"topics cannot be described: {response}")
        return {topic.topic_id: topic for topic in response.topics}


class TopicAdmin(Actor):
    """Creates, alters, grows and deletes its own topics, for ever."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self._models: dict[str, TopicModel] = {}
        self._plans: dict[str, list[dict[str, str]]] = {}
        """By name: the settings of all creations that were asked for."""
        self._uncertain: set[bytes] = set()
        """Topics with a change of unknown outcome."""
        self._confirmed: dict[bytes, dict[str, str]] = {}
        self._deleted: set[bytes] = set()
        self._grown: dict[bytes, int] = {}
        self._partitions: dict[bytes, int] = {}
        self._changing: TopicModel | None = None
        super().__init__(world, checker, f"admin-{number}")
        self._names = [f"admin{number}-{letter}" for letter in "ab"]
        if world.scenario.gate("long-names"):
            self._names.append(f"admin{number}-".ljust(self.rng.choice((237, 243, 249)), "x"))

    # --- what to do ----------------------------------------------------------------------------
    def lost(self) -> None:
        if self._changing is not None:
            self._uncertain.add(self._changing.topic_id)
            self._changing = None

    def act(self) -> None:
        name = self.rng.choice(self._names)
        model = self._models.get(name)
        if self.rng.random() < 0.15:
            self.ask(m.DescribeTopicsRequest())
        elif model is None:
            self._create(name)
        elif model.doomed or self.rng.random() < 0.3:
            model.doomed = True
            self.ask(m.DeleteTopicsRequest(names=[name]))
        else:
            self._alter(model)

    def _create(self, name: str) -> None:
        configs = draw_configs(self.rng)
        validate_only = self.rng.random() < 0.1
        new = m.NewTopic(name, schema_bytes(1), self.rng.randint(1, 3), 1, [], configs)
        if not validate_only:
            self._plans.setdefault(name, []).append(configs)
        self.ask(m.CreateTopicsRequest(topics=[new], validate_only=validate_only))

    def _alter(self, model: TopicModel) -> None:
        request = m.AlterTopicRequest(name=model.name)
        what = self.rng.choice(("configs", "configs", "partitions", "schema"))
        if what == "configs":
            configs = draw_configs(self.rng)
            key = self.rng.choice(list(configs))
            request.set_configs = {key: configs[key]}
            model.asked(request.set_configs)
        elif what == "partitions":
            count = self._partitions[model.topic_id] + 1
            if count > _PARTITIONS_MAX:
                self.later(1_000)
                return
            request.partitions = self._grown[model.topic_id] = count
        elif model.schema_id < SCHEMAS_MAX:
            request.schema = schema_bytes(model.schema_id + 1)
        self._changing = model
        self.ask(request)

    # --- answers -------------------------------------------------------------------------------
    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if response.error_code:
            self._excusable(response.error_code, response.error_message)
        if isinstance(response, m.MetadataResponse):
            self._reconcile(response)
            self.later(self.rng.randrange(20_000, 400_000))
            return
        if isinstance(response, m.CreateTopicsResponse | m.DeleteTopicsResponse):
            for result in response.topics:
                self._changed(request, result)
        elif isinstance(response, m.AlterTopicResponse):
            self._altered(request, response)
        elif isinstance(response, m.DescribeTopicsResponse) and not response.error_code:
            self._described(response)
        self.ask(m.MetadataRequest(topics=list(self._names)))

    def _excusable(self, code: int, message: str) -> None:
        self.checker.error(code)
        if code == StorageFault.code and not (self.host.disk.failures.total() or self.excused):
            raise Violation(f"an administrator met a fault and nothing had failed: {message}")
        if not error_class(code).retriable:
            raise Violation(f"a good administrator was refused: {message}")

    def _changed(self, request: m.Request, result: m.TopicResult) -> None:
        name = result.name
        if isinstance(request, m.CreateTopicsRequest):
            if result.error_code == TopicExists.code and len(self._plans.get(name, ())) > 1:
                return
            if result.error_code:
                self._excusable(result.error_code, result.error_message)
            elif not request.validate_only:
                self.world.events["topic created"] += 1
                self._appeared(name, result.topic_id, request.topics[0].partitions)
        elif result.error_code == UnknownTopic.code:
            model = self._models.pop(name, None)
            if model is not None and not model.doomed:
                raise Violation(f"{name} is unknown, no client deleted it")
        elif result.error_code:
            self._excusable(result.error_code, result.error_message)
        else:
            model = self._models.get(name)
            if model is not None and model.topic_id == result.topic_id:
                del self._models[name]
            self._deleted.add(result.topic_id)
            self.world.events["topic deleted"] += 1

    def _appeared(self, name: str, topic_id: bytes, partitions: int) -> None:
        if topic_id in self._deleted:
            raise Violation(f"{name} was deleted and is back")
        if topic_id in self.checker.topics:
            return
        model = TopicModel(name, topic_id, dict(self._plans[name][-1]))
        for configs in self._plans[name]:
            model.asked(configs)
        self._models[name] = model
        self._partitions[topic_id] = partitions
        self.checker.add(model, partitions)
        if len(self._plans[name]) > 1:
            self._uncertain.add(topic_id)

    def _altered(self, request: m.Request, response: m.AlterTopicResponse) -> None:
        assert isinstance(request, m.AlterTopicRequest)
        model, self._changing = self._changing, None
        if response.error_code or model is None:
            if model is not None:
                self._uncertain.add(model.topic_id)
            return
        grown = request.partitions > 0
        self.world.events["topic grown" if grown else "topic altered"] += 1
        model.schema_id = max(model.schema_id, min(response.schema_id, SCHEMAS_MAX))
        if request.set_configs:
            self._confirmed.setdefault(model.topic_id, {}).update(request.set_configs)

    # --- what there is -------------------------------------------------------------------------
    def _reconcile(self, response: m.MetadataResponse) -> None:
        for topic in response.topics:
            model = self._models.get(topic.name)
            if topic.error_code:
                if model is not None and not model.doomed:
                    raise Violation(f"{topic.name} was created and is not there")
                self._models.pop(topic.name, None)
                continue
            if model is not None and model.topic_id != topic.topic_id and not model.doomed:
                raise Violation(f"{topic.name} became another topic")
            if topic.name not in self._plans:
                raise Violation(f"{topic.name} exists, no client created it")
            self._appeared(topic.name, topic.topic_id, len(topic.partitions))
            self._counted(topic.topic_id, len(topic.partitions))
            known = self.checker.topics[topic.topic_id]
            known.schema_id = max(known.schema_id, min(topic.schema_id, SCHEMAS_MAX))
            self._models[topic.name] = known

    def _counted(self, topic_id: bytes, count: int) -> None:
        before = self._partitions[topic_id]
        if count != before and count != self._grown.get(topic_id):
            raise Violation(f"a topic had {before} partitions and has {count}")
        if count < before:
            raise Violation(f"a topic shrank from {before} to {count} partitions")
        self._partitions[topic_id] = count
        self.checker.add(self.checker.topics[topic_id], count)

    def _described(self, response: m.DescribeTopicsResponse) -> None:
        there = {topic.topic_id: topic for topic in response.topics}
        for model in self._models.values():
            topic = there.get(model.topic_id)
            if topic is None:
                if not model.doomed:
                    raise Violation(f"{model.name} is missing among all topics")
                continue
            if len(topic.partitions) < self._partitions[model.topic_id]:
                raise Violation(f"{model.name}: {len(topic.partitions)} partitions described")
            if model.topic_id in self._uncertain:
                continue
            configs = {entry.key: entry.value for entry in topic.configs}
            for key, value in self._confirmed.get(model.topic_id, {}).items():
                if configs.get(key) != value:
                    raise Violation(f"{model.name}: {key} was set to {value}: {configs.get(key)}")
