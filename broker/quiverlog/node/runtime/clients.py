"""The connections that have sent HELLO: the principal that each has proved, and the accounts that
their long polls count for (purgatory.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from quiverlog.addresses import network_of, parse_address
from quiverlog.core.security.principals import ANONYMOUS, Principal, of_user
from quiverlog.node.runtime.config import LISTENER_DEFAULT

__all__ = ["Account", "Clients"]

Account = tuple[str, int | str]
"""("connection", id), ("client", name) or ("address", network)."""


class Clients:
    """`super_users` may do everything."""

    __slots__ = (
        "_accounts",
        "_hosts",
        "_listeners",
        "_networks",
        "_principals",
        "accounts",
        "principals",
        "super_users",
    )  # fmt: skip

    def __init__(self, super_users: Iterable[str] = ()) -> None:
        self._networks: dict[int, str] = {}
        self._hosts: dict[int, str] = {}
        self._listeners: dict[int, str] = {}
        self._accounts: dict[int, tuple[Account, ...]] = {}
        self.accounts: Mapping[int, tuple[Account, ...]] = self._accounts
        self._principals: dict[int, Principal] = {}
        self.set_super_users(super_users)
        self.principals: Mapping[int, Principal] = self._principals
        """Of the connections that have proved one."""

    def opened(self, connection_id: int, peer: str, listener: str) -> None:
        """Record a connection; without a valid address in `peer` it has no address account."""
        with contextlib.suppress(ValueError):
            self._hosts[connection_id] = host = parse_address(peer).host
            self._networks[connection_id] = network_of(host)
        if listener != LISTENER_DEFAULT:
            self._listeners[connection_id] = listener

    def listener_of(self, connection_id: int) -> str:
        return self._listeners.get(connection_id, LISTENER_DEFAULT)

    def network_of(self, connection_id: int) -> str:
        """Return the network of the other end; empty: it is not known."""
        return self._networks.get(connection_id, "")

    def set_super_users(self, names: Iterable[str]) -> None:
        self.super_users = frozenset(map(of_user, names))

    def host_of(self, connection_id: int) -> str:
        """Return the address of the other end; empty: it is not known."""
        return self._hosts.get(connection_id, "")

    def principal_of(self, connection_id: int) -> Principal:
        """Return what the connection has proved."""
        return self._principals.get(connection_id, ANONYMOUS)

    def authenticated(self, connection_id: int, principal: Principal) -> None:
        known = self._principals.setdefault(connection_id, principal)
        assert known == principal, "a connection never becomes another's"

    def client_id_of(self, connection_id: int) -> str:
        """Return the name in its HELLO; empty: none was sent."""
        return next(
            (str(name) for kind, name in self._accounts.get(connection_id, ()) if kind == "client"),
            "",
        )

    def on_hello(self, connection_id: int, client_id: str) -> None:
        """Give the connection its accounts; long polls that it has parked keep their old ones."""
        # A client can invent names and open many connections, but has few addresses.
        accounts: list[Account] = [("connection", connection_id), ("client", client_id)]
        address = self._networks.get(connection_id)
        if address:
            accounts.append(("address", address))
        self._accounts[connection_id] = tuple(accounts)

    def drop(self, connection_id: int) -> None:
        self._accounts.pop(connection_id, None)
        self._networks.pop(connection_id, None)
        self._hosts.pop(connection_id, None)
        self._listeners.pop(connection_id, None)
        self._principals.pop(connection_id, None)
