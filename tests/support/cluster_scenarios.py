"""What a client asks of the cluster as a whole: a part of `client_scenarios`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.base.results import PartitionMove
from quiverlog.wire import messages as m

__all__ = ["ClusterScenarios"]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


class ClusterScenarios:
    """One broker; `client` and `topic` are fixtures of the subclass."""

    def test_the_cluster_is_described(self, client: Any, topic: str) -> None:
        before = client.describe_cluster()
        client.create_topic(topic, SCHEMA, partitions=3)
        found = client.describe_cluster()
        assert found.metadata_version > before.metadata_version
        assert found.partitions == before.partitions + 3
        assert (found.reported_by, found.controller) == (0, 0)
        (broker,) = found.brokers
        assert broker.leaders == broker.replicas == found.partitions
        assert (broker.fenced, broker.in_shutdown) == (False, False)
        (voter,) = found.voters
        assert (voter.node_id, voter.lag, voter.silent_s) == (0, 0, 0.0)
        assert (found.under_replicated, found.under_min_in_sync, found.offline) == (0, 0, 0)

    def test_leaders_are_elected(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=2)
        assert client.elect_leaders(topic) == {0: 0, 1: 0}
        assert client.elect_leaders(topic, [1, 1], unclean=True) == {1: 0}
        with pytest.raises(quiverlog.UnknownPartition):
            client.elect_leaders(topic, [2])

    def test_brokers_are_configured_while_they_run(self, client: Any) -> None:
        key = "connections.idle.ms"
        version = client.alter_configs({key: "123456"})
        found = client.describe_configs(0, [key])
        assert (found.node_id, list(found.settings)) == (0, [key])
        assert found.metadata_version >= version > 0
        setting = found.settings[key]
        assert (setting.value, setting.source, setting.in_cluster) == (
            "123456",
            "cluster",
            "123456",
        )
        assert client.alter_configs({key: "7777"}, broker=0) > version
        assert client.describe_configs().settings[key].value == "7777"
        client.alter_configs({key: None}, broker=0)
        client.alter_configs({key: None})
        assert client.describe_configs(keys=[key]).settings[key].source == "default"
        for changes, error in (
            ({"connections.idle.m": "1"}, quiverlog.UnknownConfig),
            ({"node.id": "1"}, quiverlog.ConfigNeedsRestart),
            ({key: "1"}, quiverlog.InvalidConfig),
        ):
            with pytest.raises(error):
                client.alter_configs(changes)
        with pytest.raises(quiverlog.UnknownBroker):
            client.alter_configs({key: "7777"}, broker=5)
        with pytest.raises(quiverlog.UnknownConfig):
            client.describe_configs(keys=["x"])

    def test_feature_levels_that_are_not_there_are_refused(self, client: Any) -> None:
        found = client.describe_features()
        assert found.level == found.level_max
        assert found.brokers == {0: (1, found.level)}
        assert client.finalize_features(found.level) == found
        for level in (found.level + 1, found.level + 2):
            with pytest.raises(quiverlog.InvalidFeatureLevel):
                client.finalize_features(level)

    def test_a_producer_is_described(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=2)
        row = {"id": 1, "name": "a", "score": 0.5}
        with client.producer(topic, idempotent=True) as producer:
            for _ in range(3):
                producer.send([row], partition=1).result()
        # Ids are given out one after the other, above the number of the cluster.
        number = client.raw_call(m.MetadataRequest(topics=[])).response.cluster_number
        ids = [number << 47 | count for count in range(64)]
        described = [client.describe_producer(one, [topic, "nope"]) for one in ids]
        (found,) = [one for one in described if one.partitions]
        (writes,) = found.partitions
        assert (found.epoch, found.silent) == (0, ())
        assert (writes.topic, writes.partition, writes.leader) == (topic, 1, 0)
        assert (writes.epoch, writes.next_sequence, writes.last_offset) == (0, 3, 2)
        assert 0 <= writes.idle_s < 60
        unknown = client.describe_producer(2**40)
        assert (unknown.epoch, unknown.partitions) == (None, ())

    def test_partitions_are_reassigned(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=2)
        held = PartitionMove((0,), (0,))
        assert client.reassign_partitions(topic, {1: [0], 0: None}) == {0: held, 1: held}
        assert client.reassign_partitions(topic, {}) == {}
        for brokers in ([1], [0, 0], [0, 1]):
            with pytest.raises(quiverlog.InvalidReplicaAssignment):
                client.reassign_partitions(topic, {0: brokers})
        with pytest.raises(quiverlog.UnknownPartition):
            client.reassign_partitions(topic, {0: [0], 2: [0]})
        assert len(client.describe_replicas([topic, "nope"]).by_partition) == 2
