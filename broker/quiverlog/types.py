"""Frozen values that every floor shares. Names follow Kafka's where the meaning is the same."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from quiverlog.limits import GROUP_NAME_CHARS_MAX, TOPIC_NAME_CHARS_MAX, USER_NAME_CHARS_MAX

__all__ = [
    "CLUSTER_NUMBERS_END",
    "EARLIEST",
    "GROUPS_TOPIC",
    "GROUP_NAME",
    "LATEST",
    "NO_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "PRODUCER_COUNTERS_END",
    "PRODUCER_IDS_END",
    "PUBLISH_COUNTERS_END",
    "PUBLISH_LEADER_EPOCHS_END",
    "STAGED_PARTITIONS_END",
    "STAGED_TOPIC",
    "TOPIC_NAME",
    "TRANSACTIONS_TOPIC",
    "USER_NAME",
    "Compression",
    "Durability",
    "IsolationLevel",
    "Now",
    "Operation",
    "PublishId",
    "QuotaKind",
    "ResourceKind",
    "TopicPartition",
]

LATEST = -1
"""In place of a timestamp: the offset of the next row (the end of what may be read)."""

EARLIEST = -2
"""In place of a timestamp: the first offset that is still kept."""

NO_EPOCH = -1
"""A leader epoch or a producer epoch that is not known or not used."""

NO_PRODUCER_ID = -1
"""The producer id of a batch whose producer is not idempotent."""

CLUSTER_NUMBERS_END = 2**15
PRODUCER_COUNTERS_END = 2**47
PRODUCER_IDS_END = CLUSTER_NUMBERS_END * PRODUCER_COUNTERS_END
"""A producer id is a cluster's number, 0 in those from before there were any, and a counter.
INIT_PRODUCER_ID assigns ids below; those from here on name publishes (`PublishId`)."""

STAGED_PARTITIONS_END = 2**10
PUBLISH_LEADER_EPOCHS_END = 2**20
PUBLISH_COUNTERS_END = 2**32
"""What a `PublishId` has room for."""

NO_SEQUENCE = -1
"""The base sequence of a batch whose producer is not idempotent."""

TRANSACTIONS_TOPIC = "__transactions"
"""The internal topic of what coordinators have decided about transactional ids."""

STAGED_TOPIC = "__staged"
"""The internal topic of rows of transactions that are not published yet."""


GROUPS_TOPIC = "__groups"
"""The internal topic of groups: their members, what these have, and how far they have read."""

TOPIC_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_CHARS_MAX}}}")
GROUP_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{GROUP_NAME_CHARS_MAX}}}")
USER_NAME: Final = re.compile(rf"[A-Za-z0-9._@-]{{1,{USER_NAME_CHARS_MAX}}}")
"""For `fullmatch`: the name of a user."""


class Durability(enum.IntEnum):
    """What an acknowledgement rests on. Stronger levels have larger numbers.

    `TOPIC_DEFAULT` is only requested; an acknowledgement names one of the others.
    """

    TOPIC_DEFAULT = -1
    MEMORY = 0
    """In the leader's page cache: survives the process, not the machine."""
    FLUSHED = 1
    """On the leader's disk: fsync has returned."""
    REPLICATED = 2
    """In the logs of all in-sync replicas, at least the topic's minimum of them."""
    REPLICATED_FLUSHED = 3
    """The same, and on the disks of at least that minimum."""

    @property
    def label(self) -> str:
        """The name that configuration files, the command line and the docs use."""
        return self.name.lower()


class IsolationLevel(enum.IntEnum):
    """What a consumer may see of undecided transactions."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Compression(enum.IntEnum):
    """Codec of an Arrow record-batch body; the number is stored in a batch's flags."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Operation(enum.IntEnum):
    """What a rule allows or denies. Numbers are stored and sent: new ones are appended."""

    ALL = 0
    READ = 1
    WRITE = 2
    CREATE = 3
    DELETE = 4
    ALTER = 5
    DESCRIBE = 6
    ALTER_CONFIGS = 7

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class ResourceKind(enum.IntEnum):
    """What a rule is about. Numbers are stored and sent: new ones (columns) are appended."""

    TOPIC = 1
    GROUP = 2
    TRANSACTIONAL_ID = 3
    CLUSTER = 4
    USER = 5
    TOKEN = 6

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class QuotaKind(enum.IntEnum):
    """Whose a quota is. Numbers are stored and sent."""

    USER = 1
    CLIENT_ID = 2
    DEFAULT = 3
    """Each user, and each address of clients that have not logged in, has one of its own."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Now(NamedTuple):
    """One moment, on both clocks that a machine needs. Handed in, never looked up.

    `mono_us` only ever grows and drives timeouts; `wall_us` is UTC since the epoch and may jump: it
    is for the times of rows, files and metadata, and for what depends on them, as retention.
    """

    mono_us: int
    wall_us: int


class PublishId(NamedTuple):
    """Names the appending of a committed transaction's rows, in a batch's `producer_id`.

    Of one staging partition a later publish has a larger id, also under a new leader.
    """

    staged_partition: int
    leader_epoch: int
    counter: int

    def pack(self) -> int:
        assert 0 <= self.staged_partition < STAGED_PARTITIONS_END
        assert 0 <= self.leader_epoch < PUBLISH_LEADER_EPOCHS_END
        assert 0 <= self.counter < PUBLISH_COUNTERS_END
        place = self.staged_partition << 52 | self.leader_epoch << 32
        return PRODUCER_IDS_END | place | self.counter

    @classmethod
    def unpack(cls, publish_id: int) -> PublishId:
        assert publish_id >= PRODUCER_IDS_END
        return cls(
            publish_id >> 52 & STAGED_PARTITIONS_END - 1,
            publish_id >> 32 & PUBLISH_LEADER_EPOCHS_END - 1,
            publish_id & PUBLISH_COUNTERS_END - 1,
        )
