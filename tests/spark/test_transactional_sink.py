"""The sink's default, exactly once, on a real Spark: what is skipped, refused, fenced.

A driver that is killed is in test_exactly_once.py; here its checkpoint is set back.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog import exactly_once, pool
from pyspark_quiverlog.options import Use, parse_write_options
from quiverlog.errors import TransactionClosed
from tests.spark.conftest import produce, read_stream, stored_ids
from tests.support.spark import run_once

pytestmark = pytest.mark.spark
IDS = pa.schema([("id", pa.int64())])
LONG_S = 240
"""Of a query, on a machine with other work."""


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Leave the checkpoint as of a driver that died after the sink's commit, and before Spark's."""
    for path in (checkpoint / "commits").iterdir():
        if path.name.strip(".").split(".")[0] == str(batch):
            path.unlink()


def files(spark: Any, place: Path, ids: range) -> Any:
    """One file more; the stream takes one in each micro-batch."""
    place.mkdir(exist_ok=True)
    (place / f"{len([*place.iterdir()])}").write_text("".join(f"{n}\n" for n in ids))
    stream = spark.readStream.option("maxFilesPerTrigger", "1").text(str(place))
    return stream.selectExpr("cast(value as bigint) id")


def run_in_batches(stream: Any, write: Any, checkpoint: Path) -> Any:
    """Run a stream with `foreachBatch` to its end; returns the query."""
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(LONG_S)
    return query


def test_what_spark_repeats_is_skipped_though_its_rows_differ(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    options = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    options["checkpointLocation"] = str(tmp_path)
    stream = read_stream(spark, broker, source)
    produce(client, source, 0, 100)
    query = run_once(stream, fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(100))
    assert client.transactional_id(f"spark/{query.id}/{sink}").last_sequence == 0
    forget_commit(tmp_path, 0)
    run_once(stream.where("id < 50"), fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(100))

    saved = tmp_path / "saved"
    (tmp_path / "commits").rename(saved)
    shutil.copytree(saved, tmp_path / "commits")
    for first in (100, 110):
        produce(client, source, first, 10)
        run_once(stream, fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(120))
    # A checkpoint of before, put back: its next micro-batch is none of the last.
    for batch in ("1", "2"):
        for path in (tmp_path / "offsets").glob(f"*{batch}*"):
            path.unlink()
        forget_commit(tmp_path, int(batch))
    with pytest.raises(Exception, match="later micro-batches of this query"):
        run_once(stream, fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(120))


def test_a_query_that_was_at_least_once_goes_on_exactly_once(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """The first micro-batch may repeat what the run before had written; no later one does."""
    sink, checkpoint = topic(schema=IDS), tmp_path / "checkpoint"
    options: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    options |= {"checkpointLocation": str(checkpoint), "timeout": LONG_S}
    for first in (0, 10):
        stream = files(spark, tmp_path / "source", range(first, first + 10))
        run_once(stream, fmt="quiverlog", deliveryMode="at_least_once", **options)
    forget_commit(checkpoint, 1)
    repeated = sorted([*range(20), *range(10, 20)])
    for _ in range(2):
        run_once(stream, fmt="quiverlog", **options)
        assert stored_ids(client, sink) == repeated
        forget_commit(checkpoint, 1)
    stream = files(spark, tmp_path / "source", range(20, 30))
    run_once(stream, fmt="quiverlog", **options)
    assert stored_ids(client, sink) == [*repeated, *range(20, 30)]


def test_a_worker_that_staged_rows_of_a_failed_write_stages_those_of_the_next(
    broker: Any, client: Any, topic: Any
) -> None:
    """In foreachBatch, whose function may write again: the abort has ended the epoch."""
    sink = topic(schema=IDS)
    options = parse_write_options({"bootstrap.servers": broker.bootstrap}, Use.BATCH_WRITE)
    query = f"spark/{sink}"

    def stage(writer_id: uuid.UUID) -> Any:
        where = pool.endpoint(options)
        attempt = pool.stager(where, query, b"a run", writer_id).attempt(0)
        attempt.send(sink, pa.table([[1, 2]], schema=IDS))
        return attempt.finish()

    failed, other = uuid.uuid4(), uuid.uuid4()
    exactly_once.abort(options, [stage(failed), stage(failed)], "the write")
    with pytest.raises(TransactionClosed):
        client.commit_staged([stage(failed)])
    client.commit_staged([stage(other), stage(other)])
    assert stored_ids(client, sink) == [1, 1, 2, 2]


def test_a_write_in_foreach_batch_is_a_sink_of_the_query(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    source, one, two = topic(), topic("one"), topic("two")
    produce(client, source, 0, 10)
    stream = read_stream(spark, broker, source)
    ways: list[dict[str, str]] = [{"topic": one}, {"topic": two}, {"topic": two, "sinkId": "again"}]

    def write(frame: Any, _: int) -> None:
        # A DataFrame of the program's session has other tags.
        frames = [frame, spark.createDataFrame(frame.toPandas()), frame]
        frame.sparkSession.sparkContext.setJobGroup("mine", "")
        for rows, options in zip(frames, ways, strict=False):
            writer = rows.write.format("quiverlog").mode("append")
            writer.options(**{"bootstrap.servers": broker.bootstrap} | options).save()

    run_in_batches(stream, write, tmp_path)
    assert stored_ids(client, one) == list(range(10))
    assert stored_ids(client, two) == sorted([*range(10), *range(10)])
    forget_commit(tmp_path, 0)
    run_in_batches(stream, write, tmp_path)
    assert stored_ids(client, one) == list(range(10)), "skipped"
    assert stored_ids(client, two) == sorted([*range(10), *range(10)])

    produce(client, source, 10, 10)
    ways[1:] = [{"topic": one}]
    # Again where the micro-batch is repeated, by a run that finds it written.
    for _ in range(2):
        with pytest.raises(Exception, match=r"SEQUENCE_TAKEN|`sinkId` of its own"):
            run_in_batches(stream, write, tmp_path)
        assert stored_ids(client, one) == list(range(20)), "the first write stays"
    ways[1]["sinkId"] = "again"
    run_in_batches(stream, write, tmp_path)
    assert stored_ids(client, one) == sorted([*range(20), *range(10, 20)])


def test_an_earlier_run_is_fenced(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    query = (
        read_stream(spark, broker, source)
        .writeStream.format("quiverlog")
        .options(**{"bootstrap.servers": broker.bootstrap, "topic": sink})
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        produce(client, source, 0, 10)
        query.processAllAvailable()
        assert stored_ids(client, sink) == list(range(10))
        # The driver of another machine goes on with the checkpoint.
        client.stager(f"spark/{query.id}/{sink}", instance=b"next run").attempt(1).finish()
        produce(client, source, 10, 10)
        with pytest.raises(Exception, match="TRANSACTION_FENCED"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert stored_ids(client, sink) == list(range(10))


def test_a_batch_write_is_all_or_nothing(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    one, two = topic("one"), topic("two")
    rows = spark.range(0, 40, numPartitions=4).selectExpr(
        "id", f"if(id % 2 = 0, '{one}', '{two}') topic"
    )

    def write(frame: Any, **options: str) -> None:
        writer = frame.write.format("quiverlog").mode("append")
        writer.options(**{"bootstrap.servers": broker.bootstrap} | options).save()

    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(
            rows.selectExpr("id / if(id < 39, 1, id - 39) id", "topic").selectExpr(
                "cast(id as bigint) id", "topic"
            )
        )
    assert stored_ids(client, one) == stored_ids(client, two) == []
    write(rows)
    assert (stored_ids(client, one), stored_ids(client, two)) == (
        list(range(0, 40, 2)),
        list(range(1, 40, 2)),
    )

    job = {"txnAppId": "job-" + one, "topic": one}
    for _ in range(2):  # run again, it writes nothing
        write(spark.range(40, 42), txnVersion="3", **job)
    assert stored_ids(client, one)[20:] == [40, 41]
    write(spark.range(0), txnVersion="4", **job)
    with pytest.raises(Exception, match="higher `txnVersion`"):
        write(spark.range(42, 44), txnVersion="3", **job)
    assert stored_ids(client, one)[20:] == [40, 41]
