"""Members of groups by single requests: what a client in another language does, step by step.

Each call asks again where an answer is retriable, until its deadline, as any client must; also over
another connection, where the broker was killed.
"""

from __future__ import annotations

import os
from typing import Any

from quiverlog.client.admin.groups import ask_coordinator
from quiverlog.client.client import Client
from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m
from quiverlog.wire.group_messages import (
    CommitOffsetsRequest,
    CommittedOffset,
    FetchOffsetsRequest,
    GroupHeartbeatRequest,
    TopicPartitions,
)
from quiverlog.wire.registry import APIS

from .broker import BrokerProcess
from .rawclient import RawClient
from .until import until

__all__ = ["ClusterGroups", "RawGroups", "RawMember"]


class RawGroups:
    """Asks one broker, which coordinates all groups."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._client: RawClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, request: m.Request) -> Any:
        """Ask until the answer is none that a client repeats."""
        found: list[Any] = []

        def is_answered() -> bool:
            try:
                if self._client is None:
                    self._client = RawClient(self._broker.address)
                found.append(self._client.ask(request))
            except OSError:
                self.close()
                return False
            except QuiverlogError as error:
                if not error.retriable:
                    raise
                return False
            return True

        until(is_answered, request.API.name)
        return found[0]

    def commit(self, topic_id: bytes, offsets: dict[int, int], **fields: Any) -> list[int]:
        """Returns the codes of the partitions."""
        entries = [CommittedOffset(topic_id, *one) for one in offsets.items()]
        response = self.ask(CommitOffsetsRequest(entries=entries, **fields))
        return [one.error_code for one in response.entries]

    def offsets(self, group: str) -> dict[int, int]:
        response = self.ask(FetchOffsetsRequest(group=group))
        assert not response.next_page
        return {one.partition: one.offset for one in response.offsets}


class ClusterGroups:
    """Asks the coordinator of one group, whichever broker that is."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group

    def ask(self, request: m.Request) -> Any:
        kind = APIS[int(request.API)].response
        asked = ask_coordinator(self._client.cluster, self._group, request, kind, makes=True)
        return self._client.run(asked)

    def commit(self, topic_id: bytes, offsets: dict[int, int], **fields: Any) -> list[int]:
        entries = [CommittedOffset(topic_id, *one) for one in offsets.items()]
        response = self.ask(CommitOffsetsRequest(entries=entries, **fields))
        return [one.error_code for one in response.entries]


class RawMember:
    def __init__(
        self, groups: RawGroups | ClusterGroups, group: str, topic: str, **fields: Any
    ) -> None:
        self._groups = groups
        self._joins: dict[str, Any] = {"topics": [topic], **fields}
        self.group = group
        self.id = os.urandom(16)
        self.epoch = self._beats = 0
        self.has: dict[bytes, list[int]] = {}
        self.epochs: list[int] = []
        """All that it has had, in order."""

    def beat(self, **changes: Any) -> Any:
        """One heartbeat, with all that it has."""
        self._beats += 1
        owned = [TopicPartitions(one, numbers) for one, numbers in self.has.items()]
        request = GroupHeartbeatRequest(
            group=self.group,
            member_id=self.id,
            beat=self._beats,
            **{
                "member_epoch": self.epoch,
                "owned": None if self.epoch == 0 else owned,
                **(self._joins if self.epoch == 0 else {}),
                **changes,
            },
        )
        response = self._groups.ask(request)
        self.epoch = response.member_epoch
        self.epochs.append(self.epoch)
        if response.assignment is not None:
            self.has = {one.topic_id: one.partitions for one in response.assignment}
        return response

    @property
    def partitions(self) -> list[int]:
        return sorted(number for numbers in self.has.values() for number in numbers)

    def commit(self, offset: int) -> list[int]:
        """Of all that it has."""
        (topic_id,) = self.has
        offsets = dict.fromkeys(self.partitions, offset)
        return self._groups.commit(
            topic_id, offsets, group=self.group, member_id=self.id, member_epoch=self.epoch
        )
