"""Rows that are gone, on a real Spark, as in Spark's KafkaDontFailOnDataLossSuite.

Each test names the one of Spark's own cases that it is about, and what that case cannot have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import TRADES, produce, read_stream
from tests.spark.queries import Collected, run_available
from tests.support.spark import unique

pytestmark = pytest.mark.spark


def trim(client: Any, name: str) -> None:
    client.delete_records(name, {0: 30})


def recreate(client: Any, name: str) -> None:
    client.delete_topic(name)
    client.create_topic(name, schema=TRADES, partitions=1)
    produce(client, name, 1000, 5)


@pytest.mark.parametrize(
    ("lose", "message", "left"),
    [
        (trim, r"-0: rows \[10, 30\) are no longer kept", [*range(10), *range(30, 40)]),
        (
            recreate,
            r"was created anew: partition 0 from offset 10",
            [*range(10), *range(1000, 1005)],
        ),
    ],
)
def test_lost_rows_fail_the_query_or_are_passed_over(
    spark: Any,
    broker: Any,
    client: Any,
    topic: Any,
    tmp_path: Path,
    lose: Any,
    message: str,
    left: list[int],
) -> None:
    """As "failOnDataLoss=false should not return duplicated records", and "subscribe topic by
    pattern with topic recreation between batches".
    """
    name = topic(partitions=1)
    produce(client, name, 0, 10)
    sink = Collected()
    run_available(read_stream(spark, broker, name), sink, tmp_path)
    produce(client, name, 10, 30)
    lose(client, name)
    with pytest.raises(Exception, match=message):
        run_available(read_stream(spark, broker, name), Collected(), tmp_path)
    run_available(read_stream(spark, broker, name, failOnDataLoss="false"), sink, tmp_path)
    assert sink.ids == left


def test_a_deleted_topic_fails_the_query_or_is_left_out(
    spark: Any, broker: Any, client: Any, tmp_path: Path
) -> None:
    """As "subscribing topic by pattern with topic deletions" in KafkaMicroBatchSourceSuite."""
    prefix = unique("gone")
    for first, suffix in ((0, "-a"), (100, "-b")):
        client.create_topic(prefix + suffix, schema=TRADES, partitions=1)
        produce(client, prefix + suffix, first, 10)

    def stream(fail: str) -> Any:
        options = {"subscribe": None, "subscribePattern": prefix + ".*", "failOnDataLoss": fail}
        return read_stream(spark, broker, "", **options)

    sink = Collected()
    run_available(stream("true"), sink, tmp_path)
    client.delete_topic(prefix + "-b")
    produce(client, prefix + "-a", 10, 5)
    with pytest.raises(Exception, match=r"-b' .* was deleted: partition 0 from offset 10 on"):
        run_available(stream("true"), Collected(), tmp_path)
    run_available(stream("false"), sink, tmp_path)
    assert sink.ids == [*range(15), *range(100, 110)]


def test_rows_that_go_while_the_query_runs(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As "failOnDataLoss=false should not return duplicated records": trimmed between two batches.

    The next one's planning notices, and names the whole range.
    """
    name = topic(partitions=1)
    for first in range(0, 40, 10):
        produce(client, name, first, 10)

    class Trimming(Collected):
        def __call__(self, frame: Any, batch_id: int) -> None:
            super().__call__(frame, batch_id)
            if batch_id == 0:
                client.delete_records(name, {0: 35})

    def stream(fail: str) -> Any:
        return read_stream(spark, broker, name, maxOffsetsPerTrigger=10, failOnDataLoss=fail)

    with pytest.raises(Exception, match=r"-0: rows \[10, 35\) are no longer kept"):
        run_available(stream("true"), Trimming(), tmp_path)
    sink = Collected()
    run_available(stream("false"), sink, tmp_path)
    assert sink.ids == [*range(35, 40)]
