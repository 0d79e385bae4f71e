"""docs/kafka-users.md: what it has for kcat's and rpk's options runs, on a broker.

A cell has a whole command, or options of `produce` (kcat's `-P`) or `consume`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import quiverlog
from quiverlog.cli.app import cli
from tests.support.broker import BrokerProcess
from tests.support.pages import ROOT

pytestmark = pytest.mark.process
PAGE = (ROOT / "docs" / "kafka-users.md").read_text()
NEEDS_MORE = {
    "quiverlog acl add": "unit/cli/cluster/test_acl.py",
    "--security-file": "integration/test_tls.py",
    "quiverlog cluster producer": "integration/test_cli_topics_and_rows.py",
    "quiverlog config set": "integration/test_cluster_settings.py",
    "quiverlog dev up": "integration/test_local_clusters.py",
    "quiverlog dump-log": "integration/test_cli_topics_and_rows.py",
    "quiverlog partition reassign": "integration/test_moving_partitions.py",
    "quiverlog produce -t T -": "integration/test_cli_pipes.py",
    "quiverlog quorum add": "integration/test_broker_quorum.py",
    "quiverlog quorum remove": "integration/test_broker_quorum.py",
    "quiverlog token create": "integration/test_users.py",
    "quiverlog transaction list": "integration/test_transactions.py",
}
"""Several brokers, a pipe, a transaction, or files of a broker: the tests that have them."""
COMMANDS = {
    "quiverlog perf consume": "quiverlog perf consume -t T",
    "quiverlog perf produce": "quiverlog perf produce -t T-perf --rows 100",
    "quiverlog produce": "quiverlog produce FILE -t T",
    "quiverlog profile create": "quiverlog profile create mine -b 127.0.0.1:9292",
    "quiverlog quota set": "quiverlog quota set --default --connections 200",
    "quiverlog topic delete T": "quiverlog topic delete T --yes",
    "quiverlog topic trim T --before 0=17": "quiverlog topic trim T --before 0=1 --yes",
    "quiverlog topic alter T --partitions N": "quiverlog topic alter T --partitions 2",
    "quiverlog topic alter T --schema": (
        "quiverlog topic alter T --schema 'id long, key string, value string, more int'"
    ),
    "quiverlog user create": "quiverlog user create alice --generate",
    "--config key=value": "quiverlog topic create T-made --schema 'id long' --config K=V",
    "-r": "quiverlog topic create T-made --schema 'id long' --partitions 3 -r 1",
}
"""What the page leaves to its reader."""
VALUES = {
    "--compression": "lz4",
    "--durability": "flushed",
    "--format": "json",
    "--from": "earliest",
    "--max-rows": "1",
    "--tail": "1",
    "--template": "%o",
}
"""Of options that the page has without one."""
WORDS = {
    "...": "id long",
    "K=V": "retention.ms=3600000",
    "N": "0",
    "SECONDS": "5",
    "TEXT": "-",
    "TIME": "-1h",
    "k": "retention.ms",
    "k=v": "retention.ms=3600000",
    "replicated": "flushed",  # there is one broker
}
PRODUCES = ("--compression", "--durability", "--input-format", "--null", "--quiet")
FILES = {"-P -l": "a\n", "-P -K :": "key:value\na:1\n"}
STORED = {
    "-P -l": {"id": None, "key": None, "value": "a"},
    "-P -K :": {"id": None, "key": "a", "value": "1"},
}


def codes(heading: str, theirs: int, ours: int) -> Iterator[tuple[str, str]]:
    """Each code of our cells, with their cell, of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in [one for one in section.splitlines() if one.startswith("| ")][1:]:
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        for code in re.findall(r"`([^`]+)`", cells[ours]):
            if code.startswith(("quiverlog ", "-")):
                yield cells[theirs].strip().strip("`"), code


ALL = [*codes("kcat", 0, 1), *codes("rpk and Kafka's tools", 0, 2)]
RUN = [(theirs, code) for theirs, code in ALL if not code.startswith(tuple(NEEDS_MORE))]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


def command(theirs: str, code: str, topic: str, file: Path, bootstrap: str) -> list[str]:
    """What is typed for a cell."""
    words = [WORDS.get(word, word) for word in shlex.split(COMMANDS.get(code, code))]
    words = [bootstrap if word == "HOST:PORT" else word for word in words]
    if words[0] != "quiverlog":
        words += [VALUES[words[0]]] if len(words) == 1 and words[0] in VALUES else []
        is_produced = theirs.startswith("-P") or words[0] in PRODUCES
        words = [*(["produce", "FILE", "-t"] if is_produced else ["consume"]), "T", *words]
    else:
        words = words[1:]
    if "-f" in words:  # it would never end
        words += ["-n", "0" if "--tail" in words else "1"]
    return [re.sub(r"^T\b", topic, str(file) if word == "FILE" else word) for word in words]


def test_every_command_is_run_here_or_where_there_is_more() -> None:
    assert len(RUN) > 50
    for start, test in NEEDS_MORE.items():
        assert any(code.startswith(start) for _, code in ALL), start
        words = start.removeprefix("quiverlog ").replace(" -t T -", "").split()
        text = (ROOT / "tests" / test).read_text()
        assert all(word in text for word in words), (start, test)


@pytest.mark.parametrize("place", range(len(RUN)), ids=lambda place: RUN[place][1])
def test_the_row_runs(broker: BrokerProcess, place: int, tmp_path: Path) -> None:
    theirs, code = RUN[place]
    topic, file = f"t-{place}", tmp_path / ("rows.txt" if theirs in FILES else "rows.csv")
    file.write_text(FILES.get(theirs, "id,value\n1,a\n2,b\n"))
    runner = CliRunner(
        env={
            "QUIVERLOG_BOOTSTRAP_SERVER": broker.bootstrap,
            "XDG_CONFIG_HOME": str(tmp_path),
            "HOME": str(tmp_path),
        }
    )
    with quiverlog.connect(broker.bootstrap) as client:
        if "topic create T --" not in code:
            client.create_topic(topic, "id long, key string, value string")
            if theirs not in STORED:
                with client.producer(topic) as producer:
                    producer.send([{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
        words = command(theirs, code, topic, file, broker.bootstrap)
        done = runner.invoke(cli, words, input="id,value\n3,c\n")
        assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception}"
        if theirs in STORED:
            assert client.read(topic).to_arrow().to_pylist() == [STORED[theirs]]
