"""Which other protocol a server speaks that was taken for a broker, by its first bytes.

Owns the words for it. A broker's HTTP port stands next to its own, and is given by mistake.
"""

from __future__ import annotations

from typing import Final

from .results import Address

__all__ = ["HEAD_BYTES", "foreign_protocol"]

HEAD_BYTES: Final = 8
"""So many bytes tell."""
_TLS_RECORDS: Final = (0x15, 0x16)
"""Alert and handshake; the version's first byte follows."""
_TLS_MAJOR: Final = 3


def foreign_protocol(head: bytes, address: Address) -> str | None:
    """A sentence about the server at `address`; None if its answer begins as a broker's may."""
    if head.startswith(b"HTTP/"):
        return (
            f"{address} speaks HTTP: a broker's port for metrics, perhaps (9293 by default); its "
            "clients have another (9292 by default), which its ready line names."
        )
    if len(head) >= 2 and head[0] in _TLS_RECORDS and head[1] == _TLS_MAJOR:
        return f"{address} speaks TLS, which brokers do not yet: give the address of a broker."
    if head.startswith(b"SSH-"):
        return f"{address} speaks SSH: give the address of a broker."
    return None
