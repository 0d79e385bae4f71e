"""What brokers say to each other about copies of partitions: typed values, as in `messages`.

Owns the field lists of the requests between brokers; clients send none of these. Why copying is
not FETCH: docs/adr/0028.
"""

from __future__ import annotations

from quiverlog.types import NO_EPOCH
from quiverlog.wire.messages import Int32, Int64, Part, TopicId

__all__ = ["PartitionKey", "ReplicaFetchPartition", "ReplicaFetchResult"]


class PartitionKey(Part, array_like=True, gc=False):
    """A partition that the session is without from now on."""

    topic_id: TopicId = b""
    partition: Int32 = -1


class ReplicaFetchPartition(Part, array_like=True, gc=False):
    """What a follower says of its copy. `offset` is the end of its log, where it goes on; and
    `last_epoch` the newest leader epoch in its list (NO_EPOCH: it has none): the answer tells where
    the logs part, if they do.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    offset: Int64 = 0
    last_epoch: Int32 = NO_EPOCH
    flushed_offset: Int64 = 0
    log_start_offset: Int64 = 0


class ReplicaFetchResult(Part, array_like=True, gc=False):
    """With LOG_TRUNCATED, the logs part: `diverging_epoch` is the newest epoch up to the follower's
    `last_epoch` that the leader knows, and ended there at `diverging_end_offset`.
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
