"""METADATA, page after page; only the controller's "unknown topic" counts.

Brokers apply a topic later than the controller confirms it. Without the controller's answer, a
topic's existence stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quiverlog.client.base.arguments import partitions_of
from quiverlog.client.base.commands import Call, Operation, Reply
from quiverlog.client.base.results import (
    Address,
    ClusterMetadata,
    PartitionInfo,
    TopicInfo,
    topic_info,
)
from quiverlog.errors import NotController, QuiverlogError, UnknownPartition, error_from_code
from quiverlog.wire import messages as m

from .answers import check_topic_count, named

__all__ = ["Ask", "MetadataAnswer", "ask_one", "check", "fetch_metadata", "partition_info"]

Ask = Callable[[m.Request], Operation[tuple[Address, Reply]]]


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """One broker's answer to METADATA; `response` is its last page."""

    address: Address
    response: m.MetadataResponse
    topics: dict[str, TopicInfo]

    @property
    def controller(self) -> Address | None:
        """The controller's address; None: the answer names none."""
        for one in self.response.brokers:
            if one.node_id == self.response.controller_id:
                return Address(one.host, one.port)
        return None

    @property
    def is_from_controller(self) -> bool:
        """True if this broker is the controller, so that its list of topics is complete."""
        controller = self.controller
        if controller is None or self.response.is_behind:
            return False
        # A single broker may be reached at another address than it reports.
        return controller == self.address or len(self.response.brokers) == 1

    def to_metadata(self, topics: dict[str, TopicInfo]) -> ClusterMetadata:
        response = self.response
        return ClusterMetadata(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            metadata_version=response.metadata_version,
            brokers={b.node_id: Address(b.host, b.port) for b in response.brokers},
            racks={b.node_id: b.rack for b in response.brokers},
            topics=topics,
        )


def check(response: m.Response) -> None:
    if response.error_code:
        raise error_from_code(response.error_code, response.error_message)


def ask_one(address: Address | None, timeout_s: float) -> Ask:
    def ask(request: m.Request) -> Operation[tuple[Address, Reply]]:
        if address is None:
            raise NotController("No controller is known: one may not be elected yet.")
        reply: Reply = yield Call(address, request, timeout_s)
        check(reply.response)
        return address, reply

    return ask


def fetch_metadata(ask: Ask, names: list[str] | None) -> Operation[MetadataAnswer]:
    """Ask for all topics (None) or for some; unknown ones are left out. No retry."""
    found: dict[str, TopicInfo] = {}
    first_name = ""
    while True:
        request = m.MetadataRequest(topics=names, first_name=first_name)
        try:
            address, reply = yield from ask(request)
        except QuiverlogError as error:
            if names and len(names) == 1:
                named(error, names[0])
            raise
        response = reply.response
        assert isinstance(response, m.MetadataResponse)
        found.update((t.name, topic_info(t)) for t in response.topics if not t.error_code)
        check_topic_count(len(found))
        first_name = response.next_name
        if not first_name:
            return MetadataAnswer(address, response, found)


def partition_info(topic: TopicInfo, partition: int) -> PartitionInfo:
    """Raises UnknownPartition: the topic has no such partition."""
    partitions = topic.partitions
    # Usually at its own index: no search.
    if 0 <= partition < len(partitions) and partitions[partition].partition == partition:
        return partitions[partition]
    for info in partitions:
        if info.partition == partition:
            return info
    raise UnknownPartition(
        f"{partitions_of(topic.name, len(partitions))}; {partition} is not one of them.",
        topic=topic.name,
        partition=partition,
    )
