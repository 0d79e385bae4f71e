"""Broker epochs that a follower names: those that the metadata have given to it."""

from __future__ import annotations

from pathlib import Path

from quiverlog.core.controller.records import BrokerRecord
from quiverlog.errors import StaleBrokerEpoch
from quiverlog.wire.replica_messages import ReplicaFetchRequest
from tests.unit.node.replication.test_in_sync import ALL, COPY, Cluster


def test_a_broker_epoch_that_was_never_given_is_not_remembered(tmp_path: Path) -> None:
    """Else the broker itself is taken for an earlier life of its own, for as long as this leads."""
    cluster = Cluster(tmp_path)
    known = cluster.epoch(COPY)
    cluster.fetch(COPY, 0)
    for epoch in (known + 1, 2**62):
        request = ReplicaFetchRequest(replica_id=COPY, broker_epoch=epoch)
        response, _ = cluster.node.call(request)
        assert response.error_code == StaleBrokerEpoch.code
    cluster.decide(BrokerRecord(COPY, b"anew"))
    assert cluster.epoch(COPY) > known
    cluster.write(1)
    cluster.sessions.clear()
    cluster.fetch(COPY, 1)
    assert cluster.in_sync == ALL
