"""The input of `core.placement`'s planners: brokers, partitions, sizes, room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.output import human_bytes
from quiverlog.cli.console.waiting import polls
from quiverlog.client.admin.cluster import list_moves
from quiverlog.core.placement.moves import Layout, Move, PlanBroker, PlanPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from quiverlog.client.admin.replica_sizes import ReplicaSizes
    from quiverlog.client.base.results import ClusterDetail, PartitionMove, TopicInfo
    from quiverlog.client.client import Client

    Moves = Mapping[str, Mapping[int, PartitionMove]]

__all__ = ["Placement", "check_room", "look"]

_SETTLES_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Brokers and partitions; a partition that moves counts at its destination."""

    brokers: list[PlanBroker]
    partitions: list[PlanPartition]
    moving: Mapping[tuple[str, int], PartitionMove]
    sizes: ReplicaSizes

    @property
    def silent(self) -> Sequence[int]:
        """Live brokers that did not report their replicas' sizes."""
        return self.sizes.silent

    def of(self, topic: str) -> list[PlanPartition]:
        found = [one for one in self.partitions if one.topic == topic]
        if not found:
            raise CommandFailed(f"There is no topic {topic!r}.")
        return found

    def layout(self, moves: Sequence[Move] = ()) -> Layout:
        after = {(one.topic, one.partition): one.after for one in moves}
        return Layout(
            self.brokers,
            [
                one._replace(replicas=after.get((one.topic, one.partition), one.replicas))
                for one in self.partitions
            ],
        )


def look(client: Client) -> Placement:
    described, moves, topics = _at_one_moment(client)
    moving = {(name, n): one for name, found in moves.items() for n, one in found.items()}
    sizes = client.describe_replicas()
    brokers = [
        PlanBroker(
            one.node_id,
            one.rack,
            one.host,
            takes=one.takes_partitions
            and not (one.fenced or one.in_shutdown or one.decommissioning),
            free_bytes=sizes.room_bytes.get(one.node_id),
        )
        for one in described.brokers
    ]
    partitions = []
    for name, topic in sorted(topics.items()):
        for one in topic.partitions:
            move = moving.get((name, one.partition))
            size = sizes.largest(name, one.partition)
            replicas, coming = (one.replicas, ()) if move is None else (move.target, move.adding)
            partitions.append(PlanPartition(name, one.partition, replicas, size, coming))
    return Placement(brokers, partitions, moving, sizes)


def _at_one_moment(client: Client) -> tuple[ClusterDetail, Moves, Mapping[str, TopicInfo]]:
    """Return cluster, moves and topics of one moment, as far as other clients allow."""
    for is_last in polls(_SETTLES_S):
        moves = client.run(list_moves(client.cluster))
        described = client.describe_cluster()
        found = client.metadata()
        # METADATA may be another broker's and older; and while a partition moves it lists the old
        # and the new replicas: with a move missed, all of them would count as its replicas.
        is_late = found.metadata_version < described.metadata_version
        if is_last or not (is_late or client.run(list_moves(client.cluster)) != moves):
            break
    return described, moves, found.topics


def check_room(placement: Placement, moves: Collection[Move]) -> None:
    layout = Layout(placement.brokers, placement.partitions)
    at = {(one.topic, one.partition): n for n, one in enumerate(placement.partitions)}
    for move in moves:
        layout.change(at[move.topic, move.partition], move.after)
    for broker in placement.brokers:
        incoming = layout.incoming_bytes[broker.node_id]
        if broker.free_bytes is not None and incoming > broker.free_bytes:
            raise CommandFailed(
                f"Broker {broker.node_id} has room for {human_bytes(broker.free_bytes)}, and "
                f"{human_bytes(incoming)} would move there; --ignore-room moves them nevertheless."
            )
