"""Where the producers of a blocking client run, and how their callers wait: on one more thread.

`async_producer_host.py` has the same two classes for asyncio. The producer itself is written once,
over these (scripts/generate_client.py): what differs between a loop and a thread must stay in here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import producer_base
from .blocking import BlockingDriver
from .io_thread import IoThread
from .producer_core import ProducerCore
from .producer_runner import ProducerRunner
from .routing import Cluster

__all__ = ["HostedCore", "ProducerHost"]


class HostedCore:
    """One producer's core with its runner."""

    def __init__(self, cluster: Cluster, core: ProducerCore, io: IoThread) -> None:
        self.now = producer_base.now
        self.lock = threading.Condition()
        """Guards the core; the runner notifies whoever waits. May be taken twice by a thread."""
        self._io = io
        self._runner = ProducerRunner(
            cluster, io.driver, core, io.loop, lock=self.lock, now=self.now, changed=self.notify
        )

    def wake(self) -> None:
        """Have the runner look at the core soon."""
        self._runner.wake_from_thread()

    def notify(self) -> None:
        """Something was acknowledged or failed: whoever waits looks again. Needs the lock."""
        self.lock.notify_all()

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until it is true; False if the time is up first."""
        with self.lock:
            return self.lock.wait_for(is_true, timeout_s)

    def stop(self) -> None:
        """Stop at once; what is under way is not waited for."""
        if not self._io.loop.is_closed():
            self._io.run(self._runner.stop())


class ProducerHost:
    """Hosts the producers of one client on a thread with connections of its own."""

    def __init__(self, cluster: Cluster, driver: BlockingDriver) -> None:
        self._cluster = cluster
        self._driver = driver
        self._io = IoThread(cluster.settings)

    def host(self, core: ProducerCore) -> HostedCore:
        """Give a core its runner."""
        return HostedCore(self._cluster, core, self._io)

    def stop(self) -> None:
        """End the thread. A forked child has none."""
        if self._driver.is_own_process:
            self._io.stop()
