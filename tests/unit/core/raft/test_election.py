"""Elections: pre-votes, votes, terms, and what must be durable before it is sent."""

from __future__ import annotations

import random

import pytest

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.messages import HardState, ReplicaKey
from quiverlog.core.raft.quorum import majority, reached_by_majority, votes_suffice
from quiverlog.core.raft.raft import Raft
from tests.support.raft import (
    CONFIG,
    MemoryStore,
    Replica,
    entries,
    grant,
    heartbeat,
    key,
    leader,
    voters,
)

NEW_DISK = ReplicaKey(1, "new disk")


def pre_vote(
    source: int, target: int, term: int, last_index: int = 0, last_term: int = 0
) -> m.PreVote:
    return m.PreVote(
        source=key(source),
        target=key(target),
        term=term,
        last_index=last_index,
        last_term=last_term,
    )


def vote(source: int, target: int, term: int, last_index: int = 0, last_term: int = 0) -> m.Vote:
    return m.Vote(
        source=key(source),
        target=key(target),
        term=term,
        last_index=last_index,
        last_term=last_term,
    )


def granted(replica: Replica) -> list[bool]:
    """The answers to votes and pre-votes that have left."""
    answers = m.PreVoteResponse | m.VoteResponse
    return [message.granted for message in replica.take() if isinstance(message, answers)]


# --- pre-votes --------------------------------------------------------------------------------
def test_a_candidate_asks_before_it_begins_a_term() -> None:
    """Rule 28 of docs/replication-rules.md."""
    replica = Replica(0, term=3).wait(1_000)
    asked = replica.take(m.PreVote)
    assert [message.target for message in asked] == [key(1), key(2)]
    assert replica.raft.role is Role.PRE_CANDIDATE
    assert replica.raft.term == 3
    assert replica.write is None


def test_a_pre_vote_is_refused_while_the_leader_has_contact() -> None:
    """Rule 28 of docs/replication-rules.md."""
    replica = Replica(0, term=1).step(heartbeat()).settle()
    replica.take()
    replica.now_us += 999
    assert granted(replica.step(pre_vote(2, 0, 1))) == [False]
    replica.now_us += 1
    assert granted(replica.step(pre_vote(2, 0, 1))) == [True]


def test_a_leader_refuses_pre_votes() -> None:
    leader = Replica(0).win()
    leader.take()
    assert granted(leader.step(pre_vote(2, 0, 1, 9, 9))) == [False]
    assert leader.raft.role is Role.LEADER


def test_a_pre_vote_changes_nothing() -> None:
    replica = Replica(0, term=2).step(pre_vote(1, 0, 7))
    assert replica.raft.term == 2
    assert replica.write is None
    assert granted(replica) == [True]


def test_a_pre_vote_of_an_older_term_is_refused_with_the_newer_term() -> None:
    replica = Replica(0, term=5).step(pre_vote(1, 0, 4, 9, 4))
    (answer,) = replica.take(m.PreVoteResponse)
    assert isinstance(answer, m.PreVoteResponse)
    assert (answer.granted, answer.term) == (False, 5)


def test_a_majority_of_pre_votes_begins_a_term_and_less_does_not() -> None:
    replica = Replica(0, members=voters(0, 1, 2, 3, 4)).wait(1_000)
    first, second, *_ = replica.take(m.PreVote)
    assert replica.step(grant(first), grant(first)).raft.role is Role.PRE_CANDIDATE
    assert replica.step(grant(second)).raft.role is Role.CANDIDATE
    assert replica.raft.term == 1


def test_an_answer_to_an_older_question_does_not_count() -> None:
    replica = Replica(0, term=1).wait(1_000)
    (old, _) = replica.take(m.PreVote)
    replica.step(heartbeat(term=2, source=2)).settle().wait(1_000)
    assert replica.raft.role is Role.PRE_CANDIDATE
    assert replica.step(grant(old)).raft.role is Role.PRE_CANDIDATE


def test_a_refused_pre_vote_brings_the_newer_term() -> None:
    replica = Replica(0, term=1).wait(1_000)
    refusal = m.PreVoteResponse(source=key(1), target=key(0), term=6, granted=False, asked_term=1)
    replica.step(refusal)
    assert (replica.raft.term, replica.raft.role) == (6, Role.FOLLOWER)


# --- votes --------------------------------------------------------------------------------------
LOGS = [
    pytest.param(3, 2, True, id="the same"),
    pytest.param(4, 2, True, id="longer"),
    pytest.param(2, 2, False, id="shorter"),
    pytest.param(1, 3, True, id="shorter and of a newer term"),
    pytest.param(9, 1, False, id="longer and of an older term"),
]


@pytest.mark.parametrize(("last_index", "last_term", "expected"), LOGS)
def test_votes_go_to_logs_that_are_as_new(last_index: int, last_term: int, expected: bool) -> None:
    """Paper, section 5.4.1; the same holds for pre-votes."""
    replica = Replica(0, stored=entries(1, [1, 2, 2]), term=3)
    replica.step(pre_vote(1, 0, 3, last_index, last_term))
    replica.step(vote(1, 0, 4, last_index, last_term)).settle()
    assert granted(replica) == [expected, expected]


def test_a_vote_leaves_when_it_is_durable_and_not_before() -> None:
    """Rule 12 of docs/replication-rules.md."""
    replica = Replica(0).step(vote(1, 0, 1))
    assert replica.take() == []
    replica.persist()
    assert replica.hard_state == HardState(1, key(1))
    assert granted(replica) == [True]


def test_a_refusal_waits_for_its_term() -> None:
    replica = Replica(0, stored=entries(1, [1]), term=1).step(vote(1, 0, 5))
    assert replica.take() == []
    assert granted(replica.persist()) == [False]


def test_one_vote_in_a_term() -> None:
    replica = Replica(0).step(vote(1, 0, 1)).settle().step(vote(2, 0, 1)).step(vote(1, 0, 1))
    assert granted(replica) == [True, False, True]


def test_a_vote_survives_a_restart() -> None:
    """Rule 27 of docs/replication-rules.md."""
    replica = Replica(0, term=5, vote=key(1)).step(vote(2, 0, 5))
    assert granted(replica) == [False]


def test_no_vote_against_a_leader_that_is_known() -> None:
    replica = Replica(0, term=1).step(heartbeat()).step(vote(2, 0, 1)).settle()
    assert granted(replica) == [False]


def test_votes_are_asked_for_when_term_vote_and_log_are_durable() -> None:
    replica = Replica(0, term=1)
    replica.step(
        m.Append(
            source=key(1),
            target=key(0),
            term=1,
            prev_index=0,
            prev_term=0,
            entries=tuple(entries(1, [1, 1])),
            commit=0,
        )
    )
    replica.wait(1_000)
    for ask in replica.take(m.PreVote):
        replica.step(grant(ask))
    assert replica.raft.role is Role.CANDIDATE
    assert replica.persist().take(m.Vote) == [], "the log is durable, the vote is not"
    asked = replica.persist().take(m.Vote)
    assert [(ask.target, ask.term) for ask in asked] == [(key(1), 2), (key(2), 2)]
    assert replica.hard_state == HardState(2, key(0))


def test_the_own_vote_counts_when_it_is_durable() -> None:
    replica = Replica(0).wait(1_000)
    replica.step(grant(replica.take(m.PreVote)[0]))
    early = m.VoteResponse(source=key(1), target=key(0), term=1, granted=True)
    assert replica.step(early).raft.role is Role.CANDIDATE
    assert replica.persist().raft.role is Role.LEADER


def test_refusals_and_strangers_elect_no_leader() -> None:
    replica = Replica(0).wait(1_000)
    replica.step(grant(replica.take(m.PreVote)[0])).settle()
    for source, agrees in ((key(1), False), (key(7), True), (NEW_DISK, True)):
        replica.step(m.VoteResponse(source=source, target=key(0), term=1, granted=agrees))
        assert replica.raft.role is Role.CANDIDATE


# --- until when others have led ------------------------------------------------------------------
def vote_of(replica: Replica, candidate: int, term: int, index: int = 0) -> m.VoteResponse:
    """Return its vote for a candidate with a log of this length."""
    ask = m.Vote(
        source=key(candidate),
        target=replica.key,
        term=term,
        last_index=index,
        last_term=index and 1,
    )
    found = replica.step(ask).settle().take(m.VoteResponse)[0]
    assert isinstance(found, m.VoteResponse)
    assert found.granted
    return found


def test_a_voter_reports_the_age_of_its_last_contact_with_a_leader() -> None:
    replica = Replica(0, term=1)
    replica.now_us = 300
    replica.step(heartbeat(1, term=1))
    replica.now_us = 1_000
    assert vote_of(replica, 2, 2).silent_us == 700


def test_a_restarted_voter_reports_contact_up_to_its_start() -> None:
    replica = Replica(0, term=1)
    replica.now_us = 250
    assert vote_of(replica, 2, 2).silent_us == 250


def test_a_former_leader_counts_its_own_leadership_as_contact() -> None:
    """The leader may be the only voter in both majorities: of its followers, and of the next
    leader."""
    replica = leader().wait(900)
    assert vote_of(replica, 2, 2, 1).silent_us == 0


def test_a_leader_has_the_time_until_when_earlier_leaders_may_have_been_confirmed() -> None:
    """Rule 16 of docs/replication-rules.md: the voter with the latest contact counts."""
    replica = Replica(0, members=voters(0, 1, 2, 3, 4)).wait(1_000)
    for ask in replica.take(m.PreVote):
        replica.step(grant(ask))
    replica.settle().wait(50)
    for source, silent_us in ((1, 200), (2, 900), (3, 0)):
        vote = m.VoteResponse(
            source=key(source), target=key(0), term=1, granted=True, silent_us=silent_us
        )
        replica.step(vote)
    assert replica.raft.role is Role.LEADER
    assert replica.raft.led_before_us == 850, "the third vote came when it led"


@pytest.mark.parametrize("silent_us", [0, 1 << 62])
def test_a_moment_of_which_a_voter_speaks_is_none_of_its_future_or_before_all_time(
    silent_us: int,
) -> None:
    """Brokers of earlier releases send 0: they may have had contact just now."""
    replica = Replica(0).wait(1_000)
    replica.step(grant(replica.take(m.PreVote)[0])).settle()
    vote = m.VoteResponse(source=key(1), target=key(0), term=1, granted=True, silent_us=silent_us)
    assert replica.step(vote).raft.led_before_us == (0 if silent_us else replica.now_us)


def test_a_message_for_another_disk_is_not_answered() -> None:
    """What that disk promised is not known here (KIP-853). (Rule 30.)"""
    ask = m.Vote(source=key(1), target=ReplicaKey(0, "old"), term=1, last_index=0, last_term=0)
    replica = Replica(0).step(ask)
    assert replica.write is None
    assert replica.raft.term == 0
    assert replica.take() == []


def test_a_replica_without_a_vote_answers_candidates_and_is_none() -> None:
    replica = Replica(5).wait(3_000)
    assert replica.take(m.PreVote) == []
    assert replica.raft.role is Role.FOLLOWER
    assert granted(replica.step(vote(1, 5, 1)).settle()) == [True]


def test_a_candidate_follows_the_leader_of_its_term() -> None:
    replica = Replica(0).wait(1_000)
    replica.step(grant(replica.take(m.PreVote)[0])).settle().step(heartbeat(source=2))
    assert (replica.raft.role, replica.raft.leader) == (Role.FOLLOWER, key(2))


def test_a_candidate_with_a_slow_disk_waits_for_it() -> None:
    replica = Replica(0).wait(1_000)
    replica.step(grant(replica.take(m.PreVote)[0])).wait(5_000)
    assert (replica.raft.role, replica.raft.term) == (Role.CANDIDATE, 1)
    assert replica.take(m.PreVote) == []


def test_a_newer_term_ends_a_leadership() -> None:
    leader = Replica(0).win().step(heartbeat(term=9))
    assert (leader.raft.role, leader.raft.term) == (Role.FOLLOWER, 9)
    assert leader.raft.leader == key(1)


def test_two_leaders_in_a_term_are_a_bug() -> None:
    replica = Replica(0, term=1).step(heartbeat())
    with pytest.raises(AssertionError, match="two leaders"):
        replica.step(heartbeat(source=2))


# --- time and single replicas ---------------------------------------------------------------------
def test_timeouts_come_from_the_random_numbers_that_are_handed_in() -> None:
    def deadlines(seed: int) -> list[int]:
        store = MemoryStore(m.SnapshotMeta(0, 0, voters(0, 1, 2)))
        raft = Raft(key(0), CONFIG, random.Random(seed), store, HardState(0, None), 0)
        found = []
        for _ in range(20):
            found.append(raft.next_deadline_us)
            raft.tick(raft.next_deadline_us)
        return found

    first = deadlines(7)
    waits = [after - before for before, after in zip([0, *first], first, strict=False)]
    assert first == deadlines(7) != deadlines(8)
    assert all(1_000 <= wait < 2_000 for wait in waits)
    assert len(set(waits)) > 10


def test_a_quorum_of_one_leads_and_commits_as_soon_as_its_disk_has_it() -> None:
    replica = Replica(0, members=voters(0), stored=entries(1, [1, 1]), term=1)
    assert replica.now_us == 0
    assert replica.write is not None
    assert replica.write.hard_state == HardState(2, key(0))
    replica.settle()
    assert replica.raft.role is Role.LEADER
    assert replica.committed == 3
    assert [entry.term for entry in replica.applied] == [1, 1, 2]
    replica.propose(b"x")
    assert replica.committed == 3
    replica.persist()
    assert replica.committed == 4
    assert replica.applied[-1].data == b"x"
    assert replica.take() == []
    assert replica.wait(10**9).raft.role is Role.LEADER


# --- counting -----------------------------------------------------------------------------------
def test_counting_agrees_with_counting_by_hand() -> None:
    rng = random.Random(1)
    for _ in range(300):
        values = [rng.randrange(5) for _ in range(rng.randint(1, 7))]
        slow = max(n for n in range(5) if 2 * sum(v >= n for v in values) > len(values))
        assert reached_by_majority(values) == slow
    for count in range(1, 8):
        assert 2 * majority(count) > count >= 2 * majority(count) - 2
        assert votes_suffice(range(majority(count)), count)
        assert not votes_suffice(range(majority(count) - 1), count)
    assert not votes_suffice([], 0)


# --- strangers ---------------------------------------------------------------------------------
STRANGER = ReplicaKey(7, "unknown")


@pytest.mark.parametrize("speaks", ["vote", "heartbeat"])
def test_a_stranger_is_ignored_while_a_leader_has_contact(speaks: str) -> None:
    replica = Replica(0, term=3)
    replica.step(heartbeat(term=3))
    message: m.Message = m.Heartbeat(source=STRANGER, target=key(0), term=9, commit=0)
    if speaks == "vote":
        message = m.Vote(source=STRANGER, target=key(0), term=9, last_index=99, last_term=8)
    replica.step(message)
    assert replica.raft.term == 3
    assert replica.raft.leader == key(1)
    replica.wait(1_000)
    replica.step(message)
    assert replica.raft.term == 9, "a voter that is not known here yet may be the only one left"


def test_a_stranger_deposes_no_leader_and_one_that_follows_in_a_newer_term_does() -> None:
    replica = leader()
    term = replica.raft.term
    replica.step(m.Vote(source=STRANGER, target=key(0), term=9, last_index=99, last_term=8))
    assert replica.raft.role is Role.LEADER
    replica.step(m.Observe(source=STRANGER, target=key(0), term=9))
    assert replica.raft.term == 9 > term, "it could never follow an older one"
