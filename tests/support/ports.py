"""Addresses for servers that go away and come back to the same one (`quiverlog.local.ports`)."""

from __future__ import annotations

from quiverlog.local.ports import free_port

__all__ = ["free_address", "free_port"]


def free_address(address: str = "127.0.0.1:0") -> str:
    """The address, with a free port in place of port 0."""
    host, _, port = address.rpartition(":")
    return address if port != "0" else f"{host}:{free_port(host.strip('[]'))}"
