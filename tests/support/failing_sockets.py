"""Sockets whose system calls fail on demand, under a client that runs unchanged.

Owns the counting and the failing: `with failing_sockets("connect", 2, error) as log:` lets the
third `connect` of a client in this process fail, and all others succeed. Both drivers are met: the
blocking one makes its sockets itself, the asyncio one has asyncio make them. What a broker in the
same process accepts is not touched, nor the option that asyncio sets while it makes a transport
(where that fails, asyncio forgets to close the socket).
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from asyncio import base_events
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

from quiverlog.client.drivers import blocking, name_lookup

__all__ = ["CallLog", "failing_sockets"]


class CallLog:
    """How often each call was made, and whether the one that was to fail did."""

    def __init__(self, name: str, nth: int, error: OSError) -> None:
        self.counts: Counter[str] = Counter()
        self.has_failed = False
        self._name, self._nth, self._error = name, nth, error
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """A call is made; raises when its turn to fail has come."""
        with self._lock:
            nth = self.counts[name]
            self.counts[name] += 1
            if (name, nth) != (self._name, self._nth):
                return
            self.has_failed = True
        raise self._error


class _Module:
    """A module, with some names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced[name] if name in self._replaced else getattr(self._module, name)


def _socket_class(log: CallLog, asyncio_s: bool = False) -> type[socket.socket]:
    class Socket(socket.socket):
        def __init__(self, *args: Any, **options: Any) -> None:
            log.count("socket")
            super().__init__(*args, **options)

    def replace(name: str) -> None:
        real = getattr(socket.socket, name)

        def call(self: Socket, *args: Any) -> Any:
            if not (asyncio_s and name == "setsockopt" and args[0] == socket.IPPROTO_TCP):
                log.count(name)
            return real(self, *args)

        setattr(Socket, name, call)

    for name in ("connect", "getsockopt", "recv_into", "send", "sendmsg", "setsockopt"):
        replace(name)
    for name in ("getpeername", "getsockname"):
        replace(name)
    return Socket


@contextlib.contextmanager
def failing_sockets(name: str, nth: int, error: OSError) -> Iterator[CallLog]:
    """Calls are counted from 0."""
    log = CallLog(name, nth, error)

    def getaddrinfo(*args: Any, **options: Any) -> Any:
        log.count("getaddrinfo")
        return socket.getaddrinfo(*args, **options)

    class Poll:
        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, timeout_ms: int) -> Any:
            log.count("poll")
            return self._poll.poll(timeout_ms)

    sockets = _Module(socket, socket=_socket_class(log))
    of_asyncio = _Module(socket, socket=_socket_class(log, True), getaddrinfo=getaddrinfo)
    with (
        mock.patch.object(blocking, "socket", sockets),
        mock.patch.object(name_lookup, "socket", _Module(socket, getaddrinfo=getaddrinfo)),
        mock.patch.object(blocking, "select", _Module(select, poll=Poll)),
        mock.patch.object(base_events, "socket", of_asyncio),
    ):
        yield log
