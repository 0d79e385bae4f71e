"""The asyncio client; `client.py` is generated from here. Owns connecting, closing, and the
arguments of producers and consumers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from quiverlog.errors import ClientClosed, InvalidArgument
from quiverlog.limits import (
    DELIVERY_TIMEOUT_MS_DEFAULT,
    FETCH_BYTES_DEFAULT,
    PRODUCER_BATCH_BYTES_DEFAULT,
    PRODUCER_BATCH_ROWS_DEFAULT,
    PRODUCER_BUFFER_BYTES_DEFAULT,
    PRODUCER_LINGER_MS_DEFAULT,
    TRANSACTION_TIMEOUT_MS_DEFAULT,
    TRANSACTION_TIMEOUT_MS_MAX,
)

from .async_methods import AsyncMethods
from .base.arguments import (
    INSTANCE,
    INT64,
    MEMBERSHIP,
    SECONDS,
    SECURITY,
    TRANSACTIONAL_ID,
    bootstrap_addresses,
    checked,
    number,
    seconds,
)

# blocking: from .replay.replay import replay_of
# blocking: from .tables.database import database_of
from .base.commands import Operation
from .base.misuse import asyncio_only
from .base.opening import Opening
from .base.security import SecurityLike, security_of
from .cluster.routing import Cluster, Settings
from .drivers.asynchronous import AsyncDriver

if TYPE_CHECKING:
    from pyarrow import compute as pc

    from .cluster.replica_choice import FetchFrom
    from .consumer.async_consumer import AsyncConsumer
    from .consumer.async_reading import AsyncReading
    from .consumer.options import ConsumerEnd, ConsumerStart, Partitions, StartAt
    from .consumer.reading_plan import ReadProgress
    from .groups.async_group_consumer import AsyncGroupConsumer
    from .groups.base import Membership
    from .producer.async_producer import AsyncProducer
    from .producer.hosts import AsyncProducerHost
    from .producer.types import CompressionChoice, DurabilityChoice
    from .transactions.async_transaction import AsyncHolder, AsyncStager, AsyncTransaction
    from .transactions.questions import Wait

__all__ = ["AsyncClient", "connect"]

T = TypeVar("T")

_SIZE = number(1, 2**63 - 1)


@checked(connect_timeout=SECONDS, request_timeout=SECONDS, security=SECURITY)
def connect(
    bootstrap: str | Iterable[str] | None = None,
    *,
    client_id: str = "quiverlog-python",
    connect_timeout: float = 10.0,
    request_timeout: float = 30.0,
    security: SecurityLike | None = None,
) -> Opening[AsyncClient]:
    """Open a client of the cluster that has one of the given brokers.

    `async with connect(...) as client` closes it at the end; so does its `close`.

    Args:
        bootstrap: `"host:port"`, or several (a list, or separated by commas) of which some may
            be down. A missing port means 9292. None: the environment's QUIVERLOG_BOOTSTRAP_SERVER,
            else `"127.0.0.1:9292"`.
        client_id: shown in the broker's logs and metrics.
        connect_timeout: seconds for one broker to accept a connection and answer on it.
        request_timeout: seconds that an operation, its retries included, may take.
        security: a `Security`, or the name of a file that holds one, for listeners with TLS, or
            that ask for a login. None: the file of the environment's QUIVERLOG_SECURITY_FILE, else
            plain connections without one.

    Raises:
        TlsFailed, InvalidSecurity: a broker or this client is not trusted, or a file is unusable.
        LoginMissing, AuthenticationFailed: brokers ask for a login; they refuse the one given.
        ConnectionFailed, RequestTimedOut: none of the addresses answered.
        InvalidArgument: an address that is not host:port, or another value out of its range.
    """

    async def open_() -> AsyncClient:
        client = AsyncClient(
            bootstrap,
            client_id=client_id,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            security=security,
        )
        try:
            await client.run(client.cluster.first_contact())
        except BaseException:
            await client.close()
            raise
        return client

    return Opening(open_)


@asyncio_only
class AsyncClient(AsyncMethods):
    """An asyncio client, for one event loop; a forked child may not use it. Made by `connect`."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        client_id: str = "quiverlog-python",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        security: SecurityLike | None = None,
    ) -> None:
        settings = Settings(
            client_id, float(connect_timeout), float(request_timeout), security_of(security)
        )
        self.cluster = Cluster(
            bootstrap_addresses(bootstrap), settings, clock=time.monotonic, jitter=random.random
        )
        self.driver = AsyncDriver(settings)
        self._lock = threading.Lock()
        self._closed = False
        self._host: AsyncProducerHost | None = None
        self._producers: WeakSet[AsyncProducer] = WeakSet()
        self._holders: dict[str, AsyncHolder] = {}
        self._stagers: WeakSet[AsyncStager] = WeakSet()
        self._members: WeakSet[AsyncGroupConsumer] = WeakSet()

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
        """Close all connections. Producers of this client end with it, without a flush."""
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
        for producer in list(self._producers):
            await producer.abort()
        for holder in self._holders.values():
            await holder.leave()
        for stager in list(self._stagers):
            await stager.close()
        for member in list(self._members):
            await member.abort()
        if host is not None:
            await host.stop()
        await self.driver.close()

    async def run(self, operation: Operation[T]) -> T:
        """Run one operation, for callers that compose their own."""
        return await self.driver.run(operation)

    # --- rows -----------------------------------------------------------------------------------
    @checked(
        batch_rows=_SIZE,
        batch_bytes=_SIZE,
        linger=seconds(0),
        buffer_bytes=_SIZE,
        delivery_timeout=SECONDS,
    )
    def producer(
        self,
        topic: str,
        *,
        batch_rows: int = PRODUCER_BATCH_ROWS_DEFAULT,
        batch_bytes: int = PRODUCER_BATCH_BYTES_DEFAULT,
        linger: float = PRODUCER_LINGER_MS_DEFAULT / 1000,
        compression: CompressionChoice | None = None,
        durability: DurabilityChoice | None = None,
        buffer_bytes: int = PRODUCER_BUFFER_BYTES_DEFAULT,
        delivery_timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
        idempotent: bool = True,
        partition: int | None = None,
    ) -> Opening[AsyncProducer]:
        """Open a producer: `async with client.producer(...) as producer` flushes at the end.

        Args:
            batch_rows: a batch is sent when it holds this many rows, ...
            batch_bytes: ... this many bytes, ...
            linger: ... or is this old, in seconds; 0 sends at once.
            compression: None takes the topic's default.
            durability: wait for a higher level than the topic's.
            buffer_bytes: rows that are not acknowledged; above it `send` waits.
            delivery_timeout: seconds that a closed batch may wait for its acknowledgement.
            idempotent: brokers store rows once, in order, however often they are sent again.
            partition: send everything to this partition.

        Raises:
            UnknownTopic, UnknownPartition, InvalidArgument: at once.
        """
        # Here: questions about topics must not pay for pyarrow and threads.
        from .producer.async_producer import AsyncProducer
        from .producer.base import open_core, producer_options
        from .producer.core import ProducerCore

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
            core = await self.run(open_core(self.cluster, topic, complete, ProducerCore))
            with self._lock:
                producer = AsyncProducer(core, self._open_host().host(core))
                self._producers.add(producer)
            return producer

        return Opening(open_)

    def _open_host(self) -> AsyncProducerHost:
        from .producer.hosts import AsyncProducerHost

        if self._closed:
            raise ClientClosed("The client is closed: open a new one.")
        if self._host is None:
            self._host = AsyncProducerHost(self.cluster, self.driver)
        return self._host

    @checked(
        transactional_id=TRANSACTIONAL_ID,
        timeout=SECONDS,
        transaction_timeout=seconds(0.001, TRANSACTION_TIMEOUT_MS_MAX / 1000),
    )
    def transaction(
        self,
        transactional_id: str,
        *,
        wait: Wait = "published",
        timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
        transaction_timeout: float = TRANSACTION_TIMEOUT_MS_DEFAULT / 1000,
        compression: CompressionChoice | None = None,
        durability: DurabilityChoice | None = None,
    ) -> Opening[AsyncTransaction]:
        """Begin a transaction: `async with client.transaction("my-app") as tx` commits at the end.

        Args:
            transactional_id: 1 to 512 characters; names the program over its restarts. The newest
                client that uses it fences the others.
            wait: "published": a commit returns when all rows can be read, and a transaction begins
                when those of the one before can; "decided": both do not wait for that.
            timeout: seconds that rows may wait to be staged, and the commit for its answer.
            transaction_timeout: seconds without a sign of life of this client after which the
                coordinator ends the transaction.
            compression: None takes the topics' defaults.
            durability: stage at a higher level than that of `__staged`.

        Raises:
            TransactionFenced: another client has opened the id since this one did.
            InvalidArgument: a transaction of this client with the id has not ended.
            CommitUnknown: what became of the last commit cannot be found out yet.
            TransactionBusy: the last one is decided, and not published within `timeout`.
        """
        from .producer.base import producer_options
        from .transactions.async_transaction import AsyncHolder, AsyncTransaction

        complete = producer_options(
            self.cluster,
            batch_rows=PRODUCER_BATCH_ROWS_DEFAULT,
            batch_bytes=PRODUCER_BATCH_BYTES_DEFAULT,
            linger=PRODUCER_LINGER_MS_DEFAULT / 1000,
            compression=compression,
            durability=durability,
            buffer_bytes=PRODUCER_BUFFER_BYTES_DEFAULT,
            delivery_timeout=timeout,
            idempotent=True,
            partition=None,
        )

        async def open_() -> AsyncTransaction:
            with self._lock:
                host = self._open_host()
                holder = self._holders.get(transactional_id)
                if holder is None:
                    holder = AsyncHolder(
                        self.cluster,
                        self.run,
                        host,
                        transactional_id,
                        round(transaction_timeout * 1000),
                    )
                    self._holders[transactional_id] = holder
                holder.take()
            try:
                await holder.begin(complete, timeout, until_published=wait == "published")
                return AsyncTransaction(holder, complete, timeout_s=timeout, wait=wait)
            except BaseException:
                holder.release()
                raise

        return Opening(open_)

    @checked(
        transactional_id=TRANSACTIONAL_ID,
        instance=INSTANCE,
        batch_rows=_SIZE,
        batch_bytes=_SIZE,
        linger=seconds(0),
        timeout=SECONDS,
        transaction_timeout=seconds(0.001, TRANSACTION_TIMEOUT_MS_MAX / 1000),
    )
    def stager(
        self,
        transactional_id: str,
        *,
        instance: bytes,
        single_use: bool = False,
        batch_rows: int = PRODUCER_BATCH_ROWS_DEFAULT,
        batch_bytes: int = PRODUCER_BATCH_BYTES_DEFAULT,
        linger: float = PRODUCER_LINGER_MS_DEFAULT / 1000,
        timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
        transaction_timeout: float = TRANSACTION_TIMEOUT_MS_DEFAULT / 1000,
        compression: CompressionChoice | None = None,
        durability: DurabilityChoice | None = None,
    ) -> AsyncStager:
        """Stage rows of transactions that another process commits, with those of others.

        Each process makes attempts (`stager.attempt(sequence)`), sends rows, and passes what
        `finish` returns to the one that calls `commit_staged`. Nothing is asked before the first
        attempt.

        Args:
            transactional_id: 1 to 512 characters; names the program over its restarts.
            instance: 1 to 64 bytes, the same in all processes of one run of the program, and new
                with each run: the newest run fences the others.
            single_use: the cluster forgets the id an hour after its commit.
            batch_rows: rows of a batch, which is staged then.
            batch_bytes: the same in bytes.
            linger: seconds after which its first row is staged at the latest.
            timeout: seconds that rows may wait to be staged.
            transaction_timeout: seconds without an open attempt, after which the coordinator may
                end the transaction.
            compression: None takes the topics' defaults.
            durability: stage at a higher level than that of `__staged`.
        """
        from .producer.base import producer_options
        from .transactions.async_transaction import AsyncHolder, AsyncStager

        complete = producer_options(
            self.cluster,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            linger=linger,
            compression=compression,
            durability=durability,
            buffer_bytes=PRODUCER_BUFFER_BYTES_DEFAULT,
            delivery_timeout=timeout,
            idempotent=True,
            partition=None,
        )
        with self._lock:
            holder = AsyncHolder(
                self.cluster,
                self.run,
                self._open_host(),
                transactional_id,
                round(transaction_timeout * 1000),
                instance=instance,
                single_use=single_use,
            )
            self._stagers.add(stager := AsyncStager(holder, complete, timeout_s=timeout))
        return stager

    @overload
    def consumer(
        self,
        topic: str | Sequence[str],
        *,
        start: ConsumerStart = "earliest",
        end: ConsumerEnd = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        partitions: Partitions = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        skip_corrupt: bool = False,
        fetch_from: FetchFrom = "leader",
        client_rack: str = "",
        group: None = None,
    ) -> AsyncConsumer: ...

    @overload
    def consumer(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        start: ConsumerStart = "earliest",
        end: ConsumerEnd = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        partitions: Partitions = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        skip_corrupt: bool = False,
        fetch_from: FetchFrom = "leader",
        client_rack: str = "",
        group: str,
        **membership: Unpack[Membership],
    ) -> AsyncGroupConsumer: ...

    @checked(fetch_bytes=INT64, membership=MEMBERSHIP)
    def consumer(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        start: ConsumerStart = "earliest",
        end: ConsumerEnd = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        partitions: Partitions = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        skip_corrupt: bool = False,
        fetch_from: FetchFrom = "leader",
        client_rack: str = "",
        group: str | None = None,
        **membership: Unpack[Membership],
    ) -> AsyncConsumer | AsyncGroupConsumer:
        """Read a topic, or several: `async for batch in client.consumer(...)`.

        Args:
            topic: a name; or a list of names, and then a partition is a pair of a topic and a
                number, as `("flights", 0)`, wherever a number stands below.
            start: "earliest", "latest", a datetime with time zone, or {partition: one of these or
                an offset}; partitions that are left out of a mapping begin at their first row.
            end: where to end when not following: "latest" (as it is now, the default) or
                {partition: offset}.
            follow: go on with rows as they arrive, new partitions included, until it is closed.
            columns: only these, in this order.
            partitions: only these.
            fetch_bytes: stored bytes per request; about twice as many are held.
            skip_corrupt: step over batches that cannot be decoded, with a warning in the log
                `quiverlog`; by default they raise CorruptBatch at every call until `seek`.
            fetch_from: the replica to read: the "leader"; a "follower" in sync, of the rack if
                there is one; or the "nearest", which is the leader unless a follower in sync is in
                the rack and the leader is not. After a follower's failure the leader is asked, for
                a while.
            client_rack: the caller's rack, compared with the brokers' `rack`.
            group: share the topics with the other members of this group, which assigns partitions.
            membership: of a group alone: `pattern` in place of topics, `commit`, `on_gone`,
                `on_assigned`, `on_revoked`, `on_lost`, `instance_id`, `assignor`, and the timeouts
                `session_timeout`, `rebalance_timeout`, `processing_timeout`: see the guide.

        Raises:
            UnknownTopic, UnknownPartition, InvalidArgument: at once.
            OffsetOutOfRange: also while iterating, as all below; names the valid range.
            LogTruncated: rows that were read are no longer in the log.
            UnknownTopicId: the topic was deleted.
            CorruptBatch, CorruptLog: rows cannot be decoded, or read by the broker; names them.
            InvalidResponse: a broker broke the protocol.
            ConnectionFailed, RequestTimedOut: brokers failed for `request_timeout` seconds.
            ProcessingTimedOut: the program took too long; its partitions are other members'.
        """
        common: dict[str, Any] = {
            "start": start,
            "end": end,
            "follow": follow,
            "columns": columns,
            "partitions": partitions,
            "fetch_bytes": fetch_bytes,
            "skip_corrupt": skip_corrupt,
            "fetch_from": fetch_from,
            "client_rack": client_rack,
        }
        if group is not None:
            return self._join(group, topic, common, membership)
        if membership or topic is None:
            raise InvalidArgument("Name topics; a pattern, and what members have, needs a group.")
        from .consumer.async_consumer import AsyncConsumer
        from .consumer.base import consumer_core

        return AsyncConsumer(consumer_core(self.cluster, topic, **common), self.driver)

    def _join(
        self,
        group: str,
        topic: str | Sequence[str] | None,
        common: dict[str, Any],
        membership: Membership,
    ) -> AsyncGroupConsumer:
        from .groups.async_group_consumer import AsyncGroupConsumer
        from .groups.base import group_options
        from .groups.heart import AsyncHostedMember

        options = group_options(topic, group, common, membership)
        with self._lock:
            io = self._open_host().io
            hosted = AsyncHostedMember(self.cluster, options.new_member(), options.pattern, io)
            member = AsyncGroupConsumer(self.cluster, options, hosted, self.driver)
            self._members.add(member)
        return member

    @checked(fetch_bytes=INT64)
    async def read(
        self,
        topic: str,
        *,
        columns: Sequence[str] | None = None,
        start: StartAt = "earliest",
        end: StartAt = "latest",
        where: str | pc.Expression | None = None,
        partitions: Sequence[int] | None = None,
        progress: bool | Callable[[ReadProgress], object] | None = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        skip_corrupt: bool = False,
        fetch_from: FetchFrom = "leader",
        client_rack: str = "",
    ) -> AsyncReading:
        """Read what a topic has now, for example `(await client.read("flights")).to_pandas()`.

        The offsets are fixed at once; rows are read when they are asked for, batch by batch, or all
        by `to_arrow`, `to_pandas` and `to_polars`.

        Args:
            columns: only these, in this order; may include `_topic`, `_partition`, `_offset` and
                `_timestamp`.
            start: as in `consumer`.
            end: where to end, in the forms of `start`; the row there is not read.
            where: only rows for which this is true: SQL (needs duckdb) or an expression of
                pyarrow.compute, whose bounds on `_partition`, `_offset` and `_timestamp` also
                narrow the offsets. Both may use columns that are not asked for.
            partitions: only these.
            progress: True writes a line to stderr; a function gets each `ReadProgress`.
            fetch_bytes: as in `consumer`, and so are the last three.
            skip_corrupt: step over batches that cannot be decoded.
            fetch_from: the replica to read.
            client_rack: the caller's rack.

        Raises:
            UnknownTopic, UnknownPartition, OffsetOutOfRange, InvalidArgument: at once. While rows
                are read, what `consumer` raises.
        """
        from .consumer.async_reading import AsyncReading
        from .consumer.options import consumer_options
        from .consumer.progress_line import progress_of
        from .consumer.reading_plan import plan_read

        report_progress = progress_of(progress)
        options = consumer_options(
            start=start,
            end=None,
            follow=False,
            columns=columns,
            partitions=partitions,
            fetch_bytes=fetch_bytes,
            skip_corrupt=skip_corrupt,
            fetch_from=fetch_from,
            client_rack=client_rack,
        )
        plan = await self.run(plan_read(self.cluster, topic, options, end=end, where=where))
        return AsyncReading(plan, self.cluster, self.driver, report_progress)

    # blocking: duckdb = database_of
    # blocking: replay = replay_of
