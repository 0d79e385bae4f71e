"""Where the producers of an asyncio client run, and how their callers wait: on the client's loop.

`producer_host.py` has the same two classes for threads. The producer itself is written once, over
these (scripts/generate_client.py): what differs between a loop and a thread must stay in here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from . import producer_base
from .asynchronous import AsyncDriver
from .producer_core import ProducerCore
from .producer_runner import ProducerRunner
from .routing import Cluster

__all__ = ["AsyncHostedCore", "AsyncProducerHost"]


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
