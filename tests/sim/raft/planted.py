"""Bugs of a Raft on a switch: each changes what one line means, in some replicas of a run.

Owns the list. `seed` is where a bug was caught last: there a hunt begins. Where runs of any kind
meet a bug too rarely, `shape` sets fields of the scenario.
"""

from __future__ import annotations

from quiverlog.core.raft.messages import RaftConfig
from tests.sim.bug import Bug, make_bug

__all__ = ["BUGS", "UNPROVEN"]

_WRITES: dict[str, object] = {
    "nodes": 3,
    "voters": 3,
    "crash_interval_ms": 150,
    "down_ms": 50,
    "slow_write": 0.3,
    "slow_write_us": 400_000,
    "wipe_interval_ms": 0,
    "admin_interval_ms": 0,
    "check_promises": False,
}
"""Much dies while something is being written."""
_LOSSES: dict[str, object] = {
    **_WRITES,
    "nodes": 5,
    "voters": 5,
    "partition_interval_ms": 300,
    "partition_ms": 400,
    "proposal_interval_ms": 20,
}
"""Leaders are cut off with entries that no other replica has."""
_CAROUSEL: dict[str, object] = {
    **_LOSSES,
    "delay_us": 5_000,
    "slow_write": 0.0,
    "crash_interval_ms": 0,
    "down_ms": 100,
    "partition_ms": 150,
    "snapshot_interval_ms": 0,
    "duplication": 0.0,
    "reorder": 0.1,
    "loss": 0.0,
    "one_way": 0.0,
    "leader_faults": 0.6,
    "newborn_faults": 1.0,
    "partition_interval_ms": 1_000,
    "pause_interval_ms": 0,
    "proposal_interval_ms": 5,
    "config": RaftConfig(
        election_timeout_us=100_000,
        heartbeat_us=15_000,
        append_bytes_max=64,
        inflight_messages_max=1,
        inflight_bytes_max=64,
        uncommitted_bytes_max=40_000,
        chunk_bytes_max=100,
        apply_bytes_max=300,
    ),
}
"""Each new leader is cut off when the last one comes back (paper, figure 8), and one entry goes
in a message, so that old entries are acknowledged before the leader's own."""
_HASTE = RaftConfig(
    election_timeout_us=60_000,
    heartbeat_us=15_000,
    append_bytes_max=400,
    inflight_messages_max=4,
    inflight_bytes_max=1_200,
    uncommitted_bytes_max=40_000,
    chunk_bytes_max=100,
    apply_bytes_max=300,
)
"""Elections are as frequent as crashes."""
_APART: dict[str, object] = {
    "nodes": 5,
    "voters": 4,
    "apart": True,
    "loss": 0.0,
    "reorder": 0.0,
    "duplication": 0.0,
    "delay_us": 5_000,
    "slow_write": 0.0,
    "write_us": 200,
    "crash_interval_ms": 0,
    "newborn_faults": 0.0,
    "pause_interval_ms": 0,
    "partition_interval_ms": 0,
    "wipe_interval_ms": 0,
    "admin_interval_ms": 0,
    "snapshot_interval_ms": 0,
    "proposal_interval_ms": 30,
    "buggy_everywhere": True,
    "config": _HASTE,
}
"""An earlier leader's set of voters, and a later one's, which do not overlap."""
_ELECTIONS: dict[str, object] = {
    **_WRITES,
    "nodes": 5,
    "voters": 5,
    "crash_interval_ms": 50,
    "down_ms": 10,
    "slow_write": 0.5,
    "slow_write_us": 100_000,
    "delay_us": 5_000,
    "reorder": 0.3,
    "duplication": 0.2,
    "pause_interval_ms": 0,
    "partition_interval_ms": 100,
    "partition_ms": 60,
    "config": _HASTE,
}
"""Replicas die and are back at once, so that they are asked for their vote again."""
_VOTERS: dict[str, object] = {"admin_interval_ms": 150, "nodes": 7, "voters": 3}
_SNAPSHOTS: dict[str, object] = {
    "nodes": 5,
    "voters": 3,
    "snapshot_interval_ms": 50,
    "snapshot_bytes_max": 600,
    "proposal_interval_ms": 5,
    "partition_interval_ms": 400,
    "partition_ms": 400,
}

BUGS: tuple[Bug, ...] = (
    make_bug(
        "no fsync before a vote",
        "core.raft.election:Election.on_vote",
        "self._outbox.send_durable(response)",
        "self._outbox.send(response)",
        seed=5,
        shape={**_ELECTIONS, "buggy_everywhere": True},
    ),
    make_bug(
        "votes are asked for before the term is durable",
        "core.raft.election:Election.campaign",
        "self._outbox.send_durable(vote, last.index)",
        "self._outbox.send(vote)",
        seed=70,
        shape={**_ELECTIONS, "buggy_everywhere": True},
    ),
    make_bug(
        "no fsync before an append answer",
        "core.raft.follower:Follower._accept",
        "self._outbox.send_durable(response, index)",
        "self._outbox.send(response)",
        shape=_WRITES,
    ),
    make_bug(
        "a leader counts itself before it has flushed",
        "core.raft.replication:Replication._match",
        "return self._log.durable_index",
        "return self._log.last_index",
        seed=1,
        shape=_WRITES,
    ),
    make_bug(
        "a write that a conflict has overtaken counts as durable",
        "core.raft.log:LogView.complete_write",
        "min(self._flight_last, self._unwritten_first - 1)",
        "self._flight_last",
        seed=4,
        shape={
            **_LOSSES,
            "crash_interval_ms": 400,
            "leader_faults": 0.6,
            "newborn_faults": 0.5,
            "slow_write": 0.4,
            "slow_write_us": 200_000,
            "delay_us": 2_000,
            "proposal_interval_ms": 3,
            "config": _HASTE,
            "buggy_everywhere": True,
        },
    ),
    make_bug(
        "older-term entry committed by count",
        "core.raft.replication:Replication.advance_commit",
        "if self._log.term(reached) != self._term:",
        "if self._log.term(reached) is None:",
        seed=2,
        shape={**_CAROUSEL, "buggy_everywhere": True},
    ),
    make_bug(
        "no pre-vote",
        "core.raft.election:Election.timed_out",
        "return self._count(self._key)",
        "return True",
        shape={"nodes": 3, "voters": 3, "admin_interval_ms": 0, "buggy_everywhere": True},
    ),
    make_bug(
        "no check-quorum",
        "core.raft.replication:Replication.quorum_deadline_us",
        "return self.majority_contact_us + self._config.election_timeout_us",
        "return _NEVER_US",
    ),
    make_bug(
        "a leader counts from its own contact with earlier leaders",
        "core.raft.election:Election.lead",
        "self.led_before_us = max(self._granted.values())",
        "self.led_before_us = self.last_contact_us",
        shape={**_CAROUSEL, "buggy_everywhere": True},
    ),
    make_bug(
        "a former leader reports that it had no leader",
        "core.raft.election:Election.follow",
        "if leader is not None or has_led:",
        "if leader is not None:",
        seed=4,
        shape={**_CAROUSEL, "nodes": 3, "voters": 3, "buggy_everywhere": True},
    ),
    make_bug(
        "a leader is confirmed when an answer comes",
        "core.raft.progress:Progress.confirmed",
        "min(sent_us or now_us, now_us)",
        "now_us",
        seed=23,
    ),
    make_bug(
        "two voter changes at once",
        "core.raft.membership:Membership.check_change",
        "if self.index > log.commit:",
        "if self.index < 0:",
        shape={**_VOTERS, "two_changes": 1.0},
    ),
    make_bug(
        "voters changed before an entry of the own term is committed",
        "core.raft.membership:Membership.check_change",
        "if log.term(log.commit) != term:",
        "if log.term(log.commit) is None:",
        shape=_APART,
    ),
    make_bug(
        "snapshot taken of uncommitted state",
        "core.raft.raft:Raft.snapshot_point",
        "index = self._log.applied",
        "index = self._log.last_index",
        shape={"snapshot_interval_ms": 100},
    ),
    make_bug(
        "vote granted to a shorter log",
        "core.raft.election:Election._is_newer_than",
        "return not Place(",
        "return False and not Place(",
        shape={**_LOSSES, "buggy_everywhere": True},
    ),
    make_bug(
        "directory id ignored",
        "core.raft.raft:Raft._is_addressed",
        'return target.directory_id in ("", self.key.directory_id)',
        "return True",
        shape={
            "nodes": 3,
            "voters": 3,
            "wipe_interval_ms": 300,
            "crash_interval_ms": 400,
            "partition_interval_ms": 600,
            "admin_interval_ms": 0,
            "buggy_everywhere": True,
        },
        also=(
            (
                "core.raft.election:Election._count",
                "if self._membership.is_voter(voter):",
                "if voter.node_id in [v.node_id for v in self._membership.voters]:",
            ),
        ),
    ),
    make_bug(
        "an old append truncates what came after it",
        "core.raft.log:LogView.append_from_leader",
        "if not self.matches(entry.index, entry.term):",
        "if entry.index > self.commit:",
        seed=9,
        shape={**_LOSSES, "reorder": 0.3, "duplication": 0.2},
    ),
    make_bug(
        "commit past what the message has proved",
        "core.raft.follower:Follower.on_append",
        "min(message.commit, last_equal)",
        "min(message.commit, self._log.last_index)",
        shape={**_CAROUSEL, "buggy_everywhere": True},
        # A leader finds the last entry that it shares with a follower at once, as both name the
        # newest that may match: so behind the first entries that it sends are none of others. That
        # is for speed; one that goes back further is as sound, as long as this line is.
        also=(
            (
                "core.raft.progress:Progress.refused",
                "min(index, next_index)",
                "min(index, next_index) - 3",
            ),
        ),
    ),
    make_bug(
        "a snapshot replaces a log that is further",
        "core.raft.snapshots:SnapshotReceiver.on_chunk",
        "if self._is_reached(snapshot):",
        "if self._is_reached(snapshot) and False:",
        seed=3,
        shape={
            **_SNAPSHOTS,
            "reorder": 0.3,
            "duplication": 0.3,
            "delay_us": 20_000,
            "loss": 0.1,
        },
    ),
    make_bug(
        "chunks of two snapshots are put together",
        "core.raft.snapshots:SnapshotReceiver.on_chunk",
        "if incoming != self._incoming:",
        "if self._incoming is None:",
        seed=4,
        shape=_SNAPSHOTS,
    ),
    make_bug(
        "a leader that was removed goes on leading",
        "core.raft.raft:Raft._commit_moved",
        "self._step_down(self.term, now_us)",
        "pass",
        seed=1,
        shape=_VOTERS,
    ),
)

UNPROVEN: frozenset[str] = frozenset()
"""Bugs that no run was seen to catch as the code is now."""
assert {bug.name for bug in BUGS} >= UNPROVEN
