"""How fast a simulated cluster's time goes: its timers, its load, and the quiet between bursts.

Owns what a seed draws of it. Half of all runs have the shipped timing and load without a pause. In
the others the timers of the cluster (heartbeats, elections, sessions, fetch waits, lag) are up to
30 times as long, load and faults are spread likewise, and hours come in which little is asked and
little goes wrong, but never nothing: so a run also meets the timers that are slow in any case (the
flush after 30 s, the round of preferred leaders), which shrink in some runs instead. Networks and
disks are as fast as ever.

A run's length is its work at the shipped timing; `Tempo.stretch` is how much longer it takes. Hours
of the two kinds are counted apart: see `soak`.

Not here: what clients ask, what faults do.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest import mock

from quiverlog.client.base import deadline
from quiverlog.client.cluster import replica_choice, routing
from quiverlog.client.consumer import core as consumer_core
from quiverlog.client.consumer import fetches as consumer_fetches
from quiverlog.client.producer import sender
from quiverlog.client.tables import fetcher
from quiverlog.core.controller import sessions
from quiverlog.core.partition.partition import PartitionState
from quiverlog.core.raft.messages import RaftConfig
from quiverlog.core.replication import follower, peer_fetcher
from quiverlog.limits import (
    BROKER_SESSION_MS_DEFAULT,
    LEADER_BALANCE_PERIOD_MS,
    PEER_ANSWER_MS_DEFAULT,
    RAFT_ELECTION_TIMEOUT_MS,
    RAFT_HEARTBEAT_MS,
    REPLICA_LAG_MS_MAX,
)
from quiverlog.node.controller import controller_link, log_ends, registrar, registration
from quiverlog.node.metadata import producer_ids, quorum, voters
from quiverlog.node.replication import in_sync, offline_replicas, replica_fetcher
from quiverlog.node.runtime import peers
from quiverlog.server.peers import link
from quiverlog.storage.log import flushing
from tests.sim.world import World

__all__ = ["SCALED", "SHIPPED", "Leisure", "Tempo"]

SCALED: Final[tuple[tuple[Any, str], ...]] = (
    (replica_fetcher, "REPLICA_FETCH_WAIT_MS"),
    (replica_fetcher, "_ANSWER_MS"),
    (peer_fetcher, "_BACKOFF_US_MIN"),
    (peer_fetcher, "_BACKOFF_US_MAX"),
    (follower, "_BACKOFF_US_MIN"),
    (follower, "_BACKOFF_US_MAX"),
    (log_ends, "_AGAIN_US"),
    (log_ends, "_PAUSE_US"),
    (offline_replicas, "BROKER_RETRY_MS"),
    (offline_replicas, "_RETRY_US"),
    (voters, "_RETRY_US"),
    (producer_ids, "_UNSEEN_US_MAX"),
    (registrar, "BROKER_RETRY_MS"),
    (registration, "BROKER_RETRY_MS"),
    (registration, "BROKER_STOP_MS_MAX"),
    (in_sync, "_RETRY_US"),
    (sessions, "_SUSPECT_US"),
    (link, "PEER_SILENCE_MS"),
    (link, "PEER_WRONG_BACKOFF_MS"),
    (link, "PEER_BACKOFF_MS_MIN"),
    (link, "PEER_BACKOFF_MS_MAX"),
    (deadline, "RETRY_BACKOFF_MS_MIN"),
    (deadline, "RETRY_BACKOFF_MS_MAX"),
    (deadline, "ELSEWHERE_BACKOFF_MS_MAX"),
    (consumer_core, "IN_SYNC_EVERY_S"),
    (consumer_core, "NEW_PARTITIONS_EVERY_S"),
    (consumer_fetches, "FETCH_MAX_WAIT_MS_DEFAULT"),
    (consumer_fetches, "FETCH_MAX_WAIT_MS_DEFAULT"),
    (consumer_fetches, "OVERDUE_S"),
    (consumer_fetches, "SILENCE_S"),
    (fetcher, "FETCH_MAX_WAIT_MS_DEFAULT"),
    (fetcher, "IN_SYNC_EVERY_S"),
    (fetcher, "OVERDUE_S"),
    (sender, "SILENCE_US"),
    (replica_choice, "CHECK_S"),
    (replica_choice, "IN_SYNC_EVERY_S"),
    (routing, "_SILENCE_S_MAX"),
    (sender, "SILENCE_US"),
    (routing, "_SILENCE_S"),
)
"""The timers that are multiplied. One that is gone or was renamed stops the run."""
_ACTION_US: Final = 10_000
"""A shorter wait of clients counts as this long, where little of it goes on."""
_BURST_US: Final = 5_000_000
"""Work between two pauses of it, on average, at the shipped timing."""
_NEVER_US: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Tempo:
    """Factors. `scale`: how much longer timers, load and faults take. `quiet`: how much longer the
    pauses in the load are than the load. `hurry`: how much faster slow timers are.
    """

    scale: int = 1
    quiet: int = 0
    hurry: int = 1
    quiet_faults: float = 0.0
    """Share of the faults that come in quiet hours, too."""
    quiet_load: float = 0.0
    """Share of what clients do that goes on in quiet hours."""

    @classmethod
    def draw(cls, seed: int) -> Tempo:
        """That of a seed; half of them are as shipped."""
        rng = random.Random(f"tempo-{seed}")
        if rng.random() < 0.5:
            return SHIPPED
        return cls(
            scale=rng.choice((1, 3, 10, 30)),
            quiet=rng.choice((0, 1, 4, 20, 60)),
            hurry=rng.choice((1, 1, 10)),
            quiet_faults=rng.choice((0.02, 0.02, 0.2)),
            quiet_load=rng.choice((0.003, 0.03)),
        )

    @property
    def is_shipped(self) -> bool:
        """Is every timer as brokers have it?"""
        return self.scale == 1 and self.hurry == 1

    @property
    def stretch(self) -> int:
        """How much longer a run takes than its work at the shipped timing."""
        return self.scale * (1 + self.quiet)

    @property
    def session_ms(self) -> int:
        """After which silent brokers are fenced."""
        return BROKER_SESSION_MS_DEFAULT * self.scale

    @property
    def balance_ms(self) -> int:
        """Between two rounds of preferred leaders."""
        return LEADER_BALANCE_PERIOD_MS // self.hurry

    @contextlib.contextmanager
    def timers(self) -> Iterator[None]:
        """Production's timers, for the length of a run."""
        if self.is_shipped:
            yield
            return
        raft = partial(
            RaftConfig,
            election_timeout_us=RAFT_ELECTION_TIMEOUT_MS * self.scale * 1_000,
            heartbeat_us=RAFT_HEARTBEAT_MS * self.scale * 1_000,
        )
        lag_us, answer_ms = REPLICA_LAG_MS_MAX * 1_000, PEER_ANSWER_MS_DEFAULT
        defaults = (
            (PartitionState.__init__, {"lag_max_us": lag_us * self.scale}),
            (peers.Peers.ask, {"timeout_ms": answer_ms * self.scale}),
            (controller_link.ControllerLink.ask, {"timeout_ms": answer_ms * self.scale}),
        )
        unflushed_ms = flushing.UNFLUSHED_MS_MAX // self.hurry
        with contextlib.ExitStack() as stack:
            for module, name in SCALED:
                value = getattr(module, name) * self.scale
                stack.enter_context(mock.patch.object(module, name, value))
            stack.enter_context(mock.patch.object(quorum, "RaftConfig", raft))
            stack.enter_context(mock.patch.object(flushing, "UNFLUSHED_MS_MAX", unflushed_ms))
            for function, values in defaults:
                known = function.__kwdefaults__
                assert values.keys() <= known.keys()
                stack.enter_context(mock.patch.dict(known, values))
            yield


SHIPPED: Final = Tempo()


class Leisure:
    """The world as its clients see it: what they do later they do `scale` times later, and not in
    quiet hours. When the world is calm everybody is quick."""

    def __init__(self, world: World, tempo: Tempo, rng: random.Random) -> None:
        self._world = world
        self._tempo = tempo
        self._rng = rng
        self._busy = False  # The first thing that happens is a burst of work.
        self._until_us = world.mono_us
        self._resting: list[tuple[int, Callable[[], None]]] = []
        self._slack: dict[int, Callable[[], None]] = {}
        """What is done in spite of quiet hours, a little later."""
        self._slack_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    @property
    def is_quiet(self) -> bool:
        """Return whether this is one of the hours without requests."""
        tempo, world = self._tempo, self._world
        if not tempo.quiet or world.calm:
            return False
        while self._until_us <= world.mono_us:
            self._busy = not self._busy
            mean_us = _BURST_US * tempo.scale * (1 if self._busy else tempo.quiet)
            self._until_us += 1 + int(self._rng.expovariate(1 / mean_us))
        return not self._busy

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """As `World.at`, later."""
        world = self._world
        if world.calm:
            world.at(delay_us, action)
            return

        def act() -> None:
            if not self.is_quiet:
                action()
                return
            quiet_us = self._until_us - world.mono_us
            slack_us = self._slack_us(delay_us)
            if slack_us < quiet_us:
                self._slack_count += 1
                self._slack[self._slack_count] = action
                world.at(slack_us, partial(self._act_in_quiet, self._slack_count))
                return
            if not self._resting:
                world.at(quiet_us, self._go_on)
            self._resting.append((delay_us, action))

        world.at(delay_us * self._tempo.scale, act)

    def nap_us(self, delay_us: int) -> int:
        """How long a client that would do something now waits with it; 0: not at all."""
        if not self.is_quiet:
            return 0
        return min(self._until_us - self._world.mono_us, self._slack_us(delay_us))

    def _slack_us(self, delay_us: int) -> int:
        """After how long what is to be done each `delay_us` is done in spite of quiet hours."""
        tempo = self._tempo
        if not tempo.quiet_load:
            return _NEVER_US
        mean_us = max(delay_us, _ACTION_US) * tempo.scale / tempo.quiet_load
        return 1 + int(self._rng.expovariate(1 / mean_us))

    def _act_in_quiet(self, number: int) -> None:
        action = self._slack.pop(number, None)
        if action is not None:
            action()

    def _go_on(self) -> None:
        """The quiet is over: everybody goes on, each a little later."""
        resting, self._resting = self._resting, []
        for delay_us, action in resting:
            self.at(delay_us, action)

    def wake(self) -> None:
        """The world is calm: no client waits for anything any more."""
        self._go_on()
        slack, self._slack = self._slack, {}
        for action in slack.values():
            self.at(0, action)
