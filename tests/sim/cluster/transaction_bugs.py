"""Bugs of transactions, each a changed line of brokers or of the client.

Owns the list. Those of single cores are also in the model of transactions, which meets rare ones.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .aimed import AimPlan
from .client_plan import ClientPlan
from .fault_plan import CALM
from .scenario import ClusterTopic
from .tempo import SHIPPED

__all__ = ["KILLS_OF_TRANSACTIONS", "QUIET", "TRANSACTION_BUGS"]


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


QUIET: Final[dict[str, object]] = {
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
    "heal_ms": 30_000,
}
"""Programs die, and nothing else."""
KILLS_OF_TRANSACTIONS: Final = {**QUIET, "kill_interval_ms": 1_500, "loss": 0.005}
_POWER: Final = {
    **QUIET,
    "all_power_interval_ms": 1_500,
    "down_ms": 200,
    "topics": (_topic("topic0", "replicated_flushed"), _topic("topic1", "replicated_flushed")),
}

_MANY: Final = ClientPlan(transactors=4, queries=3, consumers=1)
_QUERIES: Final = {**QUIET, "clients": ClientPlan(transactors=1, queries=2, consumers=1)}
_SNAPSHOTS: Final = {
    **QUIET,
    "clients": _MANY,
    "down_ms": 200,
    "aims": AimPlan(snapshots=0.05),
}
"""Coordinators die in the middle of snapshots, and after them."""
_STRANDED: Final = {
    **QUIET,
    "clients": _MANY,
    "down_ms": 200,
    "aims": AimPlan(stranded_interval_ms=500),
}
"""Leaders come back with rows that no other replica has."""

_COORDINATOR: Final = "core.transactions.coordinator"
_STAGED: Final = "core.transactions.staged:Staged"
_COORDINATORS: Final = "node.transactions.coordinators:Coordinators"
_STAGING: Final = "node.transactions.staging:Staging"
_PUBLISHES: Final = "core.partition.publishes:Publishes"

TRANSACTION_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "no new epoch at open",
        f"{_COORDINATOR}:Coordinator.open",
        "else state.epoch)",
        "else state.epoch - 1)",
        shape=QUIET,
    ),
    make_bug(
        "a replaced instance may open again",
        f"{_COORDINATOR}:_check_unseen",
        "in state.old_instances",
        "in ()",
        shape=QUIET,
        seed=2,
    ),
    make_bug(
        "a commit of an old epoch is taken",
        f"{_COORDINATOR}:_check_epoch",
        "epoch == state.epoch and state.closed is None",
        "True",
        shape=QUIET,
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
        shape=QUIET,
    ),
    make_bug(
        "answered before COMMITTED is safe",
        "node.transactions.coordinators:Coordinators._decided",
        "return future.wait",
        "future.set(0, None, now); return future.wait",
        shape=QUIET,
    ),
    make_bug(
        "COMMITTED is replicated only, and power fails",
        "node.transactions.coordinators:Coordinators._decided",
        "hosted.propose(records, now, then)",
        "hosted.propose(records, now, then, Durability.REPLICATED)",
        shape=_POWER,
        seed=1,
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
        shape=QUIET,
        seed=1,
    ),
    make_bug(
        "done is said of rows that are not known",
        f"{_STAGED}.publish",
        "log_start >= next_offset",
        "True",
        shape=QUIET,
    ),
    make_bug(
        "the log start passes what is staged",
        f"{_STAGED}.trim_offset",
        "if first:",
        "if False:",
        shape=KILLS_OF_TRANSACTIONS,
    ),
    make_bug(
        "the last sequence is forgotten by the snapshot",
        f"{_COORDINATOR}:Coordinator._replay_snapshot",
        "self.applied[record.transactional_id] = record.change",
        "self.applied[record.transactional_id] = replace(record.change, last=None)",
        shape=_SNAPSHOTS,
    ),
    make_bug(
        "not looked at again after COUNT_STAGED",
        f"{_COORDINATORS}.commit",
        "standing = machine.check_commit(tid, request.epoch, request.sequence, digest)\n"
        "        if standing.kind is not Standings.NEW:\n            continue",
        "pass",
        shape=_QUERIES,
        also=(
            (
                f"{_COORDINATOR}:Coordinator.commit",
                "standing = self.check_commit(tid, epoch, sequence, digest)\n"
                '    assert standing.kind is Standings.NEW, "looked at in this turn"',
                "pass",
            ),
        ),
    ),
    make_bug(
        "published before the publish row is safe",
        f"{_STAGING}.publish",
        "row = answer.row",
        "row = answer.row; self._forward(led, row, now)",
        shape=KILLS_OF_TRANSACTIONS,
        also=((f"{_STAGING}._publish_safe", "self._forward(led, new.row, now)", "pass"),),
    ),
    make_bug(
        "publishes are numbered anew by each leader",
        f"{_STAGING}.new_index",
        "PublishId(partition, leader_epoch, number)",
        "PublishId(partition, 0, number)",
        shape=KILLS_OF_TRANSACTIONS,
        also=(
            (
                f"{_STAGING}.publish",
                "number.leader_epoch == led.hosted.leader_epoch",
                "number.leader_epoch == 0",
            ),
        ),
    ),
    make_bug(
        "a later publish overtakes",
        "node.transactions.queues:Piece.__init__",
        "line.parts[0]",
        "line.parts[-1]",
        shape=_STRANDED,
    ),
    make_bug(
        "the stored prefix of a publish is not skipped",
        f"{_PUBLISHES}.stored",
        "count += 1",
        "pass",
        shape=KILLS_OF_TRANSACTIONS,
    ),
    make_bug(
        "the reaper answers dead without a record",
        f"{_COORDINATOR}:Coordinator.resolve",
        "Resolving([_closing(tid, state, reason)], Resolved.DEAD)",
        "Resolving([], Resolved.DEAD)",
        shape=_QUERIES,
        seed=1,
    ),
    make_bug(
        "a live attempt is given up",
        f"{_COORDINATOR}:Coordinator.resolve",
        "if reason is None:\n        return Resolving([], Resolved.LIVE)",
        "if reason is None:\n        return Resolving([], Resolved.DEAD)",
        shape=_QUERIES,
    ),
    make_bug(
        "an abort leaves no record",
        f"{_COORDINATOR}:Coordinator.abort",
        "return Aborting([_closing(tid, state)], had_committed)",
        "return Aborting([], had_committed)",
        shape=_QUERIES,
    ),
)
