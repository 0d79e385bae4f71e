"""A driver that may be killed at any point. Run as a program:

python -m tests.spark.sink_driver PLAN

PLAN: a `Plan` as JSON. It ends with the micro-batches of what was there at its start, or never.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.spark import new_session

__all__ = ["Plan", "start", "write_batch"]


@dataclass
class Plan:
    """What is written from where.

    `kind`: "copy" copies `source` to `sink`; "two" writes the copy to `more[0]`, too; "batch" is no
    stream; "state" sums `source` up into `sink`, and joins it with `more[0]` into `more[1]`.
    """

    bootstrap: str
    source: str
    sink: str
    checkpoint: str
    kind: str = "copy"
    more: list[str] = field(default_factory=list)
    is_endless: bool = False
    master: str = "local[2,2]"
    rows_per_batch: int = 200
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def client_id(self) -> str:
        """As the chaos proxy names the connecting side."""
        return f"client-{self.sink}"


def start(spark: Any, plan: Plan) -> list[Any]:
    """The queries of a plan, started."""
    if plan.kind == "two":
        return [_start_two(spark, plan)]
    if plan.kind == "state":
        return _start_stateful(spark, plan)
    return [_start(plan, _stream(spark, plan, plan.source), plan.sink, "")]


def write_batch(spark: Any, plan: Plan) -> None:
    frame = spark.read.format("quiverlog").options(**_options(plan)).load(plan.source)
    _batch_writer(plan, frame, plan.sink)


def _options(plan: Plan) -> dict[str, str]:
    return {"bootstrap.servers": plan.bootstrap, "client.id": plan.client_id}


def _stream(spark: Any, plan: Plan, topic: str) -> Any:
    """One task for each partition, with several Arrow batches."""
    reader = spark.readStream.format("quiverlog").options(
        **_options(plan),
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(plan.rows_per_batch),
        driverReadRows="0",
        minRecordsPerPartition="0",
    )
    return reader.load()


def _start(plan: Plan, frame: Any, topic: str, name: str) -> Any:
    writer = frame.writeStream.format("quiverlog").options(**_options(plan), **plan.options)
    return _started(plan, writer.options(**{"topic": topic, "batch.rows": "20"}), name)


def _started(plan: Plan, writer: Any, name: str) -> Any:
    writer = writer.option("checkpointLocation", plan.checkpoint + name)
    return writer.start() if plan.is_endless else writer.trigger(availableNow=True).start()


def _batch_writer(plan: Plan, frame: Any, topic: str) -> None:
    writer = frame.write.format("quiverlog").mode("append").options(**_options(plan))
    writer.options(**{"topic": topic, "batch.rows": "20"} | plan.options).save()


def _start_two(spark: Any, plan: Plan) -> Any:
    def write(frame: Any, _: int) -> None:
        for topic in (plan.sink, plan.more[0]):
            _batch_writer(plan, frame, topic)

    return _started(plan, _stream(spark, plan, plan.source).writeStream.foreachBatch(write), "")


def _start_stateful(spark: Any, plan: Plan) -> list[Any]:
    """No row is late: what comes out does not depend on micro-batches.

    Sums come out during the run: each row moves the time by a second.
    """
    from pyspark.sql import functions as F

    payments, pairs = plan.more
    orders = _stream(spark, plan, plan.source).withWatermark("at", "10 minutes")
    paid = _stream(spark, plan, payments).withWatermark("paid_at", "10 minutes")
    sums = orders.groupBy(F.window("at", "1 minute"), "k").agg(
        F.count(F.lit(1)).alias("orders"), F.sum("id").alias("total")
    )
    joined = orders.join(
        paid, F.expr("id = order_id and paid_at >= at and paid_at <= at + interval 1 hour")
    )
    summed = sums.selectExpr("window.start at", "k", "orders", "total")
    first = _start(plan, summed, plan.sink, "-sums")
    # Spark gives a source ten seconds to begin: little for three at a time on a busy machine.
    while first.isActive and first.lastProgress is None:
        time.sleep(0.05)
    return [first, _start(plan, joined.select("id", "k", "paid_at"), pairs, "-pairs")]


def main(text: str) -> None:
    plan = Plan(**json.loads(text))
    spark = new_session(
        **{
            "spark.master": plan.master,
            "spark.executor.memory": "512m",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        }
        | plan.conf
    )
    if plan.kind == "batch":
        write_batch(spark, plan)
    else:
        for query in start(spark, plan):
            query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
