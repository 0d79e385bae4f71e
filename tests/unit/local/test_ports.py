"""Ports for brokers that come back to the same one."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from quiverlog.local import ports
from quiverlog.local.ports import free_port, is_free


class Refusing:
    """`socket.create_server` that the system refuses this many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.calls = 0
        self._real = socket.create_server

    def __call__(self, address: tuple[str, int], *, family: socket.AddressFamily) -> socket.socket:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real((address[0], 0), family=family)


def test_a_free_port_is_below_those_that_the_system_gives_away() -> None:
    port = free_port()
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1_024 <= port < first
    assert is_free(port)


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not is_free(taken.getsockname()[1])


@pytest.mark.parametrize("refused", [1, 199])
def test_another_port_is_tried_when_one_is_refused(
    refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(refused)
    monkeypatch.setattr(ports.socket, "create_server", refusing)
    assert free_port() > 0
    assert refusing.calls == refused + 1


def test_tries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(10_000)
    monkeypatch.setattr(ports.socket, "create_server", refusing)
    with pytest.raises(OSError, match="Too many open files"):
        free_port()
    assert refusing.calls == 200
    assert not is_free(1)
