"""A network that brings the requests of connections which their client has given up long ago."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

import quiverlog
from quiverlog.errors import DeliveryTimedOut
from tests.support.broker import BrokerProcess
from tests.support.ports import free_address
from tests.support.until import until

pytestmark = pytest.mark.process

DELIVERY_S = 2.0


class KeepingNetwork:
    """A port in front of a broker. What was connected at `keep` reaches the broker at `give`."""

    def __init__(self, address: str, behind: str) -> None:
        host, _, port = behind.rpartition(":")
        self._behind = (host, int(port))
        host, _, port = address.rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self._open: set[int] = set()
        self._kept: set[int] = set()
        self._given = threading.Event()
        self._count = 0
        self.kept_bytes = 0
        self.late_answers = 0
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def keep(self) -> None:
        self._kept = set(self._open)

    def give(self) -> None:
        self._given.set()

    def close(self) -> None:
        self.give()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, run: object, *args: object) -> None:
        threading.Thread(target=run, args=args, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._behind)
                self._sockets += [client, broker]
                self._count += 1
                self._open.add(self._count)
                self._start(self._there, self._count, client, broker)
                self._start(self._back, self._count, broker, client)

    def _there(self, number: int, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if number in self._kept:
                    self.kept_bytes += len(data)
                    self._given.wait()
                broker.sendall(data)

    def _back(self, number: int, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := broker.recv(1 << 16):
                if number in self._kept and self._given.is_set():
                    self.late_answers += 1
                with contextlib.suppress(OSError):
                    client.sendall(data)


@pytest.fixture
def kept() -> Iterator[tuple[KeepingNetwork, BrokerProcess, str]]:
    front = free_address()
    with BrokerProcess(config={"advertise": front}) as broker:
        network = KeepingNetwork(front, broker.bootstrap)
        try:
            yield network, broker, front
        finally:
            network.close()


def test_a_row_behind_one_that_was_given_up_is_stored_once_and_in_order(
    kept: tuple[KeepingNetwork, BrokerProcess, str],
) -> None:
    network, broker, front = kept
    with quiverlog.connect(front, request_timeout=30) as client:
        client.create_topic("t", "n long")
        with client.producer("t", delivery_timeout=DELIVERY_S, linger=0) as producer:
            producer.send([{"n": 0}], partition=0).result(10)
            network.keep()
            first = producer.send([{"n": 1}], partition=0)
            until(lambda: network.kept_bytes, "the row is in the network")
            second = producer.send([{"n": 2}], partition=0)
            assert isinstance(first.exception(30), DeliveryTimedOut)
            error = second.exception(30)
            third = producer.send([{"n": 3}], partition=0)
            assert third.exception(30) is None
            network.give()
            until(lambda: network.late_answers, "the broker has seen what came late")
    with quiverlog.connect(broker.bootstrap) as reader:
        batches = list(reader.consumer("t", start="earliest"))
    rows = [n for batch in batches for n in batch.data.column("n").to_pylist()]
    assert rows in ([0, 2, 3], [0, 1, 2, 3], [0, 3])
    assert (2 in rows) or error is not None
