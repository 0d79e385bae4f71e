"""What the arguments of the client's public methods may be: the one place where they are checked.

Owns the kinds of arguments and the wording of what is refused. `@checked(...)` names the kind of
every argument of a method, so that a wrong one is an InvalidArgument which names it, before
anything is done. Questions that only the topic can answer (is there such a partition?) are not for
here. Must not import pyarrow.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn, ParamSpec, TypeAlias, TypeVar

from quiverlog.errors import InvalidArgument
from quiverlog.types import TopicPartition

__all__ = [
    "ANYTHING",
    "AT",
    "BOOLEAN",
    "BUFFERS",
    "INT32",
    "INT64",
    "NAME",
    "OPTIONAL_WAIT",
    "PARTITION",
    "REQUEST",
    "SECONDS",
    "SETTINGS",
    "START",
    "TOPIC_IDS",
    "WAIT",
    "Kind",
    "check",
    "checked",
    "mapping",
    "number",
    "one_of",
    "optional",
    "pair",
    "place",
    "seconds",
    "sequence",
    "shown",
]

P = ParamSpec("P")
T = TypeVar("T")

Kind: TypeAlias = Callable[[str, Any], None]
"""Given an argument's name and value, raises InvalidArgument or returns."""

SECONDS_MAX: Final = 1_000_000
SHOWN_CHARS_MAX: Final = 80


def shown(value: object) -> str:
    """A value as a message shows it: short, whatever it is, and on one line."""
    try:
        text = repr(value)
    except Exception:  # a number of 5,000 digits, or a class with a faulty __repr__
        text = f"a {type(value).__name__} that cannot be shown"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 3]}..."


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise InvalidArgument(f"{name}={shown(value)}: give {wanted}.")


def check(name: str, value: object, kind: Kind) -> None:
    """Check one argument, where a decorator costs too much."""
    kind(name, value)


def checked(**kinds: Kind) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check a function's arguments by their names, before it is called.

    Every argument has a kind: one that is forgotten fails when the module is imported.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        names = [name for name in signature.parameters if name != "self"]
        assert names == list(kinds), f"{function.__qualname__}: {names} are not {list(kinds)}"

        def check_all(args: Any, kwargs: Any) -> None:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name != "self":
                    kinds[name](f"{function.__name__}: {name}", value)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*args: P.args, **kwargs: P.kwargs) -> Any:
                check_all(args, kwargs)
                return await function(*args, **kwargs)

            return waiting  # type: ignore[return-value]

        @functools.wraps(function)
        def calling(*args: P.args, **kwargs: P.kwargs) -> T:
            check_all(args, kwargs)
            return function(*args, **kwargs)

        return calling

    return decorate


# --- kinds ----------------------------------------------------------------------------------------
def ANYTHING(_name: str, _value: object) -> None:
    """Checked where it is used, or any object will do."""


def NAME(name: str, value: object) -> None:
    """Text that can be encoded."""
    if not isinstance(value, str):
        _refuse(name, value, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(name, value, "text without lone surrogates")


def BOOLEAN(name: str, value: object) -> None:
    """No other value: `"no"` would count as true."""
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")


def number(least: int, most: int) -> Kind:
    """A whole number between two others."""

    def kind(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            _refuse(name, value, f"a whole number from {least} to {most}")

    return kind


INT32 = number(-(2**31), 2**31 - 1)
INT64 = number(-(2**63), 2**63 - 1)
PARTITION = INT64
"""Which partitions there are is said where the topic is known."""


def seconds(least: float, most: float = SECONDS_MAX) -> Kind:
    """A time span. `nan` is between no numbers."""

    def kind(name: str, value: object) -> None:
        is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_real or not least <= value <= most:  # type: ignore[operator]
            _refuse(name, value, f"seconds, from {least:g} to {most:,}")

    return kind


SECONDS = seconds(0.001)


def WAIT(name: str, value: object) -> None:
    """How long to wait. What is left of a deadline may be negative: then nobody waits."""
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_real or not -math.inf < value <= SECONDS_MAX:  # type: ignore[operator]
        _refuse(name, value, f"seconds, at most {SECONDS_MAX:,}")


def optional(kind: Kind) -> Kind:
    """None, or of the kind."""

    def either(name: str, value: object) -> None:
        if value is not None:
            kind(name, value)

    return either


OPTIONAL_WAIT = optional(WAIT)


def sequence(kind: Kind) -> Kind:
    """A collection of a kind, which can be iterated again; one text stands for itself."""

    def each(name: str, value: object) -> None:
        if isinstance(value, str):
            kind(name, value)
            return
        if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
            _refuse(name, value, "a list")
        if iter(value) is value:
            _refuse(name, value, "a list (an iterator can be read only once)")
        for item in value:
            kind(name, item)

    return each


def mapping(keys: Kind, values: Kind) -> Kind:
    """A mapping whose keys and values have kinds."""

    def each(name: str, value: object) -> None:
        if not isinstance(value, Mapping):
            _refuse(name, value, "a mapping")
        for key, item in value.items():
            keys(f"{name}: key", key)
            values(f"{name}[{shown(key)}]", item)

    return each


def pair(kind: Kind) -> Kind:
    """Two of a kind."""

    def each(name: str, value: object) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            _refuse(name, value, "a pair")
        for item in value:
            kind(name, item)

    return each


def one_of(kind: Kind, *words: str) -> Kind:
    """A rule: the argument is one of these words, or of the kind."""

    def each(name: str, value: object) -> None:
        if isinstance(value, str):
            if value not in words:
                _refuse(name, value, " or ".join(map(repr, words)))
            return
        kind(name, value)

    return each


def place(name: str, value: object) -> None:
    """A TopicPartition."""
    if not isinstance(value, TopicPartition):
        _refuse(name, value, "a TopicPartition")
    NAME(name, value.topic)
    INT32(name, value.partition)


def BUFFERS(name: str, value: object) -> None:
    """A list of bytes-like objects."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        _refuse(name, value, "a list of bytes")
    for item in value:
        try:
            memoryview(item)
        except TypeError:
            _refuse(name, item, "bytes")


def REQUEST(name: str, value: object) -> None:
    """A message that has an API."""
    if isinstance(value, type) or not isinstance(getattr(value, "API", None), int):
        _refuse(name, value, "a request of quiverlog.wire.messages")


def _setting(name: str, value: object) -> None:
    if isinstance(value, str):
        NAME(name, value)
    elif isinstance(value, int):
        if not isinstance(value, bool):
            INT64(name, value)
    elif not isinstance(value, float):
        _refuse(name, value, "a string, number or bool")


SETTINGS = mapping(NAME, _setting)


def _moment(name: str, value: object) -> None:
    """Whether a moment has a zone is said where it is turned into a number."""
    if not isinstance(value, datetime):
        _refuse(name, value, "'earliest', 'latest' or a datetime with time zone")


def _moment_or_offset(name: str, value: object) -> None:
    if isinstance(value, int):
        INT64(name, value)
    elif not isinstance(value, datetime):
        _refuse(name, value, "an offset, 'earliest', 'latest' or a datetime with time zone")


def _or_mapping(single: Kind, values: Kind) -> Kind:
    by_partition = mapping(PARTITION, values)
    return lambda name, value: (by_partition if isinstance(value, Mapping) else single)(name, value)


_at = one_of(_moment, "earliest", "latest")
AT = _or_mapping(_at, _at)
START = _or_mapping(_at, one_of(_moment_or_offset, "earliest", "latest"))


def _topic_id(name: str, value: object) -> None:
    if not isinstance(value, bytes) or len(value) != 16:
        _refuse(name, value, "the 16 bytes of a topic id")


TOPIC_IDS = mapping(NAME, _topic_id)
