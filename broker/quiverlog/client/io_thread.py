"""The blocking client's one background thread: an event loop for its producers.

Started when the first producer is opened, stopped with the client. A daemon: a program that ends
without closing its client is not held up (its unflushed rows are lost, as the docs say).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from quiverlog.errors import ConnectionFailed

from .asynchronous import AsyncDriver
from .blocking_connection import system_reason
from .routing import Settings

__all__ = ["IoThread"]

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0


class IoThread:
    """Owns a loop, its thread and the driver that lives on it."""

    def __init__(self, settings: Settings) -> None:
        try:
            self.loop = asyncio.new_event_loop()
        except OSError as error:
            why = system_reason(error)
            raise ConnectionFailed(f"No event loop can be made for producers: {why}.") from error
        self.driver = AsyncDriver(settings)
        self._thread = threading.Thread(target=self._main, name="quiverlog-io", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine over there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """Close the connections and end the thread."""
        if self.loop.is_closed():
            return
        self.run(self.driver.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "the I/O thread does not end"

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
