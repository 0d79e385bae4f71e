"""The connections that may ask something, and on whose accounts their long polls go.

Owns who has said HELLO, with the name that it gave, and where it comes from. A client can make up
as many names as it likes and open many connections, but not as many addresses: each long poll
counts for its connection, for its client id and for its address (purgatory.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from quiverlog.addresses import network_of

__all__ = ["Account", "Clients"]

Account = tuple[str, int | str]
"""Something that has a share: ("connection", its id), ("client", ...), ("address", ...)."""


class Clients:
    """See the module docstring. `accounts`: by connection, of all that have said HELLO."""

    __slots__ = ("_accounts", "_addresses", "accounts")

    def __init__(self) -> None:
        self._addresses: dict[int, str] = {}
        self._accounts: dict[int, tuple[Account, ...]] = {}
        self.accounts: Mapping[int, tuple[Account, ...]] = self._accounts

    def opened(self, connection_id: int, peer: str) -> None:
        """A connection from this address and port; without a port nobody knows from where."""
        self._addresses[connection_id] = network_of(peer.rpartition(":")[0])

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
