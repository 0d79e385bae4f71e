"""What a leader may count on while a change of the in-sync replicas is not settled."""

from __future__ import annotations

import pytest

from quiverlog.core.partition.in_sync import InSync, Proposal
from quiverlog.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    OutdatedPartitionEpoch,
    QuiverlogError,
    RequestTimedOut,
)


def sets(in_sync: InSync) -> tuple[set[int], set[int]]:
    return set(in_sync.maximal), set(in_sync.certain)


def test_both_sets_may_hold_until_the_controller_has_answered() -> None:
    """Rule 7."""
    in_sync = InSync(5, 1, (0, 1))
    assert sets(in_sync) == ({0, 1}, {0, 1})
    assert in_sync.propose({0, 2}) == Proposal(5, 1, (0, 2))
    assert sets(in_sync) == ({0, 1, 2}, {0})
    assert in_sync.take_over(2, (0, 2))
    assert sets(in_sync) == ({0, 2}, {0, 2})
    assert not in_sync.asking


def test_one_request_is_in_flight_and_is_repeated_as_it_was() -> None:
    """Rule 7 of docs/replication-rules.md."""
    in_sync = InSync(5, 1, (0, 1))
    proposal = in_sync.propose({0})
    with pytest.raises(AssertionError, match="one request in flight"):
        in_sync.again()
    in_sync.unanswered()
    with pytest.raises(AssertionError, match="one proposal at a time"):
        in_sync.propose({0, 1, 2})
    assert in_sync.again() == proposal
    in_sync.refused(RequestTimedOut.code)
    assert sets(in_sync) == ({0, 1}, {0}), "it may have been applied"
    assert in_sync.again() == proposal


def test_a_refusal_that_proves_that_nothing_changed_reverts() -> None:
    in_sync = InSync(5, 1, (0, 1))
    in_sync.propose({0, 1, 2})
    in_sync.refused(IneligibleReplica.code)
    assert sets(in_sync) == ({0, 1}, {0, 1})
    assert not in_sync.unsettled


def test_a_member_that_holds_the_partition_no_more_is_not_asked_for_for_ever() -> None:
    """The answer that ends a move came before the metadata, which have nothing later."""
    in_sync = InSync(5, 1, (0, 1, 2))
    assert in_sync.take_over(2, (0, 1)), "the answer: broker 2 has left, and is not known to"
    in_sync.propose({0, 1, 2})
    in_sync.refused(InvalidRequest.code)
    assert not in_sync.take_over(2, (0, 1)), "the metadata come with what was known"
    assert not in_sync.outdated
    assert sets(in_sync) == ({0, 1}, {0, 1})
    assert in_sync.propose({0, 1, 3}) == Proposal(5, 2, (0, 1, 3))


def test_a_refusal_settles_no_earlier_request_that_may_still_arrive() -> None:
    """The replica may be eligible again by then. Another change takes the epoch it needs.

    Rule 7 of docs/replication-rules.md.
    """
    in_sync = InSync(5, 1, (0, 1))
    in_sync.propose({0, 1, 2})
    in_sync.unanswered()
    in_sync.again()
    in_sync.refused(IneligibleReplica.code)
    assert sets(in_sync) == ({0, 1, 2}, {0, 1})
    assert in_sync.unsettled
    assert in_sync.propose(in_sync.committed) == Proposal(5, 1, (0, 1))
    assert sets(in_sync) == ({0, 1, 2}, {0, 1})
    assert in_sync.take_over(2, (0, 1))
    assert sets(in_sync) == ({0, 1}, {0, 1})
    assert not in_sync.unsettled


@pytest.mark.parametrize("kind", [FencedLeaderEpoch, OutdatedPartitionEpoch])
def test_an_outdated_leader_waits_for_the_metadata(kind: type[QuiverlogError]) -> None:
    in_sync = InSync(5, 1, (0, 1))
    in_sync.propose({0})
    in_sync.unanswered()
    in_sync.again()
    in_sync.refused(kind.code)
    assert in_sync.outdated
    assert sets(in_sync) == ({0, 1}, {0}), "the first request may be what made it outdated"
    assert not in_sync.take_over(1, (0, 1)), "that is what was known"
    assert in_sync.take_over(2, (0,))
    assert sets(in_sync) == ({0}, {0})
    assert not in_sync.outdated
