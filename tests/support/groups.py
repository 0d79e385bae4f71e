"""One node that coordinates groups, and members that the test plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quiverlog.core.groups.coordinator import Coordinator
from quiverlog.errors import QuiverlogError
from quiverlog.node.runtime.events import Tick
from quiverlog.wire import group_messages as g

from .node import NodeDriver

__all__ = ["GroupDriver", "Played", "commit_of", "refused"]

SETTLE_MS = 250


class Played:
    """A member: what it sends, and what it has by the answers."""

    def __init__(self, node: GroupDriver, number: int = 1, group: str = "g", **fields: Any) -> None:
        self.node = node
        self.group = group
        self.id = number.to_bytes(16, "big")
        self.fields = {"topics": ["t"], **fields}
        self.epoch = self.beats = 0
        self.has: dict[str, list[int]] = {}
        self._ids: dict[str, bytes] = {}

    def request(self, **changes: Any) -> g.GroupHeartbeatRequest:
        self.beats += 1
        fields = {
            "group": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "beat": self.beats,
            **(self.fields if self.epoch == 0 else {}),
            **changes,
        }
        return g.GroupHeartbeatRequest(**fields)

    def beat(self, **changes: Any) -> Any:
        response = self.node.done(self.request(**changes))
        self.take(response)
        return response

    def take(self, response: Any) -> None:
        if response.error_code:
            return
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.has = {one.name: one.partitions for one in response.assignment}
            self._ids = {one.name: one.topic_id for one in response.assignment}

    def owned(self) -> list[g.TopicPartitions]:
        return [g.TopicPartitions(self._ids[name], list(some)) for name, some in self.has.items()]

    def settle(self) -> None:
        """Beat until it has what it is to have."""
        for _ in range(20):
            self.node.pass_ms(SETTLE_MS)
            response = self.beat(owned=self.owned())
            assert not response.error_code, response
            if response.assignment is None and response.heartbeat_interval_ms > SETTLE_MS:
                return
        raise AssertionError("it does not settle")

    def leave(self, epoch: int = -1) -> Any:
        return self.node.done(self.request(member_epoch=epoch))


class GroupDriver(NodeDriver):
    def __init__(self, root: Path, partitions: int = 4, **config: Any) -> None:
        super().__init__(root, **config)
        self.topic = self.create("t", partitions=partitions)
        # The first heartbeat has the topic made.
        self.done(Played(self, 99, "first").request())
        self.settle()

    def settle(self) -> None:
        self.send(Tick())
        while self.syncs:
            self.flush()

    def pass_ms(self, ms: int) -> None:
        self.advance(ms)
        self.settle()

    def done(self, request: Any, connection: int = 1) -> Any:
        """The response, when all that it waits for was flushed."""
        correlation = self.request(request, connection=connection)
        self.settle()
        answer = self.answer(correlation)
        assert answer is not None, "not answered"
        return answer[0]

    def member(self, number: int = 1, group: str = "g", **fields: Any) -> Played:
        """One that has joined."""
        played = Played(self, number, group, **fields)
        response = played.beat()
        assert not response.error_code, response
        played.settle()
        return played

    def commit(self, offset: int, partition: int = 0, **fields: Any) -> Any:
        return self.done(commit_of(self.topic, offset, partition, **fields))

    def offsets(self, group: str = "g", **fields: Any) -> dict[int, int]:
        """By partition of the topic; without those of which there is none."""
        response = self.done(g.FetchOffsetsRequest(group=group, **fields))
        assert not response.error_code, response
        return {one.partition: one.offset for one in response.offsets if one.offset >= 0}

    def machine(self, group: str = "g") -> Coordinator:
        return self.node.broker.groups.ask(group)[1]


def commit_of(
    topic: bytes, offset: int, partition: int = 0, group: str = "g", **fields: Any
) -> g.CommitOffsetsRequest:
    entry = g.CommittedOffset(topic, partition, offset)
    return g.CommitOffsetsRequest(**{"group": group, "entries": [entry], **fields})


def refused(response: Any, kind: type[QuiverlogError]) -> str:
    assert response.error_code == kind.code, response
    return str(response.error_message)
