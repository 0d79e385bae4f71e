"""What a user may set to make small micro-batches faster, and what each setting brings.

`python -m benchmarks.spark_settings`: one row after the other from topic through Spark to topic, as
in `through_spark`, with Spark as it comes and with one setting at a time, in turns within one run;
and a small aggregation with many shuffle partitions and with few. Not part of `make bench`: it
promises nothing. docs/spark.md has the figures and what each setting gives up.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.quiver import fill, running, temporary_topic
from benchmarks.rows import make_batch
from benchmarks.spark import run_stream, session, stop_session, trigger_ms
from benchmarks.through_spark import WARMING_ROWS, Side, quiverlog_side, turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY = Path("/dev/shm")
STREAMING = "spark.sql.streaming."
PLAIN_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
TRIGGERS = 5


@dataclass(frozen=True)
class Variant:
    """Spark as it comes but for this."""

    name: str
    conf: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None


CHECKSUMS = {STREAMING + "checkpoint.fileChecksum.enabled": "false"}
MANAGER = {STREAMING + "checkpointFileManagerClass": PLAIN_FILES}
VARIANTS = (
    Variant("as Spark comes"),
    Variant("checkpoint in memory (tmpfs)", folder=MEMORY),
    Variant("no checksum files", CHECKSUMS),
    Variant("FileSystemBasedCheckpointFileManager", MANAGER),
    Variant("these three", CHECKSUMS | MANAGER, folder=MEMORY),
    Variant("pollingDelay 1 ms", {STREAMING + "pollingDelay": "1ms"}),
)


@contextmanager
def as_set(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """The session's settings, for one turn."""
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in conf:
            spark.conf.unset(key)


def one_row(spark: SparkSession, rounds: int, rows: int, rate: float) -> list[Side]:
    """A side for each variant, in their order."""
    with quiverlog_side(spark) as ours:
        sides = [Side(v.name, ours.send, ours.poll, ours.start) for v in VARIANTS]
        first = turn(ours, WARMING_ROWS + 20, rate, 0)
        for number in range(rounds):
            order = list(range(len(VARIANTS)))
            for index in order[number:] + order[:number]:
                variant = VARIANTS[index]
                side = sides[index]
                with as_set(spark, variant.conf):
                    first = turn(side, rows, rate, first, variant.folder)
                print(f"{side.name}: p50 {side.at(50)[-1]:.0f} ms", flush=True)
    return sides


def aggregation(spark: SparkSession, partitions: int) -> float:
    """Median trigger of a count by key, one row per trigger, in milliseconds."""
    with running() as (broker, client), temporary_topic(client, "counted"):
        fill(client, "counted", [make_batch(1)] * (TRIGGERS + 4), 1)
        frame = (
            spark.readStream.format("quiverlog")
            .options(**{"bootstrap.servers": broker.bootstrap, "subscribe": "counted"})
            .options(startingOffsets="earliest", maxOffsetsPerTrigger=1)
            .load()
        )
        with as_set(spark, {"spark.sql.shuffle.partitions": str(partitions)}):
            writer = frame.groupBy("k").count().writeStream.outputMode("update").format("noop")
            return trigger_ms(run_stream(writer, triggers=TRIGGERS), skip=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_settings")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 11), metavar="1..10")
    parser.add_argument("--seconds", type=int, default=6, choices=range(3, 61), metavar="3..60")
    parser.add_argument("--domain-sockets", action="store_true", help="for all Python workers")
    options = parser.parse_args(argv)
    sockets = str(options.domain_sockets).lower()
    spark = session(spark__python__unix__domain__socket__enabled=sockets)
    rate = 20.0
    rows = WARMING_ROWS + int(options.seconds * rate)
    sides = one_row(spark, options.rounds, rows, rate)
    table = Table(title=f"one row, topic to Spark to topic; Unix domain sockets: {sockets}")
    for title in ("", "p50 ms", "p99 ms", "trigger ms", "of as it comes"):
        table.add_column(title, justify="left" if not title else "right")
    plain = statistics.median(sides[0].triggers)
    for side in sides:
        trigger = statistics.median(side.triggers)
        figures = [statistics.median(side.at(50)), statistics.median(side.at(99)), trigger]
        table.add_row(side.name, *(f"{f:.0f}" for f in figures), f"{trigger / plain:.2f}")
    console = Console(width=120)
    console.print(table)
    for partitions in (200, 2):
        found = aggregation(spark, partitions)
        console.print(f"count by key, {partitions} shuffle partitions: trigger {found:.0f} ms")
    stop_session()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
