"""The metadata image: the state that the records add up to.

Records change it by `replay` alone, live and on recovery alike; `revert` takes failed ones back.
While another thread reads it (a snapshot job), it is `frozen`.

Invariants: `topics` and `topics_by_id` hold the same topics; a topic's partitions are numbered
0..n-1 without gaps and its schema ids 1..m; `version` grows with every entry replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from quiverlog.batch.schema import deserialize_schema
from quiverlog.core.controller.configs import defaults_among, topic_config
from quiverlog.core.controller.records import (
    ALL_BROKERS,
    LEADER_GONE,
    LEADER_STAYS,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    BrokerChangeRecord,
    BrokerConfigRecord,
    BrokerRecord,
    ClusterNumberRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerEpochRecord,
    ProducerIdBlockRecord,
    QuotaRecord,
    Record,
    RemoveRuleRecord,
    RemoveTopicRecord,
    RemoveUserRecord,
    RuleNumberRecord,
    RuleRecord,
    SchemaRecord,
    SecurityKeyRecord,
    SnapshotRecord,
    TokenRecord,
    TopicChangeRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserRecord,
)
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.core.security.acls import Rule, RuleSet
from quiverlog.core.security.quotas import Owner, Quota
from quiverlog.limits import (
    FEATURE_LEVEL_MIN,
    PRODUCER_EPOCHS_REMEMBERED,
    REMOVED_TOPICS_REMEMBERED,
)
from quiverlog.types import NO_EPOCH

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Image"]


class Image:
    """`given`: the checked default topic configuration of this broker. `defaults` adds what the
    metadata log sets, and holds for topics without a value of their own."""

    __slots__ = (
        "_new_tokens",
        "_new_users",
        "broker_configs",
        "brokers",
        "cluster_number",
        "defaults",
        "feature_level",
        "frozen",
        "given",
        "leaderless",
        "next_producer_id",
        "partition_count",
        "producer_epochs",
        "quotas",
        "removed_topic_ids",
        "replica_counts",
        "rules",
        "security_key",
        "tokens",
        "topics",
        "topics_by_id",
        "unpreferred",
        "users",
        "version",
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given: Mapping[str, str] = dict(given)
        self.defaults: Mapping[str, str] = self.given
        self.frozen = False
        self.version = 0
        self.feature_level = FEATURE_LEVEL_MIN
        self.cluster_number = 0  # None yet, as in producer ids from before there were any.
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        # By node id. UNKNOWN_BROKER_EPOCH: the registration is not committed yet (`decided`).
        self.brokers: dict[int, BrokerRecord] = {}
        # By node id, -1 for all brokers. Both levels are replaced, never changed, so that a reader
        # can compare by identity.
        self.broker_configs: Mapping[int, Mapping[str, str]] = {}
        self.next_producer_id = 0
        self.partition_count = 0
        self.replica_counts: Counter[int] = Counter()  # Replicas per node id.
        # Partitions without a leader, and those led by another than their first replica.
        self.leaderless: dict[tuple[bytes, int], None] = {}
        self.unpreferred: dict[tuple[bytes, int], None] = {}
        # Producers with an epoch above 0, longest unchanged first.
        self.producer_epochs: dict[int, int] = {}
        # Empty: there was no user yet.
        self.security_key = b""
        # By name and by id. Both are replaced, never changed, as above.
        self.users: Mapping[str, UserRecord] = {}
        self.tokens: Mapping[str, TokenRecord] = {}
        # Of the entry that is replayed: a snapshot has thousands of them.
        self._new_users: dict[str, UserRecord] | None = None
        self._new_tokens: dict[str, TokenRecord] | None = None
        # Files under these topic ids are garbage; oldest first.
        self.removed_topic_ids: dict[bytes, None] = {}
        self.rules = RuleSet()
        # Replaced, never changed, as above.
        self.quotas: Mapping[Owner, Quota] = {}

    def revert(self, source: Image, topic_ids: Collection[bytes]) -> None:
        """Take over `source`, from which only these topics differ."""
        assert not self.frozen, "another thread reads the image"
        assert source is not self
        # Only these topics are copied: the others may be thousands.
        for topic_id in topic_ids:
            mine = self.topics_by_id.pop(topic_id, None)
            if mine is not None:
                del self.topics[mine.name]
        for topic_id in topic_ids:
            theirs = source.topics_by_id.get(topic_id)
            if theirs is not None:
                self.topics[theirs.name] = self.topics_by_id[topic_id] = theirs.copy()
        self.version = source.version
        self.feature_level = source.feature_level
        self.cluster_number = source.cluster_number
        self.security_key = source.security_key
        self.users, self.tokens = source.users, source.tokens
        self.brokers = dict(source.brokers)
        self.broker_configs = source.broker_configs
        self._refresh_defaults()
        self.next_producer_id = source.next_producer_id
        self.partition_count = source.partition_count
        self.replica_counts = source.replica_counts.copy()
        self.leaderless = dict(source.leaderless)
        self.unpreferred = dict(source.unpreferred)
        self.producer_epochs = dict(source.producer_epochs)
        self.removed_topic_ids = dict(source.removed_topic_ids)
        self.rules = source.rules.copy()
        self.quotas = source.quotas
        assert len(self.topics) == len(self.topics_by_id) == len(source.topics)

    def replay_entry(self, records: list[Record], *, version: int | None = None) -> None:
        """Replay one entry of the metadata log; without a version, its place is not known yet
        (`decided`)."""
        assert not self.frozen, "another thread reads the image"
        assert records, "an entry is at least one record"
        after = self.version + 1 if version is None else version
        self._new_users = self._new_tokens = None
        for record in records:
            self.replay(record)
        if version is not None:
            self.decided(records, version)
        self.version = after if version is not None else max(after, self.version)
        assert len(self.topics) == len(self.topics_by_id)
        assert self.partition_count >= 0

    def decided(self, records: Iterable[Record], version: int) -> None:
        assert not self.frozen, "another thread reads the image"
        assert version > UNKNOWN_BROKER_EPOCH
        for record in records:
            if isinstance(record, BrokerRecord) and record.broker_epoch == UNKNOWN_BROKER_EPOCH:
                broker = self.brokers[record.node_id]
                # A later start of the broker waits for the entry of its own registration.
                same = broker.incarnation == record.incarnation
                if same and broker.broker_epoch == UNKNOWN_BROKER_EPOCH:
                    self.brokers[record.node_id] = replace(broker, broker_epoch=version)

    def replay(self, record: Record) -> None:
        """Replay one record. Logged records are facts: nothing is checked or refused."""
        match record:
            case PartitionRecord():
                topic = self.topics_by_id[record.topic_id]
                partition = topic.add_partition(record)
                self.partition_count += 1
                self.replica_counts.update(record.replicas)
                if record.leader_id != record.replicas[0]:
                    self._note_leader(record.topic_id, partition)
            case PartitionChangeRecord():
                self._replay_partition_change(record)
            case TopicRecord():
                assert record.name not in self.topics
                assert record.topic_id not in self.topics_by_id
                config = topic_config({}, {}, record.replication_factor)
                topic = TopicImage(record, config)
                self.topics[record.name] = self.topics_by_id[record.topic_id] = topic
                self._configure(topic)
            case TopicChangeRecord():
                topic = self.topics_by_id[record.topic_id]
                topic.replication_factor = record.replication_factor
                self._configure(topic)
            case ConfigRecord():
                self._replay_config(record)
            case SchemaRecord():
                self._replay_schema(record)
            case RemoveTopicRecord():
                topic = self.topics_by_id.pop(record.topic_id)
                assert self.topics[topic.name] is topic, "both tables hold the same topics"
                self.removed_topic_ids[record.topic_id] = None
                _keep_newest(self.removed_topic_ids, REMOVED_TOPICS_REMEMBERED)
                del self.topics[topic.name]
                self.partition_count -= len(topic.partitions)
                for partition in topic.partitions:
                    self.replica_counts.subtract(partition.replicas)
                    self.leaderless.pop((record.topic_id, partition.partition), None)
                    self.unpreferred.pop((record.topic_id, partition.partition), None)
            case ProducerIdBlockRecord():
                assert record.next_producer_id >= self.next_producer_id
                self.next_producer_id = record.next_producer_id
            case ProducerEpochRecord():
                assert record.epoch > self.producer_epochs.get(record.producer_id, 0)
                # To the end of the table, which drops the longest unchanged.
                self.producer_epochs.pop(record.producer_id, None)
                self.producer_epochs[record.producer_id] = record.epoch
                _keep_newest(self.producer_epochs, PRODUCER_EPOCHS_REMEMBERED)
            case BrokerRecord():
                self.brokers[record.node_id] = record
            case BrokerChangeRecord():
                self._replay_broker_change(record)
            case BrokerConfigRecord():
                self._replay_broker_config(record)
            case FeatureLevelRecord():
                assert record.level > self.feature_level, "no level is taken back"
                self.feature_level = record.level
            case ClusterNumberRecord():
                assert self.cluster_number in (0, record.number), "a number stays"
                self.cluster_number = record.number
            case SecurityKeyRecord() | UserRecord() | RemoveUserRecord() | TokenRecord():
                self._replay_user(record)
            case UnregisterBrokerRecord():
                self._remove_broker(record)
            case RuleRecord() | RemoveRuleRecord() | RuleNumberRecord() | QuotaRecord():
                self._replay_rule(record)
            case SnapshotRecord():
                assert not self.topics, "a snapshot is the first record of a log"
                assert record.version >= self.version
                self.version = record.version
                self.removed_topic_ids.update(dict.fromkeys(record.removed_topic_ids))

    def _replay_schema(self, record: SchemaRecord) -> None:
        topic = self.topics_by_id[record.topic_id]
        assert record.schema_id == len(topic.schema_records) + 1
        topic.schema_records.append(record)
        topic.schemas[record.schema_id] = _arrow_schema(record.schema)

    def _replay_user(
        self, record: SecurityKeyRecord | UserRecord | RemoveUserRecord | TokenRecord
    ) -> None:
        match record:
            case SecurityKeyRecord():
                assert self.security_key in (b"", record.key), "a key stays"
                self.security_key = record.key
            case UserRecord():
                assert record.name, "a user has a name"
                self._users_to_change()[record.name] = record
            case RemoveUserRecord(name):
                self._users_to_change().pop(name, None)
                for token_id in [i for i, one in self.tokens.items() if one.owner == name]:
                    del self._tokens_to_change()[token_id]
            case TokenRecord():
                tokens = self._tokens_to_change()
                tokens.pop(record.token_id, None)
                if record.expires_us:  # Else it has ended.
                    tokens[record.token_id] = record

    def _users_to_change(self) -> dict[str, UserRecord]:
        if self._new_users is None:
            self.users = self._new_users = dict(self.users)
        assert self.users is self._new_users, "copied once in an entry"
        return self._new_users

    def _tokens_to_change(self) -> dict[str, TokenRecord]:
        if self._new_tokens is None:
            self.tokens = self._new_tokens = dict(self.tokens)
        assert self.tokens is self._new_tokens, "copied once in an entry"
        return self._new_tokens

    def _remove_broker(self, record: UnregisterBrokerRecord) -> None:
        gone = self.brokers.pop(record.node_id)
        assert record.broker_epoch == gone.broker_epoch, "a later registration stays"
        assert not self.replica_counts[record.node_id], "it holds nothing"
        configs = self.broker_configs.items()
        self.broker_configs = {n: one for n, one in configs if n != record.node_id}

    def _replay_broker_config(self, record: BrokerConfigRecord) -> None:
        configs = {**self.broker_configs.get(record.node_id, {})}
        configs.pop(record.key, None)
        if record.value is not None:
            configs[record.key] = record.value
        others = {n: one for n, one in self.broker_configs.items() if n != record.node_id}
        self.broker_configs = {**others, record.node_id: configs} if configs else others
        if record.node_id == ALL_BROKERS:
            self._refresh_defaults()

    def _replay_rule(
        self, record: RuleRecord | RemoveRuleRecord | RuleNumberRecord | QuotaRecord
    ) -> None:
        match record:
            case RuleRecord():
                rule = Rule(
                    record.principal,
                    record.allows,
                    record.operation,
                    record.kind,
                    record.name,
                    record.is_prefix,
                    record.network,
                )
                self.rules.add(record.rule_id, rule)
            case RemoveRuleRecord():
                self.rules.remove(record.rule_id)
            case RuleNumberRecord():
                self.rules.number_from(record.next_rule_id)
            case QuotaRecord():
                owner = Owner(record.kind, record.name)
                quota = Quota(record.bytes_in, record.bytes_out, record.connections)
                others = {one: known for one, known in self.quotas.items() if one != owner}
                self.quotas = {**others, owner: quota} if any(quota) else others

    def give_defaults(self, given: Mapping[str, str]) -> None:
        self.given = dict(given)
        self._refresh_defaults()

    def _refresh_defaults(self) -> None:
        defaults = {**self.given, **defaults_among(self.broker_configs.get(ALL_BROKERS, {}))}
        if defaults != self.defaults:
            self.defaults = defaults
            for topic in self.topics.values():
                self._configure(topic)

    def _replay_broker_change(self, record: BrokerChangeRecord) -> None:
        broker = self.brokers[record.node_id]
        assert record.broker_epoch == broker.broker_epoch, "changes name the registration"
        fenced, in_shutdown = record.fenced, record.in_shutdown
        leaves = record.decommissioning
        changed = (fenced, in_shutdown, record.wants_vote, leaves)
        assert any(one is not None for one in changed), "a change changes something"
        self.brokers[record.node_id] = replace(
            broker,
            fenced=broker.fenced if fenced is None else fenced,
            in_shutdown=broker.in_shutdown if in_shutdown is None else in_shutdown,
            wants_vote=broker.wants_vote if record.wants_vote is None else record.wants_vote,
            decommissioning=broker.decommissioning if leaves is None else leaves,
        )

    def _replay_partition_change(self, record: PartitionChangeRecord) -> None:
        partition = self.topics_by_id[record.topic_id].partitions[record.partition]
        relied_on = partition.relied_on if partition.begins_anew else ()
        is_same_epoch = record.leader_epoch == NO_EPOCH
        if record.leader_epoch != NO_EPOCH:
            assert record.leader_epoch > partition.leader_epoch
            partition.leader_epoch = record.leader_epoch
        if record.leader_id == LEADER_GONE:
            partition.leader_id = NO_LEADER
        elif record.leader_id != LEADER_STAYS:
            partition.leader_id = record.leader_id
        if record.in_sync_replicas is not None:
            partition.in_sync_replicas = record.in_sync_replicas
        if record.replicas is not None:
            self.replica_counts.subtract(partition.replicas)
            self.replica_counts.update(record.replicas)
            partition.hold(record.replicas)
            self.topics_by_id[record.topic_id].rows_lie_on(len(record.replicas))
        if record.adding_replicas is not None:
            partition.adding_replicas = record.adding_replicas
        if record.removing_replicas is not None:
            partition.removing_replicas = record.removing_replicas
        if record.move_bytes_per_s is not None:
            partition.move_bytes_per_s = record.move_bytes_per_s
        if not partition.moves:
            partition.move_bytes_per_s = 0
        partition.note_out_of_sync(record.eligible_leader_replicas, record.replaced_disks)
        if not partition.awaits_logs:
            partition.last_trusted = NO_LEADER
        elif record.last_trusted != NO_LEADER:
            partition.last_trusted = record.last_trusted
        # Until another replica has rows, restarted or not. An only copy would stay so for ever, so
        # its next epoch ends it.
        stays = len(relied_on) == 1 and partition.relied_on == relied_on
        stays = stays and (is_same_epoch or len(partition.replicas) > 1)
        partition.begins_anew = record.begins_anew or stays
        partition.partition_epoch += 1
        assert partition.replicas, "a partition has replicas"
        assert partition.leader_id in (NO_LEADER, *partition.replicas), "one of them leads"
        self._note_leader(record.topic_id, partition)

    def _note_leader(self, topic_id: bytes, partition: PartitionImage) -> None:
        key = (topic_id, partition.partition)
        self.leaderless.pop(key, None)
        self.unpreferred.pop(key, None)
        if partition.leader_id == NO_LEADER:
            self.leaderless[key] = None
        elif partition.leader_id != partition.replicas[0]:
            self.unpreferred[key] = None

    def _replay_config(self, record: ConfigRecord) -> None:
        topic = self.topics_by_id[record.topic_id]
        if record.value is None:
            topic.configs.pop(record.key, None)
        else:
            topic.configs[record.key] = record.value
        self._configure(topic)

    def _configure(self, topic: TopicImage) -> None:
        topic.configure(topic_config(topic.configs, self.defaults, topic.replication_factor))

    def live_brokers(self) -> list[BrokerRecord]:
        live = [self.brokers[n] for n in sorted(self.brokers) if not self.brokers[n].fenced]
        assert all(self.brokers[one.node_id] is one for one in live), "each under its own id"
        return live

    def snapshot_records(self) -> list[Record]:
        """Return the records of this state. It visits every topic: for a job, while `frozen`."""
        assert len(self.topics) == len(self.topics_by_id)
        records: list[Record] = [SnapshotRecord(self.version, tuple(self.removed_topic_ids))]
        partition_count = 0
        records.extend(self.brokers.values())
        if self.feature_level != FEATURE_LEVEL_MIN:
            records.append(FeatureLevelRecord(self.feature_level))
        if self.cluster_number:
            records.append(ClusterNumberRecord(self.cluster_number))
        records.extend(
            BrokerConfigRecord(node_id, key, value)
            for node_id, configs in self.broker_configs.items()
            for key, value in configs.items()
        )
        if self.security_key:
            records.append(SecurityKeyRecord(self.security_key))
        records.extend(self.users.values())
        records.extend(self.tokens.values())
        records.extend(RuleRecord(number, *rule) for number, rule in self.rules.rules.items())
        if self.rules.next_id > 1:
            records.append(RuleNumberRecord(self.rules.next_id))
        records.extend(QuotaRecord(*owner, *quota) for owner, quota in self.quotas.items())
        records.append(ProducerIdBlockRecord(self.next_producer_id))
        records.extend(ProducerEpochRecord(pid, e) for pid, e in self.producer_epochs.items())
        for topic in self.topics.values():
            records.append(topic.record())
            records.extend(ConfigRecord(topic.topic_id, k, v) for k, v in topic.configs.items())
            records.extend(topic.schema_records)
            records.extend(one.record(topic.topic_id) for one in topic.partitions)
            partition_count += len(topic.partitions)
        assert partition_count == self.partition_count, "the count is that of all topics"
        assert self.replica_counts.total() >= partition_count, "each has a replica"
        return records


@lru_cache(maxsize=256)
def _arrow_schema(schema: bytes) -> pa.Schema:
    # Cached: the image and its pending copy hold the same schemas.
    return deserialize_schema(schema)


def _keep_newest(table: dict[Any, Any], count: int) -> None:
    while len(table) > count:
        del table[next(iter(table))]
