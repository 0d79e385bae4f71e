"""The brokers of the demo, a local cluster (`quiverlog.local`): with `--keep` they survive the
demo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.local.broker import LocalBroker
from quiverlog.local.cluster import LocalCluster, racks_of
from quiverlog.local.failures import LocalClusterFailed

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["DemoCluster"]

_STOP_S = 30.0


class DemoCluster:
    """`count` brokers on loopback; `directory`, which is new, gets their data and logs."""

    def __init__(self, directory: Path, count: int) -> None:
        assert count >= 1
        with _failing_command():
            self._cluster = LocalCluster.create(directory, racks=racks_of(count))
        self.killed: LocalBroker | None = None

    @property
    def brokers(self) -> list[LocalBroker]:
        return list(self._cluster.brokers.values())

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def living(self) -> list[LocalBroker]:
        return [broker for broker in self.brokers if broker is not self.killed]

    @property
    def logs(self) -> str:
        return ", ".join(str(broker.log) for broker in self.brokers)

    def start(self) -> None:
        """Start all brokers; return when clients may connect and a controller is elected."""
        with _failing_command():
            self._cluster.start()

    def kill_leader(self, client: Client, topic: str) -> tuple[LocalBroker, list[int]]:
        """Send SIGKILL to the broker that leads the most partitions of a topic; return it and these
        partitions."""
        assert self.killed is None, "a second loss may leave no majority"
        partitions = client.describe_topic(topic).partitions
        led = {
            broker.node_id: [p.partition for p in partitions if p.leader == broker.node_id]
            for broker in self.brokers
        }
        self.killed = max(self.brokers, key=lambda broker: len(led[broker.node_id]))
        if not led[self.killed.node_id]:
            raise CommandFailed(f"No broker leads {topic}; the brokers' logs: {self.logs}")
        with _failing_command():
            self.killed.kill()
        return self.killed, led[self.killed.node_id]

    def stop(self) -> bool:
        """End all brokers; return whether all but the killed one stopped cleanly."""
        for broker in self.living:
            with contextlib.suppress(LocalClusterFailed):
                broker.stop(_STOP_S)
        for broker in self.brokers:
            with _failing_command():
                broker.kill()
        return all(broker.stopped_cleanly for broker in self.living)

    def pids(self) -> list[int]:
        return [broker.pid for broker in self.living if broker.pid is not None]


@contextlib.contextmanager
def _failing_command() -> Iterator[None]:
    try:
        yield
    except LocalClusterFailed as error:
        raise CommandFailed(str(error)) from error
