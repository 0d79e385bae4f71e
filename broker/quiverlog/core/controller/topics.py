"""Topics: create, alter, delete, and blocks of producer ids.

Functions read the image and return the records of the change, or raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from quiverlog.batch.key_columns import check_key_columns
from quiverlog.batch.schema import check_schema, deserialize_schema, evolve, normalize_schema
from quiverlog.batch.schema import serialize_schema as serialize
from quiverlog.core.controller import elections
from quiverlog.core.controller.configs import (
    CONFIG_DEFS,
    TAKEN_AT_CREATION,
    TopicConfig,
    check_configs,
    topic_config,
    why_no_topic_key,
)
from quiverlog.core.controller.features import (
    GROUPS_LEVEL,
    TRANSACTIONS_LEVEL,
    check_finalised,
)
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.internal_topics import (
    GROUPS,
    INTERNAL_TOPICS,
    TRANSACTION_TOPICS,
    check_altered,
    partitions_at_creation,
    refuse_internal,
)
from quiverlog.core.controller.records import (
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    ProducerIdBlockRecord,
    Record,
    RemoveTopicRecord,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.placement.placement import Place, place
from quiverlog.errors import (
    CoordinatorNotReady,
    IncompatibleSchema,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidSchema,
    InvalidTopicName,
    PolicyViolation,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.limits import (
    KEY_COLUMNS_MAX,
    PARTITIONS_PER_BROKER_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    REPLICATION_FACTOR_DEFAULT,
    REPLICATION_FACTOR_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_HISTORY_BYTES_MAX,
    SCHEMAS_PER_TOPIC_MAX,
    TOPIC_NAME_CHARS_MAX,
    TOPICS_MAX,
)
from quiverlog.types import TOPIC_NAME

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PRODUCER_ID_BLOCK",
    "TOPIC_ID_BYTES",
    "alter_topic",
    "check_topic_name",
    "create_topic",
    "delete_topic",
    "ensure_internal_topics",
    "find_topic",
    "find_topic_as",
    "internal_factor",
    "next_producer_id_block",
    "takers",
]

TOPIC_ID_BYTES: Final = 16
PRODUCER_ID_BLOCK: Final = 1_000
"""One fsync for a block. A restart skips the rest of it: no id is assigned twice."""


def check_topic_name(name: str) -> None:
    if name in INTERNAL_TOPICS:
        refuse_internal(name, "the controller makes it")
    if not TOPIC_NAME.fullmatch(name) or name in (".", "..") or name.startswith("__"):
        raise InvalidTopicName(f"{name[:TOPIC_NAME_CHARS_MAX]!r} cannot name a topic.")


def find_topic(image: Image, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name[:TOPIC_NAME_CHARS_MAX]!r}.")
    return topic


def create_topic(
    image: Image,
    *,
    name: str,
    schema: bytes,
    partitions: int,
    replication_factor: int,
    key_columns: Sequence[str],
    configs: Mapping[str, str],
    now_us: int,
    entropy: Callable[[int], bytes],
) -> list[Record]:
    """`partitions`: the caller has replaced -1.

    Raises InvalidTopicName, TopicExists, InvalidPartitions, InvalidReplicationFactor,
    InvalidConfig, InvalidSchema; PolicyViolation: the brokers are full, or there are too many
    topics.
    """
    check_topic_name(name)
    if name in image.topics:
        raise TopicExists(f"topic {name!r} exists.")
    _check_topics(image, 1)
    _check_partitions(partitions)
    # The default, or as many replicas as there are brokers (docs/adr/0076).
    if replication_factor == -1:
        replication_factor = max(1, min(REPLICATION_FACTOR_DEFAULT, len(takers(image))))
    if not 1 <= replication_factor <= REPLICATION_FACTOR_MAX:
        raise InvalidReplicationFactor(
            f"a replication factor of {replication_factor} was asked for, allowed are 1 to"
            f" {REPLICATION_FACTOR_MAX}."
        )
    # Leader and controller must use the same values: a broker's defaults are kept in the topic.
    if replication_factor > 1:
        kept: dict[str, str] = {
            k: image.defaults[k] for k in TAKEN_AT_CREATION if k in image.defaults
        }
        configs = {**kept, **configs}
    topic_config(configs, image.defaults, replication_factor)
    arrow_schema, schema_bytes = _checked_schema(schema)
    _check_key_columns(arrow_schema, key_columns)
    topic_id = entropy(TOPIC_ID_BYTES)
    assert len(topic_id) == TOPIC_ID_BYTES
    assert topic_id not in image.topics_by_id
    records: list[Record] = [
        TopicRecord(topic_id, name, now_us, replication_factor, tuple(key_columns))
    ]
    records.extend(ConfigRecord(topic_id, key, value) for key, value in configs.items())
    records.append(SchemaRecord(topic_id, 1, now_us, schema_bytes))
    records.extend(_partition_records(image, topic_id, replication_factor, [], partitions))
    assert len(records) == 2 + len(configs) + partitions
    return records


def internal_factor(image: Image) -> int:
    """Return how many replicas internal topics are to have. Brokers that are down count."""
    count = sum(one.takes_partitions and not one.decommissioning for one in image.brokers.values())
    return max(1, min(REPLICATION_FACTOR_DEFAULT, count))


def ensure_internal_topics(
    image: Image,
    names: Sequence[str] = TRANSACTION_TOPICS,
    *,
    staged: int,
    now_us: int,
    entropy: Callable[[int], bytes],
) -> list[Record]:
    """Return the records, for one entry, that make those of the internal topics that are missing.

    Raises FeatureNotFinalised; CoordinatorNotReady: too few brokers are live; PolicyViolation.
    """
    missing = [name for name in names if name not in image.topics]
    if not missing:
        return []
    if GROUPS in missing:
        check_finalised(image, GROUPS_LEVEL, "a group")
    else:
        check_finalised(image, TRANSACTIONS_LEVEL, "a transaction")
    _check_topics(image, len(missing))
    factor, live = internal_factor(image), len(takers(image))
    # Until a raise the first decisions would lie on fewer disks than they could.
    if live < factor:
        raise CoordinatorNotReady(
            f"the internal topics are made with {factor} replicas, and {live} brokers are live."
        )
    records: list[Record] = []
    placed: Counter[int] = Counter()
    for name in missing:
        partitions = partitions_at_creation(name, staged, live)
        records += _create_internal(image, name, partitions, factor, placed, now_us, entropy)
    return records


def _create_internal(
    image: Image,
    name: str,
    partitions: int,
    factor: int,
    placed: Counter[int],
    now_us: int,
    entropy: Callable[[int], bytes],
) -> list[Record]:
    shape = INTERNAL_TOPICS[name]
    topic_id = entropy(TOPIC_ID_BYTES)
    assert topic_id not in image.topics_by_id
    return [
        TopicRecord(topic_id, name, now_us, factor),
        *(ConfigRecord(topic_id, key, value) for key, value in shape.configs(factor).items()),
        SchemaRecord(topic_id, 1, now_us, _checked_schema(serialize(shape.schema))[1]),
        *_partition_records(image, topic_id, factor, [], partitions, placed),
    ]


def alter_topic(
    image: Image,
    topic: TopicImage,
    *,
    set_configs: Mapping[str, str],
    delete_configs: Sequence[str],
    partitions: int,
    schema: bytes,
    now_us: int,
) -> list[Record]:
    """Return the records that change a topic; none when it already is as asked (a repeated
    request)."""
    assert image.topics_by_id.get(topic.topic_id) is topic, "decided on what will hold"
    is_reconfigured = bool(set_configs or delete_configs or schema)
    check_altered(topic.name, is_reconfigured=is_reconfigured, partitions=partitions)
    records = _alter_configs(image, topic, set_configs, delete_configs)
    if records:
        config = _configured(image, topic, set_configs, delete_configs)
        records.extend(elections.settings_changed(image, topic, config))
    if partitions != -1:
        have = len(topic.partitions)
        if partitions < have:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {have} partitions and cannot shrink to {partitions}."
            )
        _check_partitions(partitions)
        existing = [one.replicas for one in topic.partitions]
        records.extend(
            _partition_records(
                image, topic.topic_id, topic.replication_factor, existing, partitions - have
            )
        )
    if schema:
        records.extend(_alter_schema(topic, schema, now_us))
    return records


def find_topic_as(image: Image, name: str, topic_id: bytes) -> TopicImage:
    topic = find_topic(image, name)
    if topic_id and topic.topic_id != topic_id:
        raise UnknownTopicId(f"topic {name!r} is not the one with id {topic_id.hex()}.")
    assert topic.name == name
    return topic


def delete_topic(topic: TopicImage) -> list[Record]:
    refuse_internal(topic.name, "it cannot be deleted")
    return [RemoveTopicRecord(topic.topic_id)]


def next_producer_id_block(image: Image) -> ProducerIdBlockRecord:
    return ProducerIdBlockRecord(image.next_producer_id + PRODUCER_ID_BLOCK)


# --- parts ---------------------------------------------------------------------------------------
def _check_topics(image: Image, new: int) -> None:
    if len(image.topics) + new > TOPICS_MAX:
        raise PolicyViolation(f"there are {len(image.topics)} topics, which is the most allowed.")


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(
            f"{partitions} partitions were asked for, allowed are 1 to {PARTITIONS_PER_TOPIC_MAX}."
        )


def _partition_records(
    image: Image,
    topic_id: bytes,
    replication_factor: int,
    existing: Sequence[Sequence[int]],
    count: int,
    others: Counter[int] | None = None,
) -> list[Record]:
    """`others`: replicas by broker that the same entry places; these are added."""
    assert count >= 0, "partitions only grow"
    assert all(len(replicas) >= 1 for replicas in existing)
    brokers = _with_room(image, replication_factor) if count else []
    seed = int.from_bytes(topic_id, "big")
    placed = place(brokers, count, replication_factor, seed=seed, existing=existing)
    more = Counter() if others is None else others
    more.update(node_id for replicas in placed for node_id in replicas)
    for node_id, new in more.items():
        if image.replica_counts[node_id] + new > PARTITIONS_PER_BROKER_MAX:
            raise PolicyViolation(
                f"broker {node_id} holds {image.replica_counts[node_id]} partitions, {new} more"
                f" would exceed the {PARTITIONS_PER_BROKER_MAX} that a broker may hold."
            )
    assert len(placed) == count
    return [
        PartitionRecord(topic_id, partition, replicas, replicas, replicas[0])
        for partition, replicas in enumerate(placed, len(existing))
    ]


def takers(image: Image) -> list[BrokerRecord]:
    return [
        one
        for one in image.live_brokers()
        if one.takes_partitions and not one.in_shutdown and not one.decommissioning
    ]


def _with_room(image: Image, replication_factor: int) -> list[Place]:
    live = takers(image)
    if len(live) < replication_factor:
        raise InvalidReplicationFactor(
            f"{replication_factor} replicas were asked for; brokers that can take one: {len(live)}."
        )
    found = [
        Place(broker.node_id, broker.rack, broker.host)
        for broker in live
        if image.replica_counts[broker.node_id] < PARTITIONS_PER_BROKER_MAX
    ]
    if len(found) < replication_factor:
        raise PolicyViolation(
            f"{len(live) - len(found)} of {len(live)} brokers hold {PARTITIONS_PER_BROKER_MAX}"
            " partitions each, which is the most allowed."
        )
    assert all(not image.brokers[one.node_id].fenced for one in found)
    assert len({one.node_id for one in found}) == len(found)
    return found


def _checked_schema(schema: bytes) -> tuple[pa.Schema, bytes]:
    if not schema:
        raise InvalidSchema("a topic needs a schema with at least one column.")
    arrow_schema = normalize_schema(deserialize_schema(schema))
    check_schema(arrow_schema)
    assert len(arrow_schema) > 0, "a checked schema has columns"
    serialized = serialize(arrow_schema)
    if len(serialized) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(
            f"the schema takes {len(serialized)} bytes, allowed are {SCHEMA_BYTES_MAX}."
        )
    return arrow_schema, serialized


def _check_key_columns(schema: pa.Schema, key_columns: Sequence[str]) -> None:
    if len(key_columns) > KEY_COLUMNS_MAX:
        raise InvalidSchema(f"{len(key_columns)} key columns, allowed are {KEY_COLUMNS_MAX}.")
    check_key_columns(schema, key_columns)


def _alter_configs(
    image: Image, topic: TopicImage, set_configs: Mapping[str, str], delete_configs: Sequence[str]
) -> list[Record]:
    check_configs(set_configs)
    for key in delete_configs:
        if key in set_configs:
            raise InvalidConfig(f"{key!r} is to be both set and deleted.")
        if key not in CONFIG_DEFS:
            raise InvalidConfig(f"{key!r} {why_no_topic_key(key)}.")
    assert topic.replication_factor >= 1
    _configured(image, topic, set_configs, delete_configs)
    records: list[Record] = [
        ConfigRecord(topic.topic_id, key, value)
        for key, value in set_configs.items()
        if topic.configs.get(key) != value
    ]
    records.extend(
        ConfigRecord(topic.topic_id, key, None) for key in delete_configs if key in topic.configs
    )
    assert len(records) <= len(set_configs) + len(delete_configs)
    return records


def _configured(
    image: Image, topic: TopicImage, set_configs: Mapping[str, str], delete_configs: Sequence[str]
) -> TopicConfig:
    after = {k: v for k, v in topic.configs.items() if k not in delete_configs}
    after.update(set_configs)
    assert topic.replication_factor >= 1
    return topic_config(after, image.defaults, topic.replication_factor)


def _alter_schema(topic: TopicImage, schema: bytes, now_us: int) -> list[Record]:
    assert topic.schema_id == len(topic.schema_records), "ids count from 1 without gaps"
    arrow_schema, serialized = _checked_schema(schema)
    if arrow_schema.equals(topic.schema, check_metadata=False):
        return []
    evolve(topic.schema, arrow_schema)
    for column in topic.key_columns:
        # As a float, an integer hashes differently: rows with equal keys would go to different
        # partitions. A wider integer would not; one rule for all types is simpler.
        if arrow_schema.field(column).type != topic.schema.field(column).type:
            raise IncompatibleSchema(f"key column {column!r} cannot change its type.")
    if len(topic.schema_records) >= SCHEMAS_PER_TOPIC_MAX:
        raise InvalidSchema(f"topic {topic.name!r} has had {SCHEMAS_PER_TOPIC_MAX} schemas.")
    history_bytes = len(serialized) + sum(len(r.schema) for r in topic.schema_records)
    if history_bytes > SCHEMA_HISTORY_BYTES_MAX:
        raise InvalidSchema(
            f"the schemas of topic {topic.name!r} would take {history_bytes} bytes together, "
            f"allowed are {SCHEMA_HISTORY_BYTES_MAX}."
        )
    assert topic.schema_id < SCHEMAS_PER_TOPIC_MAX
    return [SchemaRecord(topic.topic_id, topic.schema_id + 1, now_us, serialized)]
