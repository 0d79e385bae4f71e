"""The table of client connections, their limits, and the rules by which one is overdue.

- `idle`: nothing was received, nothing is in flight, nothing waits to be sent.
- `frame`: a request was begun (or nothing was ever received) and not finished in time (slow loris).
- `proof`: a broker or a client has not proved in time what it is, where it must.
- `write`: a reply waits, and the client has taken nothing of it for too long.
- A client that is muted is late for `write` alone.

A quiet connection waits in the slot of the moment at which it may exceed its idle limit, so ten
thousand silent ones cost `look` nothing. Received bytes do not move it: when the slot is due, it
gets a later one. Invariant: each connection is active (every `look` checks it), or quiet in a slot
that is due at most one slot after its idle limit has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from quiverlog.errors import QuiverlogError, TooManyConnections
from quiverlog.limits import DOOR_MS, PROOF_MS
from quiverlog.server.net.memory import Holder
from quiverlog.server.net.peer import origin_of
from quiverlog.server.net.places import UNKNOWN_ORIGIN, Origin, Place, PlaceLimits, Places
from quiverlog.server.net.replies import Replies
from quiverlog.server.net.scheduler import Schedulable
from quiverlog.wire.messages import Response

__all__ = [
    "ClientAdmission",
    "Connection",
    "ConnectionLimits",
    "ConnectionState",
    "ConnectionTable",
    "Entry",
    "overdue",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    places: PlaceLimits
    lingering_max: int
    idle_us: int
    frame_us: int
    write_stall_us: int
    write_buffer_bytes: int
    in_flight_max: int
    frame_bytes_max: int
    local_reads: bool

    @property
    def check_s(self) -> float:
        """The time between two calls of `look`: a quarter of the shortest limit, within 20 ms and
        1 s."""
        shortest = min(self.idle_us, self.frame_us, self.write_stall_us) / 1e6
        return min(1.0, max(0.02, shortest / 4))


class ConnectionState:
    """The times (monotonic microseconds) and counts by which `overdue` judges."""

    __slots__ = (
        "awaits_login",
        "frame_since_us",
        "in_flight",
        "is_muted",
        "is_quiet",
        "last_read_us",
        "looked_sent_bytes",
        "origin",
        "place",
        "proof_us",
        "slot",
        "taken_bytes",
        "taken_since_us",
        "unproved_since_us",
    )

    def __init__(self, now_us: int, origin: Origin = UNKNOWN_ORIGIN) -> None:
        self.origin = origin
        self.place = Place.NONE
        """Written by the table alone."""
        self.last_read_us = now_us
        # A connection that never sends anything is as suspect as one that stops within a request.
        self.frame_since_us = now_us
        self.unproved_since_us = 0
        """Since when a proof is awaited; 0: none is."""
        self.awaits_login = False
        """A client may have to prove who it is: it counts as anonymous until then."""
        self.proof_us = PROOF_MS * 1000
        """The time for it."""
        self.in_flight: dict[int, int] = {}
        """Correlation id -> arrival, in nanoseconds of the performance counter."""
        self.is_muted = False
        """Over its quota: nothing is read, so it cannot be late."""
        self.taken_bytes = 0
        self.taken_since_us = 0
        self.looked_sent_bytes = -1
        self.is_quiet = False
        """`look` skips it; only the table writes this and `slot`."""
        self.slot = -1
        """-1: in none."""


def overdue(
    state: ConnectionState, limits: ConnectionLimits, now_us: int, *, sent: int, waiting: int
) -> str | None:
    """Return why the connection is to be closed, or None.

    Args:
        sent: bytes handed to the socket since the connection began.
        waiting: those of them that the client has not taken yet.
    """
    assert waiting >= 0
    if state.unproved_since_us and now_us - state.unproved_since_us > state.proof_us:
        return "proof"
    if waiting:
        taken = sent - waiting
        # Progress counts, not the reply's age: a slow client may take a large one for long.
        if taken != state.taken_bytes or not state.taken_since_us:
            state.taken_bytes = taken
            state.taken_since_us = now_us
        return "write" if now_us - state.taken_since_us > limits.write_stall_us else None
    state.taken_since_us = 0
    if state.is_muted:
        return None
    if state.frame_since_us and now_us - state.frame_since_us > limits.frame_us:
        return "frame"
    if not state.in_flight and now_us - state.last_read_us > limits.idle_us:
        return "idle"
    return None


class Connection(Holder, Schedulable, Protocol):
    state: ConnectionState
    replies: Replies
    sent_bytes: int
    """To the transport, since the connection began."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the transport holds: the client has not taken them."""

    @property
    def is_held(self) -> bool:
        """Nothing is read from it, for now or for good."""

    @property
    def is_abandoned(self) -> bool:
        """The client closed it while reading is paused, which no callback reports."""

    def queue(
        self, response: Response, correlation_id: int, body: Sequence[memoryview] = ()
    ) -> None:
        """Gather a reply for `flush`."""

    def flush(self) -> None:
        """Send the gathered replies in one call."""

    def proved(self) -> None:
        """A broker, or a user, is at its end: its frames may have any size."""

    def mute(self, *, is_muted: bool) -> None:
        """Read nothing more while it is muted; answers are sent."""

    def close_soon(self, why: str) -> None:
        """Send the gathered replies, then close."""

    def abort(self, reason: str) -> None:
        """Close now; unsent replies are dropped."""

    def refuse(self, error: QuiverlogError | None = None) -> None:
        """Send the error that the broker has no place for it (or `error`), then close."""

    def report(self) -> None:
        """Report the held bytes to the memory budget."""

    def limits_changed(self) -> None:
        """Adopt the table's new limits."""


class ConnectionTable:
    """Open connections by id; ids count up and are never used twice."""

    __slots__ = (
        "_active",
        "_anonymous",
        "_claims",
        "_door",
        "_limits",
        "_next_id",
        "_next_slot",
        "_slot_us",
        "_slots",
        "by_id",
        "lingering",
        "places",
    )

    def __init__(self, limits: ConnectionLimits) -> None:
        self.by_id: dict[int, Connection] = {}
        self.places = Places(limits.places)
        # Connections whose HELLO may name a broker, the oldest first.
        self._door: dict[Connection, None] = {}
        # Those in brokers' places that have yet to prove that they are brokers, the oldest first.
        self._claims: dict[Connection, None] = {}
        # Those that have yet to log in, the oldest first.
        self._anonymous: dict[Connection, None] = {}
        self._next_id = 1
        self.lingering = 0
        """Connections that got their final error; the client has not closed them yet."""
        self._active: dict[Connection, None] = {}
        # Quiet connections, by the slot that is due when their idle limit may have passed.
        self._slots: dict[int, dict[Connection, None]] = {}
        self._next_slot = 0  # All earlier slots are empty.
        self._slot_us = 1
        self._limits = limits
        self.limits = limits

    @property
    def limits(self) -> ConnectionLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self.places.limits = limits.places
        self._slot_us = max(1, round(limits.check_s * 1e6))
        # The slots' length follows the limits, so every connection gets a new slot.
        self._slots.clear()
        self._next_slot = 0
        for connection in self.by_id.values():
            connection.state.slot = -1
            self.mark_active(connection)

    def add(self, connection: Connection) -> int:
        """Return the connection's new id; -1: there is no place."""
        state = connection.state
        if state.place is Place.NONE:  # else it was counted when it was accepted
            state.place = self.places.enter(state.origin)
        if state.place is Place.NONE:
            return -1
        if state.place is Place.DOOR:
            self._door[connection] = None
            # The newcomer displaces the oldest: silent connections keep no broker out.
            if len(self._door) > self._limits.places.door:
                self._refuse(next(iter(self._door)))
        if state.awaits_login:
            self._anonymous[connection] = None
            # As at the door: one that logs in at once is past it before others have come so far.
            if len(self._anonymous) > self._limits.places.anonymous:
                self._displace(next(iter(self._anonymous)))
        connection_id = self._next_id
        self._next_id += 1
        self.by_id[connection_id] = connection
        self.mark_active(connection)
        return connection_id

    def settle(self, connection: Connection, *, is_broker: bool) -> bool:
        """Choose the place by the first request; False: there is none."""
        state = connection.state
        if is_broker:
            self._door.pop(connection, None)
            if self._claims and self.places.is_full_of_brokers:
                # A broker proves itself at once: programs that do not keep no broker out.
                oldest = next(iter(self._claims))
                self._leave(oldest)
                oldest.abort("proof")
            state.place = self.places.claim(state.place, state.origin)
            if state.place is Place.BROKER:
                self._anonymous.pop(connection, None)  # Its claim is bounded by brokers' places.
            if state.place is Place.BROKER and state.unproved_since_us:
                self._claims[connection] = None
        elif state.place is Place.DOOR:
            self._leave(connection)
        return state.place is not Place.NONE

    def proved(self, connection: Connection) -> None:
        """No other takes its place."""
        self._claims.pop(connection, None)
        self._anonymous.pop(connection, None)

    @property
    def anonymous(self) -> int:
        """Connections that have yet to log in."""
        return len(self._anonymous)

    def _leave(self, connection: Connection) -> None:
        state = connection.state
        self._door.pop(connection, None)
        self._claims.pop(connection, None)
        self._anonymous.pop(connection, None)
        self.places.leave(state.place, state.origin)
        state.place = Place.NONE

    def _refuse(self, connection: Connection) -> None:
        self._leave(connection)
        connection.refuse()

    def _displace(self, connection: Connection) -> None:
        self._leave(connection)
        connection.refuse(
            TooManyConnections(
                f"{self._limits.places.anonymous} connections of this broker have not logged in"
                " yet, the most of a quarter of `connections.max`, and this was the oldest: try"
                " again."
            )
        )

    def remove(self, connection_id: int) -> None:
        removed = self.by_id.pop(connection_id, None)
        assert removed is not None, connection_id
        self._leave(removed)
        self._active.pop(removed, None)
        slot = self._slots.get(removed.state.slot)
        if slot is not None:
            del slot[removed]

    def for_each(self, act: Callable[[Connection], None]) -> list[Exception]:
        """Run `act` on every connection; return the failures, which stop none of the others."""
        return _on_each(list(self.by_id.values()), act)

    def __len__(self) -> int:
        return len(self.by_id)

    # --- periodic checks -----------------------------------------------------------------------
    def mark_active(self, connection: Connection) -> None:
        connection.state.is_quiet = False
        self._active[connection] = None

    def look(self, now_us: int) -> list[Exception]:
        """Close overdue connections, report the others' bytes to the memory budget; return the
        failures."""
        for connection in self._take_due(now_us):
            self._active[connection] = None
        return _on_each(list(self._active), partial(self._look_at, now_us))

    def _take_due(self, now_us: int) -> list[Connection]:
        end = now_us // self._slot_us  # The slot of `now_us` itself is not over.
        numbers: Iterable[int] = range(self._next_slot, end)
        # After a long pause of the loop most numbers have no slot.
        if end - self._next_slot > len(self._slots):
            numbers = [number for number in self._slots if number < end]
        self._next_slot = max(self._next_slot, end)
        due = [connection for number in numbers for connection in self._slots.pop(number, ())]
        for connection in due:
            connection.state.slot = -1
        return due

    def _look_at(self, now_us: int, connection: Connection) -> None:
        state, sent_bytes = connection.state, connection.sent_bytes
        if state.place is Place.DOOR and now_us - state.frame_since_us > DOOR_MS * 1000:
            self._refuse(connection)
            return
        waiting = connection.waiting_bytes
        reason = overdue(state, self._limits, now_us, sent=sent_bytes, waiting=waiting)
        if state.in_flight or state.is_muted:
            # A system call: only where nothing was sent since the last `look`.
            if reason is None and sent_bytes == state.looked_sent_bytes:
                reason = "gone" if connection.is_abandoned else None
            state.looked_sent_bytes = sent_bytes
        if reason is not None:
            connection.abort(reason)
            return
        if not state.is_quiet:  # A quiet one holds what it last reported.
            connection.report()
        is_under_way = state.in_flight or state.frame_since_us or state.unproved_since_us
        if not (waiting or is_under_way or connection.is_held):
            self._mark_quiet(connection)

    def _mark_quiet(self, connection: Connection) -> None:
        state = connection.state
        state.is_quiet = True
        del self._active[connection]
        if state.slot < 0:
            # Slots are emptied when they are over: by then the limit has passed.
            state.slot = (state.last_read_us + self._limits.idle_us) // self._slot_us
            state.slot = max(state.slot, self._next_slot)
            self._slots.setdefault(state.slot, {})[connection] = None


class Entry(NamedTuple):
    """The place of a connection whose handshake is under way."""

    origin: Origin
    place: Place


class ClientAdmission:
    """Counts the connections of a listener with TLS before they have a protocol."""

    __slots__ = ("_may_be_broker", "_table")

    def __init__(self, table: ConnectionTable, *, may_be_broker: bool) -> None:
        self._table = table
        self._may_be_broker = may_be_broker

    def enter(self, peer: str) -> Entry | None:
        """Return the place of a new connection; None: there is none."""
        places = self._table.places
        origin = origin_of(peer, may_be_broker=self._may_be_broker)
        place = places.enter(origin)
        if place is Place.NONE:
            return None
        # Descriptors are planned for that many; the table lets later ones displace earlier ones.
        if place is Place.DOOR and places.taken(place) > 2 * places.limits.door:
            places.leave(place, origin)
            return None
        return Entry(origin, place)

    def leave(self, place: Entry) -> None:
        self._table.places.leave(place.place, place.origin)


def _on_each(
    connections: Iterable[Connection], act: Callable[[Connection], None]
) -> list[Exception]:
    failures: list[Exception] = []
    for connection in connections:
        try:
            act(connection)
        except Exception as error:
            failures.append(error)
    return failures
