"""Connections to other brokers, against a real node behind a socket that fails in every way."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from quiverlog import errors
from quiverlog.addresses import Address
from quiverlog.core.raft import messages as r
from quiverlog.limits import (
    FORWARD_QUEUE_BYTES_MAX,
    MIB,
    PEER_QUEUE_BYTES_MAX,
    PEER_QUEUE_REQUESTS_MAX,
)
from quiverlog.node.metadata.quorum_wire import pack
from quiverlog.node.runtime.effects import Peer, Purpose, SendToPeer
from quiverlog.server.peers.link import PeerQueue
from quiverlog.wire import messages as m
from quiverlog.wire.frames import encode
from quiverlog.wire.quorum_messages import QuorumRequest
from tests.support.failing_sockets import failing_sockets
from tests.support.peers import CLUSTER, PEER, Connections, short_times
from tests.support.scripted_broker import Answer, Cut, ScriptedBroker

Run = Callable[[Coroutine[Any, Any, None]], None]
Scenario = Callable[[Connections], Coroutine[Any, Any, None]]


class Target(ScriptedBroker):
    """Node 1 of the cluster; `arrived` has the quorum's messages."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**{"cluster_id": CLUSTER, "node_id": 1, **config})
        self.arrived: list[r.Message] = []
        inbox = self.node.broker.quorum_inbox
        inbox._receiver = lambda messages, now: self.arrived.extend(messages)

    @property
    def terms(self) -> list[int]:
        return [message.term for message in self.arrived]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as broker, short_times():
        yield broker


def play(run: Run, scenario: Scenario, *ports: int, **options: int) -> Connections:
    """Run a scenario to its end; nothing may be left open."""
    made: list[Connections] = []

    async def whole() -> None:
        connections = Connections(*ports, **options)
        made.append(connections)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        try:
            await scenario(connections)
        finally:
            connections.close()
            await asyncio.sleep(0)

    failures: list[dict[str, Any]] = []
    run(whole())
    assert not failures
    return made[0]


def test_questions_are_answered_and_messages_arrive(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        tokens = [c.ask() for _ in range(3)]
        for term in (1, 2, 3):
            c.send_heartbeat(term)
        fetch = c.ask(peer=Peer(1, Purpose.FETCH))
        await c.answered(*tokens, fetch)
        await c.until(lambda: target.terms == [1, 2, 3])
        assert {type(answer) for answer in c.answers.values()} == {m.MetadataResponse}
        assert c.metrics.peers_open == 2
        assert not c.refused

    play(run, scenario, target.port)
    assert target.connections == 2
    assert [request.client_id for request in target.seen(m.HelloRequest)] == ["broker-9"] * 2


def test_a_large_body_and_answers_with_bodies(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        big = r.Entry(1, 1, r.EntryKind.DATA, bytes(1 << 20))
        append = r.Append(
            source=r.ReplicaKey(9, "d"), target=r.ReplicaKey(1, "d"), term=1, prev_index=0,
            prev_term=0, entries=(big,), commit=0,
        )  # fmt: skip
        (packed,) = pack(CLUSTER, [append, append, append])
        tokens = [c.ask(packed.request, body=packed.body) for _ in range(2)]
        assert c.memory.used_bytes > 6 << 20
        await c.answered(*tokens)
        assert [a.error_code for a in c.answers.values()] == [0, 0]
        assert target.arrived == [append] * 6

    play(run, scenario, target.port)


HELLOS: dict[str, tuple[Any, type[errors.QuiverlogError]]] = {
    "another cluster": (
        Answer(lambda _q, a, b: (setattr(a, "cluster_id", "other"), (a, b))[1]),
        errors.WrongCluster,
    ),
    "another node": (
        Answer(lambda _q, a, b: (setattr(a, "node_id", 5), (a, b))[1]),
        errors.WrongNode,
    ),
    "an error": (Answer(lambda _q, a, b: (m.HelloResponse(error_code=8), b)),
                 errors.TooManyConnections),
    "no frame": (Answer(lambda _q, _a, _b: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
                 errors.CorruptFrame),
    "half a frame, then the end": (Cut(11), errors.PeerUnreachable),
    "half a frame, then a reset": (Cut(11, resets=True), errors.PeerUnreachable),
    "the end": ("drop_reply", errors.PeerUnreachable),
    "silence": ("hang", errors.PeerUnreachable),
}  # fmt: skip


@pytest.mark.parametrize("name", HELLOS)
def test_a_wrong_hello_is_a_typed_error_that_is_not_spun_on(
    run: Run, target: Target, name: str
) -> None:
    fault, error = HELLOS[name]

    async def scenario(c: Connections) -> None:
        target.always(m.HelloRequest, fault)
        tokens = []
        for _ in range(3):
            token = c.ask()
            tokens.append(token)
            await c.answered(token)
        assert {type(why) for why in c.refused.values()} == {error}
        assert target.connections == 3
        assert c.log.getvalue().count("peer cannot be asked") == 1
        target.heal()
        token = c.ask()
        await c.answered(token)
        assert token in c.answers

    with short_times(PEER_WRONG_BACKOFF_MS=50):
        connections = play(run, scenario, target.port)
    assert connections.metrics.peer_failures == {error.code_name().lower(): 3}


def test_a_stranger_is_asked_again_after_a_long_rest_only(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        target.always(m.HelloRequest, HELLOS["another node"][0])
        await c.answered(c.ask())
        began_s = asyncio.get_running_loop().time()
        for term in range(50):
            c.send_heartbeat(term)
        token = c.ask()
        await c.answered(token)
        assert asyncio.get_running_loop().time() - began_s >= 0.29
        assert target.connections == 2

    play(run, scenario, target.port)


ENDS: dict[str, Any] = {
    "before the request is handled": "drop",
    "before the answer": "drop_reply",
    "half an answer, then the end": Cut(20),
    "half an answer, then a reset": Cut(20, resets=True),
    "no answer": "hang",
    "no frame": Answer(lambda _q, _a, _b: b"\xff" * 64),
    "an answer to something else": Answer(lambda _q, _a, _b: m_frame(999)),
}


def m_frame(number: int) -> bytes:
    return encode(m.MetadataResponse(), number)


@pytest.mark.parametrize("name", ENDS)
def test_a_connection_that_fails_ends_all_waiting_requests_and_is_made_again(
    run: Run, target: Target, name: str
) -> None:
    async def scenario(c: Connections) -> None:
        await c.answered(c.ask())
        target.fault(m.MetadataRequest, ENDS[name])
        lost = [c.ask(), c.ask(m.ListOffsetsRequest(max_wait_ms=5_000, metadata_version=0))]
        await c.answered(lost[0])
        again = c.ask()
        await c.answered(again)
        assert lost[0] in c.refused
        assert again in c.answers
        assert target.connections == 2

    play(run, scenario, target.port)


def test_no_broker_listens_there(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        for _ in range(4):
            c.send_heartbeat(1)
            await c.answered(c.ask())
        assert {type(why) for why in c.refused.values()} == {errors.PeerUnreachable}
        assert c.metrics.peer_requests_dropped == 4
        assert c.log.getvalue().count("peer cannot be asked") == 1
        c.peers.change_addresses({1: Address("127.0.0.1", target.port)})
        token = c.ask()
        await c.answered(token)
        assert token in c.answers

    port = target.door(7).port
    target.on_loop(target.doors[-1].close)
    play(run, scenario, port)


def test_a_host_name_that_cannot_be_resolved(run: Run) -> None:
    async def scenario(c: Connections) -> None:
        c.peers.change_addresses({1: Address("no-such-host.invalid", 9)})
        await c.answered(c.ask())
        assert {type(why) for why in c.refused.values()} == {errors.PeerUnreachable}

    with short_times(PEER_CONNECT_MS=10_000):
        play(run, scenario)


@pytest.mark.parametrize("call", ["socket", "connect", "getaddrinfo"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENETUNREACH])
def test_a_connect_that_the_system_refuses(target: Target, call: str, number: int) -> None:
    async def scenario(c: Connections) -> None:
        error = OSError(number, os.strerror(number))
        c.peers.change_addresses({1: Address("localhost", target.port)})
        with failing_sockets(call, 0, error) as log:
            token = c.ask()
            await c.answered(token)
            assert log.has_failed
        again = c.ask()
        await c.answered(again)
        assert again in c.answers

    play(asyncio.run, scenario, target.port)


@pytest.mark.parametrize("call", ["write", "writelines"])
def test_a_write_that_fails_ends_the_connection_and_its_requests(target: Target, call: str) -> None:
    async def scenario(c: Connections) -> None:
        await c.answered(c.ask())
        (link,) = c.peers.links
        conversation = link._conversation
        assert conversation is not None
        real = conversation._transport

        class Broken:
            def __getattr__(self, name: str) -> Any:
                if name == call:
                    raise BrokenPipeError(errno.EPIPE, "broken")
                return getattr(real, name)

        conversation._transport = Broken()  # type: ignore[assignment]
        lost = c.ask(body=[bytes(1 << 17) if call == "writelines" else b""])
        await c.answered(lost)
        assert type(c.refused[lost]) is errors.PeerUnreachable
        await c.answered(again := c.ask())
        assert again in c.answers

    play(asyncio.run, scenario, target.port)


def test_messages_give_way_and_questions_are_refused_when_too_much_waits(
    run: Run, target: Target
) -> None:
    async def scenario(c: Connections) -> None:
        target.always(m.HelloRequest, "hang")
        for term in range(PEER_QUEUE_REQUESTS_MAX + 10):
            c.send_heartbeat(term)
        tokens = [c.ask() for _ in range(PEER_QUEUE_REQUESTS_MAX + 3)]
        c.send_heartbeat(999)
        assert c.metrics.peer_requests_dropped == PEER_QUEUE_REQUESTS_MAX + 11
        await asyncio.sleep(0)
        await c.answered(*tokens[-3:])
        # On a busy machine the connection may have been given up meanwhile, and with it the others.
        assert {t for t, why in c.refused.items() if "too much waits" in str(why)} == {*tokens[-3:]}

    play(run, scenario, target.port)


def test_what_waits_counts_in_the_budget_of_memory(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        target.always(m.HelloRequest, "hang")
        tokens = [c.ask(body=[bytes(1 << 20)]) for _ in range(3)]
        await c.answered(*tokens)
        assert "memory" in str(c.refused[tokens[0]])
        assert c.memory.used_bytes == 0

    play(run, scenario, target.port, memory_bytes=2 << 20)


def test_there_are_no_more_connections_than_descriptors(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        first = c.ask()
        second = c.ask(peer=Peer(1, Purpose.FETCH))
        await c.answered(first, second)
        assert first in c.answers
        assert "no descriptor" in str(c.refused[second])

    play(run, scenario, target.port, connections_max=1)


def test_a_node_that_is_gone_or_given_up(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        wait = m.ListOffsetsRequest(max_wait_ms=60_000)
        await c.answered(c.ask())
        target.always(m.ListOffsetsRequest, "hang")
        lost = c.ask(wait)
        c.peers.give_up(PEER, "by the test")
        await c.answered(lost)
        lost = c.ask(wait)
        c.peers.change_addresses({})
        unknown = c.ask()
        await c.answered(lost, unknown)
        assert c.metrics.peers_open == 0
        assert not c.peers.links
        assert {type(c.refused[t]) for t in (lost, unknown)} == {errors.PeerUnreachable}

    play(run, scenario, target.port)


def test_an_idle_connection_that_ends_is_no_failure(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        await c.answered(c.ask())
        target.drop_connections()
        await c.until(lambda: c.metrics.peers_open == 0)
        token = c.ask()
        await c.answered(token)
        assert token in c.answers
        assert not c.metrics.peer_failures
        assert "cannot be asked" not in c.log.getvalue()

    play(run, scenario, target.port)


def test_a_broker_that_serves_no_quorum_yet_is_asked_again(run: Run) -> None:
    async def scenario(c: Connections) -> None:
        inbox = broker.node.broker.quorum_inbox
        inbox._receiver = None
        c.send_heartbeat(1)
        await c.until(lambda: c.metrics.peer_failures)
        assert c.metrics.peer_failures == {"wrong_listener": 1}
        inbox._receiver = lambda messages, now: arrived.extend(messages)

        async def sends_again() -> bool:
            c.send_heartbeat(2)
            await asyncio.sleep(0.01)
            return bool(arrived)

        async with asyncio.timeout(30):
            while not await sends_again():
                pass

    arrived: list[r.Message] = []
    with ScriptedBroker(cluster_id=CLUSTER, node_id=1) as broker, short_times():
        play(run, scenario, broker.port)


def test_a_refusal_of_the_quorum_is_logged_once(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        target.fault(QuorumRequest, *2 * (errors.ThrottledBroker(), errors.DuplicateNodeId()))
        for term in range(1, 6):
            c.send_heartbeat(term)
        await c.answered(c.ask())  # Behind the refusals.
        assert target.terms == [5]
        assert [c.log.getvalue().count(e) for e in ("cannot be asked", "this node id")] == [1, 1]
        assert c.metrics.peers_open == 1
        target.fault(QuorumRequest, errors.WrongCluster())
        c.send_heartbeat(4)
        await c.until(lambda: c.metrics.peers_open == 0)

    play(run, scenario, target.port)


@pytest.mark.parametrize("ends", [True, False])
def test_a_refused_question_to_the_quorum_is_logged(run: Run, target: Target, ends: bool) -> None:
    """One that waits for the metadata asks without end: its log has the reason, once."""

    async def scenario(c: Connections) -> None:
        for _ in range(3):
            target.fault(
                QuorumRequest, errors.WrongCluster() if ends else errors.BrokerShuttingDown()
            )
            token = c.ask(QuorumRequest())
            await c.answered(token)
            assert token in c.answers
            await c.until(lambda: c.metrics.peers_open == (0 if ends else 1))
        assert c.log.getvalue().count("peer cannot be asked") == 1

    play(run, scenario, target.port)


def test_the_end_leaves_nothing(run: Run, target: Target) -> None:
    async def scenario(c: Connections) -> None:
        target.always(m.MetadataRequest, "hang")
        c.ask()
        await c.until(lambda: c.metrics.peers_open == 1)
        c.ask(peer=Peer(1, Purpose.FETCH))
        c.peers.close()
        c.peers.close()
        c.ask()
        await c.answered(1, 2, 3)
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)

    play(run, scenario, target.port)


@pytest.mark.parametrize("bytes_max", [PEER_QUEUE_BYTES_MAX, FORWARD_QUEUE_BYTES_MAX])
@pytest.mark.parametrize(("more", "is_kept"), [(-1, True), (0, True), (1, False)])
def test_bytes_of_a_queue_are_bounded(bytes_max: int, more: int, is_kept: bool) -> None:
    """A request costs 512 bytes beside its body; the first one always fits."""
    queue = PeerQueue(bytes_max)
    assert queue.add(SendToPeer(PEER, m.MetadataRequest(), 1, [bytes(MIB)]))
    rest = bytes_max - MIB - 2 * 512 + more
    assert queue.add(SendToPeer(PEER, m.MetadataRequest(), 2, [bytes(rest)])) is is_kept
