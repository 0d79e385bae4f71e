"""Groups: what their coordinators have of them, how far they lag behind, and what an operator does
about one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal, TypeVar, get_args

from msgspec.structs import replace

from quiverlog.client.base.arguments import shown
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import moment
from quiverlog.client.cluster.each_broker import ask_each_broker
from quiverlog.client.cluster.group_coordinator import ask_once
from quiverlog.client.cluster.partition_questions import (
    describe_ranges,
    offsets_with_epochs,
    raise_for,
)
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    InvalidArgument,
    InvalidGroup,
    QuiverlogError,
    UnknownTopic,
    error_from_code,
)
from quiverlog.types import EARLIEST, LATEST, TopicPartition
from quiverlog.wire import messages as m
from quiverlog.wire.group_messages import (
    OFFSETS_PER_REQUEST_MAX,
    AlterGroupOffsetsRequest,
    AlterGroupOffsetsResponse,
    CommittedOffset,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupDescription,
    GroupMember,
    GroupOffset,
    GroupState,
    GroupType,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberState,
)

__all__ = [
    "GroupDetail",
    "GroupInfo",
    "GroupList",
    "GroupPartition",
    "GroupStateName",
    "GroupTypeName",
    "MemberInfo",
    "alter_group_offsets",
    "ask_coordinator",
    "delete_group",
    "describe_group",
    "list_groups",
]

T = TypeVar("T", bound=m.Response)
GroupStateName = Literal["empty", "assigning", "reconciling", "stable"]
GroupTypeName = Literal["consumer", "observer", "simple"]
_STATES: Final = {name: GroupState[name.upper()] for name in get_args(GroupStateName)}
_TYPES: Final = {name: GroupType[name.upper()] for name in get_args(GroupTypeName)}


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group, as its coordinator has it.

    Attributes:
        type: "consumer"; "observer": a Spark query; "simple": offsets without members.
        state: "empty"; "assigning": its partitions are about to be distributed; "reconciling":
            members give up or wait for partitions; "stable".
        coordinator: node id.
    """

    group: str
    type: str
    state: str
    epoch: int
    members: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupList:
    """`silent`: node ids of brokers that did not answer; what they coordinate is missing."""

    groups: tuple[GroupInfo, ...]
    silent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group.

    Attributes:
        member_id: hexadecimal.
        state: "joining"; "stable"; "unrevoked": has to give up partitions; "unreleased": waits
            for partitions of others; "left": for a while.
        partitions: topic -> numbers, of what it may read.
        silent_s: seconds since its last heartbeat, or report; None: unknown.
        title: of a Spark query: its name, its micro-batch; "": a consumer, or not reported.
        rows_per_s: of a Spark query.
    """

    member_id: str
    instance_id: str
    client_id: str
    host: str
    rack: str
    state: str
    epoch: int
    topics: tuple[str, ...]
    partitions: Mapping[str, tuple[int, ...]]
    silent_s: float | None
    title: str = ""
    rows_per_s: int = 0


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group has read a partition; None: unknown, or none.

    Attributes:
        committed: offset of the first row that is not processed.
        end: where the next row will go.
        lag_rows, lag_bytes: between them; without a committed offset, from the first row kept.
        lag_s: age of the first row that is not processed; 0: there is none.
        is_pending: a transaction is about to commit another offset.
        member_id, client_id, host: of the member that reads it; "": no member does. A Spark
            query has its title as `client_id`.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag_rows: int | None
    lag_bytes: int | None
    lag_s: float | None
    committed_at: datetime | None
    metadata: str
    is_pending: bool
    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """All that the cluster has of a group."""

    info: GroupInfo
    assignor: str
    members: tuple[MemberInfo, ...]
    partitions: tuple[GroupPartition, ...]


# --- the coordinator ----------------------------------------------------------------------------
def ask_coordinator(
    cluster: Cluster, group: str, request: m.Request, kind: type[T], *, makes: bool = False
) -> Operation[T]:
    """Ask until a coordinator answers. `makes`: have the controller make `__groups` where it is
    missing; else raises UnknownTopic."""

    def attempt() -> Operation[T]:
        return (yield from ask_once(cluster, group, request, kind, makes=makes))

    return (yield from cluster.retrying(attempt))


# --- looking ------------------------------------------------------------------------------------
def list_groups(
    cluster: Cluster, states: Sequence[str] | None = None, types: Sequence[str] | None = None
) -> Operation[GroupList]:
    request = ListGroupsRequest(
        states=_numbers("states", states, _STATES), types=_numbers("types", types, _TYPES)
    )
    pages, silent = yield from ask_each_broker(cluster, request, by="group")
    found: dict[str, GroupInfo] = {}
    for node_id, responses in pages.items():
        for response in responses:
            assert isinstance(response, ListGroupsResponse)
            for one in response.groups:
                info = GroupInfo(
                    one.group,
                    GroupType(one.type).name.lower(),
                    GroupState(one.state).name.lower(),
                    one.epoch,
                    one.member_count,
                    node_id,
                )
                # Two brokers have it while its leadership changes: the newer epoch counts.
                before = found.get(one.group)
                if before is None or before.epoch < info.epoch:
                    found[one.group] = info
    return GroupList(tuple(found[name] for name in sorted(found)), tuple(silent))


def _numbers(what: str, names: Sequence[str] | None, known: Mapping[str, int]) -> list[int] | None:
    if names is None:
        return None
    if unknown := [name for name in names if name not in known]:
        raise InvalidArgument(f"{what}={shown(unknown)}: give some of {', '.join(known)}.")
    return [int(known[name]) for name in names]


def describe_group(cluster: Cluster, group: str) -> Operation[GroupDetail]:
    node_id, found = yield from _described(cluster, group)
    lags = yield from _lags(cluster, found.offsets)
    members = {one.member_id: one for one in found.members}
    names = {one.topic_id: one.name for one in found.offsets}
    info = GroupInfo(
        group,
        GroupType(found.type).name.lower(),
        GroupState(found.state).name.lower(),
        found.epoch,
        len(found.members),
        node_id,
    )
    return GroupDetail(
        info,
        found.assignor,
        tuple(_member(one, names) for one in found.members),
        tuple(
            sorted(
                (_partition(one, members.get(one.member_id), lags) for one in found.offsets),
                key=lambda one: (one.topic, one.partition),
            )
        ),
    )


def _described(cluster: Cluster, group: str) -> Operation[tuple[int, GroupDescription]]:
    """Return the coordinator, and all pages as one description. Raises InvalidGroup."""
    whole: GroupDescription | None = None
    request = DescribeGroupsRequest(groups=[group])
    while True:
        try:
            response = yield from ask_coordinator(cluster, group, request, DescribeGroupsResponse)
        except UnknownTopic:
            raise _no_group(group) from None
        for one in response.groups:
            if whole is None:
                whole = one
            else:
                whole.members += one.members
                whole.offsets += one.offsets
        if whole is None:
            raise _no_group(group)
        if not response.next_page:
            return response.node_id, whole
        request = replace(request, page=response.next_page)


def _no_group(group: str) -> InvalidGroup:
    return InvalidGroup(f"there is no group {shown(group)}.")


def _member(one: GroupMember, names: Mapping[bytes, str]) -> MemberInfo:
    return MemberInfo(
        one.member_id.hex(),
        one.instance_id,
        one.client_id,
        one.host,
        one.rack,
        MemberState(one.state).name.lower(),
        one.epoch,
        tuple(one.topics),
        {
            names[share.topic_id]: tuple(share.partitions)
            for share in one.assignment
            if share.topic_id in names
        },
        None if one.silent_ms < 0 else one.silent_ms / 1000,
        one.title,
        one.rows_per_s,
    )


@dataclass(frozen=True, slots=True)
class _Lag:
    end: int
    rows: int
    byte_count: int | None = None
    seconds: float | None = None


def _partition(
    one: GroupOffset, member: GroupMember | None, lags: Mapping[TopicPartition, _Lag]
) -> GroupPartition:
    lag = lags.get(TopicPartition(one.name, one.partition))
    has_offset = one.offset >= 0
    return GroupPartition(
        one.name,
        one.partition,
        one.offset if has_offset else None,
        None if lag is None else lag.end,
        None if lag is None else lag.rows,
        None if lag is None else lag.byte_count,
        None if lag is None else lag.seconds,
        moment(one.committed_us) if has_offset else None,
        one.metadata,
        one.is_pending,
        one.member_id.hex(),
        "" if member is None else member.title or member.client_id,
        "" if member is None else member.host,
    )


def _lags(
    cluster: Cluster, offsets: Sequence[GroupOffset]
) -> Operation[dict[TopicPartition, _Lag]]:
    """Return the answers of partitions' leaders; a partition without an answer is left out."""
    if not offsets:
        return {}
    places = {TopicPartition(one.name, one.partition): one.offset for one in offsets}
    ids = {one.name: one.topic_id for one in offsets}
    bounds: list[dict[TopicPartition, int]] = []
    try:
        for at in (EARLIEST, LATEST):
            _, answers = yield from offsets_with_epochs(
                cluster,
                dict.fromkeys(places, at),
                known={},
                topic_ids=ids,
                max_wait_s=0,
                metadata_version=-1,
            )
            bounds.append({w: one.offset for w, one in answers.items() if not one.error_code})
    except QuiverlogError:
        return {}
    starts, ends = bounds
    ranges = {
        where: (max(offset, starts[where]), ends[where])
        for where, offset in places.items()
        if where in starts and where in ends
    }
    found = {w: _Lag(end, max(0, end - start)) for w, (start, end) in ranges.items()}
    behind = {where: bound for where, bound in ranges.items() if bound[0] < bound[1]}
    found.update({w: _Lag(found[w].end, 0, 0, 0.0) for w in found.keys() - behind.keys()})
    if behind:
        try:
            sizes = yield from describe_ranges(cluster, behind, bytes_max=-1, topic_ids=ids)
        except QuiverlogError:  # Rows have gone meanwhile, or a leader is away.
            return found
        now_us = datetime.now(UTC).timestamp() * 1e6
        for where, size in sizes.items():
            first_us = size.first_row_us
            age_s = max(0.0, now_us - first_us) / 1e6 if first_us >= 0 else None
            found[where] = _Lag(found[where].end, found[where].rows, size.byte_count, age_s)
    return found


# --- changing -----------------------------------------------------------------------------------
def alter_group_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, int | None],
    *,
    validate_only: bool = False,
) -> Operation[None]:
    """Set offsets, or delete those of None; all are checked before the first one changes."""
    entries: list[tuple[TopicPartition, CommittedOffset]] = []
    for where, offset in sorted(offsets.items()):
        topic = yield from cluster.topic(where.topic)
        value = -1 if offset is None else offset
        if offset is not None and offset < 0:
            raise InvalidArgument(f"offsets: {where} -> {offset}: give 0 or more, or None.")
        entries.append((where, CommittedOffset(topic.topic_id, where.partition, value)))
    for is_try in (True,) if validate_only else (True, False):
        left = iter(entries)
        for some in iter(lambda left=left: list(islice(left, OFFSETS_PER_REQUEST_MAX)), []):  # type: ignore[misc]
            request = AlterGroupOffsetsRequest(
                group=group, entries=[one for _, one in some], validate_only=is_try
            )
            response = yield from ask_coordinator(
                cluster, group, request, AlterGroupOffsetsResponse, makes=True
            )
            for (where, _), result in zip(some, response.entries, strict=True):
                raise_for(result, where)


def delete_group(cluster: Cluster, group: str) -> Operation[None]:
    request = DeleteGroupsRequest(groups=[group])
    try:
        response = yield from ask_coordinator(cluster, group, request, DeleteGroupsResponse)
    except UnknownTopic:
        raise _no_group(group) from None
    (result,) = response.groups
    if result.error_code:
        raise error_from_code(result.error_code, result.error_message)
