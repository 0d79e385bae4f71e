"""Entries on their way: what is sent, what is acknowledged, and what is committed by that."""

from __future__ import annotations

import pytest

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.messages import EntryKind, ProposalRefused, Refusal
from quiverlog.limits import RAFT_WAITING_MESSAGES_MAX
from tests.support.raft import (
    CONFIG,
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


def answers(replica: Replica) -> list[tuple[bool, int]]:
    found = replica.take(m.AppendResponse)
    return [(a.accepted, a.index) for a in found if isinstance(a, m.AppendResponse)]


# --- a disk that hangs ----------------------------------------------------------------------------
def test_answers_that_wait_for_a_disk_that_hangs_are_bounded() -> None:
    """A leader asks on with each heartbeat, for as long as it takes."""
    replica = Replica(0, term=1)
    replica.step(append(0, 0, entries(1, [1]), term=1))
    replica.take()
    for _ in range(3 * RAFT_WAITING_MESSAGES_MAX):
        replica.step(append(1, 1, [], term=1))
    assert answers(replica) == []
    replica.settle()
    assert answers(replica) == [(True, 1)] * RAFT_WAITING_MESSAGES_MAX


# --- committing -----------------------------------------------------------------------------------
def test_a_leader_begins_with_an_entry_of_its_own_term() -> None:
    replica = Replica(0, stored=entries(1, [1, 1]), term=1).win()
    assert [(e.index, e.term, e.kind) for e in replica.store.stored[2:]] == [
        (3, 2, EntryKind.NO_OP)
    ]


def test_older_entries_are_not_committed_by_count() -> None:
    """Paper, figure 8: a majority has entry 2 of term 2, and term 3 may still be in front of it.

    Rule 27 of docs/replication-rules.md.
    """
    replica = Replica(0, stored=entries(1, [1, 2]), term=3).win()
    replica.step(accepted(1, 2, term=4))
    assert replica.committed == 0
    replica.step(accepted(1, 3, term=4))
    assert replica.committed == 3


def test_a_majority_commits_and_a_minority_does_not() -> None:
    replica = leader(members=voters(0, 1, 2, 3, 4))
    assert replica.step(accepted(1, 1), accepted(1, 1)).committed == 0
    assert replica.step(accepted(2, 1)).committed == 1


def test_a_leader_counts_itself_when_its_own_disk_has_the_entry() -> None:
    replica = leader().step(accepted(1, 1)).propose(b"x")
    assert replica.step(accepted(1, 2)).committed == 1
    assert replica.persist().committed == 2


def test_a_leader_commits_without_its_own_disk() -> None:
    """Thesis, section 10.2.1. It applies what is durable here only."""
    replica = leader().step(accepted(1, 1)).propose(b"x")
    assert replica.step(accepted(1, 2), accepted(2, 2)).committed == 2
    assert replica.applied[-1].index == 1
    assert replica.persist().applied[-1].data == b"x"


def test_answers_of_another_term_do_not_count() -> None:
    replica = leader(term=3)
    assert replica.raft.term == 4
    assert replica.step(accepted(1, 1, term=3), accepted(2, 1, term=3)).committed == 0
    assert replica.step(accepted(1, 1, term=4)).committed == 1


def test_observers_do_not_count() -> None:
    replica = leader()
    for node in (6, 7):
        replica.step(m.Observe(source=key(node), target=key(0), term=0), accepted(node, 1))
    assert replica.committed == 0


# --- following ------------------------------------------------------------------------------------
def test_an_append_is_acknowledged_when_it_is_durable() -> None:
    """Rule 12 of docs/replication-rules.md."""
    replica = Replica(0, term=1).step(append(0, 0, entries(1, [1, 1]), term=1))
    assert replica.take() == []
    assert answers(replica.persist()) == [(True, 2)]
    assert replica.store.last_index == 2


def test_an_append_that_does_not_fit_is_refused() -> None:
    replica = Replica(0, stored=entries(1, [1, 1]), term=2)
    replica.step(append(2, 2, entries(3, [2]), term=2), append(5, 1, entries(6, [2]), term=2))
    assert answers(replica) == [(False, 2), (False, 5)]
    assert replica.store.last_index == 2


def test_what_conflicts_is_replaced() -> None:
    replica = Replica(0, stored=entries(1, [1, 2, 2]), term=3)
    replica.step(append(1, 1, entries(2, [3]), term=3)).settle()
    assert [e.term for e in replica.store.stored] == [1, 3]


def test_an_old_append_truncates_nothing() -> None:
    """Paper, figure 2: only a conflict truncates; later entries may be acknowledged already."""
    replica = Replica(0, term=1).step(append(0, 0, entries(1, [1, 1, 1]), term=1)).settle()
    replica.step(append(0, 0, entries(1, [1]), term=1)).settle()
    assert replica.store.last_index == 3
    assert answers(replica) == [(True, 3), (True, 1)]


def test_only_what_the_message_proves_is_acknowledged_and_committed() -> None:
    """Entry 3 is of a lost leader: the message proves equality up to 2, whatever is committed."""
    replica = Replica(0, stored=entries(1, [1, 1, 2]), term=3)
    replica.step(append(1, 1, entries(2, [1]), term=3, commit=3)).settle()
    assert answers(replica) == [(True, 2)]
    assert replica.committed == 2


def test_an_append_below_the_commit_index_is_answered_with_it() -> None:
    replica = Replica(0, term=1)
    replica.step(append(0, 0, entries(1, [1, 1, 1]), term=1, commit=3)).settle()
    replica.step(append(1, 1, entries(2, [1]), term=1))
    assert answers(replica) == [(True, 3), (True, 3)]


def test_a_write_that_a_conflict_overtook_makes_nothing_durable() -> None:
    """The entry under way and the one that took its place have the same index."""
    replica = Replica(0, term=1).step(append(0, 0, entries(1, [1, 1]), term=1))
    other = m.Append(
        source=key(2),
        target=key(0),
        term=2,
        prev_index=1,
        prev_term=1,
        entries=tuple(entries(2, [2])),
        commit=2,
    )
    replica.step(other).persist()
    assert answers(replica) == [], "neither the old promise nor the new one"
    assert [e.index for e in replica.applied] == [1]
    assert answers(replica.persist()) == [(True, 2)]
    assert [e.term for e in replica.applied] == [1, 2]


def test_promises_of_an_older_term_are_not_sent() -> None:
    replica = Replica(0, term=1).step(append(0, 0, entries(1, [1]), term=1))
    ask = m.Vote(source=key(2), target=key(0), term=2, last_index=9, last_term=1)
    replica.step(ask).settle()
    (only,) = replica.take()
    assert isinstance(only, m.VoteResponse)


def test_a_heartbeat_is_answered_while_the_disk_is_slow() -> None:
    replica = Replica(0, term=1).step(append(0, 0, entries(1, [1]), term=1))
    replica.step(heartbeat())
    assert [type(message) for message in replica.take()] == [m.HeartbeatResponse]


@pytest.mark.parametrize("kind", ["append", "heartbeat"])
def test_a_leader_of_an_older_term_gets_the_newer_term(kind: str) -> None:
    replica = Replica(0, term=5)
    stale = append(0, 0, [], term=4)
    late = heartbeat(term=4)
    replica.step(stale if kind == "append" else late)
    (answer,) = replica.take()
    assert (answer.term, answer.target) == (5, key(1))
    assert replica.raft.leader is None


# --- finding the place where logs agree --------------------------------------------------------
HINTS = [
    pytest.param([1, 1, 1], (5, 3), (3, 1), id="too short"),
    pytest.param([1, 1, 2, 2, 2], (5, 1), (2, 1), id="a whole newer term is skipped"),
    pytest.param([1, 1, 2, 2, 2], (4, 3), (4, 2), id="an older term is kept"),
    pytest.param([3, 3, 3], (2, 2), (0, 0), id="nothing fits"),
]


@pytest.mark.parametrize(("terms", "asked", "hint"), HINTS)
def test_a_refusal_has_the_place_where_the_logs_may_agree(
    terms: list[int], asked: tuple[int, int], hint: tuple[int, int]
) -> None:
    replica = Replica(0, stored=entries(1, terms), term=4)
    replica.step(append(*asked, [], term=4))
    (answer,) = replica.take(m.AppendResponse)
    assert isinstance(answer, m.AppendResponse)
    assert not answer.accepted
    assert (answer.hint_index, answer.hint_term) == hint


def test_a_leader_skips_the_terms_that_cannot_agree() -> None:
    replica = Replica(0, stored=entries(1, [1, 1, 4, 4, 4, 4]), term=4).win()
    (first,) = sent(replica, 1)
    assert first.prev_index == 6
    replica.step(refused(6, 5, 2, term=5))
    (second,) = sent(replica, 1)
    assert (second.prev_index, second.prev_term) == (2, 1)


def test_two_logs_agree_after_one_exchange_for_each_term() -> None:
    """A follower with entries of three lost leaders, a leader with those of two others."""
    ahead = Replica(0, stored=entries(1, [1] * 50 + [3] * 150 + [6] * 100), term=6).win()
    behind = Replica(1, stored=entries(1, [1] * 50 + [2] * 100 + [4] * 50 + [5] * 100), term=6)
    exchanges = 0
    while ahead.committed < 301:
        for message in ahead.take():
            if message.target == key(1):
                exchanges += isinstance(message, m.Append)
                behind.step(message)
        ahead.step(*[x for x in behind.settle().take() if x.target == key(0)])
        assert exchanges < 60
    assert [e.term for e in behind.store.stored] == [e.term for e in ahead.store.stored]
    rejected_max = 4
    full = -(-251 * 40 // CONFIG.append_bytes_max)
    assert exchanges <= rejected_max + 2 * full


# --- bounds ---------------------------------------------------------------------------------------
def test_one_probe_at_a_time_until_an_answer_or_a_heartbeat() -> None:
    replica = leader()
    assert len(sent(replica, 1)) == 1
    assert sent(replica.propose(b"x"), 1) == []
    (again,) = sent(replica.step(alive(1)), 1)
    assert again.prev_index == 0


def test_messages_in_flight_are_bounded() -> None:
    replica = leader().step(accepted(1, 1))
    replica.take()
    for _ in range(5):
        replica.propose(b"x")
    assert [a.entries[0].index for a in sent(replica, 1)] == [2, 3]
    replica.step(accepted(1, 2))
    (more,) = sent(replica, 1)
    assert [e.index for e in more.entries] == [4, 5, 6]


def test_bytes_in_flight_and_in_a_message_are_bounded() -> None:
    replica = leader().step(accepted(1, 1))
    replica.take()
    replica.propose(*[bytes(300)] * 5)
    messages = sent(replica, 1)
    assert [len(a.entries) for a in messages] == [3, 2]
    assert all(sum(e.size_bytes for e in a.entries) <= 1_000 for a in messages)


def test_proposals_are_bounded() -> None:
    replica = leader()
    for data, refusal in (
        ([bytes(969)], Refusal.TOO_LARGE),
        ([bytes(968), bytes(968)], Refusal.TOO_MUCH_UNCOMMITTED),
    ):
        with pytest.raises(ProposalRefused) as raised:
            replica.propose(*data)
        assert raised.value.refusal is refusal
        assert replica.raft.log.last_index == 1
    replica.step(accepted(1, 1)).propose(bytes(968), bytes(968)).settle()
    with pytest.raises(ProposalRefused):
        replica.propose(b"more")
    replica.step(accepted(1, 3)).propose(b"more")
    assert replica.raft.log.last_index == 4


def test_only_a_leader_takes_proposals_and_others_name_it() -> None:
    replica = Replica(0, term=1).step(append(0, 0, [], term=1))
    with pytest.raises(ProposalRefused) as raised:
        replica.propose(b"x")
    assert (raised.value.refusal, raised.value.leader) == (Refusal.NOT_LEADER, key(1))


# --- losses ---------------------------------------------------------------------------------------
def test_a_lost_append_is_found_by_a_heartbeat_and_sent_again() -> None:
    replica = leader().step(accepted(1, 1)).propose(b"lost")
    replica.take()
    (question,) = sent(replica.step(alive(1)), 1)
    assert (question.prev_index, question.entries) == (2, ())
    (again,) = sent(replica.step(refused(2, 1, 1, term=1)), 1)
    assert [e.data for e in again.entries] == [b"lost"]


def test_a_slow_disk_is_not_sent_the_same_entries_again() -> None:
    replica = leader().step(accepted(1, 1)).propose(b"x")
    replica.take()
    for _ in range(5):
        assert all(a.entries == () for a in sent(replica.step(alive(1)), 1))


def test_an_old_refusal_is_not_believed() -> None:
    replica = leader().step(accepted(1, 1)).propose(b"x").step(accepted(1, 2))
    replica.take()
    assert sent(replica.step(refused(1, 0, 0, term=1)), 1) == []


def test_a_commit_index_is_sent_when_it_moves() -> None:
    replica = leader().step(accepted(1, 1), accepted(2, 1))
    commits = [a.commit for a in sent(replica, 2)]
    assert commits[-1] == 1


def test_a_heartbeat_names_no_commit_that_its_target_may_lack() -> None:
    replica = leader().step(accepted(1, 1))
    replica.take()
    beats = [b for b in replica.wait(100).take(m.Heartbeat) if isinstance(b, m.Heartbeat)]
    assert [(b.target, b.commit) for b in beats] == [(key(1), 1), (key(2), 0)]
