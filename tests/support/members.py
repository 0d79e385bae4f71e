"""Several nodes that speak with each other: what one sends to a peer arrives at the other at once.

Owns the way of requests between brokers (through the real bytes), cuts in it, and one clock for
all. Jobs and flushes are done at once unless a test holds them. Not here: what a test asserts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quiverlog.addresses import Address
from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.errors import PeerUnreachable
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.effects import (
    NO_TOKEN,
    Effect,
    ListenToBrokers,
    PeerAddresses,
    SendToPeer,
)
from quiverlog.node.runtime.events import (
    PeerClosed,
    RequestReceived,
    ResponseReceived,
    Shutdown,
    Tick,
)
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.wire import frames
from quiverlog.wire import messages as m

from .node import NodeDriver

__all__ = ["CLUSTER", "Member", "Members"]

CLUSTER = "the-cluster"
_STEP_MS = 10


class Member(NodeDriver):
    """One node; its connection `100 + n` is that of node n."""

    def __init__(
        self,
        root: Path,
        members: Members,
        node_id: int,
        make_disk: Callable[[], Disk] = PosixDisk,
        **config: Any,
    ) -> None:
        self._members = members
        members.made += 1
        self._salt = members.made
        self.addresses: dict[int, Address] = {}
        self.sent: list[SendToPeer] = []
        self.listens = False
        super().__init__(
            root / f"node-{node_id}",
            make_disk,
            **{
                "node_id": node_id,
                "cluster_id": CLUSTER,
                "advertised_host": f"host-{node_id}",
                **config,
            },
        )

    @property
    def quorum(self) -> Quorum:
        return self.node.broker.quorum

    @property
    def key(self) -> ReplicaKey:
        assert self.quorum.log is not None
        return self.quorum.log.key

    @property
    def phase(self) -> Phase:
        return self.node.broker.admission.phase

    @property
    def version(self) -> int:
        return self.node.broker.metadata.image.version

    def stop(self) -> None:
        """Stop in order, with whatever others have to do for that."""
        self.send(Shutdown())
        self._members.run_until(lambda: self.shut_down, 15_000)
        assert not self.jobs

    def _greet(self) -> None:
        """A start that waits for others is over some time."""

    def _entropy(self, count: int) -> bytes:
        return (next(self._random) + (self._salt << 20)).to_bytes(count, "big")

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        for effect in super()._perform(effects):
            if isinstance(effect, PeerAddresses):
                self.addresses = dict(effect.by_node)
            elif isinstance(effect, SendToPeer):
                self._members.wire.append((self, effect))
            elif isinstance(effect, ListenToBrokers):
                self.listens = True
        return effects


class Members:
    """`cut`: pairs of node ids that do not reach each other. `late`: true for what is to arrive
    when it is true no more.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.wire: deque[tuple[Member, SendToPeer]] = deque()
        self.by_id: dict[int, Member] = {}
        self.down: set[int] = set()
        self.cut: set[frozenset[int]] = set()
        self.late: Callable[[SendToPeer], bool] = lambda _: False
        self._kept: deque[tuple[Member, SendToPeer]] = deque()
        self.undelivered = self.made = 0
        self.asked: list[tuple[Member, SendToPeer, Member, int]] = []
        self._correlation = 1 << 20

    def add(self, node_id: int, *, seeds: tuple[int, ...] = (), **config: Any) -> Member:
        """A new node; it asks `seeds`."""
        controllers = {seed: Address(f"host-{seed}", 9292) for seed in seeds}
        mono_us = max((one.mono_us for one in self.by_id.values()), default=None)
        member = Member(self._root, self, node_id, controllers=controllers, **config)
        if mono_us is not None:
            member.set_clock(max(mono_us, member.mono_us))
        self.by_id[node_id] = member
        return member

    # --- the way -------------------------------------------------------------------------------
    def deliver(self) -> None:
        """All that is under way, and all that comes of it."""
        self._answer()
        self.wire.extendleft(reversed(self._kept))
        self._kept.clear()
        while self.wire:
            source, effect = self.wire.popleft()
            if self.late(effect):
                self._kept.append((source, effect))
                continue
            self._deliver(source, effect)
            self._answer()

    def _deliver(self, source: Member, effect: SendToPeer) -> None:
        target_id = effect.peer.node_id
        address = source.addresses.get(target_id)
        target = next(
            (
                one
                for one in self.by_id.values()
                if address is not None and one.config.endpoint == address
            ),
            None,
        )
        pair = frozenset((source.config.node_id, target_id))
        if target is None or target_id in self.down or pair in self.cut:
            self.undelivered += 1
            if effect.token != NO_TOKEN:
                source.send(PeerClosed(effect.peer, (effect.token,), PeerUnreachable("cut")))
            return
        self._correlation += 1
        number = self._correlation
        body = b"".join(effect.body)
        head = frames.encode(effect.request, number, len(body))
        request = frames.decode_request(head[8:])
        connection = 100 + source.config.node_id
        if connection not in target.node.broker.clients.accounts:
            target.call(m.HelloRequest(client_id="peer"), connection=connection)
        target.send(RequestReceived(connection, request, memoryview(bytearray(body))))
        if effect.token != NO_TOKEN:
            self.asked.append((source, effect, target, number))

    def _answer(self) -> None:
        """The asked node may have answered meanwhile."""
        asked, self.asked = self.asked, []
        for source, effect, target, number in asked:
            answer = target.answer(number)
            if answer is None:
                self.asked.append((source, effect, target, number))
            else:
                source.send(
                    ResponseReceived(effect.peer, effect.token, answer[0], memoryview(answer[1]))
                )

    # --- time ----------------------------------------------------------------------------------
    @property
    def up(self) -> list[Member]:
        return [one for node_id, one in self.by_id.items() if node_id not in self.down]

    def run(self, ms: int) -> None:
        """Let time pass everywhere."""
        self.deliver()
        for _ in range(0, ms, _STEP_MS):
            for one in self.up:
                one.set_clock(one.mono_us + _STEP_MS * 1000)
                due_us = one.node.next_deadline_us()
                if due_us is not None and due_us <= one.mono_us:
                    one.send(Tick())
                one.flush()
            self.deliver()

    def run_until(self, condition: Callable[[], bool], ms_max: int = 10_000) -> int:
        """Let time pass until something is so; returns how long it took."""
        for ms in range(0, ms_max, _STEP_MS):
            if condition():
                return ms
            self.run(_STEP_MS)
        raise AssertionError(f"not within {ms_max} ms")

    @property
    def leaders(self) -> list[Member]:
        return [one for one in self.up if one.quorum.is_leading]
