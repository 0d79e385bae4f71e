"""Requests to other brokers, and where brokers are.

Of several sources of an address the later in this list counts: `controllers` in the configuration,
the leader that another broker named, voters in the metadata log, broker registrations,
`moved_controllers`, requests of the replica itself.

Invariant: each request of `ask` is answered once, after `ask` has returned, by a response or an
error.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from quiverlog.addresses import Address, parse_address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft.messages import ReplicaKey, Voters
from quiverlog.errors import (
    BrokerShuttingDown,
    InvalidRequest,
    PeerUnreachable,
    QuiverlogError,
    RequestTimedOut,
    ThrottledBroker,
)
from quiverlog.limits import PEER_ANSWER_MS_DEFAULT, PEER_REQUESTS_WAITING_MAX, RAFT_OBSERVERS_MAX
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import (
    NO_TOKEN,
    ClosePeer,
    Peer,
    PeerAddresses,
    Purpose,
    SendToPeer,
)
from quiverlog.node.runtime.events import PeerClosed, ResponseReceived
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now
from quiverlog.wire.messages import Request, Response

__all__ = ["SECOND", "Answer", "BrokerAddresses", "Peers", "ReplicaContact"]


Body = Sequence[bytes | memoryview]

_ANSWERED_KEPT: Final = 64
"""Deadlines of answered requests that may stay beside twice as many as are needed."""


class Answer(NamedTuple):
    """A response; the caller checks its `error_code`."""

    response: Response
    body: memoryview


class Peers:
    __slots__ = (
        "_addresses",
        "_deadlines",
        "_is_stopped",
        "_last_token",
        "_outbox",
        "_waiting",
        "_waiting_of",
    )

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._addresses: dict[int, Address] = {}
        self._last_token = 0
        self._waiting: dict[int, tuple[Peer, Then]] = {}
        self._waiting_of: Counter[Peer] = Counter()
        # Those of answered requests are skipped, and thrown out when they are many.
        self._deadlines: list[tuple[int, int]] = []
        self._is_stopped = False

    # --- asking --------------------------------------------------------------------------------
    def addresses_changed(self, by_node: Mapping[int, Address]) -> None:
        if by_node != self._addresses:
            self._addresses = dict(by_node)
            self._outbox.emit(PeerAddresses(dict(by_node)))

    def send(self, node_id: int, request: Request, body: Body = ()) -> None:
        """Send a request that may get lost; its answer is ignored."""
        if node_id in self._addresses:
            self._outbox.emit(SendToPeer(Peer(node_id, Purpose.CONTROL), request, body=body))

    def ask(
        self,
        peer: Peer,
        request: Request,
        then: Then,
        now: Now,
        *,
        body: Body = (),
        timeout_ms: int = PEER_ANSWER_MS_DEFAULT,
    ) -> None:
        """Send a request; `then` gets an `Answer` or an error.

        Raises:
            PeerUnreachable: the node has no address.
            ThrottledBroker: too many requests wait for it already.
            BrokerShuttingDown: the broker stops.
        """
        assert timeout_ms > 0
        if self._is_stopped:
            raise BrokerShuttingDown
        if peer.node_id not in self._addresses:
            raise PeerUnreachable(f"no address of node {peer.node_id} is known.")
        if self._waiting_of[peer] >= PEER_REQUESTS_WAITING_MAX:
            raise ThrottledBroker(f"{self._waiting_of[peer]} requests wait for {peer.node_id}.")
        self._last_token += 1
        token = self._last_token
        assert token != NO_TOKEN, "a caller waits"
        assert token not in self._waiting, "no token is used twice"
        self._waiting[token] = (peer, then)
        self._waiting_of[peer] += 1
        if len(self._deadlines) > 2 * len(self._waiting) + _ANSWERED_KEPT:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (now.mono_us + timeout_ms * 1000, token))
        self._outbox.emit(SendToPeer(peer, request, token, body))

    # --- answers -------------------------------------------------------------------------------
    def received(self, event: ResponseReceived, now: Now) -> None:
        assert event.token != NO_TOKEN, "no caller waits for that one"
        self._end(event.token, Answer(event.response, event.body), None, now)

    def closed(self, event: PeerClosed, now: Now) -> None:
        assert NO_TOKEN not in event.tokens, "no caller waits for that one"
        for token in event.tokens:
            self._end(token, None, event.error, now)

    def expire(self, now: Now) -> None:
        late: dict[Peer, None] = {}
        while self._deadlines and self._deadlines[0][0] <= now.mono_us:
            _, token = heapq.heappop(self._deadlines)
            found = self._waiting.get(token)
            if found is not None:
                peer, _ = found
                late[peer] = None
                error = RequestTimedOut(f"node {peer.node_id} did not answer in time.")
                self._end(token, None, error, now)
        # Requests behind a late one would wait as well.
        for peer in late:
            self._outbox.emit(ClosePeer(peer, "no answer in time"))

    def next_us(self) -> int | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._waiting:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def stop(self, now: Now) -> None:
        # Those without a token are still sent: decisions under way may need the quorum.
        self._is_stopped = True
        for token in list(self._waiting):
            self._end(token, None, BrokerShuttingDown(), now)
        assert not self._waiting, "a failed caller asks nothing more"
        self._deadlines.clear()

    def _end(
        self, token: int, answer: Answer | None, error: QuiverlogError | None, now: Now
    ) -> None:
        found = self._waiting.pop(token, None)
        if found is None:
            return  # It timed out before.
        assert (answer is None) != (error is None), "an answer, or why there is none"
        peer, then = found
        self._waiting_of[peer] -= 1
        assert self._waiting_of[peer] >= 0, "each is counted once"
        if not self._waiting_of[peer]:
            del self._waiting_of[peer]
        try:
            then(answer, error, now)
        except Exception as failure:
            self._outbox.internal_error(f"after the answer of node {peer.node_id}", failure)
            then(None, failure, now)


SECOND: Final = "a second process has the node id of a live broker, and is refused"
_REMEDY: Final = "stop the one that should not run; the other one has the place after a session"
_CONTACTS_MAX: Final = RAFT_OBSERVERS_MAX
_REMEMBERED_US: Final = 10_000_000
"""A process that is refused tries again within a second or two."""


class ReplicaContact(NamedTuple):
    key: ReplicaKey
    address: Address
    is_controller: bool
    last_contact_us: int


class _Place(NamedTuple):
    address: Address
    directory_id: str


class _Second(NamedTuple):
    at: str
    until_us: int
    is_here: bool


class BrokerAddresses:
    __slots__ = (
        "_changed",
        "_contacts",
        "_contested",
        "_controllers",
        "_led_us",
        "_listener",
        "_live",
        "_log",
        "_moved",
        "_named",
        "_node_id",
        "_registered",
        "_seconds",
        "_session_us",
        "_voters",
    )

    def __init__(
        self,
        config: NodeConfig,
        changed: Callable[[Mapping[int, Address]], None],
        log: Callable[..., None],
    ) -> None:
        self._node_id = config.node_id
        self._listener = config.inter_broker_listener
        self._controllers = config.controllers
        self._moved = config.moved_controllers
        self._changed = changed
        self._log = log
        self._session_us = config.broker_session_ms * 1000
        self._voters: Voters = {}
        self._registered: Mapping[int, Address] = {}
        self._live: dict[int, _Place] = {}  # Of those registered, the ones not fenced.
        self._contacts: dict[int, ReplicaContact] = {}
        self._contested: set[int] = set()  # Those that live elsewhere by their registration.
        self._led_us = -self._session_us  # When there was last a controller, which fences.
        self._seconds: dict[int, _Second] = {}
        self._named: dict[int, Address] = {}  # One leader at most.

    def voters_changed(self, voters: Voters) -> None:
        self._voters = dict(voters)
        for node_id, contact in list(self._contacts.items()):
            if not self.is_believed(contact.key):
                del self._contacts[node_id]
                self._contested.discard(node_id)
        self._publish()

    def brokers_changed(self, brokers: Iterable[BrokerRecord]) -> None:
        registered: dict[int, Address] = {}
        self._live = {}
        for one in brokers:
            endpoints = {name: Address(host, port) for name, host, port in one.listeners}
            if self._listener not in endpoints:
                continue
            registered[one.node_id] = address = endpoints[self._listener]
            if not one.fenced and one.node_id not in self._moved:
                self._live[one.node_id] = _Place(address, one.directory_id)
        self._contested = {node_id for node_id in self._contacts if self._is_contested(node_id)}
        if registered != self._registered:
            self._registered = registered
            self._publish()

    def record_sender(
        self,
        key: ReplicaKey,
        endpoint: str,
        now: Now,
        *,
        is_led: bool,
        yields: bool = False,
        is_controller: bool = True,
    ) -> Address | None:
        """Record where a replica is by its own request (empty: not sent), and whether it may vote.

        Args:
            is_led: there is a controller, which fences brokers that are silent for a session.
            yields: the first process gives way: its disk lacks what the sender's may have.

        Returns:
            Where another live process with the same disk is: the sender is a second one.

        Raises:
            InvalidRequest: `endpoint` is no address.
        """
        if is_led:
            self._led_us = now.mono_us
            self._drop_contested(now)
        if not endpoint:
            return None
        try:
            address = parse_address(endpoint)
        except ValueError as error:
            raise InvalidRequest(f"the sender's endpoint {error}.") from None
        if key.node_id == self._node_id:
            return None
        # Of two processes on one node id the first counts until it was silent for a session.
        first = self._first(key.node_id, now)
        live = self._live.get(key.node_id)
        if (
            first is not None
            and not yields
            and address not in (first.address, live and live.address)
        ):
            if first.directory_id != key.directory_id:
                return None
            self.second_seen(key.node_id, str(address), str(first.address), now, is_here=True)
            return first.address
        # A wiped disk must not draw the messages for the voter that it was.
        if not self.is_believed(key):
            return None
        held = self._contacts.get(key.node_id)
        contact = ReplicaContact(key, address, is_controller, now.mono_us)
        if held is not None and held[:3] == contact[:3]:
            self._contacts[key.node_id] = contact
            return None
        self._contacts.pop(key.node_id, None)
        while len(self._contacts) >= _CONTACTS_MAX:
            oldest = next(iter(self._contacts))
            del self._contacts[oldest]
            self._contested.discard(oldest)
        self._contacts[key.node_id] = contact
        self._contested.discard(key.node_id)
        if self._is_contested(key.node_id):
            self._contested.add(key.node_id)
        assert len(self._contacts) <= _CONTACTS_MAX
        self._publish()
        return None

    def _is_contested(self, node_id: int) -> bool:
        live = self._live.get(node_id)
        return live is not None and live.address != self._contacts[node_id].address

    def _first(self, node_id: int, now: Now) -> _Place | None:
        """Return where a node counts as alive: a process elsewhere is a second one."""
        held = self._contacts.get(node_id)
        if held is not None and now.mono_us < held.last_contact_us + self._session_us:
            return _Place(held.address, held.key.directory_id)
        is_led = now.mono_us < self._led_us + self._session_us
        return self._live.get(node_id) if is_led else None

    def _drop_contested(self, now: Now) -> None:
        """Let the registration count again where no message came for a session."""
        gone = [
            node_id for node_id in self._contested
            if now.mono_us >= self._contacts[node_id].last_contact_us + self._session_us
        ]  # fmt: skip
        for node_id in gone:
            del self._contacts[node_id]
            self._contested.discard(node_id)
        if gone:
            self._publish()

    # --- second processes ----------------------------------------------------------------------
    def second_seen(
        self, node_id: int, second_at: str, at: str, now: Now, *, is_here: bool = False
    ) -> None:
        """Record a refused process that has the node id of a live one (at `at`).

        Args:
            is_here: refused by this broker, which reports it to the controller; else by another.
        """
        known = self._seconds.get(node_id)
        if known is None or known.at != second_at or now.mono_us >= known.until_us:
            self._log("error", SECOND, node=node_id, at=at, second_at=second_at, remedy=_REMEDY)
        self._seconds[node_id] = _Second(second_at, now.mono_us + _REMEMBERED_US, is_here)

    def second_at(self, node_id: int, now: Now) -> str:
        """Empty: no second process was seen lately."""
        second = self._seconds.get(node_id)
        return second.at if second is not None and now.mono_us < second.until_us else ""

    def refused_here(self, now: Now) -> tuple[int, str]:
        """Return node id and address of the last second process; (-1, ""): none."""
        here = [
            (one.until_us, node_id, one.at) for node_id, one in self._seconds.items()
            if one.is_here and now.mono_us < one.until_us
        ]  # fmt: skip
        return max(here)[1:] if here else (-1, "")

    def leader_named(self, node_id: int, address: Address) -> None:
        if node_id != self._node_id and self._named != {node_id: address}:
            self._named = {node_id: address}
            self._publish()

    def is_believed(self, key: ReplicaKey) -> bool:
        return key in self._voters or all(key.node_id != one.node_id for one in self._voters)

    def contact_of(self, node_id: int) -> ReplicaContact | None:
        return self._contacts.get(node_id)

    def known(self) -> dict[int, Address]:
        found = {**self._controllers, **self._named}
        for voter, endpoint in self._voters.items():
            # A quorum of one has recorded no address.
            with contextlib.suppress(ValueError):
                found[voter.node_id] = parse_address(endpoint)
        found.update(self._registered)
        found.update(self._moved)
        found.update((node_id, contact.address) for node_id, contact in self._contacts.items())
        found.pop(self._node_id, None)
        assert self._node_id not in found, "no node connects to itself"
        return found

    def _publish(self) -> None:
        self._changed(self.known())
