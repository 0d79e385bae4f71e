"""Clients take all places of a cluster's brokers, and more come: brokers still reach each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

import quiverlog
from quiverlog.errors import TooManyConnectionsFromAddress
from quiverlog.server.process.descriptors import OPERATORS_MAX
from tests.support.broker import BrokerProcess
from tests.support.growing import GrowingCluster
from tests.support.metrics import metrics
from tests.support.rawclient import RawClient
from tests.support.until import slack, until

pytestmark = pytest.mark.process

CONNECTIONS_MAX = 40
FLOODERS = 3
"""Threads that take any place that becomes free."""
SILENT_EVERY = 5
"""One of this many connections sends nothing, and waits for its refusal."""


@contextlib.contextmanager
def flooded(address: tuple[str, int]) -> Iterator[list[RawClient]]:
    """Clients hold all places, and new ones come as fast as they are refused."""
    held: list[RawClient] = []
    ends = threading.Event()

    def flood() -> None:
        count = 0
        while not ends.is_set():
            count += 1
            with contextlib.suppress(Exception):
                held.append(RawClient(address, hello=count % SILENT_EVERY > 0, timeout=2))

    threads = [threading.Thread(target=flood) for _ in range(FLOODERS)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(held) > CONNECTIONS_MAX, "more connections than places")
        yield held
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        for client in held:
            client.close()


def test_a_broker_that_starts_again_finds_its_place_in_a_flood() -> None:
    config = {"connections.max": CONNECTIONS_MAX, "broker.session.ms": 3_000}
    with GrowingCluster(**config) as cluster:
        cluster.grow(2)
        with quiverlog.connect(cluster.bootstrap) as client:
            controller = client.describe_cluster().controller
        assert controller is not None
        others = [node for node in cluster.by_id if node != controller]
        with flooded(cluster.by_id[controller].address):
            for node in others:
                cluster.by_id[node].restart(kill=True)
                assert cluster.by_id[node].start_seconds < 10 * slack()
        until(cluster.is_whole, "three live brokers and voters")


def test_an_address_has_its_bound_and_the_refusal_names_it() -> None:
    config = {"connections.max.per.address": 5}
    with BrokerProcess(config=config) as broker, contextlib.ExitStack() as crowd:
        for _ in range(5 + OPERATORS_MAX):  # this machine has some more
            crowd.enter_context(RawClient(broker.address))
        with pytest.raises(TooManyConnectionsFromAddress, match=r"127.0.0.1 has 5 connections"):
            RawClient(broker.address)
        with pytest.raises(TooManyConnectionsFromAddress, match=r"connections.max.per.address"):
            quiverlog.connect(broker.bootstrap)
        found = metrics(broker)
        name = TooManyConnectionsFromAddress.code_name()
        assert found[f'connections_refused_total{{error="{name}"}}'] == 2
        assert found['connection_places{place="client"}'] == 5
        assert found['connection_places{place="operator"}'] == OPERATORS_MAX
