"""A consumer whose partitions come and go, beside a plain model of what it may hand out.

Rows come only of a partition that is assigned and not paused, from its position on, none twice and
none left out, whatever was fetched or in flight when the assignment changed.
"""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from quiverlog.client.consumer.core import Assigned, ConsumerCore
from quiverlog.client.consumer.options import ConsumerOptions, consumer_options
from quiverlog.client.consumer.positions import PartitionKey
from quiverlog.limits import FETCH_BYTES_DEFAULT
from tests.support.topics_world import TopicsWorld

TOPICS = {"a": 3, "b": 1, "c": 2}
STEPS = 60


def options(**others: object) -> ConsumerOptions:
    given = {
        "start": "earliest", "end": None, "follow": True, "columns": None, "partitions": None,
        "fetch_bytes": FETCH_BYTES_DEFAULT, "skip_corrupt": False, "fetch_from": "leader",
        "client_rack": "", **others,
    }  # fmt: skip
    return consumer_options(**given)  # type: ignore[arg-type]


class Model:
    """Positions by partition, as a person would keep them on paper."""

    def __init__(self, world: TopicsWorld, seed: int) -> None:
        self.world = world
        self.rng = Random(seed)
        self.names = {topic_id: name for name, topic_id in world.ids.items()}
        self.core = ConsumerCore(world.cluster, {}, options())
        self.positions: dict[PartitionKey, int] = {}
        # What a group would have committed: where a partition goes on when it comes back.
        self.left: dict[PartitionKey, int] = {}
        self.paused: set[PartitionKey] = set()

    def named(self, key: PartitionKey) -> tuple[str, int]:
        return self.names[key[0]], key[1]

    def assign(self) -> None:
        added = [k for k in self.world.logs if k not in self.positions and self.rng.random() < 0.4]
        removed = [k for k in self.positions if self.rng.random() < 0.4]
        # One that goes and comes back in one step begins at what it left, too.
        added += [k for k in removed if self.rng.random() < 0.3]
        for key in removed:
            self.left[key] = self.positions.pop(key)
            self.paused.discard(key)
        wanted = [
            Assigned(self.names[k[0]], *k, self.left.get(k, -1), 0 if k in self.left else -1)
            for k in added
        ]
        self.world.run(self.core.assign(wanted, removed))
        self.positions |= {key: self.left.get(key, 0) for key in added}

    def pause(self) -> None:
        for key in self.positions:
            if self.rng.random() < 0.3:
                (self.core.pause if key not in self.paused else self.core.resume)(self.named(key))
                self.paused ^= {key}

    def seek(self) -> None:
        if self.positions:
            key = self.rng.choice(list(self.positions))
            offset = self.rng.randint(0, self.world.end(key))
            self.core.seek(self.named(key), offset)
            self.positions[key] = offset

    def read(self, timeout_s: float) -> bool:
        batch = self.world.run(self.core.next(timeout_s))
        self.core.handed_out()
        if batch is not None:
            key = self.world.ids[batch.topic], batch.partition
            assert key in self.positions, "rows of a partition that is not assigned"
            assert key not in self.paused, "rows of a paused partition"
            assert batch.base_offset == self.positions[key], "skipped or repeated"
            assert batch.data.column(0).to_pylist() == list(
                range(batch.base_offset, batch.next_offset)
            )
            self.positions[key] = batch.next_offset
        expected = {self.named(key): offset for key, offset in self.positions.items()}
        assert self.core.positions == expected
        return batch is not None


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(0, 2**32))
def test_rows_come_only_of_what_is_assigned(seed: int) -> None:
    world = TopicsWorld(TOPICS, seed, produce=0.2)
    model = Model(world, seed)
    for _ in range(STEPS):
        act = model.rng.random()
        if act < 0.12:
            model.assign()
        elif act < 0.24:
            model.pause()
        elif act < 0.3:
            model.seek()
        else:
            model.read(model.rng.choice([0.0, 0.1, 0.4]))
    world.chance = 0.0
    for key in model.paused:
        model.core.resume(model.named(key))
    model.paused.clear()
    while model.read(2.0):
        pass
    ends = {key: world.end(key) for key in model.positions}
    assert model.positions == ends, "rows are left"
