"""Parsers of option values. Each raises ValueError with what it expected; `options` adds the
name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quiverlog.addresses import parse_address
from quiverlog.limits import (
    TOKEN_LIFETIME_MS_MAX,
    TOPIC_NAME_CHARS_MAX,
    TRANSACTION_TIMEOUT_MS_MAX,
)
from quiverlog.types import GROUP_NAME

EARLIEST = -2
LATEST = -1

LONG_MAX = 2**63 - 1
"""Java's Long.MaxValue, a common way to write "no bound"."""

Positions = dict[str, dict[int, int] | int]
"""Topic -> partition -> offset or timestamp in milliseconds; or one number for the whole topic."""

_NO_WORDS: Mapping[str, int] = {}


class Secret:
    """A text that is shown as `***`."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


def parse_secret(value: str) -> Secret:
    if not value:
        raise ValueError("a text that is not empty")
    return Secret(value)


def parse_text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def parse_short_text(value: str) -> str:
    text = value.strip()
    if not 1 <= len(text) <= TOPIC_NAME_CHARS_MAX:
        raise ValueError(f"a text of 1 to {TOPIC_NAME_CHARS_MAX} characters, not {len(text)}")
    return text


def parse_group(value: str) -> str:
    name = value.strip()
    if not GROUP_NAME.fullmatch(name):
        raise ValueError("a name of 1 to 255 letters, digits, dots, underscores and hyphens")
    if name.startswith("__"):
        raise ValueError("a name that does not begin with __")
    return name


def parse_names(value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise ValueError("names separated by commas")
    if len(set(names)) != len(names):
        raise ValueError("each name once")
    return names


def parse_addresses(value: str) -> tuple[str, ...]:
    names = parse_names(value)
    try:
        return tuple(str(parse_address(name)) for name in names)
    except ValueError as error:
        raise ValueError(f"host:port, separated by commas ({error})") from None


def parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from error
    return value


def parse_boolean(value: str) -> bool:
    text = value.strip().lower()
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


_SIZE_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_bytes(value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,19})\s*([bkmgt]?)(?:i?b)?", value.strip().lower())
    size = 0 if match is None else int(match[1]) * _SIZE_UNITS[match[2]]
    if not 1 <= size <= LONG_MAX:
        raise ValueError(f"a number of bytes from 1 to {LONG_MAX}, such as 67108864 or 64m")
    return size


_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|s|m|min|h|d)", value.strip().lower())
    if match is None:
        raise ValueError("a time with its unit, such as 500ms, 30s or 15m")
    return float(match[1]) * _TIME_UNITS[match[2]]


def parse_token_lifetime(value: str) -> float:
    seconds = parse_duration(value)
    if not 60 <= seconds <= TOKEN_LIFETIME_MS_MAX / 1000:
        raise ValueError("a time from 1m to 24h")
    return seconds


def parse_transaction_timeout(value: str) -> float:
    seconds = parse_duration(value)
    if not 1 <= seconds <= TRANSACTION_TIMEOUT_MS_MAX / 1000:
        raise ValueError("a time from 1s to 24h")
    return seconds


def _json_object(value: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"JSON such as {example} ({error})") from error
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(f"JSON such as {example}")
    return parsed


def _partition_number(key: object, example: str) -> int:
    # JSON's true is an int in Python.
    if isinstance(key, bool) or not re.fullmatch(r"[0-9]{1,9}", str(key)):
        raise ValueError(f"partition numbers as in {example} ({key!r} is none)")
    return int(str(key))


def _by_partition(
    value: str, example: str, least: int, whole: Mapping[str, int] = _NO_WORDS
) -> Positions:
    """`whole`: words for all partitions of a topic, with their number."""
    result: Positions = {}
    for topic, partitions in _json_object(value, example).items():
        if isinstance(partitions, str) and partitions.strip().lower() in whole:
            result[topic] = whole[partitions.strip().lower()]
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"JSON such as {example}")
        numbers: dict[int, int] = {}
        for key, number in partitions.items():
            good = isinstance(number, int) and not isinstance(number, bool)
            if not good or not least <= number <= LONG_MAX:
                raise ValueError(f"JSON such as {example} ({number!r} of {topic}-{key} is no good)")
            numbers[_partition_number(key, example)] = number
        result[topic] = numbers
    return result


_OFFSETS_EXAMPLE = '{"flights":{"0":23,"1":-1}}'


def parse_starting_offsets(value: str) -> str | Positions:
    text = value.strip()
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if not text.startswith("{"):
        raise ValueError(f"earliest, latest or JSON such as {_OFFSETS_EXAMPLE}")
    return _by_partition(text, _OFFSETS_EXAMPLE, EARLIEST, {"earliest": EARLIEST, "latest": LATEST})


def parse_ending_offsets(value: str) -> str | Positions:
    text = value.strip()
    if text.lower() == "latest":
        return "latest"
    if not text.startswith("{"):
        raise ValueError(f"latest or JSON such as {_OFFSETS_EXAMPLE}")
    return _by_partition(text, _OFFSETS_EXAMPLE, LATEST, {"latest": LATEST})


def parse_timestamps(value: str) -> Positions:
    return _by_partition(value, '{"flights":{"0":1767225600000}}', 0)


def parse_assignment(value: str) -> dict[str, tuple[int, ...]]:
    example = '{"flights":[0,1]}'
    result = {}
    for topic, partitions in _json_object(value, example).items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"JSON such as {example}")
        numbers = [_partition_number(p, example) for p in partitions]
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"JSON such as {example}, each partition once")
        result[topic] = tuple(sorted(numbers))
    return result
