"""Requests between brokers about replicas. Replication does not use FETCH: docs/adr/0028."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeVar

from msgspec import Meta

from quiverlog.limits import ALTER_PARTITION_ENTRIES_MAX, REPLICATION_FACTOR_MAX
from quiverlog.types import NO_EPOCH

from .messages import Api, Int32, Int64, Part, PerPartition, Request, Response, TopicId, UInt31

__all__ = [
    "ALTER_PARTITION_CONTAINERS_MAX",
    "LOG_ENDS_CONTAINERS_MAX",
    "AlterPartition",
    "AlterPartitionRequest",
    "AlterPartitionResponse",
    "AlterPartitionResult",
    "OfflineReplica",
    "PartitionKey",
    "PartitionLogEnd",
    "PartitionLogStart",
    "ReplicaFetchPartition",
    "ReplicaFetchRequest",
    "ReplicaFetchResponse",
    "ReplicaFetchResult",
    "ReportLogEndsRequest",
    "ReportLogEndsResponse",
]

_T = TypeVar("_T")

PerReplica = Annotated[list[_T], Meta(max_length=REPLICATION_FACTOR_MAX)]
PerChange = Annotated[list[_T], Meta(max_length=ALTER_PARTITION_ENTRIES_MAX)]

ALTER_PARTITION_CONTAINERS_MAX: Final = 3 + 4 * ALTER_PARTITION_ENTRIES_MAX
"""Arrays in the largest ALTER_PARTITION: the message, its lists, three of each entry, and keys."""

LOG_ENDS_CONTAINERS_MAX: Final = 2 + ALTER_PARTITION_ENTRIES_MAX
"""Arrays in the largest REPORT_LOG_ENDS: the message, its list, and one for each entry."""


class PartitionKey(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1


class ReplicaFetchPartition(Part, array_like=True, gc=False):
    """A follower's report of its copy. By `last_epoch` the answer has the point of divergence, if
    the logs diverge. `recheck`: the last bytes were damaged, so the leader verifies them.
    `readers_wait`: a new high watermark is sent at once; otherwise with the next news, or a few
    milliseconds later."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    offset: Int64 = 0
    last_epoch: Int32 = NO_EPOCH
    flushed_offset: Int64 = 0
    log_start_offset: Int64 = 0
    recheck: bool = False
    readers_wait: bool = True
    saved_epoch: Int32 = NO_EPOCH


class ReplicaFetchRequest(Request, array_like=True, gc=False):
    """Names the partitions with news; the leader keeps the rest of the session, and answers on news
    of any partition. `session_id` 0 begins a session, with `session_epoch` 0; each further request
    has the next epoch, from 1 on.

    `ends_wait`: not a fetch, without entries and epoch. The session's waiting fetch is answered
    now, so that the next one may be sent.
    """

    API: ClassVar[Api] = Api.REPLICA_FETCH
    replica_id: Int32 = -1
    broker_epoch: Int64 = -1
    session_id: Int64 = 0
    session_epoch: UInt31 = 0
    max_wait_ms: Int32 = 0
    bytes_max: Int64 = 0
    partition_bytes_max: Int64 = 0
    partitions: PerPartition[ReplicaFetchPartition] = []
    forgotten: PerPartition[PartitionKey] = []
    ends_wait: bool = False


class ReplicaFetchResult(Part, array_like=True, gc=False):
    """With LOG_TRUNCATED, the logs diverge: `diverging_epoch` is the leader's newest epoch up to
    the follower's `last_epoch`, and ended there at `diverging_end_offset`. With OFFSET_OUT_OF_RANGE
    and a log start after the follower's end, the entry's bytes are no batches but the leader's
    producer states of the deleted rows. `epoch_start_offset`: the end of the leader's log when it
    began to lead, if the follower must save the epoch on its disk once it has copied that far; -1:
    it need not. `arrived_us`: the latest arrival of rows in these segments that expire by arrival
    instead of their own times; 0: none; -1: not reported.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: Int32 = 0
    error_message: str = ""
    leader_epoch: Int32 = NO_EPOCH
    log_start_offset: Int64 = -1
    high_watermark: Int64 = -1
    diverging_epoch: Int32 = NO_EPOCH
    diverging_end_offset: Int64 = -1
    batch_bytes: Int64 = 0
    log_start_saved: Int64 = -1
    flush_offset: Int64 = 0
    epoch_start_offset: Int64 = -1
    arrived_us: Int64 = -1


class ReplicaFetchResponse(Response, array_like=True, gc=False):
    """Partitions without news are left out. Batches follow in the order of the results."""

    API: ClassVar[Api] = Api.REPLICA_FETCH
    session_id: Int64 = 0
    partitions: PerPartition[ReplicaFetchResult] = []


class AlterPartition(Part, array_like=True, gc=False):
    """The in-sync replicas that a partition's leader proposes, accepted only while the partition is
    at both epochs. `broker_epochs`: -1 for a member that was in sync and has not reported under
    this leader. `ends_move`: the replicas that stay after a move have on disk what producers were
    promised."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    partition_epoch: Int32 = -1
    in_sync_replicas: PerReplica[Int32] = []
    broker_epochs: PerReplica[Int64] = []
    ends_move: bool = False


class OfflineReplica(Part, array_like=True, gc=False):
    """A replica of the sender that accepts no writes, or has lost rows. With `leader_epoch`, it is
    about to be created again: it is out of sync in a later leader epoch than this."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH


class AlterPartitionRequest(Request, array_like=True, gc=False):
    """A leader asks the controller to change in-sync replicas (KIP-497), each partition on its own;
    the answer has an entry for each, in order. `offline` replicas leave the in-sync set, and others
    lead."""

    API: ClassVar[Api] = Api.ALTER_PARTITION
    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    partitions: PerChange[AlterPartition] = []
    offline: PerChange[OfflineReplica] = []


class AlterPartitionResult(Part, array_like=True, gc=False):
    """Without an error: the present state, which is what was proposed or came after it."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: Int32 = 0
    error_message: str = ""
    leader_epoch: Int32 = NO_EPOCH
    partition_epoch: Int32 = -1
    in_sync_replicas: PerReplica[Int32] = []


class AlterPartitionResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.ALTER_PARTITION
    partitions: PerChange[AlterPartitionResult] = []
    offline: PerChange[AlterPartitionResult] = []


class PartitionLogEnd(Part, array_like=True, gc=False):
    """The end of the sender's log of a partition without a leader. -1: the log cannot be read to
    its end. -2: there is none; also from a leader that has the only replica, which then has no
    leader."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    last_epoch: Int32 = NO_EPOCH
    end_offset: Annotated[int, Meta(ge=-2, le=2**63 - 1)] = -1
    log_start_offset: Int64 = 0
    is_offline: bool = False


class PartitionLogStart(Part, array_like=True, gc=False):
    """Rows of the sender's log below this offset were deleted, by another log's report: the sender
    deletes them and reports its log again, before a leader is elected."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    log_start_offset: Int64 = 0


class ReportLogEndsRequest(Request, array_like=True, gc=False):
    """A broker reports the ends of its logs without a leader to the controller, which elects a
    leader from several reports."""

    API: ClassVar[Api] = Api.REPORT_LOG_ENDS
    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    partitions: PerChange[PartitionLogEnd] = []


class ReportLogEndsResponse(Response, array_like=True, gc=False):
    """The controller has recorded the report. What follows comes with the metadata, perhaps much
    later."""

    API: ClassVar[Api] = Api.REPORT_LOG_ENDS
    starts: PerChange[PartitionLogStart] = []
