"""Simulated time and the network between replicas, from one seed.

Owns the heap of moments, what happens to messages, and the counts of faults. Messages are values:
each is lost, doubled and delayed on its own, so they overtake each other. A pair of nodes may be
cut in one direction or both.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable

from quiverlog.core.raft.messages import Message

from .scenario import Scenario

__all__ = ["World"]


class World:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now_us = 1_000_000
        self.counts: Counter[str] = Counter()
        self.trace = hashlib.blake2b(digest_size=12)
        self.calm = False
        """No more faults: messages arrive soon and once, disks are quick."""
        self.deliver: Callable[[Message], None] = lambda message: None
        self._cut: set[tuple[int, int]] = set()
        self._rng = random.Random(f"network-{scenario.seed}")
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    # --- time ----------------------------------------------------------------------------------
    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do `action` after `delay_us`."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + max(delay_us, 0), self._sequence, action))

    def run(self, duration_us: int, *, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass. True when `until`, looked at after every event, ended it."""
        end_us = self.now_us + duration_us
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            self.now_us, _, action = heapq.heappop(heap)
            action()
            if until is not None and until():
                return True
        self.now_us = end_us
        return False

    # --- network -------------------------------------------------------------------------------
    def cut(self, source: int, target: int) -> None:
        self._cut.add((source, target))

    def heal(self) -> None:
        self._cut.clear()

    def isolate(self, node_id: int, nodes: range) -> None:
        """Cut one node off from all others."""
        for other in nodes:
            if other != node_id:
                self.cut(node_id, other)
                self.cut(other, node_id)

    def send(self, message: Message) -> None:
        """A message leaves its sender."""
        rng, scenario = self._rng, self.scenario
        kind = type(message).__name__
        self.trace.update(b"%d %d>%d" % (self.now_us, message.source[0], message.target[0]))
        self.trace.update(kind.encode())
        self.counts[kind] += 1
        copies = 1
        if not self.calm:
            if rng.random() < scenario.loss:
                self.counts["message lost"] += 1
                return
            if rng.random() < scenario.duplication:
                self.counts["message doubled"] += 1
                copies = 2
        for _ in range(copies):
            delay_us = 200 + rng.randrange(scenario.delay_us)
            if not self.calm and rng.random() < scenario.reorder:
                delay_us *= rng.randint(2, 10)
            self.at(delay_us, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        if (message.source.node_id, message.target.node_id) in self._cut:
            self.counts["message cut off"] += 1
            return
        self.deliver(message)
