"""The asyncio API: `async with quiverlog.aio.connect("127.0.0.1:9292") as client`.

It has the methods of the blocking client, with the same arguments and errors: await them. One
client belongs to one event loop.
"""

from __future__ import annotations

from .client.async_client import AsyncClient, connect
from .client.consumer.async_consumer import AsyncConsumer
from .client.consumer.async_reading import AsyncReading
from .client.groups.async_group_consumer import AsyncGroupConsumer
from .client.producer.async_producer import AsyncProducer, AsyncSendFuture
from .client.transactions.async_transaction import (
    AsyncAttempt,
    AsyncStagedFuture,
    AsyncStager,
    AsyncTransaction,
)

__all__ = [
    "AsyncAttempt",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncGroupConsumer",
    "AsyncProducer",
    "AsyncReading",
    "AsyncSendFuture",
    "AsyncStagedFuture",
    "AsyncStager",
    "AsyncTransaction",
    "connect",
]
