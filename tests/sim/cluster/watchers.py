"""Clients that ask one node of a cluster, again and again, where the readable rows of a log end.

The leader answers where rows end, all others refuse: so a node that takes itself for the leader, or
leads and lacks what was shown before, is asked in the moment in which it matters.

Owns what is asked when; what is right is judged by `histories`.
"""

from __future__ import annotations

from typing import Any

from quiverlog.errors import UnknownTopicId, error_class
from quiverlog.types import LATEST
from quiverlog.wire import messages as m
from tests.sim.checker import Checker, Violation
from tests.sim.host import Host

from .clients import _Routed, put_down_ends

__all__ = ["Watcher"]

_PAUSE_US = 40_000


class Watcher(_Routed):
    def __init__(self, world: Any, checker: Checker, node_id: int) -> None:
        self._node_id = node_id
        super().__init__(world, checker, f"watcher-{node_id}", (b"", 0))

    @property
    def host(self) -> Host:
        return self.world.hosts[self._node_id]

    def act(self) -> None:
        entries = [m.ListOffsetsPartition(*key, at=LATEST) for key in self.keys()]
        self.ask(m.ListOffsetsRequest(partitions=entries))

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.ListOffsetsResponse):
            put_down_ends(self, request, response)
            for one in response.partitions:
                # A node that has just started may lack the topic yet.
                expected = one.error_code in (0, UnknownTopicId.code)
                if not expected and not error_class(one.error_code).retriable:
                    raise Violation(f"where rows end was refused: {one.error_message}")
        self.later(self.rng.randrange(1_000, _PAUSE_US))
