"""The table of internal topics, whose schema and configuration are fixed here.

    __transactions   what coordinators have decided about transactional ids
    __staged         rows of transactions that are not published yet
    __groups         members of groups, what these have, and how far they have read

Their names begin with `__`, those of other topics never do. On request their replicas move, change
in number and are elected, and `__staged` gets partitions; all else is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from quiverlog.core.controller.configs import CONFIG_DEFS
from quiverlog.errors import InternalTopic, InvalidPartitions
from quiverlog.limits import (
    BATCH_BYTES_DEFAULT_MAX,
    BATCH_BYTES_MAX,
    GROUPS_PARTITIONS,
    MIB,
    STAGED_PARTITIONS_MAX,
    STAGED_PARTITIONS_MIN,
    STAGED_PARTITIONS_PER_BROKER,
    TRANSACTIONS_PARTITIONS,
)
from quiverlog.types import GROUPS_TOPIC, STAGED_TOPIC, TRANSACTIONS_TOPIC, Durability

__all__ = [
    "GROUPS",
    "INTERNAL_TOPICS",
    "STAGED",
    "TRANSACTIONS",
    "TRANSACTION_TOPICS",
    "InternalShape",
    "check_altered",
    "is_internal",
    "partitions_at_creation",
    "refuse_internal",
]

TRANSACTIONS: Final = TRANSACTIONS_TOPIC
STAGED: Final = STAGED_TOPIC
GROUPS: Final = GROUPS_TOPIC
TRANSACTION_TOPICS: Final = (TRANSACTIONS, STAGED)
"""Made together, on first use; `__groups` is made by itself."""


@dataclass(frozen=True, slots=True)
class InternalShape:
    """`durability`: with several replicas; one replica gives `flushed`."""

    schema: pa.Schema
    durability: Durability
    segment_bytes: int
    batch_bytes_max: int

    def configs(self, replication_factor: int) -> dict[str, str]:
        # All keys: no default of a broker counts.
        assert replication_factor >= 1
        is_replicated = replication_factor > 1
        level = self.durability if is_replicated else Durability.FLUSHED
        return {
            **{
                key: one.default for key, one in CONFIG_DEFS.items() if isinstance(one.default, str)
            },
            # Rows go when what they are for is done, and by no other rule.
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "segment.bytes": str(self.segment_bytes),
            "max.message.bytes": str(self.batch_bytes_max),
            # A clock that is wrong stops no transaction: nothing here depends on times of rows.
            "message.timestamp.after.max.ms": "-1",
            "durability": level.label,
            "min.insync.replicas": "2" if is_replicated else "1",
            "unclean.leader.election.enable": "false",
        }


def _columns(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


INTERNAL_TOPICS: Final = {
    TRANSACTIONS: InternalShape(
        _columns(("kind", pa.int8()), ("transactional_id", pa.string()), ("value", pa.binary())),
        durability=Durability.REPLICATED_FLUSHED,
        # Snapshots move the log start, and only whole segments free room.
        segment_bytes=16 * MIB,
        batch_bytes_max=BATCH_BYTES_DEFAULT_MAX,
    ),
    STAGED: InternalShape(
        _columns(
            ("kind", pa.int8()),
            ("transactional_id", pa.string()),
            ("epoch", pa.int64()),
            ("sequence", pa.int64()),
            ("attempt", pa.binary()),
            ("topic_id", pa.binary()),
            ("partition", pa.int32()),
            ("row_count", pa.int32()),
            # The last: what lies before it is read alone.
            ("batch", pa.binary()),
        ),
        durability=Durability.REPLICATED,
        segment_bytes=64 * MIB,
        # A row holds a whole batch of another topic.
        batch_bytes_max=BATCH_BYTES_MAX,
    ),
    GROUPS: InternalShape(
        _columns(
            ("kind", pa.int8()),
            ("group", pa.string()),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ),
        # A commit that a power failure takes costs rows that are read again, and none.
        durability=Durability.REPLICATED,
        segment_bytes=16 * MIB,
        batch_bytes_max=BATCH_BYTES_DEFAULT_MAX,
    ),
}


def is_internal(name: str) -> bool:
    return name.startswith("__")


def partitions_at_creation(name: str, staged: int, live_brokers: int) -> int:
    """`staged`: `staged.partitions`."""
    if name == TRANSACTIONS:
        return TRANSACTIONS_PARTITIONS
    if name == GROUPS:
        return GROUPS_PARTITIONS
    assert name == STAGED
    count = staged or STAGED_PARTITIONS_PER_BROKER * live_brokers
    return min(max(count, STAGED_PARTITIONS_MIN), STAGED_PARTITIONS_MAX)


def refuse_internal(name: str, what: str) -> None:
    if is_internal(name):
        raise InternalTopic(f"{name!r} is an internal topic: {what}.")


def check_altered(name: str, *, is_reconfigured: bool, partitions: int) -> None:
    """Raises InternalTopic, InvalidPartitions. `partitions`: -1 leaves them as they are."""
    if is_reconfigured:
        refuse_internal(name, "its schema and configuration are fixed")
    if partitions == -1 or not is_internal(name):
        return
    # Where an id, or a group, is decided follows from the number of partitions.
    if name != STAGED:
        refuse_internal(name, "the number of its partitions is fixed")
    if partitions > STAGED_PARTITIONS_MAX:
        raise InvalidPartitions(
            f"{partitions} partitions of {name!r} were asked for, the most are"
            f" {STAGED_PARTITIONS_MAX}."
        )
