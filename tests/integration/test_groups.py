"""Groups on a real broker, by single requests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

import quiverlog.testing
from quiverlog.cli.app import run
from quiverlog.errors import UnknownMember
from tests.support.broker import BrokerProcess
from tests.support.metrics import metrics
from tests.support.raw_groups import ClusterGroups, RawGroups, RawMember
from tests.support.rawclient import RawClient
from tests.support.until import until

pytestmark = pytest.mark.process
PARTITIONS = 6
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as broker:
        with RawClient(broker.address) as client:
            client.create_topic("t", PARTITIONS)
        yield broker


@pytest.fixture
def groups(broker: BrokerProcess) -> Iterator[RawGroups]:
    groups = RawGroups(broker)
    yield groups
    groups.close()


def name() -> str:
    return "g-" + os.urandom(4).hex()


def share(*members: RawMember) -> None:
    """Beat until the members have all partitions, as even as can be, under one epoch."""

    def is_shared() -> bool:
        for one in members:
            one.beat()
        counts = [len(one.partitions) for one in members]
        whole = sorted(number for one in members for number in one.partitions)
        assert len(set(whole)) == len(whole), "a partition has one member"
        is_even = max(counts) - min(counts) <= 1
        return whole == [*range(PARTITIONS)] and is_even and len({m.epoch for m in members}) == 1

    until(is_shared)


def test_members_join_share_commit_and_leave(groups: RawGroups) -> None:
    group = name()
    one = RawMember(groups, group, "t")
    share(one)
    two = RawMember(groups, group, "t")
    began_s = time.monotonic()
    share(one, two)
    print(f"two members share after {time.monotonic() - began_s:.2f} s", end=" ")
    assert one.commit(10) == two.commit(20) == [0, 0, 0]
    expected = {**dict.fromkeys(one.partitions, 10), **dict.fromkeys(two.partitions, 20)}
    assert groups.offsets(group) == expected
    old_epoch = two.epoch
    one.beat(member_epoch=-1)
    share(two)
    assert two.epoch > old_epoch
    assert groups.offsets(group) == expected, "who has left has read what it committed"
    with pytest.raises(UnknownMember):
        one.beat(member_epoch=old_epoch)


def test_members_go_on_under_their_epochs_when_the_broker_was_killed(
    broker: BrokerProcess, groups: RawGroups
) -> None:
    group = name()
    members = [RawMember(groups, group, "t") for _ in range(3)]
    share(*members)
    before = [(one.epoch, one.partitions) for one in members]
    for round_ in range(1, 4):
        assert all(one.commit(round_) == [0, 0] for one in members)
        broker.restart(kill=True)
        for one in members:
            one.beat()
            assert 0 not in one.epochs[-round_:], "nobody joins anew"
        assert [(one.epoch, one.partitions) for one in members] == before
        assert groups.offsets(group) == dict.fromkeys(range(PARTITIONS), round_)


@pytest.mark.long  # It waits for a session.
def test_a_killed_member_loses_its_partitions_after_its_session(groups: RawGroups) -> None:
    group = name()
    one = RawMember(groups, group, "t", session_timeout_ms=6_000)
    two = RawMember(groups, group, "t", session_timeout_ms=6_000)
    share(one, two)
    began_s = time.monotonic()
    share(two)
    took_s = time.monotonic() - began_s
    print(f"its partitions go on after {took_s:.2f} s", end=" ")
    assert took_s > 5.0
    with pytest.raises(UnknownMember):
        one.beat()


def test_an_operator_sees_and_resets_a_group(
    broker: BrokerProcess, groups: RawGroups, capsys: pytest.CaptureFixture[str]
) -> None:
    group = name()
    member = RawMember(groups, group, "t")
    share(member)
    member.commit(0)
    options = ["-b", broker.bootstrap, "--format", "json"]
    assert run(["group", "describe", group, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], len(found["partitions"])) == ("stable", PARTITIONS)
    assert {one["host"] for one in found["partitions"]} == {"127.0.0.1"}
    reset = ["group", "reset-offsets", group, "--topic", "t", "--to-latest", "--yes", *options]
    assert run(reset) == 1
    assert "is read by member" in capsys.readouterr().err
    member.beat(member_epoch=-1)
    assert run(reset) == 0
    capsys.readouterr()
    assert metrics(broker)["group_rebalances_total"] >= 1


@pytest.mark.long
def test_members_go_on_when_their_coordinator_dies() -> None:
    group = name()
    with quiverlog.testing.cluster(3) as cluster, cluster.client() as client:
        client.create_topic("t", SCHEMA, partitions=PARTITIONS, replication_factor=3)
        groups = ClusterGroups(client, group)
        members = [RawMember(groups, group, "t") for _ in range(3)]
        share(*members)
        before = [(one.epoch, one.partitions) for one in members]
        assert all(one.commit(1) == [0, 0] for one in members)
        dead = client.describe_group(group).info.coordinator
        cluster.brokers[dead].kill()
        began_s = time.monotonic()
        for one in members:
            one.beat()
        print(f"the next coordinator answers after {time.monotonic() - began_s:.2f} s", end=" ")
        assert [(one.epoch, one.partitions) for one in members] == before, "no member joins anew"
        assert all(one.commit(2) == [0, 0] for one in members)
        found = client.describe_group(group)
        assert found.info.coordinator != dead
        assert {one.committed for one in found.partitions} == {2}
