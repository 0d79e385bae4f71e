"""A driver whose workers are elsewhere. Run by test_cluster.py as a program:

python -m tests.spark.cluster_driver MASTER BOOTSTRAP TOPIC SINK CHECKPOINT
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.support.spark import CONF


def main(master: str, bootstrap: str, topic: str, sink: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    import pyspark_quiverlog

    builder: Any = SparkSession.builder.master(master)
    settings = CONF | {"spark.executor.memory": "512m", "spark.cores.max": "2"}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    pyspark_quiverlog.register(spark)
    pyspark_quiverlog.register(spark)  # again: it sends once
    options = {"bootstrap.servers": bootstrap}
    frame = spark.read.format("quiverlog").options(**options).load(topic)
    result: dict[str, Any] = {"ids": sorted(row.id for row in frame.select("id").collect())}
    stream = spark.readStream.format("quiverlog").options(
        **options, subscribe=topic, startingOffsets="earliest", driverReadRows="0"
    )
    writer = stream.load().writeStream.format("quiverlog").options(**options, topic=sink)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(150)
    result["exception"] = str(query.status if query.isActive else query.exception() or "")
    print(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
