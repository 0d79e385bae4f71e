"""Counters that the node moves and the server exports. What the node can compute (log sizes,
offsets) is not here.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NodeMetrics", "TopicCounters"]

_DISPLACED_PAIRS_MAX: Final = 16
QUOTA_DIRECTIONS: Final = ("in", "out")
GROUP_FENCES: Final = ("epoch", "instance", "silent", "unrevoked")
MEMBER_STATES: Final = ("joining", "left", "stable", "unreleased", "unrevoked")
OFFSET_RESULTS: Final = ("committed", "refused")
TRANSACTION_OUTCOMES: Final = ("aborted", "closed", "committed", "forgotten")


class TopicCounters:
    __slots__ = ("batches_in", "bytes_in", "bytes_out", "rows_in", "rows_out")

    def __init__(self) -> None:
        self.batches_in = 0
        self.bytes_in = 0
        self.rows_in = 0
        self.bytes_out = 0
        self.rows_out = 0


class NodeMetrics:
    """One node's counters. `topics` is by topic name; a deleted topic's entry goes with it."""

    __slots__ = (
        "batches_deduplicated",
        "batches_refused",
        "cluster_secrets",
        "connections_anonymous",
        "corrupt_reads",
        "disk_full",
        "displaced",
        "group_members",
        "group_rebalances",
        "groups_fenced",
        "in_sync_expands",
        "in_sync_shrinks",
        "internal_errors",
        "leader_epoch_changes",
        "local_read_bytes",
        "logins",
        "logins_refused",
        "offset_commits",
        "parked_entries",
        "parked_requests",
        "partitions_damaged",
        "partitions_led",
        "partitions_offline",
        "partitions_with_faults",
        "peer_connections_unproved",
        "peer_proofs_refused",
        "produces_timed_out",
        "quota_bytes_beyond",
        "quota_connections_muted",
        "quota_connections_refused",
        "quota_muted_us",
        "recovery_bytes_truncated",
        "recovery_partitions_scanned",
        "replicas_made_anew",
        "requests_denied",
        "retention_bytes_deleted",
        "retention_segments_deleted",
        "sync_failures",
        "syncs_completed",
        "topics",
        "transactions",
        "transactions_fenced",
        "unclean_elections",
        "unclean_starts",
    )

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounters] = {}
        # Gauges.
        self.cluster_secrets = 0
        self.group_members: dict[str, int] = dict.fromkeys(MEMBER_STATES, 0)
        """By state, of the groups that this broker coordinates; counted every few seconds."""
        self.parked_entries = 0
        self.parked_requests = 0
        self.partitions_damaged = 0
        self.partitions_led = 0
        self.partitions_offline = 0
        self.partitions_with_faults = 0
        self.disk_full = 0
        self.quota_connections_muted = 0
        # Counters.
        self.batches_deduplicated = 0
        self.batches_refused = 0
        self.corrupt_reads = 0
        self.displaced: dict[tuple[str, str], int] = {}
        """By this broker's own address and the other process's."""
        self.group_rebalances = 0
        self.groups_fenced: dict[str, int] = dict.fromkeys(GROUP_FENCES, 0)
        """By reason: members, and heartbeats of those that had been fenced."""
        self.in_sync_expands = 0
        self.in_sync_shrinks = 0
        self.internal_errors = 0
        self.leader_epoch_changes = 0
        self.local_read_bytes = 0
        self.connections_anonymous = 0
        self.logins = 0
        self.logins_refused = 0
        self.offset_commits: dict[str, int] = dict.fromkeys(OFFSET_RESULTS, 0)
        """Of partitions, by result."""
        self.peer_connections_unproved = 0
        self.peer_proofs_refused = 0
        self.requests_denied = 0
        self.produces_timed_out = 0
        self.quota_bytes_beyond = dict.fromkeys(QUOTA_DIRECTIONS, 0)
        self.quota_connections_refused = 0
        self.quota_muted_us = dict.fromkeys(QUOTA_DIRECTIONS, 0)
        self.recovery_bytes_truncated = 0
        self.recovery_partitions_scanned = 0
        self.replicas_made_anew = 0
        self.retention_bytes_deleted = 0
        self.retention_segments_deleted = 0
        self.sync_failures = 0
        self.syncs_completed = 0
        self.transactions: dict[str, int] = dict.fromkeys(TRANSACTION_OUTCOMES, 0)
        """By outcome, of the ids that this broker coordinates."""
        self.transactions_fenced = 0
        self.unclean_elections = 0
        self.unclean_starts = 0

    def was_displaced(self, at: str, other_at: str) -> None:
        pair = (at, other_at)
        # A client can invent addresses: pairs are bounded.
        if pair not in self.displaced and len(self.displaced) >= _DISPLACED_PAIRS_MAX:
            pair = (at, "others")
        self.displaced[pair] = self.displaced.get(pair, 0) + 1

    def topic(self, name: str) -> TopicCounters:
        counters = self.topics.get(name)
        if counters is None:
            counters = self.topics[name] = TopicCounters()
        return counters
