"""CHANGE_VOTERS: one becomes three and five and one again, and no decision is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.raft import messages as r
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.node.metadata.quorum_wire import pack
from quiverlog.node.runtime.admission import Phase
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisteredListener,
)
from quiverlog.wire.voters_messages import ChangeVotersRequest, VoterChange
from tests.support.members import CLUSTER, Member, Members
from tests.support.node import SCHEMA
from tests.unit.node.test_joining import create, lines

ADD, REMOVE = VoterChange.ADD, VoterChange.REMOVE


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def begin(node: Member, change: VoterChange, node_id: int, directory: str = "") -> int:
    """Ask; returns the correlation id."""
    node.call(m.HelloRequest())
    return node.request(
        ChangeVotersRequest(change=int(change), node_id=node_id, directory_id=directory)
    )


def change(members: Members, change: VoterChange, node_id: int, directory: str = "") -> Any:
    """Return what the leader answers."""
    (leader,) = members.leaders
    asked = begin(leader, change, node_id, directory)
    members.run_until(lambda: leader.answer(asked) is not None)
    answer = leader.answer(asked)
    assert answer is not None
    return answer[0]


def grow(members: Members, *node_ids: int) -> None:
    for node_id in node_ids:
        seeds = tuple(one for one in (1, 2, 3) if one <= max(1, node_id - 1))
        joined = members.add(node_id, seeds=seeds)
        members.run_until(lambda joined=joined: joined.started)  # type: ignore[misc]
        assert change(members, ADD, node_id).error_code == 0


def voters(node: Member) -> set[int]:
    return {key.node_id for key in node.quorum.raft.voters}


def all_equal(members: Members) -> bool:
    versions = {one.version for one in members.up}
    topics = {tuple(one.node.broker.metadata.image.topics) for one in members.up}
    return len(versions) == len(topics) == 1


def test_one_becomes_three_and_five_and_keeps_all(members: Members) -> None:
    first = members.add(1)
    assert create(first, "t0") == 0
    grow(members, 2, 3)
    assert create_in(members, "t1") == 0
    grow(members, 4, 5)
    members.run_until(lambda: all_equal(members))
    assert voters(first) == {1, 2, 3, 4, 5}
    assert all(voters(one) == {1, 2, 3, 4, 5} for one in members.up)
    endpoints = {str(one.config.endpoint) for one in members.up}
    assert set(first.quorum.raft.voters.values()) == endpoints, "the founder has written its own"


def begin_creation(node: Member, name: str) -> int:
    new = m.NewTopic(name, serialize_schema(SCHEMA), 1)
    node.call(m.HelloRequest())
    return node.request(m.CreateTopicsRequest(topics=[new]))


def create_in(members: Members, name: str) -> int:
    (leader,) = members.leaders
    asked = begin_creation(leader, name)
    members.run_until(lambda: leader.answer(asked) is not None)
    answer = leader.answer(asked)
    assert answer is not None
    return int(answer[0].topics[0].error_code)


def test_a_new_leader_decides_within_two_seconds_and_the_old_one_catches_up(
    members: Members,
) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    assert create_in(members, "before") == 0
    members.down.add(1)
    took_ms = members.run_until(lambda: bool(members.leaders))
    assert took_ms < 2_000
    assert create_in(members, "after") == 0
    first.crash()
    members.down.clear()
    members.run_until(lambda: first.started and all_equal(members))
    assert list(first.node.broker.metadata.image.topics) == ["before", "after"]
    assert len(members.leaders) == 1


def test_without_a_majority_nothing_is_decided_and_a_start_waits(members: Members) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    members.down |= {2, 3}
    members.run_until(lambda: not members.leaders)
    assert create(first, "lost") == errors.NotController.code
    first.crash()
    members.run(5_000)
    assert first.phase is Phase.JOINING
    members.down.clear()
    members.run_until(lambda: first.started and all_equal(members))


def test_a_leader_that_stops_hands_over_at_once(members: Members) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    first.stop()
    members.down.add(1)
    assert members.run_until(lambda: bool(members.leaders)) < 300


def test_a_leader_removes_itself_and_is_answered(members: Members) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    assert change(members, REMOVE, 1).error_code == 0
    members.run_until(lambda: len(members.leaders) == 1 and members.leaders != [first])
    assert voters(members.leaders[0]) == {2, 3}
    assert create_in(members, "after") == 0
    members.run_until(lambda: all_equal(members))


def test_a_voter_that_the_others_need_is_not_removed(members: Members) -> None:
    """Of three one is silent: with one of the others gone no majority would be left."""
    first = members.add(1, joins_quorum=True)
    for node_id in (2, 3):
        members.add(node_id, seeds=(1,), joins_quorum=True)
    members.run_until(lambda: voters(first) == {1, 2, 3})
    members.down.add(2)
    members.run(5_000)
    assert members.leaders == [first]
    for node_id in (1, 3):
        answer = change(members, REMOVE, node_id)
        assert answer.error_code == errors.InvalidVoterChange.code
        assert "no majority of the remaining voters answers" in answer.error_message
        brokers = first.node.broker.metadata.image.brokers
        assert brokers[node_id].wants_vote, "no vote of those that stay changed"
    assert create_in(members, "goes-on") == 0
    assert change(members, REMOVE, 2).error_code == 0, "the silent one is not needed"
    assert voters(first) == {1, 3}


def test_three_become_one_again(members: Members) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    for node_id in (2, 3):
        assert change(members, REMOVE, node_id).error_code == 0
    members.down |= {2, 3}
    assert create_in(members, "alone") == 0
    first.crash()
    assert first.started, "what its own disk holds is decided"
    assert list(first.node.broker.metadata.image.topics) == ["alone"]


def test_a_wiped_disk_is_another_voter(members: Members, tmp_path: Path) -> None:
    """Rule 30 of docs/replication-rules.md."""
    members.add(1)
    grow(members, 2, 3)
    old = members.by_id[3].key
    members.down.add(3)
    del members.by_id[3]
    members.down.clear()
    members._root = tmp_path / "new-disk"
    wiped = members.add(3, seeds=(1, 2))
    members.run(3_000)
    assert wiped.key != old
    refused = change(members, ADD, 3)
    assert refused.error_code == errors.InvalidVoterChange.code
    assert change(members, REMOVE, 3, old.directory_id).error_code == 0
    members.run_until(lambda: wiped.started)
    assert change(members, ADD, 3, wiped.key.directory_id).error_code == 0
    members.run_until(lambda: voters(wiped) == {1, 2, 3})


def test_refusals_are_typed(members: Members) -> None:
    first, second = members.add(1), members.add(2, seeds=(1,))
    members.run_until(lambda: second.started)
    assert change(members, REMOVE, 1).error_code == errors.InvalidVoterChange.code
    assert change(members, REMOVE, 7).error_code == errors.InvalidVoterChange.code
    assert change(members, ADD, 7).error_code == errors.VoterNotReady.code
    assert change(members, ADD, 2, "another").error_code == errors.VoterNotReady.code
    assert change(members, ADD, 1).error_code == errors.InvalidVoterChange.code
    asked = begin(second, ADD, 2)
    answer = second.answer(asked)
    assert answer is not None
    assert answer[0].error_code == errors.NotController.code
    members.down.add(2)
    members.run(2_000)
    assert change(members, ADD, 2).error_code == errors.VoterNotReady.code, "it is silent"
    assert voters(first) == {1}


def test_a_broker_that_is_no_controller_gets_no_vote(members: Members) -> None:
    members.add(1)
    second = members.add(2, seeds=(1,), roles=("broker",))
    members.run_until(lambda: second.started)
    assert change(members, ADD, 2).error_code == errors.InvalidVoterChange.code


def test_two_changes_at_once_are_one_and_an_error(members: Members) -> None:
    first = members.add(1)
    joined = [members.add(n, seeds=(1,)) for n in (2, 3)]
    members.run_until(lambda: all(one.started for one in joined))
    one, two = begin(first, ADD, 2), begin(first, ADD, 3)
    members.run_until(lambda: first.answer(one) is not None and first.answer(two) is not None)
    codes = [first.answer(asked)[0].error_code for asked in (one, two)]  # type: ignore[index]
    assert codes == [0, errors.VoterChangePending.code]


def test_a_change_whose_leader_loses_its_majority_is_answered(members: Members) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    fourth = members.add(4, seeds=(1,))
    members.run_until(lambda: fourth.started)
    members.down |= {2, 3}
    asked = begin(first, ADD, 4)
    members.run_until(lambda: first.quorum.is_changing)
    members.down |= {4}
    members.run_until(lambda: first.answer(asked) is not None)
    answer = first.answer(asked)
    assert answer is not None
    assert answer[0].error_code == errors.OutcomeUnknown.code


def test_every_broker_reports_the_voters(members: Members) -> None:
    first = members.add(1)
    grow(members, 2)
    third = members.add(3, seeds=(1,))
    members.run_until(lambda: third.started)
    members.run(500)
    found = change(members, VoterChange.NOTHING, 0)
    assert (found.leader_id, found.committed_index) == (1, first.version)
    assert [(one.node_id, one.is_voter) for one in found.replicas] == [
        (1, True), (2, True), (3, False),
    ]  # fmt: skip
    assert {one.last_index for one in found.replicas} == {first.version}
    asked = begin(third, VoterChange.NOTHING, 0)
    answer = third.answer(asked)
    assert answer is not None
    assert answer[0].leader_id == 1
    assert [one.node_id for one in answer[0].replicas] == [1, 2, 3]
    assert lines(first, "voter added")


def test_a_new_voter_gets_a_snapshot_where_the_log_begins_later(members: Members) -> None:
    """Rule 29 of docs/replication-rules.md."""
    first = members.add(1)
    for number in range(5):
        assert create(first, f"t{number}") == 0
    quorum = first.quorum
    quorum._take_snapshot()
    first._perform(first.node._effects(first.now))
    first.run_until_idle()
    assert quorum.log is not None
    assert quorum.log.first_index > 1
    quorum._config = r.RaftConfig(chunk_bytes_max=200)
    quorum.raft._leader._sender._config = quorum._config  # type: ignore[union-attr]
    grow(members, 2)
    second = members.by_id[2]
    assert second.quorum.log is not None
    assert second.quorum.log.snapshot.index > 0
    members.run_until(lambda: all_equal(members))
    assert len(second.node.broker.metadata.image.topics) == 5


def test_a_voter_left_alone_decides_when_it_has_applied_what_was_decided_before(
    members: Members,
) -> None:
    """Seen in a simulated cluster (71000048): a topic was deleted on a view that lacked it."""
    one = members.add(1)
    members.run_until(lambda: one.started)
    grow(members, 2)
    (leader,) = members.leaders
    (other,) = [member for member in members.up if member is not leader]
    begin(leader, REMOVE, leader.key.node_id)
    members.run_until(lambda: voters(other) == {other.key.node_id})
    quorum = other.quorum
    assert quorum.is_alone
    assert quorum.applied_index < quorum.raft.log.last_index, "it has not applied what is committed"
    assert create(other, "early") == errors.NotController.code
    # What it has not applied may fence it (seed 904200073: it led on, and took rows).
    registration = other.node.broker.membership.registration
    a_minute_later = other.now._replace(mono_us=other.now.mono_us + 60_000_000)
    assert not registration.may_lead(a_minute_later), "it has no lease from its own decisions yet"
    members.run_until(lambda: quorum.is_leading)
    assert create(other, "late") == 0
    a_minute_later = other.now._replace(mono_us=other.now.mono_us + 60_000_000)
    assert registration.may_lead(a_minute_later), "no other broker can decide"


# --- voters that were never reached ---------------------------------------------------------------
def speak_as(node: Member, source: r.ReplicaKey, endpoint: str) -> None:
    """Five lines of any client: observe, live and have all, in the name of a replica."""
    raft = node.quorum.raft
    place: Any = {"source": source, "target": node.key, "term": raft.term}
    messages: list[r.Message] = [
        r.Observe(**place),
        r.HeartbeatResponse(**place),
        r.AppendResponse(**place, accepted=True, index=raft.log.last_index),
    ]
    node.call(m.HelloRequest())
    for packed in pack(CLUSTER, messages, endpoint=endpoint):
        assert node.call(packed.request)[0].error_code == 0


def add_phantom(members: Members, source: r.ReplicaKey, endpoint: str) -> Any:
    """Claims to follow at the endpoint, and asks for its vote, until there is an answer."""
    (leader,) = members.leaders
    asked = begin(leader, ADD, source.node_id)
    for _ in range(100):
        speak_as(leader, source, endpoint)
        members.run(20)
        answer = leader.answer(asked)
        if answer is not None and answer[0].error_code != errors.VoterNotReady.code:
            break
        if answer is not None:
            asked = begin(leader, ADD, source.node_id)
    return answer[0] if answer is not None else None


@pytest.mark.parametrize(
    ("node_id", "why"), [(77, "this broker knows no node 77"), (2, "has node 2 at host-2:9292")]
)
def test_an_endpoint_other_than_that_known_here_is_named(
    members: Members, node_id: int, why: str
) -> None:
    first, second = members.add(1), members.add(2, seeds=(1,))
    members.run_until(lambda: second.started)
    errors_found: list[Any] = []
    first.node.broker.membership.reach.check(
        r.ReplicaKey(node_id, "d" * 32),
        "elsewhere:9292",
        first.now,
        lambda _, error, __: errors_found.append(error),
    )
    (error,) = errors_found
    assert why in error.message
    assert f"node {node_id} was not reached at elsewhere:9292" in error.message


@pytest.mark.parametrize(
    ("source", "endpoint", "why"),
    [
        (r.ReplicaKey(9, "d" * 32), "host-9:9292", "cut"),
        (r.ReplicaKey(2, "d" * 32), "host-2:9292", "directory"),
    ],
)
def test_a_replica_not_reached_at_its_address_gets_no_vote(
    members: Members, source: r.ReplicaKey, endpoint: str, why: str
) -> None:
    """A client that spoke in the name of a broker that is not there made it a voter, and the
    quorum of one waited for it for ever. Another disk's name at a real address is no better."""
    first = members.add(1)
    second = members.add(2, seeds=(1,))
    members.run_until(lambda: second.started)
    answer = add_phantom(members, source, endpoint)
    assert voters(first) == {1}
    assert answer is not None
    assert answer.error_code == errors.VoterNotReady.code
    assert why in answer.error_message
    assert create_in(members, "t1") == 0, "it decides as before"
    members.run_until(lambda: change(members, ADD, 2).error_code == 0)
    assert voters(first) == {1, 2}, "the real one gets its vote"


def test_a_replica_that_was_not_reached_does_not_become_a_voter_by_itself(members: Members) -> None:
    """The same with a registration: two live brokers that want a vote would get one, and one of
    them is a client's invention."""
    first = members.add(1, joins_quorum=True)
    second = members.add(2, seeds=(1,), joins_quorum=True)
    members.run_until(lambda: second.started)
    source, listener = r.ReplicaKey(9, "d" * 32), RegisteredListener("default", "host-9", 9292)
    register = RegisterBrokerRequest(
        cluster_id=CLUSTER, node_id=9, incarnation=b"i" * 16, directory_id="d" * 32, host="host-9",
        port=9292, listeners=[listener], wants_vote=True, feature_level_max=FEATURE_LEVEL_MAX,
    )  # fmt: skip
    first.call(m.HelloRequest())
    asked = first.request(register)
    members.run_until(lambda: first.answer(asked) is not None)
    answer = first.answer(asked)
    assert answer is not None
    assert answer[0].error_code == 0
    epoch = answer[0].broker_epoch
    for _ in range(150):
        first.call(
            BrokerHeartbeatRequest(
                cluster_id=CLUSTER, node_id=9, broker_epoch=epoch, metadata_version=first.version
            )
        )
        speak_as(first, source, "host-9:9292")
        members.run(20)
    assert not first.node.broker.metadata.image.brokers[9].fenced
    assert voters(first) == {1}
    assert lines(first, "voters not changed"), "the log has the reason"
    third = members.add(3, seeds=(1,), joins_quorum=True)
    members.run_until(lambda: third.started)
    members.run_until(lambda: voters(first) == {1, 2, 3})
