"""Spark and a broker that asks for logins: the driver's password stays in the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from tests.support.broker import BrokerProcess
from tests.support.secured import ROOT, secured_broker
from tests.support.spark import environment

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROOT_FOLDER = Path(__file__).resolve().parents[2]
PASSWORDS = {
    "password": "planted-literal-7f1",
    "passwordFile": "planted-file-7f1",
    "passwordEnv": "planted-environment-7f1",
}
SCHEMA = pa.schema([("id", pa.int64())])
JOB = """
import json, sys
from pyspark.sql import SparkSession
bootstrap, logs, checkpoints, local, logins = sys.argv[1:]
builder = SparkSession.builder.master("local[2]")
for key, value in {
    "spark.ui.enabled": "false", "spark.log.level": "WARN", "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": logs, "spark.local.dir": local, "spark.sql.shuffle.partitions": "1",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
import pyspark_quiverlog
pyspark_quiverlog.register(spark)
for number, login in enumerate(json.loads(logins)):
    options = {"bootstrap.servers": bootstrap, **login}
    frame = spark.read.format("quiverlog").options(**options).load("source")
    frame.explain(True)
    print("rows", frame.count())
    frame.write.format("quiverlog").options(**options).mode("append").save("batches")
    stream = (
        spark.readStream.format("quiverlog").options(**options, subscribe="source")
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
    )
    query = (
        stream.writeStream.format("quiverlog").options(**options, topic="streamed")
        .option("checkpointLocation", f"{checkpoints}/{number}").trigger(availableNow=True).start()
    )
    query.awaitTermination(120)
    print("ended", not query.isActive, query.exception())
    try:
        spark.read.format("quiverlog").options(**options, subscribe="none").load()
    except Exception as error:
        print("refused", error)
spark.stop()
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with secured_broker(tmp_path) as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(300)
def test_only_tokens_leave_the_driver(broker: BrokerProcess, tmp_path: Path) -> None:
    with quiverlog.connect(broker.bootstrap, security=ROOT) as client:
        for topic in ("source", "batches", "streamed"):
            client.create_topic(topic, SCHEMA)
        for name, password in PASSWORDS.items():
            client.create_user(name, password, is_admin=True)
        with client.producer("source") as producer:
            for number in range(100):
                producer.send({"id": number})
    file = tmp_path / "alice.password"
    file.write_text(PASSWORDS["passwordFile"])
    plain = tmp_path / "plain.toml"
    plain.write_text("tls = false\n")
    folders = [tmp_path / name for name in ("logs", "checkpoints", "local")]
    for folder in folders:
        folder.mkdir()
    values = {
        "password": PASSWORDS["password"],
        "passwordFile": str(file),
        "passwordEnv": "SPARK_LOGIN_TEST",
    }
    logins = [
        {"security.file": str(plain), "user": name, name: value} for name, value in values.items()
    ]
    done = subprocess.run(
        [
            *(sys.executable, "-c", JOB, broker.bootstrap, *map(str, folders)),
            json.dumps(logins),
        ],
        cwd=ROOT_FOLDER,
        env={**environment(), "SPARK_LOGIN_TEST": PASSWORDS["passwordEnv"]},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("rows 100") == len(logins)
    assert done.stdout.count("ended True None") == len(logins)
    assert done.stdout.count("refused") == len(logins)
    assert "option `password`" in done.stderr, "a warning"
    with quiverlog.connect(broker.bootstrap, security=ROOT) as client:
        wanted = sorted(list(range(100)) * len(logins))
        for topic in ("batches", "streamed"):
            assert sorted(client.read(topic).to_arrow().column("id").to_pylist()) == wanted
        tokens = {one.name: one.token_count for one in client.list_users()}
    assert all(tokens[name] for name in PASSWORDS), "tasks had tokens"
    # The event log, checkpoints, what tasks were sent, plans, errors, and the broker's log.
    texts = [done.stdout, done.stderr, broker.log_text]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any("local" in path.parts for path in found) or found
    for password in PASSWORDS.values():
        assert not any(password in text for text in texts)
        for path in found:
            assert password.encode() not in path.read_bytes(), path
    assert os.environ.get("SPARK_LOGIN_TEST") is None


def test_what_tasks_get_has_no_password(tmp_path: Path) -> None:
    import pickle

    from pyspark_quiverlog.options import Use, parse_read_options, parse_write_options
    from pyspark_quiverlog.reader import SplitReader

    raw = {
        "bootstrap.servers": "127.0.0.1:1", "user": "alice", "password": PASSWORDS["password"],
    }  # fmt: skip
    options = parse_read_options({**raw, "subscribe": "t"}, Use.BATCH_READ)
    for shown in (repr(options), repr(parse_write_options({**raw, "topic": "t"}, Use.BATCH_WRITE))):
        assert PASSWORDS["password"] not in shown
    from pyspark.sql.types import LongType, StructType

    data = pickle.dumps(SplitReader(options, StructType().add("id", LongType())))
    assert PASSWORDS["password"].encode() not in data
    left: Any = pickle.loads(data)
    assert (left.options.user, left.options.password, left.options.token) == (None, None, None)
