"""Errors for `await` at the blocking client, and for none at the asyncio one; hidden from type
checkers, to which the mistakes stay mistakes."""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar

__all__ = ["asyncio_only", "blocking_only"]

K = TypeVar("K", bound=type[Any])

_BLOCKING: Final = ("__await__", "__aenter__", "__aexit__", "__aiter__")
_ASYNCIO: Final = ("__enter__", "__exit__", "__iter__")


def blocking_only(kind: K) -> K:
    return _refusing(
        kind,
        _BLOCKING,
        f"{kind.__name__} is of the blocking client: leave `await` and `async` out, or open the "
        "client by quiverlog.aio.connect().",
    )


def asyncio_only(kind: K) -> K:
    return _refusing(
        kind,
        _ASYNCIO,
        f"{kind.__name__} is of the asyncio client: write `async with` and `async for`, or open "
        "the client by quiverlog.connect().",
    )


def _refusing(kind: K, names: tuple[str, ...], message: str) -> K:
    assert not vars(kind).keys() & set(names), "a method of the class would be lost"

    def refuse(*_arguments: object) -> NoReturn:
        raise TypeError(message)

    for name in names:
        setattr(kind, name, refuse)
    return kind
