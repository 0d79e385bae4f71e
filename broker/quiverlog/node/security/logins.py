"""Logins of clients' connections, at listeners that ask for them.

Invariant: a connection that is `awaited` gets no answer but to HELLO and AUTHENTICATE.
"""

from __future__ import annotations

from quiverlog.node.runtime.config import Asked, NodeConfig

__all__ = ["Logins"]


class Logins:
    __slots__ = ("_authentication", "awaited")

    def __init__(self, config: NodeConfig) -> None:
        self._authentication = config.authentication
        self.awaited: set[int] = set()
        """Connections that have to prove a principal before anything else."""

    def opened(self, connection_id: int, listener: str) -> None:
        at = self._authentication.get(listener)
        if at is not None and at.asked is Asked.REQUIRED:
            self.awaited.add(connection_id)

    def drop(self, connection_id: int) -> None:
        self.awaited.discard(connection_id)
