"""The data source's options: names, types, defaults, where each applies, and its documentation.

The tables in docs/spark.md are generated from it. Names are those of Spark's Kafka source where the
meaning is the same.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from quiverlog.limits import TRANSACTION_SEQUENCE_MAX
from quiverlog.settings import Kind, Setting, SettingsTable, markdown_table
from quiverlog.types import Durability

from .option_types import (
    parse_addresses,
    parse_assignment,
    parse_boolean,
    parse_bytes,
    parse_duration,
    parse_ending_offsets,
    parse_group,
    parse_names,
    parse_pattern,
    parse_secret,
    parse_short_text,
    parse_starting_offsets,
    parse_text,
    parse_timestamps,
    parse_token_lifetime,
    parse_transaction_timeout,
)

__all__ = ["OPTIONS", "REFUSED", "Use", "options_page"]


class Use(enum.Flag):
    """The reads and writes to which an option applies."""

    STREAM_READ = enum.auto()
    BATCH_READ = enum.auto()
    STREAM_WRITE = enum.auto()
    BATCH_WRITE = enum.auto()
    READ = STREAM_READ | BATCH_READ
    WRITE = STREAM_WRITE | BATCH_WRITE
    ALL = READ | WRITE

    @property
    def label(self) -> str:
        return _USE_LABELS.get(self) or ", ".join(_USE_LABELS[part] for part in self)


_USE_LABELS: dict[Use, str] = {
    Use.STREAM_READ: "streaming read",
    Use.BATCH_READ: "batch read",
    Use.STREAM_WRITE: "streaming write",
    Use.BATCH_WRITE: "batch write",
    Use.READ: "read",
    Use.WRITE: "write",
    Use.ALL: "all",
}


def _of_all(
    key: str,
    doc: str,
    *,
    label: str,
    read: Callable[[str], object] = parse_text,
    default: str | None = None,
    default_doc: str = "",
    attribute: str = "",
) -> Setting:
    """An option of each read and write."""
    return Setting(
        key,
        Kind.OTHER,
        default,
        doc,
        read=read,
        label=label,
        default_doc=default_doc,
        where=Use.ALL,
        attribute=attribute,
    )


# --- the table ------------------------------------------------------------------------------------
_SETTINGS: Final = (
    Setting(
        "bootstrap.servers",
        Kind.OTHER,
        None,
        "Brokers to ask first, `host:port` separated by commas. The others are learnt from them.",
        read=parse_addresses,
        label="addresses",
        default_doc="required",
        where=Use.ALL,
        attribute="bootstrap_servers",
    ),
    Setting(
        "subscribe",
        Kind.OTHER,
        None,
        'Topics to read, separated by commas; also `load("flights")`.',
        read=parse_names,
        label="names",
        default_doc="one of the three is required",
        where=Use.READ,
    ),
    Setting(
        "subscribePattern",
        Kind.OTHER,
        None,
        "Read every topic whose whole name matches. A topic that appears while a streaming query "
        "runs is added, from its first row.",
        read=parse_pattern,
        label="regular expression",
        default_doc="one of the three is required",
        where=Use.READ,
        attribute="subscribe_pattern",
    ),
    Setting(
        "assign",
        Kind.OTHER,
        None,
        'Read only these partitions: `{"flights":[0,1]}`.',
        read=parse_assignment,
        label="JSON",
        default_doc="one of the three is required",
        where=Use.READ,
    ),
    Setting(
        "startingOffsets",
        Kind.OTHER,
        None,
        "Where a new query starts: `earliest`, `latest` (streaming only), or JSON per topic or "
        'partition, where -2 stands for earliest and -1 for latest: `{"flights":{"0":23,"1":-2}}`, '
        '`{"flights":"earliest"}`. With JSON, each partition must be named. A restarted query goes '
        "on from its checkpoint; partitions found later start at their first row.",
        read=parse_starting_offsets,
        label="JSON",
        default_doc="`latest` for streaming, `earliest` for batch",
        where=Use.READ,
        attribute="starting_offsets",
    ),
    Setting(
        "startingTimestamp",
        Kind.INTEGER,
        None,
        "Start at the first row with this timestamp or a later one, in every partition. "
        "Wins over the other starting options.",
        label="milliseconds",
        where=Use.READ,
        attribute="starting_timestamp",
    ),
    Setting(
        "startingOffsetsByTimestamp",
        Kind.OTHER,
        None,
        'The same per partition: `{"flights":{"0":1767225600000}}`. Wins over `startingOffsets`.',
        read=parse_timestamps,
        label="JSON",
        where=Use.READ,
        attribute="starting_offsets_by_timestamp",
    ),
    Setting(
        "startingOffsetsByTimestampStrategy",
        Kind.CHOICE,
        "error",
        "When a partition has no row at or after the starting timestamp: fail (`error`) or start "
        "at its end (`latest`).",
        choices=("error", "latest"),
        ignore_case=True,
        where=Use.READ,
        attribute="starting_strategy",
    ),
    Setting(
        "endingOffsets",
        Kind.OTHER,
        "latest",
        "Where a batch ends (exclusive): `latest`, or JSON per topic or partition, where -1 stands "
        "for latest.",
        read=parse_ending_offsets,
        label="JSON",
        where=Use.BATCH_READ,
        attribute="ending_offsets",
    ),
    Setting(
        "endingTimestamp",
        Kind.INTEGER,
        None,
        "End before the first row with this timestamp or a later one, in every partition. "
        "Wins over the other ending options.",
        label="milliseconds",
        where=Use.BATCH_READ,
        attribute="ending_timestamp",
    ),
    Setting(
        "endingOffsetsByTimestamp",
        Kind.OTHER,
        None,
        "The same per partition. Wins over `endingOffsets`.",
        read=parse_timestamps,
        label="JSON",
        where=Use.BATCH_READ,
        attribute="ending_offsets_by_timestamp",
    ),
    Setting(
        "maxOffsetsPerTrigger",
        Kind.INTEGER,
        None,
        "Rows per micro-batch, at most, shared over the partitions in proportion to the rows that "
        "wait in each. `maxRowsPerTrigger` is the same.",
        minimum=1,
        label="rows",
        aliases=("maxRowsPerTrigger",),
        where=Use.STREAM_READ,
        attribute="max_rows_per_trigger",
    ),
    Setting(
        "maxBytesPerTrigger",
        Kind.OTHER,
        None,
        "Stored bytes per micro-batch, at most, in whole batches, but never less than one "
        "batch. Works together with `maxOffsetsPerTrigger`.",
        read=parse_bytes,
        label="bytes",
        where=Use.STREAM_READ,
        attribute="max_bytes_per_trigger",
    ),
    Setting(
        "minOffsetsPerTrigger",
        Kind.INTEGER,
        None,
        "Wait until at least this many rows are there. `minRowsPerTrigger` is the same.",
        minimum=1,
        label="rows",
        aliases=("minRowsPerTrigger",),
        where=Use.STREAM_READ,
        attribute="min_rows_per_trigger",
    ),
    Setting(
        "maxTriggerDelay",
        Kind.OTHER,
        "15m",
        "Wait no longer than this for `minOffsetsPerTrigger`.",
        read=parse_duration,
        label="duration",
        where=Use.STREAM_READ,
        attribute="max_trigger_delay",
    ),
    Setting(
        "minPartitions",
        Kind.INTEGER,
        None,
        "Split large ranges until there are about this many Spark tasks.",
        minimum=1,
        label="count",
        where=Use.READ,
        attribute="min_partitions",
    ),
    Setting(
        "maxRecordsPerPartition",
        Kind.INTEGER,
        None,
        "Split ranges until no Spark task reads more rows than this.",
        minimum=1,
        label="rows",
        where=Use.READ,
        attribute="max_rows_per_task",
    ),
    Setting(
        "minRecordsPerPartition",
        Kind.INTEGER,
        "1000",
        "Ranges with fewer rows than this share Spark tasks of up to this many rows (a task costs "
        "about 30 ms). 0 gives each partition of the log its own task.",
        label="rows",
        where=Use.READ,
        attribute="min_rows_per_task",
    ),
    Setting(
        "driverReadRows",
        Kind.INTEGER,
        "1000",
        "A micro-batch of at most this many rows, and 1 MB, that one task would read is read by "
        "the driver while Spark writes its log: it costs no Python task. Not on PySpark 4.0 and "
        "4.1, nor with `fetchFrom`. 0: tasks read all.",
        label="rows",
        where=Use.STREAM_READ,
        attribute="driver_read_rows",
    ),
    Setting(
        "groupId",
        Kind.OTHER,
        None,
        "The name under which `quiverlog group` shows the query and its lag. Only shown: the "
        "checkpoint keeps the position. On PySpark 4.0 and 4.1 the default changes at a restart.",
        read=parse_group,
        label="name",
        default_doc="`spark-` and the `_id` of its offsets",
        where=Use.STREAM_READ,
        attribute="group_id",
    ),
    Setting(
        "reportProgress",
        Kind.OTHER,
        "true",
        "Show the query beside the groups; the first one of a cluster has the topic `__groups` "
        "made.",
        read=parse_boolean,
        label="boolean",
        where=Use.STREAM_READ,
        attribute="report_progress",
    ),
    Setting(
        "failOnDataLoss",
        Kind.OTHER,
        "true",
        "When rows that were to be read are gone (retention, truncation, a topic deleted or "
        "created anew): fail and name the ranges, or log them and go on.",
        read=parse_boolean,
        label="boolean",
        where=Use.READ,
        attribute="fail_on_data_loss",
    ),
    Setting(
        "failOnCorruptData",
        Kind.OTHER,
        "true",
        "When stored rows cannot be decoded, hold a value outside of their column's type, or "
        "are found damaged by the broker: fail and name "
        "topic, partition and offsets, or log them and skip them. `failOnDataLoss` does not "
        "cover this.",
        read=parse_boolean,
        label="boolean",
        where=Use.READ,
        attribute="fail_on_corrupt_data",
    ),
    Setting(
        "columns",
        Kind.OTHER,
        None,
        "Read these columns only, in this order; the others are not decoded. A schema given by "
        "`.schema(...)` has the same effect and may also widen types.",
        read=parse_names,
        label="names",
        where=Use.READ,
    ),
    Setting(
        "includeMetadata",
        Kind.OTHER,
        "false",
        "Add the columns `_topic`, `_partition`, `_offset` and `_timestamp`.",
        read=parse_boolean,
        label="boolean",
        where=Use.READ,
        attribute="include_metadata",
    ),
    Setting(
        "fetch.max.bytes",
        Kind.OTHER,
        "4m",
        "Bytes asked for in one fetch of a task; two are in flight or in memory at a time.",
        read=parse_bytes,
        label="bytes",
        where=Use.READ,
        attribute="fetch_bytes",
    ),
    Setting(
        "topic",
        Kind.OTHER,
        None,
        "Topic to write to. Without it, each row names its topic in `topicColumn`. "
        '`save("delays")` is the same.',
        read=parse_text,
        label="name",
        default_doc="this or a topic column is required",
        where=Use.WRITE,
    ),
    Setting(
        "topicColumn",
        Kind.OTHER,
        "topic",
        "Column (string, never null) that names each row's topic when `topic` is not set. It is "
        "not stored.",
        read=parse_text,
        label="name",
        where=Use.WRITE,
        attribute="topic_column",
    ),
    Setting(
        "partitionColumn",
        Kind.OTHER,
        None,
        "Column (int) that names each row's partition; for null the writer chooses, by the topic's "
        "key columns where it has some. It is not stored. Without this option, a column "
        "`partition` is used unless the topic's own schema has a column of that name.",
        read=parse_text,
        label="name",
        default_doc="`partition`, when the topic has no such column",
        where=Use.WRITE,
        attribute="partition_column",
    ),
    Setting(
        "createTopic",
        Kind.OTHER,
        "false",
        "Create a topic that does not exist, with the DataFrame's columns (those that only name "
        "topic and partition left out), which may all be null. An existing one is left as it is.",
        read=parse_boolean,
        label="boolean",
        where=Use.WRITE,
        attribute="create_topic",
    ),
    Setting(
        "createTopic.partitions",
        Kind.INTEGER,
        "1",
        "Partitions of a topic that is created.",
        minimum=1,
        label="count",
        where=Use.WRITE,
        attribute="create_partitions",
    ),
    Setting(
        "createTopic.key",
        Kind.OTHER,
        None,
        "Key columns of a topic that is created: rows with equal keys go to the same partition.",
        read=parse_names,
        label="names",
        where=Use.WRITE,
        attribute="create_key",
    ),
    Setting(
        "createTopic.replicationFactor",
        Kind.INTEGER,
        None,
        "Replicas of each partition of a topic that is created.",
        minimum=1,
        default_doc="3, or one on each broker where fewer are alive",
        label="count",
        where=Use.WRITE,
        attribute="create_replication",
    ),
    Setting(
        "deliveryMode",
        Kind.CHOICE,
        "exactly_once",
        "`exactly_once`: readers see the rows of a micro-batch, or of a batch write, once and when "
        "it commits. `at_least_once`: as they arrive, and again where Spark repeats a task or a "
        "micro-batch.",
        choices=("exactly_once", "at_least_once"),
        ignore_case=True,
        where=Use.WRITE,
        attribute="delivery_mode",
    ),
    Setting(
        "sinkId",
        Kind.OTHER,
        None,
        "Tells the sinks of one query apart, where `foreachBatch` writes to one topic twice. The "
        "same over all restarts of the query; up to 249 characters.",
        read=parse_short_text,
        label="name",
        default_doc="the topic, `*` with a topic column",
        where=Use.WRITE,
        attribute="sink_id",
    ),
    Setting(
        "transaction.timeout",
        Kind.OTHER,
        "15m",
        "Time without a sign of life of any task after which the cluster gives up what a "
        "micro-batch, or a batch write, has staged.",
        read=parse_transaction_timeout,
        label="duration",
        where=Use.WRITE,
        attribute="transaction_timeout",
    ),
    Setting(
        "txnAppId",
        Kind.OTHER,
        None,
        "With `txnVersion`: a batch write under a version that is written already writes nothing. "
        "Names the job, over all of its runs; up to 249 characters.",
        read=parse_short_text,
        label="name",
        where=Use.BATCH_WRITE,
        attribute="txn_app_id",
    ),
    Setting(
        "txnVersion",
        Kind.INTEGER,
        None,
        "The number of a job's write, growing from one to the next; gaps are allowed.",
        minimum=0,
        maximum=TRANSACTION_SEQUENCE_MAX,
        label="number",
        where=Use.BATCH_WRITE,
        attribute="txn_version",
    ),
    Setting(
        "durability",
        Kind.CHOICE,
        "topic_default",
        "What an acknowledgement must rest on; may only be stronger than the topic's own level.",
        choices=tuple(level.label for level in Durability),
        ignore_case=True,
        where=Use.WRITE,
    ),
    Setting(
        "compression.type",
        Kind.CHOICE,
        "topic_default",
        "Codec of the batches; by default the topic's.",
        choices=("topic_default", "none", "lz4", "zstd"),
        ignore_case=True,
        where=Use.WRITE,
        attribute="compression",
    ),
    Setting(
        "batch.rows",
        Kind.INTEGER,
        "65536",
        "Spark delivers 10,000 rows at a time by default; they are gathered to batches of up to "
        "this many rows before they are stored.",
        minimum=1,
        label="rows",
        where=Use.WRITE,
        attribute="batch_rows",
    ),
    Setting(
        "batch.size",
        Kind.OTHER,
        "4m",
        "Bytes per batch, at most.",
        read=parse_bytes,
        label="bytes",
        where=Use.WRITE,
        attribute="batch_bytes",
    ),
    Setting(
        "delivery.timeout",
        Kind.OTHER,
        "120s",
        "How long a task goes on trying to get its rows acknowledged.",
        read=parse_duration,
        label="duration",
        where=Use.WRITE,
        attribute="delivery_timeout",
    ),
    _of_all(
        "request.timeout",
        "How long one request may take, retries included, before the query fails.",
        read=parse_duration,
        label="duration",
        default="30s",
    ),
    _of_all(
        "connect.timeout",
        "How long one attempt to connect may take.",
        read=parse_duration,
        label="duration",
        default="10s",
    ),
    Setting(
        "isolation.level",
        Kind.CHOICE,
        "read_committed",
        "Accepted, and changes nothing: every row that can be read is committed.",
        choices=("read_committed", "read_uncommitted"),
        ignore_case=True,
        where=Use.ALL,
        attribute="isolation_level",
    ),
    _of_all(
        "client.id",
        "Name of this query in the brokers' logs and metrics.",
        label="name",
        default="spark",
    ),
    _of_all(
        "security.file",
        "How to reach brokers by TLS, and to log in ([the keys](security.md#clients)). A path on"
        " the driver and on every executor, each of which reads it for itself; nothing of it is in"
        " a plan.",
        label="path",
        default_doc="the environment's QUIVERLOG_SECURITY_FILE, else none",
    ),
    _of_all(
        "user",
        "The [user](security.md#users) with which the driver logs in, in place of what the security"
        " file has; needs one of the next three. Tasks get a token of that user, never the"
        " password.",
        label="name",
    ),
    _of_all(
        "passwordFile",
        "A file of the driver whose only line is the password.",
        label="path",
        attribute="password_file",
    ),
    _of_all(
        "passwordEnv",
        "The environment variable of the driver that has the password.",
        label="name",
        attribute="password_env",
    ),
    _of_all(
        "password",
        "The password itself. Spark keeps options as text in several places, and with Connect shows"
        " them in the server's UI and event log: take one of the two above.",
        read=parse_secret,
        label="text",
    ),
    _of_all(
        "tokenFile",
        "A file whose only line is a [token](security.md#tokens), in place of user and password. A"
        " path on the driver and on every executor, read at each connection.",
        label="path",
        attribute="token_file",
    ),
    _of_all(
        "tokenLifetime",
        "How long a token counts that the driver sends to tasks, at most 24h. A new one is made at"
        " half of that, so that a micro-batch has the other half at least. A batch job has one"
        " token: a task, or the commit of an exactly-once write, that comes after its end fails"
        " with CREDENTIALS_EXPIRED.",
        read=parse_token_lifetime,
        label="time",
        default_doc="`2h` in a stream, `12h` in a batch job",
        attribute="token_lifetime",
    ),
    Setting(
        "fetchFrom",
        Kind.CHOICE,
        "leader",
        "Which replica a task reads: the partition's leader; a follower in sync; or the nearest, a "
        "follower in sync in the task's rack where the leader is in another. The leader is read "
        "whenever a follower fails. The driver asks leaders only.",
        choices=("leader", "follower", "nearest"),
        ignore_case=True,
        where=Use.READ,
        attribute="fetch_from",
    ),
    Setting(
        "client.rack",
        Kind.OTHER,
        None,
        "The rack of all tasks, named like the brokers' `rack`. By default each executor's "
        "own: the environment variable `QUIVERLOG_CLIENT_RACK`, which "
        "`spark.executorEnv.QUIVERLOG_CLIENT_RACK` sets. `nearest` needs one of them.",
        read=parse_text,
        label="name",
        default_doc="of the executor",
        where=Use.READ,
        attribute="client_rack",
    ),
)


REFUSED: Final = {
    "kafka.bootstrap.servers": "use `bootstrap.servers`",
    "bootstrapservers": "use `bootstrap.servers`",
    "kafka.group.id": "use `groupId`, a name for people: the checkpoint keeps the position",
    "group.id": "use `groupId`, a name for people: the checkpoint keeps the position",
    "groupidprefix": "use `groupId`, a name for people: the checkpoint keeps the position",
    "asyncprogresstrackingenabled": "after a failure Spark repeats a micro-batch with other rows; "
    "leave it out",
    "kafkaconsumer.polltimeoutms": "use `request.timeout`, such as 30s",
    "fetchoffset.numretries": "retries go on until `request.timeout`, such as 30s",
    "fetchoffset.retryintervalms": "retries go on until `request.timeout`, such as 30s",
    "includeheaders": "headers are an ordinary column of a topic that was created with the `raw` "
    "schema; name it in `columns`",
    "auto.offset.reset": "use `startingOffsets`",
    "kafka.auto.offset.reset": "use `startingOffsets`",
    "enable.auto.commit": "the checkpoint keeps the position; leave it out",
    "interceptor.classes": "leave it out",
    "key.deserializer": "topics are typed: columns arrive with the types of the topic's schema",
    "value.deserializer": "topics are typed: columns arrive with the types of the topic's schema",
    "key.serializer": "topics are typed: columns are stored with the types of the topic's schema",
    "value.serializer": "topics are typed: columns are stored with the types of the topic's schema",
    "filter": "rows are not filtered in the reader yet; use `.where(...)` on the DataFrame, and "
    "`columns` or `startingTimestamp` to read less",
    "acks": "use `durability`",
    "kafka.acks": "use `durability`",
    "linger.ms": "the writer fills batches up to `batch.rows` and `batch.size`",
    "topics": "use `subscribe`",
    "topicspattern": "use `subscribePattern`",
    "maxfilespertrigger": "use `maxOffsetsPerTrigger` or `maxBytesPerTrigger`",
}
"""Options of other sources -> what to do instead."""

OPTIONS: Final = SettingsTable(_SETTINGS, absent=REFUSED, ignore_case=True)


def options_page(use: Use) -> str:
    """Return the table for docs/spark.md: reads (`Use.READ`) or writes (`Use.WRITE`)."""
    shown = (setting for setting in OPTIONS.values() if setting.where & use)
    return markdown_table(
        ("option", "type", "default", "applies to", "meaning"),
        ((f"`{s.key}`", s.type_label, _default(s), _where(s, use), s.doc) for s in shown),
    )


def _default(setting: Setting) -> str:
    return setting.default_label or "none"


def _where(setting: Setting, use: Use) -> str:
    shared: Use = setting.where & use
    return "both" if shared == use else shared.label
