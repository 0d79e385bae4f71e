"""In Spark, values that their type does not hold: stored ones are named, new ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.batch.codec import encode_batch
from tests.spark.conftest import read
from tests.support.spark import unique

pytestmark = [pytest.mark.spark, pytest.mark.process]

SCHEMA = pa.schema([("id", pa.int64()), ("d", pa.decimal128(4, 2))])


def decimals(*unscaled: int) -> pa.Array:
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in unscaled)
    return pa.Array.from_buffers(pa.decimal128(4, 2), len(unscaled), [None, pa.py_buffer(data)])


def test_a_stored_decimal_with_too_many_digits_is_named_or_stepped_over(
    spark: Any, broker: Any, client: Any
) -> None:
    name = unique("decimals")
    client.create_topic(name, SCHEMA)
    for first, value in ((0, 100), (1, 1234567), (2, 300)):
        rows = pa.record_batch([pa.array([first]), decimals(value)], schema=SCHEMA)
        client.raw_produce(name, {0: [encode_batch(rows, schema_id=1, timestamp_us=1)]})
    with pytest.raises(Exception, match=rf"{name}-0.*'d'.*offset 1.*12345\.67"):
        read(spark, broker, name).collect()
    kept = read(spark, broker, name, failOnCorruptData="false").collect()
    assert [(row["id"], str(row["d"])) for row in kept] == [(0, "1.00"), (2, "3.00")]
    assert sorted(row["id"] for row in read(spark, broker, name, columns="id").collect()) == [
        0, 1, 2,
    ]  # fmt: skip


def test_the_sink_refuses_text_that_is_no_utf8(spark: Any, broker: Any, client: Any) -> None:
    name = unique("latin1")
    client.create_topic(name, "id long, s string")

    def spoilt(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            latin = pa.array(["M\xfcller".encode("latin1")] * batch.num_rows)
            text = pa.Array.from_buffers(pa.string(), len(latin), latin.buffers())
            yield pa.record_batch([batch.column(0), text], names=["id", "s"])

    frame = spark.range(3).coalesce(1).mapInArrow(spoilt, "id long, s string")
    with pytest.raises(Exception, match=r"Column 's'.*row 0 holds.*xfcller"):
        frame.write.format("quiverlog").mode("append").option(
            "bootstrap.servers", broker.bootstrap
        ).save(name)
    assert client.list_offsets(name) == {0: 0}
