"""Three broker processes, and a client that speaks in the name of one: it comes back by itself."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

import quiverlog
from quiverlog.errors import QuiverlogError
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisteredListener,
)
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient
from tests.support.until import until

pytestmark = pytest.mark.process

CLUSTER = "displaced"
SEEDS = "controller.quorum.bootstrap.servers"


class Brokers:
    def __init__(self, stack: ExitStack) -> None:
        self.by_id: dict[int, BrokerProcess] = {}
        for node_id in (1, 2, 3):
            config: dict[str, object] = {"node.id": node_id, "cluster.id": CLUSTER}
            if self.by_id:
                config[SEEDS] = f"1@{self.by_id[1].bootstrap}"
            self.by_id[node_id] = stack.enter_context(BrokerProcess(config=config))
        until(lambda: len(self.live()) == 3 and len(self.directories()) == 3, "three voters")

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
        at = self.live().get(node_id)
        return at is not None and at[0] == self.by_id[node_id].bootstrap


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


def test_a_broker_in_whose_name_a_client_registers_is_back_after_a_session(
    brokers: Brokers,
) -> None:
    """One REGISTER_BROKER kept the broker fenced until an operator restarted it."""
    node_id, directory = brokers.other(), brokers.directories()
    with RawClient(brokers.by_id[brokers.controller].address) as client:
        client.ask(
            RegisterBrokerRequest(
                cluster_id=CLUSTER,
                node_id=node_id,
                incarnation=secrets.token_bytes(16),
                directory_id=directory[node_id],
                host="10.66.66.66",
                port=666,
                listeners=[RegisteredListener("default", "10.66.66.66", 666)],
                feature_level_max=FEATURE_LEVEL_MAX,
            )
        )
    broker = brokers.by_id[node_id]
    until(lambda: "another process is registered with this node id" in broker.log_text, "a line")
    until(lambda: brokers.is_back(node_id), "it is back")
    assert "other_at=10.66.66.66:666" in broker.log_text
    assert f"at={broker.bootstrap}" in broker.log_text
    with urlopen(f"http://{broker.http}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    pair = f'{{at="{broker.bootstrap}",other_at="10.66.66.66:666"}}'
    assert f"quiverlog_displaced_total{pair} 1.0" in lines
    with urlopen(f"http://{broker.http}/readyz", timeout=5) as answer:
        assert answer.status == 200


def test_a_broker_in_whose_name_a_client_wants_to_stop_is_back_after_a_session(
    brokers: Brokers,
) -> None:
    for node_id in (brokers.other(), brokers.controller):
        epoch = brokers.live()[node_id][1]
        with RawClient(brokers.by_id[brokers.controller].address) as client:

            def is_held(node_id: int = node_id, epoch: int = epoch, c: RawClient = client) -> bool:
                beat = BrokerHeartbeatRequest(
                    cluster_id=CLUSTER,
                    node_id=node_id,
                    broker_epoch=epoch,
                    metadata_version=2**40,
                    wants_to_stop=True,
                )
                c.ask(beat)
                return node_id not in brokers.live()

            until(is_held, "it is held")
        until(lambda: brokers.is_back(node_id), "it is back")  # noqa: B023
        assert "held for stopping" in brokers.by_id[node_id].log_text


def test_a_copy_of_a_disk_that_was_started_does_not_keep_the_place(
    brokers: Brokers, tmp_path: Path
) -> None:
    """The copy had the place, also when it was gone, until the broker was restarted."""
    node_id = brokers.other()
    broker = brokers.by_id[node_id]
    broker.stop()
    shutil.copytree(broker.data_dir, tmp_path / "copy")
    broker.start()
    until(lambda: brokers.is_back(node_id), "it is back")
    controller = brokers.by_id[brokers.controller]
    before = controller.log_text.count('event="broker registers"')
    twin = BrokerProcess(data_dir=tmp_path / "copy", config=broker.config)
    began_s = time.monotonic()
    twin.launch()
    try:
        lost = "another process is registered with this node id"
        until(lambda: lost in broker.log_text, "it is displaced")
    finally:
        twin.kill()
    until(lambda: brokers.is_back(node_id), "it has its place again")
    registered = controller.log_text.count('event="broker registers"') - before
    assert registered <= 3 + (time.monotonic() - began_s) / 2, "at most once in a session"
