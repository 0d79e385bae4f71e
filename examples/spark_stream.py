"""A stream from topic to topic: totals per minute of the orders in `orders`, into `totals`.

    python examples/spark_stream.py 127.0.0.1:9292

Runs until everything that was there is processed. Run it again: it goes on where it stopped.
"""

import datetime
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

import quiverlog

ORDERS = pa.schema(
    {"id": pa.int64(), "amount": pa.decimal128(12, 2), "at": pa.timestamp("us", tz="UTC")}
)
TOTALS = pa.schema(
    {
        "minute": pa.timestamp("us", tz="UTC"),
        "orders": pa.int64(),
        "amount": pa.decimal128(22, 2),
    }
)


def main(bootstrap: str, checkpoint: str) -> None:
    """Feed an hour of orders, sum them up in Spark, read the totals with the Python client."""
    client = quiverlog.connect(bootstrap)
    client.create_topic("orders", schema=ORDERS, partitions=2)
    client.create_topic("totals", schema=TOTALS, partitions=1)
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    with client.producer("orders") as producer:
        for second in range(3600):
            at = noon + datetime.timedelta(seconds=second)
            producer.send({"id": second, "amount": second % 10, "at": at})

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    orders = (
        spark.readStream.format("quiverlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2000)
        .load()
    )
    totals = (
        orders.withWatermark("at", "1 minute")
        .groupBy(window("at", "1 minute"))
        .agg({"id": "count", "amount": "sum"})
        .selectExpr("window.start minute", "`count(id)` orders", "`sum(amount)` amount")
    )
    query = (
        totals.writeStream.format("quiverlog")
        .option("bootstrap.servers", bootstrap)
        .option("topic", "totals")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()

    batches = client.consumer("totals", start="earliest")
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in sorted(rows, key=lambda row: row["minute"])[:3]:
        print(f"{row['minute']:%H:%M}  {row['orders']:>3} orders  {row['amount']:>8}")
    print(f"{len(rows)} minutes, {sum(row['orders'] for row in rows)} orders")
    client.close()


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292",
        sys.argv[2] if len(sys.argv) > 2 else str(Path(tempfile.mkdtemp()) / "checkpoint"),
    )
