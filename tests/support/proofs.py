"""Raw connections that speak as a broker: with the cluster's secret, or without it."""

from __future__ import annotations

import os

from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import CLUSTER_SHA_256, AuthenticateRequest
from quiverlog.wire.peer_proof import NONCE_BYTES, ClusterSecrets, Connector, Parties
from tests.support.rawclient import RawClient

__all__ = ["prove"]


def prove(client: RawClient, node_id: int, secret: bytes) -> str:
    """Prove that `client` is this node; return its principal.

    Raises:
        ProofRefused: the broker has not proved that it has the secret.
        AuthenticationFailed: the broker refuses.
    """
    hello = client.ask(m.HelloRequest(client_id=f"broker-{node_id}"))
    parties = Parties(hello.cluster_id, node_id, hello.node_id)
    connector = Connector(ClusterSecrets((secret,)), parties, os.urandom(NONCE_BYTES))
    first = client.ask(AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=connector.opening))
    proof = connector.answer(first.data)
    last = client.ask(AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=proof))
    assert last.is_done
    return str(last.principal)
