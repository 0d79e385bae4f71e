"""Two nodes with the same records: the one leads a partition, the other copies it and serves it.

Owns the two drivers and what carries requests between them, which happens at the test's command.
Not here: what a test asserts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quiverlog.addresses import Address
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import PeerUnreachable
from quiverlog.limits import REPLICA_FETCH_WATERMARK_WAIT_MS
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.effects import Effect, SendToPeer
from quiverlog.node.runtime.events import PeerClosed, ResponseReceived, Tick

from .node import NodeDriver

__all__ = ["BOTH", "COPY", "LEADER", "Copies"]

LEADER, COPY = 0, 1
BOTH = (LEADER, COPY)
_PEER_CONNECTION = 2


class _CopyDriver(NodeDriver):
    """Keeps what the node asks of its leader."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.asked: list[SendToPeer] = []
        super().__init__(root, **config)

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        self.asked += [one for one in effects if isinstance(one, SendToPeer)]
        return super()._perform(effects)


class Copies:
    """Rows are acknowledged in memory; both replicas are in sync."""

    def __init__(self, tmp_path: Path, **configs: str) -> None:
        self.leader = NodeDriver(tmp_path / "leader", node_id=LEADER, cluster_id="c")
        self.copy = _CopyDriver(tmp_path / "copy", node_id=COPY, cluster_id="c")
        self._waiting: dict[int, SendToPeer] = {}
        configs.setdefault("durability", "memory")
        self.topic = self.leader.create(**configs)
        assert self.copy.create(**configs) == self.topic
        for node in (self.leader, self.copy):
            broker = node.node.broker
            others = {number: Address("other", 1) for number in BOTH}
            del others[node.config.node_id]
            broker.peers.addresses_changed(others)
        self.change(replicas=BOTH, in_sync_replicas=BOTH, leader_id=LEADER, leader_epoch=3)

    def change(self, *nodes: NodeDriver, **fields: Any) -> None:
        """Change the metadata of both nodes."""
        for node in nodes or (self.leader, self.copy):
            record = PartitionChangeRecord(self.topic, 0, **fields)
            errors: list[BaseException | None] = []
            node.node.broker.propose(
                [record], node.now, lambda _result, error, _now, errors=errors: errors.append(error)
            )
            node.send(Tick())
            assert errors == [None]

    @property
    def replica(self) -> Replica:
        """The copy's."""
        found = self.copy.node.broker.assignment.find((self.topic, 0))
        assert found is not None
        return found

    def carry(self) -> bool:
        """What is asked goes to the leader, and what it has answered comes back. False: nothing."""
        carried = False
        asked, self.copy.asked = self.copy.asked, []
        for one in asked:
            carried = True
            body = b"".join(bytes(part) for part in one.body)
            correlation = self.leader.request(one.request, body, connection=_PEER_CONNECTION)
            self._waiting[correlation] = one
        for correlation, one in list(self._waiting.items()):
            answer = self.leader.answer(correlation)
            if answer is not None:
                carried = True
                del self._waiting[correlation]
                body = memoryview(bytearray(answer[1]))
                self.copy.send(ResponseReceived(one.peer, one.token, answer[0], body))
        return carried

    def settle(self) -> None:
        """Carry until the leader has nothing new to send."""
        for _ in range(50):
            if not self.carry():
                # A high watermark without a waiting reader comes a little later.
                self.leader.advance(REPLICA_FETCH_WATERMARK_WAIT_MS)
                if not self.carry():
                    return
            self.copy.send(Tick())
        raise AssertionError("two nodes talk for ever")

    def later(self, ms: int = 5_000) -> None:
        """Let time pass for both, and their messages arrive."""
        for _ in range(0, ms, 100):
            self.leader.advance(100)
            self.copy.advance(100)
            self.settle()

    def break_off(self) -> None:
        """The connection between them ends: nothing that is under way is answered."""
        self.copy.asked.clear()
        gone, self._waiting = self._waiting, {}
        for one in gone.values():
            self.copy.send(PeerClosed(one.peer, (one.token,), PeerUnreachable("cut")))
