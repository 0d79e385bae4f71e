"""The producer's two faces: blocking, with the engine on a background thread, and asyncio.

Owns argument names and defaults, the waiting (for room, for a flush, for a result) and the rule
that an error reaches the program: by the future, or by the next flush, or at the end of `with`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiverlog.batch.partitioner import check_key_columns
from quiverlog.errors import (
    BufferExhausted,
    ClientClosed,
    ForkedClient,
    InvalidArgument,
    QuiverlogError,
    RequestTimedOut,
)
from quiverlog.limits import (
    DELIVERY_TIMEOUT_MS_DEFAULT,
    PRODUCER_BATCH_BYTES_DEFAULT,
    PRODUCER_BATCH_ROWS_DEFAULT,
    PRODUCER_BUFFER_BYTES_DEFAULT,
    PRODUCER_LINGER_MS_DEFAULT,
)
from quiverlog.types import Compression, Durability, Now

from .answers import about
from .commands import Operation
from .convert import Converter
from .delivery import Delivery
from .producer_core import Identity, ProducerCore, ProducerOptions, Sealed
from .producer_engine import ProducerEngine, new_identity
from .results import Produced
from .routing import Cluster

if TYPE_CHECKING:
    from .asynchronous import AsyncDriver
    from .io_thread import IoThread

__all__ = ["AsyncProducer", "AsyncSendFuture", "Producer", "SendFuture", "producer_options"]

INTERRUPTED_FLUSH_S = 5.0
"""How long an interrupted program (Ctrl-C) still waits for its last rows."""


def _now() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)


def producer_options(
    cluster: Cluster,
    *,
    batch_rows: int = PRODUCER_BATCH_ROWS_DEFAULT,
    batch_bytes: int = PRODUCER_BATCH_BYTES_DEFAULT,
    linger: float = PRODUCER_LINGER_MS_DEFAULT / 1000,
    compression: Compression | str | None = None,
    durability: Durability | str | None = None,
    buffer_bytes: int = PRODUCER_BUFFER_BYTES_DEFAULT,
    delivery_timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
    idempotent: bool = True,
    partition: int | None = None,
) -> Callable[[Compression], ProducerOptions]:
    """Check the arguments; the topic's advice on compression is added when it is known."""
    codec = None if compression is None else _member(Compression, compression, "compression")
    level = _member(Durability, durability or Durability.TOPIC_DEFAULT, "durability")
    delivery_us = round(delivery_timeout * 1_000_000)
    request_us = min(delivery_us, round(cluster.settings.request_timeout_s * 1_000_000))

    def complete(advice: Compression) -> ProducerOptions:
        return ProducerOptions(
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            linger_us=round(linger * 1_000_000),
            compression=advice if codec is None else codec,
            durability=level,
            buffer_bytes=buffer_bytes,
            delivery_timeout_us=delivery_us,
            request_timeout_us=request_us,
            idempotent=idempotent,
            partition=partition,
        )

    complete(Compression.NONE)  # refuses bad numbers before anything is asked of the broker
    return complete


def _member(kind: Any, value: Any, name: str) -> Any:
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        choices = ", ".join(m.name.lower() for m in kind if m >= 0)
        raise InvalidArgument(f"{name}={value!r} is none of {choices}.") from None


def open_core(
    cluster: Cluster, topic_name: str, complete: Callable[[Compression], ProducerOptions]
) -> Operation[ProducerCore]:
    """Ask for what a producer must know: the topic, its schema, a producer id."""

    def attempt() -> Operation[ProducerCore]:
        topic = yield from cluster.topic(topic_name, fresh=True)  # others may have altered it
        history = yield from cluster.history(topic.topic_id, topic_name, needed_id=topic.schema_id)
        options = complete(topic.compression)
        identity = (yield from new_identity(cluster)) if options.idempotent else Identity()
        check_key_columns(history.current, topic.key_columns)
        converter = Converter(history.current, topic_name)
        core = ProducerCore(
            topic, converter, history.current_id, options, identity, jitter=cluster.jitter
        )
        if options.partition is not None:
            core.check_partition(options.partition)
        return core

    return (yield from about(topic_name, cluster.retrying(attempt)))


class _Face:
    """What both faces do with the core."""

    def __init__(self, core: ProducerCore, topic: str) -> None:
        self.topic = topic
        self._core = core
        self._converter = core.converter
        self._options = core.options
        self._pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.topic}>"

    @property
    def schema(self) -> Any:
        """The schema that rows are converted to (pa.Schema)."""
        return self._converter.schema

    @property
    def buffered_bytes(self) -> int:
        """Bytes of rows that are not acknowledged."""
        return self._core.buffered_bytes

    @property
    def is_closed(self) -> bool:
        """`close` or `abort` was called."""
        return self._closed

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed(f"The producer of {self.topic!r} is closed.")
        if os.getpid() != self._pid:
            raise ForkedClient("This producer was opened before the process forked.")

    def _is_full(self) -> bool:
        return self._core.buffered_bytes >= self._options.buffer_bytes

    def _exhausted(self) -> BufferExhausted:
        seconds = self._options.delivery_timeout_us / 1_000_000
        return BufferExhausted(
            f"{self._core.buffered_bytes} bytes wait for {self.topic!r}, and there was no room "
            f"for more in {seconds:g} s."
        )

    def _raise_failures(self) -> None:
        failures = [d for d in self._core.failures if not d.reported]
        self._core.failures.clear()
        if not failures:
            return
        for delivery in failures:
            delivery.reported = True
        error = failures[0].error
        assert error is not None
        if len(failures) > 1:
            error.add_note(f"{len(failures)} sends failed since the last flush; this is the first.")
        raise error


def _all_done(waiting: list[Sealed]) -> bool:
    while waiting and waiting[-1].is_done:
        waiting.pop()
    return not waiting


# --- blocking -------------------------------------------------------------------------------------
class SendFuture(Delivery):
    """What becomes of one `send`."""

    __slots__ = ("_changed",)

    def __init__(self, changed: threading.Condition) -> None:
        super().__init__()
        self._changed = changed

    def done(self) -> bool:
        """True when everything is acknowledged, or something has failed."""
        return self.is_done

    def result(self, timeout: float | None = None) -> list[Produced]:
        """Wait for the acknowledgement: one entry per partition and run of offsets.

        Args:
            timeout: seconds; None waits until `delivery_timeout` decides.

        Raises:
            RequestTimedOut: `timeout` has passed; the rows are still on their way.
            QuiverlogError: why the rows were not stored.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.produced

    def exception(self, timeout: float | None = None) -> QuiverlogError | None:
        """Wait, and return the error instead of raising it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_done, timeout):
                raise RequestTimedOut(f"No acknowledgement within {timeout:g} s.")
        self.reported = True
        return self.error


class Producer(_Face):
    """Sends rows to one topic; made by `Client.producer`. Threads may share it."""

    def __init__(self, cluster: Cluster, core: ProducerCore, io: IoThread) -> None:
        super().__init__(core, core.topic.name)
        self._changed = threading.Condition()
        self._io = io
        self._engine = ProducerEngine(
            cluster,
            io.driver,
            core,
            io.loop,
            lock=self._changed,
            now=_now,
            changed=self._changed.notify_all,
        )

    def send(self, data: Any, *, partition: int | None = None) -> SendFuture:
        """Take rows; they travel in batches, in the background.

        Args:
            data: pa.RecordBatch, pa.Table, a dict (one row), a list of dicts, or anything with
                `__arrow_c_stream__` (pandas, polars, duckdb).
            partition: where to; by default the key columns decide, or whose turn it is.

        Raises:
            SchemaMismatch: the data does not fit; nothing of it was taken. A single dict is
                looked at with its batch, and reports by the future instead.
            BufferExhausted: there was no room for `delivery_timeout` seconds.
        """
        self._check_usable()
        target = self._options.partition if partition is None else partition
        future = SendFuture(self._changed)
        if isinstance(data, dict):
            with self._changed:
                self._wait_for_room()
                wake = self._core.add_row(target, data, future, _now())
            if wake:
                self._engine.wake_from_thread()
            return future
        if target is not None:
            self._core.check_partition(target)
        for batch in self._converter.batches(data):
            for where, rows in self._core.split(batch, target):
                with self._changed:
                    self._wait_for_room()
                    wake = self._core.add(where, rows, future, _now())
                if wake:
                    self._engine.wake_from_thread()
        with self._changed:
            future.seal()
            self._changed.notify_all()
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Send what is buffered and wait until everything sent so far is acknowledged.

        Args:
            timeout: seconds; None waits until `delivery_timeout` decides.

        Raises:
            RequestTimedOut: `timeout` has passed.
            QuiverlogError: the first failure that no `result()` has reported yet.
        """
        self._check_usable()
        with self._changed:
            self._core.seal_all(_now())
            waiting = self._core.outstanding()
        self._engine.wake_from_thread()
        with self._changed:
            if not self._changed.wait_for(lambda: _all_done(waiting), timeout):
                raise RequestTimedOut(f"{len(waiting)} batches are not acknowledged yet.")
            self._raise_failures()

    def close(self, timeout: float | None = None) -> None:
        """Flush and end. A second call does nothing. Raises what `flush` raises."""
        if self._closed:
            return
        try:
            self.flush(timeout)
        finally:
            self.abort()

    def abort(self) -> None:
        """End at once; what is not acknowledged fails with ClientClosed."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid and not self._io.loop.is_closed():
            self._io.run(self._engine.stop())
        with self._changed:
            self._core.fail_all(ClientClosed(f"The producer of {self.topic!r} was closed."))
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(None if isinstance(error, Exception) else INTERRUPTED_FLUSH_S)
        except QuiverlogError as second:  # must not hide the first
            error.add_note(f"and the producer of {self.topic!r} failed: {second}")

    def _wait_for_room(self) -> None:
        if not self._is_full():
            return
        self._engine.wake_from_thread()
        seconds = self._options.delivery_timeout_us / 1_000_000
        if not self._changed.wait_for(lambda: self._closed or not self._is_full(), seconds):
            raise self._exhausted()
        self._check_usable()


# --- asyncio --------------------------------------------------------------------------------------
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


class AsyncProducer(_Face):
    """`Producer` for asyncio; made by `AsyncClient.producer`, used with `async with`."""

    def __init__(self, cluster: Cluster, core: ProducerCore, driver: AsyncDriver) -> None:
        super().__init__(core, core.topic.name)
        self._change = asyncio.Event()
        # One thread: the lock is there for the engine's sake and never waits.
        self._engine = ProducerEngine(
            cluster,
            driver,
            core,
            asyncio.get_running_loop(),
            lock=threading.Lock(),
            now=_now,
            changed=self._notify,
        )

    async def send(self, data: Any, *, partition: int | None = None) -> AsyncSendFuture:
        """As `Producer.send`; waits for room only. Await what it returns for the result."""
        self._check_usable()
        target = self._options.partition if partition is None else partition
        future = AsyncSendFuture(self._until)
        if isinstance(data, dict):
            await self._wait_for_room()
            if self._core.add_row(target, data, future, _now()):
                self._engine.wake()
            return future
        if target is not None:
            self._core.check_partition(target)
        for batch in self._converter.batches(data):
            for where, rows in self._core.split(batch, target):
                await self._wait_for_room()
                if self._core.add(where, rows, future, _now()):
                    self._engine.wake()
        future.seal()
        self._notify()
        return future

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`."""
        self._check_usable()
        self._core.seal_all(_now())
        waiting = self._core.outstanding()
        self._engine.wake()
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: _all_done(waiting))
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
        await self._engine.stop()
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
        self._engine.wake()
        try:
            async with asyncio.timeout(self._options.delivery_timeout_us / 1_000_000):
                await self._until(lambda: self._closed or not self._is_full())
        except TimeoutError:
            raise self._exhausted() from None
        self._check_usable()
