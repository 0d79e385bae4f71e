"""The asyncio consumer; `consumer.py` is generated from here. Owns the iterator, `poll`, `seek`,
and the refusal of concurrent callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import Any, Self, TypeVar

# blocking: from quiverlog.client.rows.arrow_stream import stream_of_consumer
from quiverlog.client.base.arguments import INT64, checked
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.misuse import asyncio_only
from quiverlog.client.drivers.asynchronous import AsyncDriver
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import InvalidArgument, QuiverlogError

from .base import ConsumerBase
from .core import ROUND_S, ConsumerCore

__all__ = ["AsyncConsumer"]

T = TypeVar("T")


@asyncio_only
class AsyncConsumer(ConsumerBase):
    """Iterates over `ConsumerBatch`es; made by `AsyncClient.consumer`.

    For one task at a time; only `close` may be called by another meanwhile: the iteration ends
    after a second, or when brokers are down after `request_timeout`.
    """

    def __init__(self, core: ConsumerCore, driver: AsyncDriver) -> None:
        super().__init__(core)
        self._driver = driver
        self._opened = False
        # Emptied by the running operation; tried, never waited for. No lock: a Ctrl-C during
        # `acquire` leaves its holder unknown, while a statement without a call is atomic.
        self._turn = [None]
        # blocking: self.open()

    def __await__(self) -> Generator[Any, None, Self]:  # asyncio only
        return self.open().__await__()

    async def open(self) -> Self:
        """Find the topic and the start offsets."""
        if not self._opened:
            await self._run(self._core.open())
            self._opened = True
        return self

    async def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        try:
            while (batch := await self._following()) is not None:
                yield batch
                batch = None  # keeps no reference while the answer after the next arrives
        finally:
            await self._release()

    async def __anext__(self) -> ConsumerBatch:
        batch = await self._following()
        if batch is None:
            await self._release()
            raise StopAsyncIteration
        return batch

    async def _following(self) -> ConsumerBatch | None:
        await self.open()
        self._core.handed_out()
        try:
            while not self._closed:
                batch = await self._run(self._next(ROUND_S))
                if batch is not None or self._core.is_at_end:
                    return batch
            return None
        except QuiverlogError:
            raise  # instead of a batch
        except BaseException:
            self._core.take_back()
            raise

    async def _following_many(self) -> list[ConsumerBatch]:
        """Return the next batch, with those after it that take no memory beyond the answer; empty
        at the end."""
        await self.open()
        self._core.handed_out()
        while not self._closed:
            batches = await self._run(self._next_many(ROUND_S))
            if batches or self._core.is_at_end:
                return batches
        return []

    @checked()
    async def poll(self, timeout: float = 1.0) -> ConsumerBatch | None:
        """Return the next batch, or None when there is none within `timeout` seconds (or ever).

        A poll that must connect first may take up to a second, whatever its timeout.
        """
        await self.open()
        self._core.handed_out()
        try:
            return await self._run(self._poll(timeout))
        except QuiverlogError:
            raise  # instead of a batch
        except BaseException:
            self._core.take_back()
            raise

    @checked(offset=INT64)
    async def seek(self, partition: int | tuple[str, int], offset: int) -> None:
        """Go on from `offset` of a partition: back, or past rows that cannot be decoded.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        await self.open()
        self._core.seek(partition, offset)

    @checked()
    async def pause(self, partition: int | tuple[str, int]) -> None:
        """Return no rows of a partition until `resume`; those that were fetched are kept.

        An iteration of which all partitions are paused waits.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        await self.open()
        self._core.pause(partition)

    @checked()
    async def resume(self, partition: int | tuple[str, int]) -> None:
        """Go on with a partition that was paused; one that was not stays as it is.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        await self.open()
        self._core.resume(partition)

    async def close(self) -> None:
        """End the iteration and drop the requests in flight."""
        self._closed = True
        await self._release()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # blocking: __arrow_c_stream__ = stream_of_consumer

    async def _run(self, operation: Operation[T]) -> T:
        try:
            del self._turn[0]
        except IndexError:
            operation.close()
            message = f"The consumer of {self.topic!r} is read by another caller now."
            raise InvalidArgument(message) from None
        try:
            return await self._driver.run(operation)
        finally:
            self._turn += (None,)
            if self._closed:  # A concurrent `close` has left the requests to this operation.
                await self._release()

    async def _release(self) -> None:
        """Drop the requests in flight; an operation that waits for them does so at its end."""
        try:
            del self._turn[0]
        except IndexError:
            return
        try:
            if self._core.requests and self._driver.is_usable:
                await self._driver.run(self._abandon())
        finally:
            self._turn += (None,)
