"""Commands that get no answer: within two seconds or so they print what they wait for and until
when, and `--timeout` bounds all of their steps together. The brokers are real, and full, cut off,
stopped, or advertised under a name that does not resolve.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import quiverlog
from tests.support.broker import BrokerProcess
from tests.support.growing import GrowingCluster, at_once, typed
from tests.support.until import slack, until

pytestmark = pytest.mark.process

TIMEOUT_S = 5.0
SLACK_S = 4.0
"""For Python's start and end, of some commands at once."""
LINE = re.compile(r"^quiverlog: .+ until \d\d:\d\d:\d\d\.$", re.MULTILINE)


def waited(*words: str, timeout_s: float = TIMEOUT_S) -> str:
    """What a command in vain printed on stderr, when its time was up and not much later."""
    began_s = time.monotonic()
    done = typed(*words, "--timeout", f"{timeout_s:g}")
    took_s = time.monotonic() - began_s
    assert done.code != 0, done
    assert took_s < timeout_s + SLACK_S * slack(), (took_s, done)
    return done.err


def lines(output: str) -> list[str]:
    return LINE.findall(output)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("n\n1\n2\n")
    return file


@pytest.fixture(scope="module")
def full() -> Iterator[BrokerProcess]:
    """A broker that takes no rows: it keeps more room free than any disk has."""
    with BrokerProcess() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", "n long")
        assert broker.stop() == 0
        broker.config["disk.reserve.bytes"] = 2**50
        yield broker.start()


def test_a_full_disk(full: BrokerProcess, rows: Path) -> None:
    output = waited("produce", str(rows), "-t", "t", "-b", full.bootstrap)
    (line,) = lines(output)
    assert "too little room to write" in line
    assert "too little room to write" in output.splitlines()[-1]


def test_what_is_over_in_time_prints_nothing(full: BrokerProcess) -> None:
    assert typed("topic", "list", "-b", full.bootstrap).err == ""


def test_an_advertised_name_that_does_not_resolve(rows: Path) -> None:
    name = "no-such-broker.invalid"
    with BrokerProcess() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", "n long")
            with client.producer("t") as producer:
                producer.send([{"n": 1}])
        assert broker.stop() == 0
        port = broker.bootstrap.rpartition(":")[2]
        broker.config["advertise"] = f"{name}:{port}"
        broker.start()

        def try_in_vain(*command: str) -> None:
            (line,) = lines(waited(*command, "-b", broker.bootstrap))
            assert name in line, line

        commands = (
            ("produce", str(rows), "-t", "t"),
            ("consume", "t"),
            ("perf", "consume", "-t", "t"),
        )
        at_once([partial(try_in_vain, *command) for command in commands])


@pytest.fixture(scope="module")
def undecided() -> Iterator[GrowingCluster]:
    """Three brokers, of which one runs: it leads what it led, and there is no controller."""
    with GrowingCluster() as cluster:
        cluster.grow(2)
        cluster.type("topic", "create", "t", "--schema", "n long", "-p", "3")
        cluster.by_id[2].kill9()
        cluster.by_id[3].kill9()
        yield cluster


def test_what_a_controller_is_needed_for(undecided: GrowingCluster) -> None:
    def try_in_vain(*words: str) -> None:
        output = waited(*words, "-b", undecided.bootstrap)
        assert len(lines(output)) == 1, (words, output)

    commands = (
        ("topic", "create", "new", "--schema", "n long"),
        ("topic", "alter", "t", "--config", "retention.ms=5000"),
        ("topic", "delete", "t", "--yes"),
        ("config", "set", "log.level=debug", "--cluster"),
        ("cluster", "upgrade", "--finalize"),
        ("partition", "reassign", "t", "--replication-factor", "1"),
        ("cluster", "decommission", "3"),
    )
    at_once([partial(try_in_vain, *words) for words in commands])


def test_rows_for_partitions_without_a_leader(undecided: GrowingCluster, rows: Path) -> None:
    output = waited("produce", str(rows), "-t", "t", "-b", undecided.bootstrap)
    assert lines(output), output


def test_a_broker_that_sends_nothing(full: BrokerProcess) -> None:
    (pid,) = [full.pid]
    os.kill(pid, signal.SIGSTOP)
    try:
        output = waited("topic", "list", "-b", full.bootstrap)
    finally:
        os.kill(pid, signal.SIGCONT)
    (line,) = lines(output)
    assert full.bootstrap in line


def test_what_is_waited_for_is_printed_before_the_time_is_up_and_the_rows_go_when_they_can(
    tmp_path: Path, rows: Path
) -> None:
    with BrokerProcess() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", "n long")
        pid = broker.pid
        os.kill(pid, signal.SIGSTOP)
        command = [sys.executable, "-m", "quiverlog", "produce", str(rows), "-t", "t", "--timeout"]
        output = tmp_path / "output"
        with output.open("wb") as err:
            process = subprocess.Popen(
                [*command, "60", "-b", broker.bootstrap], stdout=subprocess.DEVNULL, stderr=err
            )
        try:
            until(lambda: lines(output.read_text()), "it prints what it waits for", timeout_s=20.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert process.wait(30) == 0
        assert len(lines(output.read_text())) == 1
