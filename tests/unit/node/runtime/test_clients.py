"""Where connections come from, as it counts for their long polls."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quiverlog.node.runtime.clients import Clients
from quiverlog.server.net.peer import peer_name


class Transport:
    """The kernel's side of a connection."""

    def __init__(self, peer: tuple[Any, ...] | None) -> None:
        self._peer = peer

    def get_extra_info(self, name: str) -> Any:
        assert name == "peername"
        return self._peer


def address_of(peer: tuple[Any, ...] | None) -> str | None:
    """The account of a client at this end of a connection."""
    clients = Clients()
    clients.opened(1, peer_name(cast("asyncio.BaseTransport", Transport(peer))), "default")
    clients.on_hello(1, "c")
    found = [name for kind, name in clients.accounts[1] if kind == "address"]
    assert len(found) <= 1
    return cast("str", found[0]) if found else None


@pytest.mark.parametrize(
    "peer",
    [
        ("10.0.0.1", 5000),
        ("::1", 5000, 0, 0),
        ("2001:db8::7", 80, 0, 0),
        ("fe80::1%eth0", 80, 0, 2),
        ("::ffff:10.0.0.1", 80, 0, 0),
    ],
)
def test_an_address_has_one_account_whatever_its_port(peer: tuple[Any, ...]) -> None:
    found = address_of(peer)
    assert found
    assert found == address_of((peer[0], 1, *peer[2:])), "another port is the same client"
    assert found != address_of(("192.0.2.1", 1))


def test_a_connection_that_is_gone_has_no_address() -> None:
    assert address_of(None) is None


def test_addresses_of_one_network_share_an_account() -> None:
    one, other = address_of(("2001:db8::7", 80, 0, 0)), address_of(("2001:db8::8", 81, 0, 0))
    assert one == other
    assert one != address_of(("2001:db8:0:1::7", 80, 0, 0))
    assert address_of(("::ffff:10.0.0.1", 80, 0, 0)) == address_of(("10.0.0.1", 81))
