"""Links by TLS: the broker that is meant, by its authority, its name and its node id."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from quiverlog import errors
from quiverlog.local.authority import Authority
from quiverlog.node.runtime.effects import Effect, Respond
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.server.net.tls import TlsHolder
from quiverlog.tls import ServerTls
from quiverlog.wire import messages as m
from quiverlog.wire.registry import api_ranges
from tests.support.peers import CLUSTER, Connections, short_times
from tests.support.scripted_broker import ScriptedBroker
from tests.support.server import serving, until
from tests.support.tls import LOCAL, TlsFiles, write_files

LARGE_BYTES = 5 << 20


@pytest.fixture(autouse=True)
def short() -> Iterator[None]:
    with short_times(PEER_CONNECT_MS=1_000):
        yield


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make("brokers")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> TlsFiles:
    folder = tmp_path_factory.mktemp("mine")
    return write_files(folder, "mine", authority=authority, broker=(CLUSTER, 9))


def server(files: TlsFiles, trusts: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(trusts)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def ask(
    target: ScriptedBroker, mine: TlsFiles, run: Any = uvloop.run, **more: Any
) -> tuple[list[Any], str]:
    """Send one request by a link; return (its answer or its error, the log)."""
    results: list[Any] = []
    logs = []

    async def course() -> None:
        holder = TlsHolder(ServerTls(mine.cert, mine.key, mine.ca, "required"))
        links = Connections(target.port, tls=holder, **more)
        token = links.ask(m.MetadataRequest(), body=more.pop("body", ()))
        try:
            await links.answered(token)
            results.append(links.answers.get(token) or links.refused[token])
        finally:
            links.peers.close()
            logs.append(links.log.getvalue())
            await asyncio.sleep(0.05)

    run(course())
    return results, logs[0]


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_two_brokers_of_one_authority_speak(
    tmp_path: Path, authority: Authority, mine: TlsFiles, run: Any
) -> None:
    theirs = write_files(tmp_path, "theirs", authority=authority, broker=(CLUSTER, 1))
    with ScriptedBroker(tls=server(theirs, mine.ca), cluster_id=CLUSTER, node_id=1) as target:
        results, log = ask(target, mine, run)
    assert isinstance(results[0], m.MetadataResponse)
    assert "level=warning" not in log


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("another authority", "its certificate is refused"),
        ("another name", "IP address mismatch"),
        ("another broker", "shows no certificate for quiverlog://the-cluster/broker/1"),
        ("another cluster", "shows no certificate for quiverlog://the-cluster/broker/1"),
        ("a client", "its certificate is refused|shows no certificate for"),
        ("no TLS", "cannot connect to .*|did not answer"),
    ],
)
def test_what_no_broker_is_sent_to(
    tmp_path: Path, authority: Authority, mine: TlsFiles, case: str, why: str
) -> None:
    broker = {"another broker": (CLUSTER, 2), "another cluster": ("c", 1)}.get(case, (CLUSTER, 1))
    theirs = write_files(
        tmp_path,
        "theirs",
        authority=None if case == "another authority" else authority,
        hosts=("10.1.1.1",) if case == "another name" else LOCAL,
        broker=None if case == "a client" else broker,
    )
    context = None if case == "no TLS" else server(theirs, mine.ca)
    with ScriptedBroker(tls=context, cluster_id=CLUSTER, node_id=1) as target:
        results, log = ask(target, mine)
        arrived = {type(one).__name__ for one in target.requests}
    assert isinstance(results[0], (errors.PeerUnreachable, errors.AuthenticationFailed))
    assert re.search(why, results[0].message), results[0].message
    assert arrived <= {"HelloRequest"}, "nothing of the node was sent"
    assert "PRIVATE" not in log


def test_a_large_request_arrives_whole(
    tmp_path: Path, authority: Authority, mine: TlsFiles
) -> None:
    theirs = write_files(tmp_path, "theirs", authority=authority, broker=(CLUSTER, 1))
    body = bytes(range(256)) * (LARGE_BYTES // 256)
    seen: list[bytes] = []

    with ScriptedBroker(tls=server(theirs, mine.ca), cluster_id=CLUSTER, node_id=1) as target:
        keep = target.handle

        def noted(*events: Any) -> None:
            seen.extend(bytes(one.body) for one in events if getattr(one, "body", b""))
            keep(*events)

        target.handle = noted  # type: ignore[method-assign]
        ask_with_body(target, mine, body)
    assert body in seen


def greeting(event: Any) -> list[Effect]:
    if not isinstance(event, RequestReceived):
        return []
    response: m.Response = m.MetadataResponse()
    if isinstance(event.request, m.HelloRequest):
        apis = api_ranges(between_brokers=True)
        response = m.HelloResponse(cluster_id=CLUSTER, node_id=1, apis=apis)
    return [Respond(event.connection_id, response, event.request.correlation_id)]


@pytest.mark.parametrize("is_required", [True, False])
def test_while_a_cluster_gets_tls_each_broker_is_reached_as_it_asks(
    tmp_path: Path, authority: Authority, mine: TlsFiles, is_required: bool
) -> None:
    theirs = write_files(tmp_path, "theirs", authority=authority, broker=(CLUSTER, 1))
    given = ServerTls(theirs.cert, theirs.key, mine.ca, "required", is_required=is_required)
    own = ServerTls(mine.cert, mine.key, mine.ca, "required", is_required=False)
    results: list[Any] = []

    async def course() -> None:
        async with serving(tls=TlsHolder(given), serves_brokers=True) as server:
            server.node.answer = greeting
            links = Connections(server.port, tls=TlsHolder(own))
            while not results or not isinstance(results[-1], m.Response):
                assert len(results) < 20
                token = links.ask()
                await links.answered(token)
                results.append(links.answers.get(token) or links.refused[token])
            await until(lambda: server.metrics.tls_handshakes)
            links.peers.close()
            assert server.metrics.tls_handshakes.get("done", 0) == is_required

    uvloop.run(course())
    # The first try was plain: a broker without TLS would not answer another.
    assert isinstance(results[0], errors.TlsRequired if is_required else m.MetadataResponse)


@pytest.mark.parametrize("case", ["expired", "taken out"])
def test_a_link_ends_with_the_certificate_of_the_other_broker(
    tmp_path: Path, authority: Authority, mine: TlsFiles, case: str
) -> None:
    days = 2 / 86_400 if case == "expired" else 1
    theirs = write_files(tmp_path, "theirs", authority=authority, broker=(CLUSTER, 1), days=days)

    async def course() -> None:
        own = TlsHolder(ServerTls(mine.cert, mine.key, mine.ca, "required"))
        links = Connections(target.port, tls=own)
        token = links.ask()
        await links.answered(token)
        assert token in links.answers
        assert len(own.certified) == links.metrics.peers_open == 1
        if case == "taken out":
            own.certified.trust(frozenset())
        await links.until(lambda: not links.metrics.peers_open)
        assert not len(own.certified)
        assert case in links.log.getvalue()
        links.peers.close()

    with ScriptedBroker(tls=server(theirs, mine.ca), cluster_id=CLUSTER, node_id=1) as target:
        uvloop.run(course())


def ask_with_body(target: ScriptedBroker, mine: TlsFiles, body: bytes) -> None:
    async def course() -> None:
        holder = TlsHolder(ServerTls(mine.cert, mine.key, mine.ca, "required"))
        links = Connections(target.port, tls=holder)
        tokens = [links.ask(m.MetadataRequest(), body=(memoryview(body),)), links.ask()]
        await links.answered(*tokens)
        links.peers.close()
        await asyncio.sleep(0.05)

    uvloop.run(course())
