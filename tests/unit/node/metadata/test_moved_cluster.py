"""A cluster all of whose addresses have changed at once: none is in the metadata."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from quiverlog.addresses import Address
from tests.support.members import Members
from tests.unit.node.metadata.test_voters import all_equal, grow
from tests.unit.node.test_joining import create

NEW = {node_id: Address(f"new-{node_id}", 9292) for node_id in (1, 2, 3)}


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """Three voters with a topic."""
    found = Members(tmp_path)
    assert create(found.add(1), "t") == 0
    grow(found, 2, 3)
    found.run_until(lambda: all_equal(found))
    return found


def move(members: Members, addresses: dict[int, Address]) -> None:
    """All processes end, and begin again elsewhere; each is configured with the new addresses."""
    members.down |= set(members.by_id)
    for node_id, one in members.by_id.items():
        one.config = dataclasses.replace(
            one.config, advertised_host=NEW[node_id].host, moved_controllers=addresses
        )
        one.crash()
    members.down.clear()


def test_no_broker_finds_the_others_where_they_were(members: Members) -> None:
    move(members, {})
    members.run(10_000)
    assert not members.leaders
    assert not any(one.started for one in members.up)


def test_brokers_given_the_new_addresses_elect_a_leader_and_record_them(
    members: Members,
) -> None:
    """Rule 30 of docs/replication-rules.md."""
    move(members, NEW)
    members.run_until(lambda: all(one.started for one in members.up))
    members.run_until(lambda: all_equal(members))
    (leader,) = members.leaders
    assert list(leader.node.broker.metadata.image.topics) == ["t"]
    addresses = {str(address) for address in NEW.values()}
    members.run_until(lambda: set(leader.quorum.raft.voters.values()) == addresses)
    members.run(500)
    move(members, {})  # It is not needed any more.
    members.run_until(lambda: all(one.started for one in members.up))


def test_one_broker_configured_with_the_new_addresses_is_enough(members: Members) -> None:
    """A request names its sender's address, to which the others send from then on."""
    move(members, {})
    members.by_id[2].config = dataclasses.replace(members.by_id[2].config, moved_controllers=NEW)
    members.by_id[2].crash()
    members.run_until(lambda: all(one.started for one in members.up))
