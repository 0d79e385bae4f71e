"""Opening with asyncio: one value that can be awaited and used with `async with`."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from .misuse import asyncio_only

__all__ = ["Opening"]


class _Closable(Protocol):
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


C = TypeVar("C", bound=_Closable)


@asyncio_only
class Opening(Generic[C]):
    """Opens a client, producer or reader by `await`, or by `async with`, which closes it."""

    _is_used = True

    def __init__(self, open_: Callable[[], Awaitable[C]]) -> None:
        self._open = open_
        self._opened: C | None = None
        self._is_used = False

    def __await__(self) -> Generator[Any, None, C]:
        self._is_used = True
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<{self._what()}, not opened: `await` it, or use it with `async with`>"

    def __del__(self) -> None:
        if not self._is_used:  # As Python warns of its own coroutines.
            text = f"{self._what()} was not opened: `await` it, or use it with `async with`."
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _what(self) -> str:
        return f"{self._open.__qualname__.partition('.<locals>')[0]}()"

    if not TYPE_CHECKING:  # To a type checker there is no such attribute.

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Of Python's protocols; a copy has not even `_open` yet.
                raise AttributeError(name)
            raise AttributeError(
                f"No {name!r}: {self._what()} is not opened yet; `await` it, or use it with "
                "`async with`.",
                name=name,
                obj=self,
            )
