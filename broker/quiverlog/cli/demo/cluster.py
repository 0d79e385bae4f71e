"""The brokers of the demo: one, or several that form a cluster.

Owns how they come to know each other, which of them is killed, and their end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from quiverlog.cli.demo.processes import DemoBroker
from quiverlog.cli.failures import CommandFailed
from quiverlog.limits import QUORUM_AUTO_VOTERS_MAX

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["DemoCluster"]

_QUORUM_S_MAX = 60.0
_LOOK_S = 0.05
REPLICATION_FACTOR_MAX = 3
"""More copies than three show nothing that three do not."""


class DemoCluster:
    """`count` brokers on loopback, their data and logs in `directory`.

    The first begins a cluster, the others join it. `wait_until_ready` starts these others.
    """

    def __init__(self, directory: Path, count: int) -> None:
        assert count >= 1
        self._directory = directory
        self._count = count
        self._cluster_id = secrets.token_hex(16)
        self.killed: DemoBroker | None = None
        self.brokers = [DemoBroker(directory, "--cluster-id", self._cluster_id)]

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, one that was killed among them: clients skip it."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def replication_factor(self) -> int:
        """Of the demo's topics."""
        return min(self._count, REPLICATION_FACTOR_MAX)

    @property
    def living(self) -> list[DemoBroker]:
        """All but the one that was killed."""
        return [broker for broker in self.brokers if broker is not self.killed]

    @property
    def logs(self) -> str:
        """Where the brokers' logs are."""
        return ", ".join(str(broker.log) for broker in self.brokers)

    def wait_until_ready(self) -> None:
        """Return when clients may connect to all brokers.

        Raises:
            CommandFailed: one of them ended, or did not get there in time.
        """
        first = self.brokers[0]
        first.wait_until_ready()
        for node_id in range(2, self._count + 1):
            seeds = f"{first.node_id}@{first.bootstrap}"
            options = ["--cluster-id", self._cluster_id]
            options += ["--controller-quorum-bootstrap-servers", seeds]
            self.brokers.append(DemoBroker(self._directory, *options, node_id=node_id))
        for broker in self.brokers[1:]:
            broker.wait_until_ready()

    def wait_for_quorum(self, client: Client) -> None:
        """Return when the brokers have made voters of themselves: see docs/cluster.md.

        Raises:
            CommandFailed: they did not in time.
        """
        wanted = min(self._count - 1 + self._count % 2, QUORUM_AUTO_VOTERS_MAX)
        deadline_s = time.monotonic() + _QUORUM_S_MAX
        while len(client.describe_cluster().voters) < wanted:
            if time.monotonic() > deadline_s:
                raise CommandFailed(f"The brokers form no quorum; their logs: {self.logs}")
            time.sleep(_LOOK_S)

    def kill_leader(self, client: Client, topic: str) -> tuple[DemoBroker, list[int]]:
        """SIGKILL for the broker that leads the most partitions of a topic.

        Returns the broker, and the partitions that it led.

        Raises:
            CommandFailed: no partition has a leader among the brokers.
        """
        assert self.killed is None, "the others are needed"
        partitions = client.describe_topic(topic).partitions
        led = {
            broker.node_id: [p.partition for p in partitions if p.leader == broker.node_id]
            for broker in self.brokers
        }
        self.killed = max(self.brokers, key=lambda broker: len(led[broker.node_id]))
        if not led[self.killed.node_id]:
            raise CommandFailed(f"No broker leads {topic}; the brokers' logs: {self.logs}")
        self.killed.kill()
        return self.killed, led[self.killed.node_id]

    def stop(self) -> int:
        """End all brokers; 0 when each that had not been killed stopped cleanly."""
        living = self.living
        codes = [broker.stop() for broker in self.brokers]
        wrong = [code for broker, code in zip(self.brokers, codes, strict=True) if broker in living]
        return next(filter(None, wrong), 0)

    def leave_running(self) -> None:
        """From now on the brokers are the user's."""
        for broker in self.living:
            broker.leave_running()

    def pids(self) -> Iterable[int]:
        """Of the brokers that run."""
        return [broker.pid for broker in self.living]
