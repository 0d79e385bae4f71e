"""The connections that may ask something, and on whose accounts their long polls go.

Owns who has said HELLO, with the name that it gave, where it comes from, and its listener.
A client can make up as many names as it likes and open many connections, but not as many addresses:
each long poll counts for its connection, for its client id and for its address (purgatory.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from quiverlog.addresses import network_of, parse_address
from quiverlog.node.runtime.config import LISTENER_DEFAULT

__all__ = ["Account", "Clients"]

Account = tuple[str, int | str]
"""Something that has a share: ("connection", its id), ("client", ...), ("address", ...)."""


class Clients:
    """See the module docstring. `accounts`: by connection, of all that have said HELLO."""

    __slots__ = ("_accounts", "_addresses", "_listeners", "accounts")

    def __init__(self) -> None:
        self._addresses: dict[int, str] = {}
        self._listeners: dict[int, str] = {}
        self._accounts: dict[int, tuple[Account, ...]] = {}
        self.accounts: Mapping[int, tuple[Account, ...]] = self._accounts

    def opened(self, connection_id: int, peer: str, listener: str) -> None:
        """A connection from this address and port; without a port nobody knows from where."""
        with contextlib.suppress(ValueError):
            self._addresses[connection_id] = network_of(parse_address(peer).host)
        if listener != LISTENER_DEFAULT:
            self._listeners[connection_id] = listener

    def listener_of(self, connection_id: int) -> str:
        """The listener that took the connection."""
        return self._listeners.get(connection_id, LISTENER_DEFAULT)

    def said_hello(self, connection_id: int, client_id: str) -> None:
        """The connection may ask from now on. Long polls that it has parked stay on the account
        of its last name."""
        accounts: list[Account] = [("connection", connection_id), ("client", client_id)]
        address = self._addresses.get(connection_id)
        if address:
            accounts.append(("address", address))
        self._accounts[connection_id] = tuple(accounts)

    def forget(self, connection_id: int) -> None:
        """A connection is closed."""
        self._accounts.pop(connection_id, None)
        self._addresses.pop(connection_id, None)
        self._listeners.pop(connection_id, None)
