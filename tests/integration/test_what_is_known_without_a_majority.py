"""Three brokers, of which two are killed or stopped: what each command prints of the cluster.

There is no controller then, and the one that is left has the metadata from before. Every figure is
marked so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quiverlog
from quiverlog.local.cluster import LocalCluster
from tests.support.broker import BrokerProcess
from tests.support.growing import GrowingCluster, Typed, at_once, typed
from tests.support.until import slack, until

pytestmark = pytest.mark.process

SESSION = {"broker.session.ms": 1_000}
NEVER = ("3 of 3 live", "all in sync", "1 may be lost", "Nothing to do", "healthy      yes")
"""What no command may print of a cluster of which two thirds are gone."""
BOUND_S = 25.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[GrowingCluster]:
    with GrowingCluster(**SESSION) as cluster:
        cluster.grow(2)
        cluster.type("topic", "create", "t", "--schema", "n long", "-p", "3", "-r", "2")
        yield cluster


@pytest.fixture(params=["killed", pytest.param("stopped", marks=pytest.mark.long)])
def left(request: pytest.FixtureRequest, cluster: GrowingCluster) -> Iterator[GrowingCluster]:
    """Broker 1 is left, and has not reached a controller for a session."""
    lost = [cluster.by_id[2], cluster.by_id[3]]
    pids = [one.pid for one in lost]
    for one in lost:
        if request.param == "killed":
            one.kill9()
        else:
            os.kill(one.pid, signal.SIGSTOP)
    until(lambda: is_behind(cluster.by_id[1]), "broker 1 is behind")
    yield cluster
    for one, pid in zip(lost, pids, strict=True):
        if request.param == "killed":
            one.launch()
        else:
            os.kill(pid, signal.SIGCONT)
    until(cluster.is_whole, "three live brokers")


def is_behind(broker: BrokerProcess) -> bool:
    with quiverlog.connect(broker.bootstrap, request_timeout=5.0) as client:
        found = client.describe_cluster()
    assert found.reported_by == 1
    return found.is_behind


def asked(cluster: GrowingCluster, *words: str, at: str = "") -> Typed:
    """In bounded time, whichever broker is silent."""
    began_s = time.monotonic()
    done = typed(*words, "-b", at or cluster.bootstrap)
    assert time.monotonic() - began_s < BOUND_S * slack(), done
    assert not any(text in done.out for text in NEVER), done
    return done


def document(cluster: GrowingCluster, *words: str, at: str = "") -> tuple[int, Any]:
    done = asked(cluster, *words, "--format", "json", at=at)
    return done.code, done.json


def test_each_command_names_the_broker_whose_metadata_it_shows_and_their_age(
    left: GrowingCluster,
) -> None:
    """Side by side, as they wait most of the time for brokers that do not answer."""
    lost = [left.by_id[2].bootstrap, left.by_id[3].bootstrap]
    all_at, one_at = left.bootstrap, left.by_id[1].bootstrap
    at_once([
        # All addresses are given, and the one that answers alone: those of the others are known.
        lambda: the_status_is_of_one(left, lost, all_at),
        lambda: the_status_is_of_one(left, lost, one_at),
        lambda: the_status_is_of_one_for_programs(left, lost),
        lambda: the_brokers_are_of_one(left),
        lambda: the_topics_are_of_one(left),
        lambda: the_doctor_names_the_lost(left, lost),
        lambda: the_doctor_names_the_lost_for_programs(left),
        lambda: no_restart_is_advised(left),
        lambda: what_is_offline_is_of_one(left),
        lambda: what_is_offline_is_what_the_lost_led(left),
    ])  # fmt: skip


def the_status_is_of_one(left: GrowingCluster, lost: list[str], at: str) -> None:
    status = asked(left, "cluster", "status", at=at)
    assert status.code == 1, status
    assert "broker 1: " in status.out
    assert " s old" in status.out
    assert "1 of 3 answer this machine" in status.out
    assert "1 answer this machine, 2 are needed" in status.out
    assert all(address in status.out for address in lost)
    waited = "waiting for a controller until", "waiting for answers of"
    assert any(text in status.err for text in waited), "no silence of more than two seconds"


def the_status_is_of_one_for_programs(left: GrowingCluster, lost: list[str]) -> None:
    code, printed = document(left, "cluster", "status")
    assert code == 1
    assert not printed["is_healthy"]
    assert (printed["reported_by"], printed["is_behind"], printed["is_current"]) == (1, True, False)
    assert printed["age_s"] > 0
    assert (printed["live"], printed["voters_to_spare"]) == (None, None)
    assert printed["answering"] == [1]
    assert {one["address"] for one in printed["addresses"] if not one["answers"]} == set(lost)


def the_brokers_are_of_one(left: GrowingCluster) -> None:
    brokers = asked(left, "cluster", "brokers")
    assert "As known to broker 1" in brokers.out
    assert "unknown, was live" in brokers.out
    printed = document(left, "cluster", "brokers")[1]
    assert printed["is_behind"]
    assert {one["node_id"]: one["answers"] for one in printed["brokers"]} == {
        1: True, 2: False, 3: False
    }  # fmt: skip


def the_topics_are_of_one(left: GrowingCluster) -> None:
    assert " s old" in asked(left, "cluster", "describe").out
    assert document(left, "cluster", "describe")[1]["is_behind"]


def the_doctor_names_the_lost(left: GrowingCluster, lost: list[str]) -> None:
    doctor = asked(left, "doctor", "--no-spark")
    assert doctor.code == 4, doctor
    assert all(f"{address}, does not answer from here" in doctor.out for address in lost)
    assert "controller" in doctor.out


def the_doctor_names_the_lost_for_programs(left: GrowingCluster) -> None:
    code, printed = document(left, "doctor", "--no-spark")
    assert code == 4
    problems = {one["check"] for one in printed["findings"] if one["status"] == "problem"}
    assert {"broker 2", "broker 3", "controller"} <= problems


def no_restart_is_advised(left: GrowingCluster) -> None:
    check = asked(left, "cluster", "restart-check", "--broker", "1")
    assert check.code == 1, check


def what_is_offline_is_of_one(left: GrowingCluster) -> None:
    listed = asked(left, "partition", "list", "--offline")
    assert listed.code == 0, listed
    assert "as known to broker 1" in listed.err


def what_is_offline_is_what_the_lost_led(left: GrowingCluster) -> None:
    code, rows = document(left, "partition", "list", "--offline")
    assert code == 0
    everything = document(left, "partition", "list")[1]
    assert len(everything) == 3
    assert rows == [one for one in everything if one["leader"] != 1], "their leaders do not answer"
    assert rows, "brokers 2 and 3 led some"


def test_with_a_majority_the_one_that_is_lost_is_named(cluster: GrowingCluster) -> None:
    """The figures are the controller's, and live ones are counted again."""
    cluster.by_id[3].kill9()

    def counted() -> bool:
        done = typed("cluster", "status", "-b", cluster.bootstrap)
        assert done.code == 1, done
        assert cluster.by_id[3].bootstrap in done.out, done
        return "2 answer this machine" in done.out or "2 of 3 live" in done.out

    try:
        until(counted, "the other two answer in time")
    finally:
        cluster.by_id[3].start()
    printed = cluster.healthy().json
    assert printed["is_healthy"]
    assert (printed["live"], printed["answering"], printed["voters_to_spare"]) == (3, [1, 2, 3], 1)


def test_dev_status_shows_no_ended_broker_as_ready(tmp_path: Path) -> None:
    def dev(*words: str) -> str:
        command = [sys.executable, "-m", "quiverlog", "dev", words[0], "-d", str(tmp_path / "dev")]
        done = subprocess.run(
            [*command, *words[1:]], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    made = LocalCluster.create(tmp_path / "dev", racks=["a", "b", "c"])
    try:
        made.start(60.0)
        dev("kill", "2")
        for one in json.loads(dev("status", "--format", "json"))["brokers"]:
            assert one["process"] == "running" or "ready" not in one["in_cluster"], one
        dev("kill", "3")

        def states() -> set[str]:
            printed = json.loads(dev("status", "--format", "json"))
            return {one["in_cluster"] for one in printed["brokers"]}

        until(lambda: states() == {"unknown, no controller"}, "no controller")
        assert "as known to broker 1" in dev("status")
    finally:
        made.remove()
