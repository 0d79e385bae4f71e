"""What a client asks the coordinator of a group: heartbeats, commits, committed offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeVar

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.group_coordinator import ask_once
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.consumer.positions import PartitionKey
from quiverlog.errors import UnknownTopicId, error_from_code
from quiverlog.wire import group_messages as g
from quiverlog.wire import messages as m

__all__ = ["ask_coordinator", "fetch_offsets", "heartbeat", "matching_topics"]

T = TypeVar("T", bound=m.Response)

CHANNEL: Final = "group"
"""A heartbeat is held back by its coordinator, and must not delay other requests."""


def heartbeat(
    cluster: Cluster, request: g.GroupHeartbeatRequest
) -> Operation[g.GroupHeartbeatResponse]:
    """No retry: the member decides what is sent next."""
    wait_s = request.max_wait_ms / 1000
    kind = g.GroupHeartbeatResponse
    return (yield from ask_coordinator(cluster, request.group, request, kind, wait_s))


def ask_coordinator(
    cluster: Cluster, group: str, request: m.Request, kind: type[T], wait_s: float = 0.0
) -> Operation[T]:
    """Send a request; the answer may be held back for `wait_s`. No retry."""
    return (yield from ask_once(cluster, group, request, kind, held_s=wait_s, channel=CHANNEL))


def fetch_offsets(
    cluster: Cluster, group: str, keys: Iterable[PartitionKey]
) -> Operation[dict[PartitionKey, g.FetchedOffset]]:
    """Return what is committed, by partition; those without an offset are left out.

    Waits for offsets of transactions that are being decided.
    """
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in keys:
        topics.setdefault(topic_id, []).append(partition)
    wanted = [g.TopicPartitions(topic_id, sorted(some)) for topic_id, some in topics.items()]

    def attempt() -> Operation[dict[PartitionKey, g.FetchedOffset]]:
        found: dict[PartitionKey, g.FetchedOffset] = {}
        page = b""
        while True:
            request = g.FetchOffsetsRequest(group=group, topics=wanted, stable=True, page=page)
            response = yield from ask_coordinator(cluster, group, request, g.FetchOffsetsResponse)
            for one in response.offsets:
                if one.error_code and one.error_code != UnknownTopicId.code:
                    raise error_from_code(one.error_code, one.error_message)
                if one.offset >= 0:
                    found[one.topic_id, one.partition] = one
            page = response.next_page
            if not page:
                return found

    if not wanted:
        return {}
    return (yield from cluster.retrying(attempt))


def matching_topics(cluster: Cluster, pattern: re.Pattern[str]) -> Operation[list[str]]:
    """Return the topics that match as a whole; internal ones never do."""

    def attempt() -> Operation[list[str]]:
        metadata = yield from cluster.refresh(None)
        return sorted(
            name
            for name in metadata.topics
            if not name.startswith("__") and pattern.fullmatch(name)
        )

    return (yield from cluster.retrying(attempt))
