"""Spark over TLS: driver and tasks each read the security file; nothing of it is in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import quiverlog.testing
from quiverlog.local.cluster import LocalCluster
from tests.support.spark import run_once, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 2_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(1, tls=True) as made:
        yield made


def test_rows_go_both_ways_in_batches_and_streams(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    source, sink = unique("tls-source"), unique("tls-sink")
    with cluster.client() as client:
        for topic in (source, sink):
            client.create_topic(topic, schema=pa.schema({"id": pa.int64()}), partitions=2)
    secured = {
        "bootstrap.servers": cluster.bootstrap,
        "security.file": str(cluster.tls.security_file),
    }
    rows = spark.range(ROWS)
    rows.write.format("quiverlog").options(**secured, topic=source).mode("append").save()
    read = spark.read.format("quiverlog").options(**secured, subscribe=source).load()
    assert read.count() == ROWS
    assert "client.toml" not in read._jdf.queryExecution().toString()
    stream = spark.readStream.format("quiverlog").options(
        **secured, subscribe=source, startingOffsets="earliest"
    )
    written = {**secured, "topic": sink, "checkpointLocation": str(tmp_path / "checkpoint")}
    run_once(stream.load(), fmt="quiverlog", **written)
    with cluster.client() as client:
        assert client.read(sink).to_arrow().num_rows == ROWS
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"client.toml" not in kept


def test_without_the_file_the_error_has_the_reason(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    reader = spark.read.format("quiverlog").option("bootstrap.servers", cluster.bootstrap)
    with pytest.raises(Exception, match="TLS_REQUIRED"):
        reader.option("subscribe", "t").load().count()
    with pytest.raises(Exception, match=r"absent\.toml cannot be read"):
        reader.option("security.file", "absent.toml").option("subscribe", "t").load().count()
