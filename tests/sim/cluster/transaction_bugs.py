"""Bugs of transactions, each a changed line of brokers or of the client.

Owns the list. Those of single cores are also in the model of transactions, which meets rare ones.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .client_plan import ClientPlan
from .fault_plan import CALM
from .scenario import ClusterTopic
from .tempo import SHIPPED

__all__ = ["KILLS_OF_TRANSACTIONS", "TRANSACTION_BUGS"]


def _topic(name: str, level: str) -> ClusterTopic:
    configs = {
        "segment.bytes": "65536",
        "segment.ms": "604800000",
        "index.interval.bytes": "1024",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "durability": level,
        "min.insync.replicas": "2",
    }
    return ClusterTopic(name, 1, 3, tuple(configs.items()))


_QUIET: Final[dict[str, object]] = {
    "tempo": SHIPPED,
    "nodes": 3,
    "topics": (_topic("topic0", "replicated"), _topic("topic1", "replicated_flushed")),
    "clients": ClientPlan(transactors=2, queries=1, consumers=1),
    "producers": 1,
    "readers": 1,
    "operators": 0,
    "watched": False,
    "rows_max": 8,
    "loss": 0.0,
    "half_open": 0.0,
    "slow_network": 0.0,
    "slow_job": 0.0,
    "death_in_job": 0.0,
    "kill_interval_ms": 0,
    "stop_interval_ms": 0,
    "power_interval_ms": 0,
    "all_power_interval_ms": 0,
    "pause_interval_ms": 0,
    "partition_interval_ms": 0,
    "clock_jump_interval_ms": 0,
    "newborn_faults": 0.0,
    "leader_faults": 0.5,
    "down_ms": 500,
    "buggy_everywhere": True,
    "plan": CALM,
}
"""Programs die, and nothing else."""
KILLS_OF_TRANSACTIONS: Final = {**_QUIET, "kill_interval_ms": 1_500, "loss": 0.005}
_POWER: Final = {
    **_QUIET,
    "all_power_interval_ms": 1_500,
    "down_ms": 200,
    "topics": (_topic("topic0", "replicated_flushed"), _topic("topic1", "replicated_flushed")),
}

_COORDINATOR: Final = "core.transactions.coordinator"
_STAGED: Final = "core.transactions.staged:Staged"
_PUBLISHES: Final = "core.partition.publishes:Publishes"

TRANSACTION_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "no new epoch at open",
        f"{_COORDINATOR}:Coordinator.open",
        "else state.epoch)",
        "else state.epoch - 1)",
        shape=_QUIET,
    ),
    make_bug(
        "a replaced instance may open again",
        f"{_COORDINATOR}:_check_unseen",
        "in state.old_instances",
        "in ()",
        shape=_QUIET,
        seed=2,
    ),
    make_bug(
        "a commit of an old epoch is taken",
        f"{_COORDINATOR}:_check_epoch",
        "epoch == state.epoch and state.closed is None",
        "True",
        shape=_QUIET,
        seed=2,
    ),
    make_bug(
        "a commit does not wait for the publish before",
        f"{_COORDINATOR}:Coordinator.check_commit",
        "state.publishing is not None",
        "False",
        shape=KILLS_OF_TRANSACTIONS,
    ),
    make_bug(
        "staged rows of other epochs count",
        f"{_STAGED}._transaction_slot",
        "holder, key.epoch, key.sequence",
        "holder, 0, key.sequence",
        shape=_QUIET,
    ),
    make_bug(
        "answered before COMMITTED is safe",
        "node.transactions.coordinators:Coordinators._decided",
        "return future.wait",
        "future.set(0, None, now); return future.wait",
        shape=_QUIET,
    ),
    make_bug(
        "COMMITTED is replicated only, and power fails",
        "node.transactions.coordinators:Coordinators._decided",
        "hosted.propose(records, now, then)",
        "hosted.propose(records, now, then, Durability.REPLICATED)",
        shape=_POWER,
        also=(
            (
                "node.transactions.hosted:Hosted._level",
                "max(int(level), int(state.durability))",
                "int(level)",
            ),
        ),
    ),
    make_bug(
        "losers are published with the winners",
        f"{_STAGED}._plan",
        "for name in attempts:",
        "for name in [_ATTEMPT.pack(*_KEY.unpack(key)[1:]) for key in self._attempt_slots"
        " if _KEY.unpack(key)[0] == transaction]:",
        shape=_QUIET,
        seed=1,
    ),
    make_bug(
        "done is said of rows that are not known",
        f"{_STAGED}.publish",
        "log_start >= next_offset",
        "True",
        shape=_QUIET,
    ),
    make_bug(
        "the log start passes what is staged",
        f"{_STAGED}.trim_offset",
        "if first:",
        "if False:",
        shape=KILLS_OF_TRANSACTIONS,
    ),
)
