"""The sizes of replicas and the free room of disks, from the brokers that hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import QuiverlogError
from quiverlog.wire.placement_messages import DescribeReplicasRequest, DescribeReplicasResponse

__all__ = ["ReplicaSizes", "replica_sizes"]

_BROKER_S_MAX: Final = 5.0


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
    def attempt() -> Operation[ReplicaSizes]:
        yield from cluster.refresh([])
        found = ReplicaSizes()
        asked = sorted(cluster.metadata.brokers if brokers is None else brokers)
        failure: QuiverlogError | None = None
        for node_id in asked:
            try:
                yield from _ask(cluster, node_id, names, found)
            except QuiverlogError as error:
                failure = error
                found.silent.append(node_id)
        if failure is not None and len(found.silent) == len(asked):
            raise failure
        return found

    return (yield from cluster.retrying(attempt))


def _ask(
    cluster: Cluster, node_id: int, names: Sequence[str] | None, found: ReplicaSizes
) -> Operation[None]:
    first_name = ""
    timeout_s = min(_BROKER_S_MAX, cluster.settings.request_timeout_s)
    while True:
        request = DescribeReplicasRequest(
            names=None if names is None else list(names), first_name=first_name
        )
        address = cluster.address_of(node_id)
        reply = yield cluster.call(address, request, timeout_s=timeout_s)
        check(reply.response)
        response = reply.response
        assert isinstance(response, DescribeReplicasResponse)
        if response.room_bytes >= 0:
            found.room_bytes[node_id] = response.room_bytes
        for topic in response.topics:
            for one in topic.replicas:
                sizes = found.by_partition.setdefault((topic.name, one.partition), {})
                sizes[node_id] = one.size_bytes
        first_name = response.next_name
        if not first_name:
            return
