"""Feature levels: which brokers may be in the cluster and what may be written, over whole nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quiverlog.batch.checksum import crc32c
from quiverlog.core.controller import features
from quiverlog.core.controller.features import check_finalised, cluster_number
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import FeatureLevelRecord, decode_entry, encode_entry
from quiverlog.errors import (
    FeatureNotFinalised,
    InvalidFeatureLevel,
    NotController,
    UnsupportedFeatureLevel,
)
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.node.runtime import config as node_config
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.support.members import Member, Members

A = TypeVar("A", bound=m.Response)
OLD = FEATURE_LEVEL_MAX
"""What today's brokers support; below, of older software."""
NEW = OLD + 1
"""A level that only this test has."""


@pytest.fixture(autouse=True)
def another_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(features.LEVELS, NEW, "what the test adds")
    for module in (features, node_config):
        monkeypatch.setattr(module, "FEATURE_LEVEL_MAX", NEW)


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


def test_a_new_cluster_has_the_newest_level(tmp_path: Path) -> None:
    world = World(tmp_path, NEW, NEW)
    found = world.finalise(0, by=2)
    assert (found.level, found.level_max) == (NEW, NEW)
    assert [(one.node_id, one.level_min, one.level_max) for one in found.brokers] == [
        (1, 1, NEW),
        (2, 1, NEW),
    ]


def test_the_cluster_gets_a_number_with_level_2(tmp_path: Path) -> None:
    world = World(tmp_path, 1, OLD)
    ids = [world.ask(m.InitProducerIdRequest(), m.InitProducerIdResponse).producer_id]
    assert world.ask(m.MetadataRequest(), m.MetadataResponse, by=2).cluster_number == 0
    world.members.by_id[1].restart(feature_level_max=OLD)
    world.members.run_until(lambda: all(map(world.is_live, (1, 2))))
    world.members.by_id[1].call(m.HelloRequest())
    assert world.finalise(2).level == 2
    directory = world.members.by_id[1].node.broker.directory
    number = 1 + crc32c(directory.cluster_id.encode()) % 32_767
    images = [world.members.by_id[n].node.broker.metadata for n in (1, 2)]
    world.members.run_until(lambda: all(one.image.cluster_number == number for one in images))
    for by in (1, 2):
        found = world.ask(m.MetadataRequest(), m.MetadataResponse, by=by)
        assert found.cluster_number == number
    ids += [world.ask(m.InitProducerIdRequest(), m.InitProducerIdResponse).producer_id]
    assert (ids[0] >> 47, ids[1] >> 47) == (0, number)
    assert ids[1] % 2**47 > ids[0], "the counter goes on"
    may_be_assigned = world.members.by_id[2].node.broker.producer_ids.may_be_assigned
    world.members.run_until(lambda: may_be_assigned(ids[1]))
    assert may_be_assigned(ids[0])
    other = number % 32_767 + 1
    assert not may_be_assigned(ids[1] + (other - number << 47)), "of another cluster"
    block_end = images[0].image.next_producer_id
    assert not may_be_assigned((number << 47) + block_end)
    assert not may_be_assigned(block_end)


def test_a_new_cluster_has_a_number_from_the_beginning_and_keeps_it(tmp_path: Path) -> None:
    world = World(tmp_path, NEW)
    one = world.members.by_id[1]
    number = one.node.broker.metadata.image.cluster_number
    assert number == cluster_number(one.node.broker.directory.cluster_id)
    one.restart()
    assert one.node.broker.metadata.image.cluster_number == number
    again = Image({})
    again.replay_entry(one.node.broker.metadata.image.snapshot_records(), version=3)
    assert again.cluster_number == number


@pytest.mark.parametrize(
    ("cluster_id", "number"), [("", 1), ("123456789", 1 + 0xE3069283 % 32_767)]
)
def test_a_cluster_number_follows_from_the_cluster_id(cluster_id: str, number: int) -> None:
    """The check value of CRC-32C is 0xE3069283."""
    assert cluster_number(cluster_id) == number


def test_one_old_broker_beside_newer_ones_then_finalised(tmp_path: Path) -> None:
    world = World(tmp_path, OLD, NEW, OLD)
    assert world.level == OLD
    version = world.members.by_id[1].version
    refused = world.finalise(NEW)
    assert refused.error_code == InvalidFeatureLevel.code
    assert f"1 (up to {OLD}), 3 (up to {OLD})" in refused.error_message
    assert world.members.by_id[1].version == version, "nothing was written"
    for node_id in (3, 1):
        world.members.by_id[node_id].restart(feature_level_max=NEW)
        world.members.run_until(lambda: all(map(world.is_live, (1, 2, 3))))
        world.members.by_id[node_id].call(m.HelloRequest())
    assert world.level == OLD, "no command has raised it"
    assert world.finalise(0).level_max == NEW
    assert world.finalise(NEW, validate_only=True).level == OLD
    assert world.level == OLD
    assert world.finalise(NEW, by=2).error_code == NotController.code
    assert world.finalise(NEW).level == NEW
    assert world.finalise(NEW).error_code == 0, "asked twice"
    image = world.members.by_id[2].node.broker.metadata
    world.members.run_until(lambda: image.image.feature_level == NEW)


@pytest.mark.parametrize("level", [NEW + 1, 2**31 - 1, NEW - 1])
def test_levels_that_cannot_be_are_refused(tmp_path: Path, level: int) -> None:
    world = World(tmp_path, NEW)
    version = world.members.by_id[1].version
    assert world.finalise(level).error_code == InvalidFeatureLevel.code
    assert (world.level, world.members.by_id[1].version) == (NEW, version)


def test_a_broker_below_the_level_is_refused_and_logs_why(tmp_path: Path) -> None:
    world = World(tmp_path, NEW)
    old = world.add(2, OLD)
    world.members.run_until(lambda: any("79" in str(one) for one in old.lines))
    (line,) = [one for one in old.lines if "does not take this broker" in one.event]
    assert line.level == "warning"
    assert f"feature level {NEW}, broker 2 supports 1 to {OLD}" in str(line.fields["why"])
    world.members.run(1_000)
    assert 2 not in world.members.by_id[1].node.broker.metadata.image.brokers
    assert len([one for one in old.lines if "does not take" in one.event]) == 1, "logged once"


def test_a_broker_that_is_alone_does_not_start_below_its_level(tmp_path: Path) -> None:
    world = World(tmp_path, NEW)
    one = world.members.by_id[1]
    with pytest.raises(UnsupportedFeatureLevel, match=f"directory has feature level {NEW}"):
        one.restart(feature_level_max=OLD)
    one.config = replace(one.config, feature_level_max=NEW)
    one.start()
    assert world.level == NEW


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


def test_what_needs_a_level_is_refused_below_it() -> None:
    image = Image({})
    check_finalised(image, 1, "a thing of the first level")
    text = f"it needs feature level {NEW}, the cluster has 1"
    with pytest.raises(FeatureNotFinalised, match=text):
        check_finalised(image, NEW, "it")
    image.replay(FeatureLevelRecord(NEW))
    check_finalised(image, NEW, "it")
