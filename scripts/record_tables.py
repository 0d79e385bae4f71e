"""The table of metadata records in docs/storage-format.md, made from the records themselves.

Owns what the code does not hold: the meaning of every record and field in a few words. Types and
nullability come from the classes. A record or a field without a meaning is a KeyError here, so
docs and vectors cannot lack one.
"""

from __future__ import annotations

import types
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from quiverlog.core.controller import records as r

__all__ = ["RECORDS", "record_types", "records_table"]

RECORDS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "SnapshotRecord": (
        "a compacted log begins; what follows is the state at that metadata version",
        {"version": "version", "removed_topic_ids": "ids of removed topics"},
    ),
    "BrokerRecord": (
        "a broker registered; the incarnation is new at every start of its process",
        {
            "node_id": "node id",
            "incarnation": "incarnation of 16 bytes",
            "host": "host",
            "port": "port",
            "rack": "rack",
            "listeners": "name, host and port of each listener; absent: none",
            "broker_epoch": (
                f"broker epoch; {r.UNKNOWN_BROKER_EPOCH} or absent: this entry's metadata version"
            ),
            "fenced": "fenced; absent: false",
            "in_shutdown": "about to stop; absent: false",
            "directory_id": "id of its data directory; absent: empty",
            "wants_vote": "may become a voter by itself; absent: false",
            "takes_partitions": "may be given replicas; absent: true",
            "feature_level_min": "lowest feature level that it supports; absent: 1",
            "feature_level_max": "highest feature level that it supports; absent: 1",
            "decommissioning": "is to leave the cluster; absent: false",
        },
    ),
    "TopicRecord": (
        "topic",
        {
            "topic_id": "topic id of 16 bytes",
            "name": "name",
            "created_us": "created in µs",
            "replication_factor": "replication factor",
            "key_columns": "key columns",
            "min_in_sync_least": (
                "smallest `min.insync.replicas` it has had; 0 or absent: its configuration's"
            ),
        },
    ),
    "PartitionRecord": (
        f"partition; they come in the order of their numbers. Leader {r.NO_LEADER}: none",
        {
            "topic_id": "topic id",
            "partition": "partition",
            "replicas": "replicas",
            "in_sync_replicas": "in-sync replicas",
            "leader_id": "leader id",
            "leader_epoch": "leader epoch",
            "partition_epoch": "changes so far; absent: 0",
            "eligible_leader_replicas": "eligible leader replicas; absent: none",
            "adding_replicas": "replicas that begin to hold it; absent: none",
            "removing_replicas": "replicas that are to hold it no more; absent: none",
            "replaced_disks": "replicas whose disk was replaced; absent: none",
            "last_trusted": "node id of the last trusted replica, where none is now; -1 or absent:"
            " none",
            "begins_anew": "true: the only trusted replica may lack its log, and makes it",
            "move_bytes_per_s": "no broker copies it faster on its way; 0 or absent: no such bound",
            "never_in_sync": "replicas that were added, and never in sync since; absent: none",
        },
    ),
    "PartitionChangeRecord": (
        f"partition change; leader {r.LEADER_STAYS}, epoch -1 and nil leave what is, leader"
        f" {r.LEADER_GONE}: the partition has none from now on",
        {
            "topic_id": "topic id",
            "partition": "partition",
            "leader_id": "leader id",
            "leader_epoch": "leader epoch",
            "in_sync_replicas": "in-sync replicas",
            "replicas": "replicas; absent: nil",
            "eligible_leader_replicas": "eligible leader replicas; absent: nil",
            "unclean": "true when the leader may lack rows that were readable; absent: false",
            "adding_replicas": "replicas that begin to hold it; absent: nil",
            "removing_replicas": "replicas that are to hold it no more; absent: nil",
            "replaced_disks": "replicas whose disk was replaced; absent: nil",
            "last_trusted": "node id of the last trusted replica from now on; -1 or absent: as"
            " before",
            "begins_anew": "true: no log of the elected replica is known; absent: false",
            "move_bytes_per_s": "no broker copies it faster on its way; nil or absent: as before",
        },
    ),
    "TopicChangeRecord": (
        "replication factor of all partitions of a topic from now on",
        {"topic_id": "topic id", "replication_factor": "replication factor"},
    ),
    "ConfigRecord": (
        "configuration of a topic; value nil: back to the default",
        {"topic_id": "topic id", "key": "key", "value": "value"},
    ),
    "SchemaRecord": (
        "schema; ids count from 1",
        {
            "topic_id": "topic id",
            "schema_id": "schema id",
            "created_us": "created in µs",
            "schema": "Arrow IPC schema message",
        },
    ),
    "RemoveTopicRecord": ("topic removed", {"topic_id": "topic id"}),
    "ProducerIdBlockRecord": (
        "producer ids with a counter (the lowest 47 bits) below this may have been given out",
        {"next_producer_id": "next counter"},
    ),
    "ProducerEpochRecord": (
        "epochs of this producer up to this one were given out",
        {"producer_id": "producer id", "epoch": "epoch"},
    ),
    "BrokerChangeRecord": (
        "change of a broker's registration; nil leaves what is",
        {
            "node_id": "node id",
            "broker_epoch": "broker epoch",
            "fenced": "fenced",
            "in_shutdown": "about to stop",
            "wants_vote": "may become a voter by itself; absent: nil",
            "decommissioning": "is to leave the cluster; absent: nil",
        },
    ),
    "FeatureLevelRecord": (
        "the cluster has this feature level from here on; without such a record it has level 1",
        {"level": "level"},
    ),
    "BrokerConfigRecord": (
        "configuration of brokers that changes while they run; value nil: no longer set",
        {"node_id": "node id; -1: all brokers", "key": "key", "value": "value"},
    ),
    "UnregisterBrokerRecord": (
        "the broker that was registered under this epoch is removed",
        {"node_id": "node id", "broker_epoch": "broker epoch"},
    ),
    "SecurityKeyRecord": (
        "the key that makes the salts of names that do not exist; with the first user",
        {"key": "32 random bytes"},
    ),
    "UserRecord": (
        "user, in place of an earlier one of the name",
        {
            "name": "name",
            "changed_us": "of this change, in µs",
            "credentials": "mechanism, salt, iterations, stored key and server key of each"
            " password that counts, the newest first",
            "is_admin": "may do everything; absent: false",
        },
    ),
    "RemoveUserRecord": ("user removed, and its tokens", {"name": "name"}),
    "TokenRecord": (
        "token",
        {
            "token_id": "id",
            "owner": "name of its user",
            "created_us": "created in µs",
            "expires_us": "expires in µs; 0: it is ended",
            "credential": "mechanism, salt, iterations, stored key and server key; absent: nil",
        },
    ),
    "ClusterNumberRecord": (
        "the cluster's number, in the upper bits of producer ids given out from here on",
        {"number": "1 + CRC-32C of the cluster id modulo 32,767"},
    ),
    "RuleRecord": (
        "a principal may, or may not, do something with a resource",
        {
            "rule_id": "number of the rule",
            "principal": "principal, as in ALTER_ACLS",
            "allows": "false: denied",
            "operation": "operation",
            "kind": "kind of resource",
            "name": "name of the resource",
            "is_prefix": "`name` is how it begins",
            "network": "callers from there; empty: from anywhere",
        },
    ),
    "RemoveRuleRecord": ("a rule is gone", {"rule_id": "number of the rule"}),
    "RuleNumberRecord": (
        "in a snapshot: numbers of rules below were used",
        {"next_rule_id": "number of the next rule"},
    ),
    "QuotaRecord": (
        "a quota, in place of the one before; with three times 0 it is gone",
        {
            "kind": "whose, as in ALTER_QUOTAS",
            "name": "name of the user or client",
            "bytes_in": "bytes of PRODUCE in a second; 0: no such limit",
            "bytes_out": "bytes of rows for FETCH in a second; 0: no such limit",
            "connections": "connections; 0: no such limit",
        },
    ),
}


def record_types() -> list[type[msgspec.Struct]]:
    """Every record that a metadata log may hold, in the order of their numbers."""
    return sorted(get_args(r.Record), key=_tag)


def records_table() -> str:
    """One line per record."""
    lines = ["| type | record | fields |", "|---|---|---|"]
    for cls in record_types():
        meaning, fields = RECORDS[cls.__name__]
        hints = get_type_hints(cls)
        described = [f"{fields[name]} ({_type(hints[name])})" for name in cls.__struct_fields__]
        lines.append(f"| {_tag(cls)} | {meaning} | {', '.join(described)} |")
    return "\n".join(lines) + "\n"


def _tag(cls: type[msgspec.Struct]) -> int:
    tag = cls.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


def _type(hint: Any) -> str:
    """As docs/protocol.md calls it."""
    if isinstance(hint, types.UnionType):
        return " or ".join(sorted((_type(one) for one in get_args(hint)), key="nil".__ne__))
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if parts[-1] is not ...:
            return f"[{', '.join(map(_type, parts))}]"
        return f"array of {_type(parts[0])}"
    return {int: "int", str: "str", bytes: "bin", bool: "bool", type(None): "nil"}[hint]
