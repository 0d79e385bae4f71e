"""The sizes of replicas and the free room of disks, from the brokers that hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.each_broker import ask_each_broker
from quiverlog.client.cluster.routing import Cluster
from quiverlog.wire.reassignment_messages import DescribeReplicasRequest, DescribeReplicasResponse

__all__ = ["ReplicaSizes", "replica_sizes"]


@dataclass(frozen=True, slots=True)
class ReplicaSizes:
    """The replicas on brokers' disks, as the brokers report them.

    Attributes:
        by_partition: (topic, partition) -> node id -> stored bytes there; -1: not open there.
        room_bytes: node id -> free bytes on its disk.
        silent: brokers that did not answer.
    """

    by_partition: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    room_bytes: dict[int, int] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)

    def largest(self, topic: str, partition: int) -> int:
        """Return the bytes of the largest replica; 0 where no broker reports one."""
        return max(0, *self.by_partition.get((topic, partition), {-1: 0}).values())

    def at(self, topic: str, partition: int, node_id: int) -> int | None:
        """Return the bytes of this broker's replica; None where it reports none."""
        size = self.by_partition.get((topic, partition), {}).get(node_id, -1)
        return None if size < 0 else size


def replica_sizes(
    cluster: Cluster, names: Sequence[str] | None = None, brokers: Collection[int] | None = None
) -> Operation[ReplicaSizes]:
    request = DescribeReplicasRequest(names=None if names is None else list(names))
    pages, silent = yield from ask_each_broker(cluster, request, brokers)
    found = ReplicaSizes(silent=silent)
    for node_id, responses in pages.items():
        for response in responses:
            assert isinstance(response, DescribeReplicasResponse)
            if response.room_bytes >= 0:
                found.room_bytes[node_id] = response.room_bytes
            for topic in response.topics:
                for one in topic.replicas:
                    sizes = found.by_partition.setdefault((topic.name, one.partition), {})
                    sizes[node_id] = one.size_bytes
    return found
