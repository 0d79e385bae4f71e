"""Where reads begin and end on a real Spark, as Spark's KafkaOffsetReaderSuite has it.

Each test says which of Spark's own cases it is about; what theirs cannot have is said too.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.spark.conftest import ids, produce, read

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
