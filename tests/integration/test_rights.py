"""Rules on a running broker, as operators type them and clients meet them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog import Security
from quiverlog.errors import NotAuthorized, UnknownTopic, UnknownTopicId
from tests.support.broker import BrokerProcess
from tests.support.secured import ROOT, ROOT_PASSWORD, secured_broker
from tests.support.until import until

pytestmark = pytest.mark.process

ALICE = Security(tls=False, user="alice", password="alice's password")
SCHEMA = pa.schema([("n", pa.int64())])


class Cluster:
    """One broker with its administrator `root`, and alice, without any right."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self._folder = folder
        for name, security in (("root", ROOT), ("alice", ALICE)):
            password = ROOT_PASSWORD if name == "root" else "alice's password"
            (folder / f"{name}.password").write_text(f"{password}\n")
            (folder / f"{name}.password").chmod(0o600)
            lines = ("tls = false", f'user = "{name}"', f'password_file = "{name}.password"')
            (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")
            assert security.user == name
        with self.as_user(ROOT) as client:
            client.create_user("alice", "alice's password")

    def as_user(self, security: Security) -> Any:
        return quiverlog.connect(self.broker.bootstrap, security=security, request_timeout=20.0)

    def type(self, *words: str, who: str = "root", code: int = 0) -> str:
        command = [sys.executable, "-m", "quiverlog", *words, "-b", self.broker.bootstrap]
        security = ["--security-file", str(self._folder / f"{who}.toml"), "--timeout", "20"]
        run = subprocess.run([*command, *security], capture_output=True, text=True, timeout=60)
        assert run.returncode == code, run
        return run.stdout if code == 0 else run.stderr + run.stdout


def write(client: Any, topic: str, value: int) -> None:
    with client.producer(topic) as producer:
        producer.send({"n": value})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("rights")
    with secured_broker(folder) as broker:
        yield Cluster(broker, folder)


def test_a_rule_opens_a_topic_and_its_removal_hides_it_again(cluster: Cluster) -> None:
    with cluster.as_user(ROOT) as root, cluster.as_user(ALICE) as alice:
        root.create_topic("orders-eu", SCHEMA)
        with pytest.raises(UnknownTopic):
            alice.describe_topic("orders-eu")
        assert list(alice.list_topics()) == []
        added = cluster.type("acl", "add", "alice", "allow", "read,write", "--topic", "orders-*")
        assert "rule" in added
        write(alice, "orders-eu", 1)
        answer = cluster.type("acl", "check", "alice", "read", "--topic", "orders-eu")
        number = int(answer.split("by rule ")[1])
        assert alice.read("orders-eu").to_arrow().column("n").to_pylist() == [1]
        cluster.type("acl", "remove", str(number), str(number + 1))
        with pytest.raises((UnknownTopic, UnknownTopicId)):
            alice.describe_topic("orders-eu")


def test_a_parked_fetch_gets_no_row_once_the_rule_is_gone(cluster: Cluster) -> None:
    with cluster.as_user(ROOT) as root, cluster.as_user(ALICE) as alice:
        root.create_topic("watched", SCHEMA)
        added = json.loads(
            cluster.type(
                "acl", "add", "alice", "allow", "read", "--topic", "watched", "--format", "json"
            )
        )
        found: list[Any] = []
        ended = threading.Event()

        def consume() -> None:
            try:
                found.extend(alice.consumer("watched", follow=True))
            except quiverlog.QuiverlogError as error:
                found.append(error)
            ended.set()

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        write(root, "watched", 1)
        until(lambda: bool(found), "alice reads")
        cluster.type("acl", "remove", str(added[0]["number"]))
        removed_s = time.monotonic()
        write(root, "watched", 2)
        assert ended.wait(20.0)
        assert time.monotonic() - removed_s < 20.0
        assert isinstance(found[-1], NotAuthorized | UnknownTopic | UnknownTopicId), found
        assert len(found) == 2, "one batch, and the end"


def test_a_transaction_needs_its_id_and_each_topic(cluster: Cluster) -> None:
    with cluster.as_user(ROOT) as root, cluster.as_user(ALICE) as alice:
        for topic in ("tx-a", "tx-b"):
            root.create_topic(topic, SCHEMA)
        cluster.type("acl", "add", "alice", "allow", "write", "--topic", "tx-a")
        with pytest.raises(NotAuthorized, match="transactional-id 'mover'"):
            alice.transaction("mover")
        cluster.type("acl", "add", "alice", "allow", "write", "--transactional-id", "mover")
        with alice.transaction("mover") as tx:
            tx.send("tx-a", {"n": 1})
        assert root.read("tx-a").to_arrow().num_rows == 1
        with pytest.raises(UnknownTopic):
            alice.describe_topic("tx-b")
        cluster.type("acl", "add", "alice", "allow", "read", "--topic", "tx-b")
        tx = alice.transaction("mover")
        with pytest.raises(NotAuthorized, match="topic 'tx-b'"):
            tx.send("tx-b", {"n": 2}).result(20.0)
        with contextlib.suppress(quiverlog.QuiverlogError):
            tx.abort()
        assert root.read("tx-b").to_arrow().num_rows == 0


def test_a_check_names_what_would_lock_the_operator_out(cluster: Cluster) -> None:
    found = json.loads(cluster.type("security", "check", "--format", "json"))
    assert found["principal"] == "user:root"
    assert found["brokers"]["0"]["is_super_user"]
    assert "no rule allows it" in cluster.type("security", "check", "alice", code=1)
    cluster.type("acl", "add", "alice", "allow", "alter", "--cluster")
    assert "yes, by rule" in cluster.type("security", "check", "alice")
    assert "yes, by rule" in cluster.type("security", "check", who="alice")


def test_what_is_denied_and_changed_is_in_the_audit(cluster: Cluster) -> None:
    cluster.type("topic", "create", "secret", "--schema", "n: bigint")
    refused = cluster.type("topic", "delete", "secret", "--yes", who="alice", code=1)
    assert "secret" in refused
    lines = [json.loads(line) for line in cluster.broker.log_text.splitlines() if line[:1] == "{"]
    events = {(one["event"], one.get("resource", ""), one["result"]) for one in lines}
    assert ("change", "topic secret", "ok") in events
    assert ("denied", "topic secret", "denied") in events, "also where the answer hides it"
    assert any(one["event"] == "login" and one["principal"] == "user:alice" for one in lines)
    assert ROOT_PASSWORD not in cluster.broker.log_text


def test_reads_of_an_audited_topic_are_recorded_from_a_signal_on(cluster: Cluster) -> None:
    cluster.type("topic", "create", "audited", "--schema", "n: bigint")
    cluster.type("acl", "add", "alice", "allow", "read", "--topic", "audited")

    def found() -> set[tuple[str, str, str]]:
        lines = [json.loads(one) for one in cluster.broker.log_text.splitlines() if one[:1] == "{"]
        allowed = (one for one in lines if one["event"] == "allowed")
        return {(one["principal"], one["operation"], one["resource"]) for one in allowed}

    with cluster.as_user(ROOT) as root, cluster.as_user(ALICE) as alice:
        write(root, "audited", 1)
        assert not found(), "off by default"
        broker = cluster.broker
        broker.write_config({**broker.config, "audit.topics": "audited"})
        os.kill(broker.pid, signal.SIGHUP)

        def is_recorded() -> bool:
            assert alice.read("audited").to_arrow().num_rows
            return ("user:alice", "read", "topic audited") in found()

        until(is_recorded, "the file is read again")
        write(root, "audited", 2)
        until(lambda: ("user:root", "write", "topic audited") in found(), "administrators, too")
