"""docs/operating.md, typed in from top to end: what comes back must be what the page shows.

Beside it programs produce and consume, and a Spark query writes each topic of the page to files,
from the moment at which the topic is there. At the end every acknowledged row is in both, once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import quiverlog
from quiverlog.local.cluster import BROKERS_MAX, LocalCluster
from quiverlog.local.ports import free_port, is_free
from tests.spark.queries import wait_for
from tests.support.cluster_load import ClusterLoad
from tests.support.row_places import Seen, misfits

pytestmark = [pytest.mark.spark, pytest.mark.process]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
COLUMNS = {"flights": ("carrier", "delay"), "trips": ("city", "price")}
PAUSE_S = 0.2
EVERY = "1 second"
WORK_MIN = 10
"""Requests of each program, and micro-batches of each query: they are at work all the time."""
FIRST_PORT = 9292
COMMAND_S = 120
_SETTLES_S = 20.0
_LOOKS = tuple(
    f"quiverlog {what}"
    for what in (
        *("cluster brokers", "cluster status", "cluster describe", "cluster features"),
        *("partition list", "quorum status", "topic describe", "config get", "dev status"),
    )
)
"""Commands that only look may be typed again until all brokers have received the decisions."""
DIFFERS = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"(127\.0\.0\.1:\d+ +)\d+$", re.MULTILINE), r"\1PID"),
    (re.compile(r"\b\d+\.\d s\b"), "N s"),
    (re.compile(r"\b\d[\d.]* ([KMGT]i)?B\b"), "SIZE"),
    (re.compile(r"\b\d+%(?=\s)"), "LOAD"),
    (re.compile("SIZE -> SIZE"), "SIZE"),
    (re.compile(r"broker \d(,?) (is )?the controller"), r"broker N\1 \2the controller"),
    (re.compile(r"[─ ]{2,}"), " "),
)
"""What is another from run to run, or with the width of a column."""


class Typed(NamedTuple):
    command: str
    shown: str


def typed_lines() -> Iterator[Typed]:
    """The commands of the page's consoles, with what it shows of each."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        assert block.startswith("$ ")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.split("\n")
            more = list(itertools.takewhile(lambda line: line.startswith("> "), lines[1:]))
            command = "\n".join([lines[0], *(line[2:] for line in more)])
            yield Typed(command, "\n".join(lines[1 + len(more) :]))


class Shell:
    """One bash for the whole page. What a command prints on stderr counts where it fails."""

    def __init__(self, directory: Path, port: int) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUIVERLOG_")}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        self.bootstrap = env["QUIVERLOG_BOOTSTRAP_SERVER"] = f"127.0.0.1:{port}"
        self._stderr = directory / "stderr"
        self._port = port
        self._bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory,
            env=env,
        )  # fmt: skip

    def type(self, command: str) -> str:
        """What comes back, with the page's ports."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        moved = re.sub(r"127\.0\.0\.1:(9\d{3})", self._here, command)
        if moved.startswith("quiverlog dev up"):
            moved += f" --port {self._port}"
        elif moved.startswith("quiverlog"):
            moved = f"timeout {COMMAND_S} {moved}"
        end = 'rc=$?; printf "\\n@@@%d\\n" $rc; (exit $rc)'
        self._bash.stdin.write(f"{{ {moved}; }} 2>{self._stderr} </dev/null; {end}\n")
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            if line.startswith("@@@"):
                failed = line != "@@@0\n"
                return self._of_page(printed[:-1] + (self._stderr.read_text() if failed else ""))
            printed += line
        raise AssertionError(f"the shell ended at {command!r}")

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()

    def _here(self, found: re.Match[str]) -> str:
        return f"127.0.0.1:{int(found[1]) - FIRST_PORT + self._port}"

    def _of_page(self, text: str) -> str:
        return re.sub(
            r"127\.0\.0\.1:(\d+)",
            lambda found: f"127.0.0.1:{int(found[1]) - self._port + FIRST_PORT}",
            text,
        )


def comparable(text: str) -> str:
    for pattern, word in DIFFERS:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def differs(shown: str, printed: str) -> bool:
    """`...` on the page matches anything."""
    wanted = re.escape(comparable(shown)).replace(re.escape("..."), ".*?")
    return re.fullmatch(wanted, comparable(printed), re.DOTALL) is None


def free_ports() -> int:
    """The first of as many ports side by side as the page may need."""
    for _ in range(100):
        first = free_port()
        ports = range(first, first + 2 * BROKERS_MAX)
        if ports[-1] < 65_536 and all(is_free(port) for port in ports):
            return first
    raise AssertionError("no free ports")


class Beside:
    """Programs and a Spark query that are at work on the page's topics while it is typed."""

    def __init__(self, spark: Any, directory: Path, bootstrap: str) -> None:
        self._spark, self._directory, self._bootstrap = spark, directory, bootstrap
        self._loads: dict[str, ClusterLoad] = {}
        self._queries: dict[str, Any] = {}
        self._running = contextlib.ExitStack()

    def begin(self, topic: str) -> None:
        """The topic has been created: on with it, and wait until the query has read some of it.

        Spark gives its Python workers ten seconds to start, and no command typed is to take them.
        """
        load = ClusterLoad(
            self._bootstrap, topic, columns=COLUMNS[topic], durability=None, pause_s=PAUSE_S
        )
        source = self._spark.readStream.format("quiverlog").options(
            **{"bootstrap.servers": self._bootstrap, "startingOffsets": "earliest"},
            includeMetadata="true",
            # The page counts partitions, and its cluster has no groups.
            reportProgress="false",
        )
        query = (
            source.option("subscribe", topic)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._directory / f"{topic}-checkpoint"))
            .trigger(processingTime=EVERY)
            .start(str(self._directory / topic))
        )
        self._running.callback(query.stop)
        self._loads[topic] = self._running.enter_context(load)
        self._queries[topic] = query
        wait_for(lambda: bool(query.lastProgress and query.lastProgress["numInputRows"]), query)

    def check(self, *, is_end: bool = False) -> None:
        """No program got an error. At the end: each acknowledged row is there once."""
        for query in self._queries.values():
            if query.exception() is not None:
                raise query.exception()
        if not is_end:
            return
        batches = {topic: query.lastProgress["batchId"] for topic, query in self._queries.items()}
        for query, load in zip(self._queries.values(), self._loads.values(), strict=True):
            load.__exit__(None, None, None)
            query.processAllAvailable()
        self.close()
        for topic, load in self._loads.items():
            outcome = load.done()
            wrong = {
                "the consumer": outcome.wrong(),
                "the log": misfits(outcome.acknowledged, self._stored(topic)),
                "the query's files": misfits(outcome.acknowledged, self._written(topic)),
            }
            assert not any(wrong.values()), (topic, wrong)
            assert min(outcome.sent["patient"], outcome.sent["busy"], batches[topic]) >= WORK_MIN

    def close(self) -> None:
        self._running.close()

    def _stored(self, topic: str) -> Iterator[Seen]:
        """What is in the topic now. A reader that lacks a row that is there has skipped it."""
        with (
            quiverlog.connect(self._bootstrap) as client,
            client.consumer(topic, start="earliest") as consumer,
        ):
            for batch in consumer:
                rows = (batch.data.column(name).to_pylist() for name in COLUMNS[topic])
                for offset, row in enumerate(zip(*rows, strict=True), batch.base_offset):
                    yield (batch.partition, offset), row

    def _written(self, topic: str) -> Iterator[Seen]:
        written = self._spark.read.parquet(str(self._directory / topic)).toArrow()
        names = "_partition", "_offset", *COLUMNS[topic]
        columns = (written.column(name).to_pylist() for name in names)
        for partition, offset, program, number in zip(*columns, strict=True):
            yield (partition, offset), (program, int(number))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, free_ports())
    yield shell
    shell.close()
    found = LocalCluster.find(tmp_path / "quiverlog-dev")
    if found is not None:
        found.remove()


@pytest.mark.long
@pytest.mark.timeout(600)  # Some eighty commands, a process each.
def test_the_commands_of_the_page_work(shell: Shell, spark: Any, tmp_path: Path) -> None:
    typed = list(typed_lines())
    assert len(typed) > 10
    beside = Beside(spark, tmp_path / "query", shell.bootstrap)
    with contextlib.closing(beside):
        for command, shown in typed:
            beside.check(is_end=command == "quiverlog dev down")
            printed = shell.type(command)
            deadline_s = time.monotonic() + _SETTLES_S
            while (
                differs(shown, printed)
                and command.startswith(_LOOKS)
                and time.monotonic() < deadline_s
            ):
                printed = shell.type(command)  # A broker receives a decision later than others.
            assert not differs(shown, printed), f"$ {command}\n{printed}\n--- the page:\n{shown}"
            if created := re.match(r"quiverlog topic create (\w+)", command):
                beside.begin(created[1])


def test_other_output_than_the_page_has_is_noticed() -> None:
    shown = "broker 2 has joined\nready after 1.6 s\n   1   127.0.0.1:9293   12149\n"
    assert not differs(shown, "broker 2 has joined\nready after 9.1 s\n 1  127.0.0.1:9293  7\n\n")
    assert differs(shown, "broker 3 has joined\nready after 9.1 s\n 1  127.0.0.1:9293  7\n")
    assert differs(shown, "broker 2 has joined\nready after 9.1 s\n 2  127.0.0.1:9293  7\n")
    assert differs(shown, shown + "more\n")
    assert not differs("a\n...\nd\n", "a\nb\nc\nd\n")
