"""Where producers run and how their callers wait: on a thread, or on the client's event loop.

Owns two pairs of classes of one shape. The producer is written once over them and generated for
the other client (scripts/generate_client.py): every difference between loop and thread stays
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.drivers.asynchronous import AsyncDriver, IoThread
from quiverlog.client.drivers.blocking import BlockingDriver

from . import base as producer_base
from .core import ProducerCore
from .runner import ProducerRunner

__all__ = ["AsyncHostedCore", "AsyncProducerHost", "HostedCore", "ProducerHost"]


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


# Where the producers of an asyncio client run, and how their callers wait: on the client's loop.
class AsyncHostedCore:
    """One producer's core with its runner."""

    def __init__(self, cluster: Cluster, core: ProducerCore, driver: AsyncDriver) -> None:
        self.now = producer_base.now
        self.lock: AbstractContextManager[Any] = contextlib.nullcontext()
        """Guards the core; there is one thread, so nothing has to be kept out."""
        self._change = asyncio.Event()
        self._runner = ProducerRunner(
            cluster,
            driver,
            core,
            asyncio.get_running_loop(),
            lock=self.lock,
            now=self.now,
            changed=self.notify,
        )

    def wake(self) -> None:
        """Have the runner look at the core soon."""
        self._runner.wake()

    def notify(self) -> None:
        """Something was acknowledged or failed: whoever waits looks again."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until it is true; False if the time is up first."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    await self._change.wait()
        except TimeoutError:
            return is_true()
        return True

    async def stop(self) -> None:
        """Stop at once; what is under way is not waited for."""
        await self._runner.stop()


class AsyncProducerHost:
    """Hosts the producers of one client on the running loop, over the client's connections."""

    def __init__(self, cluster: Cluster, driver: AsyncDriver) -> None:
        self._cluster = cluster
        self._driver = driver

    def host(self, core: ProducerCore) -> AsyncHostedCore:
        """Give a core its runner."""
        return AsyncHostedCore(self._cluster, core, self._driver)

    async def stop(self) -> None:
        """End; the loop and the connections belong to others."""
