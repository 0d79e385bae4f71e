"""Batch in and out of Spark: write a DataFrame to a topic, read it back, and read only a part.

python examples/spark_batch.py 127.0.0.1:9292
"""

import sys

import pyarrow as pa
from pyspark.sql import SparkSession

import quiverlog


def main(bootstrap: str) -> None:
    """Write a thousand sensor readings and look at them."""
    schema = pa.schema(
        {"sensor": pa.int32(), "celsius": pa.float64(), "at": pa.timestamp("us", tz="UTC")}
    )
    with quiverlog.connect(bootstrap) as client:
        client.create_topic("readings", schema=schema, partitions=4, key=["sensor"])

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    readings = spark.range(1000).selectExpr(
        "cast(id % 5 as int) sensor", "20 + id % 7 celsius", "timestamp_seconds(id) at"
    )
    options = {"bootstrap.servers": bootstrap}
    readings.write.format("quiverlog").mode("append").options(**options).save("readings")

    back = spark.read.format("quiverlog").options(**options).load("readings")
    back.groupBy("sensor").avg("celsius").orderBy("sensor").show()

    # Two columns, with the place of each row in the log.
    part = (
        spark.read.format("quiverlog")
        .options(**options, subscribe="readings", columns="sensor,celsius", includeMetadata="true")
        .load()
    )
    part.printSchema()
    print(f"{part.count()} rows in {part.select('_partition').distinct().count()} partitions")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292")
