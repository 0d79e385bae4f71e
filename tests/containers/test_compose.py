"""compose.yaml, run by Compose: three brokers come up, and one that lost its disk joins again."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.client import Client
from tests.support.ports import free_port
from tests.support.until import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

FILE = Path(__file__).resolve().parents[2] / "compose.yaml"
COMPOSE_S = 120.0
Compose = Callable[..., str]


def command() -> list[str]:
    """Compose is a program of its own, or a plug-in of docker."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    if subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        pytest.skip("neither docker-compose nor docker's plug-in compose is installed")
    return plugin


@pytest.fixture
def compose(image: str) -> Iterator[Compose]:
    """Runs Compose on the file, as a project of this test; its output."""
    ports = {f"QUIVERLOG_PORT_OF_BROKER_{n}": str(free_port()) for n in (1, 2, 3)}
    environ = os.environ | ports | {"QUIVERLOG_IMAGE": image}
    project = f"quiverlog-{uuid.uuid4().hex[:8]}"

    def run(*words: str, **more: str) -> str:
        done = subprocess.run(
            [*command(), "--project-name", project, "--file", str(FILE), *words],
            env=environ | more,
            capture_output=True,
            text=True,
            timeout=COMPOSE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        yield run
    finally:
        run("down", "--volumes", "--timeout", "30")


def voters(client: Client) -> dict[int, str]:
    """Node id to the directory that votes."""
    return {one.node_id: str(one.directory_id) for one in client.describe_cluster().voters}


def is_in_sync(client: Client, topic: str) -> bool:
    return len(client.metadata([topic]).topics[topic].partitions[0].in_sync_replicas) == 3


def test_three_brokers_come_up_and_one_without_its_disk_joins_again(compose: Compose) -> None:
    seeds = {"QUIVERLOG_SEEDS_OF_BROKER_1": "2@broker-2:9295,3@broker-3:9295"}
    compose("config", "--quiet")
    compose("up", "--detach")
    (bootstrap,) = (compose("port", "broker-2", "9292").strip(),)

    def answers() -> bool:
        try:
            with quiverlog.connect(bootstrap) as client:
                return len(voters(client)) == 3
        except quiverlog.QuiverlogError:
            return False

    until(answers, "three voters")
    with quiverlog.connect(bootstrap) as client:
        client.create_topic("t", pa.schema({"n": pa.int64()}), replication_factor=3)
        with client.producer("t", durability="replicated") as producer:
            producer.send([{"n": 1}])
        before = voters(client)
        compose("rm", "--stop", "--force", "-v", "broker-1")
        compose("run", "--rm", "--no-deps", "--entrypoint", "sh", "broker-1", "-c", "rm -r /data/*")
        compose("up", "--detach", **seeds)
        until(lambda: is_in_sync(client, "t"), "the empty one has a copy")
        # For a moment the old one still votes, then neither does.
        until(lambda: voters(client).get(1, before[1]) != before[1], "its new directory votes")
        rows = [row for batch in client.consumer("t") for row in batch.to_pylist()]
    assert rows == [{"n": 1}]
