"""What lies in the data directory and belongs to no topic of the image: removed, or set aside.

Owns the job that looks, and what the log says of it. Nothing that nobody ever deleted is removed.

Must not know: when a start may look.
"""

from __future__ import annotations

from typing import NamedTuple

from quiverlog.core.controller.image import Image
from quiverlog.node.broker import Broker
from quiverlog.types import TopicPartition

__all__ = ["Leftovers", "LeftoversJob", "owners_of", "report"]


class Leftovers(NamedTuple):
    """Names that were removed, set aside, or are to be removed while others are served."""

    removed: list[str]
    aside: list[str]
    later: dict[str, bytes]
    free_bytes: int


class LeftoversJob:
    """Looks through the directory as the image is now. `owners`: topic id by partition name."""

    __slots__ = ("_broker", "_deleted", "key", "kind", "owners")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.owners, self._deleted = owners_of(broker, broker.metadata.image)
        self.key = broker.directory.data_path
        self.kind = "leftovers"

    def run(self) -> Leftovers:
        """Nothing else uses the directory meanwhile. Raises UnsupportedFormat, StorageFault."""
        directory = self._broker.directory
        later: dict[str, bytes] = {}
        removed, aside = directory.remove_leftovers(
            self.owners, self._deleted, written=directory.written, later=later
        )
        free_bytes = self._broker.disk.free_bytes(self._broker.config.data_dir)
        assert not later.keys() & self.owners.keys(), "nothing that is owned is removed"
        return Leftovers(removed, aside, later, free_bytes)


def owners_of(broker: Broker, image: Image) -> tuple[dict[str, bytes], set[bytes]]:
    """Topic ids of the partitions that are here, by name; those of topics that are not."""
    owners = {
        str(TopicPartition(topic.name, partition.partition)): topic.topic_id
        for topic in image.topics.values()
        for partition in topic.partitions
        if broker.config.node_id in partition.replicas
    }
    # A partition that went elsewhere is here no more, like one of a topic that was deleted.
    elsewhere = {
        topic.topic_id
        for topic in image.topics.values()
        if any(broker.config.node_id not in one.replicas for one in topic.partitions)
    }
    return owners, {*image.removed_topic_ids, *elsewhere}


def report(broker: Broker, found: Leftovers, job: LeftoversJob) -> None:
    """The job is back: say what it found, and have the rest removed in the background."""
    topics = broker.metadata.image.topics_by_id
    assert not set(found.aside) & found.later.keys(), "a directory has one fate"
    # Topics that were deleted while it looked.
    later = found.later | {n: t for n, t in job.owners.items() if t not in topics}
    if found.removed:
        broker.outbox.log("info", "leftovers removed", count=len(found.removed))
    if later:
        broker.outbox.log("info", "leftovers are being removed", count=len(later))
        broker.assignment.remove_leftovers(later)
    log_path = f"{broker.directory.metadata_path}/metadata.log"
    for name in found.aside:
        broker.outbox.log(
            "error",
            "rows of an unknown topic set aside",
            name=name,
            file=log_path,
            why=f"{log_path} does not know their topic. No row was removed. If the file is of"
            f" another day: stop this broker, put the right one back, rename data/{name}.*.orphan"
            f" to data/{name} (docs/operating.md).",
        )
    for note in broker.directory.notes:
        broker.outbox.log("warning", "data directory", note=note)
