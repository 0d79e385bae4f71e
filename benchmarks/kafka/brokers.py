"""Kafka brokers in KRaft mode on this machine, for as long as a measurement takes.

Owns their files (a temporary folder), their processes and ports. Each is broker and controller in
one process, as quiverlog's are. Two sets of settings: Kafka's own defaults (with the heap of its
start script, 1 GiB), and ones that are better for throughput and failover on one machine.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.kafka.fetch import fetch

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
TOPIC_SECONDS_MAX = 30.0
MIB = 1024 * 1024

__all__ = ["DEFAULT", "TUNED", "Cluster", "Tuning", "java"]


@dataclass(frozen=True)
class Tuning:
    """Settings of brokers and of clients; empty where Kafka's defaults are taken."""

    name: str
    heap: str = "-Xmx1g"
    broker: dict[str, str] = field(default_factory=dict)
    producer: dict[str, str] = field(default_factory=dict)
    consumer: dict[str, str] = field(default_factory=dict)


DEFAULT = Tuning("default")
TUNED = Tuning(
    "tuned",
    heap="-Xmx2g",
    broker={
        "broker.session.timeout.ms": "2000",  # as quiverlog's
        "broker.heartbeat.interval.ms": "500",
        "message.max.bytes": str(8 * MIB),
        "replica.fetch.max.bytes": str(8 * MIB),
        "replica.fetch.response.max.bytes": str(32 * MIB),
        "replica.socket.receive.buffer.bytes": str(MIB),
        "socket.receive.buffer.bytes": str(MIB),
        "socket.send.buffer.bytes": str(MIB),
    },
    producer={
        "batch.size": str(MIB),
        "buffer.memory": str(128 * MIB),
        "linger.ms": "20",
        "max.request.size": str(8 * MIB),
    },
    consumer={
        "fetch.max.bytes": str(64 * MIB),
        "max.partition.fetch.bytes": str(16 * MIB),
        "max.poll.records": "50000",
        "receive.buffer.bytes": str(MIB),
    },
)


class Cluster:
    """`count` brokers; a context manager. Topics have `count` copies unless fewer are named."""

    def __init__(self, count: int, tuning: Tuning) -> None:
        self.tuning = tuning
        self.folder = Path(tempfile.mkdtemp(prefix="quiverlog-kafka-"))
        ports = _free_ports(2 * count)
        pairs = dict(enumerate(zip(ports[::2], ports[1::2], strict=True), 1))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.brokers = {n: Broker(self.folder, n, pairs, tuning, cluster_id) for n in pairs}
        self.bootstrap = ",".join(broker.address for broker in self.brokers.values())
        self._admin: Any = None

    def __enter__(self) -> Cluster:
        try:
            for broker in self.brokers.values():
                broker.format()
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.wait_ready()
            self.wait(lambda: len(self._metadata().brokers) == len(self.brokers), "all brokers")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for broker in self.brokers.values():
                stack.callback(broker.stop)
                broker.terminate()

    # --- topics --------------------------------------------------------------------------------
    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """Create it, and wait until each partition has a leader and all its copies."""
        from confluent_kafka.admin import NewTopic

        copies = len(self.brokers)
        topic = NewTopic(
            name, partitions, copies, config={k.replace("_", "."): v for k, v in config.items()}
        )
        self._client().create_topics([topic])[name].result(TOPIC_SECONDS_MAX)
        self.wait(lambda: self.is_in_sync(name, partitions), f"all copies of {name}")
        self.wait(lambda: self._is_led(name), f"a leader of {name}")

    def delete_topic(self, name: str) -> None:
        self._client().delete_topics([name])[name].result(TOPIC_SECONDS_MAX)

    def is_in_sync(self, name: str, partitions: int) -> bool:
        """Return whether every broker has every partition, in sync."""
        found = self._partitions(name)
        return len(found) == partitions and all(
            one.leader > 0 and len(one.isrs) == len(self.brokers) for one in found.values()
        )

    def _is_led(self, name: str) -> bool:
        """Return whether its leader answers: one may be named before it has the metadata."""
        from confluent_kafka import KafkaException

        try:
            return self.rows(name) == 0
        except KafkaException:
            return False

    def leader(self, name: str) -> int:
        """The broker that leads partition 0."""
        return int(self._partitions(name)[0].leader)

    def rows(self, name: str) -> int:
        """How many records the topic holds."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(name, n): OffsetSpec.latest() for n in self._partitions(name)}
        return sum(f.result(30).offset for f in self._client().list_offsets(wanted).values())

    def disk_bytes(self, name: str) -> int:
        """Allocated by the topic's folders on all brokers."""
        folders = (p for b in self.brokers.values() for p in b.data.glob(f"{name}-*"))
        return sum(f.stat().st_blocks * 512 for folder in folders for f in folder.rglob("*"))

    def wait(self, condition: Any, what: str) -> None:
        """Poll for it, a bounded time."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka: not within {START_SECONDS_MAX:.0f} s: {what}")
            time.sleep(0.02)

    def _client(self) -> Any:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def _metadata(self) -> Any:
        return self._client().list_topics(timeout=START_SECONDS_MAX)

    def _partitions(self, name: str) -> dict[int, Any]:
        found: dict[int, Any] = self._client().list_topics(name, timeout=30).topics[name].partitions
        return found


class Broker:
    """One process: formatted once, then launched as often as needed on the same data."""

    def __init__(
        self,
        folder: Path,
        number: int,
        ports: dict[int, tuple[int, int]],
        tuning: Tuning,
        cluster_id: str,
    ) -> None:
        port, controller = ports[number]
        copies = str(len(ports))
        voters = ",".join(f"{n}@127.0.0.1:{c}" for n, (_, c) in ports.items())
        self.number = number
        self.address = f"127.0.0.1:{port}"
        self.data = folder / f"data-{number}"
        self._port = port
        self._heap = tuning.heap
        self._cluster_id = cluster_id
        self._log = folder / f"broker-{number}.log"
        self._settings = folder / f"server-{number}.properties"
        self._process: subprocess.Popen[bytes] | None = None
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            **tuning.broker,
        }  # fmt: skip
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def format(self) -> None:
        """Make its folder of data, as Kafka wants before the first start."""
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}")
        done = subprocess.run(
            java(*tool, "-c", str(self._settings)),
            timeout=START_SECONDS_MAX,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"Kafka's folder was not made: {done.stdout}{done.stderr}"[-2_000:])

    def launch(self) -> None:
        """Start the process."""
        assert self._process is None, "the broker is running"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                java("kafka.Kafka", str(self._settings), heap=self._heap),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is not meant for the broker
            )

    def wait_ready(self) -> None:
        """Wait until it takes connections: Kafka listens when the broker has been admitted."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"Kafka ended at once: {self._log.read_text()[-2_000:]}")
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError(f"Kafka did not listen within {START_SECONDS_MAX:.0f} s")

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if that takes too long."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None


def java(*arguments: str, heap: str = "-Xmx512m") -> list[str]:
    """The command that runs a class of Kafka."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"
    path = os.pathsep.join(map(str, fetch("broker")))
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    return [command, heap, quiet, "-cp", path, *arguments]


def _free_ports(count: int) -> Sequence[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
