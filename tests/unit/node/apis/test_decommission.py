"""DECOMMISSION_BROKER over whole nodes: what is answered, and what the others make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import BrokerAlive, InvalidRequest, NotController, UnknownBroker
from quiverlog.wire import messages as m
from quiverlog.wire.decommission_messages import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DecommissionStep,
)
from tests.support.members import Member, Members
from tests.unit.node.metadata.test_voters import REMOVE, change, voters
from tests.unit.node.test_joining import lines

NOTHING, BEGIN, CANCEL, UNREGISTER = DecommissionStep


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """Four brokers; the first three vote, and the first of them decides."""
    found = Members(tmp_path)
    found.add(1, joins_quorum=True)
    for node_id in (2, 3, 4):
        member = found.add(node_id, seeds=(1,), joins_quorum=True)
        found.run_until(lambda member=member: member.started)
    found.run_until(lambda: len(voters(found.by_id[1])) == 3)
    for member in found.by_id.values():
        member.call(m.HelloRequest())
    return found


def ask(members: Members, step: int, node_id: int, *, at: int = 1) -> Any:
    member = members.by_id[at]
    asked = member.request(DecommissionBrokerRequest(step=step, node_id=node_id))
    members.run_until(lambda: member.answer(asked) is not None)
    answer = member.answer(asked)
    assert answer is not None
    assert isinstance(answer[0], DecommissionBrokerResponse)
    return answer[0]


def image_at(member: Member) -> Any:
    return member.node.broker.metadata.image


def test_a_broker_leaves_and_all_drop_it(members: Members) -> None:
    one, four = members.by_id[1], members.by_id[4]
    begun = ask(members, BEGIN, 4)
    assert (begun.error_code, begun.is_registered, begun.is_decommissioning) == (0, True, True)
    assert (begun.is_fenced, begun.is_voter, begun.replica_count) == (False, False, 0)
    members.run_until(lambda: image_at(four).brokers[4].decommissioning)
    refused = ask(members, UNREGISTER, 4)
    assert refused.error_code == BrokerAlive.code
    four.stop()
    members.run_until(lambda: image_at(one).brokers[4].fenced)
    gone = ask(members, UNREGISTER, 4)
    assert (gone.error_code, gone.is_registered) == (0, False)
    assert lines(one, "broker unregistered")
    assert lines(one, "broker is decommissioned")
    for node_id in (2, 3):
        other = members.by_id[node_id]
        members.run_until(lambda other=other: 4 not in image_at(other).brokers)
        assert 4 not in other.node.broker.broker_addresses._registered
    assert ask(members, UNREGISTER, 4).error_code == UnknownBroker.code
    assert ask(members, NOTHING, 4).is_registered is False


def test_a_broker_unregistered_while_it_is_away_stays_out_until_it_is_started(
    members: Members,
) -> None:
    one, four = members.by_id[1], members.by_id[4]
    members.cut.add(frozenset((1, 4)))
    members.run_until(lambda: image_at(one).brokers[4].fenced)
    assert ask(members, UNREGISTER, 4).error_code == 0
    members.cut.clear()
    members.run_until(lambda: bool(lines(four, "the cluster has unregistered this broker")))
    members.run(3_000)
    assert 4 not in image_at(one).brokers
    assert four.node.why_fenced == "fenced: the cluster has unregistered this broker"
    four.stop()
    four.restart()
    members.run_until(lambda: 4 in image_at(one).brokers and not image_at(one).brokers[4].fenced)


def test_a_voter_that_leaves_gets_its_vote_back_when_that_is_called_off(members: Members) -> None:
    one = members.by_id[1]
    assert ask(members, BEGIN, 3).is_voter
    assert change(members, REMOVE, 3).error_code == 0
    members.run(3_000)
    assert voters(one) == {1, 2, 4}, "another takes its place"
    assert not ask(members, CANCEL, 3).is_decommissioning
    members.run(1_000)
    assert image_at(one).brokers[3].wants_vote, "as soon as there is a place"


def test_a_broker_that_is_not_the_controller_names_it(members: Members) -> None:
    answer = ask(members, BEGIN, 4, at=2)
    assert answer.error_code == NotController.code
    assert answer.controller.node_id == 1
    assert not image_at(members.by_id[1]).brokers[4].decommissioning


def test_a_step_that_does_not_exist(members: Members) -> None:
    assert ask(members, len(DecommissionStep), 4).error_code == InvalidRequest.code
