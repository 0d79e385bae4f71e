"""The Spark part of `quiverlog demo`, a program of its own: delays per carrier and day.

    python -m quiverlog_demo.query --bootstrap HOST:PORT --work-dir DIR --rows N

Reads the topic `flights` as a stream, joins the topics `weather` and `airlines`, sums up in windows
of a day and writes to the topic `delays`. Reports progress to the parent process, one JSON object
per line on stdout. After `caught_up` it waits for a line on stdin: by then the parent has appended
a row far in the future to `flights`, which closes the last window.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["delays_per_day", "main", "session"]

WATERMARK = "14 days"
"""In event time. A micro-batch takes from each partition in proportion to its backlog, and carriers
do not fly evenly through the year: rows of different partitions come days apart. Spark drops later
rows; the query reports their number."""

DAY_BEGINS = "5 hours"
"""New York's standard time is UTC-5, and no flight is to leave between midnight and 01:00 local
time: windows that begin at 05:00 UTC are calendar days, in summer too."""

LATE_MIN = 15
CHECKPOINT = "checkpoint"
POLL_S = 0.1


def session(work_dir: Path, *, cores: int) -> SparkSession:
    """Return a local Spark that uses only loopback and `work_dir`."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(work_dir / "spark"),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # One task per core; Spark's default of 200 is for a cluster.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.stateStore.maintenanceInterval": "10min",
    }
    builder = SparkSession.builder.appName("quiverlog demo").master(f"local[{cores}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def delays_per_day(flights: DataFrame, weather: DataFrame, airlines: DataFrame) -> DataFrame:
    """Return rows with the columns and types of the topic `delays`."""
    from pyspark.sql import functions as F

    reports = weather.select(
        "origin", "time_hour", "precip", "wind_speed", F.lit(True).alias("reported")
    )
    names = airlines.select("carrier", F.col("name").alias("airline"))
    rows = (
        flights.withWatermark("time_hour", WATERMARK)
        .join(F.broadcast(reports), ["origin", "time_hour"], "left")
        .join(F.broadcast(names), "carrier")
    )
    window = F.window("time_hour", "1 day", startTime=DAY_BEGINS).alias("window")
    groups = rows.groupBy(window, "carrier", "airline").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        F.count("dep_delay").alias("departed"),
        F.count_if(F.col("dep_delay") >= LATE_MIN).alias("departed_late"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay_total_min"),
        F.avg("dep_delay").alias("departure_delay_mean_min"),
        F.count("arr_delay").alias("arrived"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay_total_min"),
        F.count_if(F.col("precip") > 0).alias("in_rain"),
        F.count_if(F.col("reported").isNull()).alias("weather_unknown"),
        F.max("wind_speed").alias("wind_max_mph"),
    )
    day = (F.col("window.start") - F.expr("INTERVAL 5 HOURS")).cast("date").alias("day")
    return groups.select("carrier", "airline", day, *groups.columns[3:])


def report_event(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def start_query(
    spark: SparkSession, bootstrap: str, work_dir: Path, rows_max: int, fetch_from: str
) -> Any:
    def topic(name: str) -> DataFrame:
        reader = spark.read.format("quiverlog").option("bootstrap.servers", bootstrap)
        return reader.option("subscribe", name).option("fetchFrom", fetch_from).load()

    flights = (
        spark.readStream.format("quiverlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("groupId", "delays")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_max)
        .option("fetchFrom", fetch_from)
        .load()
    )
    return (
        delays_per_day(flights, topic("weather"), topic("airlines"))
        .writeStream.format("quiverlog")
        .option("bootstrap.servers", bootstrap)
        .option("topic", "delays")
        .option("checkpointLocation", str(work_dir / CHECKPOINT))
        .outputMode("append")
        .queryName("delays")
        .start()
    )


def rows_read(offsets: str) -> int:
    """Return the rows of `flights` before these offsets, which Spark keeps as JSON."""
    partitions = json.loads(offsets)["topics"]["flights"]["partitions"]
    return sum(position[0] for position in partitions.values())


def rows_committed(checkpoint: Path) -> int:
    """Return the rows of all micro-batches that runs before this one have committed."""
    committed = [int(path.name) for path in checkpoint.glob("commits/[0-9]*")]
    if not committed:
        return 0
    lines = (checkpoint / "offsets" / str(max(committed))).read_text().splitlines()
    return rows_read(next(line for line in lines if '"topics"' in line))


class Progress:
    """Reports each micro-batch once; sums up rows and times of this run.

    `rows_in`: of all runs.
    """

    def __init__(self, query: StreamingQuery, rows_before: int) -> None:
        self._query = query
        self._reported = -1
        self.rows_in = rows_before
        self.rows_late = 0
        self.batches = 0
        self.busy_s = 0.0
        self.first_s = 0.0
        self._warm_rows = 0
        self._warm_s = 0.0

    @property
    def warm_rows_per_s(self) -> float:
        """Return the rate of the micro-batches with rows, except the first, in which Spark warms
        up."""
        return self._warm_rows / self._warm_s if self._warm_s else 0.0

    def poll(self) -> None:
        """Report the micro-batches that ended since the last call; raise if the query failed."""
        error = self._query.exception()
        if error is not None:
            raise error
        for progress in self._query.recentProgress:
            if (
                progress.batchId > self._reported
                and progress.durationMs.get("addBatch") is not None
            ):
                self._reported = progress.batchId
                self._add(progress)

    def _add(self, progress: Any) -> None:
        self.batches += 1
        self.rows_in = rows_read(progress.sources[0].endOffset)
        self.rows_late += sum(s.numRowsDroppedByWatermark for s in progress.stateOperators)
        seconds = progress.durationMs["triggerExecution"] / 1000
        self.busy_s += seconds
        if self.batches == 1:
            self.first_s = seconds
        elif progress.numInputRows > 1:  # The closing row comes alone.
            self._warm_rows += progress.numInputRows
            self._warm_s += seconds
        report_event(
            "batch",
            batch=progress.batchId,
            rows=progress.numInputRows,
            watermark=progress.eventTime.get("watermark"),
            **self.sums(),
        )

    def sums(self) -> dict[str, Any]:
        """Return what events report of the run so far."""
        return {
            "busy_seconds": self.busy_s,
            "batches": self.batches,
            "rows_in": self.rows_in,
            "rows_late": self.rows_late,
        }

    def wait_for_rows(self, rows: int) -> None:
        """Return when at least `rows` rows were read."""
        while self.rows_in < rows:
            time.sleep(POLL_S)
            self.poll()


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    work_dir = Path(options.work_dir)
    began_s = time.monotonic()
    spark = session(work_dir, cores=options.cores)
    try:
        report_event("spark", version=spark.version, seconds=time.monotonic() - began_s)
        rows_before = rows_committed(work_dir / CHECKPOINT)
        query = start_query(
            spark, options.bootstrap, work_dir, options.rows_per_batch, options.fetch_from
        )
        progress = Progress(query, rows_before)
        started_s = time.monotonic()
        progress.wait_for_rows(options.rows)
        report_event("caught_up", seconds=time.monotonic() - started_s)
        sys.stdin.readline()
        progress.wait_for_rows(options.rows + 1)
        query.processAllAvailable()
        progress.poll()
        report_event(
            "done",
            seconds=time.monotonic() - started_s,
            first_seconds=progress.first_s,
            warm_rows_per_s=progress.warm_rows_per_s,
            **progress.sums(),
        )
        query.stop()
    finally:
        spark.stop()
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m quiverlog_demo.query")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--work-dir", required=True)
    parser.add_argument(
        "--rows", type=int, required=True, help="rows in flights, the closing one not counted"
    )
    parser.add_argument("--rows-per-batch", type=int, default=100_000)
    parser.add_argument("--fetch-from", choices=["leader", "follower"], default="leader")
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
