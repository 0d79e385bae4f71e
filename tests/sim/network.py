"""Byte streams between endpoints: order is kept, nothing else is promised.

Owns connections as TCP has them. Bytes arrive late, in other pieces than they were sent, and in
their order in each direction. A connection may break at any byte: what was sent before arrives in
part, each side learns of it at its own time, and the broker may go on serving requests that the
client has given up. Two endpoints may be cut off from each other for a while, in both directions or
in one, and one may be paused: what is sent then arrives afterwards, also over connections that
their client has closed meanwhile. Requests of some may be kept while later ones get through.

Not here: frames, requests, the roles of broker and client (nodes connect to nodes, too).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .world import World

__all__ = ["Connection", "Endpoint", "Link", "Network"]

_PIECES_MAX = 3


class Endpoint(Protocol):
    """The holder of one end of a connection."""

    name: str

    def on_bytes(self, connection: Connection, data: bytes) -> None:
        """Bytes have arrived."""

    def on_closed(self, connection: Connection) -> None:
        """The connection is gone: nothing will arrive any more."""


class _Direction:
    """One way of a connection."""

    __slots__ = ("arrival_us", "held", "is_kept", "is_open", "receiver")

    def __init__(self, receiver: Endpoint) -> None:
        self.receiver = receiver
        self.is_open = True
        """Does the receiver still take the connection for open?"""
        self.is_kept = False
        """Does nothing arrive, whatever else does?"""
        self.arrival_us = 0
        self.held: list[Callable[[], None]] = []
        """What arrives when the two are not cut off from each other any more."""


@dataclass(frozen=True, slots=True)
class Link:
    """How bad the way from one endpoint to another is, beside what the whole network is."""

    loss: float = 0.0
    delay_us: int = 0


_GOOD_LINK = Link()


class Connection:
    """A connection; `number` is never used twice."""

    __slots__ = ("_network", "_to_client", "_to_server", "broken", "number")

    def __init__(self, network: Network, number: int, client: Endpoint, server: Endpoint) -> None:
        self._network = network
        self.number = number
        self.broken = False
        self._to_server = _Direction(server)
        self._to_client = _Direction(client)

    @property
    def client_name(self) -> str:
        """The name of the endpoint that opened it."""
        return self._to_client.receiver.name

    def send(self, sender: Endpoint, data: bytes) -> None:
        """Put bytes on their way to the other end."""
        way = self._to_server if sender is self._to_client.receiver else self._to_client
        self._network.transmit(self, way, sender, data)

    def close(self, closer: Endpoint) -> None:
        """Close our end; the other end learns of it behind what is under way."""
        self._network.end(self, closer)


class Network:
    """Chances are per transmission."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._count = 0
        self._cut: set[tuple[str, str]] = set()
        self._paused: set[str] = set()
        self._holding: list[_Direction] = []
        self.loss = 0.0
        """Chance that a connection breaks while these bytes are under way."""
        self.slow = 0.0
        self.half_open = 0.0
        """Chance that the other end learns late of a broken connection."""
        self.cut_up = 0.0
        """Chance that bytes arrive in several pieces."""
        self.links: dict[tuple[str, str], Link] = {}
        """Ways that are worse than others, by source and target."""
        self._newest: dict[tuple[str, str], int] = {}
        self._between: dict[tuple[str, str], list[Connection]] = {}
        """By the endpoints that opened them, and their targets."""

    def connect(self, client: Endpoint, server: Endpoint) -> Connection | None:
        """A new connection; None where the two are cut off from each other."""
        if self.is_cut(client.name, server.name) or self.is_cut(server.name, client.name):
            return None
        self._count += 1
        connection = Connection(self, self._count, client, server)
        known = self._between.get((client.name, server.name), [])
        self._between[client.name, server.name] = [
            *(one for one in known if not one.broken), connection,
        ]  # fmt: skip
        return connection

    # --- being cut off -------------------------------------------------------------------------
    def cut(self, one: str, other: str) -> None:
        """Nothing passes between these two until `heal`."""
        self._cut |= {(one, other), (other, one)}

    def cut_one_way(self, source: str, target: str) -> None:
        """What `source` sends does not reach `target`, until `heal`."""
        self._cut.add((source, target))

    def pause(self, name: str) -> None:
        """Nothing arrives at this endpoint until `resume`."""
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """This endpoint goes on."""
        self._paused.discard(name)
        self._let_pass()

    def heal(self) -> None:
        """Everything passes again, in the order in which it was sent."""
        self._cut.clear()
        self._let_pass()

    def mend(self, one: str, other: str) -> None:
        """These two reach each other again."""
        self._cut -= {(one, other), (other, one)}
        self._let_pass()

    def keep(self, client: str, server: str) -> list[Connection]:
        """What the one sends to the other over its newest connection of now arrives at `give`."""
        kept = [one for one in self._between.get((client, server), []) if not one.broken][-1:]
        for connection in kept:
            connection._to_server.is_kept = True
        return kept

    def give(self, kept: list[Connection]) -> None:
        """What was kept arrives, in its order."""
        for connection in kept:
            connection._to_server.is_kept = False
            self._release(connection._to_server)

    def reset(self, client: str, server: str) -> None:
        """All connections that the one has opened to the other break now."""
        for connection in self._between.pop((client, server), []):
            if not connection.broken:
                self._break(connection)

    def _let_pass(self) -> None:
        holding, self._holding = self._holding, []
        for way in holding:
            self._world.at(self._rng.randrange(20, 2_000), lambda way=way: self._release(way))

    def _release(self, way: _Direction) -> None:
        """What was held arrives, and what came to lie behind it meanwhile."""
        held, way.held = way.held, []
        for action in held:
            action()

    def is_cut(self, one: str, other: str) -> bool:
        """Does nothing that the one sends reach the other?"""
        return bool(self._cut) and (one, other) in self._cut

    # --- bytes ---------------------------------------------------------------------------------
    def transmit(
        self, connection: Connection, way: _Direction, sender: Endpoint, data: bytes
    ) -> None:
        """See `Connection.send`."""
        if connection.broken:
            return
        rng, world = self._rng, self._world
        link = self._link(sender.name, way.receiver.name)
        if not world.calm and rng.random() < max(self.loss, link.loss):
            world.faults[f"lost on the way to {type(way.receiver).__name__}"] += 1
            data = data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else b""
            if data:
                self._deliver(connection, way, sender, data)
            self._break(connection)
            return
        if len(data) > 1 and rng.random() < self.cut_up:
            cuts = sorted({rng.randrange(1, len(data)) for _ in range(_PIECES_MAX - 1)})
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                self._deliver(connection, way, sender, data[start:end])
            return
        self._deliver(connection, way, sender, data)

    def _deliver(
        self, connection: Connection, way: _Direction, sender: Endpoint, data: bytes
    ) -> None:
        def arrive() -> None:
            if not way.is_open:
                return
            if self._is_held(way, sender.name, arrive):
                return
            receiver = way.receiver.name
            newest = self._newest.get((sender.name, receiver), 0)
            if connection.number < newest:
                self._world.events["overtaken by a later connection"] += 1
            self._newest[sender.name, receiver] = max(newest, connection.number)
            way.receiver.on_bytes(connection, data)

        self._in_order(way, arrive, self._link(sender.name, way.receiver.name).delay_us)

    def _is_held(self, way: _Direction, sender: str, action: Callable[[], None]) -> bool:
        """True: what was to happen now happens behind what cannot pass."""
        receiver = way.receiver.name
        cut = receiver in self._paused or self.is_cut(sender, receiver)
        if cut and way not in self._holding:
            self._holding.append(way)
        is_held = cut or way.is_kept or bool(way.held)
        if is_held:
            way.held.append(action)
        return is_held

    def _link(self, source: str, target: str) -> Link:
        return self.links.get((source, target), _GOOD_LINK) if self.links else _GOOD_LINK

    def _in_order(self, way: _Direction, action: Callable[[], None], delay_us: int) -> None:
        world, rng = self._world, self._rng
        slow = self.slow > 0 and rng.random() < self.slow
        arrival_us = world.mono_us + rng.randrange(20, 100_000 if slow else 2_000) + delay_us
        way.arrival_us = arrival_us = max(arrival_us, way.arrival_us + 1)
        world.at(arrival_us - world.mono_us, action)

    # --- ends ----------------------------------------------------------------------------------
    def _break(self, connection: Connection) -> None:
        """The client learns of it at once; the broker perhaps much later.

        Until then it goes on with requests that were under way: they may take effect after the
        client has sent them again over a new connection.
        """
        connection.broken = True
        self._close_later(connection, connection._to_client, 1)
        late = not self._world.calm and self._rng.random() < self.half_open
        delay_us = self._rng.randrange(1_000, 300_000) if late else 3_000
        self._close_later(connection, connection._to_server, delay_us)

    def end(self, connection: Connection, closer: Endpoint) -> None:
        """See `Connection.close`."""
        mine, theirs = connection._to_client, connection._to_server
        if closer is theirs.receiver:
            mine, theirs = theirs, mine
        mine.is_open = False
        if connection.broken:
            return
        connection.broken = True
        late = not self._world.calm and self._rng.random() < self.half_open
        delay_us = self._rng.randrange(1_000, 300_000) if late else 1
        delay_us = max(delay_us, theirs.arrival_us + 1 - self._world.mono_us)
        self._close_later(connection, theirs, delay_us)

    def vanish(self, connection: Connection) -> None:
        """The broker's process is gone: the client learns of it, nothing more arrives."""
        connection.broken = True
        connection._to_server.is_open = False
        self._close_later(connection, connection._to_client, 1)

    def _close_later(self, connection: Connection, way: _Direction, delay_us: int) -> None:
        def close() -> None:
            if not way.is_open:
                return
            # A broker learns that a client is gone behind what the client has sent.
            if way is connection._to_server and self._is_held(way, connection.client_name, close):
                return
            way.is_open = False
            way.receiver.on_closed(connection)

        self._world.at(delay_us, close)
