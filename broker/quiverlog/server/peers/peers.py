"""The links to the other brokers, by node and purpose.

The node gives the addresses; a broker without one gets no link.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from quiverlog.addresses import Address
from quiverlog.errors import PeerUnreachable
from quiverlog.node.runtime.effects import NO_TOKEN, Peer, SendToPeer
from quiverlog.node.runtime.events import Event, PeerClosed
from quiverlog.server.net.memory import MemoryBudget
from quiverlog.server.net.tls import TlsHolder
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.peers.link import LinkContext, PeerLink, PeerSecrets
from quiverlog.wire.peer_proof import ClusterSecrets

__all__ = ["PeerConnections"]


class PeerConnections:
    """
    Args:
        proof: the cluster's secrets, until `secrets_changed`.
        connections_max: of all links together, by the plan of descriptors.
        seed: for the jitter of the backoffs.
        deliver: gives events to the node.
        tls: of the listener where brokers meet; None: links are plain.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        node_id: int,
        cluster_id: str,
        proof: PeerSecrets,
        connections_max: int,
        seed: int,
        deliver: Callable[..., None],
        memory: MemoryBudget,
        metrics: ServerMetrics,
        log: Logger,
        tls: TlsHolder | None = None,
    ) -> None:
        assert connections_max > 0
        self._loop = loop
        self._seed = seed
        self._connections_max = connections_max
        self._deliver = deliver
        self._addresses: dict[int, Address] = {}
        self._links: dict[Peer, PeerLink] = {}
        self._later: list[Event] = []
        self._is_closed = False
        self._context = LinkContext(
            loop=loop,
            cluster_id=cluster_id,
            client_id=f"broker-{node_id}",
            proof=proof,
            deliver=deliver,
            later=self._deliver_later,
            may_open=self._may_open,
            memory=memory,
            metrics=metrics,
            log=log,
            tls=tls,
        )

    @property
    def links(self) -> Sequence[PeerLink]:
        return tuple(self._links.values())

    def send(self, effect: SendToPeer) -> None:
        link = self._links.get(effect.peer)
        if link is None:
            address = self._addresses.get(effect.peer.node_id)
            if address is None or self._is_closed:
                self._refuse(effect)
                return
            rng = random.Random(f"{self._seed}-{effect.peer}")
            link = self._links[effect.peer] = PeerLink(effect.peer, address, self._context, rng)
        link.send(effect)

    def give_up(self, peer: Peer, why: str) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.give_up(why)

    def change_addresses(self, by_node: Mapping[int, Address]) -> None:
        self._addresses = dict(by_node)
        for peer, link in list(self._links.items()):
            address = self._addresses.get(peer.node_id)
            if address is None:
                del self._links[peer]
                link.close()
            elif address != link.address:
                link.moved(address)

    def secrets_changed(self, secrets: ClusterSecrets) -> None:
        """Prove by these from now on."""
        self._context.proof.secrets = secrets
        for link in self.links:
            link.secrets_changed()

    def close(self) -> None:
        self._is_closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def _may_open(self) -> bool:
        return sum(link.is_open for link in self._links.values()) < self._connections_max

    def _refuse(self, effect: SendToPeer) -> None:
        if effect.token != NO_TOKEN:
            unknown = PeerUnreachable(f"no address of node {effect.peer.node_id} is known.")
            self._deliver_later(PeerClosed(effect.peer, (effect.token,), unknown))

    def _deliver_later(self, event: Event) -> None:
        # The caller may be the node: it never handles an event from within another.
        if not self._later:
            self._loop.call_soon(self._deliver_gathered)
        self._later.append(event)

    def _deliver_gathered(self) -> None:
        events, self._later = self._later, []
        self._deliver(*events)
