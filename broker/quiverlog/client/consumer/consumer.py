"""The blocking consumer.

Generated from `consumer/async_consumer.py` by scripts/generate_client.py; do not edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from quiverlog.client.base.arguments import INT64, checked
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.misuse import blocking_only
from quiverlog.client.drivers.blocking import BlockingDriver
from quiverlog.client.rows.arrow_stream import stream_of_consumer
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import InvalidArgument, QuiverlogError

from .base import ConsumerBase
from .core import ROUND_S, ConsumerCore

__all__ = ["Consumer"]

T = TypeVar("T")


@blocking_only
class Consumer(ConsumerBase):
    """Iterates over `ConsumerBatch`es; made by `Client.consumer`.

    For one thread at a time; only `close` may be called by another meanwhile: the iteration ends
    after a second, or when brokers are down after `request_timeout`.
    """

    def __init__(self, core: ConsumerCore, driver: BlockingDriver) -> None:
        super().__init__(core)
        self._driver = driver
        self._opened = False
        # Emptied by the running operation; tried, never waited for. No lock: a Ctrl-C during
        # `acquire` leaves its holder unknown, while a statement without a call is atomic.
        self._turn = [None]
        self.open()

    def open(self) -> Self:
        """Find the topic and the start offsets."""
        if not self._opened:
            self._run(self._core.open())
            self._opened = True
        return self

    def __iter__(self) -> Iterator[ConsumerBatch]:
        try:
            while (batch := self._following()) is not None:
                yield batch
                batch = None  # keeps no reference while the answer after the next arrives
        finally:
            self._release()

    def __next__(self) -> ConsumerBatch:
        batch = self._following()
        if batch is None:
            self._release()
            raise StopIteration
        return batch

    def _following(self) -> ConsumerBatch | None:
        self.open()
        self._core.handed_out()
        try:
            while not self._closed:
                batch = self._run(self._next(ROUND_S))
                if batch is not None or self._core.is_at_end:
                    return batch
            return None
        except QuiverlogError:
            raise  # instead of a batch
        except BaseException:
            self._core.take_back()
            raise

    def _following_many(self) -> list[ConsumerBatch]:
        """Return the next batch, with those after it that take no memory beyond the answer; empty
        at the end."""
        self.open()
        self._core.handed_out()
        while not self._closed:
            batches = self._run(self._next_many(ROUND_S))
            if batches or self._core.is_at_end:
                return batches
        return []

    @checked()
    def poll(self, timeout: float = 1.0) -> ConsumerBatch | None:
        """Return the next batch, or None when there is none within `timeout` seconds (or ever).

        A poll that must connect first may take up to a second, whatever its timeout.
        """
        self.open()
        self._core.handed_out()
        try:
            return self._run(self._poll(timeout))
        except QuiverlogError:
            raise  # instead of a batch
        except BaseException:
            self._core.take_back()
            raise

    @checked(offset=INT64)
    def seek(self, partition: int | tuple[str, int], offset: int) -> None:
        """Go on from `offset` of a partition: back, or past rows that cannot be decoded.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        self.open()
        self._core.seek(partition, offset)

    @checked()
    def pause(self, partition: int | tuple[str, int]) -> None:
        """Return no rows of a partition until `resume`; those that were fetched are kept.

        An iteration of which all partitions are paused waits.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        self.open()
        self._core.pause(partition)

    @checked()
    def resume(self, partition: int | tuple[str, int]) -> None:
        """Go on with a partition that was paused; one that was not stays as it is.

        Raises:
            UnknownPartition: the partition is not read by this consumer.
        """
        self.open()
        self._core.resume(partition)

    def close(self) -> None:
        """End the iteration and drop the requests in flight."""
        self._closed = True
        self._release()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    __arrow_c_stream__ = stream_of_consumer

    def _run(self, operation: Operation[T]) -> T:
        try:
            del self._turn[0]
        except IndexError:
            operation.close()
            message = f"The consumer of {self.topic!r} is read by another caller now."
            raise InvalidArgument(message) from None
        try:
            return self._driver.run(operation)
        finally:
            self._turn += (None,)
            if self._closed:  # A concurrent `close` has left the requests to this operation.
                self._release()

    def _release(self) -> None:
        """Drop the requests in flight; an operation that waits for them does so at its end."""
        try:
            del self._turn[0]
        except IndexError:
            return
        try:
            if self._core.requests and self._driver.is_usable:
                self._driver.run(self._abandon())
        finally:
            self._turn += (None,)
