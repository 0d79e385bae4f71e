"""Rounds of preferred leaders, and the log line and counter of unclean elections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.core.controller.records import (
    LEADER_GONE,
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.errors import QuiverlogError, UnknownPartition, UnknownTopic
from quiverlog.node.runtime.events import Tick
from quiverlog.wire.election_messages import ElectLeadersRequest
from tests.support.node import NodeDriver

HERE, OTHER = 0, 7
TOPIC = b"t" * 16
PERIOD_MS = 1_000
"""A copy that never asks for rows is in sync for longer than a few of these."""


def driver(tmp_path: Path, **config: Any) -> NodeDriver:
    options = {"leader_balance_period_ms": PERIOD_MS, "leader_balance_moves_max": 3, **config}
    return NodeDriver(tmp_path, **options)


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return driver(tmp_path)


def decide(node: NodeDriver, *records: Record) -> None:
    outcomes: list[Any] = []
    node.node.broker.propose(
        list(records), node.now, lambda _result, error, _now: outcomes.append(error)
    )
    node.send(Tick())
    assert outcomes == [None]


def displaced(
    node: NodeDriver, count: int, in_sync: tuple[int, ...] = (OTHER, HERE), fenced: bool = False
) -> None:
    """Partitions that are led here, and should be led there."""
    decide(
        node,
        BrokerRecord(OTHER, b"theirs", "other", fenced=fenced),
        TopicRecord(TOPIC, "t", 1, 2),
        *(PartitionRecord(TOPIC, n, (OTHER, HERE), in_sync, HERE) for n in range(count)),
    )


def leaders(node: NodeDriver) -> list[int]:
    topic = node.node.broker.metadata.image.topics_by_id[TOPIC]
    return [partition.leader_id for partition in topic.partitions]


def test_a_round_moves_a_few_and_the_next_ones_the_rest(node: NodeDriver) -> None:
    """Rule 19 of docs/replication-rules.md."""
    displaced(node, 7)
    node.advance(PERIOD_MS * 9 // 10 - 100)
    assert leaders(node) == [HERE] * 7, "not at once: they are moved together"
    node.advance(PERIOD_MS * 2 // 10 + 200)
    assert leaders(node).count(OTHER) == 3
    node.advance(4 * PERIOD_MS)
    assert leaders(node).count(OTHER) == 7
    image = node.node.broker.metadata.image
    assert not image.unpreferred
    assert {one.leader_epoch for one in image.topics_by_id[TOPIC].partitions} == {1}
    assert node.node.broker.elections.next_us() is None, "a cluster in order has no rounds"


@pytest.mark.parametrize(
    "why", [{"in_sync": (HERE,)}, {"fenced": True}], ids=["out of sync", "fenced"]
)
def test_a_preferred_leader_that_cannot_lead_is_not_elected(
    node: NodeDriver, why: dict[str, Any]
) -> None:
    """Rule 19 of docs/replication-rules.md."""
    displaced(node, 5, **why)
    node.advance(5 * PERIOD_MS)
    assert leaders(node) == [HERE] * 5
    assert node.node.broker.elections.next_us() is not None


def test_those_that_cannot_be_moved_do_not_keep_the_others(tmp_path: Path) -> None:
    """A round looks at a bounded number: the next one goes on behind these."""
    node = driver(tmp_path, leader_balance_moves_max=5_000)
    displaced(node, 1_500, in_sync=(HERE,))
    last = PartitionChangeRecord(TOPIC, 1_400, in_sync_replicas=(HERE, OTHER))
    decide(node, last)
    node.advance(3 * PERIOD_MS)
    assert leaders(node)[1_400] == OTHER
    assert leaders(node).count(OTHER) == 1


def test_without_a_period_nothing_moves_by_itself(tmp_path: Path) -> None:
    node = driver(tmp_path, leader_balance_period_ms=0)
    displaced(node, 2)
    node.advance(10 * PERIOD_MS)
    assert leaders(node) == [HERE] * 2
    assert node.node.broker.elections.next_us() is None


def test_a_single_broker_has_no_rounds(node: NodeDriver) -> None:
    node.create(partitions=8)
    assert node.node.broker.elections.next_us() is None


def test_an_unclean_election_is_logged_and_counted(node: NodeDriver) -> None:
    """Rule 11 of docs/replication-rules.md."""
    displaced(node, 1)
    assert node.metrics.unclean_elections == 0
    decide(
        node,
        PartitionChangeRecord(
            TOPIC, 0, OTHER, 4, (OTHER,), eligible_leader_replicas=(), unclean=True
        ),
    )
    assert node.metrics.unclean_elections == 1
    (line,) = [one for one in node.lines if one.event == "unclean election"]
    assert line.level == "error"
    assert line.fields == {
        "partition": "t-0",
        "topic_id": TOPIC.hex(),
        "leader": OTHER,
        "leader_epoch": 4,
    }


# --- by request ---------------------------------------------------------------------------------
def elected(node: NodeDriver, **request: Any) -> Any:
    return node.call(ElectLeadersRequest(**{"name": "t", **request}))[0]


def test_partitions_are_given_back_on_request(tmp_path: Path) -> None:
    node = driver(tmp_path, leader_balance_period_ms=0)
    displaced(node, 4)
    answer = elected(node, partitions=[2])
    assert (answer.error_code, leaders(node)) == (0, [HERE, HERE, OTHER, HERE])
    assert [(one.partition, one.leader_id, one.elected) for one in answer.leaders] == [
        (2, OTHER, True)
    ]
    answer = elected(node)
    assert leaders(node) == [OTHER] * 4
    assert [one.elected for one in answer.leaders] == [True, True, False, True]
    version = node.node.broker.metadata.image.version
    assert not any(one.elected for one in elected(node).leaders), "a repeated request"
    assert node.node.broker.metadata.image.version == version


def test_a_partition_without_a_leader_is_led_uncleanly_on_request(tmp_path: Path) -> None:
    """Eligible is a broker that is gone; this one is out of sync, and all that lives.

    Rule 11 of docs/replication-rules.md.
    """
    node = driver(tmp_path, leader_balance_period_ms=0)
    displaced(node, 2, fenced=True)
    gone = {"leader_id": LEADER_GONE, "leader_epoch": 3, "in_sync_replicas": ()}
    decide(node, PartitionChangeRecord(TOPIC, 0, **gone, eligible_leader_replicas=(OTHER,)))
    assert [one.leader_id for one in elected(node).leaders] == [-1, HERE]
    answer = elected(node, unclean=True)
    assert [(one.leader_id, one.elected) for one in answer.leaders] == [
        (HERE, True),
        (HERE, False),
    ]
    partition = node.node.broker.metadata.image.topics_by_id[TOPIC].partitions[0]
    assert (partition.in_sync_replicas, partition.eligible_leader_replicas) == ((HERE,), ())
    assert partition.leader_epoch == 4
    assert node.metrics.unclean_elections == 1


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"name": "nope"}, UnknownTopic),
        ({"partitions": [1, 9]}, UnknownPartition),
        ({"partitions": [-1]}, UnknownPartition),
    ],
)
def test_what_an_election_refuses(
    tmp_path: Path, request_: dict[str, Any], error: type[QuiverlogError]
) -> None:
    node = driver(tmp_path, leader_balance_period_ms=0)
    displaced(node, 2)
    assert elected(node, **request_).error_code == error.code
    assert leaders(node) == [HERE] * 2
