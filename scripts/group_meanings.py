"""The meanings of the fields of groups' messages, and their errors, for `protocol_model`."""

from __future__ import annotations

from typing import Final

from quiverlog import errors as e
from quiverlog.wire.apis import Api

__all__ = ["GROUPS", "GROUP_ERRORS"]

_STATES: Final = "0 empty, 1 assigning, 2 reconciling, 3 stable"
_TYPES: Final = "1 consumer, 2 observer, 3 simple"

GROUPS: Final[dict[str, str]] = {
    "AlterGroupOffsetsRequest.entries": "what is set, each partition once; offset -1: its offset"
    " is deleted",
    "AlterGroupOffsetsResponse.entries": "in the order of the request",
    "CommitOffsetsRequest.entries": "each partition once",
    "CommitOffsetsRequest.member_epoch": "under which the rows were read",
    "CommitOffsetsRequest.member_id": "of the member that commits; empty: no member",
    "CommitOffsetsResponse.entries": "in the order of the request",
    "CommittedOffset.leader_epoch": "leader epoch of the row before `offset`; -1: not known",
    "CommittedOffset.offset": "of the first row that is not processed",
    "DeleteGroupsRequest.groups": "names of groups",
    "DeleteGroupsResponse.groups": "in the order of the request",
    "DescribeGroupsRequest.groups": "names of groups; those that the broker does not coordinate are"
    " left out of the answer",
    "DescribeGroupsResponse.groups": "by name",
    "FetchOffsetsRequest.stable": "true: a partition with a pending offset of a transaction is"
    " answered UNSTABLE_OFFSETS",
    "FetchOffsetsRequest.topics": "whose offsets; nil: all that the group has",
    "FetchedOffset.leader_epoch": "as it was committed",
    "FetchedOffset.offset": "of the first row that is not processed; -1: none is committed",
    "GroupDescription.epoch": "counts the changes of members and of their topics",
    "GroupDescription.state": _STATES,
    "GroupDescription.target_epoch": "the newest for which partitions are distributed",
    "GroupDescription.type": _TYPES,
    "GroupHeartbeatRequest.max_wait_ms": "how long the answer may be held back while there is"
    " nothing new for the member; its next heartbeat ends that",
    "GroupHeartbeatRequest.member_epoch": "0 joins, -1 leaves, -2 leaves for a while (with an"
    " `instance_id`); else the one that was answered last",
    "GroupHeartbeatRequest.member_id": "16 random bytes, made by the client",
    "GroupHeartbeatRequest.owned": "the partitions that the member has at the moment; nil: as"
    " before",
    "GroupHeartbeatRequest.rack": "rack of the member; empty: unknown",
    "GroupHeartbeatRequest.topics": "names of the topics to read; nil: as before",
    "GroupHeartbeatResponse.assignment": "all that the member may read now; nil: as before",
    "GroupHeartbeatResponse.member_epoch": "under which the member beats and commits from now on",
    "GroupListing.epoch": "counts the changes of members and of their topics",
    "GroupListing.state": _STATES,
    "GroupListing.type": _TYPES,
    "GroupMember.assignment": "what it may read",
    "GroupMember.epoch": "the member's epoch",
    "GroupMember.member_id": "16 bytes",
    "GroupMember.rack": "rack of the member; empty: unknown",
    "GroupMember.revoking": "what it has been told to give up, and still has",
    "GroupMember.silent_ms": "since its last heartbeat; -1: not known",
    "GroupMember.state": "0 joining, 1 stable, 2 unrevoked, 3 unreleased, 4 left for a while",
    "GroupMember.target": "what it is to have",
    "GroupMember.topics": "names of the topics that it subscribes to",
    "GroupOffset.leader_epoch": "as it was committed",
    "GroupOffset.member_id": "of the member that has the partition; empty: none",
    "GroupOffset.offset": "of the first row that is not processed; -1: none is committed",
    "ListGroupsRequest.states": f"{_STATES}; nil: all",
    "ListGroupsRequest.types": f"{_TYPES}; nil: all",
    "ListGroupsResponse.groups": "in the order of their names",
    "OffsetResult.error_code": "0: taken, and safe",
    "TopicPartitions.partitions": "numbers of its partitions",
    "AssignedTopic.partitions": "numbers of its partitions",
    "assignor": "`uniform` or `range`; empty: that of the group, or `uniform`",
    "GroupMember.rows_per_s": "of a Spark query, by its last trigger",
    "GroupMember.title": "of a Spark query; empty: a consumer",
    "ReportProgressRequest.positions": "where its next micro-batch begins, each partition once",
    "ReportProgressRequest.reporter": "16 random bytes of a query's run: two of"
    " one name are two members",
    "ReportProgressResponse.reporter_count": "queries that have reported under the name within a"
    " minute",
    "ReportProgressRequest.rows_per_s": "by the query's last trigger",
    "ReportedPosition.leader_epoch": "leader epoch of the row before `next_offset`; -1: not known",
    "title": "for people: the query's name, its micro-batch",
    "beat": "grows within the member's life; an older one changes nothing",
    "committed_us": "when it was committed, microseconds since 1970; 0: never",
    "first_group": "first name of the page that is asked for",
    "heartbeat_interval_ms": "the next heartbeat is due after this time",
    "instance_id": "names the member over its restarts; empty: it has no such name",
    "is_pending": "a transaction that commits another offset is being decided",
    "member_count": "members of the group",
    "members": "by member id",
    "metadata": "what the member committed with the offset; at most 4096 bytes as UTF-8",
    "next_group": "`first_group` of the next page; empty: there is none",
    "next_page": "`page` of the next request for the same, greater than the last one; empty: all"
    " was answered",
    "offsets": "one entry per partition",
    "page": "`next_page` of the answer before; empty: from the beginning",
    "rebalance_timeout_ms": "a member that has not given up in this time what it was told to is"
    " fenced; 1,000 to 3,600,000; -1: as before, at first 300,000",
    "session_timeout_ms": "a member without a heartbeat for this time is fenced; 6,000 to"
    " 1,800,000; -1: as before, at first 45,000",
}

_COORDINATOR: Final = (
    e.NotLeader,
    e.CoordinatorNotReady,
    e.FeatureNotFinalised,
    e.InvalidGroup,
    e.NotEnoughReplicas,
    e.NotEnoughReplicasAfterAppend,
    e.RequestTimedOut,
    e.OutcomeUnknown,
    e.DiskFull,
    e.CorruptLog,
    e.UnsupportedFormat,
)
_OFFSETS: Final = (
    *_COORDINATOR,
    e.InvalidRequest,
    e.UnknownTopicId,
    e.UnknownPartition,
    e.UnstableOffsets,
    e.GroupFull,
    e.ThrottledBroker,
)

GROUP_ERRORS: Final[dict[Api, tuple[type[e.QuiverlogError], ...]]] = {
    Api.GROUP_HEARTBEAT: (
        *_COORDINATOR,
        e.NotController,
        e.PolicyViolation,
        e.UnknownMember,
        e.FencedMemberEpoch,
        e.FencedInstance,
        e.UnsupportedAssignor,
        e.GroupFull,
    ),
    Api.COMMIT_OFFSETS: (
        *_OFFSETS,
        e.NotController,
        e.PolicyViolation,
        e.UnknownMember,
        e.FencedMemberEpoch,
        e.GroupNotEmpty,
    ),
    Api.FETCH_OFFSETS: (*_COORDINATOR, e.UnstableOffsets),
    Api.LIST_GROUPS: (),
    Api.DESCRIBE_GROUPS: (e.InvalidGroup,),
    Api.ALTER_GROUP_OFFSETS: (*_OFFSETS, e.NotController, e.PolicyViolation, e.GroupNotEmpty),
    Api.DELETE_GROUPS: (*_COORDINATOR, e.GroupNotEmpty, e.ThrottledBroker, e.UnstableOffsets),
    Api.REPORT_PROGRESS: (
        e.NotLeader,
        e.CoordinatorNotReady,
        e.FeatureNotFinalised,
        e.NotController,
        e.PolicyViolation,
        e.InvalidGroup,
        e.InvalidRequest,
        e.GroupFull,
        e.CorruptLog,
        e.UnsupportedFormat,
    ),
}
