"""The numbers of the requests, which never change and are never used again.

Owns which of them are administration, too: what a listener for clients may refuse.

Must not know: what a request holds, which part of a broker answers it.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["ADMINISTRATION", "ALSO_ASK", "FOR_CLIENTS", "Api"]


class Api(enum.IntEnum):
    """Numbers of the requests. 20-39 are for transactions and groups, 40-59 for the cluster,
    60-79 for its administration.
    """

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
    QUORUM = 40
    REGISTER_BROKER = 42
    BROKER_HEARTBEAT = 43
    REPLICA_FETCH = 50
    ALTER_PARTITION = 51
    REPORT_LOG_ENDS = 52
    ALTER_CONFIGS = 60
    DESCRIBE_CONFIGS = 61
    UPDATE_FEATURES = 62
    DESCRIBE_REPLICAS = 63
    DECOMMISSION_BROKER = 64


ADMINISTRATION: Final = frozenset(
    (
        Api.DELETE_TOPICS,
        Api.DELETE_RECORDS,
        Api.CHANGE_VOTERS,
        Api.ELECT_LEADERS,
        Api.REASSIGN_PARTITIONS,
        Api.ALTER_CONFIGS,
        Api.UPDATE_FEATURES,
        Api.DECOMMISSION_BROKER,
    )
)
"""Refused at a listener with `listeners.<name>.administration=false`."""

ALSO_ASK: Final = frozenset(
    (
        Api.CHANGE_VOTERS,
        Api.REASSIGN_PARTITIONS,
        Api.UPDATE_FEATURES,
        Api.DECOMMISSION_BROKER,
    )
)
"""Those of them that have a form which only asks: that is served at each listener."""

FOR_CLIENTS: Final = frozenset(
    (
        Api.HELLO,
        Api.METADATA,
        Api.PRODUCE,
        Api.FETCH,
        Api.LIST_OFFSETS,
        Api.INIT_PRODUCER_ID,
        Api.CREATE_TOPICS,  # Sinks create the topic that they write to, and widen it.
        Api.ALTER_TOPIC,
        Api.DESCRIBE_TOPICS,
        Api.TOPIC_SCHEMAS,
        Api.EPOCH_END_OFFSETS,
        Api.DESCRIBE_RANGES,
        Api.DESCRIBE_CLUSTER,
        Api.DESCRIBE_CONFIGS,
        Api.DESCRIBE_REPLICAS,
    )
)
"""Served at every listener. What is in neither set is for brokers alone (`registry`)."""
