"""One asyncio connection to a broker, with its bytes in the test's hands."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from quiverlog.client.base.results import Address
from quiverlog.client.cluster.routing import Settings
from quiverlog.client.drivers.asynchronous import AsyncConnection
from quiverlog.errors import InvalidResponse
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.registry import api_ranges


class Transport(asyncio.Transport):
    """Takes what is written."""

    def write(self, data: object) -> None:
        """The broker of this test answers by itself."""

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """Nothing is open."""


def give(connection: AsyncConnection, response: m.Response, correlation_id: int) -> None:
    data = frames.encode(response, correlation_id)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


async def greeted() -> AsyncConnection:
    connection = AsyncConnection(Address("broker", 9292))
    connection.connection_made(cast(Any, Transport()))
    hello = asyncio.ensure_future(connection.hello(Settings(), 60))
    await asyncio.sleep(0)
    give(connection, m.HelloResponse(apis=api_ranges(between_brokers=False)), 1)
    await hello
    return connection


def test_an_answer_outside_its_bounds_fails_its_own_request_alone() -> None:
    async def converse() -> None:
        connection = await greeted()
        first = connection.request(m.AlterTopicRequest(), (), 60)
        second = connection.request(m.AlterTopicRequest(), (), 60)
        give(connection, m.AlterTopicResponse(schema_id=-1), 2)
        assert isinstance(first.exception(), InvalidResponse)
        assert not second.done()
        give(connection, m.AlterTopicResponse(schema_id=7), 3)
        reply = second.result()
        assert isinstance(reply.response, m.AlterTopicResponse)
        assert reply.response.schema_id == 7
        connection.close()

    asyncio.run(converse())
