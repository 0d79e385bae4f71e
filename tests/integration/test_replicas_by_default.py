"""Topics of a cluster are safe by default: a cluster that grows from one broker to three, and what
the commands print of the topics that were made before.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import quiverlog
from tests.support.growing import GrowingCluster
from tests.support.until import until

pytestmark = pytest.mark.process

SCHEMA = pa.schema([("n", pa.int64())])
PERF = ("--rows", "100", "--format", "json")


@pytest.fixture
def cluster() -> Iterator[GrowingCluster]:
    with GrowingCluster() as cluster:
        yield cluster


def test_a_cluster_grows_and_its_topics_are_safe(cluster: GrowingCluster) -> None:
    create = ("topic", "create", "early", "--schema", "n long", "-p", "2")
    printed = cluster.type(*create).out
    assert printed == "created early: 2 partitions, 1 replica, durability flushed\n"
    assert "fewer replicas" not in cluster.type("cluster", "status").out, "there is one broker"
    cluster.grow(2)
    # New topics: three replicas, of which one may be lost, and writes go on.
    (made,) = cluster.type(*create[:2], "late", *create[3:], "--format", "json").json
    assert made == {
        "name": "late", "created": True, "partitions": 2, "replication_factor": 3,
        "durability": "replicated",
    }  # fmt: skip
    with quiverlog.connect(cluster.bootstrap) as client:
        info = client.create_topic("by-client", SCHEMA)
        assert info is not None
        assert info.replicas == 3
        assert client.create_topic("one", SCHEMA, replication_factor=1).replicas == 1
        configs = client.describe_topic("by-client").configs
        assert configs["min.insync.replicas"].value == "2"
    cluster.type("perf", "produce", "--durability", "replicated", *PERF)
    cluster.type("perf", "latency", "-t", "two", "-r", "2", "--durability", "replicated", *PERF)
    refused = cluster.type("perf", "produce", "-t", "r1", "-r", "1", "--durability", "replicated",
                           *PERF, code=1)  # fmt: skip
    assert "quiverlog topic alter r1 --replication-factor" in refused.err
    # Those from before are named, with the command that raises them, which works.
    raising = "quiverlog topic alter early --replication-factor 3"
    status = cluster.healthy().json
    assert status["is_healthy"]
    assert status["replicas_possible"] == 3
    assert {one["name"] for one in status["topics_with_fewer_replicas"]} == {
        "early", "one", "two", "r1"
    }  # fmt: skip
    assert raising in cluster.type("cluster", "status").out
    assert raising in cluster.type("doctor", "--no-spark").out
    cluster.type(*raising.split()[1:])
    cluster.healthy()
    assert raising not in cluster.type("cluster", "status").out
    assert raising not in cluster.type("doctor", "--no-spark").out
    # One broker down stops no write.
    cluster.by_id[3].kill9()
    for name in ("early", "by-client"):
        with quiverlog.connect(cluster.bootstrap) as client, client.producer(name) as producer:
            (produced,) = producer.send([{"n": 1}]).result(30)
            assert produced.durability.label == "replicated"

    def has_two_live() -> bool:
        with quiverlog.connect(cluster.bootstrap) as client:
            return sum(not one.fenced for one in client.describe_cluster().brokers) == 2

    # What is made meanwhile has as many as live, and is among those that are named afterwards.
    until(has_two_live, "broker 3 is fenced")
    with quiverlog.connect(cluster.bootstrap) as client:
        assert client.create_topic("meanwhile", SCHEMA).replicas == 2
    cluster.by_id[3].start()
    cluster.healthy()
    assert "alter meanwhile --replication-factor 3" in cluster.type("cluster", "status").out
