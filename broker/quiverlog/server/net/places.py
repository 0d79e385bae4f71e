"""Which place a connection takes: a client's, another broker's, an operator's, or one at the door.

Owns the counts, and who may have a place when the clients' are all taken. So many places are kept
for other brokers and for connections from this machine that no number of clients can take them.

At a listener that brokers share with clients, a connection is a client's until its HELLO says
otherwise. Where clients find no place, it waits at the door for that word: a few places, of which a
newcomer takes the one that has waited longest, so that silent connections keep no broker out.
Nothing proves yet that a connection which says it is a broker's is one.

Must not know: sockets, frames, time.
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
    """From this machine, when clients find no place any more."""
    BROKER = "broker"
    DOOR = "door"
    """No place, unless its HELLO says that it is a broker's."""

    @property
    def is_counted(self) -> bool:
        """All but the place that is none."""
        return self is not Place.NONE


class Origin(NamedTuple):
    """Where a connection comes from.

    `network`: one text for all addresses of one machine; empty: not known, and not counted.
    `may_be_broker`: its listener serves brokers.
    """

    network: str
    is_loopback: bool
    may_be_broker: bool


UNKNOWN_ORIGIN = Origin("", is_loopback=False, may_be_broker=False)


class PlaceLimits(NamedTuple):
    """How many places there are of each kind."""

    clients: int
    per_address: int
    """Of the clients' places."""
    operators: int
    brokers: int
    door: int


class Places:
    """See the module docstring."""

    __slots__ = ("_by_address", "_taken", "limits")

    def __init__(self, limits: PlaceLimits) -> None:
        self.limits = limits
        """May be set at any time; no connection loses its place by that."""
        self._taken: Counter[Place] = Counter()
        self._by_address: Counter[str] = Counter()

    def taken(self, place: Place) -> int:
        """How many connections have a place of this kind."""
        return self._taken[place]

    def enter(self, origin: Origin) -> Place:
        """The place of a new connection; NONE: it is to be refused."""
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
        """A HELLO says that a broker connects: the place from now on, NONE where there is none."""
        assert origin.may_be_broker
        if self._taken[Place.BROKER] < self.limits.brokers:
            self.leave(place, origin)
            self._take(Place.BROKER, origin)
            return Place.BROKER
        if place is not Place.DOOR:
            return place
        self.leave(place, origin)
        return Place.NONE

    def leave(self, place: Place, origin: Origin) -> None:
        """Give a place back."""
        if place is Place.NONE:
            return
        assert self._taken[place] > 0, place
        self._taken[place] -= 1
        if place is Place.CLIENT and origin.network:
            self._by_address[origin.network] -= 1
            if not self._by_address[origin.network]:
                del self._by_address[origin.network]

    def why_refused(self, origin: Origin) -> QuiverlogError | None:
        """Why a client from there finds no place; None: it finds one."""
        limits = self.limits
        if self._taken[Place.CLIENT] >= limits.clients:
            return TooManyConnections(f"the broker has its {limits.clients} connections.")
        if origin.network and self._by_address[origin.network] >= limits.per_address:
            return TooManyConnectionsFromAddress(
                f"{origin.network} has its {limits.per_address} connections to this broker."
            )
        return None

    def _take(self, place: Place, origin: Origin) -> None:
        self._taken[place] += 1
        if place is Place.CLIENT and origin.network:
            self._by_address[origin.network] += 1
