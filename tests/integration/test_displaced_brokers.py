"""Three broker processes, and something else in the name of one of them.

A client that speaks in its name: it is refused, or the broker comes back by itself. A process on a
copy of its disk, or that disk in an earlier state: the live one keeps its place, no row is lost.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

import quiverlog
from quiverlog.errors import DuplicateNodeId, QuiverlogError
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisteredListener,
)
from tests.support.broker import BrokerProcess
from tests.support.growing import Typed, typed
from tests.support.ports import free_address
from tests.support.rawclient import RawClient
from tests.support.until import until

pytestmark = pytest.mark.process

CLUSTER = "displaced"
SEEDS = "controller.quorum.bootstrap.servers"


class Brokers:
    """Three. `last`: more keys for the third, which is then no voter."""

    def __init__(self, stack: ExitStack, last: Mapping[str, object] | None = None) -> None:
        self.stack = stack
        self.by_id: dict[int, BrokerProcess] = {}
        for node_id in (1, 2, 3):
            config: dict[str, object] = {"node.id": node_id, "cluster.id": CLUSTER}
            if self.by_id:
                config[SEEDS] = f"1@{self.by_id[1].bootstrap}"
            if node_id == 3:
                config |= last or {}
            self.by_id[node_id] = stack.enter_context(BrokerProcess(config=config))
        voters = 1 if last else 3
        until(lambda: len(self.live()) == 3 and len(self.directories()) == voters, "all are live")

    def described(self) -> quiverlog.ClusterDetail | None:
        where = ",".join(one.bootstrap for one in self.by_id.values())
        try:
            with quiverlog.connect(where, request_timeout=5.0) as client:
                return client.describe_cluster()
        except QuiverlogError:
            return None

    def live(self) -> dict[int, tuple[str, int]]:
        """Epoch and address of the brokers that count."""
        found = self.described()
        brokers = () if found is None else found.brokers
        return {
            one.node_id: (f"{one.host}:{one.port}", one.broker_epoch)
            for one in brokers
            if not one.fenced and not one.in_shutdown
        }

    def directories(self) -> dict[int, str]:
        found = self.described()
        return {} if found is None else {one.node_id: one.directory_id for one in found.voters}

    @property
    def controller(self) -> int:
        until(lambda: self._controller() >= 0, "a controller")
        return self._controller()

    def _controller(self) -> int:
        found = self.described()
        return -1 if found is None or found.controller is None else found.controller

    def other(self) -> int:
        return min({1, 2, 3} - {self.controller})

    def is_back(self, node_id: int) -> bool:
        return self.is_at(node_id, self.by_id[node_id])

    def is_at(self, node_id: int, process: BrokerProcess) -> bool:
        at = self.live().get(node_id)
        return at is not None and at[0] == process.bootstrap

    def type(self, *words: str) -> Typed:
        running = [one.bootstrap for one in self.by_id.values() if one.running]
        return typed(*words, "-b", ",".join(running))

    def decides(self, node_id: int) -> bool:
        """True when it does; else it may do so next."""
        if (controller := self.controller) != node_id:
            self.by_id[controller].restart()
        return controller == node_id

    def copied(self, node_id: int, to: Path) -> tuple[BrokerProcess, str]:
        """A process on a copy of a broker's disk, for which that was stopped, and its address."""
        broker = self.by_id[node_id]
        broker.stop()
        shutil.copytree(broker.data_dir, to)
        broker.start()
        until(lambda: self.is_back(node_id), "it is back")
        at = free_address("127.0.0.1:0")
        return BrokerProcess(data_dir=to, config=broker.config, listen=at), at

    def shows_two_processes(self) -> str:
        status = self.type("cluster", "status")
        return status.out if status.code == 1 and "Two processes" in status.out else ""


class Rows:
    """Rows that all replicas in sync have had, sent while things happen, and read at the end."""

    def __init__(self, brokers: Brokers) -> None:
        where = ",".join(one.bootstrap for one in brokers.by_id.values())
        self.client = brokers.stack.enter_context(quiverlog.connect(where))
        self.client.create_topic("t", "n long", partitions=3)
        self.acknowledged: list[int] = []

    def send(self, count: int = 30) -> None:
        first = len(self.acknowledged)
        numbers = list(range(first, first + count))
        with self.client.producer("t", durability="replicated") as producer:
            for number in numbers:
                producer.send({"n": number})
        self.acknowledged += numbers

    def are_all_in_sync(self) -> bool:
        partitions = self.client.metadata().topics["t"].partitions
        return all(len(one.in_sync_replicas) == 3 for one in partitions)

    def are_led(self) -> bool:
        return all(one.leader >= 0 for one in self.client.metadata().topics["t"].partitions)

    def check(self) -> None:
        found = self.client.read("t").to_arrow()["n"].to_pylist()
        assert sorted(found) == self.acknowledged, "each acknowledged row once"


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


@pytest.fixture(scope="module")
def unharmed() -> Iterator[Brokers]:
    """Three that no test kills."""
    with ExitStack() as stack:
        yield Brokers(stack)


def register_in_its_name(brokers: Brokers, node_id: int, at: tuple[str, int]) -> None:
    directory = brokers.directories()[node_id]
    with RawClient(brokers.by_id[brokers.controller].address) as client:
        client.ask(
            RegisterBrokerRequest(
                cluster_id=CLUSTER,
                node_id=node_id,
                incarnation=secrets.token_bytes(16),
                directory_id=directory,
                host=at[0],
                port=at[1],
                listeners=[RegisteredListener("default", *at)],
                feature_level_max=FEATURE_LEVEL_MAX,
            )
        )


def test_a_broker_in_whose_name_a_client_registers_is_back_after_a_session(
    unharmed: Brokers,
) -> None:
    """One REGISTER_BROKER kept the broker fenced until an operator restarted it."""
    node_id = unharmed.other()
    broker = unharmed.by_id[node_id]
    register_in_its_name(unharmed, node_id, broker.address)
    until(lambda: "another process is registered with this node id" in broker.log_text, "a line")
    until(lambda: unharmed.is_back(node_id), "it is back")
    pair = f'at="{broker.bootstrap}",other_at="{broker.bootstrap}"'
    assert pair.replace('"', "").replace(",", " ") in broker.log_text
    with urlopen(f"http://{broker.http}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    assert f"quiverlog_displaced_total{{{pair}}} 1.0" in lines
    with urlopen(f"http://{broker.http}/readyz", timeout=5) as answer:
        assert answer.status == 200


def test_a_client_that_registers_in_a_brokers_name_elsewhere_is_refused(unharmed: Brokers) -> None:
    """One REGISTER_BROKER put the broker out for a session."""
    node_id = unharmed.other()
    broker, before = unharmed.by_id[node_id], unharmed.live()
    with pytest.raises(DuplicateNodeId, match=f"at {broker.bootstrap}, and alive"):
        register_in_its_name(unharmed, node_id, ("10.66.66.66", 666))
    until(lambda: "second_at=10.66.66.66:666" in broker.log_text, "the broker logs it")
    assert unharmed.live() == before


def test_a_broker_in_whose_name_a_client_wants_to_stop_is_back_after_a_session(
    unharmed: Brokers,
) -> None:
    for node_id in (unharmed.other(), unharmed.controller):
        epoch = unharmed.live()[node_id][1]
        with RawClient(unharmed.by_id[unharmed.controller].address) as client:

            def is_held(node_id: int = node_id, epoch: int = epoch, c: RawClient = client) -> bool:
                beat = BrokerHeartbeatRequest(
                    cluster_id=CLUSTER,
                    node_id=node_id,
                    broker_epoch=epoch,
                    metadata_version=2**40,
                    wants_to_stop=True,
                )
                c.ask(beat)
                return node_id not in unharmed.live()

            until(is_held, "it is held")
        until(lambda: unharmed.is_back(node_id), "it is back")  # noqa: B023
        assert "held for stopping" in unharmed.by_id[node_id].log_text


@pytest.mark.parametrize(
    "is_controller",
    [
        pytest.param(False, id="follower"),
        pytest.param(True, id="controller", marks=pytest.mark.long),
    ],
)
def test_of_two_processes_on_copies_of_a_disk_the_one_that_lives_keeps_the_place(
    brokers: Brokers, tmp_path: Path, *, is_controller: bool
) -> None:
    """The copy took the place, and while both lived none of them had it: the leader of the quorum
    sent its messages to the one that had spoken last."""
    node_id = brokers.other()
    rows = Rows(brokers)
    rows.send()
    twin, twin_at = brokers.copied(node_id, tmp_path / "copy")
    if is_controller:
        until(lambda: brokers.decides(node_id), "it decides")
    until(rows.are_all_in_sync, "all in sync")
    broker, before = brokers.by_id[node_id], brokers.live()
    twin.launch()
    try:
        until(lambda: "another broker has this node id" in twin.log_text, "the copy is refused")
        assert broker.bootstrap in twin.log_text.split("another broker has this node id")[1]
        until(lambda: f"second_at={twin_at}" in broker.log_text, "the broker logs it")
        shown = " ".join(until(brokers.shows_two_processes, "cluster status shows it").split())
        words = f"Two processes have node id {node_id}: the broker, at {broker.bootstrap}, and one"
        assert f"{words} at {twin_at}, which is refused." in shown
        doctor = brokers.type("doctor", "--no-spark")
        assert (doctor.code, words in " ".join(doctor.out.split())) == (4, True), doctor
        rows.send()
        assert rows.are_led()
        assert rows.are_all_in_sync()
        assert brokers.live() == before, "none has registered"
        assert twin.running
    finally:
        twin.kill()
    rows.check()


@pytest.mark.long
def test_a_copy_of_a_disk_has_the_place_when_the_session_of_the_first_has_ended(
    tmp_path: Path,
) -> None:
    """And then the first is the one that is refused. (Without a vote: see the next test.)"""
    with ExitStack() as stack:
        brokers = Brokers(stack, {"controller.quorum.auto.join": False})
        rows = Rows(brokers)
        twin, _ = brokers.copied(3, tmp_path / "copy")
        rows.send()
        until(rows.are_all_in_sync, "all in sync")
        broker, controller = brokers.by_id[3], brokers.by_id[1]
        twin.launch()
        try:
            until(lambda: "another broker has this node id" in twin.log_text, "it is refused")
            broker.kill()
            twin.wait_ready()
            until(lambda: brokers.is_at(3, twin), "the copy has the place")
            before = brokers.live()
            broker.launch()
            words = "another broker has this node id"
            until(lambda: words in broker.log_text, "the first is refused")
            until(lambda: f"second_at={broker.bootstrap}" in twin.log_text, "the copy logs it")
            rows.send()
            until(rows.are_all_in_sync, "all in sync")
            assert brokers.live() == before
        finally:
            twin.kill()
        broker.wait_ready()
        until(lambda: brokers.is_back(3), "it has its place again")
        until(rows.are_all_in_sync, "all in sync")
        assert controller.log_text.count("broker registers") <= 7
        rows.check()


@pytest.mark.long
def test_a_disk_of_a_voter_in_an_earlier_state_does_not_take_the_place_of_the_newer_one(
    brokers: Brokers, tmp_path: Path
) -> None:
    """The earlier disk registered, got no decisions, and kept the newer one out while it ran."""
    node_id = brokers.other()
    rows = Rows(brokers)
    rows.send()
    twin, _ = brokers.copied(node_id, tmp_path / "earlier")
    rows.send()
    until(rows.are_all_in_sync, "all in sync")
    broker = brokers.by_id[node_id]
    broker.kill()
    until(lambda: node_id not in brokers.live(), "its session is over")
    twin.launch()
    try:
        until(lambda: "EARLIER_DISK_STATE" in twin.log_text, "it is refused")
        assert "acknowledged" in twin.log_text
        broker.start()
        until(lambda: brokers.is_back(node_id), "the newer disk has its place")
        rows.send()
        until(rows.are_all_in_sync, "all in sync")
    finally:
        twin.kill()
    rows.check()


def test_a_disk_in_an_earlier_state_costs_no_acknowledged_row(tmp_path: Path) -> None:
    """Without a vote it takes the place while the newer one is down: rows are on two more disks."""
    with ExitStack() as stack:
        brokers = Brokers(stack, {"controller.quorum.auto.join": False})
        rows = Rows(brokers)
        rows.send()
        twin, _ = brokers.copied(3, tmp_path / "earlier")
        rows.send()
        until(rows.are_all_in_sync, "all in sync")
        brokers.by_id[3].kill()
        until(lambda: 3 not in brokers.live(), "its session is over")
        twin.launch()
        stack.callback(twin.kill)
        twin.wait_ready()
        until(lambda: brokers.is_at(3, twin), "the earlier disk has the place")
        until(rows.are_all_in_sync, "it has copied what it lacked")
        rows.send()
        brokers.by_id[2].kill()
        until(rows.are_led, "all are led")
        rows.check()
