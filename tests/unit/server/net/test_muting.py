"""A muted connection: nothing is read from it, its answers are sent, and no rule ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiverlog.errors import TooManyConnections
from quiverlog.node.runtime.effects import ConnectionMuted, ConnectionProved, Effect, Respond
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.server.net.clocks import monotonic_us
from quiverlog.server.net.places import PlaceLimits
from quiverlog.wire import messages as m
from tests.support.server import Client, Server, echo, request, serving, until


def muting(numbers: set[int]) -> Callable[[Any], list[Effect]]:
    """An echo that mutes after the requests of these numbers."""

    def answer(event: Any) -> list[Effect]:
        effects = echo(event)
        if isinstance(event, RequestReceived) and event.request.correlation_id in numbers:
            effects.append(ConnectionMuted(event.connection_id, is_muted=True))
        return effects

    return answer


def unmute(server: Server) -> None:
    server.runner.perform([ConnectionMuted(1, is_muted=False)])


def received(server: Server) -> list[int]:
    return [one.request.correlation_id for one in server.node.events(RequestReceived)]


async def numbers(client: Client, count: int) -> list[int]:
    return [one.correlation_id for one in await client.receive(count)]


async def test_it_is_answered_first_and_read_from_later() -> None:
    async with serving() as server:
        server.node.answer = muting({1})
        client = await server.connect()
        client.writer.write(request(1))
        assert await numbers(client, 1) == [1]
        client.writer.write(request(2) + request(3))
        await until(lambda: server.table.by_id[1].is_held)
        server.table.look(1)
        assert received(server) == [1]
        unmute(server)
        assert await numbers(client, 2) == [2, 3]


async def test_what_came_with_the_request_waits_too() -> None:
    async with serving() as server:
        # As many as go to the node together, and more.
        server.node.answer = muting({64})
        client = await server.connect()
        client.writer.write(b"".join(request(number) for number in range(1, 101)))
        assert len(await client.receive(64)) == 64
        assert max(received(server)) == 64
        unmute(server)
        assert len(await client.receive(36)) == 36


async def test_no_rule_ends_it_while_it_is_muted_within_a_request() -> None:
    async with serving(frame_us=1_000, idle_us=1_000) as server:
        server.node.answer = muting({1})
        client = await server.connect()
        client.writer.write(request(1) + request(2)[:5])
        await client.receive(1)
        for second in range(10):
            assert server.table.look(10**15 + second) == []
        assert server.table.by_id
        unmute(server)
        client.writer.write(request(2)[5:])
        assert len(await client.receive(1)) == 1
        assert not server.metrics.connections_closed_by


async def test_the_time_that_it_was_muted_does_not_count_against_it() -> None:
    async with serving() as server:
        server.node.answer = muting({1})
        client = await server.connect()
        client.writer.write(request(1) + request(2)[:5])
        await client.receive(1)
        state = server.table.by_id[1].state
        state.frame_since_us = state.last_read_us = 1
        unmute(server)
        assert server.table.look(monotonic_us()) == []
        client.writer.write(request(2)[5:])
        assert await numbers(client, 1) == [2]


async def test_an_answer_that_comes_while_it_is_muted_is_sent() -> None:
    async with serving() as server:
        server.node.answer = lambda event: (
            [ConnectionMuted(event.connection_id, is_muted=True)]
            if isinstance(event, RequestReceived)
            else []
        )
        client = await server.connect()
        client.writer.write(request(1))
        await until(lambda: received(server))
        server.runner.perform([Respond(1, m.MetadataResponse(), 1)])
        server.runner.flush()
        assert await numbers(client, 1) == [1]
        unmute(server)


async def test_a_client_that_leaves_while_it_is_muted_is_noticed() -> None:
    async with serving() as server:
        server.node.answer = muting({1})
        client = await server.connect()
        client.writer.write(request(1))
        await client.receive(1)
        client.writer.close()
        await until(lambda: server.table.look(1) or not server.table.by_id)
        assert server.metrics.connections_closed_by == {"gone": 1}


async def test_a_stranger_gives_way_to_the_next_who_wants_to_log_in() -> None:
    places = PlaceLimits(4, per_address=4, operators=0, brokers=0, door=0)
    async with serving(places=places) as server:
        server.context = server.context._replace(needs_login=True)
        silent = await server.connect()
        await until(lambda: server.table.anonymous == 1)
        alice = await server.connect()
        (refused,) = await silent.receive(1)
        assert refused.error_code == TooManyConnections.code
        assert server.metrics.connections_closed_by == {"anonymous": 1}
        server.runner.perform([ConnectionProved(2)])
        await server.connect()
        await until(lambda: server.table.anonymous == 1)
        alice.writer.write(request(1))
        assert await numbers(alice, 1) == [1]
