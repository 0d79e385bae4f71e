"""Messages of the quorum on their way to other brokers.

Owns nothing but the way: as requests, to whoever is known to be where. A message to a node whose
address nobody knows is lost, like any other that is lost; the Raft sends what matters again.

Must not know: what a message asks for, how requests travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiverlog.core.raft.messages import Message
from quiverlog.node.config import NodeConfig
from quiverlog.node.peers import Peers
from quiverlog.node.quorum_wire import pack
from quiverlog.roles import ROLE_CONTROLLER

__all__ = ["sender"]


def sender(
    config: NodeConfig, peers: Peers, cluster_id: Callable[[], str]
) -> Callable[[Sequence[Message]], None]:
    """What hands messages of this node's replica to the network."""
    endpoint = str(config.endpoint)
    is_controller = ROLE_CONTROLLER in config.roles

    def send(messages: Sequence[Message]) -> None:
        for packed in pack(cluster_id(), messages, endpoint=endpoint, is_controller=is_controller):
            peers.tell(packed.node_id, packed.request, packed.body)

    return send
