"""A world made of one seed: its time, its network, and the nodes in it.

Owns simulated time (a heap of moments), the trace of all that happened, the count of faults, and
the callbacks when a node starts or dies. Everything random comes from generators that the seed
made, everything timed from `at`: the same seed gives the same frames at the same moments.

Not here: what actors want, what is right or wrong (`actors`, `checker`).
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import inspect
import random
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from .host import Host
from .network import Connection, Endpoint, Network
from .scenario import Scenario

__all__ = ["World"]

_WALL_START_US = 1_700_000_000_000_000


class World:
    def __init__(self, scenario: Scenario, make_host: Callable[[World, int], Host] = Host) -> None:
        self.scenario = scenario
        self.mono_us = 1_000_000
        self.wall_us = _WALL_START_US
        self.faults: Counter[str] = Counter()
        """What went wrong on purpose, by kind."""
        self.events: Counter[str] = Counter()
        """What happened, by kind: shows that a run did what it is for."""
        self.trace = hashlib.blake2b(digest_size=16)
        """Of every frame and every line of a broker's log, with its moment."""
        self.on_started: list[Callable[[Host], None]] = []
        self.on_died: list[Callable[[Host, bool], None]] = []
        self.calm = False
        """No more faults: the end of a run, when all must come out right."""
        self.failure: BaseException | None = None
        """An exception of a task that no caller would get."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """Of all loops: a run that is broken off leaves some that were never begun."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.moments = 0
        """How many things have happened, each at its moment."""
        self.network = Network(self, random.Random(f"network-{scenario.seed}"))
        self.hosts = [make_host(self, node_id) for node_id in range(scenario.nodes)]

    # --- time ----------------------------------------------------------------------------------
    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do `action` after `delay_us` of simulated time."""
        self._sequence += 1
        moment_us = self.mono_us + delay_us if delay_us > 0 else self.mono_us
        heapq.heappush(self._heap, (moment_us, self._sequence, action))

    def run(self, duration_us: int, *, until: Callable[[], bool] | None = None) -> None:
        """Let time pass; `until` (looked at after every event) may end it early."""
        end_us = self.mono_us + duration_us
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end_us:
            moment_us, _, action = pop(heap)
            self.wall_us += moment_us - self.mono_us
            self.mono_us = moment_us
            self.moments += 1
            action()
            if self.failure is not None:
                raise self.failure
            if until is not None and until():
                return
        if until is None:
            self.wall_us += end_us - self.mono_us
            self.mono_us = end_us

    def fail(self, failure: BaseException) -> None:
        """End the run with this."""
        self.failure = self.failure or failure

    def abandon(self) -> None:
        """The run is broken off: what was not begun is left."""
        for task in self.tasks:
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and (
                inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
            ):
                coroutine.close()

    def note(self, what: bytes) -> None:
        """Add to the trace."""
        self.trace.update(b"%d %d " % (self.mono_us, len(what)))
        self.trace.update(what)

    # --- nodes ---------------------------------------------------------------------------------
    def connect(self, client: Endpoint, node_id: int) -> Connection | None:
        """A connection to a node; None when no process listens there."""
        host = self.hosts[node_id]
        if host.node is None:
            return None
        connection = self.network.connect(client, host)
        if connection is None or not host.accept(connection):
            return None
        return connection

    def started(self, host: Host) -> None:
        """A node's process is up."""
        for listener in self.on_started:
            listener(host)

    def died(self, host: Host, clean: bool) -> None:
        """A node's process is gone."""
        for listener in self.on_died:
            listener(host, clean)

    def last_words(self, count: int) -> list[str]:
        """The last lines of the nodes' logs."""
        return [f"{h.name}: {line}" for h in self.hosts for line in h.log_lines[-count:]]
