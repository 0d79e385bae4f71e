"""What brokers say to each other about copies of partitions: typed values, as in `messages`.

Owns the field lists of the requests between brokers; clients send none of these. Why copying is
not FETCH: docs/adr/0028.
"""

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
    """A partition that the session is without from now on."""

    topic_id: TopicId = b""
    partition: Int32 = -1


class ReplicaFetchPartition(Part, array_like=True, gc=False):
    """What a follower says of its copy. `offset` is the end of its log, where it goes on; and
    `last_epoch` the newest leader epoch in its list (NO_EPOCH: it has none): the answer tells where
    the logs part, if they do. `recheck`: bytes that came were damaged, so they are to be verified.
    `readers_wait`: a new high watermark is told at once; else it may come with the next news, or a
    few milliseconds later. `saved_epoch`: the newest epoch of the list that is on its disk, or
    NO_EPOCH.
    """

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
    """Names the partitions of which there is something new to say: the leader remembers the rest
    of the session. `session_id` 0 begins one, with `session_epoch` 0; each request after that has
    the next epoch, from 1 on. `forgotten` is taken first.

    Held back for `max_wait_ms` at most, until there is news of any partition of the session.

    With `ends_wait` it is no fetch: the one of the session that is held back is answered now, so
    that the next one may be sent. It has no entries and no epoch, and is answered without any.
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
    """With LOG_TRUNCATED, the logs part: `diverging_epoch` is the newest epoch up to the follower's
    `last_epoch` that the leader knows, and ended there at `diverging_end_offset`. With
    OFFSET_OUT_OF_RANGE and a log start behind the follower's end, the bytes of its entry are no
    batches, but what the leader knows of the producers of the rows that it has given up.
    `epoch_start_offset`: where the leader's log ended when it began to lead, if its follower is to
    put the epoch on its disk once it has copied so far; -1: it need not. `arrived_us`: when the
    latest rows of these segments arrived that are judged by it, and not by their own times; 0: none
    is; -1 of a leader that does not tell.
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
    """What the leader of a partition wants its in-sync replicas to be. It is taken only while the
    partition is at both epochs. `broker_epochs`: one for each member, as it has said to the leader;
    -1 where it was in sync and has said nothing under this leader. `ends_move`: of a partition that
    moves, those that stay have on their disks what was promised to lie on disks.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    partition_epoch: Int32 = -1
    in_sync_replicas: PerReplica[Int32] = []
    broker_epochs: PerReplica[Int64] = []
    ends_move: bool = False


class OfflineReplica(Part, array_like=True, gc=False):
    """A replica of the asker that takes no writes, or has lost rows. A `leader_epoch` says that it
    is about to be made anew: it is out of sync from then on in a later leader epoch than this.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH


class AlterPartitionRequest(Request, array_like=True, gc=False):
    """A leader asks the controller to change who is in sync (KIP-497). Each partition is decided
    on its own. Of those in `offline` the asker's replica takes no writes or has lost rows: it
    leaves, and where it leads another one does.
    """

    API: ClassVar[Api] = Api.ALTER_PARTITION
    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    partitions: PerChange[AlterPartition] = []
    offline: PerChange[OfflineReplica] = []


class AlterPartitionResult(Part, array_like=True, gc=False):
    """Without an error: what holds now, which is what was asked for or what came after it."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: Int32 = 0
    error_message: str = ""
    leader_epoch: Int32 = NO_EPOCH
    partition_epoch: Int32 = -1
    in_sync_replicas: PerReplica[Int32] = []


class AlterPartitionResponse(Response, array_like=True, gc=False):
    """One entry per partition of the request, in its order; those of `offline` have a list of
    their own.
    """

    API: ClassVar[Api] = Api.ALTER_PARTITION
    partitions: PerChange[AlterPartitionResult] = []
    offline: PerChange[AlterPartitionResult] = []


class PartitionLogEnd(Part, array_like=True, gc=False):
    """Where the asker's log of a partition without a leader ends: `end_offset`, and the leader
    epoch of its last row. -1: the log cannot be read to its end. -2: there is none. `leader_epoch`
    is that of the partition, as the asker knows it. -2 also comes from a leader that has the only
    replica: it has no leader then. `is_offline`: the log takes no writes before the asker is
    started again, so it cannot lead, whatever it has.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    last_epoch: Int32 = NO_EPOCH
    end_offset: Annotated[int, Meta(ge=-2, le=2**63 - 1)] = -1
    log_start_offset: Int64 = 0
    is_offline: bool = False


class PartitionLogStart(Part, array_like=True, gc=False):
    """Rows of the asker's log below this offset were deleted, as another log says: it is to give
    them up, and to tell of its log again, before anybody is elected to lead.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    log_start_offset: Int64 = 0


class ReportLogEndsRequest(Request, array_like=True, gc=False):
    """A broker tells the controller how far its logs without a leader reach: from several of
    these a leader may be found.
    """

    API: ClassVar[Api] = Api.REPORT_LOG_ENDS
    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    partitions: PerChange[PartitionLogEnd] = []


class ReportLogEndsResponse(Response, array_like=True, gc=False):
    """The controller has heard it. What follows comes with the metadata, perhaps much later."""

    API: ClassVar[Api] = Api.REPORT_LOG_ENDS
    starts: PerChange[PartitionLogStart] = []
