"""What the replicas of a simulated cluster hold, and how rows are lost, read and reported.

Owns the rows of each replica, which of them are on its disk, which were read and which are safe;
and the brokers' reports of their logs. `ElectionsWorld` elects leaders by these.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from quiverlog.core.controller import elections
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import MISSING, LogEnd, LogEndReport, LogEnds
from quiverlog.core.controller.reassignment import cancel, reassign, target_of
from quiverlog.core.controller.records import NO_LEADER, PartitionChangeRecord, Record
from quiverlog.core.controller.replica_offline import replica_offline
from quiverlog.core.controller.replication_factor import check_factor
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import QuiverlogError, StaleBrokerEpoch

from .elections_checks import check

__all__ = ["Key", "ReplicaLogs", "common"]

Key = tuple[bytes, int]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """This many rows at their beginnings are the same."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


class ReplicaLogs:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.image = Image({})
        self.happened: Counter[str] = Counter()
        self.brokers: list[int] = []
        self.log: dict[Key, dict[int, list[int]]] = {}
        self.flushed: dict[Key, dict[int, int]] = {}
        """How many rows of each replica are on its disk."""
        self.seen: dict[Key, list[int]] = {}
        """Rows that readers saw, by partition."""
        self.safe: dict[Key, list[int]] = {}
        self.epoch_of: dict[int, int] = {}
        """The leader epoch that a row was written under."""
        self.ends = LogEnds()
        self.mail: list[tuple[int, int, list[LogEndReport]]] = []
        """Reports of brokers on their logs that the controller has not received yet."""
        self.dark: set[int] = set()
        """Brokers without power, perhaps not fenced yet."""
        self.rows = 0
        self.lost: set[tuple[Key, int]] = set()
        """Replicas whose directory was lost, and is not made again."""
        self.due: dict[Key, int] = {}
        self.adding: dict[Key, set[int]] = {}
        """By partitions that move."""
        self.counts: dict[Key, int] = {}
        """How many hold a partition when it does not move."""
        self.minimum: dict[bytes, int] = {}
        """By topics, before what happens now."""
        """The number of rows that were safe when the metadata of a partition changed last."""

    # --- a partition ---------------------------------------------------------------------------
    def partition(self, key: Key) -> tuple[TopicImage, PartitionImage]:
        topic = self.image.topics_by_id[key[0]]
        return topic, topic.partitions[key[1]]

    def _led(self) -> tuple[Key, PartitionImage] | None:
        keys = [
            key
            for key in self.log
            if self.partition(key)[1].leader_id not in (NO_LEADER, *self.dark)
        ]
        key = self.rng.choice(keys) if keys else None
        return None if key is None else (key, self.partition(key)[1])

    def append(self) -> list[Record]:
        found = self._led()
        if found is not None:
            self.rows += 1
            self.epoch_of[self.rows] = found[1].leader_epoch
            self.log[found[0]][found[1].leader_id].append(self.rows)
        return []

    def copy(self) -> list[Record]:
        """A follower cuts what its leader has not, and takes some of what that has."""
        found = self._led()
        if found is not None:
            key, partition = found
            node_id, rows = self.rng.choice(partition.replicas), self.log[key][partition.leader_id]
            own = self.log[key][node_id]
            if node_id in self.dark or (key, node_id) in self.lost:
                return []
            kept = common(own, rows)
            end = self.rng.choice((len(rows), self.rng.randint(kept, len(rows))))
            own[:] = rows[:end]
            self.flushed[key][node_id] = min(self.flushed[key][node_id], kept)
            if node_id == partition.leader_id:
                self.flushed[key][node_id] = self.rng.randint(self.flushed[key][node_id], end)
        return []

    def reassign(self) -> list[Record]:
        """To brokers of which some may be fenced, which are refused where they are new. Now and
        then to more than hold it, or to fewer."""
        topic, partition = self.partition(self.rng.choice(list(self.log)))
        count = len(target_of(partition))
        others = [n for n in range(1, min(4, len(self.brokers)) + 1) if n != count]
        is_other = bool(others) and self.rng.random() < 0.5
        count = self.rng.choice(others) if is_other else count
        target = self.rng.sample(self.brokers, count)
        try:
            if is_other:
                check_factor(self.image, topic, count)
            return reassign(self.image, topic, partition, target, changes_count=is_other)
        except QuiverlogError:
            return []

    def cancel(self) -> list[Record]:
        moving = [one for one in map(self.partition, self.log) if one[1].moves]
        try:
            return cancel(*self.rng.choice(moving)) if moving else []
        except QuiverlogError:
            return []

    # --- power and disks ---------------------------------------------------------------------
    def _lose_power(self, node_id: int) -> None:
        for key, logs in self.log.items():
            if node_id in logs and self.rng.random() < 0.7:
                rows = logs[node_id]
                del rows[self.rng.randint(self.flushed[key][node_id], len(rows)) :]

    def power(self) -> list[Record]:
        """All machines lose their power at once, and come back when they do."""
        if self.rng.random() < 0.6:
            return []
        self.happened["power failures"] += 1
        for node_id in self.brokers:
            if node_id not in self.dark:
                self._lose_power(node_id)
        self.dark.update(self.brokers)
        return []

    def lose_directory(self) -> list[Record]:
        """Of one partition, of a broker without power: its next life finds out."""
        key = self.rng.choice(list(self.log))
        topic, partition = self.partition(key)
        found = [n for n in partition.replicas if n in self.dark]
        # One, where rows lie on two disks at least: more than that nothing survives.
        may_lose = topic.min_in_sync_least > 1 and not any(k == key for k, _ in self.lost)
        may_lose = may_lose and not partition.replaced_disks
        if may_lose and len(partition.replicas) > 1 and found:
            self.happened["lose_directory"] += 1
            node_id = self.rng.choice(found)
            self._clear(key, node_id)
            self.lost.add((key, node_id))
        return []

    def _clear(self, key: Key, node_id: int) -> None:
        self.log[key][node_id].clear()
        self.flushed[key][node_id] = 0

    def report_damaged(self) -> list[Record]:
        """A directory is gone, or rows are damaged: it is about to make the replica anew."""
        key, node_id = self.rng.choice([*self.lost] or [self._any_replica()])
        partition = self.partition(key)[1]
        if node_id in self.dark or len(partition.replicas) < 2:
            return []
        epoch = self.image.brokers[node_id].broker_epoch
        seen_epoch = partition.leader_epoch - (self.rng.random() < 0.3)
        return replica_offline(self.image, node_id, epoch, *key, seen_epoch)

    def _any_replica(self) -> tuple[Key, int]:
        key = self.rng.choice(list(self.log))
        return key, self.rng.choice(self.partition(key)[1].replicas)

    def make_anew(self) -> list[Record]:
        """What the metadata count on no more begins empty, where there is a leader."""
        noted = [(key, n) for key in self.log for n in self.partition(key)[1].replaced_disks]
        if not noted:
            return []
        key, node_id = self.rng.choice(noted)
        partition = self.partition(key)[1]
        is_relied_on = node_id in partition.eligible_leader_replicas
        if partition.leader_id != NO_LEADER and node_id not in self.dark and not is_relied_on:
            self.happened["make_anew"] += 1
            self._clear(key, node_id)
            self.lost.discard((key, node_id))
        return []

    def _flush(self, key: Key, node_id: int) -> None:
        if node_id in self.log[key]:
            self.flushed[key][node_id] = len(self.log[key][node_id])

    def flush(self) -> list[Record]:
        key = self.rng.choice(list(self.log))
        node_id = self.rng.choice(list(self.log[key]))
        if node_id not in self.dark:
            self._flush(key, node_id)
        return []

    def report(self) -> list[Record]:
        """A broker reports how far its logs reach; the report may arrive much later."""
        node_id = self.rng.choice(self.brokers)
        if node_id in self.dark:
            return []
        said = []
        for key in self.image.leaderless:
            partition = self.partition(key)[1]
            if node_id in partition.replicas:
                if (key, node_id) in self.lost:
                    said.append(LogEndReport(*key, partition.leader_epoch, LogEnd(-1, MISSING)))
                    continue
                rows = self.log[key][node_id]
                last_epoch = self.epoch_of[rows[-1]] if rows else -1
                said.append(
                    LogEndReport(*key, partition.leader_epoch, LogEnd(last_epoch, len(rows)))
                )
        if said:
            self.mail.append((node_id, self.image.brokers[node_id].broker_epoch, said))
        return []

    def receive_report(self) -> list[Record]:
        """The controller receives one report, most often the newest, and decides."""
        if not self.mail:
            return []
        at = -1 if self.rng.random() < 0.7 else self.rng.randrange(len(self.mail))
        node_id, broker_epoch, said = self.mail.pop(at)
        del self.mail[:-20]
        try:
            keys = self.ends.take(self.image, node_id, broker_epoch, said)
        except StaleBrokerEpoch:
            return []
        records: list[Record] = []
        for key in keys:
            ends = self.ends.of(self.image, *key)
            records += elections.longest_log(
                self.image, *key, ends, lambda _: self.rng.random() < 0.1
            )
        return records

    def _become_readable(self) -> None:
        for key, logs in self.log.items():
            topic, partition = self.partition(key)
            minimum = min(topic.config.min_in_sync_replicas, len(partition.replicas))
            members = [logs[node_id] for node_id in partition.in_sync_replicas]
            if partition.leader_id in (NO_LEADER, *self.dark) or len(members) < minimum:
                continue
            # A replica with other rows at its end reports when it has cut them.
            led = logs[partition.leader_id]
            end = min(common(rows, led) for rows in members)
            if end > len(self.seen[key]):
                self.seen[key] = led[:end]
            on_disk = sorted(
                (self.flushed[key][n] for n in partition.in_sync_replicas), reverse=True
            )
            safe = min(len(self.seen[key]), on_disk[minimum - 1])
            if safe > len(self.safe[key]):
                self.safe[key] = self.seen[key][:safe]

    # --- who holds a partition -----------------------------------------------------------------
    def hold(self, changes: Sequence[PartitionChangeRecord]) -> None:
        """A former replica removes its rows, and a new one has none."""
        for change in changes:
            if change.replicas is None:
                continue
            key = (change.topic_id, change.partition)
            _, partition = self.partition(key)
            logs, flushed = self.log[key], self.flushed[key]
            self.log[key] = {node_id: logs.get(node_id, []) for node_id in change.replicas}
            self.flushed[key] = {node_id: flushed.get(node_id, 0) for node_id in change.replicas}
            before = len(change.replicas) - len(change.adding_replicas or ())
            self.lost = {one for one in self.lost if one[0] != key or one[1] in change.replicas}
            begin = self.log[key].keys() - logs.keys()
            check(begin <= self.alive(), "a replica at a broker that is not alive", key, begin)
            check(not begin or change.leader_epoch > 0, "added in the epoch of others", key, begin)
            if partition.moves:
                check(before == self.counts[key], "another number of replicas", key)
            else:
                self.happened["other numbers"] += self.counts[key] != len(change.replicas)
                self.counts[key] = len(change.replicas)
            has_moved = key in self.adding
            added = self.adding.pop(key, set())
            if partition.moves:
                self.adding[key] = set(partition.adding_replicas)
            gone = logs.keys() - self.log[key].keys()
            if not partition.moves and has_moved and not gone and not added:
                pass  # Making it anew had not begun: it stays where it was.
            elif not partition.moves and has_moved:
                self.happened["moves ended"] += 1
                in_sync, stay = set(partition.in_sync_replicas), added & set(change.replicas)
                check(stay <= in_sync, "a move ended early", key, added, in_sync)
                # The minimum may follow the number of replicas in the same entry.
                enough = min(self.minimum[key[0]], len(change.replicas))
                check(len(in_sync) >= enough, "too few stay", key)
                self.happened["moves given up"] += bool(added and not stay)
            else:
                check(not gone, "a disk is dropped that may have counted", key, gone)

    def alive(self) -> set[int]:
        """Brokers that may lead."""
        brokers = self.image.brokers.values()
        return {one.node_id for one in brokers if not one.fenced and not one.in_shutdown}
