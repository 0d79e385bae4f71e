"""The asyncio producer; `producer.py` is generated from here.

An error reaches the caller by the future, the next flush, or the end of `async with`.
"""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiverlog.client.base.arguments import INT32, checked
from quiverlog.client.base.misuse import asyncio_only
from quiverlog.client.base.results import Produced
from quiverlog.errors import ClientClosed, QuiverlogError, RequestTimedOut

from .base import INTERRUPTED_FLUSH_S, ProducerBase, all_done
from .core import ProducerCore
from .types import Delivery

if TYPE_CHECKING:
    from .hosts import AsyncHostedCore

__all__ = ["AsyncProducer", "AsyncSendFuture"]


class AsyncSendFuture(Delivery):
    """The outcome of one `send`."""

    __slots__ = ("_hosted", "_producer")

    def __init__(self, producer: AsyncProducer, hosted: AsyncHostedCore) -> None:
        super().__init__()
        self._hosted = hosted
        # Keeps the producer alive, so that closing the client ends this wait.
        self._producer = producer

    def done(self) -> bool:
        """Return True if all rows are acknowledged, or some have failed."""
        return self.is_done

    def __await__(self) -> Generator[Any, None, list[Produced]]:  # asyncio only
        return self.result().__await__()

    @checked()
    async def result(self, timeout: float | None = None) -> list[Produced]:
        """Wait for the acknowledgement: one entry per partition and run of offsets.

        Args:
            timeout: seconds; None waits until the rows are acknowledged or have failed.

        Raises:
            RequestTimedOut: `timeout` has passed; the producer still tries to send the rows.
            QuiverlogError: why the rows were not stored.
        """
        error = await self.exception(timeout)
        if error is not None:
            raise error
        return self.produced

    @checked()
    async def exception(self, timeout: float | None = None) -> QuiverlogError | None:
        """Wait, and return the error instead of raising it."""
        if not await self._hosted.wait_for(lambda: self.is_done, timeout):
            raise RequestTimedOut(f"No acknowledgement within {timeout:g} s.")
        self.reported = True
        return self.error


@asyncio_only
class AsyncProducer(ProducerBase):
    """Sends rows to one topic; made by `AsyncClient.producer`."""

    def __init__(self, core: ProducerCore, hosted: AsyncHostedCore) -> None:
        super().__init__(core)
        self._hosted = hosted

    async def send(self, data: Any, *, partition: int | None = None) -> AsyncSendFuture:
        """Buffer rows and send them in batches, in the background.

        Args:
            data: pa.RecordBatch, pa.Table, a dict (one row), a list of dicts, or anything with
                `__arrow_c_stream__` (pandas, polars, duckdb).
            partition: default: chosen by the key columns, without a key by turns.

        Returns:
            A future: its `result` waits for the acknowledgement. `send` waits for room only.

        Raises:
            SchemaMismatch: the data does not fit; none of it was buffered. A single dict is
                converted with its batch, so its error comes by the future instead.
            BufferExhausted: there was no room for `delivery_timeout` seconds; earlier rows of the
                data are sent.
            UnknownPartition: the topic has no such partition.
            ClientClosed: the producer is closed.
        """
        self._check_usable()
        if partition is not None:
            INT32("partition", partition)
        target = self._options.partition if partition is None else partition
        future = AsyncSendFuture(self, self._hosted)
        if isinstance(data, dict):
            with self._hosted.lock:
                await self._wait_for_room()
                wake = self._core.add_row(target, data, future, self._hosted.now())
            if wake:
                self._hosted.wake()
            return future
        if target is not None:
            self._core.check_partition(target)
        for batch in self._converter.batches(data):
            for where, rows in self._core.split(batch, target):
                with self._hosted.lock:
                    await self._wait_for_room()
                    wake = self._core.add(where, rows, future, self._hosted.now())
                if wake:
                    self._hosted.wake()
        with self._hosted.lock:
            future.mark_complete()
            self._hosted.notify()
        return future

    @checked()
    async def flush(self, timeout: float | None = None) -> None:
        """Send buffered rows and wait until all rows sent so far are acknowledged.

        Args:
            timeout: seconds; None waits for up to `delivery_timeout`.

        Raises:
            RequestTimedOut: `timeout` has passed.
            QuiverlogError: the first failure that no `result()` has reported yet.
        """
        self._check_usable()
        with self._hosted.lock:
            self._core.close_batches(self._hosted.now())
            waiting = self._core.outstanding()
        self._hosted.wake()
        if not await self._hosted.wait_for(lambda: all_done(waiting), timeout):
            raise RequestTimedOut(f"{len(waiting)} batches are not acknowledged yet.")
        with self._hosted.lock:
            self._raise_failures()

    @checked()
    async def close(self, timeout: float | None = None) -> None:
        """Flush and end. A second call does nothing. Raises what `flush` raises."""
        if self._closed:
            return
        try:
            await self.flush(timeout)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """End at once; rows that are not acknowledged fail with ClientClosed."""
        if self._closed:
            return
        self._closed = True
        if not self._is_own_process:
            return  # The rows and the lock are the parent's.
        try:
            await self._hosted.stop()
        finally:  # an abort that is interrupted must not leave sends without an end
            with self._hosted.lock:
                self._core.fail_all(
                    ClientClosed(f"The producer of {self.topic!r} was closed before.")
                )
                self._hosted.notify()

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
        except QuiverlogError as second:  # must not hide the first
            error.add_note(f"and the producer of {self.topic!r} failed: {second}")

    async def _wait_for_room(self) -> None:
        """Wait for room. The caller holds the lock, and so keeps the room."""
        if self._is_full():
            self._hosted.wake()
            seconds = self._options.delivery_timeout_us / 1_000_000
            if not await self._hosted.wait_for(
                lambda: self._closed or not self._is_full(), seconds
            ):
                raise self._exhausted()
        # Under the lock: rows added after a close would be neither sent nor failed.
        self._check_usable()
