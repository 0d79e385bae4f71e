"""Kill a Spark driver at random moments, and look whether a row is lost or there twice.

    python examples/spark_exactly_once.py 127.0.0.1:9292 5

Starts a query that copies a topic into another, kills it (SIGKILL, with its JVM and its workers)
in the midst of micro-batches, five times, starts it again, and compares the copy with its source.
Needs a running broker (`quiverlog broker`), Linux, and twenty seconds for each start of Spark.
"""

import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa

import quiverlog

ROWS = 40_000
ROWS_PER_BATCH = 2_000


def copy(bootstrap: str, source: str, sink: str, checkpoint: str) -> None:
    """The program that is killed."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("quiverlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
    )
    query = (
        rows.selectExpr("id", "id * id square", "rand() luck")  # other rows, when it is repeated
        .writeStream.format("quiverlog")
        .option("bootstrap.servers", bootstrap)
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def kill(driver: subprocess.Popen[bytes]) -> None:
    """SIGKILL for all processes of the driver's session: program, JVM, Python workers."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(status.read_text().rpartition(")")[2].split()[3])
            if session == driver.pid:
                os.kill(int(status.parent.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
    driver.wait()


def run_and_kill(words: list[str], checkpoint: Path, kills: int) -> int:
    """Run the query to its end. Returns how often it was killed."""
    killed = 0
    while True:
        command = [sys.executable, __file__, "copy", *words]
        driver = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            before = logged(checkpoint)
            while driver.poll() is None and (killed == kills or logged(checkpoint) == before):
                time.sleep(0.01)
            time.sleep(random.expovariate(2.0))
            if driver.poll() is not None:
                if driver.returncode:
                    sys.exit("the query failed")
                return killed
        finally:
            kill(driver)
        killed += 1
        print(f"killed; Spark has logged {logged(checkpoint)} micro-batches", flush=True)


def logged(checkpoint: Path) -> int:
    """Micro-batches that are done, in Spark's own log."""
    return len(list(checkpoint.glob("commits/[0-9]*")))


def main(bootstrap: str, kills: int) -> None:
    """Fill a topic, have it copied, compare."""
    name = uuid.uuid4().hex[:8]
    source, sink = f"source-{name}", f"sink-{name}"
    with quiverlog.connect(bootstrap) as client, tempfile.TemporaryDirectory() as directory:
        client.create_topic(source, schema=pa.schema({"id": pa.int64()}), partitions=2)
        columns = {"id": pa.int64(), "square": pa.int64(), "luck": pa.float64()}
        client.create_topic(sink, schema=pa.schema(columns), partitions=2)
        with client.producer(source) as producer:
            producer.send(pa.table({"id": list(range(ROWS))}))
        checkpoint = Path(directory) / "checkpoint"
        killed = run_and_kill([bootstrap, source, sink, str(checkpoint)], checkpoint, kills)

        found = collections.Counter(client.read(sink).to_arrow()["id"].to_pylist())
        twice = sum(count - 1 for count in found.values())
        lost = len(set(range(ROWS)) - set(found))
        print(f"killed {killed} times: {ROWS} rows, {lost} lost, {twice} there twice")
        for topic in (source, sink):
            client.delete_topic(topic)
    sys.exit(1 if lost or twice else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["copy"]:
        copy(*sys.argv[2:])
    else:
        main(
            sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292",
            int(sys.argv[2]) if len(sys.argv) > 2 else 5,
        )
