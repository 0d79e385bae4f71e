"""A rolling restart: every broker stops and comes back, without an error in any program."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import quiverlog.testing
from quiverlog.local.cluster import LocalCluster
from tests.support.cluster_load import ClusterLoad
from tests.support.until import slack

pytestmark = pytest.mark.process

STOP_S = 20.0
PAUSE_S = 5.0
"""What a person would notice. Measured were 0.4 to 0.6 s, on two busy processors."""


def restart_check(cluster: LocalCluster, *words: str, code: int = 0) -> dict[str, object]:
    command = [sys.executable, "-m", "quiverlog", "cluster", "restart-check", "--format", "json"]
    command += ["--bootstrap-server", cluster.bootstrap, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_no_request_fails_while_every_broker_is_restarted() -> None:
    with quiverlog.testing.cluster(3) as cluster:
        load = ClusterLoad(cluster.bootstrap, "t", partitions=6, replication_factor=3)
        with load:
            for node_id, broker in cluster.brokers.items():
                restart_check(cluster, "--broker", str(node_id), "--wait", "60")
                before = load.rows
                broker.stop(STOP_S)
                printed = broker.log.read_text()
                assert "handing over" in printed
                assert "stopping without having handed over" not in printed
                other = str(node_id % 3 + 1)
                (refused,) = restart_check(cluster, "--broker", other, code=1)["brokers"]
                assert f"broker {node_id} is fenced" in refused["reasons"]
                cluster.start_broker(node_id)
                broker.wait_until_ready(60.0)
                assert load.rows > before, "rows are taken while a broker is away"
                lines = broker.log.read_text().splitlines()
                started = [line for line in lines if "event=started" in line]
                assert "clean=true" in started[-1]
            restart_check(cluster, "--wait", "60")
        outcome = load.done()
        assert outcome.wrong() == []
        assert outcome.sent["busy"] > 0 < outcome.sent["patient"]
        assert max(outcome.longest_s.values()) < PAUSE_S * slack()
