"""Brokers that are not the whole quorum: how they join, wait for the metadata, and stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.raft import messages as r
from quiverlog.errors import BrokerShuttingDown, InvalidConfig, NotController
from quiverlog.node.lifecycle import LeftoversJob
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.events import Tick
from quiverlog.wire import messages as m
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, NodeDriver


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def create(node: Member, name: str) -> int:
    """Return the error code of a creation."""
    node.call(m.HelloRequest())
    new = m.NewTopic(name, serialize_schema(SCHEMA), 1)
    response, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    return int(response.topics[0].error_code)


def lines(node: Member, event: str) -> list[dict[str, object]]:
    return [dict(line.fields) for line in node.lines if line.event == event]


def test_a_single_broker_starts_at_once_and_sends_nothing(members: Members) -> None:
    first = members.add(1)
    assert first.started
    assert first.quorum.is_leading
    assert not first.listens
    members.run(5_000)
    assert not members.wire
    assert not members.undelivered
    assert not first.addresses


def test_a_new_directory_with_seeds_waits_and_is_no_quorum(members: Members) -> None:
    second = members.add(2, seeds=(1, 2))
    assert second.phase is Phase.JOINING
    assert second.listens
    members.run(60_000)
    assert not second.started
    assert second.quorum.raft.voters == {}
    assert second.quorum.raft.term == 0
    assert lines(second, "waiting for the metadata of the cluster") == [{"asks": "1@host-1:9292"}]
    second.call(m.HelloRequest())
    answer, _ = second.call(m.MetadataRequest())
    assert answer.error_code == BrokerShuttingDown.code
    assert "starts, and waits for the metadata" in answer.error_message
    assert "stopping" not in answer.error_message


def test_two_brokers_with_one_list_of_seeds_make_no_two_clusters(members: Members) -> None:
    for node_id in (1, 2):
        members.add(node_id, seeds=(1, 2))
    members.run(20_000)
    for one in members.by_id.values():
        assert one.phase is Phase.JOINING
        assert one.quorum.raft.term == 0


def test_seeds_without_another_broker_are_refused_and_change_nothing(members: Members) -> None:
    with pytest.raises(InvalidConfig, match="names no other broker"):
        members.add(1, seeds=(1,))
    with pytest.raises(InvalidConfig, match="names no other broker"):
        members.add(1)
    assert not members.by_id


def test_a_broker_joins_has_the_metadata_and_only_then_serves(members: Members) -> None:
    first = members.add(1)
    assert create(first, "old") == 0
    second = members.add(2, seeds=(1, 2))
    members.run_until(lambda: second.started)
    assert second.phase is Phase.RUNNING
    assert list(second.node.broker.metadata.image.topics) == ["old"]
    assert create(first, "new") == 0
    members.run(200)
    assert list(second.node.broker.metadata.image.topics) == ["old", "new"]
    assert second.version == first.version
    assert create(second, "more") == NotController.code
    assert first.quorum.raft.voters.keys() == {first.key}, "a broker that joins has no vote"
    assert first.addresses == {2: second.config.endpoint}


def test_a_broker_that_joined_starts_again_without_a_seed_that_answers(members: Members) -> None:
    first, second = members.add(1), members.add(2, seeds=(1,))
    members.run_until(lambda: second.started)
    second.stop()
    second.start()
    members.run_until(lambda: second.started)
    assert second.version == first.version


def test_a_stop_while_waiting_leaves_the_directory_as_it_was(members: Members) -> None:
    first, second = members.add(1), members.add(2, seeds=(1,))
    members.run_until(lambda: second.started)
    second.stop()
    members.down.add(1)
    for _ in range(2):
        second.start()
        members.run(3_000)
        assert second.phase is Phase.JOINING
        second.stop()
    members.down.clear()
    second.start()
    members.run_until(lambda: second.started)
    assert lines(second, "started")[-1]["clean"] is True
    assert second.version == first.version


def test_a_directory_that_cannot_be_read_is_tried_again_and_logged_once(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LeftoversJob) -> None:
        raise OSError(5, "planted")

    members.add(1)
    second = members.add(2, seeds=(1,))
    monkeypatch.setattr(LeftoversJob, "run", fail)
    members.run(12_000)
    assert second.phase is Phase.JOINING
    assert lines(second, "the data directory cannot be used") == [{"why": "planted"}]
    monkeypatch.undo()
    members.run_until(lambda: second.started)


def test_another_cluster_is_not_listened_to(members: Members) -> None:
    members.add(1, cluster_id="another")
    second = members.add(2, seeds=(1,))
    members.run(5_000)
    assert second.phase is Phase.JOINING


def test_a_stranger_deposes_no_leader(members: Members) -> None:
    first, second = members.add(1), members.add(2, seeds=(1,))
    members.run_until(lambda: second.started)
    term = first.quorum.raft.term
    stranger = r.ReplicaKey(9, "x")
    for node in (first, second):
        index = node.quorum.raft.log.last_index
        vote = r.Vote(
            source=stranger,
            target=node.key,
            term=term + 5,
            last_index=index + 9,
            last_term=term + 5,
        )
        beat = r.Heartbeat(source=stranger, target=node.key, term=term + 5, commit=0)
        for message in (vote, beat):
            node.quorum.step(message, node.now)
            members.run(50)
            assert node.quorum.raft.term == term
    assert first.quorum.is_leading
    assert create(first, "still") == 0


def test_decisions_that_a_stop_ends_are_no_failure_of_the_disk(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    node.hold_jobs = True
    create = m.NewTopic("t", serialize_schema(SCHEMA), 1)
    node.request(m.CreateTopicsRequest(topics=[create]))
    decisions = node.node.broker.metadata
    assert not decisions.idle
    decisions.interrupted(BrokerShuttingDown(), node.now)
    node.send(Tick())
    assert not [line.event for line in node.lines if line.level == "error"]


@pytest.mark.parametrize("is_wiped", [False, True])
def test_a_leader_that_no_list_names_is_found(members: Members, *, is_wiped: bool) -> None:
    """The brokers on the list follow it, and answered nothing: a broker with an emptied disk waited
    for ever while the leader was not on its list."""
    first = members.add(1, joins_quorum=True)
    for node_id in (2, 3):
        one = members.add(node_id, seeds=(1,), joins_quorum=True)
        members.run_until(lambda one=one: one.started)  # type: ignore[misc]
    members.run_until(lambda: all(len(one.quorum.raft.voters) == 3 for one in members.up))
    assert members.leaders == [first]
    node_id = 4
    if is_wiped:
        node_id = 3
        members.down.add(3)
        members.run(3_000)
        shutil.rmtree(members.by_id[3].config.data_dir)
        members.down.clear()
    joined = members.add(node_id, seeds=(2,), joins_quorum=True)
    members.run_until(lambda: joined.started, 15_000)
    members.run_until(lambda: not first.node.broker.metadata.image.brokers[node_id].fenced)
    assert joined.quorum.raft.leader == first.key
