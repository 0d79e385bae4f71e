"""Spark and brokers that ask for logins: no secret of a login is where Spark shows or keeps
things, and tasks get a token at most."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
import quiverlog.testing
from quiverlog.local import authority
from quiverlog.local.cluster import LocalCluster
from tests.spark.login_driver import FOLDERS, Plan, copy, plans_of
from tests.support.broker import BrokerProcess
from tests.support.secured import ROOT, secured_broker
from tests.support.spark import environment

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROOT_FOLDER = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("id", pa.int64())])
TOPICS = ("source", "batches", "streamed")
ROWS = 100
VARIABLE = "SPARK_LOGIN_TEST"
TOKEN = re.compile(rb"qlt1\.[0-9a-f]{8,}\.[A-Za-z0-9_-]{8,}")


def planted(kind: str) -> str:
    return f"planted-{kind}-7f1c"


def fill(client: Any, users: tuple[str, ...]) -> None:
    """Topics with rows, and users each with the password `planted`."""
    for topic in TOPICS:
        client.create_topic(topic, SCHEMA)
    for user in users:
        client.create_user(user, planted(user), is_admin=True)
    with client.producer("source") as producer:
        producer.send([{"id": number} for number in range(ROWS)])


def stored(client: Any, topic: str) -> list[int]:
    return sorted(client.read(topic).to_arrow().column("id").to_pylist())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- a short run ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        with quiverlog.connect(made.bootstrap, security=ROOT) as client:
            fill(client, ("literal",))
        yield made


@pytest.fixture
def login(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Options with a password, which Spark has then."""
    plain = tmp_path / "plain.toml"
    plain.write_text("tls = false\n")
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.file": str(plain),
        "user": "literal",
        "password": planted("literal"),
    }


def test_spark_shows_no_password_and_sends_none(
    spark: Any, broker: BrokerProcess, login: dict[str, str], tmp_path: Path
) -> None:
    frame = spark.read.format("quiverlog").options(**login).load("source")
    texts = [plans_of(frame)]
    assert frame.count() == ROWS
    with pytest.raises(Exception, match="absent") as refused:
        spark.read.format("quiverlog").options(**login).load("absent")
    texts.append(str(refused.value))
    failed = copy(spark, login, tmp_path / "checkpoint", topic="absent")
    texts.append(str(failed.exception()))
    assert "absent" in texts[-1], "with its logical plan"
    with quiverlog.connect(broker.bootstrap, security=ROOT) as client:
        (user,) = client.list_users("literal")
    assert user.token_count, "tasks had tokens"
    kept = contents(tmp_path) | contents(Path(spark.conf.get("spark.local.dir")))
    assert any(b"source" in data for data in kept.values()), "the checkpoint"
    for text in (*(one.encode() for one in (*texts, broker.log_text)), *kept.values()):
        assert planted("literal").encode() not in text
        assert not TOKEN.search(text)


def test_what_tasks_get_has_a_token_and_no_password(login: dict[str, str]) -> None:
    from pyspark.sql.types import LongType, StructType

    from pyspark_quiverlog.batch_reader import LogBatchReader
    from pyspark_quiverlog.stream_reader import LogStreamReader
    from pyspark_quiverlog.writer import LogBatchWriter, LogStreamWriter

    schema = StructType().add("id", LongType())
    read, write = {**login, "subscribe": "source"}, {**login, "topic": "batches"}
    batch, stream = LogBatchReader(read, schema), LogStreamReader(read, schema)
    begin, end = {**stream.initialOffset()}, stream.latestOffset()
    sent: list[tuple[Any, bool]] = [
        (batch, False),
        (stream, False),
        *((split, True) for split in batch.partitions()),
        (LogBatchWriter(write, schema, overwrite=False), True),
        (LogStreamWriter(write, schema, overwrite=False), True),
        (begin, False),
        (end, False),
    ]
    for one, has_token in sent:
        data = pickle.dumps(one)
        assert planted("literal").encode() not in data, one
        assert bool(TOKEN.search(data)) is has_token, one
        assert planted("literal") not in f"{one!r} {vars(one) if hasattr(one, '__dict__') else ''}"


# --- all that Spark keeps -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A broker with TLS."""
    with quiverlog.testing.cluster(1, tls=True, users=True) as made:
        with made.client() as client:
            fill(client, ("security.file", "passwordFile", "passwordEnv", "password", "tokenFile"))
        yield made


def logins_of(cluster: LocalCluster, folder: Path) -> tuple[dict[str, dict[str, str]], list[bytes]]:
    """The options of each way to log in, and what must be nowhere besides passwords."""
    ca = authority.Authority.load(*(p.read_bytes() for p in _pair(cluster, "brokers-ca")))
    issued = ca.issue("security.file", serves=False, days=1)
    for name, data in (("client.pem", issued.certificate), ("client.key", issued.key)):
        (folder / name).write_bytes(data)
    (folder / "user.password").write_text(planted("passwordFile"))
    reaches = f'ca_file = "{cluster.tls.brokers_ca}"\n'
    (folder / "tls.toml").write_text(reaches)
    (folder / "login.toml").write_text(
        f'{reaches}cert_file = "client.pem"\nkey_file = "client.key"\n'
        f'user = "security.file"\npassword = "{planted("security.file")}"\n'
    )
    with cluster.client() as client:
        token = client.create_token(3_600, owner="tokenFile").text
    (folder / "user.token").write_text(token)
    values = {
        "passwordFile": str(folder / "user.password"),
        "passwordEnv": VARIABLE,
        "password": planted("password"),
    }
    tls = {"security.file": str(folder / "tls.toml")}
    logins = {name: {**tls, "user": name, name: value} for name, value in values.items()}
    logins["tokenFile"] = {**tls, "tokenFile": str(folder / "user.token")}
    logins["security.file"] = {"security.file": str(folder / "login.toml")}
    lines = issued.key.splitlines()
    return logins, [lines[len(lines) // 2], token.rpartition(".")[2].encode()]


def _pair(cluster: LocalCluster, name: str) -> tuple[Path, Path]:
    return cluster.tls.certificate(name), cluster.tls.key(name)


def drive(plan: Plan) -> subprocess.CompletedProcess[str]:
    Path(plan.folder).mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.login_driver", json.dumps(asdict(plan))],
        cwd=ROOT_FOLDER,
        env={**environment(), VARIABLE: planted("passwordEnv")},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count(f"rows {ROWS}") == len(plan.logins)
    assert done.stdout.count("ended True None") == len(plan.logins)
    return done


def check_nothing_secret(
    folder: Path, done: subprocess.CompletedProcess[str], secrets: list[bytes]
) -> None:
    texts = {"output": done.stdout.encode(), "errors": done.stderr.encode()}
    kept = {name: contents(folder / name) for name in FOLDERS}
    for name, files in kept.items():
        assert files or name == "local", name
        texts |= files
    # That this would be found at all.
    assert any(b"SparkListenerSQLExecutionStart" in data for data in kept["events"].values())
    assert any(b"BatchScan" in data for path, data in kept["shown"].items() if "page-SQL" in path)
    for where, text in texts.items():
        for secret in secrets:
            assert secret not in text, where
        if "/local/" not in where:
            assert not TOKEN.search(text), where


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_secret_is_in_what_spark_keeps(cluster: LocalCluster, tmp_path: Path) -> None:
    """Plans, event log, UI, checkpoints, errors, local files: with each way to log in."""
    logins, secrets = logins_of(cluster, tmp_path)
    plan = Plan(cluster.bootstrap, str(tmp_path / "run"), list(logins.values()))
    done = drive(plan)
    assert "option `password`" in done.stderr, "a warning"
    with cluster.client() as client:
        for topic in ("batches", "streamed"):
            assert stored(client, topic) == sorted(list(range(ROWS)) * len(logins))
        tokens = {one.name: one.token_count for one in client.list_users()}
    for name in ("password", "passwordFile", "passwordEnv"):
        assert tokens[name], "tasks had tokens"
    secrets += [planted(name).encode() for name in logins]
    check_nothing_secret(tmp_path / "run", done, secrets)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_connect_logs_in_by_a_file(cluster: LocalCluster, tmp_path: Path) -> None:
    """The server, and its tasks, read the file; the plan that a client sends has its path."""
    logins, secrets = logins_of(cluster, tmp_path)
    with cluster.client() as client:
        before = len(stored(client, "streamed"))
    ways = [logins["security.file"], logins["passwordFile"]]
    plan = Plan(cluster.bootstrap, str(tmp_path / "run"), ways, is_connect=True)
    done = drive(plan)
    with cluster.client() as client:
        assert len(stored(client, "streamed")) == before + ROWS * len(ways)
    secrets += [planted("security.file").encode(), planted("passwordFile").encode()]
    check_nothing_secret(tmp_path / "run", done, secrets)


# --- weeks ----------------------------------------------------------------------------------------
OUTLIVED_S = 75.0
"""Tokens of 60 s, which are renewed after 30."""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_stream_outlives_its_tokens(
    spark: Any, broker: BrokerProcess, login: dict[str, str], tmp_path: Path
) -> None:
    options = {**login, "tokenLifetime": "1m"}
    with quiverlog.connect(broker.bootstrap, security=ROOT) as client:
        for topic in ("endless", "copied"):
            client.create_topic(topic, SCHEMA)
        client.end_tokens(owner="literal")
        stream = spark.readStream.format("quiverlog").options(**options, subscribe="endless")
        writer = stream.option("startingOffsets", "earliest").load().writeStream
        writer = writer.format("quiverlog").options(**options, topic="copied")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        begin_s, sent = time.monotonic(), 0
        with client.producer("endless") as producer:
            while time.monotonic() - begin_s < OUTLIVED_S:
                producer.send({"id": sent})
                producer.flush()
                sent += 1
                query.processAllAvailable()
        query.stop()
        assert query.exception() is None
        assert stored(client, "copied") == list(range(sent))
        (user,) = client.list_users("literal", with_tokens=True)
    last_s = max(one.expires.timestamp() for one in user.tokens)
    first_s = min(one.created.timestamp() for one in user.tokens)
    assert last_s - first_s > OUTLIVED_S, "the first ones have ended while it ran"
    # Of the process that reads, and of the one that plans writes: each renews its own.
    assert 4 <= user.token_count <= 8, user.tokens
