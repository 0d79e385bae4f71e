"""Ports for servers that go away and come back to the same one.

The system gives any outgoing connection a port of its ephemeral range, perhaps that of a killed
broker. Ports below that range are only given on request.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port", "is_free"]

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RANGE_START_USUAL = 32_768
_UNPRIVILEGED_MIN = 1_024
_TRIES_MAX = 200


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port without a listener. Raises OSError when 200 tries find none."""
    first = _ephemeral_start() // 2
    last_error: OSError | None = None
    for _ in range(_TRIES_MAX):
        # Not of a seeded generator: several processes search at the same time.
        port = random.SystemRandom().randrange(max(first, _UNPRIVILEGED_MIN), first * 2)
        try:
            _listen(host, port)
        except OSError as error:
            last_error = error
        else:
            return port
    assert last_error is not None
    raise last_error


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen there now."""
    try:
        _listen(host, port)
    except OSError:
        return False
    return True


def _listen(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family):
        pass


def _ephemeral_start() -> int:
    if not _RANGE_FILE.exists():
        return _RANGE_START_USUAL
    start = int(_RANGE_FILE.read_text().split()[0])
    return start if start >= 2 * _UNPRIVILEGED_MIN else _RANGE_START_USUAL
