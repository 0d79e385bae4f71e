"""Consumer groups: members beat, commit and fetch offsets (28 to 30); people and programs list,
describe, reset and delete groups (31 to 34); Spark queries report where they read (35).

A request is checked by its `check`: what is beyond a bound ends no connection.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Protocol, TypeVar

from msgspec import Meta

from quiverlog.errors import InvalidGroup, InvalidRequest
from quiverlog.limits import (
    ASSIGNOR_CHARS_MAX,
    CLIENT_ID_CHARS_MAX,
    GROUP_INSTANCE_CHARS_MAX,
    GROUP_MEMBERS_MAX,
    GROUP_METADATA_BYTES_MAX,
    GROUP_NAME_CHARS_MAX,
    GROUP_PARTITIONS_MAX,
    GROUP_RACK_CHARS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_MIN,
    GROUP_SESSION_TIMEOUT_MS_MAX,
    GROUP_SESSION_TIMEOUT_MS_MIN,
    GROUP_TITLE_CHARS_MAX,
    GROUP_TOPICS_MAX,
    MEMBER_ID_BYTES,
)
from quiverlog.types import GROUP_NAME, NO_EPOCH, TOPIC_NAME

from .messages import (
    Api,
    BrokerEndpoint,
    ErrorCode,
    Few,
    Int32,
    Int64,
    Known,
    Moment,
    NodeId,
    Part,
    PerTopic,
    Request,
    Response,
    TopicId,
    UInt31,
)

__all__ = [
    "AS_BEFORE",
    "COMMIT_OFFSETS_CONTAINERS_MAX",
    "HEARTBEAT_CONTAINERS_MAX",
    "OFFSETS_PER_REQUEST_MAX",
    "REPORT_CONTAINERS_MAX",
    "AlterGroupOffsetsRequest",
    "AlterGroupOffsetsResponse",
    "AssignedTopic",
    "CommitOffsetsRequest",
    "CommitOffsetsResponse",
    "CommittedOffset",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "FetchOffsetsRequest",
    "FetchOffsetsResponse",
    "FetchedOffset",
    "GroupDescription",
    "GroupHeartbeatRequest",
    "GroupHeartbeatResponse",
    "GroupListing",
    "GroupMember",
    "GroupOffset",
    "GroupResult",
    "GroupState",
    "GroupType",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "MemberState",
    "OffsetResult",
    "ReportProgressRequest",
    "ReportProgressResponse",
    "ReportedPosition",
    "TopicPartitions",
    "check_group_name",
]

_T = TypeVar("_T")

AS_BEFORE: Final = -1
"""A timeout as in the heartbeat before; in the first one, the default."""
OFFSETS_PER_REQUEST_MAX: Final = GROUP_PARTITIONS_MAX
"""Entries of one request about offsets."""
# Of one at which a group's name, and a key in it, are; no client reads it.
_PAGE_BYTES_MAX: Final = 4_096

# Of a request, wide enough for `check` to refuse what is beyond the bounds.
_Many = Annotated[list[_T], Meta(max_length=2 * GROUP_PARTITIONS_MAX)]
PerMember = Annotated[list[_T], Meta(max_length=GROUP_MEMBERS_MAX)]
PerOffset = Annotated[list[_T], Meta(max_length=GROUP_PARTITIONS_MAX)]
GroupName = Annotated[str, Meta(max_length=GROUP_NAME_CHARS_MAX)]
MemberId = Annotated[bytes, Meta(max_length=MEMBER_ID_BYTES)]
InstanceId = Annotated[str, Meta(max_length=GROUP_INSTANCE_CHARS_MAX)]
Rack = Annotated[str, Meta(max_length=GROUP_RACK_CHARS_MAX)]
ClientId = Annotated[str, Meta(max_length=CLIENT_ID_CHARS_MAX)]
Assignor = Annotated[str, Meta(max_length=ASSIGNOR_CHARS_MAX)]
Title = Annotated[str, Meta(max_length=GROUP_TITLE_CHARS_MAX)]
OffsetMetadata = Annotated[str, Meta(max_length=GROUP_METADATA_BYTES_MAX)]
Page = Annotated[bytes, Meta(max_length=_PAGE_BYTES_MAX)]
# Of epochs: JSON has no larger numbers.
UInt53 = Annotated[int, Meta(ge=0, le=2**53 - 1)]

# A message, its lists, and for each topic an entry with its list of partitions.
REPORT_CONTAINERS_MAX: Final = 4 + 2 * GROUP_PARTITIONS_MAX
HEARTBEAT_CONTAINERS_MAX: Final = 4 + 2 * 2 * GROUP_PARTITIONS_MAX
COMMIT_OFFSETS_CONTAINERS_MAX: Final = 4 + 2 * GROUP_PARTITIONS_MAX


class GroupType(enum.IntEnum):
    CONSUMER = 1
    OBSERVER = 2
    SIMPLE = 3


class GroupState(enum.IntEnum):
    EMPTY = 0
    ASSIGNING = 1
    RECONCILING = 2
    STABLE = 3


class MemberState(enum.IntEnum):
    JOINING = 0
    STABLE = 1
    UNREVOKED = 2
    UNRELEASED = 3
    LEFT = 4


_Type = Annotated[int, Meta(ge=0, le=int(max(GroupType)))]
_State = Annotated[int, Meta(ge=0, le=int(max(GroupState)))]
_MemberState = Annotated[int, Meta(ge=0, le=int(max(MemberState)))]


# --- checks -------------------------------------------------------------------------------------
def check_group_name(group: str) -> None:
    """Raises InvalidGroup."""
    if not GROUP_NAME.fullmatch(group) or group.startswith("__"):
        raise InvalidGroup(
            f"{group[:64]!r} is no name of a group: it has 1 to {GROUP_NAME_CHARS_MAX} letters,"
            " digits and `._-`, and begins with no `__`."
        )


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"`{name}` is {value}, allowed are {low} to {high}.")


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(f"{count} {name}, allowed are {most}.")


def _check_member_id(member_id: bytes) -> None:
    if len(member_id) != MEMBER_ID_BYTES:
        raise InvalidRequest(f"a member id has {MEMBER_ID_BYTES} bytes, this one {len(member_id)}.")


class _Named(Protocol):
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partition(self) -> int: ...


def _check_each_once(entries: Sequence[_Named]) -> None:
    _check_count("entries", len(entries), OFFSETS_PER_REQUEST_MAX)
    # Two offsets of a partition have no order in one append.
    seen: set[tuple[bytes, int]] = set()
    for one in entries:
        key = (one.topic_id, one.partition)
        if key in seen:
            raise InvalidRequest(
                f"partition {one.partition} of topic {one.topic_id.hex()} is named twice."
            )
        seen.add(key)


class TopicPartitions(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partitions: _Many[Int32] = []


def _check_partitions(name: str, topics: Sequence[TopicPartitions]) -> None:
    seen: set[bytes] = set()
    for one in topics:
        if one.topic_id in seen:
            raise InvalidRequest(f"`{name}`: topic {one.topic_id.hex()} is named twice.")
        seen.add(one.topic_id)
    count = sum(len(one.partitions) for one in topics)
    _check_count(f"partitions in `{name}`", count, GROUP_PARTITIONS_MAX)


# --- GROUP_HEARTBEAT: a member joins, shows that it lives, and leaves ---------------------------
class GroupHeartbeatRequest(Request, array_like=True, gc=False):
    """A member joins with epoch 0, beats under its epoch, and leaves with -1 or -2. What is nil,
    or a timeout of -1, is as in its heartbeat before."""

    API: ClassVar[Api] = Api.GROUP_HEARTBEAT
    group: str = ""
    member_id: bytes = b""
    member_epoch: Int64 = 0
    instance_id: str = ""
    rack: str = ""
    topics: _Many[str] | None = None
    assignor: str = ""
    rebalance_timeout_ms: Int64 = AS_BEFORE
    session_timeout_ms: Int64 = AS_BEFORE
    owned: _Many[TopicPartitions] | None = None
    beat: Int64 = 0
    max_wait_ms: Int32 = 0

    def check(self) -> None:
        """Raises InvalidGroup, InvalidRequest."""
        check_group_name(self.group)
        _check_member_id(self.member_id)
        _check_number("member_epoch", self.member_epoch, -2, 2**63 - 1)
        _check_number("beat", self.beat, 0, 2**63 - 1)
        _check_number("max_wait_ms", self.max_wait_ms, 0, 2**31 - 1)
        _check_chars("instance_id", self.instance_id, GROUP_INSTANCE_CHARS_MAX)
        _check_chars("rack", self.rack, GROUP_RACK_CHARS_MAX)
        _check_chars("assignor", self.assignor, ASSIGNOR_CHARS_MAX)
        if self.rebalance_timeout_ms != AS_BEFORE:
            _check_number(
                "rebalance_timeout_ms",
                self.rebalance_timeout_ms,
                GROUP_REBALANCE_TIMEOUT_MS_MIN,
                GROUP_REBALANCE_TIMEOUT_MS_MAX,
            )
        if self.session_timeout_ms != AS_BEFORE:
            _check_number(
                "session_timeout_ms",
                self.session_timeout_ms,
                GROUP_SESSION_TIMEOUT_MS_MIN,
                GROUP_SESSION_TIMEOUT_MS_MAX,
            )
        if self.topics is not None:
            self._check_topics(self.topics)
        if self.owned is not None:
            _check_partitions("owned", self.owned)

    def _check_topics(self, topics: list[str]) -> None:
        _check_count("topics", len(topics), GROUP_TOPICS_MAX)
        if len(set(topics)) != len(topics):
            raise InvalidRequest("`topics` names a topic twice.")
        for name in topics:
            # Those that do not exist yet are read when they do: their names must be possible.
            if not TOPIC_NAME.fullmatch(name) or name.startswith("__"):
                raise InvalidRequest(
                    f"`topics`: {name[:64]!r} is no name of a topic that members may read."
                )


def _check_chars(name: str, value: str, most: int) -> None:
    if len(value) > most or not value.isprintable():
        raise InvalidRequest(
            f"`{name}` has {len(value)} characters, allowed are {most}, all of them printable."
        )


class AssignedTopic(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    name: str = ""
    partitions: PerOffset[UInt31] = []


class GroupHeartbeatResponse(Response, array_like=True, gc=False):
    """What the member has is recorded, and outlives the coordinator."""

    API: ClassVar[Api] = Api.GROUP_HEARTBEAT
    member_epoch: Int64 = 0
    heartbeat_interval_ms: UInt31 = 0
    assignment: PerOffset[AssignedTopic] | None = None
    controller: BrokerEndpoint | None = None


# --- COMMIT_OFFSETS, FETCH_OFFSETS --------------------------------------------------------------
class CommittedOffset(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = NO_EPOCH
    metadata: str = ""


class CommitOffsetsRequest(Request, array_like=True, gc=False):
    """Entries are taken one by one. Without a member: of a group that has none."""

    API: ClassVar[Api] = Api.COMMIT_OFFSETS
    group: str = ""
    member_id: bytes = b""
    member_epoch: Int64 = 0
    entries: _Many[CommittedOffset] = []

    def check(self) -> None:
        """Raises InvalidGroup, InvalidRequest."""
        check_group_name(self.group)
        if self.member_id:
            _check_member_id(self.member_id)
        _check_number("member_epoch", self.member_epoch, 0, 2**63 - 1)
        _check_each_once(self.entries)


def why_no_offset(one: CommittedOffset) -> str:
    """Return why the entry cannot be taken, whatever the group; empty: it can."""
    if one.offset < 0:
        return f"an offset is 0 or more, this one {one.offset}."
    if one.leader_epoch < NO_EPOCH:
        return f"a leader epoch is {NO_EPOCH} or more, this one {one.leader_epoch}."
    size = len(one.metadata.encode()) if one.metadata else 0
    if size > GROUP_METADATA_BYTES_MAX:
        return f"`metadata` has {size} bytes, allowed are {GROUP_METADATA_BYTES_MAX}."
    return ""


class OffsetResult(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""


class CommitOffsetsResponse(Response, array_like=True, gc=False):
    """What has no error is safe. Entries are in the order of the request."""

    API: ClassVar[Api] = Api.COMMIT_OFFSETS
    entries: PerOffset[OffsetResult] = []
    controller: BrokerEndpoint | None = None


class FetchOffsetsRequest(Request, array_like=True, gc=False):
    """`topics` nil: all partitions with an offset. In pages, where metadata is long."""

    API: ClassVar[Api] = Api.FETCH_OFFSETS
    group: str = ""
    topics: _Many[TopicPartitions] | None = None
    stable: bool = False
    page: bytes = b""

    def check(self) -> None:
        """Raises InvalidGroup, InvalidRequest."""
        check_group_name(self.group)
        if self.topics is not None:
            _check_partitions("topics", self.topics)


class FetchedOffset(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    offset: Known = -1
    leader_epoch: Int32 = NO_EPOCH
    metadata: OffsetMetadata = ""
    committed_us: Moment = 0


class FetchOffsetsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.FETCH_OFFSETS
    offsets: PerOffset[FetchedOffset] = []
    next_page: Page = b""


# --- LIST_GROUPS, DESCRIBE_GROUPS ---------------------------------------------------------------
class ListGroupsRequest(Request, array_like=True, gc=False):
    """Asks a broker for the groups that it coordinates, in pages."""

    API: ClassVar[Api] = Api.LIST_GROUPS
    states: Few[Int32] | None = None
    types: Few[Int32] | None = None
    first_group: str = ""


class GroupListing(Part, array_like=True, gc=False):
    group: GroupName = ""
    type: _Type = GroupType.CONSUMER
    state: _State = 0
    epoch: UInt53 = 0
    member_count: UInt31 = 0


class ListGroupsResponse(Response, array_like=True, gc=False):
    """The groups that the broker `node_id` coordinates, in order."""

    API: ClassVar[Api] = Api.LIST_GROUPS
    node_id: NodeId = -1
    groups: PerTopic[GroupListing] = []
    next_group: GroupName = ""


class DescribeGroupsRequest(Request, array_like=True, gc=False):
    """Asks a broker for groups that it coordinates, with members and offsets, in pages."""

    API: ClassVar[Api] = Api.DESCRIBE_GROUPS
    groups: PerTopic[str] = []
    page: bytes = b""


class GroupMember(Part, array_like=True, gc=False):
    """`silent_ms`: since its last heartbeat."""

    member_id: MemberId = b""
    instance_id: InstanceId = ""
    client_id: ClientId = ""
    host: str = ""
    rack: Rack = ""
    state: _MemberState = 0
    epoch: UInt53 = 0
    topics: PerOffset[str] = []
    assignment: PerOffset[TopicPartitions] = []
    revoking: PerOffset[TopicPartitions] = []
    target: PerOffset[TopicPartitions] = []
    silent_ms: Known = -1
    title: Title = ""
    rows_per_s: UInt53 = 0


class GroupOffset(Part, array_like=True, gc=False):
    """`member_id`: which member has the partition; empty: none."""

    topic_id: TopicId = b""
    name: str = ""
    partition: UInt31 = 0
    offset: Known = -1
    leader_epoch: Int32 = NO_EPOCH
    metadata: OffsetMetadata = ""
    committed_us: Moment = 0
    is_pending: bool = False
    member_id: MemberId = b""


class GroupDescription(Part, array_like=True, gc=False):
    """A group whose members and offsets take several pages is in each of these."""

    group: GroupName = ""
    error_code: ErrorCode = 0
    error_message: str = ""
    type: _Type = GroupType.CONSUMER
    state: _State = 0
    epoch: UInt53 = 0
    target_epoch: UInt53 = 0
    assignor: Assignor = ""
    members: PerMember[GroupMember] = []
    offsets: PerOffset[GroupOffset] = []


class DescribeGroupsResponse(Response, array_like=True, gc=False):
    """What the broker `node_id` has of these groups, by their names."""

    API: ClassVar[Api] = Api.DESCRIBE_GROUPS
    node_id: NodeId = -1
    groups: PerTopic[GroupDescription] = []
    next_page: Page = b""


# --- ALTER_GROUP_OFFSETS, DELETE_GROUPS ---------------------------------------------------------
class AlterGroupOffsetsRequest(Request, array_like=True, gc=False):
    """Sets offsets, or deletes those of -1, of partitions that no member has."""

    API: ClassVar[Api] = Api.ALTER_GROUP_OFFSETS
    group: str = ""
    entries: _Many[CommittedOffset] = []
    validate_only: bool = False

    def check(self) -> None:
        """Raises InvalidGroup, InvalidRequest."""
        check_group_name(self.group)
        _check_each_once(self.entries)


class AlterGroupOffsetsResponse(Response, array_like=True, gc=False):
    """What has no error is set or deleted, and safe."""

    API: ClassVar[Api] = Api.ALTER_GROUP_OFFSETS
    entries: PerOffset[OffsetResult] = []
    controller: BrokerEndpoint | None = None


class DeleteGroupsRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_GROUPS
    groups: PerTopic[str] = []


class GroupResult(Part, array_like=True, gc=False):
    group: str = ""
    error_code: ErrorCode = 0
    error_message: str = ""


class DeleteGroupsResponse(Response, array_like=True, gc=False):
    """Groups without an error are gone. They are in the order of the request."""

    API: ClassVar[Api] = Api.DELETE_GROUPS
    groups: PerTopic[GroupResult] = []


# --- REPORT_PROGRESS: a Spark query is shown beside the groups ----------------------------------
class ReportedPosition(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = 0
    next_offset: Int64 = 0
    leader_epoch: Int32 = NO_EPOCH


class ReportProgressRequest(Request, array_like=True, gc=False):
    """Where a query reads. Nothing is decided by it: the checkpoint has the position."""

    API: ClassVar[Api] = Api.REPORT_PROGRESS
    group: str = ""
    reporter: bytes = b""
    title: str = ""
    positions: _Many[ReportedPosition] = []
    rows_per_s: UInt53 = 0

    def check(self) -> None:
        """Raises InvalidGroup, InvalidRequest."""
        check_group_name(self.group)
        if len(self.reporter) != MEMBER_ID_BYTES:
            raise InvalidRequest(
                f"`reporter` has {MEMBER_ID_BYTES} bytes, not {len(self.reporter)}."
            )
        _check_count("characters in `title`", len(self.title), GROUP_TITLE_CHARS_MAX)
        _check_count("positions", len(self.positions), GROUP_PARTITIONS_MAX)
        if len({(one.topic_id, one.partition) for one in self.positions}) < len(self.positions):
            raise InvalidRequest("`positions`: a partition is named twice.")
        for one in self.positions:
            if one.next_offset < 0 or one.leader_epoch < NO_EPOCH or one.partition < 0:
                raise InvalidRequest(
                    f"`positions`: partition {one.partition} at offset {one.next_offset}, leader"
                    f" epoch {one.leader_epoch}: the least are 0, 0 and {NO_EPOCH}."
                )


class ReportProgressResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.REPORT_PROGRESS
    controller: BrokerEndpoint | None = None
    reporter_count: UInt31 = 0
