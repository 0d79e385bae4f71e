"""A cluster of simulated nodes, and what people and machines do to it.

Owns the hosts, the faults, and the limit of what is done to them: a machine loses its power only
while the others hold all that it holds, or all lose it at once, which the checkers are notified of.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from contextlib import nullcontext

from quiverlog.addresses import Address
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.node.runtime.config import LISTENER_DEFAULT, Asked, Authentication, NodeConfig
from quiverlog.wire.authentication_messages import DEFAULT_MECHANISMS
from tests.sim.host import Host, Plant
from tests.sim.world import World

from .aimed import Aimed
from .fault_plan import CALM
from .glue import CLUSTER_ID, PORT, Setup, make_directories
from .host import ClusterHost
from .invariants import Invariants
from .logins import PEERS, Keyring, LoginOracle, admit
from .machines import Machines
from .operator import Operator
from .proofs import Rotation
from .rules import SUPER_USER, RightsOracle, principal_of
from .scenario import ClusterScenario
from .tempo import Leisure

__all__ = ["Cluster"]

_JUMP_US = 8 * 86_400_000_000
_BACK_US = 2_000_000
_FIRST_MIN = 3
"""The number of nodes when the topics are created: copies are to be on three."""


class Cluster:
    def __init__(self, scenario: ClusterScenario, plant: Plant | None) -> None:
        self.scenario = scenario
        self.world = World(scenario.of_world(), ClusterHost)
        self.rng = random.Random(f"cluster-{scenario.seed}")
        self.leisure = Leisure(
            self.world, scenario.tempo, random.Random(f"leisure-{scenario.seed}")
        )
        """The world as clients see it."""
        self.hosts: list[ClusterHost] = [h for h in self.world.hosts if isinstance(h, ClusterHost)]
        self.invariants = Invariants()
        counted = self.invariants.counted
        counted.hosts = self.hosts
        counted.lag_us = REPLICA_LAG_MS_MAX * scenario.tempo.scale * 1_000
        clients = scenario.clients
        counted.is_patient = scenario.plan == CALM and not (clients.movers or clients.resizers)
        self.setup = Setup(self)
        self.invariants.on_elected = self._elected
        self.on_all_power: list[Callable[[], None]] = []
        self.frail: set[int] = set()
        """Nodes that lost rows with their power, and have not got all of them back yet."""
        self.bare: set[int] = set()
        """Those of them whose disk is another one."""
        self.machines = Machines(self)
        self.aimed = Aimed(self)
        self.whole_us: int | None = None
        """Since when everything is in sync, and stays so: there are no faults any more."""
        self.operator: Operator | None = None
        """Changes the voters; None in runs without such changes."""
        self.rotation = Rotation(self) if scenario.proofs else None
        """Replaces the secret; None in runs without one."""
        self.rights = RightsOracle(self)
        self.logins = LoginOracle(self)
        self.keyring = Keyring(scenario.seed)
        self.has_jumps = bool(scenario.clock_jump_interval_ms or scenario.plan.clock_interval_ms)
        """Whether wall clocks do."""
        self.world.on_died.append(self._died)
        buggy = range(scenario.nodes) if scenario.buggy_everywhere else (
            self.rng.randrange(scenario.nodes),
        )  # fmt: skip
        late = min(scenario.plan.late, max(0, scenario.nodes - _FIRST_MIN))
        self.late = self.hosts[len(self.hosts) - late :]
        """Nodes that are started while clients work."""
        first = self.hosts[: len(self.hosts) - late]
        self.first_voters = first[: scenario.plan.first_voters or len(first)]
        make_directories(self.first_voters)
        for host in self.hosts:
            host.cluster_id = CLUSTER_ID
            host.plant = plant if plant is not None and host.node_id in buggy else nullcontext
            host.looked = self.invariants.look
            if scenario.has_names:
                host.admit = self._admit
            host.make_config = self._config
            host.may_lose_power = self.may_lose_power

    def _config(self, host: ClusterHost, config: NodeConfig) -> NodeConfig:
        """As an operator writes it: each node gets the addresses of all, or some, but the one that
        begins the cluster.
        """
        plan = self.scenario.plan
        behind = [*self.hosts[host.node_id + 1 :], *self.hosts[: host.node_id]]
        configured = behind[: plan.seeds] if plan.seeds else behind
        others = {one.node_id: Address(one.name, PORT) for one in configured}
        founds = plan.first_voters == 1 and host.node_id == 0 and host.life == 1
        tempo, expiry_ms = self.scenario.tempo, self.scenario.clients.id_expiry_ms
        if expiry_ms:
            config = dataclasses.replace(
                config, transactional_id_expiry_ms=int(expiry_ms * tempo.scale)
            )
        if self.scenario.has_names:
            # Asked of those that log in alone: all others come with their names.
            asked = Authentication(Asked.REQUIRED, DEFAULT_MECHANISMS)
            config = dataclasses.replace(
                config, authentication={LISTENER_DEFAULT: asked}, super_users=(SUPER_USER,)
            )
        if self.scenario.certificates:
            config = dataclasses.replace(
                config,
                brokers_have_certificates=True,
                inter_broker_listener=PEERS,
                listeners={PEERS: Address(host.name, PORT)},
            )
        return dataclasses.replace(
            config,
            broker_session_ms=tempo.session_ms,
            leader_balance_period_ms=tempo.balance_ms,
            rack=f"rack-{host.node_id % 2}",
            controllers={} if founds else others,
            joins_quorum=not (plan.has_operator or plan.old_disk_interval_ms),
        )

    def _admit(self, host: ClusterHost, connection_id: int, client_name: str) -> None:
        assert host.node is not None
        admit(host, connection_id, client_name, certificates=self.scenario.certificates)
        principal = principal_of(client_name)
        if principal is not None:
            host.node.broker.clients.authenticated(connection_id, principal)

    # --- looking -------------------------------------------------------------------------------
    def controller(self) -> ClusterHost | None:
        """The leader of the quorum, once it is one by its own state."""
        leading = [
            h for h in self.hosts if h.node is not None and h.node.broker.quorum.log is not None
            and h.node.broker.quorum.is_leading
        ]  # fmt: skip
        return max(leading, key=_term, default=None)

    @property
    def members(self) -> list[ClusterHost]:
        """Nodes that have been started at least once."""
        return [host for host in self.hosts if host.life]

    @property
    def living(self) -> list[ClusterHost]:
        """Nodes whose process is there."""
        return [host for host in self.hosts if host.node is not None]

    def all_in_sync(self) -> bool:
        """Return whether the controller has every replica in sync, under a leader."""
        leader = self.controller()
        if leader is None or leader.node is None:
            return False
        image = leader.node.broker.metadata.image
        known = {node_id: one.incarnation for node_id, one in image.brokers.items()}
        if not all(h.is_serving and known.get(h.node_id) == h.incarnation for h in self.members):
            return False
        partitions = [one for topic in image.topics.values() for one in topic.partitions]
        return bool(partitions) and all(
            one.leader_id >= 0 and set(one.in_sync_replicas) == set(one.replicas)
            for one in partitions
        )

    def may_lose(self, host: ClusterHost) -> bool:
        """Is everything that this machine alone would lose on others?"""
        return not self.world.calm and self._are_others_sound(host)

    def _are_others_sound(self, host: ClusterHost) -> bool:
        """Has everybody else got back what it lost?"""
        if (self.machines.failing | self.machines.rotten) - {host.node_id}:
            return False
        if self.frail - {host.node_id}:
            if not self.all_in_sync():
                return False
            self.frail.clear()
            self.bare.clear()
        return True

    def may_kill(self, host: ClusterHost) -> bool:
        """Return whether this process may end without a clean stop."""
        return self.scenario.gate("killed-while-frail") or self._are_others_sound(host)

    def may_lose_power(self, host: ClusterHost) -> bool:
        """The same, in runs in which power fails."""
        return self.scenario.power_interval_ms > 0 and self.may_lose(host)

    # --- work ----------------------------------------------------------------------------------
    def begin_faults(self) -> None:
        """Everything that goes wrong until the world is calm."""
        scenario, network = self.scenario, self.world.network
        network.loss, network.half_open = scenario.loss, scenario.half_open
        network.slow, network.cut_up = scenario.slow_network, scenario.cut_up
        self.every(scenario.kill_interval_ms, self._kill)
        self.every(scenario.stop_interval_ms, self._stop)
        self.every(scenario.power_interval_ms, self._power)
        self.every(scenario.all_power_interval_ms, self.all_power)
        self.every(scenario.pause_interval_ms, self._pause)
        self.every(scenario.partition_interval_ms, self._partition)
        self.every(scenario.clock_jump_interval_ms, self._jump)
        if self.rotation is not None:
            self.rotation.begin()
        self.machines.begin()
        self.aimed.begin()
        for host in self.late:
            self.world.at(self._soon_us(scenario.plan.late_ms), self._joins(host))

    def _joins(self, host: ClusterHost) -> Callable[[], None]:
        def join() -> None:
            if not self.world.calm:
                self.world.faults["a broker joins late"] += 1
                host.start()

        return join

    def calm(self) -> None:
        """No more faults; all processes come back."""
        world, network = self.world, self.world.network
        world.calm = True
        network.loss = network.slow = 0.0
        network.heal()
        self.leisure.wake()
        for host in self.hosts:
            host.resume()
            host.wall_offset_us = 0
            host.disk.quiet()
        self.machines.end()
        for host in self.hosts:
            host.start()

    def every(self, interval_ms: int, action: Callable[[], None]) -> None:
        if interval_ms == 0:
            return

        def again() -> None:
            if not self.world.calm:
                if self._may_fault():
                    action()
                self.world.at(self._soon_us(interval_ms), again)

        self.world.at(self._soon_us(interval_ms), again)

    def _soon_us(self, interval_ms: int) -> int:
        return 1 + int(self.rng.expovariate(1 / (interval_ms * self.scenario.tempo.scale * 1_000)))

    def _may_fault(self) -> bool:
        """In quiet hours machines fail, too, but rarely."""
        return not self.leisure.is_quiet or self.rng.random() < self.scenario.tempo.quiet_faults

    # --- faults --------------------------------------------------------------------------------
    def victim(self) -> ClusterHost:
        """Any host, or one that leads."""
        if self.rng.random() < self.scenario.leader_faults:
            leading = [h for h in self.living if h.node is not None and h.node.broker.replicas]
            controller = self.controller()
            if controller is not None and self.rng.random() < 0.5:
                return controller
            if leading:
                return self.rng.choice(leading)
        return self.rng.choice(self.hosts)

    def goes_down(self, host: ClusterHost) -> None:
        host.down_until_us = self.world.mono_us + self._soon_us(self.scenario.down_ms)

    def _kill(self) -> None:
        host = self.victim()
        if host.node is not None and self.may_kill(host):
            self.goes_down(host)
            host.kill()

    def _stop(self) -> None:
        host = self.victim()
        if host.node is not None and not host.is_paused:
            self.goes_down(host)
            host.stop()

    def _power(self) -> None:
        host = self.victim()
        if host.node is not None and self.may_lose_power(host):
            self.goes_down(host)
            host.power_loss()

    def all_power(self) -> None:
        if self.bare or self.machines.rotten:
            return  # With what a lost disk had, that would be more than any level survives.
        self.world.faults["power loss of all"] += 1
        for notify in self.on_all_power:
            notify()
        for host in self.hosts:
            self.goes_down(host)
            if host.node is not None:
                host.power_loss()
            else:
                host.disk.power_loss()

    def _elected(self, host: ClusterHost) -> None:
        if self.scenario.aims.stranded_newborn and not self.world.calm:
            self.aimed.elected(host)
        if self.world.calm or self.rng.random() >= self.scenario.newborn_faults:
            return
        life = host.life

        def lose() -> None:
            if host.life != life or host.node is None or self.world.calm:
                return
            if self.may_lose_power(host):
                self.world.faults["newborn leader lost"] += 1
                self.goes_down(host)
                host.power_loss()
            elif self.may_kill(host):
                self.world.faults["newborn leader lost"] += 1
                self.goes_down(host)
                host.kill()

        self.world.at(self.rng.randrange(1, self.rng.choice((2_000, 20_000, 200_000))), lose)

    def _died(self, host: Host, clean: bool) -> None:
        assert isinstance(host, ClusterHost)
        host.resume()
        if host.disk.lost_power:
            self.frail.add(host.node_id)
            self.world.faults["pages out of order"] += host.disk.pages_reordered
            host.disk.pages_reordered = 0

    def _pause(self) -> None:
        host = self.victim()
        if host.node is not None and not host.is_paused:
            self.world.faults["pause"] += 1
            host.pause(self._soon_us(self.scenario.pause_ms))

    def _partition(self) -> None:
        rng, network = self.rng, self.world.network
        side = set(rng.sample(range(len(self.hosts)), rng.randint(1, len(self.hosts) // 2)))
        if rng.random() < self.scenario.leader_faults:
            side = {self.victim().node_id}
        one_way = rng.random() < self.scenario.one_way
        self.world.faults["one-way partition" if one_way else "partition"] += 1
        for source in self.hosts:
            for target in self.hosts:
                if source.node_id in side and target.node_id not in side:
                    if one_way:
                        network.cut_one_way(source.name, target.name)
                    else:
                        network.cut(source.name, target.name)

        def heal() -> None:
            if not self.world.calm:
                network.heal()

        self.world.at(self._soon_us(self.scenario.partition_ms), heal)

    def _jump(self) -> None:
        host = self.rng.choice(self.hosts)
        host.wall_offset_us = self.rng.choice((-_BACK_US, _JUMP_US, 0))
        self.world.faults["clock jump"] += 1


def _term(host: ClusterHost) -> int:
    assert host.node is not None
    return host.node.broker.quorum.raft.term
