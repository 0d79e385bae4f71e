"""Bugs that only show when four or five things happen in an order: each has its course.

Owns this part of the list; `planted` has the whole, `courses` what happens.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .client_plan import ClientPlan
from .fault_plan import FaultPlan
from .shapes import LONG, QUIET, course, topics

__all__ = ["COURSE_BUGS"]


COURSE_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "a fetch for another leader epoch is answered",
        "core.replication.serving:_check",
        "state.check_leader_epoch(entry.leader_epoch)",
        "pass",
        shape=course("late question"),
        also=(
            # Or the copy counts for nothing before it has the epoch in its list.
            (
                "core.partition.agreement:Agreement.is_reached",
                "if not self.is_needed:",
                "if True:",
            ),
        ),
    ),
    make_bug(
        "the longest log is found by its last row",
        "node.controller.log_ends:log_end",
        "last_epoch, start_offset = log.epochs.latest()",
        "last_epoch, start_offset = log.epochs.epoch_for(log.log_end_offset - 1), 0",
        shape=course("earlier rows", power_interval_ms=10**9, buggy_everywhere=True),
    ),
    make_bug(
        "an answer of an earlier leader is taken",
        "core.replication.follower:Follower.answered",
        "if result.leader_epoch not in (self._leader_epoch, NO_EPOCH):",
        "if False:",
        seed=1,
        shape=course("late answer"),
    ),
    make_bug(
        "a leader of an older epoch may propose",
        "core.controller.alter_partition:_check_epochs",
        "if leader_epoch < partition.leader_epoch:",
        "if False:",
        shape={
            **QUIET,
            "kill_interval_ms": 1_500,
            "clients": ClientPlan(deposed=1),
        },
    ),
    make_bug(
        "a copy that skipped names the epoch of rows that it has not",
        "core.replication.follower:Follower.fetch_entry",
        "NO_EPOCH if is_empty else log.epochs.latest()[0]",
        "log.epochs.latest()[0]",
        shape=course("left behind", "replicated"),
        also=(
            (
                "storage.log.log:Log.complete_trim",
                "self.epochs.truncate_to(0)",
                "pass",
            ),
        ),
    ),
    make_bug(
        "a copy that skipped leads with the producers that it knew",
        "node.replication.replica_fetcher:Replication._answered",
        'copy.producers = bytes(rows) if isinstance(action, Skip) else b""',
        'copy.producers = b""',
        shape=course("left behind", "replicated"),
    ),
    make_bug(
        "a trim is answered before copies have written it down",
        "node.apis.offsets:_wait_for_copies",
        "if not waits:",
        "if True:",
        seed=1,
        shape=course("trimmed", "replicated"),
    ),
    make_bug(
        "one log is enough after a power failure of all",
        "core.controller.elections:longest_log",
        "len(logs) >= needed",
        "len(logs) >= 1",
        seed=2,
        shape=course("last log", "replicated_flushed", nodes=5, duration_ms=9_000),
    ),
    make_bug(
        "what is asked again speaks of the life that a follower is in",
        "core.partition.leadership:Leadership.propose_again",
        "broker_epochs=self._asked_epochs",
        "broker_epochs=tuple(self.followers[n].broker_epoch if n in self.followers else -1"
        " for n in proposal.members)",
        seed=2,
        shape=course("asked again", power_interval_ms=1_000_000),
    ),
    make_bug(
        "a broker stops before it has received that it leads nothing",
        "core.controller.registrations:Registrations._may_stop",
        "is_controller = one.node_id == self.node_id",
        "is_controller = one.node_id in (node_id, self.node_id)",
        shape=course("stalled stop"),
    ),
    make_bug(
        "a controller's session is counted from its last answer to a heartbeat",
        "node.controller.registrar:Registrar._last_contact_us",
        "max(us, led_before_us)",
        "us",
        shape=course("lonely controller", nodes=3),
    ),
    make_bug(
        "a controller counts the last session from its own contact with the controller before",
        "core.raft.election:Election.lead",
        "self.led_before_us = max(self._granted.values())",
        "self.led_before_us = self.last_contact_us",
        seed=1,
        shape=course("half reachable", nodes=3),
    ),
    make_bug(
        "a session counts from the heartbeat, however old the controller's last quorum contact is",
        "node.controller.registration:Registration._answered",
        "begin_us = sent_us - answer.confirmed_ms * 1000",
        "begin_us = sent_us",
        shape=course("minority", nodes=5, **LONG),
    ),
    make_bug(
        "a leader without a known log waits for its directory",
        "core.controller.elections:longest_log",
        "begins_anew = longest.end_offset == MISSING",
        "begins_anew = False",
        shape=course("newborn", "replicated"),
    ),
    make_bug(
        "a topic that was deleted while it waited for its name waits on",
        "node.partitions.opening:LateDirectories.run",
        "if self._is_deleted(key[0]):",
        "if False:",
        shape=course("names"),
    ),
    make_bug(
        "a broker is fenced first, and loses its partitions in later entries",
        "core.controller.records:in_entries",
        "return [own, *following] if is_unfencing else [*following, own]",
        "return [own, *following]",
        shape={
            **QUIET,
            "nodes": 5,
            "topics": topics("memory", partitions=12),
            "kill_interval_ms": 1_500,
            "down_ms": 4_000,
            # In entries of their own partitions lose a broker before it is fenced, which a calm
            # plan would have looked at as impatience.
            "plan": FaultPlan.of("clocks"),
        },
        # Entries may be so large that nothing is, as runs go, too large for one.
        also=(
            (
                "node.controller.registrar:Registrar._propose",
                "in_entries(records, ENTRY_BYTES_MAX)",
                "in_entries(records, 200)",
            ),
        ),
    ),
)
