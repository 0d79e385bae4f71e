"""The range of offsets to read: `--from`, `--to` and `--tail`, resolved once before the first
row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from quiverlog.cli.console.options import INT64_MAX, whole_number
from quiverlog.cli.console.spans import SPAN, total

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["Point", "ends", "parse_point", "starts"]

Point = str | int | datetime | dict[int, int]
"""`earliest` or `latest`, an offset for all partitions, a time, or an offset per partition."""

_AGO: Final = re.compile(
    rf"(?P<minus>-)?\s*(?P<spans>(?:{SPAN.pattern}\s*)+)(?P<ago>ago)?", re.ASCII | re.IGNORECASE
)


def parse_point(text: str, option: str, *, now: datetime | None = None) -> Point:
    """Parse the value of the option `--from` or `--to`.

    Args:
        now: the time from which `-1h` is counted; default: the clock's.

    Raises:
        click.BadParameter: none of the forms.
    """
    word = text.strip()
    if word in ("earliest", "latest"):
        return word
    if (offset := whole_number(word, INT64_MAX)) is not None:
        return offset
    if "=" in word:
        return _pairs(word, option)
    try:
        if (span := _span_ago(word)) is not None:
            return (now or datetime.now(UTC)) - span
        moment = datetime.fromisoformat(word)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, an ISO time, a time ago (-1h, 2d ago), an offset "
            "or PARTITION=OFFSET.",
            param_hint=option,
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _pairs(word: str, option: str) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for pair in word.split(","):
        left, _, right = pair.partition("=")
        partition, offset = whole_number(left, INT64_MAX), whole_number(right, INT64_MAX)
        if partition is None or offset is None:
            raise click.BadParameter(f"{pair!r} is not PARTITION=OFFSET.", param_hint=option)
        offsets[partition] = offset
    return offsets


def _span_ago(word: str) -> timedelta | None:
    match = _AGO.fullmatch(word)
    if match is None or bool(match["minus"]) == bool(match["ago"]):
        return None
    return total(match["spans"].lower())


def _chosen(client: Client, topic: str, point: Point, partitions: list[int]) -> list[int]:
    """Return the partitions to read: of --partition, else those with an offset, else all."""
    if not isinstance(point, dict):
        return partitions or sorted(client.list_offsets(topic))
    missing = sorted(set(partitions) - set(point))
    if missing:
        raise click.BadParameter(
            f"names no offset for partition {missing[0]}.", param_hint="--from"
        )
    return partitions or sorted(point)


def starts(
    client: Client, topic: str, point: Point, partitions: list[int], *, tail: int | None
) -> dict[int, int]:
    """Return the first offset of each partition that is read.

    Args:
        partitions: those of --partition; empty: all that `point` covers.
        tail: begin this many rows before each end instead.

    Raises:
        OffsetOutOfRange: a partition does not have the offset.
    """
    chosen = _chosen(client, topic, point, partitions)
    firsts = _found(client.list_offsets(topic, at=dict.fromkeys(chosen, "earliest")))
    latest = _found(client.list_offsets(topic, at=dict.fromkeys(chosen, "latest")))
    if tail is not None:
        return {p: max(firsts[p], latest[p] - tail) for p in chosen}
    if isinstance(point, datetime):
        return _moments(client, topic, point, latest)
    if point == "earliest":
        return firsts
    if point == "latest":
        return latest
    if isinstance(point, int):
        # One offset for all: it must lie in one partition, and is clipped in the others.
        if any(firsts[p] <= point <= latest[p] for p in chosen):
            return {p: min(max(firsts[p], point), latest[p]) for p in chosen}
        point = dict.fromkeys(chosen, point)
    assert isinstance(point, dict)
    return {p: _in_range(topic, p, point[p], firsts[p], latest[p]) for p in chosen}


def _in_range(topic: str, partition: int, offset: int, first: int, end: int) -> int:
    from quiverlog.errors import OffsetOutOfRange

    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"Offset {offset} of {topic}-{partition} is not in its range, {first} to {end}."
        )
    return offset


def ends(client: Client, topic: str, point: Point, partitions: list[int]) -> dict[int, int]:
    """Return the offsets where reading ends, exclusive; at most the present ends."""
    latest = _found(client.list_offsets(topic, at=dict.fromkeys(partitions, "latest")))
    if point == "latest":
        return latest
    if point == "earliest":
        return _found(client.list_offsets(topic, at=dict.fromkeys(partitions, "earliest")))
    if isinstance(point, datetime):
        return _moments(client, topic, point, latest)
    if isinstance(point, int):
        return {p: min(point, end) for p, end in latest.items()}
    assert isinstance(point, dict)
    return {p: min(point.get(p, end), end) for p, end in latest.items()}


def _moments(
    client: Client, topic: str, moment: datetime, latest: Mapping[int, int]
) -> dict[int, int]:
    found = client.list_offsets(topic, at=dict.fromkeys(latest, moment))
    # No row is that young: the next one to be written will be the first.
    return {p: end if found[p] is None else min(found[p] or 0, end) for p, end in latest.items()}


def _found(offsets: Mapping[int, int | None]) -> dict[int, int]:
    return {partition: offset or 0 for partition, offset in offsets.items()}
