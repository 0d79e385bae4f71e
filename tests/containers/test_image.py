"""The project's own image: the broker's user in it, how it is watched, how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import quiverlog
from tests.support.ports import free_port

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

pytestmark = pytest.mark.containers

UID = 10001
NOFILE = 4_096


def run_in(container: DockerContainer, *command: str) -> str:
    code, output = container.get_wrapped_container().exec_run(list(command), stderr=False)
    assert code == 0, output
    text: str = output.decode()
    return text


def test_a_broker_runs_without_privileges_and_reports_its_health(image: str) -> None:
    from docker.types import Ulimit

    from tests.support.containers import broker, container_of
    from tests.support.until import until

    limit = Ulimit(name="nofile", soft=1_024, hard=NOFILE)
    with broker(image, ulimits=[limit]) as one:
        assert run_in(one, "id", "-u").strip() == str(UID)
        status = run_in(one, "cat", "/proc/1/status", "/proc/1/limits")
        assert "CapEff:\t0000000000000000" in status
        # The broker takes what the engine allows.
        (files,) = (line for line in status.splitlines() if line.startswith("Max open files"))
        assert int(files.split()[3]) == NOFILE
        assert run_in(one, "stat", "-c", "%u %a", "/data").strip() == f"{UID} 700"
        until(
            lambda: container_of(one).attrs["State"]["Health"]["Status"] == "healthy",
            "the health check finds the broker alive",
        )
        # What only builds the image is not in it.
        assert run_in(one, "sh", "-c", "ls -d /opt/quiverlog/bin/pip* /src /wheels || true") == ""


def test_sigterm_ends_it_in_order_and_the_volume_keeps_all(image: str) -> None:
    import docker
    from docker.types import Mount

    from tests.support.containers import LABEL, broker, container_of

    port = free_port()
    volume = docker.from_env().volumes.create(labels=LABEL)
    mounts = [Mount("/data", volume.name)]
    try:
        with broker(image, port, mounts=mounts) as one:
            with quiverlog.connect(f"127.0.0.1:{port}") as client:
                client.create_topic("kept", pa.schema({"n": pa.int64()}))
                with client.producer("kept") as producer:
                    producer.send([{"n": 1}])
            found = container_of(one)
            found.stop(timeout=30)
            assert found.wait()["StatusCode"] == 0, found.logs().decode()
        with broker(image, port, mounts=mounts) as one:
            assert "event=started" in (log := container_of(one).logs().decode())
            assert "clean=true" in log
            with quiverlog.connect(f"127.0.0.1:{port}") as client:
                rows = [row for batch in client.consumer("kept") for row in batch.to_pylist()]
        assert rows == [{"n": 1}]
    finally:
        volume.remove()
