"""The table of bounds in docs/protocol.md: the largest numbers, and what is beyond them.

Owns which bounds of `quiverlog/limits.py` people can meet, and their meaning in a few words. A test
keeps it complete: every bound that an error's text names is here.
"""

from __future__ import annotations

from typing import Final

from quiverlog import limits

__all__ = ["LIMITS", "limits_table"]

LIMITS: Final[dict[str, tuple[str, str]]] = {
    "FRAME_BYTES_MAX": ("bytes of a frame (`frame.bytes.max` may be less)", "FRAME_TOO_LARGE"),
    "HEADER_BYTES_MAX": ("bytes of a header", "CORRUPT_FRAME; of an answer: FRAME_TOO_LARGE"),
    "RESPONSE_CONTAINERS_MAX": ("arrays and maps in the header of an answer", "FRAME_TOO_LARGE"),
    "PARTITIONS_PER_REQUEST_MAX": ("partitions in a request", "CORRUPT_FRAME or INVALID_REQUEST"),
    "QUORUM_MESSAGES_MAX": ("messages in a QUORUM", "CORRUPT_FRAME"),
    "QUORUM_ENTRIES_MAX": ("entries in the messages of a QUORUM", "CORRUPT_FRAME"),
    "QUORUM_BODY_BYTES_MAX": ("bytes of a QUORUM's body", "CORRUPT_FRAME or INVALID_REQUEST"),
    "QUORUM_VOTERS_MAX": ("voters of a snapshot in a QUORUM", "CORRUPT_FRAME"),
    "REPLICA_FETCH_ENTRIES_MAX": ("partitions in a REPLICA_FETCH", "INVALID_REQUEST"),
    "ALTER_PARTITION_ENTRIES_MAX": ("partitions in an ALTER_PARTITION", "CORRUPT_FRAME"),
    "BROKER_LISTENERS_MAX": ("listeners in a REGISTER_BROKER", "CORRUPT_FRAME"),
    "BROKERS_MAX": ("brokers of a cluster", "POLICY_VIOLATION"),
    "HOST_CHARS_MAX": ("characters of a host name in a REGISTER_BROKER", "CORRUPT_FRAME"),
    "RACK_CHARS_MAX": ("characters of a rack", "CORRUPT_FRAME"),
    "TOPICS_PER_REQUEST_MAX": ("topics in a request", "CORRUPT_FRAME or INVALID_REQUEST"),
    "CONFIGS_PER_REQUEST_MAX": (
        "settings, settings to reset, names of key columns or replicas in a list of a request",
        "CORRUPT_FRAME",
    ),
    "CLIENT_ID_CHARS_MAX": ("characters of a client id", "INVALID_REQUEST"),
    "USER_NAME_CHARS_MAX": ("characters of a user's name", "INVALID_REQUEST"),
    "USERS_MAX": ("users of a cluster", "POLICY_VIOLATION"),
    "TOKENS_MAX": ("tokens of a cluster", "POLICY_VIOLATION"),
    "TOKENS_PER_USER_MAX": ("tokens of a user", "POLICY_VIOLATION"),
    "TOKEN_LIFETIME_MS_MAX": ("milliseconds of a token's life", "INVALID_REQUEST"),
    "REQUESTS_WAITING_BYTES_MAX": (
        "bytes of memory of requests that wait for their turns (all but HELLO, PRODUCE, FETCH and"
        " LIST_OFFSETS); a connection has half of what is free",
        "THROTTLED_BROKER",
    ),
    "FETCH_MAX_WAIT_MS_MAX": ("milliseconds that a long poll waits", "less is waited"),
    "PARKED_ENTRIES_MAX": ("partitions that all long polls wait for", "answered at once"),
    "TOPICS_MAX": ("topics of a cluster", "POLICY_VIOLATION"),
    "PARTITIONS_PER_BROKER_MAX": ("partitions of a broker", "POLICY_VIOLATION"),
    "PARTITIONS_PER_TOPIC_MAX": ("partitions of a topic", "INVALID_PARTITIONS"),
    "STAGED_PARTITIONS_MAX": ("partitions of `__staged`", "INVALID_PARTITIONS"),
    "TOPIC_NAME_CHARS_MAX": ("characters of a topic's name", "INVALID_TOPIC_NAME"),
    "REPLICATION_FACTOR_MAX": ("replicas of a partition", "INVALID_REPLICATION_FACTOR"),
    "KEY_COLUMNS_MAX": ("key columns of a topic", "INVALID_SCHEMA"),
    "SCHEMA_BYTES_MAX": ("bytes of a schema", "INVALID_SCHEMA"),
    "SCHEMA_FIELDS_MAX": ("columns and nested fields of a schema", "INVALID_SCHEMA"),
    "SCHEMA_NESTING_MAX": ("levels of nested types", "INVALID_SCHEMA"),
    "SCHEMAS_PER_TOPIC_MAX": ("schemas that a topic can have had", "INVALID_SCHEMA"),
    "SCHEMA_HISTORY_BYTES_MAX": ("bytes of all schemas of a topic", "INVALID_SCHEMA"),
    "BATCH_BYTES_MAX": ("bytes of a batch (`max.message.bytes` may be less)", "BATCH_TOO_LARGE"),
    "BATCH_ROWS_MAX": (
        "rows of a batch, and of an entry of PRODUCE",
        "CORRUPT_BATCH; an entry's: BATCH_TOO_LARGE",
    ),
    "BATCH_DECODED_BYTES_MAX": (
        "bytes of a batch after decompression, and of an entry of PRODUCE; values of a batch that"
        " take no bytes",
        "one batch: CORRUPT_BATCH; the batches of an entry together: BATCH_TOO_LARGE",
    ),
    "PRODUCE_BATCHES_MAX": ("batches of a PRODUCE", "BATCH_TOO_LARGE or THROTTLED_BROKER"),
    "PRODUCE_ROWS_MAX": ("rows of a PRODUCE", "THROTTLED_BROKER"),
    "PRODUCE_DECODED_BYTES_MAX": (
        "bytes of a PRODUCE after decompression",
        "THROTTLED_BROKER",
    ),
    "TIMESTAMP_AHEAD_MS_DEFAULT": (
        "milliseconds that a row is in the future, unless its topic has another bound",
        "INVALID_TIMESTAMP",
    ),
    "SEGMENT_BYTES_MAX": ("bytes of a segment, and so of one append", "BATCH_TOO_LARGE"),
    "SEGMENT_ROWS_MAX": ("rows of a segment, and so of one append", "BATCH_TOO_LARGE"),
    "PRODUCERS_PER_PARTITION_MAX": (
        "idempotent producers that a partition remembers",
        "the longest silent is forgotten: UNKNOWN_PRODUCER_ID",
    ),
    "TRANSACTIONAL_ID_CHARS_MAX": ("characters of a transactional id", "INVALID_REQUEST"),
    "TRANSACTION_INSTANCE_BYTES_MAX": ("bytes of an instance", "INVALID_REQUEST"),
    "TRANSACTION_EPOCH_MAX": ("an epoch of a transactional id", "INVALID_REQUEST"),
    "TRANSACTION_SEQUENCE_MAX": ("the sequence of a transaction", "INVALID_REQUEST"),
    "TRANSACTION_TIMEOUT_MS_MAX": (
        "milliseconds without a sign of life of an id's holder",
        "INVALID_REQUEST",
    ),
    "TRANSACTION_ATTEMPTS_MAX": (
        "attempts of a COMMIT_TRANSACTION",
        "INVALID_REQUEST; above twice as many CORRUPT_FRAME",
    ),
    "TRANSACTION_PARTS_MAX": (
        "parts of a COMMIT_TRANSACTION, all attempts together",
        "INVALID_REQUEST; above twice as many CORRUPT_FRAME",
    ),
    "GROUP_NAME_CHARS_MAX": ("characters of a group's name", "INVALID_GROUP"),
    "GROUP_INSTANCE_CHARS_MAX": ("characters of an `instance_id`", "INVALID_REQUEST"),
    "GROUP_MEMBERS_MAX": ("members of a group", "GROUP_FULL"),
    "GROUP_OFFSETS_MAX": ("offsets of a group", "GROUP_FULL"),
    "GROUPS_PER_BROKER_MAX": ("groups that a broker coordinates", "GROUP_FULL"),
    "MEMBERS_PER_BROKER_MAX": ("members of these groups together", "GROUP_FULL"),
    "GROUP_TOPICS_MAX": (
        "topics of a member's subscription",
        "INVALID_REQUEST; above twice as many CORRUPT_FRAME",
    ),
    "GROUP_PARTITIONS_MAX": (
        "partitions in a GROUP_HEARTBEAT, COMMIT_OFFSETS, FETCH_OFFSETS or ALTER_GROUP_OFFSETS",
        "INVALID_REQUEST; above twice as many CORRUPT_FRAME",
    ),
    "GROUP_METADATA_BYTES_MAX": ("bytes of an offset's metadata", "INVALID_REQUEST"),
    "GROUP_SESSION_TIMEOUT_MS_MAX": ("milliseconds of a session", "INVALID_REQUEST"),
    "GROUP_REBALANCE_TIMEOUT_MS_MAX": ("milliseconds to give up a partition", "INVALID_REQUEST"),
    "FORWARD_BATCHES_MAX": ("batches in an entry of a FORWARD", "INVALID_REQUEST"),
    "FORWARD_ENTRIES_MAX": ("partitions in a FORWARD", "CORRUPT_FRAME"),
    "RESOLVE_STAGED_ENTRIES_MAX": ("transactions in a RESOLVE_STAGED", "CORRUPT_FRAME"),
    "RULES_MAX": ("rules of a cluster", "POLICY_VIOLATION"),
    "RULES_PER_REQUEST_MAX": ("rules in a request", "CORRUPT_FRAME or INVALID_REQUEST"),
    "QUOTAS_MAX": ("quotas of a cluster, and in a request", "POLICY_VIOLATION or CORRUPT_FRAME"),
    "PRINCIPAL_CHARS_MAX": ("characters of a principal", "CORRUPT_FRAME or INVALID_REQUEST"),
    "ERROR_MESSAGE_CHARS_MAX": ("characters of an error's text", "it is cut"),
}


def limits_table() -> str:
    """One line per bound, in the order above."""
    lines = ["| at most | of what | beyond |", "|---|---|---|"]
    for name, (meaning, beyond) in LIMITS.items():
        lines.append(f"| {getattr(limits, name):,} | {meaning} | {beyond} |")
    return "\n".join(lines) + "\n"
