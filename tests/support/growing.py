"""A cluster that begins as one broker and grows, and the commands that an operator types at it.

Owns the broker processes, how the next one gets the others' addresses, and how a command is run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import quiverlog
from quiverlog.errors import QuiverlogError
from tests.support.broker import BrokerProcess
from tests.support.until import until

__all__ = ["GrowingCluster", "Typed", "at_once", "typed"]

COMMAND_S = 120.0
COMMANDS_MAX = 4
"""That run at the same time: most of what they do is to wait, and each takes a start of Python."""


class Typed:
    """What came of a command. `seconds` includes the start of Python."""

    def __init__(self, words: tuple[str, ...], done: subprocess.CompletedProcess[str]) -> None:
        self.words = words
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def json(self) -> Any:
        """Of a command that was run with `--format json`."""
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"{' '.join(self.words)}: exit code {self.code}\n{self.out}\n{self.err}"


def typed(*words: str, timeout_s: float = COMMAND_S) -> Typed:
    """Run `quiverlog` with these words, as a process."""
    command = [sys.executable, "-m", "quiverlog", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    return Typed(words, done)


def at_once(jobs: Sequence[Callable[[], object]]) -> None:
    """Run commands that wait side by side; raise what one of them raises."""
    with ThreadPoolExecutor(COMMANDS_MAX) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


class GrowingCluster:
    """Broker 1 makes the cluster; `grow` adds the next. For the time of a `with`."""

    def __init__(self, **config: object) -> None:
        self.by_id: dict[int, BrokerProcess] = {}
        self._config = config
        self._stack = ExitStack()

    def __enter__(self) -> GrowingCluster:
        try:
            self.grow()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(one.bootstrap for one in self.by_id.values())

    def grow(self, count: int = 1) -> None:
        """This many more brokers, live and voters when this returns."""
        for _ in range(count):
            node_id = len(self.by_id) + 1
            config: dict[str, object] = {"node.id": node_id, "cluster.id": "growing"}
            if self.by_id:
                seeds = [f"{n}@{one.bootstrap}" for n, one in self.by_id.items()]
                config["controller.quorum.bootstrap.servers"] = ",".join(seeds)
            broker = BrokerProcess(config={**config, **self._config})
            self.by_id[node_id] = self._stack.enter_context(broker)
        until(self.is_whole, f"{len(self.by_id)} live brokers and voters")

    def is_whole(self) -> bool:
        """Whether every broker is live and a voter, and one of them decides."""
        try:
            with quiverlog.connect(self.bootstrap, request_timeout=5.0) as client:
                found = client.describe_cluster()
        except QuiverlogError:
            return False
        live = sum(not one.fenced for one in found.brokers)
        return len(found.voters) == live == len(self.by_id) and found.controller is not None

    def healthy(self) -> Typed:
        """Return the status once nothing is wrong: copies follow after brokers are live."""

        def status() -> Typed | None:
            done = typed("cluster", "status", "--format", "json", "-b", self.bootstrap)
            return done if done.code == 0 else None

        return until(status, "a healthy cluster")

    def type(self, *words: str, code: int = 0) -> Typed:
        """Run a command at all brokers' addresses, and check its exit code."""
        done = typed(*words, "--bootstrap-server", self.bootstrap)
        assert done.code == code, done
        return done
