"""Reads the configuration again when it is asked to, and hands it to the running broker.

Owns the thread that reads: a file on storage that does not answer holds up neither the event loop
nor the end of the process. One reading at a time; requests during one are followed by one more.

Must not know: signals, what a changed key does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from quiverlog.errors import QuiverlogError
from quiverlog.server.config import BrokerConfig
from quiverlog.server.logs import Logger

__all__ = ["ConfigReloader"]

_EVENT = "configuration not reloaded"


class ConfigReloader:
    """See the module docstring. All methods are for the loop.

    Args:
        read: reads the configuration, in a thread; None: there is no file to read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read: Callable[[], BrokerConfig] | None,
        *,
        log: Logger,
    ) -> None:
        self._loop = loop
        self._read = read
        self._log = log
        self._apply: Callable[[BrokerConfig], None] | None = None
        self._reading = False
        self._asked_again = False

    def begin(self, apply: Callable[[BrokerConfig], None]) -> None:
        """The broker runs: from now on, what is read goes to `apply`."""
        self._apply = apply

    def request(self) -> None:
        """Read the file soon. Does not raise; whatever the file says, the broker goes on."""
        if self._read is None:
            self._log.warning(_EVENT, why="the broker was started without a file")
        elif self._apply is None:
            self._log.warning(_EVENT, why="the broker is starting")
        elif self._reading:
            self._asked_again = True
        else:
            self._start_reading(self._read)

    def _start_reading(self, read: Callable[[], BrokerConfig]) -> None:
        # A daemon: the process may end while it reads.
        thread = threading.Thread(target=self._work, args=(read,), name="config", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._log.error(_EVENT, why=str(error))
        else:
            self._reading = True

    def _work(self, read: Callable[[], BrokerConfig]) -> None:
        found: BrokerConfig | Exception
        try:
            found = read()
        except Exception as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has stopped
            self._loop.call_soon_threadsafe(self._done, found)

    def _done(self, found: BrokerConfig | Exception) -> None:
        self._reading = False
        assert self._apply is not None
        try:
            if isinstance(found, Exception):
                raise found
            self._apply(found)
        except QuiverlogError as error:
            self._log.error(_EVENT, why=error.message)
        except Exception as error:
            self._log.error(_EVENT, why=repr(error), exc_info=error)
        if self._asked_again:
            self._asked_again = False
            self.request()
