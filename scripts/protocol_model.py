"""The protocol as data: every message with its fields, and the error codes of each API.

Owns what the code does not hold: the meaning of every field and the codes per API. The
types, defaults and bounds come from the messages. `protocol_tables` makes docs/protocol.md of it,
`protocol_json` docs/protocol.json; tests/support/node.py checks every answer of every test against
the codes.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from quiverlog import errors as e
from quiverlog.wire.messages import Api, Message, Part
from quiverlog.wire.quorum_messages import QuorumMessage
from quiverlog.wire.registry import ADMINISTRATION, APIS
from scripts.group_meanings import GROUP_ERRORS, GROUPS
from scripts.security_meanings import RULES, USER_ERRORS, USERS
from scripts.transaction_meanings import LEVELS, TRANSACTIONS

__all__ = [
    "CLOSING",
    "ENTRY_ERRORS",
    "MEANINGS",
    "REQUEST_ERRORS",
    "STAYS_OPEN",
    "UNIONS",
    "Field",
    "about",
    "fields_of",
    "parts_of",
    "structs",
    "tag_of",
]

UNIONS: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "QuorumMessage": get_args(QuorumMessage),
}
"""Places that hold one of several parts: the number at place 0 of the part is its kind."""

_KNOWN_EPOCH: Final = "the partition's leader epoch in the sender's metadata; -1: no check"

MEANINGS: Final[dict[str, str]] = {
    "BrokerEndpoint.rack": "rack of the broker; empty: unknown",
    "ConfigEntry.source": "`topic`: set on the topic; `default`: the broker's or the built-in one",
    "ConfigEntry.value": "its value as text",
    "CreateTopicsRequest.topics": "the topics to create, each on its own",
    "CreateTopicsResponse.topics": "one entry per topic of the request, in its order",
    "DeleteTopicsRequest.names": "names of the topics to delete; nil is not allowed here",
    "DeleteTopicsRequest.topic_ids": "those meant, in the order of `names`; no id: any",
    "DeleteTopicsResponse.topics": "one entry per name of the request, in its order",
    "DescribeTopicsRequest.names": "names of topics; nil: all",
    "DescribeTopicsResponse.topics": "one entry per topic; a repeated name has one",
    "ElectLeadersRequest.name": "name of the topic",
    "ElectLeadersRequest.partitions": "numbers of its partitions; nil: all",
    "ElectLeadersRequest.unclean": "any live replica may become leader of a partition that has"
    " none",
    "ElectLeadersResponse.leaders": "one entry per partition asked for, by number",
    "PartitionTarget.replicas": "node ids of the brokers that are to hold it, the preferred leader"
    " first",
    "DescribeProducerRequest.names": "names of topics; nil: all",
    "DescribeProducerResponse.newest_epoch": "newest epoch of the id that was given out; -1: the id"
    " was not, by this broker's metadata",
    "DescribeProducerResponse.node_id": "number of the broker that answers",
    "DescribeProducerResponse.topics": "those with partitions that the broker leads and to which"
    " the producer wrote, by name",
    "DescribeReplicasRequest.names": "names of topics; nil: all",
    "DescribeReplicasResponse.node_id": "number of the broker that answers",
    "DescribeProducerRequest.first_name": "first name of the page that is asked for",
    "DescribeReplicasRequest.first_name": "first name of the page that is asked for",
    "ReassignPartitionsRequest.first_name": "first name of the page that is asked for",
    "DescribeReplicasResponse.room_bytes": "bytes that may still be written there; -1: not known",
    "DescribeReplicasResponse.topics": "those of which the broker holds something, by name",
    "ReassignPartitionsRequest.changes_count": "another number of replicas than now is meant",
    "ReassignPartitionsRequest.name": "name of the topic; empty: which partitions of any move",
    "ReassignPartitionsRequest.partitions": "where each is to go",
    "ReassignPartitionsRequest.validate_only": "true: check the request, and change nothing",
    "ReassignPartitionsResponse.moves": "one entry per partition, by number",
    "AlterConfigsRequest.changes": "what is set, each key once",
    "AlterConfigsRequest.node_id": "for which broker; -1: for all",
    "AlterConfigsResponse.metadata_version": "from which on it holds",
    "BrokerConfigEntry.default": "its value where none is set",
    "BrokerConfigEntry.given": "what the process was given; nil: nothing",
    "BrokerConfigEntry.in_broker": "what is set for this broker; nil: nothing",
    "BrokerConfigEntry.in_cluster": "what is set for all brokers; nil: nothing",
    "BrokerConfigEntry.changes_live": "true: it changes while the broker runs; false: at its start",
    "BrokerConfigEntry.source": (
        "0 default, 1 file, 2 environment, 3 flag, 4 set for the cluster, 5 set for the broker"
    ),
    "BrokerConfigEntry.value": "what it is now, as text",
    "ConfigChange.value": "its value as text; nil: it is no longer set",
    "DescribeConfigsRequest.keys": "which; none: all",
    "DescribeConfigsResponse.configs": "one entry per key, in the order of the request",
    "DescribeConfigsResponse.metadata_version": "up to which the broker has applied the metadata",
    "BrokerFeatures.level_max": "the highest that it supports",
    "BrokerFeatures.level_min": "the lowest that it supports",
    "RegisterBrokerRequest.feature_level_max": "the highest feature level that it supports",
    "RegisterBrokerRequest.feature_level_min": "the lowest feature level that it supports",
    "UpdateFeaturesRequest.level": "the level to finalise; 0: none, only describe",
    "UpdateFeaturesRequest.validate_only": "true: check whether it could be, and change nothing",
    "UpdateFeaturesResponse.brokers": "one entry per registered broker",
    "UpdateFeaturesResponse.level": "the one that is finalised",
    "UpdateFeaturesResponse.level_max": "the highest that every registered broker supports",
    "ReassignPartitionsResponse.topics": "those of which a partition moves, by name",
    "ProducerPartition.idle_ms": "since its newest batch came, or the leader opened the partition",
    "ProducerPartition.last_offset": "offset of the producer's newest row",
    "ProducerPartition.next_sequence": "sequence of the producer's next row",
    "ProducerPartition.producer_epoch": "epoch under which the producer wrote last",
    "ReplicaSize.log_end_offset": "offset of its next row; -1: not open",
    "ReplicaSize.size_bytes": "stored bytes; -1: not open",
    "TopicMoves.moves": "one entry per partition that moves, by number",
    "TopicMoves.name": "name of the topic",
    "TopicReplicas.name": "name of the topic",
    "TopicReplicas.replicas": "one entry per replica there, by number",
    "move_bytes_per_s": "no broker copies more in a second of what moves to it; 0: no such bound",
    "adding_replicas": "node ids of the replicas that are added",
    "ends_move": "those that the partition moves to may hold it alone",
    "removing_replicas": "node ids of the replicas that are removed once those added are in sync",
    "PartitionLeader.elected": "this request has changed the leader",
    "EpochEndOffsetsPartition.leader_epoch": _KNOWN_EPOCH,
    "EpochEndOffsetsPartition.epoch": "the leader epoch whose end is asked for",
    "EpochEndOffsetsPartitionResult.end_offset": "where `epoch` ended; -1: no such epoch here",
    "EpochEndOffsetsPartitionResult.epoch": "the newest epoch up to that; -1: there is none",
    "FetchPartition.leader_epoch": _KNOWN_EPOCH,
    "FetchPartition.bytes_max": "bound for this partition; 0 or less: the broker's (4 MiB)",
    "FetchPartition.end_offset": "no batch that starts there or later is sent; -1: no such bound",
    "FetchPartition.from_follower": "true: a copy will do, where the broker does not lead",
    "FetchPartition.offset": "offset of the first row wanted",
    "FetchRequest.bytes_max": "bound for the whole body; 0 or less: the broker's (16 MiB)",
    "FetchRequest.rack": "rack of the reader; empty: unknown; ignored as yet",
    "HelloRequest.software_version": "version of the client library; ignored as yet",
    "HelloResponse.software_version": "version of the broker",
    "InitProducerIdRequest.producer_epoch": "the epoch that the asker has; -1 with a new id",
    "InitProducerIdRequest.producer_id": "-1: a new id; else the next epoch of this one",
    "ListOffsetsPartition.leader_epoch": _KNOWN_EPOCH,
    "ListOffsetsPartitionResult.leader_epoch": "leader epoch of the row before `offset`; -1: none",
    "ListOffsetsPartitionResult.offset": "the offset found; -1: no row at or after that time",
    "ListOffsetsRequest.metadata_version": "version of the sender's metadata; -1: do not compare",
    "MetadataRequest.topics": "names of topics; nil: all",
    "MetadataResponse.topics": "one entry per topic, or unknown name or id; repeated ones have one",
    "NewTopic.configs": "configuration of the topic, see docs/config.md",
    "NewTopic.partitions": "how many; -1: the broker's default",
    "NewTopic.replication_factor": "copies of each partition; -1: 3, or one on each live"
    " broker where these are fewer",
    "AlterPartition.broker_epochs": "the broker epochs of `in_sync_replicas`; -1: not known yet",
    "AlterPartition.in_sync_replicas": "node ids that shall be in sync, the leader among them",
    "AlterPartition.leader_epoch": "the partition's leader epoch in the leader's metadata",
    "AlterPartition.partition_epoch": "the partition epoch in the leader's metadata",
    "AlterPartitionRequest.broker_epoch": "under which the asker is registered",
    "BrokerHeartbeatRequest.broker_epoch": "under which the broker is registered",
    "RegisterBrokerRequest.clean_incarnation": "of the life before; empty: it crashed",
    "RegisterBrokerRequest.host": "host name or address of the listener `default`",
    "RegisterBrokerRequest.port": "TCP port of the listener `default`",
    "RegisterBrokerResponse.broker_epoch": "of this registration: every request names it",
    "RegisteredListener.name": "name of the listener",
    "AlterTopicRequest.partitions": "how many there shall be; -1: as many as there are",
    "AlterTopicRequest.schema": "Arrow IPC schema message of the new schema; empty: as it is",
    "AlterTopicResponse.schema_id": "number of the topic's schema after the change",
    "NewTopic.schema": "Arrow IPC schema message",
    "ProducePartition.leader_epoch": _KNOWN_EPOCH,
    "ProducePartitionResult.durability": f"it rests on: {LEVELS}",
    "ProducePartitionResult.leader_epoch": "leader epoch under which the rows were stored",
    "ProduceRequest.durability": f"wanted: -1 the topic's, {LEVELS}",
    "ProduceRequest.timeout_ms": "after this time the answer is REQUEST_TIMED_OUT",
    "QuorumAppend.entries": "what follows in the log; empty: the commit index, or a probe",
    "QuorumAppendResponse.index": "where the logs agree, or `prev_index` of what did not fit",
    "QuorumEntry.kind": "0 data, 1 the first entry of a leader's term, 2 the voters from here on",
    "ChangeVotersRequest.change": "0 nothing, 1 add, 2 remove",
    "ChangeVotersRequest.directory_id": "which disk of the node; empty: the only one there is",
    "ChangeVotersRequest.node_id": "the node that is to be a voter, or none any more",
    "ChangeVotersResponse.committed_index": "what is decided of the metadata log, as known here",
    "ChangeVotersResponse.leader_id": "node id of the quorum's leader; -1: none known here",
    "ChangeVotersResponse.replicas": "the voters, and the nodes that follow them",
    "ChangeVotersResponse.term": "term of the quorum",
    "ClusterBroker.broker_epoch": "metadata version of its registration",
    "ClusterBroker.is_disk_full": "it has reported to the controller that its disk has no room for"
    " rows",
    "ClusterBroker.leader_count": "partitions that it leads",
    "ClusterBroker.metadata_lag": "entries that it lacked at its last heartbeat; -1: not known"
    " here",
    "ClusterBroker.is_decommissioning": "it is to leave the cluster, and is given nothing",
    "DecommissionBrokerRequest.node_id": "the broker that is to leave",
    "DecommissionBrokerRequest.step": "0 nothing, 1 begin, 2 cancel, 3 unregister",
    "DecommissionBrokerResponse.is_decommissioning": "it is given nothing",
    "DecommissionBrokerResponse.is_registered": "false: it is not registered (any more)",
    "DecommissionBrokerResponse.is_voter": "it has a vote in the metadata quorum",
    "DecommissionBrokerResponse.replica_count": "partitions that it holds",
    "ClusterBroker.moving_count": "partitions that it holds and that are moving",
    "ClusterBroker.needed_count": "partitions below `min.insync.replicas` without it",
    "ClusterBroker.out_of_sync_count": "its copies out of sync, but for those that a move adds",
    "ClusterBroker.faulted_count": "partitions there that take no writes: a write or fsync failed",
    "ClusterBroker.second_at": "where a second process under its node id was refused a moment ago",
    "ClusterBroker.replica_count": "partitions that it holds",
    "DescribeClusterResponse.brokers": "all that are registered, by their numbers",
    "DescribeClusterResponse.controller_epoch": "term of the quorum",
    "DescribeClusterResponse.controller_id": "node id of the controller; -1: none known here",
    "DescribeClusterResponse.heard_ms": "time since its last contact with the quorum's leader; -1:"
    " unknown",
    "DescribeClusterResponse.is_behind": "the broker has not reached the controller for a session:"
    " all of this may be old",
    "DescribeClusterResponse.room_bytes": "bytes that may still be written at broker `node_id`",
    "DescribeClusterResponse.load_permille": "processor time of its process in the last ten"
    " seconds, in thousandths of a core",
    "DescribeClusterResponse.received_bytes_per_s": "bytes that its connections received in a"
    " second, by the last ten",
    "DescribeClusterResponse.sent_bytes_per_s": "bytes that it sent there in a second",
    "DescribeClusterResponse.metadata_version": "up to which the broker has applied the metadata",
    "DescribeClusterResponse.moving_count": "partitions on their way to other brokers",
    "DescribeClusterResponse.node_id": "number of the broker that answers",
    "DescribeClusterResponse.quorum": "the voters, and the nodes that follow them",
    "QuorumReplica.lag": "entries that it lacks; -1: not known here, only at the leader",
    "QuorumReplica.silent_ms": "since its last message to the leader; -1: not known here",
    "QuorumReplica.directory_id": "id of the disk",
    "QuorumReplica.endpoint": "`host:port` between brokers; empty: unknown here",
    "QuorumReplica.is_voter": "whether it elects and counts",
    "QuorumReplica.last_index": "how far its log equals the leader's, durably; -1: unknown here",
    "QuorumReplica.node_id": "node id",
    "QuorumRequest.source_endpoint": "`host:port` of the sender; empty: not given",
    "QuorumRequest.source_id": "node id of the sender",
    "QuorumRequest.source_is_controller": "whether the sender may become a voter",
    "QuorumRequest.target_id": "node id of the target; another node refuses",
    "QuorumSnapshotChunk.index": "the snapshot replaces all entries up to this one",
    "QuorumSnapshotChunk.offset": "where in the snapshot the piece begins",
    "QuorumSnapshotChunkResponse.offset": "the next byte of the snapshot that is wanted",
    "QuorumVoter.endpoint": "where the voter is reached, as host:port",
    "QuorumVoter.node_id": "number of the node",
    "RangePartition.bytes_max": "how many bytes the range may have; -1: no bound",
    "RangePartition.end_offset": "first offset that is not asked about; -1: the high watermark",
    "RangePartitionResult.end_offset": "end of the range that `bytes_max` reach, a batch boundary",
    "RangePartitionResult.first_row_us": "timestamp of the range's first row; -1: none, or unknown",
    "PartitionLogEnd.end_offset": "the offset after its last row; -1: unknown; -2: there is no log",
    "PartitionLogEnd.is_offline": "the log takes no writes, and cannot lead, before a restart",
    "PartitionLogEnd.log_start_offset": "rows below it never come back in this log",
    "PartitionLogStart.leader_epoch": "the partition's leader epoch in the controller's metadata",
    "PartitionLogStart.log_start_offset": "rows below it were deleted",
    "ReportLogEndsResponse.starts": "logs of the asker in which rows come back, if they led",
    "PartitionLogEnd.last_epoch": "newest leader epoch of its list; -1: it has none",
    "PartitionLogEnd.leader_epoch": "the partition's leader epoch in the broker's metadata",
    "ReportLogEndsRequest.broker_epoch": "under which the broker is registered",
    "ReportLogEndsRequest.broker_id": "node id of the broker",
    "ReportLogEndsRequest.partitions": "one entry per partition without a leader that it holds",
    "ReplicaFetchPartition.flushed_offset": "rows below it are on the follower's disk",
    "ReplicaFetchPartition.last_epoch": "newest leader epoch of the follower's list; -1: none",
    "ReplicaFetchPartition.leader_epoch": "the leader epoch in the follower's metadata",
    "DeleteRecordsRequest.timeout_ms": "how long the answer may wait for replicas; at most a day",
    "ReplicaFetchPartition.log_start_offset": "rows below it never come back on the follower",
    "ReplicaFetchResult.flush_offset": "rows below it are to be flushed at once: a request waits"
    " for that",
    "ReplicaFetchResult.epoch_start_offset": "where this leadership began; -1: no list is awaited",
    "ReplicaFetchResult.arrived_us": "when late rows among these arrived; 0: none is late",
    "ReplicaFetchPartition.saved_epoch": "newest epoch of the list on the follower's disk; -1:"
    " there is none",
    "ReplicaFetchResult.log_start_saved": "rows below it never come back; -1: unknown",
    "ReplicaFetchPartition.offset": "end of the follower's log: the first row wanted",
    "ReplicaFetchPartition.readers_wait": "readers wait at the follower for what is readable",
    "ReplicaFetchRequest.bytes_max": "bound for the whole body; 0 or less: 16 MiB",
    "ReplicaFetchRequest.ends_wait": "the fetch of the session that is held back is answered now",
    "ReplicaFetchRequest.partition_bytes_max": "bound for each partition; 0 or less: 4 MiB",
    "ReplicaFetchRequest.replica_id": "node id of the follower",
    "SchemaVersion.schema": "Arrow IPC schema message",
    "TopicDescription.configs": "every key with its value",
    "TopicDescription.schemas": "the newest schemas, oldest first",
    "TopicMetadata.compression": "codec the topic advises: 0 none, 1 LZ4 frame, 2 Zstandard",
    "TopicMetadata.durability": f"an answer rests at least on: {LEVELS}",
    "TopicMetadata.schema_id": "number of the topic's current schema",
    "TopicSchemasResponse.schemas": "schemas of the topic, oldest first",
    "accepted": "the entries fitted and are on the sender's disk",
    "api": "number of the API",
    "apis": "the APIs that the broker speaks, with their versions",
    "asked_term": "term of the question",
    "at": "-1 the end, -2 the first row kept, else microseconds since 1970",
    "base_offset": "offset of the entry's first row",
    "batch_bytes": "bytes of the body that belong to this entry",
    "batch_bytes_max": "the topic's `max.message.bytes`: largest batch taken",
    "before_offset": "rows before it are deleted; -1: the high watermark",
    "broker_epoch": "under which the follower is registered",
    "brokers": "where the brokers are reached",
    "byte_count": "stored bytes of the batches touched up to `end_offset`",
    "commit": "entries up to this one are committed",
    "client_id": "free text for logs and metrics, at most 249 characters",
    "broker_id": "node id of the asker",
    "cluster_id": "identity of the cluster",
    "controller": "with NOT_CONTROLLER, the controller and where it is; nil: none is known",
    "controller_id": "node id of the active controller",
    "created_us": "when it was made, microseconds since 1970",
    "damage_end_offset": "first offset after the damage that may be read again; -1: unknown",
    "damage_start_offset": "first offset that cannot be read; -1: no damage, or unknown",
    "data_bytes": "bytes of the body that belong to it",
    "delete_configs": "keys that go back to their defaults",
    "diverging_end_offset": "where `diverging_epoch` ended in the leader's log; -1: no divergence",
    "diverging_epoch": "newest leader epoch that both logs may share; -1: no divergence",
    "directory_id": "identity of the node's disk",
    "done": "the snapshot ends with this piece",
    "next_sequence": (
        "with INVALID_PRODUCER_EPOCH: from here on nothing is stored under the batch's epoch, and"
        " nothing will be; -1: unknown"
    ),
    "duplicate": "the batches were stored by an earlier try of the same request",
    "error_code": "0, or the number of an error",
    "error_message": "what happened, for people; empty where ten thousand would not fit",
    "first_name": "first name of the page that is asked for; nil: no pages",
    "first_schema_id": "first schema of the page that is asked for; 0: no pages",
    "flushed_offset": "rows below it are on disk",
    "forgotten": "partitions that the session is without from now on; taken before `partitions`",
    "frame_bytes_max": "largest frame the broker takes, in bytes",
    "granted": "yes",
    "silent_us": "microseconds since the last message of a leader, or since it was one; 0 also:"
    " not given",
    "sent_us": "moment of the heartbeat by its sender's own clock; 0: not given",
    "high_watermark": "offset of the first row that may not be read yet",
    "hint_index": "newest entry that both logs may share",
    "hint_term": "term of that entry",
    "host": "host name or address",
    "in_shutdown": "it hands over what it leads, and stops",
    "in_sync_replicas": "node ids of the replicas that are up to date",
    "incarnation": "16 bytes that name this life of the broker's process",
    "index_term": "term of the entry at `index`",
    "installed": "the log begins at the snapshot",
    "is_behind": "the broker has not reached the controller for a session: ask another one too",
    "cluster_number": "number of the cluster in new producer ids, from 1 to 32767; 0: it has none",
    "is_caught_up": "the broker has applied its registration, and its last fencing if any",
    "is_fenced": "it leads nothing, and counts as a copy of nothing",
    "is_internal": "belongs to quiverlog itself",
    "isolation_level": "0 read uncommitted, 1 read committed (the same: a topic holds committed"
    " rows only)",
    "key": "configuration key",
    "key_columns": "columns whose values decide a row's partition, in order; empty: no key",
    "known_offset": "the offset that the asker has already",
    "last_epoch": "leader epoch of the row before `offset`; -1: unknown, no check",
    "last_index": "the sender's newest entry",
    "last_term": "term of that entry",
    "last_stable_offset": "the high watermark: a topic holds committed rows only",
    "leader_epoch": "count of the partition's leaders",
    "leader_id": "node id of the leader; -1: none",
    "QuorumResponse.directory_id": "identity of the disk of the broker that answers",
    "QuorumResponse.leader_id": "leader of the quorum, as far as this broker follows one; -1: none",
    "leader_directory": "identity of that leader's disk",
    "leader_endpoint": "`host:port` at which brokers reach that leader; empty: unknown",
    "listeners": "where the broker is reached, by the names of its listeners",
    "log_end_offset": "offset that the next row will take",
    "log_start_offset": "first row that is kept",
    "may_stop": "it leads nothing, and all live brokers have applied that",
    "max_wait_ms": "how long the broker may hold the answer back",
    "messages": "in the order in which they were sent",
    "BrokerHeartbeatResponse.metadata_version": "version that the controller has applied; -1: not"
    " given",
    "metadata_version": "grows with every change of any topic",
    "min_bytes": "answer as soon as this many bytes are there",
    "name": "name of the topic",
    "next_name": "`first_name` of the next page; empty: there is none",
    "next_schema_id": "`first_schema_id` of the next page; 0: there is none",
    "node_id": "number of the broker",
    "offline": "one entry per partition whose replica of the asker takes no writes or lost rows",
    "offline_count": "partitions without a leader",
    "partition": "number of the partition, from 0",
    "partitions": "one entry per partition",
    "partition_count": "how many partitions there are",
    "partition_epoch": "count of the partition's changes",
    "port": "TCP port",
    "preferred_replica": "node id of a nearer replica to fetch from; -1: none",
    "prev_index": "the entry before the first of `entries`",
    "prev_term": "term of that entry",
    "producer_epoch": "counts the holders of a producer id",
    "producer_id": "identity of an idempotent producer; -1: none",
    "rack": "rack of the broker; empty: unknown",
    "recheck": "true when bytes that came were damaged",
    "FetchRequest.file_ranges": "true: the reader is"
    " [on the broker's own machine](#on-the-brokers-own-machine)",
    "FetchPartitionResult.file_ranges": "where the rows lie, oldest first; empty: in the body",
    "FileRange.byte_count": "how many bytes, all of which the file has",
    "device": "number of the file system that has the file",
    "inode": "number of the file in it",
    "last_header": "the [64 bytes](storage-format.md#the-batch) in front of the range's last batch",
    "path": "absolute, as the broker sees it",
    "position": "of the first byte in the file",
    "replica_id": "-1: a consumer; other numbers are kept for followers and refused",
    "replicas": "node ids of all replicas",
    "replication_factor": "copies of each partition",
    "roles": "`broker`, `controller`",
    "row_count": "rows of the entry",
    "schema_id": "number of the schema, from 1",
    "segments": "files of the log",
    "session_ms": "a broker without a heartbeat for this time is fenced",
    "confirmed_ms": "how long before the heartbeat was sent the session begins",
    "session_epoch": "0 begins a session, each request after that has the next",
    "session_id": "of the fetch session; in a request 0 begins one",
    "set_configs": "keys to set and their values",
    "size_bytes": "bytes of the log",
    "snapshot_index": "`index` of the snapshot",
    "software": "name of the client library; only brokers send `quiverlog-broker`",
    "source_directory": "identity of the sender's disk",
    "start_offset": "first offset asked about; -2: first row kept",
    "target_directory": "identity of the target's disk; empty: any disk of the node",
    "term": "the sender's term; of an entry: the term of the leader that made it",
    "timestamp_us": "timestamp of the row found, microseconds since 1970; -1: none",
    "topic_count": "how many topics there are",
    "topic_id": "16 bytes that name this topic and no later one of the same name",
    "topic_ids": "topics by id, besides those by name",
    "InitProducerIdRequest.transactional_id": "must be empty: ordinary producers stage rows",
    "transactional_id": "names the holder of transactions, 1 to 512 characters",
    "under_min_in_sync_count": "partitions with fewer replicas in sync than `min.insync.replicas`",
    "under_replicated_count": "partitions with fewer replicas in sync than they have",
    "validate_only": "check everything, change nothing",
    "wants_vote": "it may be made a voter of the metadata quorum",
    "takes_partitions": "it may be given replicas: it has the role `broker`",
    "is_disk_full": "its disk has no room: it takes no rows, and leads only what no other broker"
    " can",
    "faulted_count": "partitions here that take no writes: a write or fsync failed",
    "second_at": "address at which a second process with a broker's node id was refused; empty:"
    " none",
    "second_node_id": "node id with which a second process was refused here; -1: none",
    "wants_to_stop": "asks to hand over what it leads",
    "voters": "the replicas that elect and count, as of `index`",
    "version_max": "newest version spoken",
    "version_min": "oldest version spoken",
    **TRANSACTIONS,
    **GROUPS,
    **USERS,
    **RULES,
}
"""By `Struct.field`, or by `field` where it means the same everywhere."""

CLOSING: Final[tuple[type[e.QuiverlogError], ...]] = (
    e.CorruptFrame,
    e.FrameTooLarge,
    e.UnknownApi,
    e.UnsupportedVersion,
    e.NotNegotiated,
    e.NotAuthenticated,
    e.AuthenticationFailed,
    e.CredentialsExpired,
    e.QuotaExceeded,
    e.TooManyConnections,
    e.TooManyConnectionsFromAddress,
)
"""After one of these in an answer as a whole the broker closes the connection; see STAYS_OPEN."""

STAYS_OPEN: Final[dict[type[e.QuiverlogError], str]] = {
    e.UnsupportedVersion: "in the answer to a HELLO of a version newer than the broker's",
    e.FrameTooLarge: "in place of an answer that would not have fitted a frame or its header",
}
"""Where one of CLOSING does not close the connection."""

REQUEST_ERRORS: Final[tuple[type[e.QuiverlogError], ...]] = (
    *CLOSING,
    e.QuiverlogError,
    e.InvalidRequest,
    e.BrokerShuttingDown,
    e.StorageFault,
    e.DiskFull,
    e.ThrottledBroker,
)
"""In the answer to any request, as a whole."""

_PARTITION: Final = (
    e.UnknownTopicId,
    e.UnknownPartition,
    e.NotLeader,
    e.FencedLeaderEpoch,
    e.UnknownLeaderEpoch,
    e.StorageFault,
    e.DiskFull,
    e.ThrottledBroker,
    e.CorruptLog,
    e.QuiverlogError,
)
_TOPIC_CHANGE: Final = (
    e.BrokerShuttingDown,
    e.DiskFull,
    e.NotController,
    e.StorageFault,
    e.ThrottledBroker,
    e.QuiverlogError,
)
_TOPIC_SHAPE: Final = (*(e.InvalidConfig, e.InvalidPartitions, e.InvalidSchema, e.PolicyViolation),)
_COORDINATOR: Final = (
    e.NotLeader,
    e.CoordinatorNotReady,
    e.FeatureNotFinalised,
    e.TransactionFenced,
    e.NotEnoughReplicas,
    e.NotEnoughReplicasAfterAppend,
    e.RequestTimedOut,
    e.OutcomeUnknown,
    e.DiskFull,
    e.CorruptLog,
    e.UnsupportedFormat,
)
_STAGED: Final = (
    *_PARTITION,
    e.CoordinatorNotReady,
    e.FeatureNotFinalised,
    e.InvalidRequest,
    e.UnsupportedFormat,
    e.WrongListener,
)
ENTRY_ERRORS: Final[dict[Api, tuple[type[e.QuiverlogError], ...]]] = {
    Api.HELLO: (),
    Api.METADATA: (e.UnknownTopic, e.UnknownTopicId, e.NotLeader),
    Api.PRODUCE: (
        *_PARTITION,
        e.CorruptBatch,
        e.BatchTooLarge,
        e.UnknownSchema,
        e.InvalidTimestamp,
        e.OutOfOrderSequence,
        e.InvalidProducerEpoch,
        e.UnknownProducerId,
        e.UnsupportedDurability,
        e.NotEnoughReplicas,
        e.NotEnoughReplicasAfterAppend,
        e.RequestTimedOut,
        e.InternalTopic,
        e.InvalidRequest,
        e.PolicyViolation,
        e.StagingFull,
        e.TransactionTooLarge,
        e.CoordinatorNotReady,
        e.UnsupportedFormat,
    ),
    Api.FETCH: (
        *_PARTITION,
        e.OffsetOutOfRange,
        e.OffsetNotAvailable,
        e.LogTruncated,
        e.ReplicaNotAvailable,
    ),
    Api.LIST_OFFSETS: (*_PARTITION, e.InvalidRequest, e.OffsetNotAvailable),
    Api.INIT_PRODUCER_ID: (e.UnknownProducerId, e.InvalidProducerEpoch, e.NotController),
    Api.CREATE_TOPICS: (
        *_TOPIC_CHANGE,
        *_TOPIC_SHAPE,
        e.InternalTopic,
        e.InvalidTopicName,
        e.TopicExists,
        e.InvalidReplicationFactor,
    ),
    Api.DELETE_TOPICS: (*_TOPIC_CHANGE, e.InternalTopic, e.UnknownTopic, e.UnknownTopicId),
    Api.ALTER_TOPIC: (
        *_TOPIC_CHANGE,
        *_TOPIC_SHAPE,
        e.IncompatibleSchema,
        e.InternalTopic,
        e.UnknownTopic,
    ),
    Api.DESCRIBE_TOPICS: (e.UnknownTopic, e.QuiverlogError),
    Api.TOPIC_SCHEMAS: (e.UnknownTopicId,),
    Api.DELETE_RECORDS: (
        *_PARTITION,
        e.OffsetOutOfRange,
        e.OffsetNotAvailable,
        e.InternalTopic,
        e.NotEnoughReplicas,
        e.RequestTimedOut,
    ),
    Api.EPOCH_END_OFFSETS: (*_PARTITION, e.InvalidRequest),
    Api.DESCRIBE_RANGES: (*_PARTITION, e.OffsetOutOfRange),
    Api.CHANGE_VOTERS: (
        e.NotController,
        e.VoterChangePending,
        e.VoterNotReady,
        e.InvalidVoterChange,
    ),
    Api.DESCRIBE_CLUSTER: (),
    Api.DESCRIBE_REPLICAS: (),
    Api.DESCRIBE_PRODUCER: (),
    Api.DECOMMISSION_BROKER: (
        e.NotController,
        e.UnknownBroker,
        e.BrokerAlive,
        e.BrokerInUse,
        e.TooFewBrokers,
        e.InvalidVoterChange,
    ),
    Api.ELECT_LEADERS: (e.NotController, e.UnknownTopic, e.UnknownPartition, e.PolicyViolation),
    Api.REASSIGN_PARTITIONS: (
        e.NotController,
        e.UnknownTopic,
        e.UnknownPartition,
        e.InvalidReplicaAssignment,
        e.InvalidConfig,
        e.PolicyViolation,
    ),
    Api.UPDATE_FEATURES: (
        e.NotController,
        e.InvalidFeatureLevel,
        e.DiskFull,
        e.StorageFault,
    ),
    Api.ALTER_CONFIGS: (
        e.NotController,
        e.UnknownBroker,
        e.UnknownConfig,
        e.ConfigNeedsRestart,
        e.InvalidConfig,
        e.PolicyViolation,
        e.DiskFull,
        e.StorageFault,
    ),
    Api.DESCRIBE_CONFIGS: (e.UnknownConfig,),
    Api.AUTHENTICATE: (e.InvalidRequest, e.WrongListener),
    **USER_ERRORS,
    Api.REPLICA_FETCH: (
        *_PARTITION,
        e.OffsetOutOfRange,
        e.LogTruncated,
        e.InvalidFetchSession,
        e.StaleBrokerEpoch,
        e.WrongListener,
    ),
    Api.REGISTER_BROKER: (
        e.BrokerNotReached,
        e.DuplicateNodeId,
        e.EarlierDiskState,
        e.NotController,
        e.PolicyViolation,
        e.UnsupportedFeatureLevel,
        e.WrongCluster,
        e.WrongListener,
    ),
    Api.BROKER_HEARTBEAT: (e.NotController, e.StaleBrokerEpoch, e.WrongCluster, e.WrongListener),
    Api.ALTER_PARTITION: (
        e.UnknownTopicId,
        e.UnknownPartition,
        e.FencedLeaderEpoch,
        e.OutdatedPartitionEpoch,
        e.IneligibleReplica,
        e.InvalidRequest,
        e.NotController,
        e.StaleBrokerEpoch,
        e.StorageFault,
        e.DiskFull,
        e.ThrottledBroker,
        e.WrongListener,
    ),
    Api.REPORT_LOG_ENDS: (e.NotController, e.StaleBrokerEpoch, e.WrongListener),
    Api.ALTER_ACLS: (e.NotController, e.FeatureNotFinalised, e.PolicyViolation),
    Api.DESCRIBE_ACLS: (),
    Api.ALTER_QUOTAS: (e.NotController, e.FeatureNotFinalised, e.PolicyViolation),
    Api.DESCRIBE_QUOTAS: (),
    Api.OPEN_TRANSACTION: (
        *_COORDINATOR,
        e.NotController,
        e.StagingFull,
        e.PolicyViolation,
    ),
    Api.COMMIT_TRANSACTION: (
        *_COORDINATOR,
        e.TransactionClosed,
        e.UnknownTransactionalId,
        e.SequenceTooOld,
        e.SequenceTaken,
        e.StagedRowsLost,
        e.TransactionBusy,
        e.UnknownTopicId,
    ),
    Api.ABORT_TRANSACTION: (*_COORDINATOR, e.UnknownTransactionalId, e.SequenceTooOld),
    **GROUP_ERRORS,
    Api.LIST_TRANSACTIONS: (),
    Api.DESCRIBE_TRANSACTIONS: (),
    Api.FORWARD: (
        *_STAGED,
        e.CorruptBatch,
        e.BatchTooLarge,
        e.UnknownSchema,
        e.OutOfOrderSequence,
        e.NotEnoughReplicas,
        e.NotEnoughReplicasAfterAppend,
        e.RequestTimedOut,
        e.OutcomeUnknown,
        e.InternalTopic,
    ),
    Api.COUNT_STAGED: _STAGED,
    Api.PUBLISH: (
        *_STAGED,
        e.NotEnoughReplicas,
        e.NotEnoughReplicasAfterAppend,
        e.RequestTimedOut,
        e.OutcomeUnknown,
        e.TransactionBusy,
    ),
    Api.RESOLVE_STAGED: (
        *_COORDINATOR,
        e.WrongListener,
    ),
    Api.QUORUM: (e.DuplicateNodeId, e.WrongCluster, e.WrongNode, e.WrongListener),
}
for _api in ADMINISTRATION:
    ENTRY_ERRORS[_api] += (e.ListenerWithoutAdministration,)
for _api in (
    *(Api.CREATE_TOKEN, Api.END_TOKENS),
    *(Api.PRODUCE, Api.INIT_PRODUCER_ID, Api.CREATE_TOPICS, Api.ALTER_TOPIC, *ADMINISTRATION),
    *(Api.REGISTER_BROKER, Api.BROKER_HEARTBEAT, Api.ALTER_PARTITION, Api.REPORT_LOG_ENDS),
):  # What is decided, or stored, in steps.
    ENTRY_ERRORS[_api] += (e.OutcomeUnknown,)
for _api in {spec.api for spec in APIS.values() if not spec.between_brokers} - {Api.HELLO}:
    ENTRY_ERRORS[_api] += (e.NotAuthorized,)
"""In an entry of the answer; for APIs whose answer has no entries, in the answer as a whole."""


class Field(NamedTuple):
    """One place in a message's array."""

    at: int
    name: str
    type: str
    """`int32`, `int64`, `str`, `bin`, `bool`, the name of a part or of one of UNIONS, or `array of
    ...`."""
    nullable: bool
    count_max: int | None
    """Most entries of an array or map; of `bin`, most bytes; of `str`, most characters."""
    value_min: int | None
    value_max: int | None
    """The range of a number, where it is narrower than its type."""
    default: object
    meaning: str


def structs() -> list[type[msgspec.Struct]]:
    """Every message and part, messages in the order of their numbers."""
    found: list[type[msgspec.Struct]] = []
    for spec in APIS.values():
        for cls in (spec.request, spec.response):
            found += [cls, *(part for part in parts_of(cls) if part not in found)]
    return found


def about(cls: type[msgspec.Struct]) -> str:
    """The class's own docstring in one line; empty where it has none."""
    own = cls.__dict__.get("__doc__") or ""
    return " ".join(inspect.cleandoc(own).split())


def parts_of(cls: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """The parts inside a message, in the order in which they first appear."""
    parts: list[type[msgspec.Struct]] = []
    waiting = list(get_type_hints(cls).values())
    while waiting:
        hint = waiting.pop(0)
        if isinstance(hint, type) and issubclass(hint, Part):
            parts += [hint, *parts_of(hint)]
        else:
            waiting[:0] = get_args(hint)
    return parts


def tag_of(cls: type[msgspec.Struct]) -> int | None:
    """The number at place 0 of a part that is one of several kinds."""
    tag = cls.__struct_config__.tag
    assert tag is None or isinstance(tag, int)
    return tag


def fields_of(cls: type[msgspec.Struct]) -> list[Field]:
    """The struct's own fields: a message's without `api`, `version` and `correlation_id`."""
    skipped = len(Message.__struct_fields__) if issubclass(cls, Message) else 0
    begin = skipped if tag_of(cls) is None else 1
    found = []
    for at, field in enumerate(msgspec.structs.fields(cls)[skipped:], start=begin):
        name = field.name
        meaning = MEANINGS.get(f"{cls.__name__}.{name}") or MEANINGS[name]
        default = field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(Field(at, name, *_type_of(field.type), default, meaning))
    return found


class _Type(NamedTuple):
    """The fields of `Field` that a type gives."""

    type: str
    nullable: bool = False
    count_max: int | None = None
    value_min: int | None = None
    value_max: int | None = None


def _type_of(hint: Any) -> _Type:
    if get_origin(hint) is Annotated:
        base, bounds = get_args(hint)
        if base is not int:
            return _Type(_type_of(base).type, count_max=bounds.max_length)
        bits = 31 if bounds.ge >= -(2**31) and bounds.le < 2**31 else 63
        low = None if bounds.ge == -(2**bits) else bounds.ge
        high = None if bounds.le == 2**bits - 1 else bounds.le
        return _Type(f"int{bits + 1}", value_min=low, value_max=high)
    for name, kinds in UNIONS.items():
        if get_args(hint) == kinds:
            return _Type(name)
    if get_origin(hint) is list:
        return _Type(f"array of {_type_of(get_args(hint)[0]).type}")
    if get_origin(hint) is dict:
        return _Type("map of str to str")
    if type(None) in get_args(hint):
        return _type_of(get_args(hint)[0])._replace(nullable=True)
    return _Type({str: "str", bytes: "bin", bool: "bool"}.get(hint) or hint.__name__)
