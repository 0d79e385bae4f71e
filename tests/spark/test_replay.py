"""Past micro-batches of real queries, read again from their checkpoints without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quiverlog.errors import OffsetOutOfRange
from tests.spark.conftest import TRADES, produce, read_stream
from tests.spark.queries import Collected, run_available, run_cli

pytestmark = pytest.mark.spark


class FailsAt(Collected):
    """As a job with a row that it cannot take."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def __call__(self, frame: Any, batch_id: int) -> None:
        super().__call__(frame, batch_id)
        if batch_id == self._batch:
            raise ValueError("a row that the job cannot take")


def test_each_micro_batch_is_read_again(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """The rows that the sink got, the one that failed last, an error that names rows that went."""
    name = topic()
    for partition in (0, 1):
        produce(client, name, 100 * partition, 20, partition)
    sink = FailsAt(2)
    with pytest.raises(Exception, match="cannot take"):
        run_available(read_stream(spark, broker, name, maxRowsPerTrigger=14), sink, tmp_path)
    assert sorted(sink.batches) == [0, 1, 2]
    for batch, rows in sink.batches.items():
        found = client.replay(tmp_path, batch=batch)
        assert sorted(found.to_arrow()["id"].to_pylist()) == sorted(rows)
        assert (found.is_committed, found.gone, found.topics) == (batch < 2, [], [name])
    failed = client.replay(str(tmp_path), columns=["id", "_partition", "_offset"])
    assert (failed.batch, failed.rows_total) == (2, len(sink.batches[2]))
    assert sorted(failed.to_pandas()["id"]) == sorted(sink.batches[2])
    assert failed.to_polars().columns == ["id", "_partition", "_offset"]

    listed = run_cli("replay", str(tmp_path), "--list", "--format", "json")
    shown = json.loads(listed)
    assert [(one["batch"], one["rows"], one["done"]) for one in shown] == [
        (batch, len(sink.batches[batch]), batch < 2) for batch in range(3)
    ]
    file = tmp_path / "failed.parquet"
    run_cli("replay", str(tmp_path), "-o", str(file), "-b", broker.bootstrap)
    assert sorted(pq.read_table(file)["id"].to_pylist()) == sorted(sink.batches[2])

    client.delete_records(name, {0: 3})
    with pytest.raises(OffsetOutOfRange, match=rf"{name}-0: rows \[0, 3\) are no longer kept"):
        client.replay(tmp_path, batch=0)
    left = client.replay(tmp_path, batch=0, allow_gone=True)
    assert sorted(left.to_arrow()["id"].to_pylist()) == sorted(set(sink.batches[0]) - {0, 1, 2})
    client.delete_topic(name)
    client.create_topic(name, schema=TRADES, partitions=2)
    with pytest.raises(OffsetOutOfRange, match="went with their topic"):
        client.replay(tmp_path, batch=1)
