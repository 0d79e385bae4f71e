"""Where reads begin and end on a real Spark, as Spark's KafkaOffsetReaderSuite has it.

Each test names the one of Spark's own cases that it is about, and what that case cannot have.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ids, produce, read, read_stream
from tests.spark.queries import Collected, run_available
from tests.support.spark import run_once

pytestmark = pytest.mark.spark


def test_ranges_by_offset_and_by_time(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """As offsets and timestamps given for both ends there and in KafkaRelationSuite, and a
    timestamp that no row has.
    """
    name = topic(partitions=1)
    produce(client, name, 0, 10)
    first_batch = next(iter(client.consumer(name, start="earliest")))
    later_ms = first_batch.timestamp_us // 1000 + 1
    while int(datetime.datetime.now(datetime.UTC).timestamp() * 1000) <= later_ms:
        pass
    produce(client, name, 10, 10)
    assert ids(read(spark, broker, name, startingTimestamp=later_ms)) == list(range(10, 20))
    assert ids(read(spark, broker, name, endingTimestamp=later_ms)) == list(range(10))
    ranged = read(
        spark,
        broker,
        name,
        startingOffsets=f'{{"{name}":{{"0":5}}}}',
        endingOffsets=f'{{"{name}":{{"0":15}}}}',
    )
    assert ids(ranged) == list(range(5, 15))
    with pytest.raises(Exception, match="no row at or after that moment"):
        read(spark, broker, name, startingTimestamp=4_000_000_000_000).collect()
    with pytest.raises(Exception, match="ends at 20, so it has no offset 21"):
        read(spark, broker, name, startingOffsets=f'{{"{name}":{{"0":21}}}}').collect()


def test_starts_and_ends_by_topic_and_partition(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """As "SPARK-30656: getOffsetRangesFromUnresolvedOffsets - using specific offsets" there, with
    -2 and -1; one word for all partitions of a topic is ours.
    """
    one, two = topic("one"), topic("two")
    for name, first in ((one, 0), (two, 100)):
        produce(client, name, first, 10, 0)
        produce(client, name, first + 10, 10, 1)
    frame = read(
        spark,
        broker,
        f"{one},{two}",
        startingOffsets=f'{{"{one}":{{"0":4,"1":-2}},"{two}":"earliest"}}',
        endingOffsets=f'{{"{one}":{{"0":6,"1":-1}},"{two}":{{"0":1,"1":0}}}}',
    )
    assert ids(frame) == [4, 5, *range(10, 20), 100]
    with pytest.raises(Exception, match="above its end"):
        read(
            spark,
            broker,
            one,
            startingOffsets=f'{{"{one}":{{"0":6,"1":0}}}}',
            endingOffsets=f'{{"{one}":{{"0":4,"1":0}}}}',
        ).collect()


@pytest.mark.first
def test_a_stream_keeps_its_position_whatever_its_starting_options_are_later(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As "SPARK-26718 Rate limit set to Long.Max should not overflow integer during end offset
    calculation", and as starting options that count for a new query alone.
    """
    name = topic(partitions=1)
    produce(client, name, 0, 10)
    sink = Collected()
    start = f'{{"{name}":{{"0":3}}}}'
    stream = read_stream(spark, broker, name, startingOffsets=start, maxOffsetsPerTrigger=2**63 - 1)
    run_available(stream, sink, tmp_path)
    produce(client, name, 10, 5)
    run_available(read_stream(spark, broker, name, startingOffsets="latest"), sink, tmp_path)
    assert sink.ids == list(range(3, 15))


def test_a_stream_has_no_end(spark: Any, broker: Any, topic: Any) -> None:
    """As "bad source options" in KafkaMicroBatchSourceSuite: refused when the query starts."""
    stream = read_stream(spark, broker, topic(), endingOffsets="latest")
    with pytest.raises(Exception, match="`endingOffsets` applies to batch read"):
        run_once(stream)
