"""What a node asks of other brokers: everybody who waits is answered once, whatever comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quiverlog.addresses import Address
from quiverlog.errors import (
    BrokerShuttingDown,
    PeerUnreachable,
    QuiverlogError,
    RequestTimedOut,
    ThrottledBroker,
)
from quiverlog.limits import PEER_REQUESTS_WAITING_MAX
from quiverlog.node.runtime.effects import (
    ClosePeer,
    LogLine,
    Peer,
    PeerAddresses,
    Purpose,
    SendToPeer,
)
from quiverlog.node.runtime.events import PeerClosed, ResponseReceived
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import Answer, Peers
from quiverlog.types import Now
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver

THERE = {1: Address("one", 1), 2: Address("two", 2)}
PEERS = [Peer(node, purpose) for node in THERE for purpose in Purpose]
ONE = PEERS[0]


class Asker:
    """Keeps the outcome of each request."""

    def __init__(self) -> None:
        self.outbox = Outbox(NodeMetrics())
        self.peers = Peers(self.outbox)
        self.outcomes: list[tuple[Any, BaseException | None]] = []
        self.peers.addresses_changed(THERE)
        assert self.outbox.take() == [PeerAddresses(THERE)]

    def then(self, result: object, error: BaseException | None, now: Now) -> None:
        self.outcomes.append((result, error))

    def ask(self, peer: Peer = ONE, at_us: int = 0, **options: Any) -> int:
        """The token under which the request went out."""
        self.peers.ask(peer, m.MetadataRequest(), self.then, Now(at_us, 0), **options)
        (sent,) = self.outbox.take()
        assert isinstance(sent, SendToPeer)
        assert sent.peer == peer
        return sent.token


def now(ms: int = 0) -> Now:
    return Now(ms * 1000, 0)


def test_an_answer_goes_to_its_caller() -> None:
    asker = Asker()
    token = asker.ask()
    response = m.MetadataResponse()
    asker.peers.received(ResponseReceived(ONE, token, response, memoryview(b"rows")), now())
    asker.peers.received(ResponseReceived(ONE, token, response, memoryview(b"rows")), now())
    assert asker.outcomes == [(Answer(response, memoryview(b"rows")), None)]
    assert asker.peers.next_us() is None


def test_a_closed_connection_fails_all_waiting_requests() -> None:
    asker = Asker()
    tokens = tuple(asker.ask() for _ in range(3))
    why = PeerUnreachable("it is down.")
    asker.peers.closed(PeerClosed(ONE, tokens, why), now())
    assert asker.outcomes == [(None, why)] * 3


def test_a_deadline_gives_the_connection_up() -> None:
    asker = Asker()
    asker.ask(timeout_ms=50)
    asker.ask(timeout_ms=40)
    later = asker.ask(PEERS[2], timeout_ms=60)
    assert asker.peers.next_us() == 40_000
    asker.peers.expire(now(50))
    assert [type(error) for _, error in asker.outcomes] == [RequestTimedOut] * 2
    assert asker.outbox.take() == [ClosePeer(ONE, "no answer in time")]
    assert asker.peers.next_us() == 60_000
    response = m.MetadataResponse()
    asker.peers.received(ResponseReceived(PEERS[2], later, response, memoryview(b"")), now(51))
    asker.peers.expire(now(70))
    assert len(asker.outcomes) == 3
    assert not asker.outbox.take()


def test_what_cannot_be_asked_is_refused_at_once() -> None:
    asker = Asker()
    with pytest.raises(PeerUnreachable):
        asker.ask(Peer(9, Purpose.FETCH))
    for _ in range(PEER_REQUESTS_WAITING_MAX):
        asker.ask()
    with pytest.raises(ThrottledBroker):
        asker.ask()
    asker.ask(PEERS[1])
    asker.peers.stop(now())
    assert len(asker.outcomes) == PEER_REQUESTS_WAITING_MAX + 1
    assert {type(error) for _, error in asker.outcomes} == {BrokerShuttingDown}
    with pytest.raises(BrokerShuttingDown):
        asker.ask()


def test_a_request_without_a_caller_needs_an_address_and_no_token() -> None:
    asker = Asker()
    asker.peers.send(1, m.MetadataRequest(), [b"body"])
    asker.peers.send(9, m.MetadataRequest())
    (sent,) = asker.outbox.take()
    assert sent == SendToPeer(Peer(1, Purpose.CONTROL), m.MetadataRequest(), 0, [b"body"])
    assert asker.peers.next_us() is None
    asker.peers.addresses_changed(dict(THERE))
    assert not asker.outbox.take(), "nothing has changed"


def test_a_bug_of_one_caller_fails_that_caller_only() -> None:
    asker = Asker()
    errors: list[BaseException | None] = []

    def broken(result: object, error: BaseException | None, now: Now) -> None:
        errors.append(error)
        if error is None:
            raise KeyError("a bug")

    asker.peers.ask(ONE, m.MetadataRequest(), broken, now())
    (sent,) = asker.outbox.take()
    other = asker.ask()
    for token in (sent.token, other):
        event = ResponseReceived(ONE, token, m.MetadataResponse(), memoryview(b""))
        asker.peers.received(event, now())
    assert [type(error) for error in errors] == [type(None), KeyError]
    assert len(asker.outcomes) == 1
    assert [type(effect) for effect in asker.outbox.take()] == [LogLine]


def test_deadlines_of_answered_requests_do_not_pile_up() -> None:
    asker = Asker()
    asker.ask(timeout_ms=1)
    for _ in range(5_000):
        token = asker.ask(PEERS[1])
        event = ResponseReceived(PEERS[1], token, m.MetadataResponse(), memoryview(b""))
        asker.peers.received(event, now())
    assert len(asker.peers._deadlines) < 100


def test_the_node_gives_up_in_time(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    outcomes: list[BaseException | None] = []
    peers = node.node.broker.peers
    peers.addresses_changed(THERE)
    peers.ask(
        ONE, m.MetadataRequest(), lambda _r, e, _n: outcomes.append(e), node.now, timeout_ms=70
    )
    node.advance(69)
    assert not outcomes
    node.advance(2)
    assert [type(error) for error in outcomes] == [RequestTimedOut]
    peers.ask(ONE, m.MetadataRequest(), lambda _r, e, _n: outcomes.append(e), node.now)
    node.send(PeerClosed(ONE, (2,), PeerUnreachable()))
    peers.ask(ONE, m.MetadataRequest(), lambda r, _e, _n: outcomes.append(r), node.now)
    node.send(ResponseReceived(ONE, 3, m.MetadataResponse(), memoryview(b"")))
    peers.ask(ONE, m.MetadataRequest(), lambda _r, e, _n: outcomes.append(e), node.now)
    node.stop()
    assert [type(one) for one in outcomes[1:]] == [PeerUnreachable, Answer, BrokerShuttingDown]


class Asking(RuleBasedStateMachine):
    """Answers, ends, deadlines in any order: each caller gets exactly one outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.asker = Asker()
        self.at_us = 0
        self.open: dict[int, tuple[Peer, list[object]]] = {}
        self.done: list[list[object]] = []

    @rule(peer=st.sampled_from(PEERS), timeout_ms=st.integers(1, 100))
    def ask(self, peer: Peer, timeout_ms: int) -> None:
        outcomes: list[object] = []
        self.asker.peers.ask(
            peer, m.MetadataRequest(), lambda result, error, _now: outcomes.append(result or error),
            Now(self.at_us, 0), timeout_ms=timeout_ms,
        )  # fmt: skip
        (sent,) = self.asker.outbox.take()
        self.open[sent.token] = (peer, outcomes)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.open)))
        peer, outcomes = self.open.pop(token)
        event = ResponseReceived(peer, token, m.MetadataResponse(), memoryview(b""))
        self.asker.peers.received(event, Now(self.at_us, 0))
        self.done.append(outcomes)

    @rule(peer=st.sampled_from(PEERS))
    def close(self, peer: Peer) -> None:
        tokens = tuple(token for token, (of, _) in self.open.items() if of == peer)
        self.asker.peers.closed(PeerClosed(peer, tokens, QuiverlogError()), Now(self.at_us, 0))
        self.done += [self.open.pop(token)[1] for token in tokens]

    @rule(ms=st.integers(0, 60))
    def pass_time(self, ms: int) -> None:
        self.at_us += ms * 1000
        self.asker.peers.expire(Now(self.at_us, 0))
        closed = {effect.peer for effect in self.asker.outbox.take()}  # type: ignore[union-attr]
        late = {token: entry for token, entry in self.open.items() if entry[1]}
        assert {peer for peer, _ in late.values()} == closed
        self.done += [self.open.pop(token)[1] for token in late]

    @invariant()
    def each_is_told_once(self) -> None:
        assert all(len(outcomes) == 1 for outcomes in self.done)
        assert not any(outcomes for _, outcomes in self.open.values())
        due_us = self.asker.peers.next_us()
        assert (due_us is None) == (not self.open)
        assert due_us is None or due_us >= self.at_us


TestAsking = Asking.TestCase
TestAsking.settings = settings(max_examples=60, deadline=None)
