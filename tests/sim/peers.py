"""A simulated node's connections to other nodes: the shipped ones, on a loop in simulated time.

Owns the life of `server.peers` in one process of a host: made with the first effect, ended with the
process. Frames pass the simulated network like those of clients, so they come late, in pieces, not
at all while the two are cut off, and in any order across two connections.

Not here: what is sent, and for which part of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from quiverlog.limits import CONNECTION_MEMORY_BYTES, PEER_CONNECTIONS_MAX
from quiverlog.node.runtime.effects import ClosePeer, PeerAddresses, SendToPeer
from quiverlog.node.runtime.events import Event
from quiverlog.server.net.memory import MemoryBudget
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.peers.link import PeerSecrets
from quiverlog.server.peers.peers import PeerConnections
from quiverlog.wire.peer_proof import ClusterSecrets

from .loop import SimLoop

if TYPE_CHECKING:
    from .host import Host

__all__ = ["SimPeers"]


class _Log:
    """Lines go where the host's go."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def __getattr__(self, level: str) -> Any:
        def write(event: str, **fields: object) -> None:
            line = f"{level} {event} {fields}"
            self._host.log_lines.append(line)
            self._host.world.note(line.encode())

        return write


class SimPeers:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._life = host.life
        self.loop = SimLoop(host.world, host.name)
        self.metrics = ServerMetrics()
        self._made: PeerConnections | None = None

    def perform(self, effect: SendToPeer | ClosePeer | PeerAddresses) -> None:
        """Do what the node asks, as the server does."""
        self.loop.enter(self._perform, effect)

    def change_secrets(self, secrets: ClusterSecrets) -> None:
        """Connections prove by these from now on."""
        if self._made is not None:
            self.loop.enter(self._made.secrets_changed, secrets)

    def close(self) -> None:
        """The process is gone."""
        if self._made is not None:
            self.loop.enter(self._made.close)

    def _perform(self, effect: SendToPeer | ClosePeer | PeerAddresses) -> None:
        connections = self._connections()
        match effect:
            case SendToPeer():
                self._host.world.events["requests to other nodes"] += 1
                connections.send(effect)
            case ClosePeer():
                connections.give_up(effect.peer, effect.why)
            case PeerAddresses():
                connections.change_addresses(effect.by_node)

    def _connections(self) -> PeerConnections:
        if self._made is None:
            host = self._host
            assert host.node is not None
            budget = MemoryBudget(
                CONNECTION_MEMORY_BYTES,
                lambda: self._made.links if self._made is not None else (),
                now_us=lambda: host.world.mono_us,
            )
            self._made = PeerConnections(
                cast("Any", self.loop),
                node_id=host.node_id,
                cluster_id=host.node.broker.directory.cluster_id,
                proof=PeerSecrets(
                    host.node_id,
                    host.secrets,
                    host.nonces.randbytes,
                    is_required=host.node.broker.proofs.is_required,
                ),
                connections_max=PEER_CONNECTIONS_MAX,
                seed=host.world.scenario.seed,
                deliver=self._deliver,
                memory=budget,
                metrics=self.metrics,
                log=cast("Logger", _Log(host)),
            )
        return self._made

    def _deliver(self, *events: Event) -> None:
        if self._host.life == self._life:
            self._host.feed(*events)
