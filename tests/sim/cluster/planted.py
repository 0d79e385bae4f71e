"""Bugs of replication, each a changed line of the production code, and the runs that meet them.

Owns the list. A bug is in one node of several unless its shape is for all, so that sound nodes work
beside it.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .client_bugs import CLIENT_BUGS
from .course_bugs import COURSE_BUGS
from .damage_bugs import DAMAGE_BUGS
from .later_bugs import LATER_BUGS
from .rights_bugs import RIGHTS_BUGS
from .shapes import (
    ASKED,
    DIVERGING,
    HANDED,
    JOINING,
    LEAN,
    LONG,
    MANAGED,
    NEWBORN,
    POWER,
    SPLIT,
    STOPPED,
    STRANDED,
)
from .transaction_bugs import TRANSACTION_BUGS
from .user_bugs import USER_BUGS

__all__ = ["BUGS", "UNPROVEN"]


BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "rows count as replicated when their leader has them",
        "core.partition.leadership:Leadership.replicated_offset",
        "for follower in self._holding:",
        "for follower in ():",
        shape=DIVERGING,
    ),
    make_bug(
        "high watermark past |ISR| < min",
        "core.partition.leadership:Leadership.replicated_offset",
        "if self.is_under_min:",
        "if False:",
        shape=STOPPED,
    ),
    make_bug(
        "truncate to the high watermark",
        "core.replication.follower:Follower.answered",
        "offset = max(offset, log.log_start_offset)",
        "offset = log.high_watermark",
        seed=1,
        shape=LEAN,
    ),
    make_bug(
        "a copy does not send the epoch of its end",
        "core.replication.follower:Follower.fetch_entry",
        "log.epochs.latest()[0]",
        "NO_EPOCH",
        shape=STRANDED,
    ),
    make_bug(
        "a copy claims the leader's epoch for its own end",
        "core.replication.follower:Follower.fetch_entry",
        "log.epochs.latest()[0]",
        "self._leader_epoch",
        shape=HANDED,
    ),
    make_bug(
        "epoch list kept at LEO (KAFKA-10706)",
        "storage.segment.epochs:LeaderEpochs.truncate_to",
        "while self._starts and self._starts[-1] >= offset:",
        "while self._starts and self._starts[-1] > offset:",
        seed=5,
        shape=NEWBORN,
    ),
    make_bug(
        "a new leader writes no epoch before its first row",
        "node.partitions.replica:Replica.lead",
        "log.epochs.assign(partition.leader_epoch, log.log_end_offset)",
        "pass",
        shape=STRANDED,
    ),
    make_bug(
        "high watermark := end after restart",
        "core.partition.partition:PartitionState.__init__",
        "self.high_watermark = log_start_offset",
        "self.high_watermark = log_end_offset",
        seed=2,
        shape=DIVERGING,
    ),
    make_bug(
        "pending ISR ignored",
        "core.partition.in_sync:InSync._count",
        "self.maximal = self.committed.union(*self._possible)",
        "self.maximal = self.committed",
        shape=DIVERGING,
    ),
    make_bug(
        "ISR joined without broker epoch",
        "core.controller.alter_partition:_check_members",
        "if epoch != fit and not stays_unfetched:",
        "if False:",
        seed=16,
        shape=JOINING,
        also=(
            (
                "core.partition.leadership:Leadership._is_fit",
                "brokers.fit_epoch(follower.broker_id) == follower.broker_epoch",
                "brokers.fit_epoch(follower.broker_id) is not None",
            ),
        ),
    ),
    make_bug(
        "joins without the rows that readers saw",
        "core.partition.leadership:Leadership._may_join",
        "has_rows = has_rows and self.agreement.is_shown_by(follower)",
        "has_rows = True",
        seed=10,
        shape=POWER,
    ),
    make_bug(
        "a copy that has parted from its leader counts",
        "core.replication.serving:record_report",
        "if leadership is None or check(state, epochs, session.broker_id, entry).error_code:",
        "if leadership is None or entry.offset > state.log_end_offset:",
        seed=3,
        shape={**HANDED, **LONG},
    ),
    make_bug(
        "election outside the ISR",
        "core.controller.leaders:successor",
        "leader_id = first_of(partition.replicas, alive, in_sync)",
        "leader_id = first_of(partition.replicas, alive)",
        seed=1,
        shape=SPLIT,
    ),
    make_bug(
        "a machine that restarted uncleanly stays in sync",
        "core.controller.registrations:Registrations.register",
        "follows = elections.broker_restarted_uncleanly(pending, newcomer.node_id)",
        "follows = []",
        seed=6,
        shape=POWER,
    ),
    make_bug(
        "producers not rewound at truncation",
        "storage.log.log:Log.complete_truncate",
        "self._producers.adopt(result.producers)",
        "pass",
        shape=STRANDED,
    ),
    make_bug(
        "follower serves above its high watermark",
        "node.apis.fetch:_read_replica",
        "end = high_watermark",
        "end = log.log_end_offset",
        shape=DIVERGING,
    ),
    make_bug(
        "a new leader answers where rows end too early",
        "node.apis.offsets:check_current",
        "if not replica.state.is_current:",
        "if False:",
        shape=ASKED,
    ),
    make_bug(
        "a leader without a lease answers where rows end",
        "node.controller.leader_lease:LeaderLease.check",
        "if self.is_over and _has_copies(replica):",
        "if False:",
        seed=10,
        shape={**ASKED, **LONG},
    ),
    make_bug(
        "a decision is confirmed although its controller was deposed",
        "node.metadata.metadata:Metadata._finish",
        "decision.then(None if error is not None else self.image, error, now)",
        "decision.then(self.image, None, now)",
        seed=87,
        shape=MANAGED,
    ),
    *COURSE_BUGS,
    *LATER_BUGS,
    *DAMAGE_BUGS,
    *CLIENT_BUGS,
    *TRANSACTION_BUGS,
    *USER_BUGS,
    *RIGHTS_BUGS,
)

UNPROVEN: Final[frozenset[str]] = frozenset()
"""Bugs that no run, or one in many, was seen to catch as the code is now."""

assert {bug.name for bug in BUGS} >= UNPROVEN
