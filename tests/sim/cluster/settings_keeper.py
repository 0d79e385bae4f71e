"""A program that changes how brokers are configured while they work, and finalises feature levels.

Owns what it was promised: a value that was confirmed for all brokers or for one is in the
controller's metadata at the end, and every broker without a value of its own follows it; a feature
level that was confirmed is never taken back. A request of unknown outcome takes its key out of
these rules.

Not here: what a key does, or which of several values wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quiverlog.core.controller.broker_configs import ALL_BROKERS
from quiverlog.errors import InvalidFeatureLevel, QuiverlogError, UnknownBroker
from tests.sim.checker import Violation

from .programs import Program
from .promises import ClusterChecker

if TYPE_CHECKING:
    from quiverlog.wire.config_messages import BrokerConfigEntry

    from .cluster import Cluster

__all__ = ["SettingsKeeper"]

_VALUES: Final = {
    "connections.idle.ms": ("60000", "600000"),
    "leader.balance.moves.max": ("1", "100"),
    "leader.balance.period.ms": ("0", "5000", "300000"),
    "log.level": ("debug", "info"),
    "memory.buffer.bytes": ("134217728", "268435456"),
    "metrics.topics.max": ("1", "50"),
    "partition.move.bytes.per.second": ("0", "20000", "1000000"),
}
"""Such as let a cluster work on, each within the bounds of its key."""
_REFUSED: Final = (InvalidFeatureLevel, UnknownBroker)
"""The level is not finalised yet; a broker has not registered yet."""

_Place = tuple[int, str]
"""The broker that it is for (a node id, or all), and the key."""


class SettingsKeeper(Program):
    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.stopped = False
        self.is_idle = False
        self.confirmed: dict[_Place, str | None] = {}
        """What was confirmed, with no later request; None: no value."""
        self.level = 0
        self._places = [ALL_BROKERS, *(host.node_id for host in cluster.hosts)]
        super().__init__(cluster, checker, f"settings-keeper-{number}")

    async def main(self) -> None:
        while not self.stopped:
            await self.nap(self.rng.uniform(0.1, 1.5))
            if self.stopped:
                break
            try:
                await (self._finalize() if self.rng.random() < 0.2 else self._alter())
            except QuiverlogError as error:
                self.checker.error(error.code)
                if not (error.retriable or isinstance(error, _REFUSED)):
                    raise Violation(f"{self.name}: {error!r}") from error
        self.is_idle = True

    async def _alter(self) -> None:
        place = self.rng.choice(self._places)
        keys = self.rng.sample(sorted(_VALUES), self.rng.randint(1, 3))
        changes = {key: self.rng.choice((None, *_VALUES[key])) for key in keys}
        for key in keys:
            self.confirmed.pop((place, key), None)
        broker = None if place == ALL_BROKERS else place
        await self.client().alter_configs(changes, broker=broker)
        self.confirmed |= {(place, key): value for key, value in changes.items()}
        self.world.events["configuration changed"] += 1

    async def _finalize(self) -> None:
        found = await self.client().describe_features()
        self._not_below(found.level)
        if found.level < found.level_max:
            found = await self.client().finalize_features(found.level_max)
            self._not_below(found.level)
            self.world.events["feature level finalised"] += 1

    def _not_below(self, level: int) -> None:
        if level < self.level:
            raise Violation(f"feature level {self.level} was confirmed, and is {level}")
        self.level = level

    # --- the end -------------------------------------------------------------------------------
    def check(self) -> None:
        """Raise Violation unless the controller has what was confirmed, and every broker follows
        it.
        """
        leader = self._cluster.controller()
        assert leader is not None
        assert leader.node is not None
        image = leader.node.broker.metadata.image
        self._not_below(image.feature_level)
        for (place, key), value in self.confirmed.items():
            found = image.broker_configs.get(place, {}).get(key)
            if found != value:
                raise Violation(f"{key} was set to {value} for {place}: {found}")
        for host in self._cluster.members:
            assert host.node is not None
            self._check_broker(host.node_id, host.node.broker.live_config.entries())

    def _check_broker(self, node_id: int, entries: list[BrokerConfigEntry]) -> None:
        for entry in entries:
            place = (node_id, entry.key)
            if self.confirmed.get(place) is None:
                place = (ALL_BROKERS, entry.key) if place in self.confirmed else place
            wanted = self.confirmed.get(place)
            if wanted is not None and entry.value != wanted:
                raise Violation(f"broker {node_id}: {entry.key} is {entry.value}, not {wanted}")
