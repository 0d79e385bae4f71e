"""Local reads with real broker processes: which clients get files, turning it off, and crashes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.wire import messages as m
from tests.support.broker import BrokerProcess, ordinary_environment
from tests.support.metrics import metrics
from tests.support.rawclient import RawClient, make_batch

EXPECTED = list(range(100_000))
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as broker:
        yield broker


def fill(client: quiverlog.Client, topic: str = "t") -> None:
    client.create_topic(topic, SCHEMA)
    with client.producer(topic, batch_rows=20_000, compression="none") as producer:
        producer.send(pa.table({"id": EXPECTED}))


def ids(client: quiverlog.Client, topic: str = "t") -> list[int]:
    found: list[int] = client.read(topic).to_arrow()["id"].to_pylist()
    return found


def local_bytes(broker: BrokerProcess) -> float:
    return metrics(broker)["local_read_bytes_total"]


def test_rows_are_read_from_files_until_it_is_turned_off(broker: BrokerProcess) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        fill(client)
        assert local_bytes(broker) == 0
        sent = metrics(broker)["network_sent_bytes_total"]
        assert ids(client) == EXPECTED
        counted = local_bytes(broker)
        assert counted >= len(EXPECTED) * 8
        assert metrics(broker)["network_sent_bytes_total"] - sent < counted / 10
        client.alter_configs({"local.reads": "false"}, broker=0)
        assert ids(client) == EXPECTED
        assert local_bytes(broker) == counted
        client.alter_configs({"local.reads": None}, broker=0)
        assert ids(client) == EXPECTED
        assert local_bytes(broker) == 2 * counted


class FromElsewhere(RawClient):
    """A client whose end of the connection has another address than the broker's."""

    def __init__(self, address: tuple[str, int]) -> None:
        real = socket.socket.connect

        def connect(self: socket.socket, to: tuple[str, int]) -> None:
            self.bind(("127.0.0.2", 0))
            real(self, to)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "connect", connect)
            super().__init__(address)


@pytest.mark.parametrize(("kind", "gets_paths"), [(RawClient, True), (FromElsewhere, False)])
def test_only_this_machine_gets_paths_of_files(
    broker: BrokerProcess, kind: type[RawClient], gets_paths: bool
) -> None:
    with kind(broker.address) as client:
        topic = client.create_topic("raw")
        client.produce(topic, make_batch(0, 10_000))
        request = m.FetchRequest(partitions=[m.FetchPartition(topic, 0)], file_ranges=True)
        response, body = client.ask_for_body(request)
        (result,) = response.partitions
        assert bool(result.file_ranges) is gets_paths
        assert len(body) == (0 if gets_paths else result.batch_bytes)
        assert result.batch_bytes >= 64 * 1024


AS_ANOTHER_USER = """
import os, sys, quiverlog
with quiverlog.connect(sys.argv[1]) as client:
    client.read("few").to_arrow()  # has all modules imported, which others may not read either
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    print(sum(client.read("t").to_arrow()["id"].to_pylist()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_has_the_rows_sent(broker: BrokerProcess) -> None:
    """A client that may not open the files gets their paths, and no more."""
    with quiverlog.connect(broker.bootstrap) as client:
        fill(client)
        client.create_topic("few", SCHEMA)
        with client.producer("few") as producer:
            producer.send([{"id": 1}])
    assert Path(broker.data_dir).stat().st_mode & 0o077 == 0
    sent = metrics(broker)["network_sent_bytes_total"]
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, broker.bootstrap],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=ordinary_environment(),
    )
    assert int(done.stdout) == sum(EXPECTED)
    after = metrics(broker)["network_sent_bytes_total"]
    assert after - sent >= len(EXPECTED) * 8


def test_a_reader_goes_on_when_its_broker_was_killed(broker: BrokerProcess) -> None:
    """The rows of a batch in hand stay what they are; the next ones come from the next life."""
    with quiverlog.connect(broker.bootstrap) as client:
        fill(client)
        with client.consumer("t", start="earliest", fetch_bytes=65_536) as consumer:
            first = next(consumer)
            broker.restart(kill=True)
            found = first.data["id"].to_pylist()
            while len(found) < len(EXPECTED):
                found += next(consumer).data["id"].to_pylist()
    assert found == EXPECTED
    assert local_bytes(broker) > 0


def test_rows_that_retention_takes_are_not_read_from_files(broker: BrokerProcess) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        fill(client)
        reading = client.read("t")
        client.delete_records("t", {0: 40_000})
        with pytest.raises(quiverlog.errors.OffsetOutOfRange):
            reading.to_arrow()
        assert ids(client) == EXPECTED[40_000:]
