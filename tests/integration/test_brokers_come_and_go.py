"""A disk is replaced and the controller decommissioned, without an error in any program."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import quiverlog
import quiverlog.testing
from quiverlog.local.cluster import LocalCluster
from tests.support.cluster_load import ClusterLoad
from tests.support.until import until

pytestmark = pytest.mark.process
RATE = "partition.move.bytes.per.second"


def typed(cluster: LocalCluster, *words: str, noun: str = "cluster", code: int = 0) -> str:
    command = [sys.executable, "-m", "quiverlog", noun, *words]
    command += ["--bootstrap-server", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


@pytest.mark.timeout(400)
def test_no_row_is_lost_while_a_disk_is_replaced_and_the_controller_leaves() -> None:
    with quiverlog.testing.cluster(4) as cluster:
        with ClusterLoad(cluster.bootstrap, "t", partitions=4, replication_factor=3) as load:
            cluster.brokers[4].kill()
            cluster.brokers[4].wipe()
            cluster.start_broker(4)
            cluster.brokers[4].wait_until_ready(60.0)
            typed(cluster, "restart-check", "--wait", "120")
            with cluster.client() as client:
                leaving = client.describe_cluster().controller
            assert leaving is not None
            assert "holds nothing any more" in typed(cluster, "decommission", str(leaving))
            cluster.brokers[leaving].stop(60.0)
            printed = typed(cluster, "decommission", str(leaving))
            assert printed == f"Broker {leaving} has left the cluster.\n"
            cluster.remove_broker(leaving)
            typed(cluster, "status")
        outcome = load.done()
        assert outcome.wrong() == []
        assert outcome.sent["busy"] > 0 < outcome.sent["patient"]


def test_a_decommissioning_is_called_off_in_the_midst_and_asked_for_again() -> None:
    """What is on its way goes back, what has moved stays, and the broker is given more again."""
    with quiverlog.testing.cluster(4) as cluster, cluster.client() as client:
        client.create_topic("t", "v binary", partitions=4, replication_factor=3)
        with client.producer("t") as producer:
            for n in range(16):
                producer.send([{"v": bytes([n]) * 100_000}], partition=n % 4).result(60)
        before = placed(client)
        assert any(4 in replicas for replicas in before)
        typed(cluster, "set", f"{RATE}=1000", "--cluster", noun="config")
        printed = json.loads(typed(cluster, "decommission", "4", "--no-wait", "--format", "json"))
        assert printed == {"node_id": 4, "state": "moving", "moves": []}
        moving = client.reassign_partitions("t", {})
        assert moving
        assert all(4 in one.removing for one in moving.values())
        # Meanwhile nothing is planned to come to it, for want of which the brokers would refuse it.
        plan = json.loads(typed(cluster, "rebalance", "--dry-run", "--format", "json"))
        assert not [one for one in plan["moves"] if 4 in one["added"]]
        printed = json.loads(typed(cluster, "decommission", "4", "--cancel", "--format", "json"))
        assert printed["state"] == "stays"
        until(lambda: not client.reassign_partitions("t", {}), "the moves are back")
        assert [set(one) for one in placed(client)] == [set(one) for one in before]
        assert not any(one.decommissioning for one in client.describe_cluster().brokers)
        client.create_topic("u", "v binary", partitions=4, replication_factor=3)
        assert any(4 in one.replicas for one in client.describe_topic("u").partitions)
        typed(cluster, "unset", RATE, "--cluster", noun="config")
        assert "holds nothing any more" in typed(cluster, "decommission", "4")
        assert not any(4 in replicas for replicas in placed(client))
        assert client.describe_topic("t").rows == 16


def test_a_decommissioning_that_is_refused_changes_nothing() -> None:
    """Of a broker that is dead, and has held the only replica of something."""
    with quiverlog.testing.cluster(3) as cluster, cluster.client() as client:
        client.create_topic("t", "n long", partitions=3, replication_factor=1)
        cluster.brokers[3].kill()
        until(lambda: [one.node_id for one in client.describe_cluster().brokers if one.fenced])
        for words in (("--dry-run",), ()):
            printed = typed(cluster, "decommission", "3", *words, code=1)
            assert "has no leader, so no replica could copy it" in printed
            assert not any(one.decommissioning for one in client.describe_cluster().brokers)


def placed(client: quiverlog.Client) -> list[tuple[int, ...]]:
    return [one.replicas for one in client.describe_topic("t").partitions]
