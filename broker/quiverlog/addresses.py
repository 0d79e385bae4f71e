"""Addresses as people write them: `host:port`, `[::1]:9292`. The only parser there is.

Errors are ValueErrors that name what is wrong with the text; the caller adds the option, flag or
argument.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

__all__ = [
    "BOOTSTRAP_DEFAULT",
    "BOOTSTRAP_VARIABLE",
    "PORT_DEFAULT",
    "SECURITY_VARIABLE",
    "Address",
    "network_of",
    "parse_address",
    "parse_addresses",
]

PORT_DEFAULT: Final = 9292
BOOTSTRAP_DEFAULT: Final = f"127.0.0.1:{PORT_DEFAULT}"
SECURITY_VARIABLE: Final = "QUIVERLOG_SECURITY_FILE"
BOOTSTRAP_VARIABLE: Final = "QUIVERLOG_BOOTSTRAP_SERVER"
PORT_MAX: Final = 65_535
HOST_CHARS_MAX: Final = 255
_EXAMPLE: Final = "127.0.0.1:9292"


class Address(NamedTuple):
    """A host and a port; its text can be parsed again."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, port_default: int | None = None, port_min: int = 1) -> Address:
    """Parse an address.

    An IPv6 address with a port is written in brackets; without a port the brackets may be left out.

    Args:
        port_default: what a missing port means; None refuses a missing port.
        port_min: 0 where a server may be asked to take any free port.

    Raises:
        ValueError: with a sentence about `text`.
    """
    assert 0 <= port_min <= 1, port_min
    host, port = _split(text.strip())
    if port is None and port_default is not None:
        number = port_default
    else:
        # `int` would also take signs, blanks and digits of other scripts.
        digits = port is not None and port.isascii() and port.isdigit() and len(port) <= 5
        number = int(port) if digits and port is not None else -1
    if not _is_host(host) or not port_min <= number <= PORT_MAX:
        raise ValueError(f"{text!r} is not host:port (for example {_EXAMPLE})")
    return Address(host, number)


def network_of(host: str) -> str:
    """Return an IP address as text; of IPv6 its /64, in which a machine may choose any address.

    Text that is no IP address is returned unchanged.
    """
    try:
        # A zone (`fe80::1%eth0`) names this machine's interface.
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:  # An IPv4 client at a socket for both families.
        return str(address.ipv4_mapped)
    return f"{address.packed[:8].hex(':', 2)}::/64"


def parse_addresses(text: str, *, port_default: int | None = None) -> tuple[Address, ...]:
    """Parse one or more addresses, separated by commas; each once, in their order.

    Raises:
        ValueError: no address, or one that cannot be read.
    """
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"at least one address is needed, as host:port (for example {_EXAMPLE})")
    return tuple(dict.fromkeys(parse_address(part, port_default=port_default) for part in parts))


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return "", None
        return host, rest[1:] if rest else None
    if text.count(":") > 1:  # an IPv6 address without brackets cannot carry a port
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _is_host(host: str) -> bool:
    return (
        0 < len(host) <= HOST_CHARS_MAX
        and host.isprintable()
        and not any(character in "/[]@?#, \\" for character in host)
    )
