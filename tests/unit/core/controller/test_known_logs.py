"""Reports of partitions without a leader beside the ends: failed disks, deletions."""

from __future__ import annotations

from quiverlog.core.controller import elections
from quiverlog.core.controller.log_ends import LogEnd
from quiverlog.core.controller.records import NO_LEADER, BrokerChangeRecord

from .test_log_ends import cluster, elected, unclean


def test_the_longest_log_is_waited_for_while_its_disk_has_failed() -> None:
    """The rows are known to be there, and a restart brings them back. (ADR 0060.)"""
    image = cluster()
    ends = {0: LogEnd(3, 9, is_offline=True), 1: LogEnd(3, 5), 2: LogEnd(3, 4)}
    assert elected(image, ends, 0, 1, 2) == NO_LEADER
    shorter = {**ends, 0: LogEnd(3, 5, is_offline=True), 1: LogEnd(3, 9)}
    assert elected(cluster(), shorter, 0, 1, 2) == 1
    image.replay_entry([BrokerChangeRecord(0, 10, fenced=True)])
    assert elected(image, ends, 1, 2) == 1, "its machine may never come back, and two are enough"


def test_a_stopping_broker_with_a_longer_log_is_waited_for() -> None:
    """A stop in order is most often the beginning of a restart. (ADR 0060.)"""
    image = cluster()
    ends = {0: LogEnd(3, 9), 1: LogEnd(3, 5), 2: LogEnd(3, 4)}
    image.replay_entry([BrokerChangeRecord(0, 10, fenced=True, in_shutdown=True)])
    assert elected(image, ends, 1, 2) == NO_LEADER
    equal = {**ends, 0: LogEnd(3, 5)}
    assert elected(image, equal, 1, 2) == 1


def test_rows_that_were_deleted_are_given_up_before_a_log_leads() -> None:
    """Rule 20 of docs/replication-rules.md: a replica that was away still has the rows."""
    image = cluster()
    ends = {0: LogEnd(3, 9), 1: LogEnd(3, 5, log_start_offset=4)}
    assert elections.deleted_below(ends.values(), ends[0]) == 4
    assert elected(image, ends) == NO_LEADER
    assert elected(image, {**ends, 0: LogEnd(3, 9, log_start_offset=4)}) == 0


def test_a_deletion_under_an_older_epoch_is_asked_of_no_broker() -> None:
    """The rows there may be others since an unclean election."""
    ends = {0: LogEnd(3, 9), 1: LogEnd(2, 50, log_start_offset=40)}
    assert elections.deleted_below(ends.values(), ends[0]) == 0
    assert elected(cluster(), ends) == 0


def test_an_unclean_election_passes_over_a_replica_that_takes_no_writes() -> None:
    ends = {0: LogEnd(3, 9, is_offline=True), 1: LogEnd(3, 5)}
    assert unclean(cluster(), ends) == 1
    only = {n: LogEnd(3, 9 + n, is_offline=True) for n in range(3)}
    assert unclean(cluster(), only) == 2
