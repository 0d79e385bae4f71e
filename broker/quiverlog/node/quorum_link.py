"""Messages of the quorum on their way to other brokers.

Owns the way: as requests, to the address that is known. A message to a node whose address is
unknown is lost, like any other that is lost; the Raft sends again what matters.

A replica that looks for the leader asks those of whom it was told, and the leader need not be among
them: each broker that is asked names the leader that it follows, in its answer.

Must not know: what else a message asks for, how requests travel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from quiverlog.addresses import parse_address
from quiverlog.core.raft.messages import Message, ReplicaKey
from quiverlog.errors import DuplicateNodeId, QuiverlogError
from quiverlog.limits import PEER_LOG_INTERVAL_MS
from quiverlog.node.config import NodeConfig
from quiverlog.node.effects import Peer, Purpose
from quiverlog.node.peers import Answer, Peers
from quiverlog.node.quorum_wire import Packed, pack
from quiverlog.node.whereabouts import Whereabouts
from quiverlog.roles import ROLE_CONTROLLER
from quiverlog.types import Now
from quiverlog.wire.quorum_messages import QuorumObserve, QuorumResponse

__all__ = ["sender"]

_SAME_NODE_ID: Final = "another broker has this node id"


def sender(
    config: NodeConfig,
    peers: Peers,
    whereabouts: Whereabouts,
    cluster_id: Callable[[], str],
    leads: Callable[[ReplicaKey, Now], None],
    log: Callable[..., None],
) -> Callable[[Sequence[Message], Now], None]:
    """What hands messages of this node's replica to the network.

    Args:
        leads: takes the leader that another broker names.
        log: takes a line of the log.
    """
    refusal, logged_us = "", 0  # Why another broker takes no messages of this one.
    endpoint = str(config.endpoint)
    is_controller = ROLE_CONTROLLER in config.roles

    def answered(answer: object, error: BaseException | None, now: Now) -> None:
        nonlocal refusal, logged_us
        response = answer.response if isinstance(answer, Answer) else None
        if response is not None and response.error_code == DuplicateNodeId.code:
            is_old = now.mono_us >= logged_us + PEER_LOG_INTERVAL_MS * 1000
            if is_old or response.error_message != refusal:
                refusal, logged_us = response.error_message, now.mono_us
                log("error", _SAME_NODE_ID, why=refusal)
        if not isinstance(response, QuorumResponse) or response.error_code:
            return
        leader = ReplicaKey(response.leader_id, response.leader_directory)
        if leader.node_id in (-1, config.node_id) or not leader.directory_id:
            return
        with contextlib.suppress(ValueError):
            whereabouts.told(leader.node_id, parse_address(response.leader_endpoint))
        leads(leader, now)

    def ask(packed: Packed, now: Now) -> None:
        peer = Peer(packed.node_id, Purpose.CONTROL)
        try:
            peers.ask(peer, packed.request, answered, now, body=packed.body)
        except QuiverlogError:  # So much is asked already, or nothing more is: it may get lost.
            peers.tell(packed.node_id, packed.request, packed.body)

    def send(messages: Sequence[Message], now: Now) -> None:
        for packed in pack(cluster_id(), messages, endpoint=endpoint, is_controller=is_controller):
            if any(isinstance(one, QuorumObserve) for one in packed.request.messages):
                ask(packed, now)
            else:
                peers.tell(packed.node_id, packed.request, packed.body)

    return send
