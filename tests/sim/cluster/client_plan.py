"""Which clients a cluster's run has beside the simple ones, as one seed draws it.

Owns the counts. They are drawn by a generator of their own: a run without them is the run that it
was before.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["HASTY_US", "NO_CLIENTS", "ClientPlan"]

HASTY_US: Final = 400_000


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """How many of each kind."""

    producers: int = 0
    """Programs with the shipped producer."""
    consumers: int = 0
    """Programs with the shipped consumer."""
    administrators: int = 0
    """Programs that create, alter, grow, trim and delete topics through the shipped client."""
    repeaters: int = 0
    """Producers that send requests twice, and old ones again, also to former leaders."""
    movers: int = 0
    """Programs that move partitions to other brokers."""
    resizers: int = 0
    """Programs that also give partitions more replicas, or fewer."""
    keepers: int = 0
    """Programs that change the configuration of brokers, and finalise feature levels."""
    user_keepers: int = 0
    """Programs that make and change users and tokens; two clients log in for each."""
    strangers: int = 0
    """Readers with odd epochs, and callers that pretend to be brokers."""
    hasty: bool = False
    """Do programs give rows up that were not acknowledged soon?"""
    successors: int = 0
    """Programs that end the epochs of their producers."""
    deposed: int = 0
    """Callers that propose as a partition's leader, under the epoch of the one before."""
    thieves: int = 0
    """Callers that take a broker's place in its name, or announce its stop."""
    transactors: int = 0
    """Programs with transactions of the shipped client."""
    queries: int = 0
    """Queries that repeat batches, with tasks of which one wins."""
    batches: int = 0
    """Programs that write batches, each under an id of single use."""
    forgets: bool = False
    """Are ids forgotten by command, and their last commits asked about then?"""
    id_expiry_ms: int = 0
    """Ids are forgotten after this silence; 0: as shipped."""
    makes_internal: bool = False
    """Are the topics of transactions made by the first of them, in the middle of faults?"""

    @property
    def has_transactions(self) -> bool:
        """Are there programs with transactions?"""
        return self.transactors > 0 or self.queries > 0 or self.batches > 0

    @property
    def needs_newest_level(self) -> bool:
        """Else the cluster begins at the first level."""
        return self.has_transactions or self.user_keepers > 0

    @property
    def is_empty(self) -> bool:
        """Are there none?"""
        return self == NO_CLIENTS

    @classmethod
    def draw(cls, seed: int) -> ClientPlan:
        """That of a seed; a third of all runs have the simple clients only."""
        keepers = int(random.Random(f"user-keepers-{seed}").random() < 0.15)
        return dataclasses.replace(cls._draw(seed), **_transactions(seed), user_keepers=keepers)

    @classmethod
    def _draw(cls, seed: int) -> ClientPlan:
        rng = random.Random(f"client-plan-{seed}")
        if rng.random() < 0.33:
            return NO_CLIENTS
        resizers = random.Random(f"resizers-{seed}").choice((0, 0, 0, 1))
        return cls(
            producers=rng.choice((1, 1, 2)),
            consumers=rng.choice((1, 1, 2)),
            administrators=rng.choice((0, 1, 1)),
            repeaters=rng.choice((0, 1)),
            strangers=rng.choice((0, 1)),
            successors=random.Random(f"successors-{seed}").choice((0, 0, 1)),
            hasty=random.Random(f"hasty-{seed}").random() < 0.25,
            movers=random.Random(f"movers-{seed}").choice((0, 0, 0, 1)),
            resizers=resizers,
            keepers=resizers or random.Random(f"keepers-{seed}").choice((0, 0, 0, 1)),
        )


def _transactions(seed: int) -> dict[str, Any]:
    rng = random.Random(f"transactions-{seed}")
    if rng.random() >= 1 / 3:
        return {}
    found = rng.choice(
        (
            {"transactors": 1},
            {"transactors": 2},
            {"queries": 1},
            {"transactors": 1, "queries": 1},
            {"transactors": 2, "queries": 2},
        )
    )
    forgetting = random.Random(f"forgetting-{seed}")
    return {
        **found,
        "makes_internal": rng.random() < 0.2,
        "batches": forgetting.choice((0, 1)),
        "forgets": forgetting.random() < 0.5,
        "id_expiry_ms": forgetting.choice((0, 0, 5_000)),
    }


NO_CLIENTS: Final = ClientPlan()
