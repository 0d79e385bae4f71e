"""Spark streaming read, against an in-process Python source that yields the same batches.

4 typed columns in 4 partitions, stored as batches of 65,536 rows; each trigger takes 20 batches
of every partition. To `noop`, and through `groupBy` (sum and count). Before the clock starts, the
rows read through Spark are summed and compared with pyarrow's sum of what was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import fill, running, temporary_topic
from benchmarks.rows import make_batch
from benchmarks.spark import batch_rates, run_stream, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
BATCH_ROWS = 65_536
BATCHES_PER_TRIGGER = 20
TRIGGERS = 5
ROUNDS_MAX = 3


def run(settings: Settings) -> list[Comparison]:
    spark = session()
    per_trigger = settings.scaled(BATCHES_PER_TRIGGER) * BATCH_ROWS * PARTITIONS
    batches = [make_batch(BATCH_ROWS)] * (settings.scaled(BATCHES_PER_TRIGGER) * TRIGGERS)
    rows = per_trigger * TRIGGERS
    with running() as (broker, client), temporary_topic(client, "read", partitions=4):
        fill(client, "read", batches, PARTITIONS)

        def ours() -> DataFrame:
            return (
                spark.readStream.format("quiverlog")
                .options(**_source(broker.bootstrap))
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", per_trigger)
                .load()
            )

        def bare() -> DataFrame:
            return (
                spark.readStream.format("bare_source")
                .options(rows=rows, rowsPerTrigger=per_trigger, partitions=PARTITIONS)
                .load()
            )

        _check_sums(spark, broker.bootstrap, batches)
        rounds = min(settings.rounds, ROUNDS_MAX)
        plain = interleave(
            rounds, lambda: _to_noop(ours(), rows), lambda: _to_noop(bare(), rows), warmups=1
        )
        grouped = interleave(
            rounds, lambda: _grouped(ours(), rows), lambda: _grouped(bare(), rows), warmups=1
        )
    return [
        Comparison(
            "Spark streaming read to noop",
            "rows/s",
            plain.ours,
            plain.baseline,
            budget=0.85,
            goal=0.95,
        ),
        Comparison(
            "Spark streaming read through groupBy",
            "rows/s",
            grouped.ours,
            grouped.baseline,
            budget=0.9,
            goal=0.97,
        ),
    ]


def _source(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "subscribe": "read"}


def _to_noop(frame: DataFrame, rows: int) -> float:
    progress = run_stream(frame.writeStream.format("noop"), triggers=TRIGGERS, rows=rows)
    return batch_rates(progress, skip=1)


def _grouped(frame: DataFrame, rows: int) -> float:
    from pyspark.sql import functions as F

    grouped = frame.groupBy("k").agg(F.sum("price"), F.count("*"))
    writer = grouped.writeStream.outputMode("complete").format("noop")
    return batch_rates(run_stream(writer, triggers=TRIGGERS, rows=rows), skip=1)


def _check_sums(spark: Any, bootstrap: str, batches: list[Any]) -> None:
    """What Spark reads is what was sent."""
    frame = spark.read.format("quiverlog").options(**_source(bootstrap)).load()
    found = frame.selectExpr("count(*)", "sum(id)", "sum(k)", "min(ts)", "max(ts)").first()
    times = PARTITIONS * len(batches)
    one = batches[0]
    expected = (
        times * one.num_rows,
        times * pc.sum(one["id"]).as_py(),
        times * pc.sum(one["k"]).as_py(),
    )
    if tuple(found)[:3] != expected:
        raise AssertionError(f"Spark read {tuple(found)[:3]}, {expected} were sent")
