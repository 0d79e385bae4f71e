"""The methods that ask one question each; `blocking_methods.py` is generated from here. Owns their
argument names, defaults and documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from quiverlog.limits import (
    DELIVERY_TIMEOUT_MS_DEFAULT,
    FETCH_BYTES_DEFAULT,
    FETCH_PARTITION_BYTES_DEFAULT,
)
from quiverlog.types import Durability, TopicPartition
from quiverlog.wire import messages as m
from quiverlog.wire.security.user_messages import UserChange

from .admin import cluster as cluster_questions
from .admin import quotas as quota_questions
from .admin import rules as rule_questions
from .admin import topics as topic_questions
from .admin import users as user_questions
from .admin.groups import (
    GroupDetail,
    GroupList,
    alter_group_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from .admin.producers import ProducerDescription, describe_producer
from .admin.replica_sizes import ReplicaSizes, replica_sizes
from .base.arguments import (
    INT32,
    INT64,
    SECONDS,
    SECRET,
    TRANSACTIONAL_ID,
    checked,
    instance_of,
    mapping,
    optional,
    place,
    sequence,
)
from .base.commands import Buffer, Operation, Reply
from .base.results import (
    ClusterDetail,
    ClusterMetadata,
    FetchedPartition,
    OffsetAndEpoch,
    PartitionMove,
    Produced,
    RangeSize,
    TopicDetail,
    TopicInfo,
)
from .cluster import partition_questions
from .cluster.routing import Cluster
from .consumer import stored_batches
from .transactions.overview import (
    TransactionDetail,
    TransactionList,
    abort_transaction,
    describe_transaction,
    forget_transaction,
    list_transactions,
)
from .transactions.questions import (
    Committed,
    StagedAttempt,
    TransactionalId,
    Wait,
    abort_attempts,
    commit_attempts,
    find_transactional_id,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.batch.schema import SchemaHistory

__all__ = ["AsyncMethods"]

T = TypeVar("T")
_ACCESS_RULES = sequence(instance_of(rule_questions.AccessRule))
_STAGED_ATTEMPTS = sequence(instance_of(StagedAttempt))


class AsyncMethods:
    """The methods of a client. A subclass provides `cluster` and `run`."""

    cluster: Cluster

    async def run(self, operation: Operation[T]) -> T:
        """Run one operation, for callers that compose their own."""
        raise NotImplementedError

    # --- topics ---------------------------------------------------------------------------------
    @checked()
    async def create_topic(
        self,
        name: str,
        schema: pa.Schema | str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        key: str | Sequence[str] | None = None,
        config: Mapping[str, topic_questions.Scalar] | None = None,
        if_not_exists: bool = False,
        validate_only: bool = False,
    ) -> TopicInfo | None:
        """Create a topic.

        Args:
            schema: the columns of its rows, as a pyarrow.Schema or as text like
                `"id long, name string not null"`; "raw" (key, value, headers, timestamp) for
                opaque payloads.
            replication_factor: copies of each row; None is three, or the number of live brokers
                where these are fewer. `replicas` of the result is the number.
            key: column names; rows with equal keys go to the same partition.
            config: the topic's settings, see docs/config.md.
            if_not_exists: a topic that has the name already is left as it is, without an error.
            validate_only: check everything, create nothing, return None.

        Returns:
            None also where this client may create the topic, and not describe it.

        Raises:
            TopicExists: unless `if_not_exists`.
            InvalidTopicName, InvalidSchema, InvalidPartitions, InvalidConfig: what is wrong.
            InvalidReplicationFactor: there are fewer brokers.
        """
        return await self.run(
            topic_questions.create_topic(
                self.cluster,
                name,
                schema,
                partitions=partitions,
                replication_factor=replication_factor,
                key=key,
                config=config,
                if_not_exists=if_not_exists,
                validate_only=validate_only,
            )
        )

    @checked()
    async def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic with all its rows.

        Raises:
            UnknownTopic: there is none, and `if_exists` is False.
        """
        await self.run(topic_questions.delete_topic(self.cluster, name, if_exists=if_exists))

    @checked()
    async def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, topic_questions.Scalar] | None = None,
        reset_config: Sequence[str] = (),
        partitions: int | None = None,
        schema: pa.Schema | str | None = None,
        validate_only: bool = False,
    ) -> int:
        """Change a topic's settings, raise its number of partitions, or evolve its schema.

        Args:
            reset_config: settings that go back to the default.

        Returns:
            The id of the topic's current schema.

        Raises:
            UnknownTopic: there is none of this name.
            InvalidConfig, InvalidPartitions, IncompatibleSchema, InvalidSchema: nothing is changed.
        """
        return await self.run(
            topic_questions.alter_topic(
                self.cluster,
                name,
                config=config,
                reset_config=reset_config,
                partitions=partitions,
                schema=schema,
                validate_only=validate_only,
            )
        )

    @checked()
    async def elect_leaders(
        self, topic: str, partitions: Sequence[int] | None = None, *, unclean: bool = False
    ) -> dict[int, int | None]:
        """Elect the first replica of each partition as its leader again, where that is in sync.

        Args:
            unclean: elect any live replica where there is no leader; rows may be lost.

        Returns:
            Partition -> node id of its leader now; None where there is none.
        """
        return await self.run(
            topic_questions.elect_leaders(self.cluster, topic, partitions, unclean=unclean)
        )

    @checked(throttle=INT64)
    async def reassign_partitions(
        self,
        topic: str,
        targets: Mapping[int, Sequence[int] | None],
        *,
        throttle: int = 0,
        change_count: bool = False,
    ) -> dict[int, PartitionMove]:
        """Move partitions to other brokers, all or none.

        Args:
            targets: partition -> the brokers that are to hold it, the preferred leader first; None:
                cancels its move. Empty: changes nothing, and returns the partitions that move.
            throttle: at most this many bytes a second that a broker copies of what moves to it; 0:
                no bound of this move. It ends with the move.
            change_count: the named brokers may be more, or fewer, than the partition has now.

        Returns:
            The moves of the named partitions, or of all that move.

        Raises:
            InvalidReplicaAssignment: not as many brokers as the partition has replicas, or one that
                is not alive.
        """
        return await self.run(
            cluster_questions.reassign_partitions(
                self.cluster, topic, targets, throttle=throttle, change_count=change_count
            )
        )

    @checked()
    async def describe_replicas(self, topics: Sequence[str] | None = None) -> ReplicaSizes:
        """Return the size of each replica on its broker's disk, and the brokers' free room.

        Args:
            topics: names; None means all.
        """
        return await self.run(replica_sizes(self.cluster, topics))

    @checked(producer_id=INT64)
    async def describe_producer(
        self, producer_id: int, topics: Sequence[str] | None = None
    ) -> ProducerDescription:
        """Return the state of an idempotent producer in each partition that it wrote to.

        Args:
            producer_id: the id that errors and `quiverlog dump-log` name.
            topics: names; None means all.
        """
        return await self.run(describe_producer(self.cluster, producer_id, topics))

    # --- transactions ---------------------------------------------------------------------------
    @checked(transactional_id=TRANSACTIONAL_ID)
    async def transactional_id(self, transactional_id: str) -> TransactionalId:
        """Return what the cluster has of a transactional id: its last committed sequence, say.

        It opens nothing: a program that holds the id goes on.
        """
        return await self.run(find_transactional_id(self.cluster, transactional_id))

    @checked(attempts=_STAGED_ATTEMPTS, timeout=SECONDS, publish_timeout=SECONDS)
    async def commit_staged(
        self,
        attempts: Sequence[StagedAttempt],
        *,
        wait: Wait = "published",
        timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
        publish_timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
    ) -> Committed:
        """Commit a transaction whose rows were staged by attempts of one or more processes.

        Args:
            attempts: what their `finish` returned: one or more, all of one transaction. Rows of
                attempts that are not named are given up.
            wait: "published": return when all rows can be read; "decided": at once.
            timeout: seconds that the decision may take.
            publish_timeout: seconds after which a decided transaction is returned whose rows are
                not all published (`is_published`).

        Raises:
            TransactionClosed, TransactionFenced, StagedRowsLost: nothing is committed.
            SequenceTaken: the transaction had committed in this run, with other attempts.
            SequenceTooOld: a later one has committed.
            CommitUnknown: no answer came. Called again, it finds out.
        """
        return await self.run(
            commit_attempts(
                self.cluster, attempts, wait=wait, timeout_s=timeout, publish_s=publish_timeout
            )
        )

    @checked(attempts=_STAGED_ATTEMPTS, timeout=SECONDS)
    async def abort_staged(
        self,
        attempts: Sequence[StagedAttempt],
        *,
        timeout: float = DELIVERY_TIMEOUT_MS_DEFAULT / 1000,
    ) -> bool:
        """End the epoch of attempts: nothing that is staged under it is ever published.

        Returns:
            True: the transaction had committed, and stays so.

        Raises:
            TransactionFenced: a newer holder has the id, which is left alone.
        """
        return await self.run(abort_attempts(self.cluster, attempts, timeout_s=timeout))

    @checked()
    async def list_transactions(self, states: Sequence[str] | None = None) -> TransactionList:
        """Return the transactional ids that the cluster has not forgotten.

        Args:
            states: only those in "open", "deciding", "publishing" or "closed".
        """
        return await self.run(list_transactions(self.cluster, states))

    @checked(transactional_id=TRANSACTIONAL_ID)
    async def describe_transaction(self, transactional_id: str) -> TransactionDetail:
        """Return the state of a transactional id, its staged rows, and what a publish waits for.

        Raises:
            UnknownTransactionalId: no broker that answered has anything of it.
        """
        return await self.run(describe_transaction(self.cluster, transactional_id))

    @checked(transactional_id=TRANSACTIONAL_ID)
    async def abort_transaction(self, transactional_id: str) -> None:
        """Close the present epoch of a transactional id: its holder can commit nothing more.

        For operators; the holder of the id has `Transaction.abort`.

        Raises:
            UnknownTransactionalId: it was never opened, or is forgotten.
        """
        await self.run(abort_transaction(self.cluster, transactional_id))

    @checked(transactional_id=TRANSACTIONAL_ID)
    async def forget_transaction(self, transactional_id: str) -> None:
        """Have a transactional id forgotten, with what it still has to publish.

        For operators: a writer that repeats an earlier transaction of the id stores it again.

        Raises:
            UnknownTransactionalId: it was never opened, or is forgotten.
        """
        await self.run(forget_transaction(self.cluster, transactional_id))

    @checked()
    async def list_groups(
        self, states: Sequence[str] | None = None, types: Sequence[str] | None = None
    ) -> GroupList:
        """Return the groups of the cluster.

        Args:
            states: only those in "empty", "assigning", "reconciling" or "stable".
            types: only "consumer", "observer" (Spark queries) or "simple" (offsets alone).
        """
        return await self.run(list_groups(self.cluster, states, types))

    @checked()
    async def describe_group(self, group: str) -> GroupDetail:
        """Return a group's members, and how far it has read each partition and lags behind.

        Raises:
            InvalidGroup: there is no such group.
        """
        return await self.run(describe_group(self.cluster, group))

    @checked(offsets=mapping(place, optional(INT64)))
    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set the committed offsets of partitions that no member reads, or delete them.

        Args:
            offsets: partition -> offset of the first row to read; None: deleted.
            validate_only: check everything, change nothing.

        Raises:
            GroupNotEmpty: a member reads one of the partitions; nothing is changed.
            InvalidGroup: a Spark query, which reads from its checkpoint.
        """
        operation = alter_group_offsets(self.cluster, group, offsets, validate_only=validate_only)
        await self.run(operation)

    @checked()
    async def delete_group(self, group: str) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotEmpty: it has members.
            InvalidGroup: there is no such group, or it is a Spark query.
        """
        await self.run(delete_group(self.cluster, group))

    @checked()
    async def alter_configs(
        self, changes: Mapping[str, str | None], *, broker: int | None = None
    ) -> int:
        """Set keys of the brokers' configuration while they run: all of the changes or none.

        Args:
            changes: key -> value as text; None removes the key here.
            broker: the broker that it is for; None: all of the cluster.

        Returns:
            The metadata version: a broker that has applied it, or a newer one, uses the values.

        Raises:
            UnknownConfig, InvalidConfig, UnknownBroker: nothing is changed.
            ConfigNeedsRestart: the key does not change while a broker runs.
        """
        return await self.run(topic_questions.alter_configs(self.cluster, changes, broker))

    @checked()
    async def describe_configs(
        self, broker: int | None = None, keys: Sequence[str] = ()
    ) -> topic_questions.BrokerSettings:
        """Return the present configuration of a broker (None: any); without keys: all of it.

        Raises:
            UnknownConfig: there is no such key.
        """
        return await self.run(topic_questions.describe_configs(self.cluster, broker, keys))

    @checked(bytes_in=optional(INT64), bytes_out=optional(INT64), connections=optional(INT64))
    async def set_quota(
        self,
        kind: str,
        name: str = "",
        *,
        bytes_in: int | None = None,
        bytes_out: int | None = None,
        connections: int | None = None,
    ) -> None:
        """Limit what a client may ask of each broker. All live brokers go by it afterwards.

        Args:
            kind: "user", "client-id" or "default".
            bytes_in: in a second, of rows that are produced.
            bytes_out: in a second, of rows that are read.
            connections: open at a time. None leaves a limit as it is, 0 takes it away.

        Raises:
            InvalidRequest: no quota may be like this. NotAuthorized: it takes ALTER on the cluster.
        """
        await self.run(
            quota_questions.change_quota(self.cluster, kind, name, bytes_in, bytes_out, connections)
        )

    @checked()
    async def list_quotas(self) -> list[quota_questions.ClientQuota]:
        """Return all quotas, those of users first."""
        return await self.run(quota_questions.list_quotas(self.cluster))

    @checked(rules=_ACCESS_RULES)
    async def add_rules(self, rules: Sequence[rule_questions.AccessRule]) -> list[int]:
        """Add rules of access: all or none. Where a listener of a broker authenticates clients,
        what no rule allows is denied, and a deny counts before every allow.

        Returns:
            The number of each; an equal rule keeps its own. No live broker goes by the earlier
            rules any more.

        Raises:
            InvalidRequest: a rule has no effect. NotAuthorized: it takes ALTER on the cluster.
        """
        return await self.run(rule_questions.add_rules(self.cluster, rules))

    @checked(numbers=sequence(INT64))
    async def remove_rules(self, numbers: Sequence[int]) -> None:
        """Remove rules by their numbers; one that is gone already is no error.

        Raises:
            InvalidRequest: no rule has had that number.
        """
        await self.run(rule_questions.remove_rules(self.cluster, numbers))

    @checked()
    async def list_rules(
        self, *, principal: str = "", kind: str | None = None, name: str | None = None
    ) -> list[rule_questions.AccessRule]:
        """Return the rules: all, or those of a principal, and about a kind or a resource's name."""
        return await self.run(rule_questions.list_rules(self.cluster, principal, kind, name))

    @checked()
    async def check_access(
        self,
        principal: str,
        operation: str,
        kind: str,
        name: str = "",
        *,
        address: str = "",
        broker: int | None = None,
    ) -> rule_questions.AccessDecision:
        """Return whether a principal may do something, and by which rule.

        Args:
            address: of the caller; empty: not known.
            broker: the broker that is asked, as super users are its own; None: any.
        """
        return await self.run(
            rule_questions.check_access(
                self.cluster, principal, operation, kind, name, address, broker
            )
        )

    @checked()
    async def describe_features(self) -> cluster_questions.ClusterFeatures:
        """Return the cluster's finalised feature level, and those that each broker supports."""
        return await self.run(cluster_questions.update_features(self.cluster))

    @checked()
    async def finalize_features(
        self, level: int, *, validate_only: bool = False
    ) -> cluster_questions.ClusterFeatures:
        """Raise the cluster to a feature level, for good.

        Raises:
            InvalidFeatureLevel: a step back, or a broker that does not support it.
        """
        asked = cluster_questions.update_features(self.cluster, level, validate_only=validate_only)
        return await self.run(asked)

    @checked()
    async def describe_topic(self, name: str) -> TopicDetail:
        """Return schema history, settings, and each partition's offsets and size.

        Raises:
            UnknownTopic: there is none of this name.
        """
        found = await self.run(topic_questions.describe_topics(self.cluster, [name]))
        return found[name]

    @checked()
    async def describe_topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDetail]:
        """Return `describe_topic` for several topics, or for all."""
        return await self.run(topic_questions.describe_topics(self.cluster, names))

    @checked()
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return topics' names, sorted; without the cluster's own unless `internal`."""
        return await self.run(topic_questions.list_topics(self.cluster, internal=internal))

    @checked()
    async def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """Return fresh metadata of brokers and topics; names that do not exist are left out."""
        return await self.run(topic_questions.metadata(self.cluster, topics))

    async def describe_cluster(self) -> ClusterDetail:
        """Return brokers, voters, and the number of partitions that need attention."""
        return await self.run(cluster_questions.describe_cluster(self.cluster))

    @checked()
    async def schemas(self, topic: str) -> SchemaHistory:
        """Return the topic's schema history."""
        return await self.run(topic_questions.schemas(self.cluster, topic))

    # --- users and tokens -----------------------------------------------------------------------
    @checked()
    async def who_am_i(self) -> user_questions.WhoAmI:
        """Return what this client's connections have proved."""
        return await self.run(user_questions.who_am_i(self.cluster))

    @checked(password=SECRET)
    async def create_user(self, name: str, password: str, *, is_admin: bool = False) -> None:
        """Make a user. Brokers never get the password.

        Args:
            name: of 1 to 128 letters, digits and `._@-`.
            is_admin: it may do everything, whatever the rules are.

        Raises:
            UserExists: there is one of this name.
        """
        await self.run(user_questions.create_user(self.cluster, name, password, is_admin=is_admin))

    @checked(password=SECRET)
    async def change_password(self, name: str, password: str, *, keep_old: bool = False) -> None:
        """Give a user another password; connections that used the one before end.

        Args:
            keep_old: the one before counts on, until `drop_old_password`.

        Raises:
            UnknownUser: there is none of this name.
        """
        await self.run(
            user_questions.change_password(self.cluster, name, password, keep_old=keep_old)
        )

    @checked()
    async def drop_old_password(self, name: str) -> None:
        """End the older of two passwords, and the connections that used it."""
        change = UserChange.DROP_OLD
        await self.run(user_questions.change_user(self.cluster, name, change))

    @checked()
    async def set_admin(self, name: str, is_admin: bool) -> None:
        """Let a user do everything, whatever the rules are, or no more."""
        kind = UserChange.ADMIN if is_admin else UserChange.NO_ADMIN
        await self.run(user_questions.change_user(self.cluster, name, kind))

    @checked()
    async def delete_user(self, name: str) -> None:
        """Delete a user and its tokens; its connections end.

        Raises:
            UnknownUser: there is none of this name.
        """
        change = UserChange.DELETE
        await self.run(user_questions.change_user(self.cluster, name, change))

    @checked()
    async def list_users(
        self, name: str | None = None, *, with_tokens: bool = False
    ) -> list[user_questions.UserDetail]:
        """Return all users, or one, by name.

        Raises:
            UnknownUser: there is none of this name.
        """
        return await self.run(
            user_questions.list_users(self.cluster, name, with_tokens=with_tokens)
        )

    @checked(lifetime=SECONDS)
    async def create_token(
        self, lifetime: float = 3_600.0, *, owner: str = ""
    ) -> user_questions.Token:
        """Make a token with a user's rights, for a program that must not have its password.

        Args:
            lifetime: seconds, at most a day.
            owner: the user; empty: that of this client, which must have logged in by a password.
        """
        return await self.run(user_questions.create_token(self.cluster, lifetime, owner))

    @checked()
    async def end_tokens(self, token_ids: Sequence[str] | None = None, *, owner: str = "") -> int:
        """End tokens of a user; connections that used them end.

        Args:
            token_ids: None ends all of the user's.
            owner: the user; empty: that of this client.

        Returns:
            How many were ended.

        Raises:
            UnknownToken: the user has no such token.
        """
        return await self.run(user_questions.end_tokens(self.cluster, token_ids, owner))

    # --- offsets --------------------------------------------------------------------------------
    @checked()
    async def list_offsets(
        self, topic: str, at: partition_questions.AtSpec = "latest"
    ) -> dict[int, int | None]:
        """Return offsets per partition.

        Args:
            at: "earliest" (the first row kept), "latest" (where the next row will go), a datetime
                with time zone (the first row at or after it), or a mapping from partition to one
                of these, which asks for these partitions only.

        Returns:
            Partition -> offset; None where no row is at or after that time.
        """
        return await self.run(partition_questions.list_offsets(self.cluster, topic, at))

    @checked()
    async def delete_records(
        self,
        topic: str,
        before: Mapping[int, int | Literal["latest"]],
    ) -> dict[int, int]:
        """Make the rows below the given offsets unreadable, for good.

        Returns:
            Partition -> first offset that is kept.

        Raises:
            OffsetOutOfRange: an offset above the partition's end.
        """
        return await self.run(partition_questions.delete_records(self.cluster, topic, before))

    @checked(metadata_version=INT64)
    async def offsets_with_epochs(
        self,
        at: Mapping[TopicPartition, int],
        *,
        known: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        max_wait: float = 0.0,
        metadata_version: int = -1,
    ) -> tuple[int, dict[TopicPartition, OffsetAndEpoch]]:
        """Low level: offsets together with the leader epoch of the row before them.

        Args:
            at: `types.LATEST`, `types.EARLIEST` or microseconds since 1970.
            known: the offsets that the caller already has.
            topic_ids: ask for these topics; where the name is another topic's now, the result has
                the error code of `UnknownTopicId`.
            max_wait: seconds to wait until an offset differs from `known`, or the metadata
                version from `metadata_version` (if that is given).

        Returns:
            (metadata version, partition -> offset); errors of partitions stay in the values.
        """
        return await self.run(
            partition_questions.offsets_with_epochs(
                self.cluster,
                at,
                known=known or {},
                topic_ids=topic_ids or {},
                max_wait_s=max_wait,
                metadata_version=metadata_version,
            )
        )

    @checked(epochs=mapping(place, INT32))
    async def epoch_end_offsets(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Low level: the offsets where leader epochs ended.

        A row at or above, read under that epoch, was truncated away. `topic_ids`: as in
        `offsets_with_epochs`.
        """
        ids = topic_ids or {}
        asked = partition_questions.epoch_end_offsets(self.cluster, epochs, topic_ids=ids)
        return await self.run(asked)

    @checked(bytes_max=INT64)
    async def describe_ranges(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        bytes_max: int = -1,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, RangeSize]:
        """Low level: stored bytes between two offsets, and the offset that `bytes_max` of them
        reach. `topic_ids`: as in `offsets_with_epochs`."""
        return await self.run(
            partition_questions.describe_ranges(
                self.cluster, ranges, bytes_max=bytes_max, topic_ids=topic_ids or {}
            )
        )

    # --- stored batches -------------------------------------------------------------------------
    @checked(timeout=optional(SECONDS))
    async def raw_produce(
        self,
        topic: str,
        batches: Mapping[int, Sequence[Buffer]],
        *,
        durability: Durability = Durability.TOPIC_DEFAULT,
        timeout: float | None = None,
    ) -> dict[int, Produced]:
        """Low level: send batches made by `batch.codec.encode_batch`; partition -> batches.

        Sent once. After `ConnectionClosed` or `RequestTimedOut` the outcome is unknown.
        """
        return await self.run(
            stored_batches.raw_produce(
                self.cluster, topic, batches, durability=durability, timeout_s=timeout
            )
        )

    @checked()
    async def raw_fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait: float = 0.0,
        min_bytes: int = 1,
        bytes_max: int = FETCH_BYTES_DEFAULT,
        partition_bytes_max: int = FETCH_PARTITION_BYTES_DEFAULT,
        end_offsets: Mapping[int, int] | None = None,
    ) -> dict[int, FetchedPartition]:
        """Low level: whole stored batches from each offset on, for `batch.codec.split_batches`."""
        return await self.run(
            stored_batches.raw_fetch(
                self.cluster,
                topic,
                offsets,
                max_wait_s=max_wait,
                min_bytes=min_bytes,
                bytes_max=bytes_max,
                partition_bytes_max=partition_bytes_max,
                end_offsets=end_offsets or {},
            )
        )

    @checked(timeout=optional(SECONDS))
    async def raw_call(
        self,
        request: m.Request,
        *,
        node_id: int | None = None,
        body: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Low level: send one request to one broker, unchanged, and return its answer, also one
        with an error; without `node_id` to one broker after the other until one answers, and raise
        an error.

        Changes of topics and producer ids go to `metadata().controller_id`; any other broker
        refuses them (NOT_CONTROLLER).
        """
        return await self.run(
            stored_batches.raw_call(self.cluster, request, node_id, body=body, timeout_s=timeout)
        )
