"""Bugs of damage and repair: disks that lose or change what they were given, or have no room.

Owns this part of the list; `planted` has the whole. `scrub` reads all of a bad disk at the end, and
reports whether it was mended.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .fault_plan import FaultPlan
from .shapes import LONG, ROTTEN, course

__all__ = ["DAMAGE_BUGS"]

FAILED: Final = course("failed disk", "replicated_flushed", plan=FaultPlan(page_order=1), **LONG)
"""A plan that is not calm: a replica that cannot write leaves the in-sync set before the lag time.
"""
FULL: Final = course("full disks", nodes=5, **LONG)
"""Two of five disks are full: metadata are decided all the same."""

DAMAGE_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "rows that this process has not looked at are served",
        "storage.segment.reading:read",
        "if good_end < last.end:",
        "if False:",
        seed=2,
        shape=ROTTEN,
    ),
    make_bug(
        "damage that a read meets is not reported",
        "node.apis.fetch:read_entry",
        "lookup.corrupt_read(replica, error)",
        "pass",
        seed=2,
        shape=ROTTEN,
    ),
    make_bug(
        "damage is not reported to the controller",
        "node.replication.offline_replicas:OfflineReplicas.run",
        "if keys:",
        "if False:",
        seed=2,
        shape=ROTTEN,
    ),
    make_bug(
        "a damaged log is not marked as worthless",
        "core.controller.replica_offline:replica_offline",
        "_with(partition.replaced_disks, broker_id) if is_anew else None",
        "None",
        seed=2,
        shape=ROTTEN,
    ),
    make_bug(
        "an offline replica stays in sync",
        "core.controller.replica_offline:replica_offline",
        "in_sync = _without(partition.in_sync_replicas, broker_id)",
        "in_sync = partition.in_sync_replicas",
        seed=2,
        shape=ROTTEN,
    ),
    make_bug(
        "damaged files keep the partition's name",
        "node.replication.repairs:MakeAnewJob.run",
        "aside = set_aside_damaged(directories, self._disk, self._name, self._topic_id)",
        'aside = ""',
        seed=2,
        shape=ROTTEN,
    ),
    make_bug(
        "a failed disk is not reported to the controller",
        "node.replication.offline_replicas:OfflineReplicas.changed",
        "elif self._is_counted_on(key, leader_epoch):",
        "elif False:",
        shape=FAILED,
    ),
    make_bug(
        "a leader that cannot write leads on, out of sync",
        "core.controller.replica_offline:replica_offline",
        "if partition.leader_id == broker_id:",
        "if False:",
        shape=FAILED,
    ),
    make_bug(
        "a replica whose log failed goes on as if it had not",
        "node.partitions.flushing:Flushes.declare_fault",
        "self._on_fault(replica)",
        "pass",
        shape=FAILED,
    ),
    make_bug(
        "leaders stay on full disks",
        "node.controller.elections:FullDisks._changes",
        "if partition.leader_id in full:",
        "if False:",
        shape=FULL,
    ),
    make_bug(
        "a broker does not report its full disk",
        "node.controller.registration:Registration._send",
        "is_disk_full=self._reported_full,",
        "is_disk_full=False,",
        shape=FULL,
    ),
    make_bug(
        "any live broker may lead instead of a full disk",
        "core.controller.leaders:away_from",
        "with_room = alive_brokers(image) - frozenset(without_room)",
        "with_room = alive_brokers(image) - {partition.leader_id}",
        shape=FULL,
    ),
    make_bug(
        "an only copy that was never made is taken for a lost one",
        "node.metadata.creation_note:CreationNote.replayed",
        "self._placed.update(self._placed_by(records))",
        "pass",
        shape=course("never made"),
    ),
    make_bug(
        "what waits for its directory is noted as made",
        "node.metadata.creation_note:CreationNote.run",
        "CreationNoteJob(self._directory, self._metadata.image.version, waiting)",
        "CreationNoteJob(self._directory, self._metadata.image.version, [])",
        seed=1,
        shape=course("never made", **LONG),
    ),
)
