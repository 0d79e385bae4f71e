"""What is asked of other brokers: what is under way to whom, and who waits for which answer.

Owns the tokens of requests that somebody waits for, their deadlines, and how many there may be; and
the addresses that the server was told of. Connections are the server's: it opens one when
something is to be sent, and says when it is gone.

Invariants: whoever asks is answered once, in a call of the node after that in which it asked: with
the response, or with the error that there will be none. After a deadline the connection is given
up, for what is sent behind would wait as well.

Must not know: sockets, what a request means, who is whom in the cluster.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quiverlog.addresses import Address
from quiverlog.errors import (
    BrokerShuttingDown,
    PeerUnreachable,
    QuiverlogError,
    RequestTimedOut,
    ThrottledBroker,
)
from quiverlog.limits import PEER_ANSWER_MS_DEFAULT, PEER_REQUESTS_WAITING_MAX
from quiverlog.node.effects import NO_TOKEN, ClosePeer, Peer, PeerAddresses, Purpose, SendToPeer
from quiverlog.node.events import PeerClosed, ResponseReceived
from quiverlog.node.jobs import Then
from quiverlog.node.outbox import Outbox
from quiverlog.types import Now
from quiverlog.wire.messages import Request, Response

__all__ = ["Answer", "Peers"]

Body = Sequence[bytes | memoryview]

_ANSWERED_KEPT: Final = 64
"""Deadlines of answered requests that may lie about beside twice as many as are needed."""


class Answer(NamedTuple):
    """What another broker has answered. Its `error_code` is for the asker to look at."""

    response: Response
    body: memoryview


class Peers:
    """See the module docstring."""

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
        # Those of answered requests are passed over, and thrown out when they are many.
        self._deadlines: list[tuple[int, int]] = []
        self._is_stopped = False

    # --- asking --------------------------------------------------------------------------------
    def addresses_changed(self, by_node: Mapping[int, Address]) -> None:
        """Where the other brokers are, all of them. This node itself is not among them."""
        if by_node != self._addresses:
            self._addresses = dict(by_node)
            self._outbox.emit(PeerAddresses(dict(by_node)))

    def tell(self, node_id: int, request: Request, body: Body = ()) -> None:
        """Send something that may get lost: nobody waits for the answer."""
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
        """`then` gets an `Answer`, or the error that there will be none.

        Raises:
            PeerUnreachable: nobody knows where the node is.
            ThrottledBroker: too much is asked of it already.
            BrokerShuttingDown: nothing is asked any more.
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
        assert token != NO_TOKEN, "somebody waits"
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
        """An answer has come, perhaps too late."""
        assert event.token != NO_TOKEN, "nobody waits for that one"
        self._end(event.token, Answer(event.response, event.body), None, now)

    def closed(self, event: PeerClosed, now: Now) -> None:
        """A connection is gone."""
        assert NO_TOKEN not in event.tokens, "nobody waits for that one"
        for token in event.tokens:
            self._end(token, None, event.error, now)

    def expire(self, now: Now) -> None:
        """Give up those whose deadline has passed, and their connections."""
        late: dict[Peer, None] = {}
        while self._deadlines and self._deadlines[0][0] <= now.mono_us:
            _, token = heapq.heappop(self._deadlines)
            found = self._waiting.get(token)
            if found is not None:
                peer, _ = found
                late[peer] = None
                error = RequestTimedOut(f"node {peer.node_id} did not answer in time.")
                self._end(token, None, error, now)
        for peer in late:
            self._outbox.emit(ClosePeer(peer, "no answer in time"))

    def next_us(self) -> int | None:
        """When `expire` is to be called at the latest; None: nobody waits."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._waiting:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def stop(self, now: Now) -> None:
        """The broker stops: nothing more is asked, and whoever waits is told.

        What nobody waits for is sent on: decisions under way may need the quorum.
        """
        self._is_stopped = True
        for token in list(self._waiting):
            self._end(token, None, BrokerShuttingDown(), now)
        assert not self._waiting, "whoever is told asks nothing more"
        self._deadlines.clear()

    def _end(
        self, token: int, answer: Answer | None, error: QuiverlogError | None, now: Now
    ) -> None:
        found = self._waiting.pop(token, None)
        if found is None:
            return  # It was given up.
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
