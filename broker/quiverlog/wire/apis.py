"""The API numbers, which never change and are never used again."""

from __future__ import annotations

import enum

__all__ = ["Api", "Audience"]


class Api(enum.IntEnum):
    """Numbers of the requests: new ones take the next that is free from 77 on. 35, 36, 44,
    57-59 and 73-76 are reserved for security, groups and links."""

    HELLO = 0
    METADATA = 1
    PRODUCE = 2
    FETCH = 3
    LIST_OFFSETS = 4
    INIT_PRODUCER_ID = 5
    CREATE_TOPICS = 6
    DELETE_TOPICS = 7
    ALTER_TOPIC = 8
    DESCRIBE_TOPICS = 9
    TOPIC_SCHEMAS = 10
    DELETE_RECORDS = 11
    EPOCH_END_OFFSETS = 12
    DESCRIBE_RANGES = 13
    DESCRIBE_CLUSTER = 14
    CHANGE_VOTERS = 15
    ELECT_LEADERS = 16
    REASSIGN_PARTITIONS = 17
    AUTHENTICATE = 18
    WHO_AM_I = 19
    OPEN_TRANSACTION = 20
    COMMIT_TRANSACTION = 21
    ABORT_TRANSACTION = 22
    LIST_TRANSACTIONS = 23
    DESCRIBE_TRANSACTIONS = 24
    GROUP_HEARTBEAT = 28
    COMMIT_OFFSETS = 29
    FETCH_OFFSETS = 30
    LIST_GROUPS = 31
    DESCRIBE_GROUPS = 32
    ALTER_GROUP_OFFSETS = 33
    DELETE_GROUPS = 34
    REPORT_PROGRESS = 35
    QUORUM = 40
    REGISTER_BROKER = 42
    BROKER_HEARTBEAT = 43
    REPLICA_FETCH = 50
    ALTER_PARTITION = 51
    REPORT_LOG_ENDS = 52
    FORWARD = 53
    COUNT_STAGED = 54
    PUBLISH = 55
    RESOLVE_STAGED = 56
    ALTER_CONFIGS = 60
    DESCRIBE_CONFIGS = 61
    UPDATE_FEATURES = 62
    DESCRIBE_REPLICAS = 63
    DECOMMISSION_BROKER = 64
    ALTER_ACLS = 65
    DESCRIBE_ACLS = 66
    ALTER_USERS = 67
    DESCRIBE_USERS = 68
    ALTER_QUOTAS = 69
    DESCRIBE_QUOTAS = 70
    CREATE_TOKEN = 71
    END_TOKENS = 72
    DESCRIBE_PRODUCER = 77


class Audience(enum.StrEnum):
    CLIENTS = "clients"
    """At every listener."""
    ADMINISTRATION = "administration"
    """Where `listeners.<name>.administration` is true; a form that changes nothing, everywhere."""
    BROKERS = "between brokers"
    """At the listener between brokers only: no part of a client."""
