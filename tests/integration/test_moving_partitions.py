"""Partitions move, become more and fewer replicas, and are evened out, while programs write and
read: every command on real brokers, no row lost, none out of order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
import quiverlog.testing
from quiverlog.client.admin.cluster import list_moves
from quiverlog.local.cluster import LocalCluster
from tests.support.cluster_load import ClusterLoad
from tests.support.until import until

pytestmark = pytest.mark.process

MB = 1_000_000
COMMAND_S = 180


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(4, racks=["a", "b", "c", "a"]) as cluster:
        yield cluster


def run(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "quiverlog", *words, "--bootstrap-server", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def asked(cluster: LocalCluster, *words: str) -> Any:
    return json.loads(run(cluster, *words, "--format", "json"))


def replicas(cluster: LocalCluster, topic: str) -> list[list[int]]:
    return [one["replicas"] for one in asked(cluster, "partition", "list", "--topic", topic)]


@pytest.mark.long
def test_all_of_it_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    load = ClusterLoad(cluster.bootstrap, "t", partitions=6, replication_factor=2)
    move = ("partition", "reassign", "t")
    with load:
        # More replicas, planned by rack.
        plan = asked(cluster, *move, "--replication-factor", "3", "--dry-run")
        assert len(plan["moves"]) == 6
        assert all(len(one) == 2 for one in replicas(cluster, "t")), "a dry run moves nothing"
        run(cluster, "topic", "alter", "t", "--replication-factor", "3")
        held = replicas(cluster, "t")
        assert held == [one["after"] for one in plan["moves"]]
        assert all(sum(n in one for n in (1, 4)) == 1 for one in held), "one in each rack"
        assert asked(cluster, "topic", "describe", "t")[0]["replication_factor"] == 3
        assert asked(cluster, "partition", "list", "--topic", "t", "--under-replicated") == []
        # A plan that is printed, edited and carried out.
        file = tmp_path / "plan.json"
        file.write_text(run(cluster, *move, "--to", "0=3,2,1", "--dry-run", "--format", "plan"))
        edited = json.loads(file.read_text())
        edited["partitions"][0]["log_dirs"] = ["any", "any", "any"]
        edited["partitions"][0]["replicas"] = [2, 3, 1]
        file.write_text(json.dumps(edited))
        run(cluster, "partition", "reassign", "--plan-file", str(file), "--wait")
        assert replicas(cluster, "t")[0] == [2, 3, 1]
        # Lopsided, and even again.
        run(cluster, *move, "--from", "4", "--wait")
        assert asked(cluster, "partition", "list", "--broker", "4") == []
        before = load.rows
        plan = asked(cluster, "cluster", "rebalance", "--yes", "--wait")
        assert {one["node_id"]: one["replicas"][1] for one in plan["brokers"]} == {
            1: 3, 2: 6, 3: 6, 4: 3
        }  # fmt: skip
        assert sorted(one["leaders"][1] for one in plan["brokers"]) == [1, 1, 2, 2]
        assert asked(cluster, "cluster", "rebalance", "--dry-run")["moves"] == []
        assert load.rows > before
        # Leaders where they are to be, and fewer replicas.
        leaders = [one["leader"] for one in asked(cluster, "partition", "list", "--topic", "t")]
        assert leaders == [one[0] for one in replicas(cluster, "t")]
        (elected,) = asked(cluster, "partition", "elect", "t")
        assert list(elected["leaders"].values()) == [one[0] for one in replicas(cluster, "t")]
        run(cluster, *move, "--replication-factor", "2", "--wait")
        assert asked(cluster, "topic", "describe", "t")[0]["replication_factor"] == 2
    outcome = load.done()
    assert outcome.wrong() == []


def test_a_throttle_holds_and_ends_with_the_move(cluster: LocalCluster) -> None:
    """Within 20 percent, by the bytes that lie on the disk in the end; and a cancelled one goes,
    with its rate."""
    rate = 2 * MB
    with quiverlog.connect(cluster.bootstrap) as client:
        client.create_topic("wide", pa.schema([("v", pa.binary())]), replication_factor=1)
        with client.producer("wide") as producer:
            for _ in range(16):
                producer.send([{"v": bytes([i]) * (MB // 4)} for i in range(4)]).result(60)
        (held,) = replicas(cluster, "wide")
        others = [n for n in (1, 2, 3, 4) if n not in held]
        size = client.describe_replicas(["wide"]).at("wide", 0, held[0])
        assert size is not None
        assert size > 12 * MB, "not compressed away"
        waiting = begin(cluster, "partition", "reassign", "wide", "--to", f"0={others[0]}",
                        "--throttle", "2MB/s", "--wait")  # fmt: skip
        come: list[tuple[float, int]] = []  # When the copy was first seen with this many bytes.

        def has_come() -> bool:
            there = client.describe_replicas(["wide"]).at("wide", 0, others[0])
            if there and (not come or there > come[-1][1]):
                come.append((time.monotonic(), there))
            return there == size

        until(has_come, "the copy has all bytes")
        (first_s, first), (last_s, last) = come[0], come[-1]
        assert last - first > 8 * MB, "it comes bit by bit"
        assert (last - first) / (last_s - first_s) == pytest.approx(rate, rel=0.2)
        out, output = waiting.communicate(timeout=COMMAND_S)
        assert waiting.returncode == 0, (out, output)
        assert replicas(cluster, "wide") == [others[:1]]
        # One that would take hours: seen, given up, and nothing is left.
        run(cluster, "partition", "reassign", "wide", "--to", f"0={others[1]}",
            "--throttle", "1KB/s")  # fmt: skip
        (moving,) = asked(cluster, "partition", "reassign", "--status")["moving"]
        assert moving["throttle_bytes_per_s"] == 1_000
        assert "still move" in run(cluster, "partition", "reassign", "--wait", "0.1", code=1)
        run(cluster, "partition", "reassign", "--cancel", "--wait")
        assert asked(cluster, "partition", "reassign", "--status")["moving"] == []
        assert replicas(cluster, "wide") == [others[:1]]
        # The same broker copies the next one at its own rate, not after those hours.
        run(cluster, "partition", "reassign", "wide", "--to", f"0={others[1]}",
            "--throttle", "8MB/s", "--wait", "60")  # fmt: skip
        assert replicas(cluster, "wide") == [others[1:2]]


def test_what_is_refused_moves_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    with quiverlog.connect(cluster.bootstrap) as client:
        client.create_topic("kept", pa.schema([("v", pa.int64())]), replication_factor=2)
    before = replicas(cluster, "kept")
    move = ("partition", "reassign", "kept")
    for target in ("0=1,99", "1,99"):
        assert "no broker 99" in run(cluster, *move, "--to", target, code=1)
    assert "no partition 7" in run(cluster, *move, "--partition", "7", "--cancel", code=1)
    assert "no further broker" in run(cluster, *move, "--replication-factor", "5", code=1)
    assert "no partition 7" in run(cluster, *move, "--to", "7=1,2", code=1)
    file = tmp_path / "plan.json"
    for text, output in (
        ("{", "is no plan"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": [{"topic": "nope", "partition": 0, "replicas": [1]}]}', "'nope'"),
        ('{"partitions": [{"topic": "kept", "partition": 0, "replicas": [1, 1]}]}', "twice"),
        ('{"partitions": [{"topic": "kept", "partition": 0, "replicas": []}]}', "is no plan"),
    ):
        file.write_text(text)
        assert output in run(cluster, "partition", "reassign", "--plan-file", str(file), code=1)
    assert replicas(cluster, "kept") == before


# --- what happens meanwhile ----------------------------------------------------------------------
def begin(cluster: LocalCluster, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "quiverlog", *words, "--bootstrap-server", cluster.bootstrap]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def test_a_move_outlives_its_command_and_its_controller(cluster: LocalCluster) -> None:
    """Ctrl-C leaves it running, the command prints how to go on; the next controller ends it."""
    with quiverlog.connect(cluster.bootstrap) as client:
        client.create_topic("long", pa.schema([("v", pa.binary())]), replication_factor=2)
        client.create_topic("gone", pa.schema([("v", pa.binary())]), replication_factor=1)
        for topic in ("long", "gone"):
            with client.producer(topic) as producer:
                producer.send([{"v": bytes([i]) * (MB // 4)} for i in range(16)]).result(60)
        controller = client.describe_cluster().controller
        assert controller is not None
        (held,) = replicas(cluster, "long")
        target = [n for n in (1, 2, 3, 4) if n != controller][:2]
        if target == held:
            target.reverse()
        others = next(n for n in (1, 2, 3, 4) if n not in replicas(cluster, "gone")[0])
        slow = ("--throttle", "400KB/s", "--wait")
        to = ",".join(map(str, target))
        waiting = begin(cluster, "partition", "reassign", "long", "--to", f"0={to}", *slow)
        deleted = begin(cluster, "partition", "reassign", "gone", "--to", f"0={others}", *slow)
        try:
            until(
                lambda: (
                    client.run(list_moves(client.cluster)).keys()
                    >= {"gone", *(["long"] if waiting.poll() is None else [])}
                )
            )
            client.delete_topic("gone")
            _, output = deleted.communicate(timeout=60)
            assert "of topics that were deleted meanwhile" in output
            assert deleted.returncode == 1
            if waiting.poll() is None:
                waiting.send_signal(signal.SIGINT)
            _, output = waiting.communicate(timeout=60)
            assert "--status` shows them" in output or "moved" in output
        finally:
            for one in (waiting, deleted):
                one.kill()
                one.wait()
        cluster.brokers[controller].kill()
        try:
            run(cluster, "partition", "reassign", "--wait", "120")
            assert replicas(cluster, "long") == [target]
        finally:
            cluster.start_broker(controller)
            cluster.brokers[controller].wait_until_ready(60.0)


@pytest.mark.long
def test_a_target_that_is_dead_is_refused_and_no_caller_is_left_waiting(
    cluster: LocalCluster,
) -> None:
    with quiverlog.connect(cluster.bootstrap) as client:
        client.create_topic("still", pa.schema([("v", pa.int64())]), replication_factor=2)
        (held,) = replicas(cluster, "still")
        dead = next(n for n in (4, 3, 2, 1) if n not in held)
        cluster.brokers[dead].kill()
        try:
            until(lambda: any(b.fenced for b in client.describe_cluster().brokers))
            wanted = f"0={held[0]},{dead}"
            move = ("partition", "reassign", "still")
            assert "not alive" in run(cluster, *move, "--to", wanted, code=1)
            plan = asked(cluster, "cluster", "rebalance", "--dry-run")
            assert all(dead not in one["added"] for one in plan["moves"])
        finally:
            cluster.start_broker(dead)
            cluster.brokers[dead].wait_until_ready(60.0)
