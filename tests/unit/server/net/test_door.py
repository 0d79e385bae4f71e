"""Connections for which there is no place, on real sockets: the error, and brokers' admission."""

from __future__ import annotations

from quiverlog.errors import TooManyConnectionsFromAddress, error_class
from quiverlog.server.net.places import Place
from quiverlog.wire import messages as m
from quiverlog.wire.connection import BROKER_SOFTWARE
from quiverlog.wire.frames import encode
from tests.support.server import PLACES, Client, request, serving, until


async def test_connections_of_one_address_beyond_its_limit_get_the_error() -> None:
    async with serving(places=PLACES._replace(per_address=1)) as server:
        await server.connect()
        await until(lambda: len(server.table) == 1)
        second = await server.connect()
        (refusal,) = await second.receive(1)
        assert refusal.error_code == TooManyConnectionsFromAddress.code
        assert refusal.error_message.startswith("127.0.0.1 has 1 connections to this broker")
        assert await second.ended()
        name = TooManyConnectionsFromAddress.code_name()
        assert server.metrics.connections_refused_by == {name: 1}
        assert "connection refused" in server.log.getvalue()


def hello(software: str) -> bytes:
    return encode(m.HelloRequest(client_id="c", software=software), 1)


async def test_a_brokers_hello_finds_a_place_when_clients_have_them_all() -> None:
    full = PLACES._replace(clients=1)
    async with serving(places=full, serves_brokers=True) as server:
        await server.connect()
        await until(lambda: len(server.table) == 1)
        client, broker = await server.connect(), await server.connect()
        await until(lambda: server.table.places.taken(Place.DOOR) == 2)
        client.writer.write(hello("quiverlog-python"))
        (refusal,) = await client.receive(1)
        assert error_class(refusal.error_code).code_name() == "TOO_MANY_CONNECTIONS"
        assert await client.ended()
        broker.writer.write(hello(BROKER_SOFTWARE) + request(2))
        assert [r.correlation_id for r in await broker.receive(2)] == [1, 2]
        assert server.table.places.taken(Place.BROKER) == 1
        assert len(server.node.bodies) == 2, "the node has seen nothing of the client"
        broker.writer.close()
        await until(lambda: not server.table.places.taken(Place.BROKER))


async def test_a_flood_of_silent_connections_keeps_no_broker_out() -> None:
    full = PLACES._replace(clients=1)
    async with serving(places=full, serves_brokers=True) as server:
        silent = [await server.connect() for _ in range(20)]
        broker = await server.connect()
        broker.writer.write(hello(BROKER_SOFTWARE))
        assert [r.correlation_id for r in await broker.receive(1)] == [1]
        for one in silent[1:18]:
            (refusal,) = await one.receive(1)
            assert error_class(refusal.error_code).code_name() == "TOO_MANY_CONNECTIONS"


async def test_programs_that_prove_nothing_give_their_places_to_others() -> None:
    full = PLACES._replace(clients=1, brokers=2)
    async with serving(places=full, serves_brokers=True) as server:
        server.context = server.context._replace(proves_brokers=True)

        async def speak() -> Client:
            one = await server.connect()
            one.writer.write(hello(BROKER_SOFTWARE))
            assert [r.correlation_id for r in await one.receive(1)] == [1]
            return one

        await server.connect()
        await until(lambda: len(server.table) == 1)
        first, second = await speak(), await speak()
        assert not server.metrics.connections_closed_by
        third = await speak()
        assert await first.ended()
        assert server.metrics.connections_closed_by == {"proof": 1}
        broker = list(server.table.by_id.values())[-1]
        broker.proved()
        for _ in range(3):
            last = await speak()
        assert await second.ended()
        assert server.metrics.connections_closed_by == {"proof": 4}
        assert server.table.places.taken(Place.BROKER) == 2
        list(server.table.by_id.values())[-1].proved()
        another = await server.connect()
        another.writer.write(hello(BROKER_SOFTWARE))
        assert await another.receive(1)
        assert await another.ended(), "all places are those of brokers"
        for one in (third, last):
            one.writer.write(request(2))
            assert [r.correlation_id for r in await one.receive(1)] == [2]


async def test_garbage_at_the_door_gives_its_place_back() -> None:
    full = PLACES._replace(clients=1)
    async with serving(places=full, serves_brokers=True) as server:
        await server.connect()
        await until(lambda: len(server.table) == 1)
        for garbage in (b"\0" * 64, b"?" * 64):
            stranger = await server.connect()
            stranger.writer.write(garbage)
            assert await stranger.receive(1)
            assert await stranger.ended()
        await until(lambda: not server.table.places.taken(Place.DOOR))
