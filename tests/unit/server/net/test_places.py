"""Which place a connection finds, at each bound: below, at and above."""

from __future__ import annotations

import pytest

from quiverlog.errors import TooManyConnections, TooManyConnectionsFromAddress
from quiverlog.server.net.peer import origin_of
from quiverlog.server.net.places import UNKNOWN_ORIGIN, Origin, Place, PlaceLimits, Places

LIMITS = PlaceLimits(clients=4, per_address=2, operators=1, brokers=2, door=2)
LOCAL = Origin("127.0.0.1", is_loopback=True, may_be_broker=False)


def client(number: int, *, may_be_broker: bool = False) -> Origin:
    return Origin(f"10.0.0.{number}", is_loopback=False, may_be_broker=may_be_broker)


def test_an_address_has_so_many_places_and_no_more() -> None:
    places = Places(LIMITS)
    assert [places.enter(client(1)) for _ in range(3)] == [Place.CLIENT, Place.CLIENT, Place.NONE]
    error = places.why_refused(client(1))
    assert isinstance(error, TooManyConnectionsFromAddress)
    assert error.message.startswith("10.0.0.1 has 2 connections to this broker, the most")
    assert "connections.max.per.address" in error.message
    assert "connections.max.per.address" in str(error)
    assert places.why_refused(client(2)) is None
    places.leave(Place.CLIENT, client(1))
    assert places.enter(client(1)) is Place.CLIENT


def test_all_have_so_many_places_and_no_more() -> None:
    places = Places(LIMITS)
    assert [places.enter(client(n // 2)) for n in range(5)] == [Place.CLIENT] * 4 + [Place.NONE]
    error = places.why_refused(client(7))
    assert isinstance(error, TooManyConnections)
    assert error.message.startswith("all 4 connections of this broker are in use")
    assert "`connections.max`" in error.message


def test_an_origin_that_is_not_known_counts_for_no_address() -> None:
    places = Places(LIMITS)
    assert [places.enter(UNKNOWN_ORIGIN) for _ in range(5)] == [Place.CLIENT] * 4 + [Place.NONE]


def test_this_machine_has_places_of_its_own_when_clients_have_none() -> None:
    places = Places(LIMITS)
    for number in range(4):
        places.enter(client(number))
    assert [places.enter(LOCAL) for _ in range(2)] == [Place.OPERATOR, Place.NONE]
    places.leave(Place.OPERATOR, LOCAL)
    assert places.enter(LOCAL) is Place.OPERATOR


def test_brokers_take_clients_places_only_while_there_are_any() -> None:
    places = Places(LIMITS)
    origin = client(1, may_be_broker=True)
    for _ in range(2):
        assert places.enter(origin) is Place.CLIENT
        assert places.claim(Place.CLIENT, origin) is Place.BROKER
    assert places.taken(Place.CLIENT) == 0, "a broker counts for no address"
    assert places.enter(origin) is Place.CLIENT
    assert places.claim(Place.CLIENT, origin) is Place.CLIENT, "the brokers' places are taken"
    for number in range(2, 5):
        places.enter(client(number))
    assert places.enter(origin) is Place.DOOR
    assert places.claim(Place.DOOR, origin) is Place.NONE
    places.leave(Place.BROKER, origin)
    assert places.enter(origin) is Place.DOOR
    assert places.claim(Place.DOOR, origin) is Place.BROKER


def test_there_is_no_door_where_no_broker_comes() -> None:
    places = Places(LIMITS._replace(clients=1))
    places.enter(client(1))
    assert places.enter(client(2)) is Place.NONE
    assert places.enter(client(2, may_be_broker=True)) is Place.DOOR


@pytest.mark.parametrize(
    ("peer", "network", "is_loopback"),
    [
        ("127.0.0.1:9", "127.0.0.1", True),
        ("127.8.0.1:9", "127.8.0.1", True),
        ("10.0.0.1:9", "10.0.0.1", False),
        ("[::1]:9", "0000:0000:0000:0000::/64", True),
        ("[::ffff:127.0.0.1]:9", "127.0.0.1", True),
        ("[::ffff:10.0.0.1]:9", "10.0.0.1", False),
        ("[2001:db8::5%eth0]:9", "2001:0db8:0000:0000::/64", False),
        ("?", "", False),
    ],
)
def test_where_a_connection_comes_from(peer: str, network: str, is_loopback: bool) -> None:
    origin = origin_of(peer, may_be_broker=False)
    assert (origin.network, origin.is_loopback) == (network, is_loopback)
