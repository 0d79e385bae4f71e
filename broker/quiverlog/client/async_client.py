"""The asyncio client: connecting, closing, producers and consumers.

Arguments, defaults, results and errors are those of the blocking client (a test compares the
signatures). The methods that ask one question are in `async_methods`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from quiverlog.limits import (
    DELIVERY_TIMEOUT_MS_DEFAULT,
    FETCH_BYTES_DEFAULT,
    PRODUCER_BATCH_BYTES_DEFAULT,
    PRODUCER_BATCH_ROWS_DEFAULT,
    PRODUCER_BUFFER_BYTES_DEFAULT,
    PRODUCER_LINGER_MS_DEFAULT,
)
from quiverlog.types import Compression, Durability

from .async_methods import AsyncMethods
from .asynchronous import AsyncDriver
from .commands import Operation
from .routing import Cluster, Settings, parse_addresses

if TYPE_CHECKING:
    from .async_producer import AsyncProducer
    from .consumer import AsyncConsumer
    from .consumer_options import End, StartAt

__all__ = ["AsyncClient", "Opening", "connect"]

T = TypeVar("T")


class _Closable(Protocol):
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


C = TypeVar("C", bound=_Closable)


class Opening(Generic[C]):
    """Something that is opened by `await` or by `async with`, which closes it at the end."""

    def __init__(self, open_: Callable[[], Awaitable[C]]) -> None:
        self._open = open_
        self._opened: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)


def connect(
    bootstrap: str | Iterable[str] = "127.0.0.1:9292",
    *,
    client_id: str = "quiverlog-python",
    connect_timeout: float = 10.0,
    request_timeout: float = 30.0,
) -> Opening[AsyncClient]:
    """As `quiverlog.connect`; `async with connect(...) as client`, or `await connect(...)`."""

    async def open_() -> AsyncClient:
        client = AsyncClient(
            bootstrap,
            client_id=client_id,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
        )
        try:
            await client.run(client.cluster.first_contact())
        except BaseException:
            await client.close()
            raise
        return client

    return Opening(open_)


class AsyncClient(AsyncMethods):
    """An asyncio client; belongs to one event loop. Made by `connect`."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "quiverlog-python",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
    ) -> None:
        settings = Settings(client_id, float(connect_timeout), float(request_timeout))
        self.cluster = Cluster(
            parse_addresses(bootstrap), settings, clock=time.monotonic, jitter=random.random
        )
        self.driver = AsyncDriver(settings)
        self._producers: set[AsyncProducer] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<quiverlog.aio.AsyncClient of {', '.join(map(str, self.cluster.addresses()))}>"

    async def close(self) -> None:
        """As `Client.close`."""
        producers, self._producers = self._producers, set()
        for producer in producers:
            await producer.abort()
        await self.driver.close()

    async def run(self, operation: Operation[T]) -> T:
        """As `Client.run`."""
        return await self.driver.run(operation)

    # --- rows -----------------------------------------------------------------------------------
    def producer(
        self,
        topic: str,
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
    ) -> Opening[AsyncProducer]:
        """As `Client.producer`; `async with client.producer(...) as producer`."""
        from .async_producer import AsyncProducer
        from .producer_base import open_core, producer_options

        complete = producer_options(
            self.cluster,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            linger=linger,
            compression=compression,
            durability=durability,
            buffer_bytes=buffer_bytes,
            delivery_timeout=delivery_timeout,
            idempotent=idempotent,
            partition=partition,
        )

        async def open_() -> AsyncProducer:
            core = await self.run(open_core(self.cluster, topic, complete))
            producer = AsyncProducer(self.cluster, core, self.driver)
            self._producers = {p for p in self._producers if not p.is_closed} | {producer}
            return producer

        return Opening(open_)

    def consumer(
        self,
        topic: str,
        *,
        start: StartAt = "earliest",
        end: End = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        skip_corrupt: bool = False,
    ) -> AsyncConsumer:
        """As `Client.consumer`; `async for batch in client.consumer(...)`."""
        from .consumer import AsyncConsumer
        from .consumer_core import ConsumerCore
        from .consumer_options import consumer_options

        options = consumer_options(
            start=start,
            end=end,
            follow=follow,
            columns=columns,
            partitions=partitions,
            fetch_bytes=fetch_bytes,
            skip_corrupt=skip_corrupt,
        )
        return AsyncConsumer(ConsumerCore(self.cluster, topic, options), self.driver)
