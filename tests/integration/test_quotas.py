"""Quotas on a running broker: rates that hold, for clients that wait and for clients that do not,
and other clients beside them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog import Security
from quiverlog.client.admin.rules import AccessRule
from quiverlog.client.producer.sender import Sender
from quiverlog.errors import QuotaExceeded
from quiverlog.limits import MIB
from tests.support.broker import BrokerProcess
from tests.support.metrics import metrics
from tests.support.secured import ROOT, ROOT_PASSWORD, secured_broker
from tests.support.until import slack, until

pytestmark = pytest.mark.process

SCHEMA = pa.schema([("payload", pa.binary())])
RATE = 10 * MIB
BATCH_BYTES = 256 * 1024
PIECES = [{"payload": os.urandom(BATCH_BYTES)}]
NAMES = ("alice", "bob")


def security(name: str) -> Security:
    return ROOT if name == "root" else Security(tls=False, user=name, password=f"{name}'s password")


def connect(broker: BrokerProcess, name: str, **options: Any) -> Any:
    options = {"request_timeout": 20.0, **options}
    return quiverlog.connect(broker.bootstrap, security=security(name), **options)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("quotas")
    with secured_broker(folder, local_reads="true") as broker:
        with connect(broker, "root") as root:
            for name in NAMES:
                root.create_user(name, f"{name}'s password")
            for topic in ("obedient", "deaf", "small", "read"):
                root.create_topic(topic, SCHEMA)
            rules = [AccessRule("user:*", True, "all", "topic", is_prefix=True)]
            root.add_rules(rules)
        yield broker


class Waits:
    """The `throttle_ms` that producers get; those of the topic `deaf` do not wait."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.by_topic_s: dict[str, float] = {}
        self._until_us: dict[int, int] = {}
        listen = Sender.throttle

        def throttle(sender: Sender, leader: int, throttle_ms: int, now: Any) -> None:
            until_us = now.mono_us + throttle_ms * 1_000
            # As one wait, where answers overlap.
            more_us = until_us - max(now.mono_us, self._until_us.get(id(sender), 0))
            self._until_us[id(sender)] = max(until_us, self._until_us.get(id(sender), 0))
            topic = sender.topic.name
            self.by_topic_s[topic] = self.by_topic_s.get(topic, 0.0) + max(0, more_us) / 1e6
            if topic != "deaf":
                listen(sender, leader, throttle_ms, now)

        patch.setattr(Sender, "throttle", throttle)


@contextlib.contextmanager
def in_threads(*work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these until the block ends. Raises the first failure."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(one: Callable[[threading.Event], None]) -> None:
        try:
            one(stop)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def flood(broker: BrokerProcess, name: str, topic: str) -> Callable[[threading.Event], None]:
    def work(stop: threading.Event) -> None:
        options = {"batch_rows": 1, "compression": "none"}
        with connect(broker, name) as client, client.producer(topic, **options) as producer:
            while not stop.is_set():
                for _ in range(4):
                    producer.send(PIECES)
                producer.flush()

    return work


def stored(broker: BrokerProcess) -> tuple[float, float]:
    """(when, bytes that the broker has taken for the two topics)."""
    found = metrics(broker)
    sizes = (
        found.get(f'topic_bytes_in_total{{topic="{name}"}}', 0) for name in ("obedient", "deaf")
    )
    return time.monotonic(), sum(sizes)


@pytest.fixture
def limited(broker: BrokerProcess) -> Iterator[Callable[..., None]]:
    """Sets a quota; all end with the test."""
    with connect(broker, "root") as root:

        def limit(kind: str, name: str = "", **limits: int) -> None:
            root.set_quota(kind, name, **limits)

        yield limit
        for one in root.list_quotas():
            root.set_quota(one.kind, one.name, bytes_in=0, bytes_out=0, connections=0)
        # Those that are muted are looked at within a second.
        until(lambda: metrics(broker)["quota_connections_muted"] == 0, "all are read from again")


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_four_connections_of_a_user_get_its_rate_together(
    broker: BrokerProcess,
    limited: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
) -> None:
    waits = Waits(monkeypatch)
    limited("user", "alice", bytes_in=RATE)
    muted = 'quota_muted_seconds_total{direction="in"}'
    before = metrics(broker)[muted]
    topics = ("obedient", "deaf") * 2
    with in_threads(*(flood(broker, "alice", topic) for topic in topics)):
        start_s, start = stored(broker)
        until(lambda: stored(broker)[1] - start > 1.5 * RATE, "the first second's worth is used")
        began_s, began = stored(broker)
        more = seconds * RATE
        until(lambda: stored(broker)[1] - began > more, "as much has passed", timeout_s=9 * seconds)
        ended_s, ended = stored(broker)
        waited_s = dict(waits.by_topic_s)
    # A machine with other work may send less, and wait less.
    assert 9 * MIB / slack() <= (ended - began) / (ended_s - began_s) <= 11 * MIB
    # Two connections of each, and nearly all of their time.
    for topic in ("obedient", "deaf"):
        part = waited_s[topic] / 2 / (ended_s - start_s)
        assert 0.5 / slack() < part < 1.3, (topic, part)
    assert metrics(broker)[muted] - before > 0.5 * seconds / slack()
    assert metrics(broker)['quota_beyond_bytes_total{direction="in"}'] > 0


def test_rows_that_are_read_from_files_count(
    broker: BrokerProcess, limited: Callable[..., None]
) -> None:
    options = {"batch_rows": 1, "compression": "none"}
    with connect(broker, "root") as root, root.producer("read", **options) as producer:
        producer.send(PIECES * 12)
    limited("user", "bob", bytes_out=MIB)
    before = metrics(broker)
    with connect(broker, "bob") as bob:
        assert bob.read("read").to_arrow().num_rows == 12
        started_s = time.monotonic()
        # Beyond a second's worth, of 3 MiB.
        assert bob.read("read").to_arrow().num_rows == 12
        assert time.monotonic() - started_s > 1.5
    after = metrics(broker)
    assert after["local_read_bytes_total"] - before["local_read_bytes_total"] > 6 * MIB
    beyond = 'quota_beyond_bytes_total{direction="out"}'
    assert 4 * MIB < after[beyond] - before[beyond] < 6 * MIB
    assert after['quota_muted_seconds_total{direction="out"}'] > 1.5


def test_connections_beyond_the_users_are_refused_and_come_later(
    broker: BrokerProcess, limited: Callable[..., None]
) -> None:
    limited("user", "bob", connections=2)
    with (
        connect(broker, "bob"),
        connect(broker, "bob"),
        connect(broker, "alice"),
        pytest.raises(QuotaExceeded, match="user bob has 2 connections"),
    ):
        connect(broker, "bob", request_timeout=1.0)
    until(lambda: _connects(broker), "one of them is gone")
    assert metrics(broker)["quota_connections_refused_total"] >= 1


def _connects(broker: BrokerProcess) -> bool:
    with contextlib.suppress(QuotaExceeded), connect(broker, "bob", request_timeout=1.0):
        return True
    return False


def test_quotas_are_typed_and_need_a_right(broker: BrokerProcess, tmp_path: Path) -> None:
    for name, password in (("root", ROOT_PASSWORD), ("alice", "alice's password")):
        path = tmp_path / f"{name}.toml"
        path.write_text(f'tls = false\nuser = "{name}"\npassword = "{password}"\n')
        path.chmod(0o600)

    def typed(who: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "quiverlog", "quota", *words, "-b", broker.bootstrap]
        command += ["--security-file", str(tmp_path / f"{who}.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    refused = typed("alice", "set", "--user", "alice", "--bytes-in", "1GiB")
    assert refused.returncode == 1
    assert "user:alice may not alter cluster" in refused.stderr
    assert typed("root", "set", "--user", "carol", "--bytes-in", "10MiB").returncode == 0
    with connect(broker, "root") as root:
        assert [(one.name, one.bytes_in) for one in root.list_quotas()] == [("carol", RATE)]
        root.set_quota("user", "carol", bytes_in=0)
    lines = [line for line in broker.log_text.splitlines() if "ALTER_QUOTAS" in line]
    assert any('"quota of user carol"' in line and '"ok"' in line for line in lines)
    assert any('"denied"' in line and "user:alice" in line for line in lines)


@pytest.mark.long
def test_a_flood_at_its_quota_leaves_others_their_pace(
    broker: BrokerProcess, limited: Callable[..., None]
) -> None:
    limited("user", "alice", bytes_in=RATE)

    def p99_s() -> float:
        times = []
        with connect(broker, "bob") as bob, bob.producer("small") as producer:
            for _ in range(1_000):
                began_s = time.perf_counter()
                producer.send({"payload": b"x" * 1_000})
                producer.flush()
                times.append(time.perf_counter() - began_s)
        return sorted(times)[989]

    p99_s()
    quiet_s = p99_s()
    with in_threads(*(flood(broker, "alice", "obedient") for _ in range(4))):
        start = stored(broker)[1]
        until(lambda: stored(broker)[1] - start > 1.5 * RATE, "the first second's worth is used")
        beside_s = p99_s()
    # 1.5 times where nothing else runs; threads of this process share its interpreter, and a
    # machine with other work adds moments.
    assert beside_s < 1.5 * quiet_s + 0.1, (quiet_s, beside_s)
