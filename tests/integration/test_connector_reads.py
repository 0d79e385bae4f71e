"""What a read makes of a log that changes: batches handed to Spark stay what they are, and a query
that starts again after its topic was made anew still gets its columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from pyspark_quiverlog import DefaultSource
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import LogSplit, SplitReader
from pyspark_quiverlog.schema import METADATA_FIELDS
from quiverlog.errors import InvalidOption, UnknownTopic
from tests.support.broker import BrokerProcess
from tests.support.connector import connections

pytestmark = pytest.mark.process
__all__ = ["connections"]

ROWS = 70_000
"""Above the bound for gathering: such a batch reaches Spark without a copy."""
BATCHES = 4
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def split_reader(bootstrap: str, schema: pa.Schema) -> SplitReader:
    raw = {
        "bootstrap.servers": bootstrap,
        "subscribe": "held",
        "includeMetadata": "true",
        "fetch.max.bytes": "1m",
        "failOnDataLoss": "false",
    }
    reader = SplitReader.__new__(SplitReader)  # without Spark's own type of a schema
    reader.options = parse_read_options(raw, Use.BATCH_READ)
    reader.schema = schema
    return reader


def trim(client: Any) -> None:
    client.delete_records("held", {0: "latest"})


def delete(client: Any) -> None:
    client.delete_topic("held")


def recreate(client: Any) -> None:
    client.delete_topic("held")
    client.create_topic("held", schema=SCHEMA)
    with client.producer("held") as producer:
        producer.send([{"id": -1, "text": "other"}] * 1000)


@pytest.mark.parametrize(
    ("happens", "compression"),
    [
        (trim, "none"),
        (delete, "lz4"),
        (recreate, "none"),
        pytest.param(trim, "lz4", marks=pytest.mark.long),
        pytest.param(delete, "none", marks=pytest.mark.long),
        pytest.param(recreate, "lz4", marks=pytest.mark.long),
    ],
)
def test_what_a_slow_reader_holds_does_not_change(
    happens: Callable[[Any], None], compression: str
) -> None:
    with BrokerProcess() as broker, quiverlog.connect(broker.bootstrap) as client:
        info = client.create_topic("held", schema=SCHEMA)
        assert info is not None
        with client.producer("held", batch_rows=ROWS, compression=compression) as producer:
            for first in range(0, ROWS * BATCHES, ROWS):
                ids = pa.array(range(first, first + ROWS), pa.int64())
                rows = [ids, ids.cast(pa.string())]
                producer.send(pa.RecordBatch.from_arrays(rows, schema=SCHEMA))
                producer.flush()
        target = pa.schema([*SCHEMA, *METADATA_FIELDS])
        reader = split_reader(broker.bootstrap, target)
        piece = Range("held", info.topic_id.hex(), 0, 0, ROWS * BATCHES, -1)
        held = []
        for number, batch in enumerate(reader.read(LogSplit([piece]))):
            held.append(batch)
            if number == 0:
                happens(client)
        # Other fetches of this process must not be given the memory of what is held.
        other = split_reader(broker.bootstrap, target)
        for _ in range(3):
            for batch in other.read(LogSplit([piece])):
                assert batch.num_rows
        assert held
        for batch in held:
            batch.validate(full=True)
            offsets = batch.column("_offset").to_pylist()
            assert batch.column("id").to_pylist() == offsets
            assert batch.column("text").to_pylist() == [str(offset) for offset in offsets]
            assert set(batch.column("_topic").to_pylist()) == {"held"}


def test_a_topic_made_anew_with_fewer_partitions_than_assign_names_still_has_columns() -> None:
    """`load()` cannot see whether a query starts again; then this is data loss and may be
    passed over. A batch, which has no checkpoint, is refused when it is planned.
    """
    with BrokerProcess() as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("anew", schema=SCHEMA, partitions=1)

        def source(topic: str) -> DefaultSource:
            assign = f'{{"{topic}":[0,2]}}'
            return DefaultSource({"bootstrap.servers": broker.bootstrap, "assign": assign})

        assert source("anew").schema().names == SCHEMA.names
        with pytest.raises(InvalidOption, match="has 1 partition, 0; 2 is not one of them"):
            source("anew").reader(source("anew").schema()).partitions()
        with pytest.raises(UnknownTopic, match="'never'"):
            source("never").schema()
