"""`createTopic`: a write creates a missing topic with the DataFrame's columns.

An existing topic is never changed.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from quiverlog.errors import InvalidOption, InvalidSchema

from . import pool
from .options import WriteOptions

__all__ = ["create_missing"]


def create_missing(
    options: WriteOptions, topic: str, schema: pa.Schema, routing: Collection[str | None]
) -> None:
    """Create the topic if there is none, without the `routing` columns.

    Raises:
        InvalidOption: the key has a column that is not among those to store.
        InvalidSchema: there is no column to store, or one has a type that no topic can have.
    """
    client = pool.client(pool.endpoint(options))
    if topic in client.metadata([topic]).topics:
        return
    # As in Spark's own tables: that this write has no nulls is no reason to refuse those of others.
    columns = [field.with_nullable(True) for field in schema if field.name not in routing]
    names = [field.name for field in columns]
    for name in options.create_key or ():
        if name not in names:
            raise InvalidOption(
                f"option `createTopic.key`: the rows have no column {name!r} to store."
            )
    if not columns:
        raise InvalidSchema(
            f"topic {topic!r} would have no columns: the rows have only routing columns."
        )
    client.create_topic(
        topic,
        schema=pa.schema(columns),
        partitions=options.create_partitions,
        replication_factor=options.create_replication,
        key=options.create_key,
        if_not_exists=True,  # tasks and drivers may race: one creates it, all go on
    )
