"""A node of a cluster: one of the world's hosts that may be paused, and that others watch.

Owns what a pause means (nothing arrives, no timer fires, no job reports; all of it happens when the
pause ends), how long a machine stays down, and when an operator may look at it.

Not here: rules about rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.events import Event
from tests.sim.host import Host
from tests.sim.inodes import Directory
from tests.sim.world import World

__all__ = ["ClusterHost"]


class _Clock:
    """The world as a process that may be paused sees it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.paused_until_us = 0
        # What never changes is taken over, so that asking for it costs nothing.
        self.scenario, self.faults, self.events = world.scenario, world.faults, world.events
        self.trace, self.network = world.trace, world.network
        self.note, self.connect = world.note, world.connect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    @property
    def mono_us(self) -> int:
        """As the world's."""
        return self._world.mono_us

    @property
    def wall_us(self) -> int:
        """As the world's."""
        return self._world.wall_us

    @property
    def calm(self) -> bool:
        """As the world's."""
        return self._world.calm

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """As `World.at`, and not before the pause is over."""
        world = self._world

        def act() -> None:
            if self.paused_until_us > world.mono_us:
                world.at(self.paused_until_us - world.mono_us, act)
            else:
                action()

        world.at(delay_us, act)


class ClusterHost(Host):
    def __init__(self, world: World, node_id: int) -> None:
        self._clock = _Clock(world)
        self.real_world = world
        super().__init__(self._clock, node_id)  # type: ignore[arg-type]
        self.disk.loop_may_block = False
        self.down_until_us = 0
        self.is_rotten = False
        """Have bits been flipped on its disk?"""
        self._incarnation = b""
        self.directory_id = ""
        """Of the disk that is in the machine; empty: no process has named it yet."""
        self.looked: Callable[[ClusterHost], None] = lambda host: None
        """Called whenever code of the node has run."""
        self.make_config: Callable[[ClusterHost, NodeConfig], NodeConfig] = lambda _, config: config
        self.may_lose_power: Callable[[ClusterHost], bool] = lambda host: False
        self.admit: Callable[[ClusterHost, int, str], None] = lambda host, number, client: None
        """Called with each connection that a client has opened, and the client's name."""

    def accepted(self, connection_id: int, client_name: str) -> None:
        with self.plant():
            self.admit(self, connection_id, client_name)

    # --- life ----------------------------------------------------------------------------------
    def config(self) -> NodeConfig:
        return self.make_config(self, super().config())

    def start(self) -> None:
        """Not while the machine is down, and only one process at a time."""
        world = self.real_world
        if self.node is not None:
            return
        if self.down_until_us > world.mono_us and not world.calm:
            world.at(self.down_until_us - world.mono_us, self.start)
            return
        super().start()

    def cut_short(self, where: str) -> None:
        if not self.may_lose_power(self):
            self.disk.die_after(None, power=False)
        super().cut_short(where)

    def change_disk(self, image: Directory | None) -> None:
        """The machine is gone, and comes back with an empty disk, or with this one."""
        if self.node is not None:
            self.disk.process_death()
            self._died(clean=False)
        self.disk.become(image)
        self.disk.lost_power = True
        if image is None:
            self.directory_id = ""

    @property
    def incarnation(self) -> bytes:
        """Of this life, or of the last one."""
        directory = getattr(self.node.broker, "directory", None) if self.node else None
        if directory is not None:
            self._incarnation = bytes(directory.incarnation)
            self.directory_id = directory.directory_id
        return self._incarnation

    # --- pauses --------------------------------------------------------------------------------
    @property
    def is_paused(self) -> bool:
        """Does nothing happen in this process just now?"""
        return self._clock.paused_until_us > self.real_world.mono_us

    def pause(self, duration_us: int) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        world = self.real_world
        self._clock.paused_until_us = world.mono_us + duration_us
        world.network.pause(self.name)
        world.at(duration_us, lambda: self._go_on(world))

    def resume(self) -> None:
        """The pause ends now."""
        self._clock.paused_until_us = 0
        self.real_world.network.resume(self.name)

    def _go_on(self, world: World) -> None:
        if not self.is_paused:
            world.network.resume(self.name)

    def feed(self, *events: Event) -> None:
        if self.is_paused:
            life = self.life

            def later() -> None:
                if self.life == life:
                    self.feed(*events)

            self.world.at(1, later)
            return
        super().feed(*events)

    # --- being looked at -----------------------------------------------------------------------
    def look_after(self) -> None:
        super().look_after()
        assert self.incarnation or self.node is None
        if self.node is not None:
            self.looked(self)
