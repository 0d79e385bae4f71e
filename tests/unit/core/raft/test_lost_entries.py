"""Replicas that come back with an earlier log.

For a voter no remedy exists, so both sides report it. A replica without a vote begins anew.
"""

from __future__ import annotations

from quiverlog.core.raft import messages as m
from tests.support.raft import (
    Replica,
    accepted,
    alive,
    append,
    entries,
    heartbeat,
    key,
    leader,
    refused,
    sent,
    voters,
)


# --- the voter -----------------------------------------------------------------------------------
def test_a_heartbeat_beyond_the_log_proves_that_entries_are_gone() -> None:
    """A leader never sends a commit index that was not acknowledged to it in this term."""
    replica = Replica(0, stored=entries(1, [1, 1]), term=1)
    replica.step(heartbeat(2))
    assert replica.raft.lost_entries == {}
    replica.step(heartbeat(5))
    assert replica.raft.lost_entries == {key(0): 5}
    assert replica.committed == 2


def test_a_replica_without_a_vote_may_come_back_with_fewer_entries() -> None:
    replica = Replica(0, members=voters(1, 2, 3), stored=entries(1, [1, 1]), term=1)
    replica.step(heartbeat(5))
    assert replica.raft.lost_entries == {}


def test_a_replica_without_a_vote_commits_only_what_it_found_equal_since_it_started() -> None:
    """The leader counts what an earlier life acknowledged: entry 2 here was never decided."""
    replica = Replica(0, members=voters(1, 2, 3), stored=entries(1, [1, 1]), term=2)
    replica.wait(0).take()
    replica.step(heartbeat(2, term=2))
    assert replica.committed == 0
    asked = [message.target for message in replica.wait(300).take(m.Observe)]
    assert asked == [key(1), key(2), key(3)], "so that the leader looks where the logs agree"
    replica.step(append(1, 1, entries(2, [2]), term=2, commit=1)).settle()
    assert replica.committed == 1
    replica.step(heartbeat(2, term=2))
    assert (replica.committed, replica.raft.log.term(2)) == (2, 2)
    replica.step(append(2, 2, entries(3, [2]), term=2, commit=2)).settle()
    assert replica.take(m.Observe) == []
    assert replica.wait(299).take(m.Observe) == []


def test_equality_with_one_leaders_log_does_not_hold_for_the_next_leaders() -> None:
    replica = Replica(0, members=voters(1, 2, 3), term=2)
    replica.step(append(0, 0, entries(1, [2, 2]), term=2)).settle()
    replica.step(heartbeat(2, term=3))
    assert replica.committed == 0


# --- its leader ----------------------------------------------------------------------------------
def probe_at_match(replica: Replica) -> None:
    """Voter 1 acknowledges three entries, and refuses what comes after these."""
    replica.propose(b"a", b"b").settle()
    replica.step(accepted(1, 3))
    replica.propose(b"c").settle()
    replica.step(refused(4, 1))
    assert replica.raft.match_indexes[key(1)] == 3


def test_a_voter_that_refuses_what_it_acknowledged_has_lost_it() -> None:
    replica = leader()
    probe_at_match(replica)
    for _ in range(3):
        assert replica.raft.lost_entries == {}
        assert sent(replica, 1)[-1].prev_index == 3, "probed again, with each heartbeat"
        replica.step(refused(3, 1))
        replica.step(alive(1))
    assert replica.raft.lost_entries == {key(1): 3}
    assert replica.committed == 3, "what was acknowledged was, and stays decided"


def test_late_refusals_are_no_proof() -> None:
    replica = leader()
    probe_at_match(replica)
    replica.step(refused(3, 1), refused(3, 1))
    replica.step(accepted(1, 4))
    assert replica.raft.match_indexes[key(1)] == 4
    replica.step(refused(3, 1), refused(3, 1), refused(4, 1), refused(4, 1))
    assert replica.raft.lost_entries == {}
