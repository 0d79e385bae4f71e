"""The blocking client: the methods people call, each one an operation run by the blocking driver.

Owns argument names, defaults and documentation. `quiverlog.aio` has the same methods as
coroutines; whatever needs deciding is in the operations that both share.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar
from weakref import WeakSet

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
from .blocking import BlockingDriver
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

    from .consumer import Consumer
    from .consumer_options import End, StartAt
    from .io_thread import IoThread
    from .producer import Producer

__all__ = ["Client", "connect"]

T = TypeVar("T")


def connect(
    bootstrap: str | Iterable[str] = "127.0.0.1:9292",
    *,
    client_id: str = "quiverlog-python",
    connect_timeout: float = 10.0,
    request_timeout: float = 30.0,
) -> Client:
    """Open a client of the cluster that has one of the given brokers.

    Args:
        bootstrap: `"host:port"`, or several (a list, or separated by commas) of which some may
            be down. A missing port means 9292.
        client_id: shown in the broker's logs and metrics.
        connect_timeout: seconds to wait for one broker to accept a connection.
        request_timeout: seconds that an operation, its retries included, may take.

    Raises:
        ConnectionFailed: none of the addresses answered.
        InvalidArgument: an address that is not host:port, or a timeout that is not positive.
    """
    client = Client(
        bootstrap,
        client_id=client_id,
        connect_timeout=connect_timeout,
        request_timeout=request_timeout,
    )
    try:
        client.run(client.cluster.first_contact())
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """A blocking client. Threads may share it; a forked child may not. Made by `connect`."""

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
        self.driver = BlockingDriver(settings)
        self._lock = threading.Lock()
        self._io: IoThread | None = None
        self._producers: WeakSet[Producer] = WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<quiverlog.Client of {', '.join(map(str, self.cluster.addresses()))}>"

    def close(self) -> None:
        """Close all connections. Producers of this client end with it, without a flush."""
        for producer in list(self._producers):
            producer.abort()
        with self._lock:
            io, self._io = self._io, None
        if io is not None and self.driver.is_own_process:
            io.stop()
        self.driver.close()

    def run(self, operation: Operation[T]) -> T:
        """Run one operation (for code that composes its own from the low-level parts)."""
        return self.driver.run(operation)

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
    ) -> Producer:
        """Open a producer; use it with `with`, which flushes at the end.

        Args:
            batch_rows, batch_bytes: a batch is sent when it holds so many rows or bytes ...
            linger: ... or is so old, in seconds; 0 sends at once.
            compression: "none", "lz4" or "zstd"; None takes the topic's advice.
            durability: wait for more than the topic asks for ("memory", "flushed", "replicated").
            buffer_bytes: rows that are not acknowledged; above it `send` waits.
            delivery_timeout: seconds after which rows that are not acknowledged have failed.
            idempotent: rows are stored once, in order, however often a request was repeated.
            partition: send everything to this partition.

        Raises:
            UnknownTopic, UnknownPartition, InvalidArgument.
        """
        # Here, not at the top: questions about topics must not pay for pyarrow and asyncio.
        from .io_thread import IoThread
        from .producer import Producer
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
        core = self.run(open_core(self.cluster, topic, complete))
        with self._lock:
            if self._io is None:
                self._io = IoThread(self.cluster.settings)
            producer = Producer(self.cluster, core, self._io)
        self._producers.add(producer)
        return producer

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
    ) -> Consumer:
        """Read a topic: iterate over the result.

        Args:
            start: "earliest", "latest", a datetime with time zone, or {partition: one of these or
                an offset}; partitions that are left out of a mapping begin at their first row.
            end: where to end when not following: "latest" (as it is now, the default) or
                {partition: offset}.
            follow: go on with rows as they arrive, new partitions included, until it is closed.
            columns: only these, in this order.
            partitions: only these.
            fetch_bytes: stored bytes per request; about twice as many are held at most.
            skip_corrupt: step over batches that cannot be decoded, with a warning in the log
                `quiverlog`; by default they raise CorruptBatch at every call until `seek`.

        Raises:
            UnknownTopic, UnknownPartition, InvalidArgument. While iterating: OffsetOutOfRange
            (names the valid range), LogTruncated, UnknownTopicId (it was deleted), CorruptBatch
            (names the rows), InvalidResponse.
        """
        from .consumer import Consumer
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
        return Consumer(ConsumerCore(self.cluster, topic, options), self.driver)

    # --- topics ---------------------------------------------------------------------------------
    def create_topic(
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
        """Create a topic.

        Args:
            schema: the columns of its rows, or "raw" (key, value, headers, timestamp) for
                opaque payloads.
            key: column names; rows with equal keys go to the same partition.
            config: the topic's settings, see docs/config.md.
            if_not_exists: a topic that has the name already is left as it is, without an error.
            validate_only: check everything, create nothing, return None.

        Raises:
            TopicExists, InvalidTopicName, InvalidSchema, InvalidPartitions,
            InvalidReplicationFactor, InvalidConfig.
        """
        return self.run(
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

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic with all its rows.

        Raises:
            UnknownTopic: there is none, and `if_exists` is False.
        """
        self.run(admin.delete_topic(self.cluster, name, if_exists=if_exists))

    def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, admin.Scalar] | None = None,
        reset_config: Sequence[str] = (),
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        validate_only: bool = False,
    ) -> int:
        """Change a topic's settings, raise its number of partitions, or evolve its schema.

        Args:
            reset_config: settings that go back to the default.

        Returns:
            The id of the topic's current schema.

        Raises:
            UnknownTopic, InvalidConfig, InvalidPartitions, IncompatibleSchema, InvalidSchema.
        """
        return self.run(
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

    def describe_topic(self, name: str) -> TopicDetail:
        """Schema history, settings, and each partition's offsets and size.

        Raises:
            UnknownTopic: there is none of this name.
        """
        return self.run(admin.describe_topics(self.cluster, [name]))[name]

    def describe_topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDetail]:
        """`describe_topic` for several, or for all."""
        return self.run(admin.describe_topics(self.cluster, names))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self.run(admin.list_topics(self.cluster, internal=internal))

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """A fresh picture of brokers and topics; names that do not exist are left out."""
        return self.run(admin.metadata(self.cluster, topics))

    def schemas(self, topic: str) -> SchemaHistory:
        """The topic's schema history."""
        return self.run(admin.schemas(self.cluster, topic))

    # --- offsets --------------------------------------------------------------------------------
    def list_offsets(self, topic: str, at: admin.AtSpec = "latest") -> dict[int, int | None]:
        """Offsets per partition.

        Args:
            at: "earliest" (the first row kept), "latest" (where the next row will go), a datetime
                with time zone (the first row at or after it), or a mapping from partition to one
                of these, which asks for these partitions only.

        Returns:
            Partition -> offset; None where no row is that young.
        """
        return self.run(admin.list_offsets(self.cluster, topic, at))

    def delete_records(
        self,
        topic: str,
        before: Mapping[int, int | Literal["latest"]],
    ) -> dict[int, int]:
        """Make the rows below the given offsets unreadable, for good.

        Returns:
            Partition -> first offset that is kept.

        Raises:
            OffsetOutOfRange: an offset above the partition's end.
        """
        return self.run(admin.delete_records(self.cluster, topic, before))

    def offsets_with_epochs(
        self,
        at: Mapping[TopicPartition, int],
        *,
        known: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        max_wait: float = 0.0,
        metadata_version: int = -1,
    ) -> tuple[int, dict[TopicPartition, OffsetAndEpoch]]:
        """Low level: offsets together with the leader epoch of the row before them.

        Args:
            at: `types.LATEST`, `types.EARLIEST` or microseconds since 1970.
            known: the offsets that the caller already has.
            topic_ids: ask for these topics, not for whichever has the name now; another topic is
                answered with the error code of `UnknownTopicId`.
            max_wait: seconds to wait until an offset differs from `known`, or the metadata
                version from `metadata_version` (if that is given).

        Returns:
            (metadata version, partition -> offset); errors of partitions stay in the values.
        """
        return self.run(
            admin.offsets_with_epochs(
                self.cluster,
                at,
                known=known or {},
                topic_ids=topic_ids or {},
                max_wait_s=max_wait,
                metadata_version=metadata_version,
            )
        )

    def epoch_end_offsets(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Low level: where did these leader epochs end? A row at or above, read under that epoch,
        was truncated away."""
        return self.run(admin.epoch_end_offsets(self.cluster, epochs))

    def describe_ranges(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, bytes_max: int = -1
    ) -> dict[TopicPartition, RangeSize]:
        """Low level: stored bytes between two offsets, and how far `bytes_max` of them reach."""
        return self.run(admin.describe_ranges(self.cluster, ranges, bytes_max=bytes_max))

    # --- stored batches -------------------------------------------------------------------------
    def raw_produce(
        self,
        topic: str,
        batches: Mapping[int, Sequence[Buffer]],
        *,
        durability: Durability = Durability.TOPIC_DEFAULT,
        timeout: float | None = None,
    ) -> dict[int, Produced]:
        """Low level: send batches made by `batch.codec.encode_batch`; partition -> batches.

        Sent once. After `ConnectionClosed` or `RequestTimedOut` the outcome is unknown.
        """
        return self.run(
            admin.raw_produce(
                self.cluster, topic, batches, durability=durability, timeout_s=timeout
            )
        )

    def raw_fetch(
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
        """Low level: whole stored batches from each offset on, for `batch.codec.split_batches`."""
        return self.run(
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

    def raw_call(
        self,
        request: m.Request,
        *,
        node_id: int | None = None,
        body: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Low level: one request to one broker (any if `node_id` is None), as it is."""
        return self.run(
            admin.raw_call(self.cluster, request, node_id, body=body, timeout_s=timeout)
        )
