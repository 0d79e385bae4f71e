"""When the voter of a lost disk is removed: by its quorum's timers, however slow."""

from __future__ import annotations

from types import SimpleNamespace as Namespace
from typing import cast

import pytest

from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft import messages as m
from quiverlog.core.raft.messages import RaftConfig, ReplicaKey
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.metadata.reach import Reach
from quiverlog.node.metadata.voters import VoterChanges
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now
from tests.support.raft import Replica, accepted, alive, key, leader

AT = (("default", "h", 1),)
FRESH = ReplicaKey(2, "fresh")
HEARTBEAT_US = 3_000_000
SLOW = RaftConfig(election_timeout_us=22_500_000, heartbeat_us=HEARTBEAT_US)


def leader_with_answers(heartbeats: int) -> Replica:
    """Return a leader of three voters, one of which came back with another disk."""
    replica = leader(config=SLOW).step(accepted(1, 1), accepted(2, 1))
    observe = m.Observe(source=FRESH, target=key(0), term=1)
    has_all = m.AppendResponse(source=FRESH, target=key(0), term=1, accepted=True, index=1)
    replica.step(observe, has_all)
    for _ in range(heartbeats):
        replica.wait(HEARTBEAT_US)
        replica.step(alive(1), m.HeartbeatResponse(source=FRESH, target=key(0), term=1))
    assert replica.raft.is_caught_up(FRESH, replica.now_us)
    return replica


def reached(_key: ReplicaKey, endpoint: str, now: Now, then: Then) -> None:
    assert endpoint == "h:1"
    then(None, None, now)


def look(replica: Replica) -> set[ReplicaKey]:
    """Return the voters after the plan was looked at."""
    disks = (key(0), key(1), FRESH)
    records = [
        BrokerRecord(n, b"i", "h", 1, "", AT, 7, directory_id=disk, wants_vote=True)
        for n, disk in disks
    ]
    quorum = Namespace(
        raft=replica.raft, is_leading=True, is_changing=False, leading_term=replica.raft.term,
        when_decided=lambda _place, _then, _now: None,
    )  # fmt: skip
    changes = VoterChanges(
        cast(NodeConfig, Namespace(inter_broker_listener="default")),
        cast(Quorum, quorum),
        cast(Metadata, Namespace(image=Namespace(brokers={one.node_id: one for one in records}))),
        Outbox(NodeMetrics()),
        cast(Reach, Namespace(check=reached)),
    )
    changes.tick(Now(replica.now_us, 0))
    changes.tick(Now(replica.now_us, 0))
    replica.pump()
    return set(replica.raft.voters)


@pytest.mark.parametrize("since_heartbeat_us", [0, 1_000_000, 2_999_999])
def test_a_lost_disk_is_removed_also_between_two_heartbeats(since_heartbeat_us: int) -> None:
    replica = leader_with_answers(heartbeats=8).wait(since_heartbeat_us)
    assert look(replica) == {key(0), key(1)}


def test_a_voter_that_lacked_some_heartbeats_only_is_not_silent() -> None:
    assert look(leader_with_answers(heartbeats=7)) == {key(0), key(1), key(2)}
