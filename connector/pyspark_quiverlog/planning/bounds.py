"""The start of a new query and the end of a batch, by the options. A topic deleted meanwhile is
left out."""

from __future__ import annotations

from pyspark_quiverlog.options import Positions, Use
from quiverlog.client.replay.stream_offsets import Position
from quiverlog.errors import InvalidOption
from quiverlog.types import EARLIEST, LATEST, TopicPartition

from .log_view import LogView

__all__ = ["ending", "starting"]

MOMENT_US_MAX = 2**63 - 1
"""Later times are cut to this 64-bit count: no row is as young."""


def starting(view: LogView, use: Use) -> dict[TopicPartition, Position]:
    """Return the start of a new query.

    Raises:
        InvalidOption: an offset above the end; other partitions than the query reads; with the
            strategy `error` a timestamp after a partition's last row.
    """
    options = view.options
    name = "startingTimestamp"
    if options.starting_timestamp is None:
        name = "startingOffsetsByTimestamp"
    moments = _moments(
        view, name, options.starting_timestamp, options.starting_offsets_by_timestamp
    )
    if moments is not None:
        return _first_since(view, moments, name, options.starting_strategy)
    default = "latest" if use is Use.STREAM_READ else "earliest"
    return _resolve(view, "startingOffsets", options.starting_offsets or default)


def ending(view: LogView) -> dict[TopicPartition, Position]:
    """Return the end of a batch. Raises InvalidOption like `starting`, but for no timestamp."""
    options = view.options
    name = "endingTimestamp" if options.ending_timestamp is not None else "endingOffsetsByTimestamp"
    moments = _moments(view, name, options.ending_timestamp, options.ending_offsets_by_timestamp)
    if moments is not None:
        return _first_since(view, moments, name, "latest")
    return _resolve(view, "endingOffsets", options.ending_offsets)


def _moments(
    view: LogView, name: str, everywhere: int | None, each: Positions | None
) -> dict[TopicPartition, int] | None:
    if everywhere is not None:
        moments = dict.fromkeys(view.partitions, everywhere)
    elif each is not None:
        moments = _named(view, name, each)
    else:
        return None
    return {where: min(ms * 1000, MOMENT_US_MAX) for where, ms in moments.items()}


def _first_since(
    view: LogView, moments: dict[TopicPartition, int], name: str, strategy: str
) -> dict[TopicPartition, Position]:
    found = view.first_since(moments)
    without = [where for where, position in found.items() if position.offset < 0]
    if without and strategy == "error":
        raise InvalidOption(
            f"option `{name}`: {without[0]} has no row at or after that moment; set "
            "`startingOffsetsByTimestampStrategy` to latest to start at its end."
        )
    at_end = view.ends(without)
    return {w: p for w, p in found.items() if p.offset >= 0} | at_end


def _resolve(view: LogView, name: str, wanted: str | Positions) -> dict[TopicPartition, Position]:
    if wanted == "latest":
        return view.ends(view.partitions)
    if wanted == "earliest":
        return view.earliest(view.partitions)
    assert isinstance(wanted, dict)
    named = _named(view, name, wanted)
    ends = view.ends(view.partitions)
    firsts = view.earliest(where for where, offset in named.items() if offset == EARLIEST)
    result = {}
    for where, offset in named.items():
        if where not in ends or (offset == EARLIEST and where not in firsts):
            continue  # deleted meanwhile
        if offset > ends[where].offset:
            raise InvalidOption(
                f"option `{name}`: {where} ends at {ends[where].offset}, so it has no offset "
                f"{offset}."
            )
        if offset in (LATEST, EARLIEST):
            result[where] = ends[where] if offset == LATEST else firsts[where]
        else:
            assert offset >= 0, "words have a position by now"
            result[where] = Position(offset)
    return result


def _named(view: LogView, name: str, positions: Positions) -> dict[TopicPartition, int]:
    """Return each partition's number; exactly the query's partitions must be named."""
    flat: dict[TopicPartition, int] = {}
    for topic, numbers in positions.items():
        if not isinstance(numbers, dict):  # a whole topic's
            there = view.topics[topic].partitions if topic in view.topics else ()
            flat |= {TopicPartition(topic, partition): numbers for partition in there}
        else:
            flat |= {TopicPartition(topic, p): number for p, number in numbers.items()}
    for where in view.partitions:
        if where not in flat:
            raise InvalidOption(f"option `{name}` has no entry for {where}, which the query reads.")
    read = set(view.partitions)
    for where in flat:
        if where not in read:
            raise InvalidOption(f"option `{name}` names {where}, which the query does not read.")
    return flat
