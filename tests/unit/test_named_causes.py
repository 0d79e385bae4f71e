"""Errors about data name the cause as the owner of the data sees it, and what to do."""

from __future__ import annotations

import math
import re
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import quiverlog
from pyspark_quiverlog.options import Use, parse_read_options, parse_write_options
from quiverlog.batch.schema_text import parse_schema
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.read_files import open_source
from quiverlog.client.rows.convert import Converter
from quiverlog.errors import InvalidOption, SchemaMismatch
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import ScriptedBroker

SCHEMA = parse_schema(
    "i long, small int, d decimal(6,2), at timestamp, local timestamp_ntz, s string, day date"
)
ZONED = datetime(2024, 1, 1, tzinfo=UTC)
NAIVE = ZONED.replace(tzinfo=None)

ROWS: list[tuple[str, Any, str]] = [
    ("at", NAIVE, "no time zone: write datetime"),
    ("local", ZONED, "has a time zone, and the column has none"),
    ("i", float("nan"), "pandas has for a missing value: give None"),
    ("s", float("nan"), "pandas has for a missing value: give None"),
    ("at", pd.NaT, "pandas has for a missing value: give None"),
    ("i", pd.NA, "pandas has for a missing value: give None"),
    ("i", 1.0, "a float is no whole number"),
    ("i", 2**63, "does not fit into 64 bits"),
    ("small", -(2**31) - 1, "does not fit into 32 bits"),
    ("d", 1.5, "a float is no exact decimal number: give a Decimal"),
    ("d", Decimal("12345.67"), "more than 6 digits"),
    ("d", Decimal("1.234"), "more than 2 of them behind the point"),
    ("d", 10**6, "more than 6 digits"),
    ("d", Decimal("NaN"), "no decimal column holds it: give None"),
    ("d", Decimal("-Infinity"), "no decimal column holds it: give None"),
    ("d", True, "a bool is no number: give 0 or 1"),
    ("i", True, "a bool is no number: give 0 or 1"),
    ("s", "a\ud800", "character 1 is half of a surrogate pair"),
    ("s", 1, "int is no text"),
    ("i", "1", "text is no number: parse it first"),
    ("day", "2024-01-01", "text is no date: parse it first"),
    ("at", "2024-01-01", "text is no datetime: parse it first"),
]

FRAMES: list[tuple[Any, str]] = [
    (pd.DataFrame({"at": pd.to_datetime(["2024-01-01"])}), r"no time zone.*tz_localize"),
    (pl.DataFrame({"at": [NAIVE]}), r"no time zone.*replace_time_zone"),
    (pa.table({"at": [NAIVE]}), r"no time zone.*assume_timezone"),
    (pa.table({"local": pa.array([ZONED])}), r"have a time zone, and the column has none"),
    (pd.DataFrame({"i": [1, None]}), r"pandas makes floats of whole numbers.*Int64"),
    (pd.DataFrame({"d": [1.5]}), r"a float is no exact decimal number: round it to 2 digits"),
    (pa.table({"i": ["1"]}), r"it is text: parse it first"),
    (pa.table({"s": [b"1"]}), r"bytes are no text until they are decoded"),
    (pd.DataFrame({"s": ["a", 1]}), r"column s .*Expected bytes, got a 'int'"),
]


@pytest.mark.parametrize(("column", "value", "message"), ROWS, ids=repr)
def test_a_value_of_a_dict(column: str, value: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=re.escape(message)) as caught:
        Converter(SCHEMA, "t").batches([{column: None}, {column: value}])
    assert caught.value.details == {"topic": "t", "column": column, "row": 1}
    assert "topic describe" not in str(caught.value)


@pytest.mark.parametrize(("data", "message"), FRAMES, ids=[message for _, message in FRAMES])
def test_a_column_of_a_frame(data: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message) as caught:
        Converter(SCHEMA, "t").batches(data)
    assert "topic describe" not in str(caught.value)


def test_rows_that_are_no_dicts() -> None:
    for row in ((1, 2), "ab", date(2024, 1, 1)):
        with pytest.raises(SchemaMismatch, match=f"Item 1 of the list is a {type(row).__name__}"):
            Converter(SCHEMA, "t").batches([{"i": 1}, row])


FLOATS = "f double, fs array<double>"
"""In a schema of its own: beside a decimal, numbers of JSON are read in another way."""


@pytest.mark.parametrize("number", ["1e309", "-1e400"])
@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ("", "line 2 is no JSON: Number out of range"),
        (", d decimal(6,2)", r"line 2, column '{}'.*{} is too large for a double"),
    ],
    ids=["alone", "beside a decimal"],
)
def test_a_number_of_json_that_is_too_large_is_no_infinity(
    tmp_path: Path, number: str, beside: str, why: str
) -> None:
    path = tmp_path / "rows.json"
    schema = parse_schema(FLOATS + beside)
    rows = ['{"f": "-Infinity", "fs": [1.7976931348623157e308, "Infinity"]}']
    path.write_text("\n".join(rows))
    with open_source(str(path), schema=schema) as source:
        taken = next(iter(source.batches)).to_pylist()[0]
    assert (taken["f"], taken["fs"]) == (-math.inf, [sys.float_info.max, math.inf])
    for column, cell in (("f", number), ("fs", f"[1, {number}]")):
        path.write_text("\n".join([*rows, f'{{"{column}": {cell}}}']))
        message = why.format(column, re.escape(number.upper().replace("E", "E+")))
        with (
            pytest.raises(CommandFailed, match=message),
            open_source(str(path), schema=schema) as source,
        ):
            list(source.batches)


# --- files ----------------------------------------------------------------------------------------
FILES: list[tuple[str, str, str]] = [
    ("json", '{"i": 9223372036854775808}', r"line 1, column 'i'.*does not fit into 64 bits"),
    ("json", '{"i": -9223372036854775809}', r"line 1, column 'i'.*does not fit into 64 bits"),
    ("json", '{"small": 2147483648}', r"does not fit into 32 bits \(a wider column"),
    ("json", '{"d": 12345.67}', r"has more than 6 digits"),
    ("json", '{"s": "a\\ud800b"}', r"line 1: \\ud800 is half of a surrogate pair"),
    ("json", '{"s": "a\\udc00b"}', r"line 1: \\udc00 is half of a surrogate pair"),
    ("csv", "at\n2024-01-01 00:00:00\n", r"'at'.*has no time zone.*timestamp_ntz"),
    ("csv", "i\n1.0\n", r"pandas writes whole numbers so where some are missing"),
    ("csv", "d\n1.234\n", r"more digits behind the point"),
]


@pytest.mark.parametrize(("suffix", "text", "message"), FILES, ids=[f[1] for f in FILES])
def test_a_file(tmp_path: Path, suffix: str, text: str, message: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    path.write_text(text)
    with (
        pytest.raises(CommandFailed, match=message),
        open_source(str(path), schema=SCHEMA) as source,
    ):
        list(source.batches)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"i": 9223372036854775807}', 2**63 - 1),
        ('{"s": "\\ud83d\\ude00"}', "😀"),
        ('{"d": 9999.99}', Decimal("9999.99")),
    ],
)
def test_what_just_fits_is_taken(tmp_path: Path, text: str, value: Any) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with open_source(str(path), schema=SCHEMA) as source:
        (batch,) = source.batches
    assert value in batch.to_pylist()[0].values()


# --- arguments and options ------------------------------------------------------------------------
@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest) -> Any:
    with ScriptedBroker() as broker, connect(request.param, broker.bootstrap) as client:
        client.create_topic("one", "i long")
        client.create_topic("four", "i long", partitions=4)
        yield client


@pytest.mark.parametrize("partition", [2147483647, -1, 4])
def test_a_partition_that_is_not_there(client: Any, partition: int) -> None:
    for topic, has in (("four", "4 partitions, 0 to 3"), ("one", "1 partition, 0")):
        message = re.escape(f"Topic '{topic}' has {has}; {partition} is not one of them")
        with pytest.raises(quiverlog.UnknownPartition, match=message):
            client.producer(topic, partition=partition)
        with (
            pytest.raises(quiverlog.UnknownPartition, match=message),
            client.producer(topic) as producer,
        ):
            producer.send([{"i": 1}], partition=partition)
        with pytest.raises(quiverlog.UnknownPartition, match=message):
            list(client.consumer(topic, partitions=[partition]))
        with pytest.raises(quiverlog.UnknownPartition, match=message):
            list(client.consumer(topic, start={partition: 0}))


def test_the_error_of_a_closed_producer_does_not_ask_for_a_client(client: Any) -> None:
    producer = client.producer("one")
    producer.close()
    with pytest.raises(quiverlog.ClientClosed) as caught:
        producer.send([{"i": 1}])
    assert "producer of 'one' is closed" in str(caught.value)
    assert "client" not in str(caught.value).lower().replace("client_closed", "")


def test_settings_of_topics_and_of_brokers_are_distinguished(client: Any) -> None:
    with pytest.raises(quiverlog.UnknownConfig, match=r"topic\.defaults\.retention\.ms"):
        client.alter_configs({"retention.ms": "5"})
    with pytest.raises(quiverlog.InvalidConfig, match="is a setting of brokers, not of topics"):
        client.create_topic("t", "i long", config={"log.level": "info"})
    with pytest.raises(quiverlog.InvalidConfig, match="is a setting of brokers, not of topics"):
        client.alter_topic("one", reset_config=["log.level"])


def test_a_schema_hint_is_for_types_alone(client: Any) -> None:
    for schema, key in (("i long", ["x"]), (pa.schema([("", pa.int64())]), None)):
        with pytest.raises(quiverlog.InvalidSchema) as caught:
            client.create_topic("t", schema, key=key)
        assert "lists the types" not in str(caught.value)
    with pytest.raises(quiverlog.InvalidSchema, match="lists the types"):
        client.create_topic("t", pa.schema([("a", pa.uint8())]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxRowsPerTrigger": "x"}, "`maxRowsPerTrigger`"),
        ({"MaxOffsetsPerTrigger": "x"}, "`MaxOffsetsPerTrigger`"),
        ({"startingOffset": "x"}, "`startingOffset` is unknown: did you mean `startingOffsets`"),
        ({"Kafka.Bootstrap.Servers": "x"}, "`Kafka.Bootstrap.Servers`"),
        ({"Topic": "x"}, "`Topic` applies to"),
    ],
)
def test_options_of_spark_keep_their_spelling(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(message)):
        parse_read_options({"bootstrap.servers": "a:1", "subscribe": "t"} | given, Use.STREAM_READ)


def test_a_path_beside_an_option_in_any_spelling() -> None:
    raw = {"bootstrap.servers": "a:1", "Path": "t"}
    assert parse_write_options(raw, Use.BATCH_WRITE).topic == "t"
    with pytest.raises(InvalidOption, match=r"given twice; leave `TOPIC` out"):
        parse_write_options(raw | {"TOPIC": "u"}, Use.BATCH_WRITE)
