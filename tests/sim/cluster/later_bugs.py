"""Bugs of what came later: elections, recovery by the longest log, moves, voters, cuts of logs.

Owns this part of the list; `planted` has the whole.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .shapes import (
    ALL_POWER,
    FLUSHED,
    HANDED,
    MANAGED,
    MOVING,
    NEWBORN,
    NO_CONTROLLER,
    ONE_SEED,
    PROVED,
    ROBBED,
    STRICT,
    WIPED,
    course,
)

__all__ = ["LATER_BUGS"]

LATER_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "a broker that was put out of its place stays out",
        "node.controller.displaced:Displaced._begins",
        "self.due_us = now_us + self._wait_us",
        "self.due_us = now_us + 10**12",
        seed=1,
        shape=ROBBED,
    ),
    make_bug(
        "a broker that is held for stopping is given its old registration",
        "core.controller.registrations:Registrations.register",
        "and not before.in_shutdown:",
        "and True:",
        seed=2,
        shape=ROBBED,
    ),
    make_bug(
        "a broker does not answer which leader it follows",
        "node.apis.brokers:handle_quorum",
        "_name_leader(broker, response)",
        "pass",
        shape=ONE_SEED,
    ),
    make_bug(
        "a decision that was interrupted after its proposal is refused",
        "node.metadata.metadata:Metadata._fail",
        "first = outcome_unknown(known)",
        "pass",
        seed=87,
        shape=MANAGED,
    ),
    make_bug(
        "no second question (KIP-279)",
        "core.replication.follower:Follower.cut",
        "self._begin()",
        "self._begin(); self._failures = 99",
        shape=HANDED,
        also=(
            (
                "core.replication.follower:Follower.fetch_entry",
                "NO_EPOCH if is_empty else",
                "NO_EPOCH if is_empty or self._failures >= 99 else",
            ),
        ),
    ),
    make_bug(
        "lag kept at election",
        "core.partition.leadership:Leadership.set_replicas",
        "caught_up_us = now_us if is_in_sync else NEVER_US",
        "caught_up_us = NEVER_US",
        seed=5,
        shape=NEWBORN,
    ),
    make_bug(
        "counting a fenced replica",
        "core.controller.alter_partition:fit_epoch",
        "if broker is None or broker.fenced or broker.in_shutdown:",
        "if broker is None or broker.in_shutdown:",
        seed=1,
        shape=NO_CONTROLLER,
    ),
    make_bug(
        "stale leader acknowledging",
        "node.controller.registration:Registration._answered",
        "self._lease_us = max(self._lease_us, begin_us + self._session_us)",
        "self._lease_us = max(self._lease_us, begin_us + 9 * self._session_us)",
        seed=5,
        shape=NO_CONTROLLER,
    ),
    make_bug(
        "unclean replica left in ELR",
        "core.controller.elections:_leave",
        "lost = () if kept is _Kept.ROWS else (node_id,)",
        "lost = ()",
        seed=12,
        shape=STRICT,
    ),
    make_bug(
        "recovery point ahead of the cut",
        "storage.log.truncation:_header_anew",
        "if mark.position > size:",
        "if False:",
        seed=5,
        shape=FLUSHED,
    ),
    make_bug(
        "the shortest log leads after a power failure of all",
        "core.controller.elections:_longest",
        "if end > best:",
        "if longest == NO_LEADER or end < best:",
        shape=ALL_POWER,
    ),
    make_bug(
        "an added replica counts before it has the rows",
        "core.controller.reassignment:_change",
        "in_sync_replicas=in_sync,",
        "in_sync_replicas=tuple(dict.fromkeys((*in_sync, *adding))),",
        shape=MOVING,
    ),
    make_bug(
        "a copy that is added begins in the epoch of earlier ones",
        "core.controller.reassignment:_change",
        "is_later = not set(replicas) <= set(partition.replicas)",
        "is_later = False",
        shape=course("away and back"),
    ),
    make_bug(
        "a move ends before the leaving replicas have the new leader",
        "core.partition.leadership:Leadership._leaving_have_fetched",
        "return all(",
        "return True or all(",
        shape=course("replaced", watched=True),
    ),
    make_bug(
        "a copy gets the end of a batch that it will receive whole",
        "core.partition.producers:_encode_below",
        "_end(batches[-1]) > offset:\n",
        "batches[-1][2] >= offset:\n",
        also=(
            (
                "core.partition.producers:_encode_below",
                "if _end(batch) <= offset]",
                "if batch[2] < offset]",
            ),
        ),
        seed=1,
        shape=course("cut inside", "replicated", rows_max=24),
    ),
    make_bug(
        "a deletion is confirmed by a former leader",
        "node.apis.offsets:_wait_for_copies",
        "fail_entry(broker.lookup, None, result, error)\n",
        "pass\n",
        seed=1,
        shape=course("stood down", "replicated"),
    ),
    make_bug(
        "a proof counts for any node id",
        "node.runtime.proofs:PeerProofs.check",
        "if proved.node_id == sender:",
        "if True:",
        shape=PROVED,
    ),
    make_bug(
        "an old secret counts after it was taken out",
        "node.runtime.proofs:PeerProofs.secrets_changed",
        "self.secrets = secrets",
        "self.secrets = type(secrets)((secrets.values[0], self.secrets.values[-1]))",
        shape=PROVED,
    ),
    make_bug(
        "the listener of clients takes brokers without proof",
        "node.runtime.proofs:PeerProofs.check",
        "if self.is_required:",
        "if self.is_required and self._listener != LISTENER_DEFAULT:",
        shape=PROVED,
    ),
    make_bug(
        "a removed secret ends no connection",
        "node.runtime.proofs:PeerProofs.secrets_changed",
        "if proved.secret not in secrets:",
        "if False:",
        shape=PROVED,
    ),
    make_bug(
        "a handshake goes on with a secret that was taken out",
        "node.runtime.proofs:PeerProofs.secrets_changed",
        "self._challenged.clear()",
        "pass",
        shape=PROVED,
    ),
    make_bug(
        "a wiped disk's vote is never given to its successor",
        "node.metadata.voters:_replaced",
        'if broker.directory_id not in ("", voter.directory_id):',
        "if False:",
        shape=WIPED,
    ),
)
