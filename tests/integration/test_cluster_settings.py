"""Three brokers are configured while they run; over a controller that dies, and a file that is read
again. Everything is typed as an operator types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import quiverlog
from quiverlog.errors import QuiverlogError
from quiverlog.limits import FEATURE_LEVEL_MAX
from tests.support.broker import BrokerProcess
from tests.support.until import until

pytestmark = pytest.mark.process

CLUSTER = "levels"
BOUND_S = 60.0
IDLE = "connections.idle.ms"


class Brokers:
    """Broker 1 has made the cluster."""

    def __init__(self, stack: ExitStack) -> None:
        self.by_id: dict[int, BrokerProcess] = {}
        for node_id in (1, 2, 3):
            config: dict[str, object] = {"node.id": node_id, "cluster.id": CLUSTER}
            if self.by_id:
                seeds = [f"{n}@{one.bootstrap}" for n, one in self.by_id.items()]
                config["controller.quorum.bootstrap.servers"] = ",".join(seeds)
            broker = BrokerProcess(config=config)
            self.by_id[node_id] = stack.enter_context(broker)
        until(lambda: self.has_voters(3), "three voters")

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.by_id.values())

    def has_voters(self, count: int) -> bool:
        try:
            with quiverlog.connect(self.bootstrap, request_timeout=5.0) as client:
                found = client.describe_cluster()
        except QuiverlogError:
            return False
        live = sum(not one.fenced for one in found.brokers)
        return len(found.voters) == count and live == 3 and found.controller is not None

    def type(self, *words: str, code: int = 0) -> Any:
        """What the command prints as JSON, or on stderr."""
        command = [sys.executable, "-m", "quiverlog", *words, "-b", self.bootstrap]
        run = subprocess.run(
            [*command, "--format", "json", "--timeout", "20"],
            capture_output=True, text=True, timeout=BOUND_S, check=False,
        )  # fmt: skip
        assert run.returncode == code, (words, run.stdout, run.stderr)
        return json.loads(run.stdout) if not code else run.stderr

    def values(self, key: str) -> dict[int, tuple[str, str]]:
        """By broker: value and source."""
        found = self.type("config", "get", key)
        assert not found["unreachable"]
        return {
            n: (one["value"], one["source"]) for one in found["configs"] for n in one["brokers"]
        }


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


def test_the_feature_level_and_configuration_while_brokers_run(brokers: Brokers) -> None:
    one = brokers.by_id[1]
    features = brokers.type("cluster", "features")
    assert (features["level"], features["level_max"]) == (FEATURE_LEVEL_MAX, FEATURE_LEVEL_MAX)
    assert brokers.type("cluster", "upgrade", "--finalize")["level"] == FEATURE_LEVEL_MAX
    level = str(FEATURE_LEVEL_MAX + 1)
    printed = brokers.type("cluster", "upgrade", "--finalize", "--level", level, code=1)
    assert f"there is no feature level {level} yet" in printed

    brokers.type("config", "set", f"{IDLE}=50000", "--cluster")
    brokers.type("config", "set", f"{IDLE}=40000", "--broker", "3")
    expected = {1: ("50000", "cluster"), 2: ("50000", "cluster"), 3: ("40000", "broker")}
    until(lambda: brokers.values(IDLE) == expected, "every broker has it")
    killed = brokers.type("quorum", "status")["leader_id"]
    brokers.by_id[killed].kill9()
    until(lambda: brokers.type("quorum", "status")["leader_id"] != killed, "another controller")
    brokers.by_id[killed].start()
    until(lambda: brokers.has_voters(3), "three brokers")
    assert brokers.values(IDLE) == expected

    one.write_config({**one.config, IDLE: 30_000})
    one.signal(signal.SIGHUP)
    until(lambda: "configuration reloaded" in one.log_text, "the file is read")
    assert f'set_in_cluster="{IDLE}"' in one.log_text or f"set_in_cluster={IDLE}" in one.log_text
    assert brokers.values(IDLE) == expected
    brokers.type("config", "unset", IDLE, "--cluster")
    until(lambda: brokers.values(IDLE)[1] == ("30000", "file"), "the file counts")
    assert brokers.values(IDLE)[3] == ("40000", "broker")
    for each in brokers.by_id.values():
        assert "internal error" not in each.log_text
