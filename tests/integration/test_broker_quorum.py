"""Three broker processes form a quorum; its leader is killed again and again."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m
from quiverlog.wire.voters_messages import ChangeVotersRequest, ChangeVotersResponse
from tests.support.archives import unpack
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient
from tests.support.until import slack, until

pytestmark = pytest.mark.process

CLUSTER = "three-brokers"
KILLS = 3
DECIDES_WITHIN_S = 2.0
DATA = Path(__file__).resolve().parents[1] / "data"


class Three:
    """Three brokers on this machine, numbered from `first.config["node.id"]` on."""

    def __init__(self, stack: ExitStack, first: BrokerProcess, cluster_id: str) -> None:
        first.start()
        stack.callback(first.kill)
        self.ids = (int(str(first.config.get("node.id", 0))), 11, 12)
        self.by_id = {self.ids[0]: first}
        config_of_all = {
            "cluster.id": cluster_id,
            "controller.quorum.bootstrap.servers": f"{self.ids[0]}@{first.bootstrap}",
        }
        for node_id in self.ids[1:]:
            broker = BrokerProcess(config={"node.id": node_id, **config_of_all})
            self.by_id[node_id] = stack.enter_context(broker)
        until(self.is_formed, "three voters")
        seeds = ",".join(f"{n}@{one.bootstrap}" for n, one in self.by_id.items())
        for one in self.by_id.values():  # Their configuration from their next start on.
            one.config |= {**config_of_all, "controller.quorum.bootstrap.servers": seeds}

    def ask(self, node_id: int, request: m.Request) -> m.Response | None:
        """The answer; None without one, or where another broker is to be asked."""
        try:
            with RawClient(address(self.by_id[node_id]), timeout=5.0) as client:
                found: m.Response = client.ask(request)
                return found
        except (OSError, QuiverlogError):
            return None

    def quorum(self, node_id: int) -> ChangeVotersResponse | None:
        found = self.ask(node_id, ChangeVotersRequest())
        assert found is None or isinstance(found, ChangeVotersResponse)
        return found

    @property
    def running(self) -> list[int]:
        return [node_id for node_id, one in self.by_id.items() if one.running]

    @property
    def leader(self) -> int:
        """The broker that reports itself as the leader."""
        found: list[int] = []

        def look() -> bool:
            for node_id in self.running:
                quorum = self.quorum(node_id)
                if quorum is not None and quorum.leader_id == node_id:
                    found.append(node_id)
            return bool(found)

        until(look, "a leader")
        return found[-1]

    def is_formed(self) -> bool:
        """Return whether all three are voters, without a command."""
        quorum = self.quorum(self.ids[0])
        return quorum is not None and sum(one.is_voter for one in quorum.replicas) == 3

    def decide(self, name: str, among: list[int]) -> int:
        """Have a topic created by the broker that can; returns its id."""
        done: list[int] = []

        def try_all() -> bool:
            for node_id in among:
                try:
                    with RawClient(address(self.by_id[node_id]), timeout=5.0) as client:
                        client.create_topic(name)
                except (OSError, QuiverlogError) as error:
                    if getattr(error, "code", 0) != 23:  # It exists: an answer was lost.
                        continue
                done.append(node_id)
                return True
            return False

        until(try_all, f"the topic {name}")
        return done[0]

    def is_equal(self) -> bool:
        """Return whether all three have the same topics under the same version."""
        found = set()
        for node_id in self.by_id:
            answer = self.ask(node_id, m.MetadataRequest(topics=None))
            if not isinstance(answer, m.MetadataResponse):
                return False
            names = tuple(sorted(topic.name for topic in answer.topics))
            found.add((answer.metadata_version, names))
        return len(found) == 1


def address(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def test_a_killed_leader_is_replaced_and_catches_up(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    three = Three(stack, BrokerProcess(config={"node.id": 10, "cluster.id": CLUSTER}), CLUSTER)
    until(three.is_equal, "equal metadata")
    took_s = []
    for number in range(KILLS):
        old = three.leader
        others = [node_id for node_id in three.ids if node_id != old]
        three.by_id[old].kill9()
        begin = time.monotonic()
        three.decide(f"t{number}", others)
        took_s.append(time.monotonic() - begin)
        three.by_id[old].start()
        until(three.is_equal, "equal metadata")
    took_s.sort()
    with capsys.disabled():
        shown = " ".join(f"{one:.2f}" for one in took_s)
        print(f"\n  until a decision after kill -9 of the leader, s: {shown}", end="")
    assert statistics.median(took_s) < DECIDES_WITHIN_S * slack()
    for node_id in three.ids:
        quorum = three.quorum(node_id)
        assert quorum is not None
        assert {one.node_id for one in quorum.replicas if one.is_voter} == set(three.ids)
    for one in three.by_id.values():
        one.stop()
        assert "internal error" not in one.log_text
        assert "event=stopped" in one.log_text


def test_a_kept_directory_of_a_lone_broker_becomes_the_first_of_three(
    stack: ExitStack, tmp_path: Path
) -> None:
    unpack(DATA / "killed.tar.xz", tmp_path)
    first = BrokerProcess(data_dir=tmp_path / "data", start_timeout=120)
    first.start()
    stack.callback(first.kill)
    with RawClient(address(first)) as client:
        answer = client.ask(m.MetadataRequest(topics=None))
    before = {topic.name for topic in answer.topics}
    first.stop()
    # A broker that is one of several names its number.
    first.config["cluster.id"] = answer.cluster_id
    three = Three(stack, first, answer.cluster_id)
    assert before
    three.decide("new", list(three.ids))
    until(three.is_equal, "equal metadata")
    found = three.ask(12, m.MetadataRequest(topics=None))
    assert isinstance(found, m.MetadataResponse)
    assert {topic.name for topic in found.topics} == before | {"new"}


def test_a_broker_that_waits_for_others_stops_after_the_signal(tmp_path: Path) -> None:
    config_of_all = {
        "node.id": 2,
        "cluster.id": CLUSTER,
        "controller.quorum.bootstrap.servers": "1@127.0.0.1:1",
    }
    broker = BrokerProcess(data_dir=tmp_path / "data", config=config_of_all)
    for life in (1, 2):
        broker.launch()
        until(lambda: broker.log_text.count("waiting for the metadata") == life, "the line")  # noqa: B023
        assert broker.stop() == 0, broker.log_text
    assert broker.log_text.count("waiting for the metadata") == 2


def test_voters_on_the_command_line(stack: ExitStack) -> None:
    config = {"node.id": 1, "cluster.id": CLUSTER}
    first = stack.enter_context(BrokerProcess(config=config))
    seeds = {"controller.quorum.bootstrap.servers": f"1@{first.bootstrap}"}
    second = stack.enter_context(BrokerProcess(config=config | {"node.id": 2} | seeds))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        where = ("--bootstrap-server", f"{second.bootstrap},{first.bootstrap}")
        command = (sys.executable, "-m", "quiverlog", "quorum", *words, *where)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    added = run("add", "2", "--format", "json")
    assert added.returncode == 0, added.stderr
    roles = {one["node_id"]: one["role"] for one in json.loads(added.stdout)["replicas"]}
    assert roles == {1: "leader", 2: "voter"}
    assert run("remove", "2").returncode == 0
    shown = run("status")
    assert "leader" in shown.stdout
    assert "observer" in shown.stdout
    refused = run("remove", "9")
    assert refused.returncode == 1
    assert "INVALID_VOTER_CHANGE" in refused.stderr
