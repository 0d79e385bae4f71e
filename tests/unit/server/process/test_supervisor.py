"""The program that started the broker gets reports, and costs nothing when it cannot be reached."""

from __future__ import annotations

import socket
from unittest import mock

import pytest

from quiverlog.server.process.run import Supervisor


@pytest.mark.parametrize("fails", ["socket", "sendto"])
def test_a_supervisor_that_cannot_be_reached_costs_nothing(fails: str) -> None:
    supervisor_socket = mock.MagicMock()
    supervisor_socket.__enter__.return_value = supervisor_socket
    if fails == "sendto":
        supervisor_socket.sendto.side_effect = OSError(111, "Connection refused")
    made = mock.Mock(return_value=supervisor_socket)
    if fails == "socket":
        made.side_effect = OSError(24, "Too many open files")
    supervisor = Supervisor({"NOTIFY_SOCKET": "@somewhere"})
    with mock.patch.object(socket, "socket", made):
        supervisor.ready()
        supervisor.stopping()
    assert made.call_count == 2
    assert supervisor_socket.sendto.call_count == (2 if fails == "sendto" else 0)
