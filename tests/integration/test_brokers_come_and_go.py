"""A disk is replaced and the controller decommissioned, and no program is told of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import quiverlog.testing
from quiverlog.local.cluster import LocalCluster
from tests.support.cluster_load import ClusterLoad

pytestmark = pytest.mark.process


def typed(cluster: LocalCluster, *words: str) -> str:
    command = [sys.executable, "-m", "quiverlog", "cluster", *words]
    command += ["--bootstrap-server", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


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
            said = typed(cluster, "decommission", str(leaving))
            assert said == f"Broker {leaving} has left the cluster.\n"
            cluster.forget(leaving)
            typed(cluster, "status")
        seen = load.done()
        assert seen.errors == []
        assert seen.sent["busy"] > 0 < seen.sent["patient"]
        assert seen.read == seen.expected
