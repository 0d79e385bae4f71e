"""Three broker processes; one loses its disk, and has the address of one that does not lead."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest

import quiverlog
from quiverlog.errors import QuiverlogError
from tests.support.broker import BrokerProcess
from tests.support.until import until

pytestmark = pytest.mark.process

SEEDS = "controller.quorum.bootstrap.servers"


class Brokers:
    """Brokers 1 to 3 of one cluster, all voters."""

    def __init__(self, stack: ExitStack) -> None:
        self.by_id: dict[int, BrokerProcess] = {}
        for node_id in (1, 2, 3):
            config: dict[str, object] = {"node.id": node_id, "cluster.id": "lost-disks"}
            if self.by_id:
                config[SEEDS] = f"1@{self.by_id[1].bootstrap}"
            self.by_id[node_id] = stack.enter_context(BrokerProcess(config=config))
        until(lambda: len(self.voters()) == 3, "three live voters")

    def voters(self) -> dict[int, str]:
        """The directories of the voters whose brokers are live."""
        where = ",".join(one.bootstrap for one in self.by_id.values())
        try:
            with quiverlog.connect(where, request_timeout=5.0) as client:
                found = client.describe_cluster()
        except QuiverlogError:
            return {}
        live = {one.node_id for one in found.brokers if not one.fenced}
        return {one.node_id: one.directory_id for one in found.voters if one.node_id in live}

    def leader(self) -> int:
        with quiverlog.connect(self.by_id[1].bootstrap) as client:
            found = client.describe_cluster().controller
        assert found is not None
        return found


def test_a_broker_with_an_emptied_disk_finds_a_leader_that_is_not_on_its_list() -> None:
    """The listed brokers followed the leader, and answered nothing: the start never ended."""
    with ExitStack() as stack:
        brokers = Brokers(stack)
        leader = brokers.leader()
        lost, other = sorted({1, 2, 3} - {leader})
        before = brokers.voters()
        broker = brokers.by_id[lost]
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.config[SEEDS] = f"{other}@{brokers.by_id[other].bootstrap}"
        broker.start()
        until(lambda: len(brokers.voters()) == 3, "its vote is back")
        until(lambda: brokers.voters().get(lost) not in (None, before[lost]), "under its new disk")


def test_a_broker_that_waits_for_the_metadata_hides_no_answer_of_the_others() -> None:
    """`cluster status` with all addresses ended with BROKER_SHUTTING_DOWN."""
    with ExitStack() as stack:
        brokers = Brokers(stack)
        waits = brokers.by_id[3]
        waits.kill()
        shutil.rmtree(waits.data_dir)
        waits.config[SEEDS] = "1@127.0.0.1:1"
        waits.launch()
        until(lambda: "waiting for the metadata" in waits.log_text, "it waits")
        where = ",".join(brokers.by_id[n].bootstrap for n in (3, 1, 2))

        def is_refused() -> bool:
            """Clients reach the broker that waits: it refuses them."""
            try:
                quiverlog.connect(waits.bootstrap, request_timeout=2.0).close()
            except QuiverlogError as error:
                return "BROKER_SHUTTING_DOWN" in str(error)
            return False

        until(is_refused, "a refusal")
        command = (sys.executable, "-m", "quiverlog", "cluster", "status", "-b", where)
        shown = subprocess.run(
            (*command, "--format", "json"), capture_output=True, text=True, timeout=60, check=False
        )
        assert "BROKER_SHUTTING_DOWN" not in shown.stderr
        found = json.loads(shown.stdout)
        assert found["cluster_id"] == "lost-disks", found
