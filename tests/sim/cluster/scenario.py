"""What one seed decides about a cluster: its size, its topics, and how bad its world is."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.sim.gates import CLOSED, check_names
from tests.sim.scenario import Scenario

from .aimed import NO_AIMS, AimPlan
from .client_plan import NO_CLIENTS, ClientPlan
from .fault_plan import CALM, FaultPlan
from .tempo import SHIPPED, Tempo

__all__ = ["ClusterScenario", "ClusterTopic"]


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic as it is asked for."""

    name: str
    partitions: int
    replicas: int
    configs: tuple[tuple[str, str], ...]

    @property
    def level(self) -> str:
        """What its acknowledgements rest on."""
        return dict(self.configs)["durability"]


@dataclass(frozen=True, slots=True)
class ClusterScenario:
    """Intervals are means between two events, in simulated time (0: never)."""

    seed: int
    duration_ms: int
    nodes: int
    topics: tuple[ClusterTopic, ...]
    producers: int
    readers: int
    operators: int
    """Clients that create, alter and delete topics of their own."""
    watched: bool
    """Is every node asked all the time where rows end?"""
    rows_max: int
    loss: float
    half_open: float
    slow_network: float
    cut_up: float
    slow_job: float
    death_in_job: float
    kill_interval_ms: int
    stop_interval_ms: int
    power_interval_ms: int
    """One machine at a time: the next one when all copies are in sync again."""
    all_power_interval_ms: int
    down_ms: int
    leader_faults: float
    """How often a fault picks the leader of the quorum or of a partition, not any node."""
    newborn_faults: float
    """How often a leader is lost soon after its election, which few nodes have by then."""
    pause_interval_ms: int
    pause_ms: int
    partition_interval_ms: int
    partition_ms: int
    one_way: float
    clock_jump_interval_ms: int
    plan: FaultPlan = CALM
    """What else goes wrong with machines."""
    aims: AimPlan = NO_AIMS
    """Faults that wait for their moment; no seed draws them."""
    opened: frozenset[str] = frozenset()
    """Gates that are open although `gates.CLOSED` names them."""
    tempo: Tempo = SHIPPED
    heal_ms: int = 60_000
    """How long after the last fault all is well again, at the shipped timing."""
    proofs: bool = False
    """Do brokers prove that they are peers, and do callers without proof speak as brokers?"""
    rotate_interval_ms: int = 0
    """Steps of one node in the replacement of the secret."""
    rules: bool = False
    """Are there rules, a program that changes them, and spies?"""
    certificates: bool = False
    """Do brokers meet at a listener of their own, and show certificates there?"""
    judged: bool = True
    """Whether histories are judged; off only in a test of them."""
    clients: ClientPlan = NO_CLIENTS
    buggy_clients: bool = False
    """A planted bug is in the client, and so in all that runs outside of nodes."""
    buggy_everywhere: bool = False
    """A planted bug that needs two sides is in all nodes, otherwise in one."""

    @property
    def has_names(self) -> bool:
        """Do clients ask in the name of a user, or log in as one?"""
        return self.rules or self.clients.user_keepers > 0

    def gate(self, name: str) -> bool:
        """Is this gate open?"""
        check_names(frozenset((name,)))
        return name not in CLOSED or name in self.opened

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        duration_ms: int,
        opened: frozenset[str] = frozenset(),
        shape: Mapping[str, object] | None = None,
    ) -> ClusterScenario:
        """The scenario of a seed, with some fields set by force."""
        is_shaped = shape is not None and shape.keys() != _OF_BUG
        rng = random.Random(f"cluster-scenario-{seed}")
        nodes = rng.choice((3, 3, 3, 4, 5, 7))
        faulty_network = rng.random() < 0.5
        of_proofs = random.Random(f"proofs-{seed}")
        proofs = not is_shaped and of_proofs.random() < 0.3
        drawn = cls(
            seed=seed,
            duration_ms=duration_ms,
            opened=opened,
            plan=FaultPlan.draw(seed),
            tempo=Tempo.draw(seed),
            **_drawn_apart(seed, is_shaped=is_shaped),
            proofs=proofs,
            rotate_interval_ms=of_proofs.choice((0, 100, 300)) if proofs else 0,
            nodes=nodes,
            topics=tuple(_topic(rng, n) for n in range(rng.randint(1, 2))),
            producers=rng.randint(2, 4),
            readers=rng.randint(1, 2),
            rows_max=rng.choice((1, 8, 24)),
            loss=rng.choice((0.001, 0.005)) if faulty_network else 0.0,
            half_open=rng.choice((0.0, 0.5)),
            slow_network=rng.choice((0.0, 0.05)),
            cut_up=rng.choice((0.0, 0.1)),
            slow_job=rng.choice((0.0, 0.1, 0.3)),
            death_in_job=rng.choice((0.0, 0.0, 0.002)),
            kill_interval_ms=rng.choice((0, 3_000, 8_000)),
            stop_interval_ms=rng.choice((0, 8_000)),
            power_interval_ms=rng.choice((0, 4_000)),
            all_power_interval_ms=rng.choice((0, 0, 0, 10_000)),
            down_ms=rng.choice((500, 3_000, 12_000)),
            leader_faults=rng.choice((0.0, 0.5)),
            pause_interval_ms=rng.choice((0, 0, 5_000)),
            pause_ms=rng.choice((300, 5_000, 12_000)),
            partition_interval_ms=rng.choice((0, 4_000, 10_000)),
            partition_ms=rng.choice((500, 5_000, 12_000)),
            one_way=rng.choice((0.0, 0.4)),
            clock_jump_interval_ms=rng.choice((0, 0, 5_000)),
            newborn_faults=rng.choice((0.0, 0.0, 0.2)),
        )
        if is_shaped or not drawn.gate("machine-faults"):
            # A scenario takes the options of machines and of clients, too.
            clients = dataclasses.replace(
                drawn.clients, resizers=0, keepers=0, transactors=0, queries=0, batches=0,
                user_keepers=0,
            )  # fmt: skip
            drawn = dataclasses.replace(drawn, plan=CALM, clients=clients)
        if not drawn.gate("moves"):
            clients = dataclasses.replace(drawn.clients, movers=0)
            drawn = dataclasses.replace(drawn, clients=clients)
        if not drawn.gate("resizes"):
            clients = dataclasses.replace(drawn.clients, resizers=0)
            drawn = dataclasses.replace(drawn, clients=clients)
        found = dataclasses.replace(drawn, **dict(shape or {}))  # type: ignore[arg-type]
        if found.plan.old_disk_interval_ms:
            # Of brokers that have never had a vote: see `machines`.
            plan = dataclasses.replace(found.plan, first_voters=3, voters_interval_ms=0)
            found = dataclasses.replace(found, nodes=max(5, found.nodes), plan=plan)
        if found.plan.costs_rows and not found.gate("killed-while-frail"):
            return dataclasses.replace(found, death_in_job=0.0)
        return found

    def of_world(self) -> Scenario:
        """What the parts of the world of one node read of it."""
        base = Scenario.draw(self.seed, duration_ms=self.duration_ms)
        chances = {
            field.name: 0.0
            for field in dataclasses.fields(base)
            if isinstance(getattr(base, field.name), float)
        }
        return dataclasses.replace(
            base,
            **{
                **chances,
                "nodes": self.nodes,
                "slow_job": self.slow_job,
                "death_in_job": self.death_in_job,
                "rows_max": self.rows_max,
                "entries_max": 1,
                "retention_check_ms": 1_000 * self.tempo.scale,
            },
        )


_OF_BUG = {"buggy_everywhere"}
"""Alone it leaves the world as it is drawn."""


def _drawn_apart(seed: int, *, is_shaped: bool) -> dict[str, Any]:
    """What came later than the rest, which each seed draws as before."""
    clients = ClientPlan.draw(seed)
    has_logins = not is_shaped and clients.user_keepers > 0
    return {
        "clients": clients,
        "certificates": has_logins and random.Random(f"certificates-{seed}").random() < 0.5,
        "operators": random.Random(f"operators-{seed}").choice((0, 0, 1, 2)),
        "watched": random.Random(f"watched-{seed}").random() < 0.2,
        "rules": not is_shaped and random.Random(f"rules-{seed}").random() < 0.15,
    }


def _topic(rng: random.Random, number: int) -> ClusterTopic:
    configs = {
        "segment.bytes": str(rng.choice((65_536, 131_072))),
        "segment.ms": str(rng.choice((1_000, 604_800_000))),
        "index.interval.bytes": "1024",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "durability": rng.choice(("memory", "replicated", "replicated", "replicated_flushed")),
        "min.insync.replicas": "2",
    }
    return ClusterTopic(f"topic{number}", rng.randint(1, 2), 3, tuple(configs.items()))
