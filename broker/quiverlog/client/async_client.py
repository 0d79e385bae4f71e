"""The asyncio client: the methods of `quiverlog.Client` as coroutines.

Owns nothing but the awaiting: arguments, defaults, results and errors are those of the blocking
client (a test compares the signatures), and so are the operations behind them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

from quiverlog.limits import (
    DELIVERY_TIMEOUT_MS_DEFAULT,
    FETCH_BYTES_DEFAULT,
    FETCH_PARTITION_BYTES_DEFAULT,
    PRODUCER_BATCH_BYTES_DEFAULT,
    PRODUCER_BATCH_ROWS_DEFAULT,
    PRODUCER_BUFFER_BYTES_DEFAULT,
    PRODUCER_LINGER_MS_DEFAULT,
)
from quiverlog.types import Compression, Durability, TopicPartition
from quiverlog.wire import messages as m

from . import admin
from .asynchronous import AsyncDriver
from .commands import Buffer, Operation, Reply
from .results import (
    ClusterMetadata,
    FetchedPartition,
    OffsetAndEpoch,
    Produced,
    RangeSize,
    TopicDetail,
    TopicInfo,
)
from .routing import Cluster, Settings, parse_addresses

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.batch.schema import SchemaHistory

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


class AsyncClient:
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

    # --- topics ---------------------------------------------------------------------------------
    async def create_topic(
        self,
        name: str,
        schema: pa.Schema | Literal["raw"],
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        key: str | Sequence[str] | None = None,
        config: Mapping[str, admin.Scalar] | None = None,
        if_not_exists: bool = False,
        validate_only: bool = False,
    ) -> TopicInfo | None:
        """As `Client.create_topic`."""
        return await self.run(
            admin.create_topic(
                self.cluster,
                name,
                schema,
                partitions=partitions,
                replication_factor=replication_factor,
                key=key,
                config=config,
                if_not_exists=if_not_exists,
                validate_only=validate_only,
            )
        )

    async def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """As `Client.delete_topic`."""
        await self.run(admin.delete_topic(self.cluster, name, if_exists=if_exists))

    async def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, admin.Scalar] | None = None,
        reset_config: Sequence[str] = (),
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        validate_only: bool = False,
    ) -> int:
        """As `Client.alter_topic`."""
        return await self.run(
            admin.alter_topic(
                self.cluster,
                name,
                config=config,
                reset_config=reset_config,
                partitions=partitions,
                schema=schema,
                validate_only=validate_only,
            )
        )

    async def describe_topic(self, name: str) -> TopicDetail:
        """As `Client.describe_topic`."""
        return (await self.run(admin.describe_topics(self.cluster, [name])))[name]

    async def describe_topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDetail]:
        """As `Client.describe_topics`."""
        return await self.run(admin.describe_topics(self.cluster, names))

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """As `Client.list_topics`."""
        return await self.run(admin.list_topics(self.cluster, internal=internal))

    async def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """As `Client.metadata`."""
        return await self.run(admin.metadata(self.cluster, topics))

    async def schemas(self, topic: str) -> SchemaHistory:
        """As `Client.schemas`."""
        return await self.run(admin.schemas(self.cluster, topic))

    # --- offsets --------------------------------------------------------------------------------
    async def list_offsets(self, topic: str, at: admin.AtSpec = "latest") -> dict[int, int | None]:
        """As `Client.list_offsets`."""
        return await self.run(admin.list_offsets(self.cluster, topic, at))

    async def delete_records(
        self,
        topic: str,
        before: Mapping[int, int | Literal["latest"]],
    ) -> dict[int, int]:
        """As `Client.delete_records`."""
        return await self.run(admin.delete_records(self.cluster, topic, before))

    async def offsets_with_epochs(
        self,
        at: Mapping[TopicPartition, int],
        *,
        known: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        max_wait: float = 0.0,
        metadata_version: int = -1,
    ) -> tuple[int, dict[TopicPartition, OffsetAndEpoch]]:
        """As `Client.offsets_with_epochs`."""
        return await self.run(
            admin.offsets_with_epochs(
                self.cluster,
                at,
                known=known or {},
                topic_ids=topic_ids or {},
                max_wait_s=max_wait,
                metadata_version=metadata_version,
            )
        )

    async def epoch_end_offsets(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """As `Client.epoch_end_offsets`."""
        return await self.run(admin.epoch_end_offsets(self.cluster, epochs))

    async def describe_ranges(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, bytes_max: int = -1
    ) -> dict[TopicPartition, RangeSize]:
        """As `Client.describe_ranges`."""
        return await self.run(admin.describe_ranges(self.cluster, ranges, bytes_max=bytes_max))

    # --- stored batches -------------------------------------------------------------------------
    async def raw_produce(
        self,
        topic: str,
        batches: Mapping[int, Sequence[Buffer]],
        *,
        durability: Durability = Durability.TOPIC_DEFAULT,
        timeout: float | None = None,
    ) -> dict[int, Produced]:
        """As `Client.raw_produce`."""
        return await self.run(
            admin.raw_produce(
                self.cluster, topic, batches, durability=durability, timeout_s=timeout
            )
        )

    async def raw_fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait: float = 0.0,
        min_bytes: int = 1,
        bytes_max: int = FETCH_BYTES_DEFAULT,
        partition_bytes_max: int = FETCH_PARTITION_BYTES_DEFAULT,
        end_offsets: Mapping[int, int] | None = None,
    ) -> dict[int, FetchedPartition]:
        """As `Client.raw_fetch`."""
        return await self.run(
            admin.raw_fetch(
                self.cluster,
                topic,
                offsets,
                max_wait_s=max_wait,
                min_bytes=min_bytes,
                bytes_max=bytes_max,
                partition_bytes_max=partition_bytes_max,
                end_offsets=end_offsets or {},
            )
        )

    async def raw_call(
        self,
        request: m.Request,
        *,
        node_id: int | None = None,
        body: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """As `Client.raw_call`."""
        return await self.run(
            admin.raw_call(self.cluster, request, node_id, body=body, timeout_s=timeout)
        )
