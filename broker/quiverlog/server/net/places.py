"""The place that a connection takes: a client's, a broker's, an operator's, or one at the door.

Places for other brokers and for operators on this machine are reserved. At a listener that both
use, a connection counts as a client's until its HELLO names a broker. Without a free place it waits
at the door for its HELLO. The claim to be a broker takes the place before any proof (where proofs
are required, until another claims one), and every client on this machine may take an operator's.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import NamedTuple

from quiverlog.errors import QuiverlogError, TooManyConnections, TooManyConnectionsFromAddress

__all__ = ["UNKNOWN_ORIGIN", "Origin", "Place", "PlaceLimits", "Places"]


class Place(enum.Enum):
    """NONE -> CLIENT, OPERATOR or DOOR -> BROKER; from anywhere back to NONE."""

    NONE = "none"
    CLIENT = "client"
    OPERATOR = "operator"
    """From this machine, when the clients' places are taken."""
    BROKER = "broker"
    DOOR = "door"
    """Refused unless its HELLO names a broker."""

    @property
    def is_counted(self) -> bool:
        return self is not Place.NONE


class Origin(NamedTuple):
    """`network`: the same text for all addresses of one machine; empty: unknown, not counted.
    `may_be_broker`: the listener serves brokers."""

    network: str
    is_loopback: bool
    may_be_broker: bool


UNKNOWN_ORIGIN = Origin("", is_loopback=False, may_be_broker=False)


class PlaceLimits(NamedTuple):
    clients: int
    per_address: int
    """A part of `clients`."""
    operators: int
    brokers: int
    door: int

    @property
    def anonymous(self) -> int:
        """For connections that have yet to log in, where they must."""
        return max(1, self.clients // 4)


class Places:
    __slots__ = ("_by_address", "_taken", "limits")

    def __init__(self, limits: PlaceLimits) -> None:
        self.limits = limits
        """May be set at any time; no connection loses its place."""
        self._taken: Counter[Place] = Counter()
        self._by_address: Counter[str] = Counter()

    def taken(self, place: Place) -> int:
        return self._taken[place]

    @property
    def is_full_of_brokers(self) -> bool:
        return self._taken[Place.BROKER] >= self.limits.brokers

    def enter(self, origin: Origin) -> Place:
        """Return a new connection's place; NONE: refuse it."""
        limits = self.limits
        if self.why_refused(origin) is None:
            place = Place.CLIENT
        elif origin.is_loopback and self._taken[Place.OPERATOR] < limits.operators:
            place = Place.OPERATOR
        elif origin.may_be_broker and limits.door > 0:
            place = Place.DOOR
        else:
            return Place.NONE
        self._take(place, origin)
        return place

    def claim(self, place: Place, origin: Origin) -> Place:
        """Return the place after a HELLO that names a broker; NONE: refuse it."""
        assert origin.may_be_broker
        if not self.is_full_of_brokers:
            self.leave(place, origin)
            self._take(Place.BROKER, origin)
            return Place.BROKER
        if place is not Place.DOOR:
            return place  # As a client it was admitted, and it stays.
        self.leave(place, origin)
        return Place.NONE

    def leave(self, place: Place, origin: Origin) -> None:
        if place is Place.NONE:
            return
        assert self._taken[place] > 0, place
        self._taken[place] -= 1
        if place is Place.CLIENT and origin.network:
            self._by_address[origin.network] -= 1
            if not self._by_address[origin.network]:
                del self._by_address[origin.network]

    def why_refused(self, origin: Origin) -> QuiverlogError | None:
        """Return the error for a client from `origin`; None: there is a place."""
        limits = self.limits
        if self._taken[Place.CLIENT] >= limits.clients:
            return TooManyConnections(
                f"all {limits.clients} connections of this broker are in use: close some, or raise"
                " `connections.max`."
            )
        if origin.network and self._by_address[origin.network] >= limits.per_address:
            return TooManyConnectionsFromAddress(
                f"{origin.network} has {limits.per_address} connections to this broker, the most"
                " of one address: close some, or raise `connections.max.per.address`."
            )
        return None

    def _take(self, place: Place, origin: Origin) -> None:
        self._taken[place] += 1
        if place is Place.CLIENT and origin.network:
            self._by_address[origin.network] += 1
