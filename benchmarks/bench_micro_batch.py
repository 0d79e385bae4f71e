"""The smallest micro-batch: one row per trigger, against the bare Python source and sink.

The topic holds its rows already and each trigger may take one, so no trigger waits for data. The
figure is the median time of a whole trigger. Source to `noop`, and source to sink; for information
source to `noop` with `driverReadRows` at its default, against 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import fill, running, temporary_topic
from benchmarks.rows import make_batch
from benchmarks.spark import run_stream, session, trigger_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 1_000
TRIGGERS = 40
WARMING_TRIGGERS = 10
ROUNDS_MAX = 3
# Of the bare trigger's time at most 0.80 and 0.65: the bare ones do without `worker_process`.
BUDGET = {"source to noop": 1 / 0.80, "source to sink": 1 / 0.65}


def run(settings: Settings) -> list[Comparison]:
    spark = session()
    triggers = WARMING_TRIGGERS + settings.scaled(TRIGGERS - WARMING_TRIGGERS)
    with (
        running() as (broker, client),
        temporary_topic(client, "single"),
        temporary_topic(client, "copied"),
    ):
        fill(client, "single", [make_batch(1)] * ROWS, 1)
        broker_options = {"bootstrap.servers": broker.bootstrap}
        at_least_once = broker_options | {"deliveryMode": "at_least_once"}

        def ours(driver_rows: int = 1_000) -> DataFrame:
            return (
                spark.readStream.format("quiverlog")
                .options(**broker_options, subscribe="single", startingOffsets="earliest")
                .options(maxOffsetsPerTrigger=1, driverReadRows=driver_rows)
                .load()
            )

        def bare() -> DataFrame:
            return (
                spark.readStream.format("bare_source")
                .options(rows=ROWS, rowsPerTrigger=1, partitions=1)
                .load()
            )

        def measure(frame: DataFrame, sink: str, **options: str) -> float:
            writer = frame.writeStream.format(sink).options(**options)
            return trigger_ms(run_stream(writer, triggers=triggers), skip=WARMING_TRIGGERS)

        rounds = min(settings.rounds, ROUNDS_MAX)
        noop = interleave(rounds, lambda: measure(ours(), "noop"), lambda: measure(bare(), "noop"))
        sink = interleave(
            rounds,
            lambda: measure(ours(), "quiverlog", topic="copied", **at_least_once),
            lambda: measure(bare(), "bare_sink"),
            warmups=0,  # the sources are warm by now, and the first triggers are left out anyway
        )
        reads = interleave(
            rounds,
            lambda: measure(ours(), "noop"),
            lambda: measure(ours(driver_rows=0), "noop"),
            warmups=0,
        )
    by_driver = Comparison(
        "smallest micro-batch, source to noop: read by the driver, against by a task",
        "ms",
        reads.ours,
        reads.baseline,
        budget=None,
        bigger_is_better=False,
    )
    return [by_driver] + [
        Comparison(
            f"smallest micro-batch, {path}",
            "ms",
            measured.ours,
            measured.baseline,
            budget=BUDGET[path],
            bigger_is_better=False,
        )
        for path, measured in (("source to noop", noop), ("source to sink", sink))
    ]
