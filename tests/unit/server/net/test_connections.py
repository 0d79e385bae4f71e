"""When a connection is overdue, and when it is looked at, with a clock made of numbers."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from quiverlog.errors import QuiverlogError
from quiverlog.limits import DOOR_MS, PROOF_MS
from quiverlog.server.config.config import load_config
from quiverlog.server.net.connections import (
    Connection,
    ConnectionLimits,
    ConnectionState,
    ConnectionTable,
    overdue,
)
from quiverlog.server.net.places import UNKNOWN_ORIGIN, Origin, Place, PlaceLimits
from quiverlog.server.process.broker_server import connection_limits


def places(clients: int) -> PlaceLimits:
    """As many clients as this, from anywhere."""
    return PlaceLimits(clients, per_address=clients, operators=0, brokers=2, door=2)


LIMITS = ConnectionLimits(
    places=places(10),
    lingering_max=1,
    idle_us=1_000,
    frame_us=100,
    write_stall_us=200,
    write_buffer_bytes=1,
    in_flight_max=1,
    frame_bytes_max=1,
    local_reads=False,
)

LIMITS_BY_DEFAULT = connection_limits(load_config(), places=places(9), lingering_max=1)


def talking(now_us: int = 0) -> ConnectionState:
    """A connection whose first request was complete at `now_us`."""
    state = ConnectionState(now_us)
    state.frame_since_us = 0
    return state


def verdict(state: ConnectionState, now_us: int, sent: int = 0, waiting: int = 0) -> str | None:
    return overdue(state, LIMITS, now_us, sent=sent, waiting=waiting)


def test_a_connection_that_never_sends_counts_as_a_slow_request() -> None:
    state = ConnectionState(50)
    assert verdict(state, 150) is None
    assert verdict(state, 151) == "frame"


def test_one_that_drips_a_request() -> None:
    state = talking()
    state.frame_since_us = 500
    state.last_read_us = 599  # a byte came just now: that does not help
    assert verdict(state, 600) is None
    assert verdict(state, 601) == "frame"


def test_a_broker_that_does_not_prove_that_it_is_one() -> None:
    state = talking()
    state.unproved_since_us = 7
    state.last_read_us = 7 + PROOF_MS * 1_000  # It sends something all the time.
    assert verdict(state, 7 + PROOF_MS * 1_000) is None
    assert verdict(state, 8 + PROOF_MS * 1_000) == "proof"
    state.unproved_since_us = 0
    assert verdict(state, 8 + PROOF_MS * 1_000) is None


def test_idle_unless_something_is_in_flight() -> None:
    state = talking(7)
    assert verdict(state, 1_007) is None
    assert verdict(state, 1_008) == "idle"
    state.in_flight[1] = 99
    assert verdict(state, 1_000_000) is None


def test_a_reply_that_the_client_does_not_take() -> None:
    state = talking()
    assert verdict(state, 10, sent=100, waiting=60) is None
    assert verdict(state, 210, sent=100, waiting=60) is None
    assert verdict(state, 211, sent=100, waiting=60) == "write"


def test_a_slow_taker_that_takes_is_left_alone() -> None:
    state = talking()
    for step in range(50):
        # More is sent while it takes, so that what waits never shrinks.
        assert verdict(state, 10 + 190 * step, sent=100 + step, waiting=60) is None
    assert verdict(state, 10 + 190 * 49 + 201, sent=149, waiting=60) == "write"


def test_stalls_do_not_add_up() -> None:
    state = talking()
    assert verdict(state, 150, sent=100, waiting=60) is None
    assert verdict(state, 300, sent=100, waiting=0) is None
    assert verdict(state, 400, sent=200, waiting=60) is None
    assert verdict(state, 600, sent=200, waiting=60) is None
    assert verdict(state, 601, sent=200, waiting=60) == "write"


def test_a_muted_client_is_neither_idle_nor_slow_and_may_not_leave_answers() -> None:
    state = ConnectionState(50)
    state.is_muted = True
    assert verdict(state, 10_000_000) is None
    assert verdict(state, 10_000_000, sent=100, waiting=60) is None
    assert verdict(state, 10_000_201, sent=100, waiting=60) == "write"
    state.is_muted = False
    assert verdict(state, 10_000_201) == "frame"


def test_short_limits_are_looked_at_often() -> None:
    config = load_config(flags={"connections.frame.timeout.ms": 200})
    limits = connection_limits(config, places=places(9), lingering_max=1)
    assert limits.check_s == 0.05
    assert LIMITS_BY_DEFAULT.check_s == 1.0


# --- which are looked at -----------------------------------------------------------------------
SECOND_US = 1_000_000
IDLE_US = 60 * SECOND_US
WATCHED = dataclasses.replace(
    LIMITS, places=places(20_000), idle_us=IDLE_US, frame_us=10 * SECOND_US,
    write_stall_us=5 * SECOND_US,
)  # fmt: skip


class Peer:
    """A connection that counts how often it is looked at."""

    def __init__(
        self, table: ConnectionTable, now_us: int, state: ConnectionState | None = None
    ) -> None:
        self.table = table
        self.state = state or talking(now_us)
        self.ended = ""
        self.id = table.add(cast("Connection", self))
        self.sent_bytes = self.waiting = self.looks = self.reports = 0
        self.is_held = self.is_abandoned = self.breaks = False

    @property
    def waiting_bytes(self) -> int:
        self.looks += 1
        if self.breaks:
            raise ValueError("planted")
        return self.waiting

    def report(self) -> None:
        self.reports += 1

    def refuse(self, error: QuiverlogError | None = None) -> None:
        self.ended = "turned away" if error is None else error.message

    def abort(self, reason: str) -> None:
        self.ended = reason
        self.table.remove(self.id)

    def receives(self, now_us: int) -> None:
        """As the protocol does when bytes come."""
        self.state.last_read_us = now_us
        if self.state.is_quiet:
            self.table.mark_active(cast("Connection", self))


@pytest.fixture
def table() -> ConnectionTable:
    return ConnectionTable(WATCHED)


def look(table: ConnectionTable, seconds: float) -> None:
    assert table.look(round(seconds * SECOND_US)) == []


def test_silent_connections_cost_a_look_nothing(table: ConnectionTable) -> None:
    peers = [Peer(table, SECOND_US) for _ in range(10_000)]
    look(table, 1)
    for second in range(2, 60):
        look(table, second)
    assert {peer.looks for peer in peers} == {1}
    assert {peer.reports for peer in peers} == {1}, "the budget knows what they hold"


def test_a_quiet_connection_is_closed_when_it_was_idle_for_too_long(table: ConnectionTable) -> None:
    peers = [Peer(table, at_s * SECOND_US) for at_s in (1, 4, 1)]
    for second in range(1, 200):
        look(table, second)
        for peer, idle_s in zip(peers, (61, 64, 61), strict=True):
            assert second <= idle_s or second < idle_s + 3 or peer.ended == "idle", second
            assert not peer.ended or second > idle_s
    assert len(table) == 0
    assert table._slots == {}
    assert table._active == {}


def test_a_connection_that_sends_now_and_then_is_kept(table: ConnectionTable) -> None:
    peer = Peer(table, 0)
    for second in range(1, 600):
        if second % 50 == 0:
            peer.receives(second * SECOND_US)
        look(table, second)
    assert not peer.ended
    assert peer.looks < 40
    assert sum(map(len, table._slots.values())) == 1, "it is in one slot, however often it speaks"


def test_what_is_under_way_is_looked_at_every_time(table: ConnectionTable) -> None:
    peer = Peer(table, 0)
    look(table, 1)
    for start, change in (
        (10, {"waiting": 1}),
        (20, {"is_held": True}),
    ):
        peer.receives(start * SECOND_US)
        vars(peer).update(change)
        before = peer.looks
        for second in range(start, start + 4):
            look(table, second)
        assert peer.looks == before + 4, change
        vars(peer).update(dict.fromkeys(change, 0))
        look(table, start + 5)
        look(table, start + 6)
        assert peer.looks == before + 5, change
    peer.receives(30 * SECOND_US)
    peer.state.frame_since_us = 30 * SECOND_US
    for second in range(30, 45):
        look(table, second)
    assert peer.ended == "frame"


def test_a_long_poll_whose_client_went_away_ends(table: ConnectionTable) -> None:
    peer = Peer(table, 0)
    look(table, 1)
    peer.receives(2 * SECOND_US)
    peer.state.in_flight[1] = 1
    for second in range(2, 300):
        look(table, second)
    assert not peer.ended, "a long poll is no idling"
    peer.is_abandoned = True
    look(table, 300)
    assert peer.ended == "gone"


def test_new_limits_count_for_quiet_connections(table: ConnectionTable) -> None:
    peer = Peer(table, 0)
    look(table, 1)
    table.limits = dataclasses.replace(WATCHED, idle_us=2 * SECOND_US)
    look(table, 1.5)
    assert not peer.ended
    for tenth in range(15, 60):
        look(table, tenth / 10)
    assert peer.ended == "idle"


def test_a_look_that_fails_leaves_the_others_theirs(table: ConnectionTable) -> None:
    broken, good = Peer(table, 0), Peer(table, 0)
    broken.breaks = True
    assert [str(error) for error in table.look(SECOND_US)] == ["planted"]
    assert good.looks == 1
    broken.breaks = False
    look(table, 2)
    assert broken.state.is_quiet


def test_a_quiet_connection_may_close(table: ConnectionTable) -> None:
    peer = Peer(table, 0)
    look(table, 1)
    table.remove(peer.id)
    for second in range(2, 100):
        look(table, second)
    assert peer.looks == 1
    assert not any(table._slots.values())


# --- places ------------------------------------------------------------------------------------
BROKERS_PORT = Origin("10.0.0.9", is_loopback=False, may_be_broker=True)


def at_the_door(table: ConnectionTable, now_us: int = 1) -> Peer:
    """A connection to the brokers' listener that has sent nothing yet."""
    return Peer(table, now_us, ConnectionState(now_us, BROKERS_PORT))


def test_a_broker_finds_a_place_where_clients_find_none() -> None:
    table = ConnectionTable(dataclasses.replace(WATCHED, places=places(1)))
    client, broker, late = at_the_door(table), at_the_door(table), at_the_door(table)
    assert [p.state.place for p in (client, broker, late)] == [Place.CLIENT, Place.DOOR, Place.DOOR]
    assert table.settle(cast("Connection", broker), is_broker=True)
    assert not table.settle(cast("Connection", late), is_broker=False)
    assert table.settle(cast("Connection", client), is_broker=False)
    assert [p.state.place for p in (client, broker, late)] == [
        Place.CLIENT,
        Place.BROKER,
        Place.NONE,
    ]
    for one in (client, broker, late):
        table.remove(one.id)
    assert not any(table.places.taken(place) for place in Place)


def test_silent_connections_give_way_at_the_door() -> None:
    table = ConnectionTable(dataclasses.replace(WATCHED, places=places(1)))
    at_the_door(table)
    silent = [at_the_door(table) for _ in range(5)]
    assert [one.ended for one in silent] == ["turned away"] * 3 + [""] * 2
    assert table.places.taken(Place.DOOR) == 2
    assert table.look(1 + DOOR_MS * 1000) == []
    assert silent[4].ended == ""
    assert table.look(2 + DOOR_MS * 1000) == []
    assert [one.ended for one in silent] == ["turned away"] * 5
    assert table.places.taken(Place.DOOR) == 0


def awaiting(table: ConnectionTable, origin: Origin = UNKNOWN_ORIGIN) -> Peer:
    """A connection that has yet to log in."""
    state = ConnectionState(1, origin)
    state.awaits_login = True
    return Peer(table, 1, state)


def test_those_who_have_not_logged_in_have_a_quarter_and_the_oldest_goes() -> None:
    table = ConnectionTable(dataclasses.replace(WATCHED, places=places(8)))
    first, second = awaiting(table), awaiting(table)
    Peer(table, 0)
    assert (first.ended, second.ended, table.anonymous) == ("", "", 2)
    third = awaiting(table)
    assert "2 connections of this broker have not logged in yet" in first.ended
    assert (second.ended, third.ended, table.anonymous) == ("", "", 2)
    table.proved(cast("Connection", second))
    fourth = awaiting(table)
    assert (third.ended, fourth.ended, table.anonymous) == ("", "", 2)
    table.remove(third.id)
    assert table.anonymous == 1
    assert table.places.taken(Place.CLIENT) == 3, "the displaced one gave its place back"


@pytest.mark.parametrize(("clients", "quarter"), [(1, 1), (4, 1), (7, 1), (8, 2)])
def test_the_quarter_is_one_at_least(clients: int, quarter: int) -> None:
    assert places(clients).anonymous == quarter


def test_a_claim_to_be_a_broker_is_no_login_that_is_awaited() -> None:
    table = ConnectionTable(dataclasses.replace(WATCHED, places=places(4)))
    broker = awaiting(table, BROKERS_PORT)
    assert table.settle(cast("Connection", broker), is_broker=True)
    assert table.anonymous == 0


def test_new_limits_of_places_count_for_the_next() -> None:
    table = ConnectionTable(dataclasses.replace(WATCHED, places=places(1)))
    assert Peer(table, 0).id == 1
    assert Peer(table, 0).id == -1
    table.limits = dataclasses.replace(WATCHED, places=places(2))
    assert Peer(table, 0).id == 2
    assert Peer(table, 0).id == -1
