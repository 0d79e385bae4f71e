"""A broker's connections to other brokers on a real loop, without a node: events are gathered.

Owns the wiring of `PeerConnections` and the times of tests (silence, backoff), which are those of
the product made shorter. Must not depend on what a test asserts.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from quiverlog.addresses import Address
from quiverlog.core.raft import messages as r
from quiverlog.errors import QuiverlogError
from quiverlog.node.metadata.quorum_wire import pack
from quiverlog.node.runtime.effects import Peer, Purpose, SendToPeer
from quiverlog.node.runtime.events import PeerClosed, ResponseReceived
from quiverlog.server.net.clocks import monotonic_us
from quiverlog.server.net.memory import MemoryBudget
from quiverlog.server.net.tls import TlsHolder
from quiverlog.server.observe.logs import make_logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.peers import link
from quiverlog.server.peers.peers import PeerConnections
from quiverlog.wire import messages as m
from quiverlog.wire.peer_proof import NO_SECRETS, ClusterSecrets

__all__ = ["CLUSTER", "PEER", "Connections", "heartbeat", "short_times"]

CLUSTER = "the-cluster"
PEER = Peer(1, Purpose.CONTROL)


@contextlib.contextmanager
def short_times(**changed: int) -> Iterator[None]:
    """Patience and rests of tests, in milliseconds."""
    times = {
        "PEER_CONNECT_MS": 5_000, "PEER_SILENCE_MS": 1_000, "PEER_WRONG_BACKOFF_MS": 300,
        "PEER_LOG_INTERVAL_MS": 60_000, **changed,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, value in times.items():
            stack.enter_context(mock.patch.object(link, name, value))
        stack.enter_context(mock.patch.object(link, "PEER_BACKOFF_MS_MIN", 10))
        stack.enter_context(mock.patch.object(link, "PEER_BACKOFF_MS_MAX", 40))
        yield


class Connections:
    """Made and used on the running loop."""

    def __init__(
        self,
        *ports: int,
        memory_bytes: int = 1 << 30,
        connections_max: int = 8,
        secrets: ClusterSecrets = NO_SECRETS,
        is_required: bool = False,
        tls: TlsHolder | None = None,
    ) -> None:
        self.events: list[Any] = []
        self.metrics = ServerMetrics()
        self.log = io.StringIO()
        self.memory = MemoryBudget(memory_bytes, lambda: self.peers.links, now_us=monotonic_us)
        self.peers = PeerConnections(
            asyncio.get_running_loop(),
            node_id=9,
            cluster_id=CLUSTER,
            proof=link.PeerSecrets(9, secrets, os.urandom, is_required=is_required),
            connections_max=connections_max,
            seed=7,
            deliver=lambda *events: self.events.extend(events),
            memory=self.memory,
            metrics=self.metrics,
            log=make_logger(level="debug", format="logfmt", stream=self.log),
            tls=tls,
        )
        self.peers.change_addresses(
            {node: Address("127.0.0.1", port) for node, port in enumerate(ports, 1)}
        )
        self._last = 0

    def ask(self, request: m.Request | None = None, peer: Peer = PEER, body: Any = ()) -> int:
        """Send a request that has a waiter; return its token."""
        self._last += 1
        self.peers.send(SendToPeer(peer, request or m.MetadataRequest(), self._last, body))
        return self._last

    def send_heartbeat(self, term: int, peer: Peer = PEER) -> None:
        """Send a message of the quorum."""
        (packed,) = pack(CLUSTER, [heartbeat(peer.node_id, term)])
        self.peers.send(SendToPeer(peer, packed.request, body=packed.body))

    @property
    def answers(self) -> dict[int, m.Response]:
        """By token."""
        return {e.token: e.response for e in self.events if isinstance(e, ResponseReceived)}

    @property
    def refused(self) -> dict[int, QuiverlogError]:
        """Why there will be no answer, by token."""
        closed = [e for e in self.events if isinstance(e, PeerClosed)]
        tokens = [token for e in closed for token in e.tokens]
        assert len(tokens) == len(set(tokens)), "each token ends once"
        return {token: e.error for e in closed for token in e.tokens}

    async def answered(self, *tokens: int) -> None:
        """Wait until each of these is answered or refused."""
        await self.until(lambda: set(tokens) <= {*self.answers, *self.refused})

    @staticmethod
    async def until(condition: Callable[[], object]) -> None:
        """Wait until others have made it true."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - it is others who make it true
                await asyncio.sleep(0.002)

    def close(self) -> None:
        """End all connections; nothing may be left of them."""
        self.peers.close()
        assert self.metrics.peers_open == 0
        assert self.memory.used_bytes == 0


def heartbeat(node_id: int, term: int) -> r.Heartbeat:
    """A message of the quorum, distinguished from others by its term."""
    target = r.ReplicaKey(node_id, "disk")
    return r.Heartbeat(source=r.ReplicaKey(9, "disk-9"), target=target, term=term, commit=0)
