"""Gives rows up, after the last fault, where a partition would wait for ever.

Owns when: no replica is trusted, every replica's broker has been up for long enough to report where
its log ends, and as many of their disks have lost the partition since as may have held
rows alone. Then the product waits for an operator's `topic elect --unclean` (docs/adr/0044, 0047),
and the promises of that partition are over. Where fewer were lost the product must go on by itself.

Not here: which log is the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.core.controller.image import Image
from quiverlog.errors import QuiverlogError

from .programs import Program
from .promises import ClusterChecker, ClusterTopicModel

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["look_after"]

_LOOK_US = 5_000_000
_LOOKS = 3
"""So often in a row the same partitions wait."""


class _Caretaker(Program):
    """Gives up the rows of some topics' partitions without a leader."""

    def __init__(self, cluster: Cluster, checker: ClusterChecker, names: tuple[str, ...]) -> None:
        self._names = names
        super().__init__(cluster, checker, "caretaker")

    async def main(self) -> None:
        for name in self._names:
            try:
                await self.client().elect_leaders(name, unclean=True)
            except QuiverlogError as error:
                self.checker.error(error.code)  # It may be gone; another look follows.
        await self.client().close()


def waits(image: Image) -> tuple[str, ...]:
    """Topics with a partition that waits for the operator."""
    alive = {one.node_id for one in image.live_brokers()}
    return tuple(
        topic.name
        for topic in image.topics.values()
        if any(
            one.awaits_logs
            and len(one.replaced_disks) >= min(topic.min_in_sync_least, len(one.replicas))
            and alive >= set(one.replicas)
            for one in topic.partitions
        )
    )


def look_after(cluster: Cluster, checker: ClusterChecker) -> None:
    """From now on, when the world is calm."""
    scale = cluster.scenario.tempo.scale
    seen: list[tuple[str, ...]] = []

    def look() -> None:
        leader = cluster.controller()
        if leader is not None and leader.node is not None:
            seen.append(waits(leader.node.broker.metadata.image))
            stuck = set(seen[-1]).intersection(*seen[-_LOOKS:])
            if len(seen) >= _LOOKS and stuck:
                give_up(tuple(sorted(stuck)))
                seen.clear()
        cluster.world.at(_LOOK_US * scale, look)

    def give_up(names: tuple[str, ...]) -> None:
        cluster.world.events["rows given up by command"] += 1
        for model in checker.topics.values():
            if isinstance(model, ClusterTopicModel) and model.name in names:
                model.may_be_unclean = True
        _Caretaker(cluster, checker, names)

    cluster.world.at(_LOOK_US * scale, look)
