"""Feature levels: who may be in the cluster and what may be written, over whole nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.configs import CONFIG_DEFS, NEEDS_LEVEL_3
from quiverlog.core.controller.features import BROKER_CONFIGS, LEVELS, MESSAGE_TIMES
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import FeatureLevelRecord, decode_entry, encode_entry
from quiverlog.errors import (
    FeatureNotFinalised,
    InvalidFeatureLevel,
    NotController,
    UnsupportedFeatureLevel,
)
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import AlterConfigsRequest, AlterConfigsResponse, ConfigChange
from quiverlog.wire.feature_messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.support.members import Member, Members
from tests.support.node import SCHEMA

A = TypeVar("A", bound=m.Response)
OLD = 1
"""What a broker is capped at that stands for older software."""


class World:
    """Broker 1 is the controller."""

    def __init__(self, root: Path, *level_max: int) -> None:
        self.members = Members(root)
        for node_id, level in enumerate(level_max, start=1):
            self.add(node_id, level)

    def add(self, node_id: int, level: int, **config: Any) -> Member:
        seeds = (1,) if node_id > 1 else ()
        member = self.members.add(node_id, seeds=seeds, feature_level_max=level, **config)
        if level >= self.level:
            self.members.run_until(lambda: self.is_live(node_id))
            member.call(m.HelloRequest())
        return member

    @property
    def level(self) -> int:
        return self.members.by_id[1].node.broker.metadata.image.feature_level

    def is_live(self, node_id: int) -> bool:
        image = self.members.by_id[1].node.broker.metadata.image
        return node_id in [one.node_id for one in image.live_brokers()]

    def ask(self, request: m.Request, answer: type[A], by: int = 1) -> A:
        member = self.members.by_id[by]
        asked = member.request(request)
        self.members.run_until(lambda: member.answer(asked) is not None)
        found = member.answer(asked)
        assert found is not None
        assert isinstance(found[0], answer)
        return found[0]

    def finalise(self, level: int, by: int = 1, **more: bool) -> UpdateFeaturesResponse:
        return self.ask(UpdateFeaturesRequest(level=level, **more), UpdateFeaturesResponse, by)

    def set_level(self) -> int:
        """The error code of something that level 2 brings."""
        request = AlterConfigsRequest(changes=[ConfigChange("log.level", "debug")])
        return self.ask(request, AlterConfigsResponse).error_code


def test_a_new_cluster_has_the_newest_level(tmp_path: Path) -> None:
    world = World(tmp_path, FEATURE_LEVEL_MAX, FEATURE_LEVEL_MAX)
    found = world.finalise(0, by=2)
    assert (found.level, found.level_max) == (FEATURE_LEVEL_MAX, FEATURE_LEVEL_MAX)
    assert [(one.node_id, one.level_min, one.level_max) for one in found.brokers] == [
        (1, 1, FEATURE_LEVEL_MAX),
        (2, 1, FEATURE_LEVEL_MAX),
    ]
    assert world.set_level() == 0


def test_one_old_broker_beside_newer_ones_then_finalised(tmp_path: Path) -> None:
    world = World(tmp_path, OLD, FEATURE_LEVEL_MAX, OLD)
    assert world.level == OLD
    assert world.set_level() == FeatureNotFinalised.code
    version = world.members.by_id[1].version
    refused = world.finalise(FEATURE_LEVEL_MAX)
    assert refused.error_code == InvalidFeatureLevel.code
    assert "1 (up to 1), 3 (up to 1)" in refused.error_message
    assert world.members.by_id[1].version == version, "nothing was written"
    for node_id in (3, 1):
        world.members.by_id[node_id].restart(feature_level_max=FEATURE_LEVEL_MAX)
        world.members.run_until(lambda: all(map(world.is_live, (1, 2, 3))))
        world.members.by_id[node_id].call(m.HelloRequest())
    assert world.level == OLD, "nobody has asked for more"
    assert world.finalise(0).level_max == FEATURE_LEVEL_MAX
    assert world.finalise(FEATURE_LEVEL_MAX, validate_only=True).level == OLD
    assert world.level == OLD
    assert world.finalise(FEATURE_LEVEL_MAX, by=2).error_code == NotController.code
    assert world.finalise(FEATURE_LEVEL_MAX).level == FEATURE_LEVEL_MAX
    assert world.finalise(FEATURE_LEVEL_MAX).error_code == 0, "asked twice"
    assert world.set_level() == 0
    image = world.members.by_id[2].node.broker.metadata
    world.members.run_until(lambda: image.image.feature_level == FEATURE_LEVEL_MAX)


@pytest.mark.parametrize("level", [FEATURE_LEVEL_MAX + 1, 2**31 - 1, FEATURE_LEVEL_MAX - 1])
def test_levels_that_cannot_be_are_refused(tmp_path: Path, level: int) -> None:
    world = World(tmp_path, FEATURE_LEVEL_MAX)
    version = world.members.by_id[1].version
    assert world.finalise(level).error_code == InvalidFeatureLevel.code
    assert (world.level, world.members.by_id[1].version) == (FEATURE_LEVEL_MAX, version)


def test_a_broker_below_the_level_is_refused_and_says_why(tmp_path: Path) -> None:
    world = World(tmp_path, FEATURE_LEVEL_MAX)
    old = world.add(2, OLD)
    world.members.run_until(lambda: any("79" in str(one) for one in old.lines))
    (told,) = [one for one in old.lines if "does not take this broker" in one.event]
    assert told.level == "warning"
    assert f"feature level {FEATURE_LEVEL_MAX}, broker 2 supports 1 to 1" in str(told.fields["why"])
    world.members.run(1_000)
    assert 2 not in world.members.by_id[1].node.broker.metadata.image.brokers
    assert len([one for one in old.lines if "does not take" in one.event]) == 1, "said once"


def test_a_broker_that_is_alone_does_not_start_below_its_level(tmp_path: Path) -> None:
    world = World(tmp_path, FEATURE_LEVEL_MAX)
    one = world.members.by_id[1]
    with pytest.raises(
        UnsupportedFeatureLevel, match=f"directory has feature level {FEATURE_LEVEL_MAX}"
    ):
        one.restart(feature_level_max=OLD)
    one.config = replace(one.config, feature_level_max=FEATURE_LEVEL_MAX)
    one.start()
    assert world.level == FEATURE_LEVEL_MAX


def test_the_level_is_in_snapshots_and_absent_from_those_of_the_first() -> None:
    image = Image({})
    assert not any(isinstance(one, FeatureLevelRecord) for one in image.snapshot_records())
    image.replay_entry([FeatureLevelRecord(2)], version=3)
    again = Image({})
    again.replay_entry(decode_entry(encode_entry(image.snapshot_records())), version=3)
    assert again.feature_level == 2
    pending = Image({})
    pending.replay_entry([FeatureLevelRecord(2)])
    pending.revert(Image({}), ())
    assert pending.feature_level == 1


KEYS_BELOW_LEVEL_3 = {
    *("compression.type", "durability", "index.interval.bytes", "max.message.bytes"),
    *("min.insync.replicas", "retention.bytes", "retention.ms", "segment.bytes", "segment.ms"),
    *("unclean.leader.election.enable", "validation"),
}
"""What software of level 2 knew. It stops at a record with another key, and with it the quorum."""


def test_a_key_of_topics_that_older_software_does_not_know_needs_a_level() -> None:
    assert set(CONFIG_DEFS) - NEEDS_LEVEL_3 == KEYS_BELOW_LEVEL_3


@pytest.mark.parametrize("key", sorted(NEEDS_LEVEL_3))
def test_the_times_of_rows_are_refused_below_their_level(tmp_path: Path, key: str) -> None:
    world = World(tmp_path, MESSAGE_TIMES - 1)
    value = "LogAppendTime" if key.endswith("type") else "5000"

    def codes() -> list[int]:
        new = m.NewTopic(f"at-{world.level}", serialize_schema(SCHEMA), 1, 1, configs={key: value})
        made = world.ask(m.CreateTopicsRequest(topics=[new]), m.CreateTopicsResponse)
        plain = m.NewTopic("plain", serialize_schema(SCHEMA), 1, 1)
        world.ask(m.CreateTopicsRequest(topics=[plain]), m.CreateTopicsResponse)
        change = m.AlterTopicRequest(name="plain", set_configs={key: value})
        default = AlterConfigsRequest(changes=[ConfigChange(f"topic.defaults.{key}", value)])
        return [
            made.topics[0].error_code,
            world.ask(change, m.AlterTopicResponse).error_code,
            world.ask(default, AlterConfigsResponse).error_code,
        ]

    assert codes() == [FeatureNotFinalised.code] * 3
    world.members.by_id[1].restart(feature_level_max=FEATURE_LEVEL_MAX)
    world.members.by_id[1].call(m.HelloRequest())
    assert world.finalise(MESSAGE_TIMES).level == MESSAGE_TIMES
    assert codes() == [0] * 3


def test_what_a_level_gates_is_in_the_table() -> None:
    assert {BROKER_CONFIGS, MESSAGE_TIMES} <= set(LEVELS)
    assert max(LEVELS) == FEATURE_LEVEL_MAX
