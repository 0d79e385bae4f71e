"""A leader's answer to one partition of a follower's fetch, without rows.

Owns the checks of the entry, in order: the leadership, the agreement of the logs up to the
follower's end, and that end.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiverlog.core.partition.leadership import Brokers
from quiverlog.core.partition.partition import PartitionState
from quiverlog.core.partition.progress import FollowerReport
from quiverlog.core.replication.divergence import Epochs, diverging
from quiverlog.core.replication.sessions import FetchSession
from quiverlog.errors import (
    LogTruncated,
    NotLeader,
    OffsetOutOfRange,
    QuiverlogError,
    StaleBrokerEpoch,
)
from quiverlog.wire.replica_messages import ReplicaFetchPartition, ReplicaFetchResult

__all__ = ["check", "record_report", "sessions_of"]


def check(
    state: PartitionState, epochs: Epochs, broker_id: int, entry: ReplicaFetchPartition
) -> ReplicaFetchResult:
    result = ReplicaFetchResult(
        entry.topic_id,
        entry.partition,
        leader_epoch=state.leader_epoch,
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
    )
    try:
        _check(state, epochs, broker_id, entry, result)
    except QuiverlogError as error:
        result.error_code = error.code
        result.error_message = error.message
    assert result.error_code or state.leads
    leadership = state.leadership
    if leadership is not None and leadership.agreement.is_needed:
        result.epoch_start_offset = leadership.agreement.start_offset
        assert result.epoch_start_offset <= state.log_end_offset, "a leader's log is never cut"
    assert result.high_watermark <= state.log_end_offset
    return result


def _check(
    state: PartitionState,
    epochs: Epochs,
    broker_id: int,
    entry: ReplicaFetchPartition,
    result: ReplicaFetchResult,
) -> None:
    leadership = state.leadership
    if leadership is None:
        raise NotLeader(f"{state.name} is not led by this broker.")
    assert leadership.leader_epoch == state.leader_epoch
    state.check_leader_epoch(entry.leader_epoch)
    if broker_id not in leadership.followers:
        raise NotLeader(f"{state.name} has no replica on broker {broker_id}.")
    parted = diverging(epochs, entry.last_epoch, entry.offset)
    if parted is not None:
        result.diverging_epoch, result.diverging_end_offset = parted
        raise LogTruncated(
            f"{state.name}: the logs diverge where epoch {parted[0]} ended, at {parted[1]}."
        )
    if not state.log_start_offset <= entry.offset <= state.log_end_offset:
        raise OffsetOutOfRange(
            f"{state.name}: offset {entry.offset} is not in the log, {state.log_start_offset} to"
            f" {state.log_end_offset}."
        )


def record_report(
    state: PartitionState,
    epochs: Epochs,
    session: FetchSession,
    entry: ReplicaFetchPartition,
    brokers: Brokers,
    now_us: int,
) -> bool:
    leadership = state.leadership
    # Only a report that passes all checks: a follower about to be cut has rows that are not the
    # leader's.
    if leadership is None or check(state, epochs, session.broker_id, entry).error_code:
        return False
    assert entry.offset <= state.log_end_offset, "the entry was checked"
    report = FollowerReport(
        session.broker_id,
        session.broker_epoch,
        entry.offset,
        entry.flushed_offset,
        entry.log_start_offset,
        entry.saved_epoch,
    )
    if report.broker_epoch < leadership.followers[report.broker_id].broker_epoch:
        raise StaleBrokerEpoch(
            f"{state.name}: broker {report.broker_id} has fetched under a later epoch than"
            f" {report.broker_epoch}."
        )
    leadership.fetched(report, session, state.log_end_offset, brokers, now_us)
    return state.followers_moved()


def sessions_of(state: PartitionState) -> Iterator[FetchSession]:
    leadership = state.leadership
    if leadership is not None:
        for follower in leadership.followers.values():
            if isinstance(follower.session, FetchSession):
                yield follower.session
