"""What the blocking and the asyncio consumer of a group share: options, batches, changes of state.

All of it is without I/O; the consumers are generated from one text and add the waiting.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypedDict

from quiverlog.client.base.arguments import shown
from quiverlog.client.base.commands import Abandon, Operation
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.consumer.core import Assigned, ConsumerCore
from quiverlog.client.consumer.options import ConsumerOptions, consumer_options
from quiverlog.client.consumer.positions import PartitionKey
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import (
    ForkedClient,
    InvalidArgument,
    InvalidGroup,
    LogTruncated,
    OffsetOutOfRange,
)
from quiverlog.limits import (
    ASSIGNOR_CHARS_MAX,
    GROUP_INSTANCE_CHARS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_DEFAULT,
    GROUP_REBALANCE_TIMEOUT_MS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_MIN,
    GROUP_SESSION_TIMEOUT_MS_DEFAULT,
    GROUP_SESSION_TIMEOUT_MS_MAX,
    GROUP_SESSION_TIMEOUT_MS_MIN,
    MEMBER_ID_BYTES,
)
from quiverlog.wire.group_messages import FetchedOffset, check_group_name

from .member import GroupMember, MemberOptions, Progress
from .questions import fetch_offsets

__all__ = [
    "GroupBatch",
    "GroupConsumerBase",
    "GroupOptions",
    "Membership",
    "OnPartitions",
    "group_options",
]

OnPartitions = Callable[[list[tuple[str, int]]], object]
"""Called between two batches, in the thread or task that iterates, with the partitions."""

STEP_S: Final = 0.1
"""How long a consumer without rows waits before it looks for changes of its assignment."""

SHORT_S: Final = 10.0
"""Of `processing_timeout`: less than two heartbeats."""

_INTERNAL = "__"


class _Hosted(Protocol):
    member: GroupMember

    @property
    def lock(self) -> Any: ...
    def wake(self) -> None: ...


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class GroupBatch(ConsumerBatch):
    """A batch of a group's consumer. It is processed when the next one is asked for, or `done`."""

    _consumer: GroupConsumerBase

    def done(self) -> None:
        """Count these rows as processed: they are committed soon, or by `commit`."""
        self._consumer.mark_done(self)


@dataclass(frozen=True, slots=True)
class GroupOptions:
    member: MemberOptions
    topics: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    consumer: ConsumerOptions
    on_gone: Literal["earliest", "latest"] | None
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_lost: OnPartitions | None

    def new_member(self) -> GroupMember:
        # Made by the client, so that a first heartbeat whose answer is lost joins once.
        return GroupMember(self.member, secrets.token_bytes(MEMBER_ID_BYTES), self.topics)


class Membership(TypedDict, total=False):
    """The arguments of `consumer` that are for groups alone."""

    pattern: str | None
    commit: Literal["processed", "manual"]
    on_gone: Literal["earliest", "latest"] | None
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_lost: OnPartitions | None
    instance_id: str
    assignor: str
    session_timeout: float
    rebalance_timeout: float
    processing_timeout: float | None


def group_options(
    topic: str | Sequence[str] | None,
    group: str,
    common: Mapping[str, Any],
    membership: Membership,
) -> GroupOptions:
    """Check the arguments of a group's consumer; `common`: those of every consumer."""
    _check_common(group, common)
    instance_id, assignor = membership.get("instance_id", ""), membership.get("assignor", "")
    for name, value, limit in (
        ("instance_id", instance_id, GROUP_INSTANCE_CHARS_MAX),
        ("assignor", assignor, ASSIGNOR_CHARS_MAX),
    ):
        if len(value) > limit:
            raise InvalidArgument(f"{name} has {len(value)} characters, allowed are {limit}.")
    session_ms = _milliseconds(
        "session_timeout",
        membership.get("session_timeout", GROUP_SESSION_TIMEOUT_MS_DEFAULT / 1000),
        GROUP_SESSION_TIMEOUT_MS_MIN,
        GROUP_SESSION_TIMEOUT_MS_MAX,
    )
    rebalance_s = membership.get("rebalance_timeout", GROUP_REBALANCE_TIMEOUT_MS_DEFAULT / 1000)
    rebalance_ms = _milliseconds(
        "rebalance_timeout",
        rebalance_s,
        GROUP_REBALANCE_TIMEOUT_MS_MIN,
        GROUP_REBALANCE_TIMEOUT_MS_MAX,
    )
    limit_s = membership.get("processing_timeout")
    limit_s = rebalance_s if limit_s is None else limit_s
    if not 0 < limit_s <= rebalance_s:
        raise InvalidArgument(
            f"processing_timeout={limit_s:g}: give seconds above 0, at most rebalance_timeout, "
            f"{rebalance_s:g}."
        )
    topics, pattern = _subscription(topic, membership.get("pattern"))
    member = MemberOptions(
        group=group,
        instance_id=instance_id,
        rack=common["client_rack"],
        assignor=assignor,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        processing_timeout_s=limit_s,
        commits_processed=membership.get("commit", "processed") == "processed",
    )
    # A group has no end: what it reads is followed.
    options = consumer_options(**{**common, "follow": True})
    return GroupOptions(
        member,
        topics,
        pattern,
        options,
        membership.get("on_gone"),
        membership.get("on_assigned"),
        membership.get("on_revoked"),
        membership.get("on_lost"),
    )


def _check_common(group: str, common: Mapping[str, Any]) -> None:
    try:
        check_group_name(group)
    except InvalidGroup as error:
        raise InvalidArgument(f"group: {error.message}") from None
    for name in ("partitions", "end"):
        if common[name] is not None:
            raise InvalidArgument(
                f"{name}={shown(common[name])} with group={group!r}: the group assigns partitions, "
                f"and follows them. Leave {name} out, or the group."
            )
    if isinstance(common["start"], Mapping):
        raise InvalidArgument(
            "start: with a group, give 'earliest', 'latest' or a datetime for partitions that "
            "have no committed offset; `seek` goes to an offset."
        )


def _milliseconds(name: str, value: float, low: int, high: int) -> int:
    milliseconds = round(value * 1000) if math.isfinite(value) else -1
    if not low <= milliseconds <= high:
        raise InvalidArgument(f"{name}={value:g}: give {low / 1000:g} to {high / 1000:g} seconds.")
    return milliseconds


def _subscription(
    topic: str | Sequence[str] | None, pattern: str | None
) -> tuple[tuple[str, ...] | None, re.Pattern[str] | None]:
    if (topic is None) == (pattern is None):
        raise InvalidArgument("A group reads topics or a pattern: give one of the two.")
    if pattern is not None:
        try:
            return None, re.compile(pattern)
        except re.error as error:
            raise InvalidArgument(
                f"pattern={shown(pattern)} is no regular expression: {error}."
            ) from None
    names = (topic,) if isinstance(topic, str) else tuple(topic or ())
    if not names:
        raise InvalidArgument("topics is empty: name at least one, or give a pattern.")
    for name in names:
        if name.startswith(_INTERNAL):
            raise InvalidArgument(f"Topic {name!r} is internal: no group reads it.")
        if names.count(name) > 1:
            raise InvalidArgument(f"Topic {name!r} is named twice; name each once.")
    return names, None


class GroupConsumerBase:
    def __init__(self, cluster: Cluster, options: GroupOptions, hosted: _Hosted) -> None:
        self._cluster = cluster
        self._options = options
        self._hosted = hosted
        self._member = hosted.member
        self._core = ConsumerCore(cluster, {}, options.consumer)
        self._pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.assignment)} partitions"
        return f"<{type(self).__name__} of group {self.group}: {state}>"

    @property
    def group(self) -> str:
        """The group's name."""
        return self._options.member.group

    @property
    def member_id(self) -> bytes:
        """The id of this consumer in its group: 16 bytes."""
        return self._member.member_id

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are read now, each a pair of a topic and a number."""
        return sorted(self._core.positions)

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """(topic, partition) -> offset after the last returned row."""
        return self._core.positions

    def _check_own(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClient("This consumer was opened before the process forked.")

    # --- between two batches --------------------------------------------------------------------
    def _come_back(self) -> None:
        self._check_own()
        self._core.handed_out()
        with self._hosted.lock:
            was_idle = not self._member.to_commit
            self._member.came_back()
            is_idle = not self._member.to_commit
        # Else the heart has a commit due already: a wake for each batch would cost more than it.
        if was_idle and not is_idle:
            self._hosted.wake()

    def _begin_callback(self) -> None:
        with self._hosted.lock:
            self._member.program_began(self._cluster.clock())
        self._hosted.wake()

    def _handed(self, batch: ConsumerBatch) -> GroupBatch | None:
        """Return the batch for the program; None: it was lost meanwhile."""
        key = self._core.last_key
        progress = Progress(batch.next_offset, batch.leader_epoch)
        with self._hosted.lock:
            if not self._member.hand_out(key, progress, self._cluster.clock()):
                return None
        # A longer time is looked at with the next heartbeat.
        if self._options.member.processing_timeout_s < SHORT_S:
            self._hosted.wake()
        return GroupBatch(
            batch.data,
            batch.topic,
            batch.partition,
            batch.base_offset,
            batch.leader_epoch,
            batch.timestamp_us,
            self,
        )

    def mark_done(self, batch: ConsumerBatch) -> None:
        self._check_own()
        where = batch.topic, batch.partition
        if where not in self._core.positions:
            return  # Given up, or lost: its rows are another member's.
        key = self._core.position(where).key
        with self._hosted.lock:
            self._member.done(key, Progress(batch.next_offset, batch.leader_epoch))
        self._hosted.wake()

    def _offsets_of(self, keys: Iterable[PartitionKey]) -> Operation[dict[PartitionKey, Any]]:
        return (yield from fetch_offsets(self._cluster, self.group, keys))

    def _read(
        self, added: Mapping[PartitionKey, str], found: Mapping[PartitionKey, FetchedOffset]
    ) -> Operation[None]:
        assigned = []
        for (topic_id, partition), name in added.items():
            at = found.get((topic_id, partition))
            one = Assigned(name, topic_id, partition)
            if at is not None:
                one = one._replace(offset=at.offset, leader_epoch=at.leader_epoch)
            assigned.append(one)
        yield from self._core.assign(assigned, ())

    def _drop(self, keys: Iterable[PartitionKey]) -> Operation[None]:
        yield from self._core.assign((), list(keys))

    def _after_gone(self, error: OffsetOutOfRange | LogTruncated) -> Operation[None]:
        """Go on at the end of the log that `on_gone` names, or raise."""
        where = error.details.get("topic"), error.details.get("partition")
        if self._options.on_gone is None or where not in self._core.positions:
            raise error
        yield from self._core.go_to(where, self._options.on_gone)

    def _ends(self) -> Operation[dict[tuple[str, int], int]]:
        return (yield from self._core.ends())

    def _chosen(
        self, offsets: Mapping[tuple[str, int], int] | None
    ) -> dict[PartitionKey, Progress] | None:
        if offsets is None:
            return None
        chosen = {}
        for where, offset in offsets.items():
            if not isinstance(offset, int) or offset < 0:
                raise InvalidArgument(f"commit: {shown(offset)} is not an offset from 0 on.")
            chosen[self._core.position(where).key] = Progress(offset)
        return chosen

    def _abandon(self) -> Operation[None]:
        requests = list(self._core.requests)
        self._core.requests.clear()
        for request in requests:
            yield Abandon(request.pending)


def named(partitions: Mapping[PartitionKey, str]) -> list[tuple[str, int]]:
    return sorted((name, number) for (_, number), name in partitions.items())
