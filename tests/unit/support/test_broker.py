"""The broker that other tests script leaves nothing open, whenever it is stopped."""

from __future__ import annotations

import gc
import socket
import sys

import pytest

from tests.support.scripted_broker import ScriptedBroker


def test_clients_that_come_while_it_stops_leave_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: left.append(str(event.exc_value)))
    for clients in range(1, 12):
        with ScriptedBroker() as broker:
            address = ("127.0.0.1", broker.port)
            opened = [socket.create_connection(address) for _ in range(clients)]
        for client in opened:
            client.close()
    gc.collect()
    assert not left
