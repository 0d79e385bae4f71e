"""The records of the metadata log and their bytes: an entry is a msgpack array of records, each
`[type, ...fields]`, and is applied whole or not at all.

Fields are only appended, with defaults; a type number is never used again.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Final, get_args

import msgspec

from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.types import NO_EPOCH

__all__ = [
    "ALL_BROKERS",
    "LEADER_GONE",
    "LEADER_STAYS",
    "NO_LEADER",
    "UNKNOWN_BROKER_EPOCH",
    "BrokerChangeRecord",
    "BrokerConfigRecord",
    "BrokerRecord",
    "ClusterNumberRecord",
    "ConfigRecord",
    "Credential",
    "FeatureLevelRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerEpochRecord",
    "ProducerIdBlockRecord",
    "Record",
    "RemoveRuleRecord",
    "RemoveTopicRecord",
    "RemoveUserRecord",
    "RuleNumberRecord",
    "RuleRecord",
    "SchemaRecord",
    "SecurityKeyRecord",
    "SnapshotRecord",
    "TokenRecord",
    "TopicChangeRecord",
    "TopicRecord",
    "UnregisterBrokerRecord",
    "UserRecord",
    "changed_by",
    "decode_entry",
    "encode_entry",
    "encode_long_entry",
    "in_entries",
    "topic_of",
]


NO_LEADER: Final = -1
LEADER_STAYS: Final = -1
"""A lost leader is LEADER_GONE."""
LEADER_GONE: Final = -2
ALL_BROKERS: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
"""The epoch of a registration is the metadata version of its entry."""


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The state at metadata version `version` follows; first record of a compacted log.

    Files under `removed_topic_ids` are garbage.
    """

    version: int
    removed_topic_ids: tuple[bytes, ...] = ()


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A broker's registration, which replaces an earlier one of its node id.

    `incarnation` is new at every start of its process, `directory_id` belongs to its disk.
    `broker_epoch` numbers the registration; snapshots write the number. `fenced`: it neither leads
    nor is in sync. `wants_vote`: it may become a voter of the metadata quorum on its own.
    `decommissioning`: it is to leave, and gets no partitions, moves or vote.
    """

    node_id: int
    incarnation: bytes
    host: str = ""
    port: int = 0
    rack: str = ""
    listeners: tuple[tuple[str, str, int], ...] = ()
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    fenced: bool = False
    in_shutdown: bool = False
    directory_id: str = ""
    wants_vote: bool = False
    takes_partitions: bool = True
    feature_level_min: int = 1
    feature_level_max: int = 1
    decommissioning: bool = False


class TopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """`min_in_sync_least`: in a snapshot, the smallest `min.insync.replicas` so far; 0: as
    configured."""

    topic_id: bytes
    name: str
    created_us: int
    replication_factor: int
    key_columns: tuple[str, ...] = ()
    min_in_sync_least: int = 0


class PartitionRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A new partition; those of a topic come in the order of their numbers.

    `eligible_leader_replicas`: out of sync, yet with all readable rows (KIP-966). While the
    partition moves, `replicas` are the target in order, then `removing_replicas`, which stay until
    `adding_replicas` are in sync (KIP-455); a cancelled addition is in both.

    `replaced_disks`: replicas whose disk, or log, is not the one on which they acknowledged rows.
    `last_trusted`: the last replica that was trusted, where none is now. `begins_anew`: the only
    trusted one may have no log, and may make an empty one. `never_in_sync`: added and not in sync
    since: no row was promised to be on their disks.
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    replaced_disks: tuple[int, ...] = ()
    last_trusted: int = NO_LEADER
    begins_anew: bool = False
    move_bytes_per_s: int = 0
    never_in_sync: tuple[int, ...] = ()


class PartitionChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Fields that are not given (LEADER_STAYS, NO_EPOCH, None) stay. Each change is a partition
    epoch.

    Eligible leader replicas and replaced disks stay, except those that this change brings into sync
    or removes. `unclean`: the new leader may lack readable rows. `begins_anew`: no log of the new
    leader is known.
    """

    topic_id: bytes
    partition: int
    leader_id: int = LEADER_STAYS
    leader_epoch: int = NO_EPOCH
    in_sync_replicas: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    unclean: bool = False
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    replaced_disks: tuple[int, ...] | None = None
    last_trusted: int = NO_LEADER
    begins_anew: bool = False
    move_bytes_per_s: int | None = None


class ConfigRecord(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`value` None: back to the default."""

    topic_id: bytes
    key: str
    value: str | None


class SchemaRecord(msgspec.Struct, frozen=True, array_like=True, tag=7):
    topic_id: bytes
    schema_id: int
    created_us: int
    schema: bytes


class RemoveTopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=8):
    topic_id: bytes


class ProducerIdBlockRecord(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Producer ids whose counter is below may have been assigned."""

    next_producer_id: int


class ProducerEpochRecord(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Epochs of this producer up to `epoch` were assigned."""

    producer_id: int
    epoch: int


class BrokerChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """None: unchanged. Applies to the registration `broker_epoch` only."""

    node_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_shutdown: bool | None = None
    wants_vote: bool | None = None
    decommissioning: bool | None = None


class BrokerConfigRecord(msgspec.Struct, frozen=True, array_like=True, tag=12):
    node_id: int
    key: str
    value: str | None


class FeatureLevelRecord(msgspec.Struct, frozen=True, array_like=True, tag=13):
    level: int


class TopicChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=14):
    topic_id: bytes
    replication_factor: int


class UnregisterBrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=15):
    node_id: int
    broker_epoch: int


class ClusterNumberRecord(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """New producer ids carry this number, so that other clusters have none of them."""

    number: int


Credential = tuple[str, bytes, int, bytes, bytes]
"""Mechanism, salt, iterations, stored key, server key (`wire.scram`). It makes no proof."""


class SecurityKeyRecord(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Comes with the first user, and stays: what a login of an unknown name gets is made of it."""

    key: bytes

    def __repr__(self) -> str:
        return "SecurityKeyRecord(***)"


class UserRecord(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """A user, in place of an earlier one of the name.

    `credentials`: of a mechanism up to two, the newest first, with one salt. `is_admin`: may do
    everything, whatever the rules are.
    """

    name: str
    changed_us: int
    credentials: tuple[Credential, ...]
    is_admin: bool = False

    def __repr__(self) -> str:
        return f"UserRecord({self.name!r}, {self.changed_us}, ***, {self.is_admin})"


class RemoveUserRecord(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Ends the user's tokens, too."""

    name: str


class TokenRecord(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """A token of a user; `expires_us` 0: it is ended. `credential` is of SCRAM-SHA-256."""

    token_id: str
    owner: str
    created_us: int
    expires_us: int
    credential: Credential | None = None

    def __repr__(self) -> str:
        return f"TokenRecord({self.token_id[:4]!r}..., {self.owner!r}, {self.expires_us}, ***)"


class RuleRecord(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """A rule of core/security/acls.py."""

    rule_id: int
    principal: str
    allows: bool
    operation: int
    kind: int
    name: str = ""
    is_prefix: bool = False
    network: str = ""


class RemoveRuleRecord(msgspec.Struct, frozen=True, array_like=True, tag=22):
    rule_id: int


class RuleNumberRecord(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """In a snapshot: rules get numbers from here on; those below were used, or are."""

    next_rule_id: int


class QuotaRecord(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """A quota of core/security/quotas.py, in place of the one before; without any limit: none."""

    kind: int
    name: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0


Record = (
    SnapshotRecord
    | BrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | SchemaRecord
    | RemoveTopicRecord
    | ProducerIdBlockRecord
    | ProducerEpochRecord
    | BrokerChangeRecord
    | BrokerConfigRecord
    | FeatureLevelRecord
    | TopicChangeRecord
    | UnregisterBrokerRecord
    | ClusterNumberRecord
    | SecurityKeyRecord
    | UserRecord
    | RemoveUserRecord
    | TokenRecord
    | RuleRecord
    | RemoveRuleRecord
    | RuleNumberRecord
    | QuotaRecord
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Record])
_TYPES: Final = msgspec.msgpack.Decoder(list[list[object]])
_TAG_MAX: Final = max(kind.__struct_config__.tag for kind in get_args(Record))
# msgpack's array 32, for an entry that is encoded record by record.
_ARRAY_32: Final = struct.Struct(">BI")
_ARRAY_32_TAG: Final = 0xDD


def topic_of(record: Record) -> bytes | None:
    match record:
        case SnapshotRecord() | BrokerRecord() | BrokerChangeRecord() | UnregisterBrokerRecord():
            return None
        case ProducerIdBlockRecord() | ProducerEpochRecord() | BrokerConfigRecord():
            return None
        case FeatureLevelRecord() | ClusterNumberRecord() | SecurityKeyRecord():
            return None
        case UserRecord() | RemoveUserRecord() | TokenRecord():
            return None
        case RuleRecord() | RemoveRuleRecord() | RuleNumberRecord() | QuotaRecord():
            return None
    return record.topic_id


def changed_by(records: Iterable[Record]) -> dict[bytes, Collection[int] | None]:
    """Return the topics of these records, each with its partitions that change; None: any may."""
    found: dict[bytes, dict[int, None] | None] = {}
    for record in records:
        topic_id = topic_of(record)
        if topic_id is None:
            continue
        # One by one: a broker that comes or goes changes thousands of partitions.
        if not isinstance(record, PartitionChangeRecord):
            found[topic_id] = None
        elif (numbers := found.setdefault(topic_id, {})) is not None:
            assert record.partition >= 0, "a change is of one partition"
            numbers[record.partition] = None
    return {**found}


def encode_entry(records: list[Record]) -> bytes:
    assert records
    return _ENCODER.encode(records)


def encode_long_entry(records: Iterable[Record]) -> bytes:
    """Encode record by record, for a job in another thread: one call for all records of thousands
    of topics would hold the interpreter lock for milliseconds."""
    encoded = [_ENCODER.encode(record) for record in records]
    assert encoded, "an entry is at least one record"
    return b"".join((_ARRAY_32.pack(_ARRAY_32_TAG, len(encoded)), *encoded))


def decode_entry(entry: bytes) -> list[Record]:
    """Raises UnsupportedFormat: a record type of a later version; CorruptLog: the bytes are no
    entry."""
    try:
        return _DECODER.decode(entry)
    except msgspec.MsgspecError as error:
        if _has_newer_type(entry):
            raise UnsupportedFormat("the metadata log has a record of an unknown type.") from error
        raise CorruptLog(f"an entry of the metadata log cannot be decoded: {error}.") from error


def _has_newer_type(entry: bytes) -> bool:
    try:
        rows = _TYPES.decode(entry)
    except msgspec.MsgspecError:
        return False
    return any(row and isinstance(row[0], int) and row[0] > _TAG_MAX for row in rows)


# The changes after a broker event, as entries of the metadata log.
def in_entries(records: list[Record], entry_bytes_max: int) -> list[list[Record]]:
    """Cut records into entries. The first record is about a broker, the others about partitions."""
    assert records
    assert entry_bytes_max > 0
    if len(encode_entry(records)) <= entry_bytes_max:
        return [records]
    # The image is sound after each entry, and what is lost by a crash is decided again.
    own, following = records[:1], _bounded(records[1:], entry_bytes_max)
    is_unfencing = isinstance(own[0], BrokerChangeRecord) and own[0].fenced is False
    # Entries may be separated by a crash. An unfenced broker leads only after its own record, and a
    # fenced one must lead nothing before its record.
    return [own, *following] if is_unfencing else [*following, own]


def _bounded(records: list[Record], entry_bytes_max: int) -> list[list[Record]]:
    """Halve the records, in order. A record that is too large alone is refused when proposed."""
    if len(records) <= 1 or len(encode_entry(records)) <= entry_bytes_max:
        return [records] if records else []
    half = len(records) // 2
    return [*_bounded(records[:half], entry_bytes_max), *_bounded(records[half:], entry_bytes_max)]
