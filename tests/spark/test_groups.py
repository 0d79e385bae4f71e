"""Streaming queries that are seen like groups: one a query, over its restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_quiverlog import LagListener
from quiverlog.batch.checksum import crc32c
from quiverlog.client.cluster.routing import answers_of_leaders
from quiverlog.types import GROUPS_TOPIC, TopicPartition
from quiverlog.wire import group_messages as g
from tests.spark.conftest import produce, read_stream
from tests.spark.queries import Collected, run_cli, wait_for
from tests.support.until import until

pytestmark = pytest.mark.spark


def described(client: Any, group: str) -> list[Any]:
    """The group by its coordinator: none, or one."""

    def ask() -> Any:
        topic = yield from client.cluster.topic(GROUPS_TOPIC)
        number = crc32c(group.encode()) % len(topic.partitions)
        request = g.DescribeGroupsRequest(groups=[group])
        call = client.cluster.call(client.cluster.leader_address(topic, number), request)
        place = TopicPartition(GROUPS_TOPIC, number)
        (answer,) = yield from answers_of_leaders(client.cluster, [(call, [place])], 0)
        return answer.response.groups

    return client.run(ask())


def offsets(client: Any, group: str) -> list[int]:
    return [one.offset for found in described(client, group) for one in found.offsets]


def run(stream: Any, checkpoint: Path) -> tuple[Any, Collected]:
    sink = Collected()
    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    return query, sink


def test_a_query_is_one_group_over_its_restarts(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    name = topic(partitions=1)
    group = f"late-{name}"
    listener = LagListener(bootstrap_servers=broker.bootstrap)
    spark.streams.addListener(listener)
    rows = 0
    members = set()
    for _ in range(2):
        stream = read_stream(spark, broker, name, groupId=group)
        query, sink = run(stream, tmp_path)
        try:
            for _ in range(2):
                produce(client, name, rows, 10)
                rows += 10
                wait_for(lambda end=rows, sink=sink: sink.ids[-1:] == [end - 1], query)
            until(lambda end=rows: offsets(client, group) == [end], "the position is reported")
        finally:
            query.stop()
        (found,) = described(client, group)
        members |= {one.member_id for one in found.members}
        assert found.type == g.GroupType.OBSERVER
    spark.streams.removeListener(listener)
    assert len(members) == 1
    detail = client.describe_group(group)
    assert (detail.info.type, len(detail.members)) == ("observer", 1)
    assert "micro-batch" in detail.members[0].title
    (partition,) = detail.partitions
    assert (partition.committed, partition.lag_rows, partition.lag_s) == (rows, 0, 0)
    shown = run_cli("group", "describe", group, "-b", broker.bootstrap)
    assert f"{name}  " in shown
    assert "micro-batch" in shown
