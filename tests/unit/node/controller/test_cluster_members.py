"""Brokers that register with a controller, over the real bytes: alive, silent, stopped."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.errors import NotController
from quiverlog.limits import BROKER_DISPLACED_MS_MAX, FEATURE_LEVEL_MAX
from quiverlog.node.controller.registrar import Registrar
from quiverlog.node.runtime.effects import SendToPeer
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisteredListener,
)
from quiverlog.wire.election_messages import ElectLeadersRequest
from quiverlog.wire.quorum_messages import QuorumRequest
from tests.support.members import CLUSTER, Member, Members
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
    """The live brokers in this node's metadata."""
    image = members.by_id[node_id].node.broker.metadata.image
    return [one.node_id for one in image.live_brokers()]


def may_lead(member: Member) -> bool:
    return member.node.broker.membership.registration.may_lead(member.now)


def test_all_brokers_have_the_live_brokers_and_may_lead(members: Members) -> None:
    members.run(500)
    for node_id, member in members.by_id.items():
        assert live(members, node_id) == [1, 2, 3]
        assert may_lead(member)
        assert not member.node.why_fenced


def test_a_broker_that_is_cut_off_stops_leading_before_it_is_fenced(members: Members) -> None:
    """Rule 16 of docs/replication-rules.md."""
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
def test_a_session_counts_from_the_last_contact_of_the_quorum_with_the_controller(
    members: Members, monkeypatch: pytest.MonkeyPatch, confirmed_ms: int
) -> None:
    """Rule 16 of docs/replication-rules.md: the next controller counts from then, too."""
    monkeypatch.setattr(Registrar, "_confirmed_ms", lambda _self, _now: confirmed_ms)
    members.run(2_500)
    two = members.by_id[2]
    members.cut.add(frozenset((1, 2)))
    stopped_ms = members.run_until(lambda: not may_lead(two))
    assert 1_550 <= stopped_ms + confirmed_ms <= 2_000


def test_a_broker_that_is_back_may_lead_when_it_has_the_metadata(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 16 of docs/replication-rules.md: until then it lacks the metadata of other leaders."""
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
    contact_us = two.mono_us
    members.run(3_000)
    contacts = two.node.broker.membership.registration.controller_contact_us
    assert held, "nothing has come of the metadata"
    assert live(members, 2) == [1, 2, 3], "it knows nothing of its fencing"
    assert max(contacts.values()) > contact_us + 2_000_000, "its heartbeats are answered"
    assert not may_lead(two)
    assert live(members, 1) == [1, 3]
    monkeypatch.setattr(members, "_deliver", deliver)
    members.run_until(lambda: may_lead(two))
    assert live(members, 2) == [1, 2, 3]


def test_a_broker_that_stops_is_fenced_at_once_and_one_that_is_killed_after_a_session(
    members: Members,
) -> None:
    """Rule 15 of docs/replication-rules.md."""
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


def test_without_a_controller_no_broker_may_lead_and_all_are_back_with_it(members: Members) -> None:
    members.run(500)
    members.down.add(1)
    members.run(2_500)
    assert not may_lead(members.by_id[2])
    members.down.clear()
    members.run_until(lambda: may_lead(members.by_id[2]) and may_lead(members.by_id[3]))


def test_a_broker_that_joins_late_has_the_addresses_of_earlier_ones(members: Members) -> None:
    members.run(500)
    for node_id, member in members.by_id.items():
        known = member.node.broker.broker_addresses.known()
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
        assert "broker 1 at host-1:9292 is the controller" in one.error_message
    members.down.add(1)
    members.run(3_000)
    answer = two.call(m.CreateTopicsRequest(topics=[new]))[0]
    (one,) = answer.topics
    assert one.error_code == NotController.code


# --- others that speak in a broker's name ---------------------------------------------------------
def record(members: Members, node_id: int) -> BrokerRecord:
    """A broker in the controller's metadata."""
    return members.by_id[1].node.broker.metadata.image.brokers[node_id]


def take_the_place_of(members: Members, node_id: int, directory: str = "") -> m.Response:
    """A client registers under a node id, at its address, with its directory if no other is given.

    At another address it would be refused: the broker lives."""
    first, host = members.by_id[1], f"host-{node_id}"
    request = RegisterBrokerRequest(
        cluster_id=CLUSTER, node_id=node_id, incarnation=b"stranger's life!",
        directory_id=directory or record(members, node_id).directory_id, host=host, port=9292,
        listeners=[RegisteredListener("default", host, 9292)],
        feature_level_max=FEATURE_LEVEL_MAX,
    )  # fmt: skip
    first.call(m.HelloRequest())
    asked = first.request(request)
    members.run_until(lambda: first.answer(asked) is not None)
    answer = first.answer(asked)
    assert answer is not None
    response: m.Response = answer[0]
    return response


def wants_to_stop(members: Members, node_id: int) -> None:
    first = members.by_id[1]
    first.call(m.HelloRequest())
    beat = BrokerHeartbeatRequest(
        cluster_id=CLUSTER, node_id=node_id, broker_epoch=record(members, node_id).broker_epoch,
        metadata_version=first.version, wants_to_stop=True,
    )  # fmt: skip
    assert first.call(beat)[0].error_code == 0


def is_well(members: Members, node_id: int) -> bool:
    member, known = members.by_id[node_id], record(members, node_id)
    is_own = known.incarnation == member.node.broker.directory.incarnation
    return is_own and not known.fenced and not known.in_shutdown and may_lead(member)


def test_a_broker_that_is_displaced_registers_again_after_a_session(members: Members) -> None:
    """One REGISTER_BROKER in its name, or a copy of its disk started for a second, kept it fenced
    until an operator restarted it."""
    members.run(500)
    assert take_the_place_of(members, 2).error_code == 0
    members.run_until(lambda: not is_well(members, 2))
    back_ms = members.run_until(lambda: is_well(members, 2))
    assert 1_500 <= back_ms <= 4_000
    (line,) = [one for one in members.by_id[2].lines if "another process" in one.event]
    assert line.level == "error"
    assert line.fields["at"] == "host-2:9292"
    assert line.fields["other_at"] == "host-2:9292"
    metrics = members.by_id[2].metrics
    assert metrics.displaced == {("host-2:9292", "host-2:9292"): 1}
    members.run(1_000)
    assert members.by_id[2].node.why_fenced == ""


def test_a_broker_that_is_displaced_again_and_again_waits_longer_and_longer(
    members: Members,
) -> None:
    """Two processes with one identity do not take each other's place at full speed."""
    members.run(500)
    moments = []
    for _ in range(1_200):
        if record(members, 2).incarnation != b"stranger's life!":
            moments.append(members.by_id[1].mono_us)
            take_the_place_of(members, 2)
        members.run(100)
    gaps_s = [(after - before) / 1e6 for before, after in pairwise(moments)]
    assert 4 <= len(gaps_s) <= 7, gaps_s
    assert all(
        after >= before * 1.5 or after >= BROKER_DISPLACED_MS_MAX / 1000
        for before, after in pairwise(gaps_s)
    ), gaps_s
    (times,) = members.by_id[2].metrics.displaced.values()
    assert times == len(moments), "each is counted"
    assert max(gaps_s) <= BROKER_DISPLACED_MS_MAX / 1000 + 1
    back_ms = members.run_until(lambda: is_well(members, 2), BROKER_DISPLACED_MS_MAX + 1_000)
    assert back_ms > 0
    members.run(2 * BROKER_DISPLACED_MS_MAX + 1_000)
    take_the_place_of(members, 2)
    members.run_until(lambda: not is_well(members, 2))
    assert members.run_until(lambda: is_well(members, 2)) <= 4_000, "it was undisturbed for long"


@pytest.mark.parametrize("node_id", [1, 2])
def test_a_broker_that_is_held_for_stopping_and_does_not_want_to_is_live_again(
    members: Members, node_id: int
) -> None:
    """Heartbeats in its name that want to stop kept it fenced until an operator restarted it; the
    controller's own broker, too."""
    members.run(500)
    for _ in range(20):
        wants_to_stop(members, node_id)
        members.run(20)
    members.run_until(lambda: not is_well(members, node_id))
    members.run_until(lambda: is_well(members, node_id), 6_000)
    assert any("held for stopping" in one.event for one in members.by_id[node_id].lines)
    members.run(1_000)
    assert members.by_id[node_id].node.why_fenced == ""


def test_a_broker_that_wants_to_stop_is_not_held_against_its_will(members: Members) -> None:
    members.run(500)
    two = members.by_id[2]
    two.stop()
    assert not [one for one in two.lines if "held for stopping" in one.event]
    members.run(4_000)
    assert record(members, 2).fenced


def test_a_disk_that_was_replaced_does_not_take_its_node_id_back(members: Members) -> None:
    """The old disk took the id as soon as the new one was silent for a session, and kept it out."""
    members.run(500)
    members.cut.add(frozenset((1, 2)))
    members.run_until(lambda: live(members, 1) == [1, 3])
    assert take_the_place_of(members, 2, directory="another disk").error_code == 0
    epoch = record(members, 2).broker_epoch
    members.cut.clear()
    first = members.by_id[1]
    for _ in range(40):
        beat = BrokerHeartbeatRequest(
            cluster_id=CLUSTER, node_id=2, broker_epoch=epoch, metadata_version=first.version
        )
        assert first.call(beat)[0].error_code == 0
        members.run(200)
    assert record(members, 2).directory_id == "another disk"
    assert live(members, 1) == [1, 2, 3]
    members.run(2 * BROKER_DISPLACED_MS_MAX)
    assert live(members, 1) == [1, 3], "the new disk is silent, and the old one does not register"
    assert record(members, 2).directory_id == "another disk"
    two = members.by_id[2]
    (line,) = [one for one in two.lines if "another disk" in one.event]
    assert line.level == "error"
    assert line.fields["other_at"] == "host-2:9292"
    assert "stop this process" in str(line.fields["remedy"])
    assert two.metrics.displaced == {("host-2:9292", "host-2:9292"): 1}
    assert "another disk is registered" in two.node.why_fenced
    assert not may_lead(two)
    assert take_the_place_of(members, 2, "another disk").error_code == 0, "it is let in again"
