"""Name lookup with a deadline, which the system's resolver lacks.

`getaddrinfo` cannot be cancelled, so each call has a daemon thread, for which neither caller nor
process waits. Concurrent lookups of a name share one.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from quiverlog.client.base.results import Address

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Found", "late_reason", "lookup", "numeric"]

Found: TypeAlias = list[tuple[Any, Any, int, str, Any]]

# By process id, too: a forked child has no threads of its parent.
_under_way: dict[tuple[int, Address], Future[Found]] = {}


def numeric(address: Address) -> Found | None:
    numbers = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        return socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=numbers
        )
    except (OSError, ValueError):
        return None


def lookup(address: Address) -> Future[Found]:
    """Start a lookup in a thread, or share one; it may fail with OSError or ValueError."""
    from concurrent.futures import Future  # most callers give numbers

    key = os.getpid(), address
    mine: Future[Found] = Future()
    found = _under_way.setdefault(key, mine)
    if found is not mine:
        return found
    mine.set_running_or_notify_cancel()  # no caller cancels it: others may wait for it
    asking = threading.Thread(target=_ask, args=(key, mine), name="quiverlog-names", daemon=True)
    try:
        asking.start()
    except RuntimeError as error:
        del _under_way[key]
        mine.set_exception(OSError(errno.EAGAIN, str(error)))
    return mine


def late_reason(address: Address, timeout_s: float) -> str:
    if (os.getpid(), address) in _under_way:
        return (
            f"The name of {address} was not resolved within {timeout_s:g} s: look at this "
            "machine's resolver (DNS), or give a numeric address."
        )
    return f"{address} did not answer within {timeout_s:g} s."


def _ask(key: tuple[int, Address], asked: Future[Found]) -> None:
    _, address = key
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except Exception as error:
        del _under_way[key]
        asked.set_exception(error)
    else:
        del _under_way[key]
        asked.set_result(found)
