"""The schema of a read, and the checks of a query's schema before any task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quiverlog.errors import IncompatibleSchema, InvalidOption

from . import pool
from .options import ReadOptions, Use, parse_read_options
from .planning.log_view import LogView
from .schema import METADATA_NAMES, Normalizer, query_columns, spark_schema

__all__ = ["check_query_schema", "open_view", "read_schema"]


def open_view(options: ReadOptions) -> LogView:
    return LogView(pool.client(pool.endpoint(options)), options)


def read_schema(raw: Mapping[str, str]) -> Any:
    """Return the StructType of a read without a user's schema. Spark calls it once per `load()`."""
    options = parse_read_options(raw, Use.READ)
    view = open_view(options)
    view.refresh()
    # A restarted stream may lack partitions of `assign`: its topic was created again, which the
    # planner reports as data loss. New queries are refused for them when they start.
    view.require_topics()
    if not view.topics:
        raise InvalidOption(
            f"option `subscribePattern`: no topic matches {options.subscribe_pattern!r} yet; "
            "give the columns with `.schema(...)`, or create a topic first."
        )
    columns = query_columns(view.schemas(), options.columns, metadata=options.include_metadata)
    return spark_schema(columns)


def check_query_schema(view: LogView, normalizer: Normalizer) -> None:
    """Refuse a query's schema that the topics cannot fill.

    Raises:
        InvalidOption: a column that `columns` leaves out.
        IncompatibleSchema: a column that no topic has, or that cannot hold a topic's.
    """
    options = view.options
    if options.columns is not None:
        extra = [n for n in normalizer.columns if n not in options.columns]
        if extra:
            raise InvalidOption(
                f"option `columns` leaves out {extra[0]!r}, which the schema given has: "
                "set one of the two."
            )
    schemas = view.schemas()
    for name in normalizer.columns if schemas else ():
        if not any(name in schema.names for schema in schemas.values()):
            hint = " (set `includeMetadata` to true)" if name in METADATA_NAMES else ""
            raise IncompatibleSchema(
                f"the query's schema has a column {name!r}{hint}, which is in none of the topics "
                f"{', '.join(sorted(schemas))}."
            )
    for topic, schema in schemas.items():
        normalizer.check(topic, schema)
