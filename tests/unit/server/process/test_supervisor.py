"""Whoever started the broker is told how it goes, and costs it nothing when it cannot be told."""

from __future__ import annotations

import socket
from unittest import mock

import pytest

from quiverlog.server.process.run import Supervisor


@pytest.mark.parametrize("fails", ["socket", "sendto"])
def test_a_supervisor_that_cannot_be_told_costs_nothing(fails: str) -> None:
    told = mock.MagicMock()
    told.__enter__.return_value = told
    if fails == "sendto":
        told.sendto.side_effect = OSError(111, "Connection refused")
    made = mock.Mock(return_value=told)
    if fails == "socket":
        made.side_effect = OSError(24, "Too many open files")
    supervisor = Supervisor({"NOTIFY_SOCKET": "@somewhere"})
    with mock.patch.object(socket, "socket", made):
        supervisor.ready()
        supervisor.stopping()
    assert made.call_count == 2
    assert told.sendto.call_count == (2 if fails == "sendto" else 0)
