"""Brokers that register with a controller, over the real bytes: alive, silent, stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.errors import NotController
from quiverlog.node.effects import SendToPeer
from quiverlog.node.registrar import Registrar
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest
from quiverlog.wire.election_messages import ElectLeadersRequest
from quiverlog.wire.quorum_messages import QuorumRequest
from tests.support.members import Member, Members
from tests.support.node import SCHEMA


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """A controller and two brokers that have joined it."""
    found = Members(tmp_path)
    found.add(1)
    for node_id in (2, 3):
        member = found.add(node_id, seeds=(1,))
        found.run_until(lambda member=member: member.started)
    found.run_until(lambda: live(found, 1) == [1, 2, 3])
    return found


def live(members: Members, node_id: int) -> list[int]:
    """Who lives, as this node knows it."""
    image = members.by_id[node_id].node.broker.metadata.image
    return [one.node_id for one in image.live_brokers()]


def may_lead(member: Member) -> bool:
    return member.node.broker.membership.registration.may_lead(member.now)


def test_all_know_who_lives_and_may_lead(members: Members) -> None:
    members.run(500)
    for node_id, member in members.by_id.items():
        assert live(members, node_id) == [1, 2, 3]
        assert may_lead(member)
        assert not member.node.why_fenced


def test_a_broker_that_is_cut_off_stops_leading_before_it_is_fenced(members: Members) -> None:
    """Rule 16 of docs/replication.md."""
    members.run(500)
    two = members.by_id[2]
    members.cut.add(frozenset((1, 2)))
    stopped_ms = members.run_until(lambda: not may_lead(two))
    assert 1_500 <= stopped_ms <= 2_000
    assert live(members, 1) == [1, 2, 3], "it is not fenced yet"
    fenced_ms = members.run_until(lambda: live(members, 1) == [1, 3])
    assert stopped_ms + fenced_ms <= 2_400
    assert not two.node.why_fenced, "as far as it knows"
    members.cut.clear()
    members.run_until(lambda: "does not count on this broker" in two.node.why_fenced)
    assert members.run_until(lambda: may_lead(two)) <= 1_500
    assert [one.node.why_fenced for one in members.up] == ["", "", ""]
    assert live(members, 2) == [1, 2, 3]


@pytest.mark.parametrize("confirmed_ms", [0, 700])
def test_a_session_counts_from_when_the_quorum_has_heard_the_controller(
    members: Members, monkeypatch: pytest.MonkeyPatch, confirmed_ms: int
) -> None:
    """Rule 16 of docs/replication.md: who is elected next counts from then, too."""
    monkeypatch.setattr(Registrar, "_confirmed_ms", lambda _self, _now: confirmed_ms)
    members.run(2_500)
    two = members.by_id[2]
    members.cut.add(frozenset((1, 2)))
    stopped_ms = members.run_until(lambda: not may_lead(two))
    assert 1_550 <= stopped_ms + confirmed_ms <= 2_000


def test_a_broker_that_is_back_may_lead_when_it_has_the_metadata(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 16 of docs/replication.md: until then it does not know that others lead."""
    members.run(500)
    two = members.by_id[2]
    members.cut.add(frozenset((1, 2)))
    members.run_until(lambda: live(members, 1) == [1, 3])
    deliver, held = members._deliver, []

    def hold_back(source: Member, effect: SendToPeer) -> None:
        if effect.peer.node_id == 2 and isinstance(effect.request, QuorumRequest):
            held.append(effect)
        else:
            deliver(source, effect)

    monkeypatch.setattr(members, "_deliver", hold_back)
    members.cut.clear()
    heard_us = two.mono_us
    members.run(3_000)
    heard = two.node.broker.membership.registration.controller_heard
    assert held, "nothing has come of the metadata"
    assert live(members, 2) == [1, 2, 3], "it knows nothing of its fencing"
    assert max(heard.values()) > heard_us + 2_000_000, "its heartbeats are answered"
    assert not may_lead(two)
    assert live(members, 1) == [1, 3]
    monkeypatch.setattr(members, "_deliver", deliver)
    members.run_until(lambda: may_lead(two))
    assert live(members, 2) == [1, 2, 3]


def test_a_broker_that_stops_is_fenced_at_once_and_one_that_is_killed_after_a_session(
    members: Members,
) -> None:
    """Rule 15 of docs/replication.md."""
    members.run(500)
    members.by_id[2].stop()
    members.down.add(2)
    assert members.run_until(lambda: live(members, 1) == [1, 3]) == 0
    members.down.add(3)
    assert 1_500 <= members.run_until(lambda: live(members, 1) == [1]) <= 2_300


def test_a_broker_that_is_started_again_is_another_life(members: Members) -> None:
    image = members.by_id[1].node.broker.metadata.image
    two = members.by_id[2]
    before = image.brokers[2].broker_epoch
    two.crash()
    members.run_until(lambda: two.started and live(members, 1) == [1, 2, 3])
    assert image.brokers[2].broker_epoch > before
    assert image.brokers[2].incarnation == two.node.broker.directory.incarnation


def test_the_controller_asks_nothing_of_itself(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, SendToPeer]] = []
    deliver = members._deliver

    def note(source: Member, effect: SendToPeer) -> None:
        if isinstance(effect.request, BrokerHeartbeatRequest):
            sent.append((source.config.node_id, effect))
        deliver(source, effect)

    monkeypatch.setattr(members, "_deliver", note)
    members.run(4_000)
    senders = [node_id for node_id, _ in sent]
    assert set(senders) == {2, 3}
    assert 18 <= len(senders) <= 24, "five of each in a session"


def test_without_a_controller_nobody_may_lead_and_all_are_back_with_it(members: Members) -> None:
    members.run(500)
    members.down.add(1)
    members.run(2_500)
    assert not may_lead(members.by_id[2])
    members.down.clear()
    members.run_until(lambda: may_lead(members.by_id[2]) and may_lead(members.by_id[3]))


def test_a_broker_that_joins_late_knows_where_those_are_who_came_before(members: Members) -> None:
    members.run(500)
    for node_id, member in members.by_id.items():
        known = member.node.broker.whereabouts.known()
        assert set(known) == {1, 2, 3} - {node_id}


def test_what_only_the_controller_can_do_is_refused_elsewhere_with_its_address(
    members: Members,
) -> None:
    two = members.by_id[2]
    two.call(m.HelloRequest())
    answer, _ = two.call(m.MetadataRequest(topics=[]))
    assert answer.controller_id == 1
    assert [(one.node_id, one.host) for one in answer.brokers] == [
        (1, "host-1"), (2, "host-2"), (3, "host-3"),
    ]  # fmt: skip
    new = m.NewTopic("t", serialize_schema(SCHEMA), 1)
    answers = [
        two.call(m.CreateTopicsRequest(topics=[new]))[0],
        two.call(m.DeleteTopicsRequest(names=["nothing"]))[0],
        two.call(m.AlterTopicRequest(name="nothing", partitions=2))[0],
        two.call(m.InitProducerIdRequest())[0],
        two.call(ElectLeadersRequest(name="nothing"))[0],
    ]
    for answer in answers:
        assert answer.controller == m.BrokerEndpoint(1, "host-1", 9292, "")
        one = answer.topics[0] if hasattr(answer, "topics") else answer
        assert one.error_code == NotController.code
        assert "broker 1 at host-1:9292 decides" in one.error_message
    members.down.add(1)
    members.run(3_000)
    answer = two.call(m.CreateTopicsRequest(topics=[new]))[0]
    (one,) = answer.topics
    assert one.error_code == NotController.code
