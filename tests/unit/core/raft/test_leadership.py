"""Staying a leader, gathering observers, and handing over."""

from __future__ import annotations

import pytest

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.messages import ProposalRefused, Refusal
from tests.support.raft import Replica, accepted, alive, append, key, leader, sent, voters


# --- check-quorum ----------------------------------------------------------------------------
def test_a_leader_without_contact_to_a_majority_steps_down() -> None:
    """Rule 27 of docs/replication-rules.md."""
    replica = leader(members=voters(0, 1, 2, 3, 4))
    for _ in range(9):
        replica.wait(100).step(alive(1))
    assert replica.raft.role is Role.LEADER
    assert replica.wait(100).raft.role is Role.FOLLOWER
    assert replica.raft.leader is None


def test_a_leader_with_contact_to_a_majority_stays() -> None:
    replica = leader()
    for _ in range(50):
        replica.wait(100).step(alive(2))
    assert (replica.raft.role, replica.raft.term) == (Role.LEADER, 1)


def test_a_leader_that_stood_still_steps_down_before_it_believes_what_had_waited() -> None:
    replica = leader()
    replica.now_us += 1_500_000
    replica.step(alive(1), alive(2))
    assert replica.raft.role is Role.FOLLOWER
    assert replica.raft.majority_confirmed_us is None


def beats(replica: Replica, *targets: int) -> list[m.Message]:
    """The heartbeats that are due now, answered; by these followers, whenever that arrives."""
    replica.take()
    sent_us = replica.wait(100).now_us
    asked = [one for one in replica.take(m.Heartbeat) if one.target in map(key, targets)]
    assert [one.sent_us for one in asked if isinstance(one, m.Heartbeat)] == [sent_us] * len(
        targets
    )
    answers: list[m.Message] = []
    for one in asked:
        follower = Replica(one.target.node_id, members=dict(replica.raft.voters), term=1)
        answers += follower.step(one).settle().take(m.HeartbeatResponse)
    return answers


def test_a_leader_is_confirmed_as_of_when_the_heartbeats_were_sent_that_are_answered() -> None:
    """Rule 16 of docs/replication-rules.md: a late answer counts from its request."""
    replica = leader(members=voters(0, 1, 2, 3, 4))
    assert replica.raft.majority_confirmed_us == 0, "no voter has answered yet"
    early = beats(replica, 1, 2)
    early_us = replica.now_us
    replica.step(*beats(replica, 3)).wait(300)
    assert replica.raft.majority_confirmed_us == 0, "it and one of five"
    assert replica.step(*early).raft.majority_confirmed_us == early_us


def test_answers_that_are_overtaken_take_nothing_back() -> None:
    replica = leader()
    early, late = beats(replica, 1), beats(replica, 1)
    late_us = replica.now_us
    replica.step(*late, *early, *early)
    assert replica.raft.majority_confirmed_us == late_us


def test_an_answer_from_another_time_is_no_later_than_now() -> None:
    replica = leader()
    replica.wait(100).step(
        m.HeartbeatResponse(source=key(1), target=key(0), term=1, sent_us=1 << 60)
    )
    assert replica.raft.majority_confirmed_us == replica.now_us


def test_an_answer_without_a_send_time_counts_as_immediate() -> None:
    """Brokers of earlier releases."""
    replica = leader()
    assert replica.wait(100).step(alive(1)).raft.majority_confirmed_us == replica.now_us


def test_the_only_voter_needs_no_confirmation() -> None:
    replica = leader(members=voters(0))
    assert (replica.raft.majority_confirmed_us or 0) > replica.wait(5_000).now_us


def test_an_observer_keeps_no_leader_in_office() -> None:
    replica = leader()
    for node in (6, 7):
        replica.step(m.Observe(source=key(node), target=key(0), term=0))
    for _ in range(10):
        replica.wait(100).step(alive(6), alive(7))
    assert replica.raft.role is Role.FOLLOWER


def test_a_deadline_is_never_late() -> None:
    replica = leader()
    replica.now_us = replica.raft.next_deadline_us
    assert replica.wait(0).raft.next_deadline_us > replica.now_us


# --- observers -------------------------------------------------------------------------------
def test_observers_are_bounded_and_dropped_when_silent() -> None:
    replica = leader()
    for node in (5, 6, 7):
        replica.step(m.Observe(source=key(node), target=key(0), term=0))
    assert {a.target for a in replica.take(m.Append)} >= {key(5), key(6)}
    assert sent(replica.step(m.Observe(source=key(7), target=key(0), term=0)), 7) == []
    for _ in range(80):
        replica.wait(100).step(alive(1), alive(5))
    assert sent(replica.step(m.Observe(source=key(7), target=key(0), term=0)), 7) != []


# --- handing over ----------------------------------------------------------------------------
def test_leadership_goes_to_a_voter_that_has_everything() -> None:
    replica = leader().step(accepted(1, 1)).propose(b"x").settle()
    replica.take()
    replica.raft.transfer_leadership(key(1), replica.now_us)
    replica.pump()
    assert replica.take(m.TimeoutNow) == []
    with pytest.raises(ProposalRefused) as raised:
        replica.propose(b"y")
    assert raised.value.refusal is Refusal.TRANSFERRING
    (word,) = replica.step(accepted(1, 2)).take(m.TimeoutNow)
    assert word.target == key(1)


def test_a_transfer_that_does_not_come_about_ends() -> None:
    replica = leader()
    replica.raft.transfer_leadership(key(1), replica.now_us)
    for _ in range(10):
        replica.wait(100).step(alive(1), alive(2))
    replica.propose(b"y")
    assert replica.raft.role is Role.LEADER


def test_the_chosen_successor_does_not_ask_first() -> None:
    replica = Replica(0, term=1).step(append(0, 0, [], term=1))
    word = m.TimeoutNow(source=key(1), target=key(0), term=1)
    stranger = m.TimeoutNow(source=key(2), target=key(0), term=1)
    assert replica.step(stranger).raft.role is Role.FOLLOWER
    assert replica.step(word).raft.role is Role.CANDIDATE
    assert [ask.term for ask in replica.settle().take(m.Vote)] == [2, 2]


def test_a_leader_whose_disk_failed_hands_over_and_promises_nothing() -> None:
    replica = leader().step(accepted(1, 1), accepted(2, 1)).propose(b"x").step(accepted(2, 2))
    replica.take()
    replica.raft.fail(replica.now_us)
    replica.pump()
    (word,) = replica.take(m.TimeoutNow)
    assert word.target == key(2)
    assert replica.raft.next_deadline_us > 10**15
    replica.step(m.Vote(source=key(1), target=key(0), term=5, last_index=9, last_term=1))
    assert replica.wait(10_000).take() == []
