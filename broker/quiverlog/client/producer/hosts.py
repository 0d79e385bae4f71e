"""The hosts of producers: a background thread, or the client's event loop.

Two pairs of classes of one shape: the blocking producer is generated, so loop and thread differ
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
    def __init__(self, cluster: Cluster, core: ProducerCore, io: IoThread) -> None:
        self.now = producer_base.now
        # Guards the core; the runner notifies callers that wait. A thread may take it twice.
        self.lock = threading.Condition()
        self._io = io
        self._runner = ProducerRunner(
            cluster, io.driver, core, io.loop, lock=self.lock, now=self.now, changed=self.notify
        )

    def wake(self) -> None:
        self._runner.wake_from_thread()

    def notify(self) -> None:
        self.lock.notify_all()

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        with self.lock:
            return self.lock.wait_for(is_true, timeout_s)

    def stop(self) -> None:
        if not self._io.loop.is_closed():
            self._io.run(self._runner.stop())


class ProducerHost:
    """Hosts a client's producers on a thread with its own connections."""

    def __init__(self, cluster: Cluster, driver: BlockingDriver) -> None:
        self._cluster = cluster
        self._driver = driver
        self._io = IoThread(cluster.settings)

    @property
    def io(self) -> IoThread:
        return self._io

    def host(self, core: ProducerCore) -> HostedCore:
        return HostedCore(self._cluster, core, self._io)

    def stop(self) -> None:
        if self._driver.is_own_process:
            self._io.stop()


class AsyncHostedCore:
    def __init__(self, cluster: Cluster, core: ProducerCore, driver: AsyncDriver) -> None:
        self.now = producer_base.now
        self.lock: AbstractContextManager[Any] = contextlib.nullcontext()
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
        self._runner.wake()

    def notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    await self._change.wait()
        except TimeoutError:
            return is_true()
        return True

    async def stop(self) -> None:
        await self._runner.stop()


class AsyncProducerHost:
    """Hosts a client's producers on the running loop, over its connections."""

    def __init__(self, cluster: Cluster, driver: AsyncDriver) -> None:
        self._cluster = cluster
        self._driver = driver

    @property
    def io(self) -> AsyncDriver:
        return self._driver

    def host(self, core: ProducerCore) -> AsyncHostedCore:
        return AsyncHostedCore(self._cluster, core, self._driver)

    async def stop(self) -> None:
        """Do nothing: loop and connections are the client's."""
