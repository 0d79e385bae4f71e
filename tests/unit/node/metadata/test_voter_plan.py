"""Voters that change by themselves: the plan, and nodes that carry it out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.node.metadata.voters import Kind, Planned, plan
from tests.support.members import Member, Members
from tests.unit.node.metadata.test_voters import ADD, REMOVE, all_equal, change, create_in, voters
from tests.unit.node.test_joining import create, lines

LISTENER = "default"


def replica(node_id: int, disk: str = "") -> ReplicaKey:
    return ReplicaKey(node_id, disk or f"disk-{node_id}")


def at(node_id: int) -> str:
    return f"host-{node_id}:9292"


def voting(*node_ids: int) -> dict[ReplicaKey, str]:
    return {replica(n): at(n) for n in node_ids}


def broker(node_id: int, disk: str = "", *, host: str = "", **fields: bool) -> BrokerRecord:
    where = (LISTENER, host or f"host-{node_id}", 9292)
    record = {"wants_vote": True, **fields}
    key = replica(node_id, disk)
    return BrokerRecord(
        node_id, b"i", "h", 1, "", (where,), 7, directory_id=key.directory_id, **record
    )


def planned(of: dict[ReplicaKey, str], *brokers: BrokerRecord) -> Planned | None:
    return plan(replica(1), of, {one.node_id: one for one in brokers}, LISTENER)


# --- the plan -----------------------------------------------------------------------------------
def test_two_are_added_where_the_number_is_odd_and_one_where_it_is_even() -> None:
    one, two, three = broker(1), broker(2), broker(3)
    assert planned(voting(1), one) is None
    assert planned(voting(1), one, two) is None, "two voters are worse than one"
    both = (replica(2), replica(3))
    assert planned(voting(1), one, two, three) == Planned(Kind.ADD, replica(2), at(2), both)
    second = planned(voting(1, 2), one, two, three)
    assert second == Planned(Kind.ADD, replica(3), at(3), both[1:])
    assert planned(voting(1, 2, 3), one, two, three, broker(4)) is None


def test_there_are_five_at_most() -> None:
    all_of_them = [broker(n) for n in range(1, 8)]
    assert planned(voting(1, 2, 3, 4, 5), *all_of_them) is None
    assert planned(voting(1, 2, 3, 4, 5, 6), *all_of_them) is None
    fifth = planned(voting(1, 2, 3, 4), *all_of_them)
    assert fifth is not None
    assert fifth.key == replica(5)


@pytest.mark.parametrize("why", ["fenced", "in_shutdown", "no wish", "no address", "no disk"])
def test_a_broker_that_cannot_or_will_not_vote_is_not_added(why: str) -> None:
    other = {
        "fenced": broker(3, fenced=True),
        "in_shutdown": broker(3, in_shutdown=True),
        "no wish": broker(3, wants_vote=False),
        "no address": BrokerRecord(3, b"i", directory_id="disk-3", wants_vote=True),
        "no disk": BrokerRecord(3, b"i", listeners=((LISTENER, "h", 1),), wants_vote=True),
    }[why]
    assert planned(voting(1), broker(1), broker(2), other) is None


def test_a_voter_whose_disk_is_another_now_goes_first() -> None:
    old, new = replica(3), replica(3, "new")
    brokers = [broker(1), broker(2), broker(3, "new")]
    assert planned(voting(1, 2, 3), *brokers) == Planned(Kind.REMOVE, old, follow=(new,))
    assert planned(voting(1, 2), *brokers) == Planned(Kind.ADD, new, at(3), (new,))
    unwilling = broker(3, "new", wants_vote=False)
    assert planned(voting(1, 2, 3), broker(1), broker(2), unwilling) is None


def test_a_voter_at_another_address_is_moved_when_nothing_else_is_to_be_done() -> None:
    moved = broker(2, host="elsewhere")
    found = planned(voting(1, 2, 3), broker(1), moved, broker(3))
    assert found == Planned(Kind.MOVE, replica(2), "elsewhere:9292")
    assert planned(voting(1), broker(1, host="elsewhere")) is None, "no other voter needs it"
    found = planned(voting(1, 2), broker(1), moved, broker(3))
    assert found is not None
    assert found.kind is Kind.ADD


# --- nodes --------------------------------------------------------------------------------------
@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def add(members: Members, node_id: int, *seeds: int, **config: bool) -> Member:
    return members.add(node_id, seeds=seeds, **{"joins_quorum": True, **config})


def three(members: Members) -> Member:
    first = add(members, 1)
    add(members, 2, 1)
    add(members, 3, 1)
    members.run_until(lambda: voters(first) == {1, 2, 3} and all_equal(members))
    return first


def test_three_brokers_survive_the_loss_of_the_first_without_a_command(members: Members) -> None:
    first = three(members)
    assert create_in(members, "before") == 0
    assert [line["node"] for line in lines(first, "voter added")] == [2, 3]
    members.down.add(1)
    members.run_until(lambda: bool(members.leaders))
    assert create_in(members, "after") == 0


def test_a_single_second_broker_stays_without_a_vote(members: Members) -> None:
    first, second = add(members, 1), add(members, 2, 1)
    members.run_until(lambda: second.started)
    members.run(3_000)
    assert voters(first) == {1}
    members.down.add(2)
    members.run(3_000)
    assert create(first, "alone") == 0


def test_a_broker_configured_not_to_join_waits_for_the_command(members: Members) -> None:
    first = add(members, 1)
    for node_id in (2, 3):
        add(members, node_id, 1, joins_quorum=False)
    members.run_until(lambda: all(one.started for one in members.up))
    members.run(3_000)
    assert voters(first) == {1}


def test_five_join_and_two_may_be_lost(members: Members) -> None:
    first = three(members)
    fourth = add(members, 4, 1)
    members.run_until(lambda: fourth.started)
    members.run(2_000)
    assert voters(first) == {1, 2, 3}, "four voters survive no more than three"
    add(members, 5, 1)
    members.run_until(lambda: voters(first) == {1, 2, 3, 4, 5})
    sixth, seventh = add(members, 6, 1), add(members, 7, 1)
    members.run_until(lambda: sixth.started and seventh.started)
    members.run(2_000)
    assert voters(first) == {1, 2, 3, 4, 5}
    members.down |= {1, 2}
    members.run_until(lambda: bool(members.leaders))
    assert create_in(members, "after") == 0


def test_a_wiped_disk_takes_the_place_of_the_old_one(members: Members, tmp_path: Path) -> None:
    first = three(members)
    old = members.by_id[3].key
    members.down.add(3)
    members.run(3_000)
    assert old in first.quorum.raft.voters, "a voter that is only away keeps its vote"
    del members.by_id[3]
    members.down.clear()
    members._root = tmp_path / "new-disk"
    wiped = add(members, 3, 1, 2)
    members.run_until(lambda: wiped.key in first.quorum.raft.voters)
    assert old not in first.quorum.raft.voters
    members.run_until(lambda: voters(wiped) == {1, 2, 3})
    events = [line.event for line in first.lines if line.event.startswith("voter")]
    assert events[-2:] == ["voter removed", "voter added"]


def test_a_voter_is_not_removed_while_its_node_is_only_away(members: Members) -> None:
    first = three(members)
    members.down.add(3)
    members.run(20_000)
    assert voters(first) == {1, 2, 3}


def test_a_voter_removed_by_command_comes_back_with_its_next_start_only(members: Members) -> None:
    first = three(members)
    assert change(members, REMOVE, 3).error_code == 0
    members.run(3_000)
    assert voters(first) == {1, 2}
    third = members.by_id[3]
    third.crash()
    members.run_until(lambda: voters(first) == {1, 2, 3})


def test_a_command_and_a_change_by_itself_do_not_meet(members: Members) -> None:
    first = add(members, 1)
    third = [add(members, node_id, 1) for node_id in (2, 3)][-1]
    members.run_until(lambda: third.started)
    refused = change(members, ADD, 3)
    assert refused.error_code in (0, errors.VoterChangePending.code, errors.InvalidVoterChange.code)
    members.run_until(lambda: voters(first) == {1, 2, 3})
    assert first.quorum.is_leading


def test_a_voter_that_registers_elsewhere_is_moved(members: Members) -> None:
    first = three(members)
    third = members.by_id[3]
    old = dict(first.quorum.raft.voters)
    third.config = dataclasses.replace(third.config, advertised_host="moved-3")
    third.crash()
    members.run_until(lambda: first.quorum.raft.voters[third.key] == "moved-3:9292")
    assert {key: old[key] for key in old if key != third.key}.items() <= dict(
        first.quorum.raft.voters
    ).items()
