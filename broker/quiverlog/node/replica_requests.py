"""What a follower sends to a leader: the next fetch of a session, and the end of a fetch's wait.

Owns how a plan of `core.replication.peer_fetcher` becomes a request, and how long the leader may
hold its answer back. Must not know: connections, what an answer means, when something is sent.
"""

from __future__ import annotations

from quiverlog.core.replication.peer_fetcher import FetchPlan
from quiverlog.limits import REPLICA_FETCH_WAIT_MS
from quiverlog.wire.replica_messages import ReplicaFetchRequest

__all__ = ["end_of_wait", "fetch_of"]


def fetch_of(plan: FetchPlan, node_id: int, broker_epoch: int) -> ReplicaFetchRequest:
    """The fetch; a broker that is not registered now (a negative epoch) asks as if it were new."""
    assert plan.session_id or not plan.may_wait, "what begins a session is not held back"
    return ReplicaFetchRequest(
        replica_id=node_id,
        broker_epoch=max(broker_epoch, 0),
        session_id=plan.session_id,
        session_epoch=plan.session_epoch,
        max_wait_ms=REPLICA_FETCH_WAIT_MS if plan.may_wait else 0,
        partitions=plan.entries,
        forgotten=plan.forgotten,
    )


def end_of_wait(session_id: int, node_id: int, broker_epoch: int) -> ReplicaFetchRequest:
    """Has the leader answer the fetch of this session that it holds back: there is news for it."""
    assert session_id > 0, "only the fetch of a session is held back"
    return ReplicaFetchRequest(
        replica_id=node_id,
        broker_epoch=max(broker_epoch, 0),
        session_id=session_id,
        ends_wait=True,
    )
