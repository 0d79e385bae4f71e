"""Descriptions of topics, put together from what all leaders say.

Any broker knows a topic's settings and who leads what; how far a partition reaches is known where
it is led. So the first broker that answers is asked for all, and the leaders of what it left open
for that. What a leader cannot say just now stays unknown, which is -1: a description is asked for
when something is wrong as well.

Must not know: connections, how a description is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m

from .answers import about, check_topic_count
from .commands import Operation
from .partition_questions import raise_for
from .results import ConfigValue, PartitionDetail, SchemaInfo, TopicDetail, moment
from .routing import Cluster, check
from .schema_history import history_from_wire

__all__ = ["describe_topics"]


def describe_topics(
    cluster: Cluster, names: Sequence[str] | None
) -> Operation[dict[str, TopicDetail]]:
    """Everything about some topics, or about all."""
    wanted = None if names is None else list(dict.fromkeys(names))

    def attempt() -> Operation[dict[str, TopicDetail]]:
        found = yield from _pages(cluster, wanted, -1)
        for leader, topics in sorted(_unknown_by_leader(found).items()):
            try:
                if leader not in cluster.metadata.brokers:
                    yield from cluster.refresh([])
                theirs = yield from _pages(cluster, topics, leader)
            except QuiverlogError:
                continue
            for name in theirs.keys() & found.keys():
                found[name] = _filled(found[name], theirs[name])
        return found

    operation = cluster.retrying(attempt)
    if wanted is not None and len(wanted) == 1:
        operation = about(wanted[0], operation)
    return (yield from operation)


def _pages(
    cluster: Cluster, names: list[str] | None, node_id: int
) -> Operation[dict[str, TopicDetail]]:
    """What one broker says, page after page; a negative id: whoever answers.

    Raises: what the broker says of a topic, such as UnknownTopic; what keeps it from answering.
    """
    found: dict[str, TopicDetail] = {}
    first_name = ""
    while True:
        request = m.DescribeTopicsRequest(names=names, first_name=first_name)
        if node_id < 0:
            reply = yield from cluster.call_any(request)
        else:
            reply = yield cluster.call(cluster.address_of(node_id), request)
            check(reply.response)
        response = reply.response
        assert isinstance(response, m.DescribeTopicsResponse)
        for topic in response.topics:
            raise_for(topic, topic.name)
        found.update((t.name, _topic_detail(t)) for t in response.topics)
        check_topic_count(len(found))
        first_name = response.next_name
        if not first_name:
            return found


def _unknown_by_leader(found: dict[str, TopicDetail]) -> dict[int, list[str]]:
    """Topics with partitions of which the leader was not asked, by leader."""
    topics: dict[int, dict[str, None]] = {}
    for name, topic in found.items():
        for partition in topic.partitions:
            if partition.log_end_offset < 0 <= partition.leader:
                topics.setdefault(partition.leader, {})[name] = None
    return {leader: list(names) for leader, names in topics.items()}


def _filled(mine: TopicDetail, theirs: TopicDetail) -> TopicDetail:
    """A description with what another broker knows of the partitions that it leads."""
    if mine.topic_id != theirs.topic_id:
        return mine  # It was deleted and created again in between.
    led = {p.partition: p for p in theirs.partitions if p.log_end_offset >= 0}
    partitions = (led.get(p.partition, p) if p.log_end_offset < 0 else p for p in mine.partitions)
    return replace(mine, partitions=tuple(partitions))


def _topic_detail(topic: m.TopicDescription) -> TopicDetail:
    history = history_from_wire(topic.schemas, topic.name)
    return TopicDetail(
        name=topic.name,
        topic_id=topic.topic_id,
        created=moment(topic.created_us),
        key_columns=tuple(topic.key_columns),
        replication_factor=topic.replication_factor,
        configs={c.key: ConfigValue(c.value, c.source) for c in topic.configs},
        schemas=tuple(
            SchemaInfo(s.schema_id, moment(s.created_us), history[s.schema_id])
            for s in topic.schemas
        ),
        partitions=tuple(
            PartitionDetail(
                p.partition,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replicas),
                tuple(p.in_sync_replicas),
                p.log_start_offset,
                p.high_watermark,
                p.log_end_offset,
                p.flushed_offset,
                p.size_bytes,
                p.segments,
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition)
        ),
        is_internal=topic.is_internal,
    )
