"""Arguments of the client's public methods, optional packages, and how results display themselves.

`@checked()` derives an argument's kind from its annotation and refuses a wrong one before anything
is sent. Results that become HTML are escaped here. Must not import pyarrow.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeAlias, TypeVar

from quiverlog.addresses import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    PORT_DEFAULT,
    Address,
    parse_addresses,
)
from quiverlog.errors import InvalidArgument
from quiverlog.installing import install_line
from quiverlog.limits import TRANSACTION_INSTANCE_BYTES_MAX, TRANSACTIONAL_ID_CHARS_MAX
from quiverlog.types import TopicPartition

from .security import Security

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "INSTANCE",
    "INT32",
    "INT64",
    "MEMBERSHIP",
    "NAMES_SHOWN_MAX",
    "OPTIONAL_WAIT",
    "ROWS_SHOWN_MAX",
    "SECONDS",
    "SECRET",
    "SECURITY",
    "Kind",
    "bootstrap_addresses",
    "cells",
    "checked",
    "counted",
    "extra",
    "function_of",
    "html_table",
    "instance_of",
    "mapping",
    "names",
    "number",
    "optional",
    "partitions_of",
    "place",
    "seconds",
    "shown",
]


P = ParamSpec("P")
T = TypeVar("T")

Kind: TypeAlias = Callable[[str, Any], None]
"""Given an argument's name and value, raises InvalidArgument or returns."""

SECONDS_MAX: Final = 1_000_000
SHOWN_CHARS_MAX: Final = 80


def shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # a number of 5,000 digits, or a class with a faulty __repr__
        text = f"a {type(value).__name__} that cannot be shown"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 3]}..."


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise InvalidArgument(f"{name}={shown(value)}: give {wanted}.")


def checked(**narrower: Kind) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check a function's arguments by their annotations, or by `narrower` kinds.

    An annotation that `_KIND_OF` lacks fails at import.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        kinds = dict(narrower)
        for name, parameter in signature.parameters.items():
            if name != "self" and name not in kinds:
                kinds[name] = _KIND_OF[parameter.annotation]
        assert kinds.keys() == signature.parameters.keys() - {"self"}, function.__qualname__

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
    """Accept any object."""


def SECRET(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is no text.")  # Not the value.


def NAME(name: str, value: object) -> None:
    if not isinstance(value, str):
        _refuse(name, value, "text")
    if not value.isascii():
        # Python's text may have lone surrogates, which UTF-8 and so the wire do not.
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(name, value, "text without lone surrogates")


def BOOLEAN(name: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")


def number(least: int, most: int) -> Kind:
    def kind(name: str, value: object) -> None:
        # A bool is an int in Python, and no number to its caller.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            _refuse(name, value, f"a whole number from {least} to {most}")

    return kind


INT32 = number(-(2**31), 2**31 - 1)
INT64 = number(-(2**63), 2**63 - 1)


def seconds(least: float, most: float = SECONDS_MAX) -> Kind:
    def kind(name: str, value: object) -> None:
        is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Refuses nan as well, which no comparison holds for.
        if not is_real or not least <= value <= most:  # type: ignore[operator]
            _refuse(name, value, f"seconds, from {least:g} to {most:,}")

    return kind


SECONDS = seconds(0.001)


def SECURITY(name: str, value: object) -> None:
    if value is not None and not isinstance(value, (Security, str, os.PathLike)):
        # Not its `repr`: it may hold a secret.
        raise InvalidArgument(
            f"{name} is a {type(value).__name__}: give a quiverlog.Security, or a file's name."
        )


def WAIT(name: str, value: object) -> None:
    """Accept seconds to wait; negative (the rest of a deadline) means none."""
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_real or not -math.inf < value <= SECONDS_MAX:  # type: ignore[operator]
        _refuse(name, value, f"seconds, at most {SECONDS_MAX:,}")


def optional(kind: Kind) -> Kind:
    def either(name: str, value: object) -> None:
        if value is not None:
            kind(name, value)

    return either


OPTIONAL_WAIT = optional(WAIT)


def sequence(kind: Kind) -> Kind:
    def each(name: str, value: object) -> None:
        if isinstance(value, str):  # one item, not its letters
            kind(name, value)
            return
        if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
            _refuse(name, value, "a list")
        if iter(value) is value:  # this check would use it up
            _refuse(name, value, "a list (an iterator can be read only once)")
        for item in value:
            kind(name, item)

    return each


def mapping(keys: Kind, values: Kind) -> Kind:
    def each(name: str, value: object) -> None:
        if not isinstance(value, Mapping):
            _refuse(name, value, "a mapping")
        for key, item in value.items():
            keys(f"{name}: key", key)
            values(f"{name}[{shown(key)}]", item)

    return each


def pair(kind: Kind) -> Kind:
    def each(name: str, value: object) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            _refuse(name, value, "a pair")
        for item in value:
            kind(name, item)

    return each


def one_of(kind: Kind, *words: str) -> Kind:
    def each(name: str, value: object) -> None:
        if isinstance(value, str):
            if value not in words:
                _refuse(name, value, " or ".join(map(repr, words)))
            return
        kind(name, value)

    return each


def TRANSACTIONAL_ID(name: str, value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= TRANSACTIONAL_ID_CHARS_MAX:
        _refuse(name, value, f"a text of 1 to {TRANSACTIONAL_ID_CHARS_MAX} characters")
    NAME(name, value)


def INSTANCE(name: str, value: object) -> None:
    if not isinstance(value, bytes) or not 1 <= len(value) <= TRANSACTION_INSTANCE_BYTES_MAX:
        _refuse(name, value, f"1 to {TRANSACTION_INSTANCE_BYTES_MAX} bytes")


def instance_of(wanted: type) -> Kind:
    def kind(name: str, value: object) -> None:
        if not isinstance(value, wanted):
            _refuse(name, value, f"a {wanted.__name__}")

    return kind


def function_of(what: str) -> Kind:
    def kind(name: str, value: object) -> None:
        if not callable(value) or isinstance(value, type):
            _refuse(name, value, f"a function of {what}")

    return kind


def place(name: str, value: object) -> None:
    if not isinstance(value, TopicPartition):
        _refuse(name, value, "a TopicPartition")
    NAME(name, value.topic)
    INT32(name, value.partition)


def BUFFERS(name: str, value: object) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        _refuse(name, value, "a list of bytes")
    for item in value:
        try:
            memoryview(item)
        except TypeError:
            _refuse(name, item, "bytes")


def REQUEST(name: str, value: object) -> None:
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


def _moment(name: str, value: object) -> None:
    """Accept any datetime: `partition_questions.at_us` refuses one without a time zone."""
    if not isinstance(value, datetime):
        _refuse(name, value, "'earliest', 'latest' or a datetime with time zone")


def _moment_or_offset(name: str, value: object) -> None:
    if isinstance(value, int):
        INT64(name, value)
    elif not isinstance(value, datetime):
        _refuse(name, value, "an offset, 'earliest', 'latest' or a datetime with time zone")


def PARTITION(name: str, value: object) -> None:
    """Accept a number, or a pair of a topic and a number."""
    if isinstance(value, tuple) and len(value) == 2:
        NAME(name, value[0])
        INT32(name, value[1])
    else:
        INT32(name, value)


def _or_mapping(single: Kind, values: Kind, keys: Kind = INT32) -> Kind:
    by_partition = mapping(keys, values)
    return lambda name, value: (by_partition if isinstance(value, Mapping) else single)(name, value)


def MEMBERSHIP(name: str, value: object) -> None:
    """Accept the arguments of a member of a group, by name."""
    assert isinstance(value, Mapping)
    for key, item in value.items():
        if key not in _MEMBERSHIP:
            raise InvalidArgument(f"{name}: there is no argument {key!r} of consumers.")
        _MEMBERSHIP[key](f"{name}: {key}", item)


_at = one_of(_moment, "earliest", "latest")
_start = one_of(_moment_or_offset, "earliest", "latest")


def _topic_id(name: str, value: object) -> None:
    if not isinstance(value, bytes) or len(value) != 16:
        _refuse(name, value, "the 16 bytes of a topic id")


_NAMES = sequence(NAME)
_CALLBACK = optional(function_of("a list of partitions"))
_MEMBERSHIP: Final[Mapping[str, Kind]] = {
    "pattern": optional(NAME),
    "commit": one_of(NAME, "processed", "manual"),
    "on_gone": optional(one_of(NAME, "earliest", "latest")),
    "on_assigned": _CALLBACK,
    "on_revoked": _CALLBACK,
    "on_lost": _CALLBACK,
    "instance_id": NAME,
    "assignor": NAME,
    "session_timeout": SECONDS,
    "rebalance_timeout": SECONDS,
    "processing_timeout": optional(seconds(0)),
}
_OFFSETS = mapping(INT32, INT64)
_PLACES = mapping(place, INT64)

# By the annotation's text, so that none has to be imported.
_KIND_OF: Final[Mapping[str, Kind]] = {
    "str": NAME,
    "str | None": optional(NAME),
    "bool": BOOLEAN,
    "int": INT32,
    "int | None": optional(INT32),
    "float": WAIT,
    "float | None": OPTIONAL_WAIT,
    "Sequence[str]": _NAMES,
    "str | Sequence[str]": _NAMES,
    "Sequence[str] | None": optional(_NAMES),
    "str | Sequence[str] | None": optional(_NAMES),
    "Mapping[tuple[str, int], int] | None": optional(mapping(PARTITION, INT64)),
    "Sequence[int] | None": optional(sequence(INT32)),
    "Mapping[int, int]": _OFFSETS,
    "Mapping[int, int] | None": optional(_OFFSETS),
    "Mapping[int, Sequence[int] | None]": mapping(INT32, optional(sequence(INT32))),
    "Mapping[int, int | Literal['latest']]": mapping(INT32, one_of(INT64, "latest")),
    "Mapping[int, Sequence[Buffer]]": mapping(INT32, BUFFERS),
    "Mapping[str, str | None]": mapping(NAME, optional(NAME)),
    "Mapping[str, bytes] | None": optional(mapping(NAME, _topic_id)),
    "Mapping[str, topic_questions.Scalar] | None": optional(mapping(NAME, _setting)),
    "Mapping[TopicPartition, int]": _PLACES,
    "Mapping[TopicPartition, int] | None": optional(_PLACES),
    "Mapping[TopicPartition, tuple[int, int]]": mapping(place, pair(INT64)),
    "Sequence[Buffer]": BUFFERS,
    "Durability": INT32,
    "m.Request": REQUEST,
    "partition_questions.AtSpec": _or_mapping(_at, _at),
    "StartAt": _or_mapping(_at, _start),
    "ConsumerStart": _or_mapping(_at, _start, PARTITION),
    "ConsumerEnd": optional(one_of(mapping(PARTITION, INT64), "latest")),
    "Partitions": optional(sequence(PARTITION)),
    "int | tuple[str, int]": PARTITION,
    "Wait": one_of(NAME, "decided", "published"),
    "FetchFrom": one_of(NAME, "leader", "follower", "nearest"),
    "Client | None": ANYTHING,
    "CompressionChoice | None": ANYTHING,
    "DurabilityChoice | None": ANYTHING,
    "bool | Callable[[ReadProgress], object] | None": ANYTHING,
    "pa.Schema | str": ANYTHING,
    "pa.Schema | str | None": ANYTHING,
    "str | Iterable[str] | None": ANYTHING,
    "str | pc.Expression | None": ANYTHING,
}


# Optional packages: the extra to name when one is missing.
_EXTRA_OF_PACKAGE: Final = {"duckdb": "sql", "polars": "polars", "opentelemetry": "otel"}


def extra(package: str, user: str) -> Any:
    """Import an optional package or module.

    Raises:
        InvalidArgument: not installed, and `user` needs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        # For a missing module, the error may name the package above it.
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        top = package.partition(".")[0]
        line = install_line(_EXTRA_OF_PACKAGE.get(top, ""), top)
        raise InvalidArgument(f"{user} needs {top}: {line}.") from error


# The forms of results: one line for `print`, a table for notebooks.
ROWS_SHOWN_MAX: Final = 20
CELL_CHARS_MAX: Final = 80
NAMES_SHOWN_MAX: Final = 8


def names(all_names: Sequence[str]) -> str:
    assert NAMES_SHOWN_MAX > 0, "at least one name is shown"
    more = len(all_names) - NAMES_SHOWN_MAX
    shown = ", ".join(all_names[:NAMES_SHOWN_MAX])
    return f"{shown} and {more} more" if more > 0 else shown


def counted(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def partitions_of(topic: str, count: int) -> str:
    those = "1 partition, 0" if count == 1 else f"{count:,} partitions, 0 to {count - 1}"
    return f"Topic {topic!r} has {those}"


def cells(column: pa.Array) -> list[str]:
    return [_cut(_text(value)) for value in column]


def html_table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, left_out: int = 0
) -> str:
    assert left_out >= 0, left_out
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = []
    for row in rows:
        assert len(row) == len(head), "a cell for every title"
        lines.append(f"<tr>{''.join(f'<td>{escape(_cut(str(cell)))}</td>' for cell in row)}</tr>")
    more = f"<p>and {left_out:,} more</p>" if left_out else ""
    return (
        f"<div><p>{escape(caption)}</p><table><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>{more}</div>"
    )


def _text(value: Any) -> str:
    try:
        found = value.as_py()
    except (ValueError, OverflowError):  # nanoseconds, or a year that Python does not have
        return f"{getattr(value, 'value', '?')} as {value.type}"
    return "null" if found is None else str(found)


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…"


def bootstrap_addresses(bootstrap: str | Iterable[str] | None) -> tuple[Address, ...]:
    """Parse `"host:port"`, `"a:1,b:2"` or a list of them; a missing port means 9292.

    None: QUIVERLOG_BOOTSTRAP_SERVER, else this machine's port 9292.

    Raises:
        InvalidArgument: an empty list, or a text that is not host:port.
    """
    source = "bootstrap address"
    if bootstrap is None:
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE, "")
        source = f"{BOOTSTRAP_VARIABLE} in the environment"
        if not bootstrap:
            bootstrap = BOOTSTRAP_DEFAULT
    if isinstance(bootstrap, str):
        bootstrap = bootstrap.split(",")
    parts = list(bootstrap) if isinstance(bootstrap, Iterable) else [bootstrap]
    if not all(isinstance(part, str) for part in parts):
        raise InvalidArgument(f"{shown(bootstrap)}: give 'host:port', or a list of such texts.")
    try:
        return parse_addresses(",".join(parts), port_default=PORT_DEFAULT)
    except ValueError as error:
        raise InvalidArgument(f"{source}: {error}.") from None
