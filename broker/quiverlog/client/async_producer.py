"""The asyncio producer: the same as the blocking one, with its waiting awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiverlog.errors import ClientClosed, QuiverlogError, RequestTimedOut

from .delivery import Delivery
from .producer_base import INTERRUPTED_FLUSH_S, ProducerBase, all_done, now
from .producer_core import ProducerCore
from .producer_runner import ProducerRunner
from .results import Produced
from .routing import Cluster

if TYPE_CHECKING:
    from .asynchronous import AsyncDriver

__all__ = ["AsyncProducer", "AsyncSendFuture"]


class AsyncSendFuture(Delivery):
    """What becomes of one `send`; await it for the same result that `SendFuture` gives."""

    __slots__ = ("_until",)

    def __init__(self, until: Callable[[Callable[[], bool]], Any]) -> None:
        super().__init__()
        self._until = until

    def done(self) -> bool:
        """True when everything is acknowledged, or something has failed."""
        return self.is_done

    def __await__(self) -> Generator[Any, None, list[Produced]]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> list[Produced]:
        """As `SendFuture.result`."""
        error = await self.exception(timeout)
        if error is not None:
            raise error
        return self.produced

    async def exception(self, timeout: float | None = None) -> QuiverlogError | None:
        """As `SendFuture.exception`."""
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: self.is_done)
        except TimeoutError:
            raise RequestTimedOut(f"No acknowledgement within {timeout:g} s.") from None
        self.reported = True
        return self.error


class AsyncProducer(ProducerBase):
    """`Producer` for asyncio; made by `AsyncClient.producer`, used with `async with`."""

    def __init__(self, cluster: Cluster, core: ProducerCore, driver: AsyncDriver) -> None:
        super().__init__(core, core.topic.name)
        self._change = asyncio.Event()
        # One thread: the lock is there for the runner's sake and never waits.
        self._runner = ProducerRunner(
            cluster,
            driver,
            core,
            asyncio.get_running_loop(),
            lock=threading.Lock(),
            now=now,
            changed=self._notify,
        )

    async def send(self, data: Any, *, partition: int | None = None) -> AsyncSendFuture:
        """As `Producer.send`; waits for room only. Await what it returns for the result."""
        self._check_usable()
        target = self._options.partition if partition is None else partition
        future = AsyncSendFuture(self._until)
        if isinstance(data, dict):
            await self._wait_for_room()
            if self._core.add_row(target, data, future, now()):
                self._runner.wake()
            return future
        if target is not None:
            self._core.check_partition(target)
        for batch in self._converter.batches(data):
            for where, rows in self._core.split(batch, target):
                await self._wait_for_room()
                if self._core.add(where, rows, future, now()):
                    self._runner.wake()
        future.mark_complete()
        self._notify()
        return future

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`."""
        self._check_usable()
        self._core.close_batches(now())
        waiting = self._core.outstanding()
        self._runner.wake()
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: all_done(waiting))
        except TimeoutError:
            raise RequestTimedOut(f"{len(waiting)} batches are not acknowledged yet.") from None
        self._raise_failures()

    async def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`."""
        if self._closed:
            return
        try:
            await self.flush(timeout)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """As `Producer.abort`."""
        if self._closed:
            return
        self._closed = True
        await self._runner.stop()
        self._core.fail_all(ClientClosed(f"The producer of {self.topic!r} was closed."))
        self._notify()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close(None if isinstance(error, Exception) else INTERRUPTED_FLUSH_S)
        except QuiverlogError as second:
            error.add_note(f"and the producer of {self.topic!r} failed: {second}")

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await self._change.wait()

    async def _wait_for_room(self) -> None:
        if not self._is_full():
            return
        self._runner.wake()
        try:
            async with asyncio.timeout(self._options.delivery_timeout_us / 1_000_000):
                await self._until(lambda: self._closed or not self._is_full())
        except TimeoutError:
            raise self._exhausted() from None
        self._check_usable()
