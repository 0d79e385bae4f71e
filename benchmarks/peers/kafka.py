"""A Kafka broker of one node, from a folder of JARs, for as long as a measurement takes.

Owns its files (a temporary folder), its process and its two ports. KRaft mode, broker and
controller in one process, a heap of 1 GiB, its own defaults otherwise. Must not depend on what is
measured.
"""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
CONNECTOR = (
    *("spark-sql-kafka-0-10_", "spark-token-provider-kafka-"),
    *("kafka-clients-", "commons-pool2-"),
)
"""What Spark's Kafka source needs beyond Spark's own JARs."""

__all__ = ["broker_jars", "connector_jars", "running"]


def broker_jars(folder: Path) -> str:
    """The class path of a Kafka broker.

    Raises:
        FileNotFoundError: the folder has none.
    """
    found = folder / "broker"
    if not list(found.glob("kafka_2.13-*.jar")):
        raise FileNotFoundError(f"no kafka_2.13-*.jar in {found}: see benchmarks/peers/README.md")
    return f"{found}/*"


def connector_jars(folder: Path) -> list[str]:
    """The JARs of Spark's Kafka source.

    Raises:
        FileNotFoundError: one is missing.
    """
    jars = []
    for prefix in CONNECTOR:
        found = sorted((folder / "spark").glob(prefix + "*.jar"))
        if not found:
            raise FileNotFoundError(
                f"no {prefix}*.jar in {folder / 'spark'}: see benchmarks/peers/README.md"
            )
        jars.append(str(found[-1]))
    return jars


@contextmanager
def running(jars: Path) -> Iterator[str]:
    """A fresh broker; yields its `host:port`."""
    folder = Path(tempfile.mkdtemp(prefix="quiverlog-kafka-"))
    try:
        port, settings = _settings(folder)
        _format(jars, settings)
        with (folder / "broker.log").open("wb") as log:
            process = subprocess.Popen(
                _java(jars, folder, "-Xmx1g", "kafka.Kafka", str(settings)),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait_for(port, process, folder / "broker.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settings(folder: Path) -> tuple[int, Path]:
    port, controller = _free_ports()
    path = folder / "server.properties"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    (folder / "log4j2.yaml").write_text("Configuration:\n  Loggers:\n    Root: {level: error}\n")
    return port, path


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _java(jars: Path, folder: Path, *arguments: str) -> list[str]:
    quiet = f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}"
    return ["java", quiet, "-cp", broker_jars(jars), *arguments]


def _format(jars: Path, settings: Path) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    command = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}")
    subprocess.run(
        _java(jars, settings.parent, *command, "-c", str(settings)),
        check=True,
        timeout=START_SECONDS_MAX,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Kafka ended at once: {log.read_text()[-2_000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"Kafka did not listen within {START_SECONDS_MAX:.0f} s")
