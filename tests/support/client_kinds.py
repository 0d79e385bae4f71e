"""The blocking and the asyncio client behind one interface, so that one suite runs over both.

Owns a loop in a thread for the asyncio client, and turns its coroutines into calls that wait. Must
not smooth over differences: arguments, results and errors pass through untouched.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import quiverlog
import quiverlog.aio

__all__ = ["CLIENT_KINDS", "connect"]

CLIENT_KINDS = ("blocking", "asyncio")
OURS = {
    "quiverlog.client.producer.async_producer",
    "quiverlog.client.consumer.async_consumer",
    "quiverlog.client.consumer.async_reading",
    "quiverlog.client.groups.async_group_consumer",
    "quiverlog.client.transactions.async_transaction",
}
"""Where the classes are defined whose methods may be coroutines."""


def connect(kind: str, bootstrap: Any, **options: Any) -> Any:
    """A client of the given kind; use it with `with`."""
    if kind == "blocking":
        return quiverlog.connect(bootstrap, **options)
    return _connect_asyncio(bootstrap, options)


def _connect_asyncio(bootstrap: Any, options: dict[str, Any]) -> _Waiting:
    loop = _Loop()
    try:
        client = loop.wait(_awaited(quiverlog.aio.connect(bootstrap, **options)))
    except BaseException:
        loop.stop()
        raise
    return _Waiting(client, loop, owns_loop=True)


async def _awaited(thing: Any) -> Any:
    return await thing


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class _Waiting:
    """Wraps an asyncio object; what is a coroutine there is a plain call here."""

    def __init__(self, wrapped: Any, loop: _Loop, *, owns_loop: bool = False) -> None:
        self._wrapped = wrapped
        self._waiting_loop = loop
        self._owns_loop = owns_loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        return self._call(found) if callable(found) else found

    def _call(self, function: Any) -> Any:
        async def invoke(args: Any, kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        def call(*args: Any, **kwargs: Any) -> Any:
            if function.__name__ == "send":  # its result is awaitable itself: one await only
                return self._wrap(self._waiting_loop.wait(function(*args, **kwargs)))
            return self._wrap(self._waiting_loop.wait(invoke(args, kwargs)))

        return call

    def _wrap(self, value: Any) -> Any:
        module = type(value).__module__
        is_ours = module in OURS
        return _Waiting(value, self._waiting_loop) if is_ours else value

    def __iter__(self) -> Iterator[Any]:
        iterator = self._wrapped.__aiter__()

        async def following() -> tuple[bool, Any]:
            try:
                return True, await iterator.__anext__()
            except StopAsyncIteration:
                return False, None

        try:
            while True:
                found, value = self._waiting_loop.wait(following())
                if not found:
                    return
                yield value
        finally:
            self._waiting_loop.wait(iterator.aclose())

    def __next__(self) -> Any:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(self._wrapped)
            except StopAsyncIteration:
                return False, None

        found, value = self._waiting_loop.wait(following())
        if not found:
            raise StopIteration
        return value

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._waiting_loop.wait(self._wrapped.__aexit__(kind, error, trace))
        finally:
            if self._owns_loop:
                self._waiting_loop.stop()
