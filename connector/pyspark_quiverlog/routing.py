"""The topic and partition of each row, and the driver's check that the topic accepts the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiverlog.errors import InternalTopic, InvalidOption, SchemaMismatch

from . import pool
from .options import WriteOptions
from .topic_creation import create_missing

__all__ = ["Route", "check_write", "split_by_route", "topic_schema"]


@dataclass(frozen=True)
class Route:
    """How a row finds its topic and partition; a None column does not route.

    `is_partition_named`: by the option `partitionColumn`. `ignored`: a column that would name the
    topic without the option `topic`.
    """

    topic: str | None
    topic_column: str | None
    partition_column: str | None
    is_partition_named: bool = False
    ignored: str | None = None


# Checks that passed in this process: a stream's writer is made twice per micro-batch.
_checked: dict[tuple[Any, ...], Route] = {}


def check_write(options: WriteOptions, schema: pa.Schema) -> Route:
    """Refuse what every task would refuse.

    Raises:
        InvalidOption, InvalidSchema: a routing column is missing or of the wrong type; or as
            `create_missing`.
        InternalTopic: the cluster alone writes it.
        SchemaMismatch: the DataFrame's columns do not fit the topic's.
        UnknownTopic: there is none of this name.
    """
    key = (
        options.bootstrap_servers,
        options.topic,
        options.topic_column,
        options.partition_column,
        options.create_topic,
        schema.to_string(),
    )
    route = _checked.get(key)
    if route is None:
        if len(_checked) > 100:
            _checked.clear()
        route = _checked[key] = _check_write(options, schema)
    return route


def _check_write(options: WriteOptions, schema: pa.Schema) -> Route:
    known: set[str] = set()
    if options.topic is not None:
        # Its columns do not fit either: to add those would help nothing.
        if options.topic.startswith("__"):
            raise InternalTopic(f"{options.topic!r} is an internal topic: no sink writes it.")
        if options.create_topic:
            create_missing(options, options.topic, schema, _routing_names(options, schema))
        known = set(topic_schema(options, options.topic).names)
    topic_column = None if options.topic is not None else options.topic_column
    ignored = None
    if topic_column is not None:
        _check_column(schema, topic_column, "topicColumn", pa.types.is_string, "a string")
    elif options.topic_column in schema.names and options.topic_column not in known:
        ignored = options.topic_column
    partition_column = options.partition_column
    if partition_column is not None:
        _check_column(schema, partition_column, "partitionColumn", pa.types.is_integer, "an int")
    elif (
        "partition" in schema.names
        and "partition" not in known
        and (is_int(schema, "partition") or topic_column is None)
    ):
        partition_column = "partition"
        _check_column(schema, "partition", "partitionColumn", pa.types.is_integer, "an int")
    # Otherwise it routes only to topics without a column of that name (`WriteTask`).
    is_named = options.partition_column is not None
    route = Route(options.topic, topic_column, partition_column, is_named, ignored)
    if options.topic is not None:
        check_fits(strip_routing(empty_batch(schema), route), options, options.topic)
    return route


def _routing_names(options: WriteOptions, schema: pa.Schema) -> set[str]:
    """Return the columns that a topic created for these rows does not get."""
    names = {options.topic_column, options.partition_column or "partition"}
    if options.partition_column is None and not is_int(schema, "partition"):
        names.discard("partition")  # it cannot name a partition, so it is data
    return names


def is_int(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and bool(pa.types.is_integer(schema.field(name).type))


def _check_column(schema: pa.Schema, name: str, option: str, is_good: Any, kind: str) -> None:
    if name not in schema.names:
        if option == "topicColumn":
            raise InvalidOption(
                f"option `topic` is not set, and the rows have no column {name!r} to name their "
                "topic (`topicColumn`)."
            )
        raise InvalidOption(f"option `{option}`: the rows have no column {name!r}.")
    if not is_good(schema.field(name).type):
        raise InvalidOption(
            f"option `{option}`: column {name!r} must be {kind}, it is {schema.field(name).type}."
        )


def topic_schema(options: WriteOptions, topic: str) -> pa.Schema:
    return pool.client(pool.endpoint(options)).schemas(topic).current


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def check_fits(batch: pa.RecordBatch, options: WriteOptions, topic: str) -> None:
    from quiverlog.client.rows.convert import Converter

    stored = topic_schema(options, topic)
    # The producer's own conversion, of no rows: it raises SchemaMismatch.
    Converter(stored, topic).batches(batch)
    for column in stored:
        if not column.nullable and column.name not in batch.schema.names:
            raise SchemaMismatch(
                f"Column {column.name!r} of topic {topic!r} may not be null, and the rows have no "
                "such column.",
                topic=topic,
                column=column.name,
            )


def strip_routing(batch: pa.RecordBatch, route: Route) -> pa.RecordBatch:
    columns = route.topic_column, route.partition_column, route.ignored
    routing = [c for c in columns if c is not None]
    return batch.drop_columns(routing) if routing else batch


def split_by_route(
    batch: pa.RecordBatch, route: Route, route_to: Callable[[str], Route] | None = None
) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
    """Yield (topic, partition, rows), the rows of each partition in their order. None: the producer
    chooses a partition.

    `route_to`: the route of one topic's rows, where topics differ.
    """
    if batch.num_rows == 0:
        return
    for named, rows in _groups(batch, route.topic_column):
        if named is None and route.topic_column is not None:
            raise SchemaMismatch(f"a row has no topic: column {route.topic_column!r} is null.")
        topic = named or route.topic or ""
        own = route if route_to is None else route_to(topic)
        for partition, part in _groups(rows, own.partition_column):
            yield topic, partition, strip_routing(part, own)


def _groups(batch: pa.RecordBatch, column: str | None) -> Iterator[tuple[Any, pa.RecordBatch]]:
    if column is None:
        yield None, batch
        return
    values = batch.column(column)
    distinct = pc.unique(values)
    if len(distinct) == 1:
        yield distinct[0].as_py(), batch  # without a copy
        return
    for value in distinct:
        mask = pc.equal(values, value) if value.is_valid else pc.is_null(values)
        yield value.as_py(), batch.filter(mask)
