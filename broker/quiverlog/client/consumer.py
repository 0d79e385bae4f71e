"""The consumer as programs see it: an iterator, and an asynchronous one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from .asynchronous import AsyncDriver
from .blocking import BlockingDriver
from .commands import Abandon, Operation
from .consumer_core import ROUND_S, ConsumerCore
from .deadline import within
from .results import ConsumerBatch

__all__ = ["AsyncConsumer", "Consumer"]


class _ConsumerBase:
    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._opened = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._core.topic}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._core.topic

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> offset after the last row handed out: `start` of a later consumer."""
        return self._core.positions

    def _next(self, timeout_s: float | None) -> Operation[ConsumerBatch | None]:
        """One round: it comes back now and then, to see a `close`."""
        if self._closed:
            return None
        return (yield from self._core.next(timeout_s))

    def _poll(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        work_s = max(timeout_s, POLL_WORK_S)
        return (yield from within(self._core.clock, work_s, self._next(timeout_s)))

    def _ended(self, batch: ConsumerBatch | None) -> bool:
        return batch is None and (self._closed or self._core.is_at_end)


def _abandon(core: ConsumerCore) -> Operation[None]:
    requests, core.requests = core.requests, []
    for request in requests:
        yield Abandon(request.pending)


POLL_WORK_S = 1.0
"""What a `poll` may take for a connection or metadata, however short its timeout: with less, a
program that polls with timeout=0 would never get on."""


class Consumer(_ConsumerBase):
    """Iterates over `ConsumerBatch`es; made by `Client.consumer`. For one thread at a time.

    `close` may be called from another thread: the iteration ends within a second.
    """

    def __init__(self, core: ConsumerCore, driver: BlockingDriver) -> None:
        super().__init__(core)
        self._driver = driver
        driver.run(core.open())

    def __iter__(self) -> Iterator[ConsumerBatch]:
        try:
            while not self._closed:
                batch = self._driver.run(self._next(ROUND_S))
                if batch is not None:
                    yield batch
                elif self._ended(batch):
                    return
        finally:
            self._release()

    def poll(self, timeout: float = 1.0) -> ConsumerBatch | None:
        """The next batch, or None when there is none within `timeout` seconds (or ever).

        A poll that must open a connection first may take up to a second, whatever its timeout.
        """
        return self._driver.run(self._poll(timeout))

    def seek(self, partition: int, offset: int) -> None:
        """Go on from `offset` of a partition: back, or past rows that cannot be decoded.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        self._core.seek(partition, offset)

    def close(self) -> None:
        """End the iteration and drop the requests under way."""
        self._closed = True

    def _release(self) -> None:
        if self._core.requests and self._driver.is_own_process and not self._driver.is_closed:
            self._driver.run(_abandon(self._core))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._release()


class AsyncConsumer(_ConsumerBase):
    """`Consumer` for asyncio: `async for batch in consumer`."""

    def __init__(self, core: ConsumerCore, driver: AsyncDriver) -> None:
        super().__init__(core)
        self._driver = driver

    async def open(self) -> Self:
        """Find the topic and where to begin; the first use does it when it was not called."""
        if not self._opened:
            await self._driver.run(self._core.open())
            self._opened = True
        return self

    async def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        await self.open()
        try:
            while not self._closed:
                batch = await self._driver.run(self._next(ROUND_S))
                if batch is not None:
                    yield batch
                elif self._ended(batch):
                    return
        finally:
            await self._release()

    async def poll(self, timeout: float = 1.0) -> ConsumerBatch | None:
        """As `Consumer.poll`."""
        await self.open()
        return await self._driver.run(self._poll(timeout))

    async def seek(self, partition: int, offset: int) -> None:
        """As `Consumer.seek`."""
        await self.open()
        self._core.seek(partition, offset)

    async def close(self) -> None:
        """As `Consumer.close`."""
        self._closed = True
        await self._release()

    async def _release(self) -> None:
        if self._core.requests and not self._driver.is_closed:
            await self._driver.run(_abandon(self._core))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
