"""What members, people, programs and Spark queries ask of the coordinators of groups (28 to 35).

A group that the client may not describe is left out, as one that is not there. LIST and DESCRIBE
show what a broker coordinates: of a group that another one coordinates nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from typing import Final

from quiverlog.core.controller.features import GROUPS_LEVEL, check_finalised
from quiverlog.core.controller.internal_topics import GROUPS, is_internal
from quiverlog.core.groups.group import Group, GroupState, Heartbeat
from quiverlog.core.groups.offsets import Fetched
from quiverlog.core.groups.reconcile import MemberState
from quiverlog.core.groups.records import (
    Entry,
    Observed,
    Position,
    Share,
    TopicPartition,
    key_of,
    partition_of,
)
from quiverlog.errors import (
    CoordinatorNotReady,
    InvalidGroup,
    InvalidRequest,
    QuiverlogError,
    UnstableOffsets,
)
from quiverlog.limits import REPLY_PAGE_BYTES
from quiverlog.node.apis.topics import make_internal_topics
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import check_is_controller
from quiverlog.node.groups.coordinators import shown_state
from quiverlog.node.runtime.tasks import Call, Steps, Wait
from quiverlog.node.security.authoriser import Rights, no_topic_id
from quiverlog.node.security.needs import NEEDS
from quiverlog.types import GROUP_NAME, Operation, ResourceKind
from quiverlog.wire import group_messages as g

__all__ = [
    "handle_alter_group_offsets",
    "handle_commit_offsets",
    "handle_delete_groups",
    "handle_describe_groups",
    "handle_fetch_offsets",
    "handle_group_heartbeat",
    "handle_list_groups",
    "handle_report_progress",
]

_PAGE_GROUPS: Final = 500
_PAGE_OFFSETS: Final = 5_000
_PER_STEP: Final = 500
_LOOKS_PER_STEP: Final = 2_000
_OFFSET_BYTES: Final = 400
"""Of one in an answer, with its topic's name and without its metadata."""
_MEMBER_BYTES: Final = 2_000
_READ: Final = Operation.READ
_KEY_BYTES: Final = 20

_GROUP_STATES: Final = {
    GroupState.EMPTY: g.GroupState.EMPTY,
    GroupState.ASSIGNING: g.GroupState.ASSIGNING,
    GroupState.RECONCILING: g.GroupState.RECONCILING,
    GroupState.STABLE: g.GroupState.STABLE,
    # Its rows are there without its header: they go.
    GroupState.DEAD: g.GroupState.EMPTY,
}
_MEMBER_STATES: Final = {
    MemberState.JOINING: g.MemberState.JOINING,
    MemberState.STABLE: g.MemberState.STABLE,
    MemberState.UNREVOKED: g.MemberState.UNREVOKED,
    MemberState.UNRELEASED: g.MemberState.UNRELEASED,
    MemberState.LEFT: g.MemberState.LEFT,
}


# --- rights, and the topic ----------------------------------------------------------------------
def _check_group(broker: Broker, call: Call, group: str) -> Rights | None:
    """Raises NotAuthorized, FeatureNotFinalised."""
    api = call.request.API
    rights = broker.authoriser.rights_of(call.connection_id)
    if rights is not None:
        rights.check(api, NEEDS[api].operation, ResourceKind.GROUP, group)
    check_finalised(broker.view.image, GROUPS_LEVEL, "a group")
    return rights


def _made(broker: Broker, call: Call) -> Generator[Wait, object, None]:
    """Make `__groups` where it is missing. Raises NotController, CoordinatorNotReady."""
    if GROUPS not in broker.view.image.topics:
        check_is_controller(broker, call.connection_id)
        yield from make_internal_topics(broker, call, (GROUPS,))
        raise CoordinatorNotReady(f"{GROUPS!r} is made now.")


# --- GROUP_HEARTBEAT ----------------------------------------------------------------------------
def handle_group_heartbeat(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.GroupHeartbeatRequest)
    request.check()
    rights = _check_group(broker, call, request.group)
    if rights is not None:
        for name in request.topics or ():
            # By the name alone, whether or not there is such a topic.
            rights.check_topic(request.API, _READ, name)
    yield from _made(broker, call)
    beat = Heartbeat(
        request.group,
        request.member_id,
        request.member_epoch,
        request.beat,
        None if request.topics is None else tuple(request.topics),
        None if request.owned is None else frozenset(_partitions(request.owned)),
        request.instance_id,
        request.assignor,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.rack,
        broker.clients.client_id_of(call.connection_id),
        broker.clients.host_of(call.connection_id),
    )
    answer = yield from broker.groups.heartbeat(call, beat, request.max_wait_ms)
    return g.GroupHeartbeatResponse(
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=None if answer.assignment is None else _assigned(broker, answer.assignment),
    )


def _partitions(topics: Iterable[g.TopicPartitions]) -> Iterable[TopicPartition]:
    return ((one.topic_id, number) for one in topics for number in one.partitions)


def _assigned(broker: Broker, shares: Iterable[Share]) -> list[g.AssignedTopic]:
    # One that is deleted has no rows: the next target is without it.
    topics = broker.view.image.topics_by_id
    return [
        g.AssignedTopic(one.topic_id, topic.name, list(one.partitions))
        for one in shares
        if (topic := topics.get(one.topic_id)) is not None
    ]


# --- COMMIT_OFFSETS, ALTER_GROUP_OFFSETS --------------------------------------------------------
def handle_commit_offsets(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.CommitOffsetsRequest)
    request.check()
    rights = _check_group(broker, call, request.group)
    yield from _made(broker, call)
    taken = _Entries(broker, call, rights, request.entries)
    group, member_id, epoch = request.group, request.member_id, request.member_epoch
    done = yield from broker.groups.commit(call, group, member_id, epoch, taken.good)
    results = taken.results(done.errors)
    counts = broker.metrics.offset_commits
    refused = sum(bool(one.error_code) for one in results)
    counts["refused"] += refused
    counts["committed"] += len(results) - refused
    return g.CommitOffsetsResponse(entries=results)


def handle_alter_group_offsets(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.AlterGroupOffsetsRequest)
    request.check()
    rights = _check_group(broker, call, request.group)
    yield from _made(broker, call)
    sets = _Entries(broker, call, rights, [one for one in request.entries if one.offset != -1])
    deletes = _Entries(
        broker, call, rights, [one for one in request.entries if one.offset == -1], deletes=True
    )
    results: dict[TopicPartition, g.OffsetResult] = {}
    for entries, is_delete in ((sets, False), (deletes, True)):
        if entries.asked:
            done = yield from broker.groups.alter(
                call,
                request.group,
                entries.good,
                deletes=is_delete,
                is_try=request.validate_only,
            )
            for one in entries.results(done.errors):
                results[one.topic_id, one.partition] = one
    assert len(results) == len(request.entries), "each partition is named once"
    ordered = [results[one.topic_id, one.partition] for one in request.entries]
    return g.AlterGroupOffsetsResponse(entries=ordered)


class _Entries:
    """Those of a request that may be taken, and the errors of the others."""

    def __init__(
        self,
        broker: Broker,
        call: Call,
        rights: Rights | None,
        asked: Sequence[g.CommittedOffset],
        *,
        deletes: bool = False,
    ) -> None:
        self.asked = asked
        self.good: list[Entry] = []
        self._errors: list[QuiverlogError | None] = []
        topics: dict[bytes, QuiverlogError | None] = {}
        for one in asked:
            topic_id = one.topic_id
            if topic_id not in topics:
                topics[topic_id] = _why_hidden(broker, call, rights, topic_id)
            error = topics[topic_id]
            if not deletes and (why := g.why_no_offset(one)):
                error = InvalidRequest(f"partition {one.partition}: {why}")
            self._errors.append(error)
            if error is None:
                values = topic_id, one.partition, one.offset, one.leader_epoch, one.metadata
                self.good.append(Entry(*values))

    def results(self, errors: Sequence[QuiverlogError | None]) -> list[g.OffsetResult]:
        """`errors`: of those that were good."""
        assert len(errors) == len(self.good)
        left = iter(errors)
        results = []
        for one, refused in zip(self.asked, self._errors, strict=True):
            error = next(left) if refused is None else refused
            result = g.OffsetResult(one.topic_id, one.partition)
            if error is not None:
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        assert next(left, None) is None, "each error has its entry"
        return results


def _why_hidden(
    broker: Broker, call: Call, rights: Rights | None, topic_id: bytes
) -> QuiverlogError | None:
    topic = broker.view.image.topics_by_id.get(topic_id)
    if topic is None or is_internal(topic.name):
        return no_topic_id(topic_id)
    if rights is not None:
        try:
            rights.check_topic(call.request.API, _READ, topic.name, no_topic_id(topic_id))
        except QuiverlogError as error:
            return error.with_traceback(None)
    return None


# --- FETCH_OFFSETS ------------------------------------------------------------------------------
def handle_fetch_offsets(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.FetchOffsetsRequest)
    request.check()
    rights = _check_group(broker, call, request.group)
    after = _fetch_cursor(request.page)
    if GROUPS not in broker.view.image.topics:
        yield None
        asked = [] if request.topics is None else list(_partitions(request.topics))
        return g.FetchOffsetsResponse(offsets=[g.FetchedOffset(*one) for one in asked])
    if request.topics is not None:
        wanted = set(_partitions(request.topics))
        seen = {one for one in wanted if _sees(broker, rights, one[0])}
    else:
        _, machine = broker.groups.ask(request.group)
        group = machine.groups.get(request.group)
        held = [] if group is None else [*group.offsets.committed, *group.offsets.unstable]
        wanted = seen = {one for one in held if _sees(broker, rights, one[0])}
    page = yield from _least(wanted, after)
    found: list[g.FetchedOffset] = []
    size, next_page = 0, b""
    for first in range(0, len(page), _PER_STEP):
        some = page[first : first + _PER_STEP]
        fetched = yield from broker.groups.fetch(
            call, request.group, [one for one in some if one in seen]
        )
        offsets = {one.partition: _fetched(one, stable=request.stable) for one in fetched}
        for one in some:
            result = offsets.get(one) or g.FetchedOffset(*one)
            size += _OFFSET_BYTES + 4 * len(result.metadata)
            if found and (size > REPLY_PAGE_BYTES or len(found) >= _PAGE_OFFSETS):
                next_page = _cursor(found[-1].topic_id, found[-1].partition)
                break
            found.append(result)
        if next_page:
            break
        yield None
    assert found or not next_page, "each page goes on"
    return g.FetchOffsetsResponse(offsets=found, next_page=next_page)


def _fetched(one: Fetched, *, stable: bool) -> g.FetchedOffset:
    result = g.FetchedOffset(*one.partition)
    if stable and one.is_unstable:
        error = UnstableOffsets(
            f"partition {one.partition[1]}: a transaction that commits its offset is being decided."
        )
        result.error_code, result.error_message = error.code, error.message
    elif one.committed is not None:
        result.offset, result.leader_epoch = one.committed.offset, one.committed.leader_epoch
        result.metadata, result.committed_us = one.committed.metadata, one.committed.now_us
    return result


def _least(
    wanted: Iterable[TopicPartition], after: TopicPartition | None
) -> Generator[Wait, object, list[TopicPartition]]:
    """Return the first of those behind `after`, in order, one more than fit a page."""
    found: list[TopicPartition] = []
    left = iter(list(wanted))
    while some := list(islice(left, _LOOKS_PER_STEP)):
        found += [one for one in some if after is None or one > after]
        found = heapq.nsmallest(_PAGE_OFFSETS + 1, found)
        yield None
    return found


def _cursor(topic_id: bytes, partition: int) -> bytes:
    # Bytes in the order of what they name. Partitions may be asked for that no topic has.
    assert -(2**31) <= partition < 2**31
    return topic_id.ljust(16, b"\0")[:16] + (partition + 2**31).to_bytes(4, "big")


def _fetch_cursor(page: bytes) -> TopicPartition | None:
    if not page:
        return None
    if len(page) != _KEY_BYTES:
        raise InvalidRequest("`page` is none that an answer named.")
    return page[:16], int.from_bytes(page[16:], "big") - 2**31


def _sees(broker: Broker, rights: Rights | None, topic_id: bytes) -> bool:
    topic = broker.view.image.topics_by_id.get(topic_id)
    return topic is not None and (rights is None or rights.sees(topic.name))


# --- LIST_GROUPS --------------------------------------------------------------------------------
def handle_list_groups(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.ListGroupsRequest)
    states = _wanted("state", request.states, set(g.GroupState))
    types = _wanted("type", request.types, set(g.GroupType))
    rights = broker.authoriser.rights_of(call.connection_id)
    names: list[str] = []
    for machine in broker.groups.coordinated():
        left = iter(list(machine.groups))
        while some := list(islice(left, _LOOKS_PER_STEP)):
            names += [n for n in some if n >= request.first_group and _may_describe(rights, n)]
            names = heapq.nsmallest(_PAGE_GROUPS + 1, names)
            yield None
    found: list[g.GroupListing] = []
    for name in names[:_PAGE_GROUPS]:
        group = broker.groups.group(name)
        if group is None or group.header is None:
            continue
        kind, state = int(group.header.group_type), int(_GROUP_STATES[group.state()])
        if (states is None or state in states) and (types is None or kind in types):
            members = len({*group.members, *group.observed, *group.reports})
            found.append(g.GroupListing(name, kind, state, group.epoch, members))
        yield None
    following = names[_PAGE_GROUPS] if len(names) > _PAGE_GROUPS else ""
    assert len(found) <= _PAGE_GROUPS
    node_id = broker.config.node_id
    return g.ListGroupsResponse(node_id=node_id, groups=found, next_group=following)


def _wanted(what: str, numbers: list[int] | None, known: set[int]) -> set[int] | None:
    if numbers is None:
        return None
    if unknown := set(numbers) - known:
        raise InvalidRequest(f"there is no {what} {min(unknown)} of a group.")
    return set(numbers)


def _may_describe(rights: Rights | None, group: str) -> bool:
    return rights is None or rights.may(Operation.DESCRIBE, ResourceKind.GROUP, group)


# --- DESCRIBE_GROUPS ----------------------------------------------------------------------------
_MEMBERS, _OFFSETS = b"\1", b"\2"


def handle_describe_groups(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.DescribeGroupsRequest)
    first, section, key = _describe_cursor(request.page)
    rights = broker.authoriser.rights_of(call.connection_id)
    page = _Page()
    # The name of none is as one that is not there.
    for name in sorted(one for one in set(request.groups) if GROUP_NAME.fullmatch(one)):
        if name < first or not _may_describe(rights, name):
            continue
        group = broker.groups.group(name)
        if group is None or group.header is None:
            continue
        if name != first:
            section, key = b"", b""
        described = _Described(broker, call, rights, group, page)
        page.groups.append(described.head())
        if group.is_observer:
            yield from described.observed(key)
            if page.next:
                break
            continue
        if section != _OFFSETS:
            yield from described.members(key)
            key = b""
        if not page.next:
            yield from described.offsets(key)
        if page.next:
            break
    return g.DescribeGroupsResponse(
        node_id=broker.config.node_id, groups=page.groups, next_page=page.next
    )


def _describe_cursor(page: bytes) -> tuple[str, bytes, bytes]:
    """Return the group to go on with, which list of it, and the key behind which."""
    if not page:
        return "", b"", b""
    name, _, rest = page.partition(b"\0")
    try:
        group = name.decode()
        g.check_group_name(group)
    except (UnicodeDecodeError, InvalidGroup):
        group = ""
    if not group or rest[:1] not in (_MEMBERS, _OFFSETS) or len(rest) > 1 + _KEY_BYTES:
        raise InvalidRequest("`page` is none that an answer named.")
    return group, rest[:1], rest[1:]


class _Page:
    def __init__(self) -> None:
        self.groups: list[g.GroupDescription] = []
        self.next = b""
        self._size = 0

    def takes(self, size: int) -> bool:
        """Whether an entry of this size still fits: the first one always does."""
        assert size > 0
        is_first = not self._size
        self._size += size
        return is_first or self._size <= REPLY_PAGE_BYTES


class _Described:
    def __init__(
        self, broker: Broker, call: Call, rights: Rights | None, group: Group, page: _Page
    ) -> None:
        self._broker = broker
        self._call = call
        self._rights = rights
        self._group = group
        self._page = page

    def head(self) -> g.GroupDescription:
        group = self._group
        assert group.header is not None
        assert group.target_epoch <= group.epoch
        self._into = g.GroupDescription(
            group.name,
            type=int(group.header.group_type),
            state=int(_GROUP_STATES[group.state()]),
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=group.header.assignor,
        )
        return self._into

    def _ends_before(self, section: bytes, key: bytes) -> None:
        assert not self._page.next, "a page ends once"
        assert len(key) <= _KEY_BYTES
        self._page.next = self._group.name.encode() + b"\0" + section + key

    def members(self, after: bytes) -> Generator[Wait, object, None]:
        last = after
        for member_id in sorted(one for one in self._group.members if one > after):
            if member_id not in self._group.members:
                continue  # It has left between two steps.
            found = self._member(member_id)
            shares = (*found.assignment, *found.revoking, *found.target)
            size = _MEMBER_BYTES + sum(32 + 5 * len(one.partitions) for one in shares)
            if not self._page.takes(size + sum(map(len, found.topics))):
                self._ends_before(_MEMBERS, last)
                return
            self._into.members.append(found)
            last = member_id
            yield None

    def _member(self, member_id: bytes) -> g.GroupMember:
        group, now_us = self._group, self._call.now.mono_us
        member = group.members[member_id]
        standing, live = group.standings.get(member_id), group.lives.get(member_id)
        target = group.targets.get(member_id)
        rights = self._rights
        return g.GroupMember(
            member_id,
            member.instance_id,
            member.client_id,
            member.host,
            member.rack,
            int(_MEMBER_STATES[shown_state(group, member_id)]),
            0 if standing is None else standing.epoch,
            [name for name in member.topics if rights is None or rights.sees(name)],
            [] if standing is None else _topic_partitions(standing.assigned),
            [] if standing is None else _topic_partitions(standing.revoking),
            []
            if target is None
            else [g.TopicPartitions(one.topic_id, list(one.partitions)) for one in target.shares],
            -1 if live is None else max(0, now_us - live.seen_us) // 1000,
        )

    def observed(self, after: bytes) -> Generator[Wait, object, None]:
        """The queries of an observer as members, where the slowest of them reads as offsets."""
        reports = {**self._group.observed, **self._group.reports}
        if not after:
            for reporter, report in sorted(reports.items()):
                silent_ms = max(0, self._call.now.wall_us - report.now_us) // 1000
                self._page.takes(_MEMBER_BYTES)
                self._into.members.append(
                    g.GroupMember(
                        reporter,
                        state=int(g.MemberState.STABLE),
                        silent_ms=silent_ms,
                        title=report.title,
                        rows_per_s=round(report.rows_per_second),
                    )
                )
        slowest: dict[TopicPartition, tuple[int, bytes, Observed, Position]] = {}
        for reporter, report in sorted(reports.items()):
            for one in report.positions:
                at = one.topic_id, one.partition
                if at not in slowest or one.next_offset < slowest[at][0]:
                    slowest[at] = one.next_offset, reporter, report, one
            yield None
        seen = [one for one in slowest if _sees(self._broker, self._rights, one[0])]
        page = yield from _least(seen, partition_of(after) if after else None)
        last = after
        for number, partition in enumerate(page, 1):
            if number > _PAGE_OFFSETS or not self._page.takes(_OFFSET_BYTES):
                self._ends_before(_OFFSETS, last)
                return
            offset, reporter, report, position = slowest[partition]
            self._into.offsets.append(
                g.GroupOffset(
                    partition[0],
                    self._broker.view.image.topics_by_id[partition[0]].name,
                    partition[1],
                    offset,
                    position.leader_epoch,
                    committed_us=report.now_us,
                    member_id=reporter,
                )
            )
            last = key_of(partition)

    def offsets(self, after: bytes) -> Generator[Wait, object, None]:
        group = self._group
        offsets = group.offsets
        topics = self._broker.view.image.topics_by_id
        wanted = {*offsets.committed, *offsets.unstable, *group.holders}
        seen = {one for one in wanted if _sees(self._broker, self._rights, one[0])}
        page = yield from _least(seen, partition_of(after) if after else None)
        last = after
        for number, partition in enumerate(page, 1):
            topic = topics.get(partition[0])
            if topic is None:
                continue
            committed = offsets.committed.get(partition)
            size = _OFFSET_BYTES + 4 * len("" if committed is None else committed.metadata)
            if number > _PAGE_OFFSETS or not self._page.takes(size):
                self._ends_before(_OFFSETS, last)
                return
            found = g.GroupOffset(
                partition[0],
                topic.name,
                partition[1],
                is_pending=partition in offsets.unstable,
                member_id=group.holders.get(partition, b""),
            )
            if committed is not None:
                found.offset, found.leader_epoch = committed.offset, committed.leader_epoch
                found.metadata, found.committed_us = committed.metadata, committed.now_us
            self._into.offsets.append(found)
            last = key_of(partition)
            if number % _PER_STEP == 0:
                yield None


def _topic_partitions(partitions: Iterable[TopicPartition]) -> list[g.TopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return [g.TopicPartitions(topic_id, numbers) for topic_id, numbers in topics.items()]


# --- DELETE_GROUPS ------------------------------------------------------------------------------
def handle_delete_groups(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.DeleteGroupsRequest)
    results: list[g.GroupResult] = []
    for name in request.groups:
        result = g.GroupResult(name)
        results.append(result)
        try:
            g.check_group_name(name)
            _check_group(broker, call, name)
            yield from broker.groups.delete(call, name)
        except QuiverlogError as error:
            result.error_code, result.error_message = error.code, error.message
    assert len(results) == len(request.groups), "answers are found by their place"
    return g.DeleteGroupsResponse(groups=results)


# --- REPORT_PROGRESS ----------------------------------------------------------------------------
def handle_report_progress(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.ReportProgressRequest)
    request.check()
    rights = _check_group(broker, call, request.group)
    yield from _made(broker, call)
    positions = [
        Position(one.topic_id, one.partition, one.next_offset, one.leader_epoch)
        for one in request.positions
        if _sees(broker, rights, one.topic_id)
    ]
    count = broker.groups.report(
        call, request.group, request.reporter, request.title, positions, request.rows_per_s
    )
    return g.ReportProgressResponse(reporter_count=count)
