"""The voters: when a set counts, how it changes, and which replicas may be voters."""

from __future__ import annotations

import msgspec
import pytest

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.membership import pack_voters, unpack_voters
from quiverlog.core.raft.messages import ProposalRefused, Refusal, ReplicaKey, SnapshotMeta
from quiverlog.limits import QUORUM_VOTERS_MAX
from tests.support.raft import (
    Replica,
    accepted,
    alive,
    append,
    entries,
    grant,
    key,
    leader,
    refused,
    sent,
    voters,
    voters_entry,
)


def observe(source: ReplicaKey, term: int = 0) -> m.Observe:
    return m.Observe(source=source, target=key(0), term=term)


def ready_leader(*members: int) -> Replica:
    """Leads with an entry of its own term committed."""
    replica = leader(members=voters(*members))
    replica.step(*[accepted(node, 1) for node in members if node])
    assert replica.committed == 1
    replica.take()
    return replica


def change(replica: Replica, action: str, node: int) -> Refusal | None:
    """Propose a change; the reason if it is refused."""
    try:
        if action == "add":
            replica.raft.add_voter(key(node), f"node{node}", replica.now_us)
        else:
            replica.raft.remove_voter(key(node), replica.now_us)
    except ProposalRefused as refused:
        return refused.refusal
    replica.pump()
    return None


def caught_up(replica: Replica, node: int) -> None:
    """An observer comes and has the whole log."""
    replica.step(observe(key(node)), accepted(node, replica.raft.log.last_index))


# --- changing ------------------------------------------------------------------------------------
def test_a_new_voter_counts_as_soon_as_the_change_is_in_the_log() -> None:
    replica = ready_leader(0, 1, 2)
    caught_up(replica, 3)
    assert change(replica, "add", 3) is None
    assert set(replica.raft.voters) == {key(0), key(1), key(2), key(3)}
    replica.settle().step(accepted(1, 2))
    assert replica.committed == 1, "two of four are no majority"
    replica.step(accepted(3, 2))
    assert replica.committed == 2


def test_a_removed_voter_does_not_count_any_more() -> None:
    replica = ready_leader(0, 1, 2)
    assert change(replica, "remove", 2) is None
    replica.settle().step(accepted(2, 2))
    assert replica.committed == 1
    assert replica.step(accepted(1, 2)).committed == 2


def test_one_change_at_a_time() -> None:
    """Rule 30 of docs/replication-rules.md."""
    replica = ready_leader(0, 1, 2)
    caught_up(replica, 3)
    assert change(replica, "add", 3) is None
    assert change(replica, "remove", 2) is Refusal.CHANGE_PENDING
    replica.settle().step(accepted(1, 2), accepted(3, 2))
    assert change(replica, "remove", 2) is None


def test_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    """Ongaro's correction of the thesis, 2015."""
    replica = Replica(0, stored=entries(1, [1]), term=1).win()
    replica.step(accepted(1, 1, term=2))
    assert change(replica, "remove", 2) is Refusal.NOTHING_COMMITTED_YET
    replica.step(accepted(1, 2, term=2))
    assert change(replica, "remove", 2) is None


def test_only_a_replica_that_has_caught_up_becomes_a_voter() -> None:
    replica = ready_leader(0, 1, 2)
    assert change(replica, "add", 3) is Refusal.NOT_CAUGHT_UP, "no leader has it"
    replica.step(observe(key(3)))
    assert change(replica, "add", 3) is Refusal.NOT_CAUGHT_UP, "it has nothing"
    replica.step(accepted(3, 1)).propose(b"a", b"b", b"c").settle()
    assert change(replica, "add", 3) is Refusal.NOT_CAUGHT_UP, "three behind, two are allowed"
    replica.step(accepted(3, 2))
    assert change(replica, "add", 3) is None


def test_a_silent_replica_does_not_become_a_voter() -> None:
    replica = ready_leader(0, 1, 2)
    caught_up(replica, 3)
    for _ in range(10):
        replica.wait(100).step(alive(1), alive(2))
    assert change(replica, "add", 3) is Refusal.NOT_CAUGHT_UP


def test_a_voter_is_silent_after_the_election_timeout_while_a_majority_answers() -> None:
    replica = ready_leader(0, 1, 2)
    for _ in range(9):
        replica.wait(100).step(alive(1))
    assert not replica.raft.is_silent(key(2), replica.now_us)
    replica.wait(100)
    assert replica.raft.is_silent(key(2), replica.now_us)
    assert not replica.raft.is_silent(key(1), replica.now_us)
    replica.wait(899)
    assert replica.raft.role is Role.LEADER
    assert not replica.raft.is_silent(key(1), replica.now_us), "its next heartbeat may be late"
    replica.wait(1)
    assert replica.raft.role is Role.FOLLOWER
    assert not replica.raft.is_silent(key(2), replica.now_us), "a follower counts no contacts"


def test_another_disk_of_a_voter_is_added_when_the_old_one_is_removed() -> None:
    """KIP-853: a wiped disk is another voter."""
    replica = ready_leader(0, 1, 2)
    fresh = ReplicaKey(2, "fresh")
    answer = m.AppendResponse(source=fresh, target=key(0), term=1, accepted=True, index=2)
    replica.step(observe(fresh))
    with pytest.raises(ProposalRefused) as raised:
        replica.raft.add_voter(fresh, "node2", replica.now_us)
    assert raised.value.refusal is Refusal.ALREADY_VOTER
    assert change(replica, "remove", 2) is None
    replica.settle().step(accepted(1, 2), answer)
    replica.raft.add_voter(fresh, "node2", replica.now_us)
    replica.pump()
    assert set(replica.raft.voters) == {key(0), key(1), fresh}


def test_acknowledgements_of_another_disk_do_not_count() -> None:
    replica = leader()
    fresh = ReplicaKey(1, "fresh")
    answer = m.AppendResponse(source=fresh, target=key(0), term=1, accepted=True, index=1)
    assert replica.step(observe(fresh), answer).committed == 0


def test_an_observer_with_an_earlier_state_of_its_disk_gets_what_it_lacks() -> None:
    """Without a vote: nothing rests on what was acknowledged before."""
    replica = ready_leader(0, 1, 2)
    caught_up(replica, 3)
    replica.propose(b"a", b"b", b"c").settle().step(accepted(3, 4))
    replica.take()
    replica.step(observe(key(3)))
    probes = [one for one in replica.take() if isinstance(one, m.Append) and one.target == key(3)]
    assert [(one.prev_index, one.entries) for one in probes] == [(4, ())]
    assert change(replica, "add", 3) is Refusal.NOT_CAUGHT_UP
    replica.step(refused(4, 1, source=3))
    sent_again = [one for one in replica.take() if isinstance(one, m.Append)]
    assert [entry.index for entry in sent_again[0].entries] == [2, 3, 4]


def test_nonsense_is_refused() -> None:
    replica = leader(members=voters(0)).settle()
    assert change(replica, "remove", 0) is Refusal.LAST_VOTER
    assert change(replica, "remove", 5) is Refusal.NOT_VOTER
    assert change(replica, "add", 0) is Refusal.ALREADY_VOTER


def test_a_voter_moves() -> None:
    replica = ready_leader(0, 1, 2)
    replica.raft.move_voter(key(1), "elsewhere", replica.now_us)
    assert replica.raft.voters == {**voters(0, 2), key(1): "elsewhere"}


# --- following the log ---------------------------------------------------------------------------
def test_a_set_that_is_truncated_does_not_count() -> None:
    replica = Replica(0, stored=[*entries(1, [1]), voters_entry(2, 1, 0, 1)], term=2)
    assert set(replica.raft.voters) == set(voters(0, 1))
    replica.step(append(1, 1, entries(2, [2]), term=2))
    assert set(replica.raft.voters) == set(voters(0, 1, 2))


def test_the_voters_are_read_from_snapshot_and_log() -> None:
    snapshot = SnapshotMeta(4, 1, voters(0, 1, 2, 3))
    stored = [*entries(5, [1]), voters_entry(6, 1, 0, 1, 2), *entries(7, [1])]
    replica = Replica(0, snapshot=snapshot, stored=stored, term=1)
    assert replica.raft.voters == voters(0, 1, 2)
    assert Replica(0, snapshot=snapshot, term=1).raft.voters == voters(0, 1, 2, 3)


def test_a_snapshot_holds_the_voters_as_of_its_index() -> None:
    replica = Replica(0, members=voters(0, 1), term=1)
    sent_entries = [*entries(1, [1]), voters_entry(2, 1, 0, 1, 2)]
    replica.step(append(0, 0, sent_entries, term=1, commit=1)).settle()
    assert replica.raft.snapshot_point() == SnapshotMeta(1, 1, voters(0, 1))


def test_the_bytes_of_a_set_never_change() -> None:
    """Version, then node id, directory id and endpoint of each, sorted; as msgpack."""
    packed = bytes.fromhex("9201 92 93 01 a2 6431 a5 6e6f646531 93 02 a2 6432 a0")
    members = {ReplicaKey(2, "d2"): "", ReplicaKey(1, "d1"): "node1"}
    assert pack_voters(members) == packed
    assert unpack_voters(packed) == members


def test_there_are_no_more_voters_than_a_message_can_name() -> None:
    """The snapshot of a larger set could not be sent."""
    replica = leader(members=voters(*range(QUORUM_VOTERS_MAX)))
    assert change(replica, "add", QUORUM_VOTERS_MAX) is Refusal.TOO_MANY_VOTERS
    for members in ({}, voters(*range(QUORUM_VOTERS_MAX + 1))):
        with pytest.raises(msgspec.ValidationError):
            unpack_voters(pack_voters(members))


# --- being removed -------------------------------------------------------------------------------
def test_a_leader_that_is_removed_leads_until_that_is_committed_and_does_not_count() -> None:
    """Thesis, section 4.2.2."""
    replica = ready_leader(0, 1, 2).propose(b"before")
    assert change(replica, "remove", 0) is None
    replica.settle().step(accepted(1, 3))
    assert (replica.raft.role, replica.committed) == (Role.LEADER, 1)
    replica.step(accepted(2, 2))
    assert (replica.raft.role, replica.committed) == (Role.LEADER, 2)
    replica.take()
    replica.step(accepted(2, 3))
    assert (replica.raft.role, replica.committed) == (Role.FOLLOWER, 3)
    kinds = [type(message) for message in replica.outgoing]
    assert m.TimeoutNow in kinds
    assert any(isinstance(x, m.Append) and x.commit == 3 for x in replica.outgoing)


def test_a_removed_voter_may_win_until_that_is_committed() -> None:
    """Thesis, figure 4.6: its log may be the only one that is new enough."""
    replica = Replica(0, stored=[*entries(1, [1]), voters_entry(2, 1, 1, 2)], term=1)
    replica.wait(1_000)
    asked = replica.take(m.PreVote)
    assert {ask.target for ask in asked} == {key(1), key(2)}
    replica.step(grant(asked[0]))
    assert replica.raft.role is Role.PRE_CANDIDATE, "its own vote does not count"
    replica.step(append(2, 1, [], term=1, commit=2)).settle().take()
    assert replica.wait(5_000).take(m.PreVote) == []


def test_a_voter_removed_while_away_learns_it_from_the_log() -> None:
    replica = ready_leader(0, 1, 2)
    stranger = m.PreVote(source=key(5), target=key(0), term=0, last_index=0, last_term=0)
    assert sent(replica.step(stranger), 5) != []
    away = Replica(5, members=voters(5, 6), seeds=(0, 1)).wait(1_000)
    asked = {message.target for message in away.take(m.Observe)}
    assert asked == {key(6), ReplicaKey(0, ""), ReplicaKey(1, "")}


# --- observing -----------------------------------------------------------------------------------
def test_a_new_replica_asks_the_seeds_and_follows_the_one_that_answers() -> None:
    replica = Replica(0, members={}, seeds=(0, 1, 2)).wait(0)
    asked = replica.take()
    assert [type(message) for message in asked] == [m.Observe, m.Observe]
    assert [message.target for message in asked] == [ReplicaKey(1, ""), ReplicaKey(2, "")]
    replica.now_us += 100
    replica.step(append(0, 0, [voters_entry(1, 4, 1)], term=4, commit=1)).settle()
    assert replica.raft.voters == voters(1)
    replica.take()
    assert replica.wait(299).take() == []
    assert [message.target for message in replica.wait(1).take()] == [key(1), ReplicaKey(2, "")]
