"""Rows that were known to exist and do not come: whether they are gone or late.

Owns how that is found out. A log that lost rows with its leader may end in front of what a reader
was to get, and then brings neither rows nor an error: its end is a place to read from. A leader
that does not know yet what the one before has shown looks the same; asked where rows end, it says
so.

Must not know: who reads, how long rows are waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from quiverlog.errors import OffsetNotAvailable, OffsetOutOfRange, QuiverlogError
from quiverlog.types import EARLIEST, LATEST, TopicPartition
from quiverlog.wire import messages as m

from .commands import Operation
from .consumer_positions import Position
from .deadline import within
from .partition_questions import ask_leaders, offset_entry, raise_for
from .routing import Cluster

__all__ = ["first_gone", "why_none"]

_LOOK_S: Final = 2.0

logger = logging.getLogger("quiverlog")


def first_gone(
    cluster: Cluster, topic: str, topic_id: bytes, positions: Iterable[Position]
) -> Operation[OffsetOutOfRange | None]:
    """The error of the first reader whose rows up to its end are gone, of those that may be so.

    Who has no end waits for none of them any more, and goes on with what comes.

    Raises:
        OffsetNotAvailable: a leader does not know yet. Others are passed on, to be asked again.
    """
    for position in positions:
        if not position.may_be_gone:
            continue
        where = TopicPartition(topic, position.partition)
        try:
            gone = yield from _gone_rows(
                cluster, where, topic_id, position.offset, position.known_end
            )
        except OffsetNotAvailable:
            position.may_be_gone = False
            raise
        position.may_be_gone = False
        if gone is not None and position.end is not None:
            return gone
        if gone is not None:
            logger.warning("%s", gone.message)
            position.known_end = position.offset
    return None


def why_none(
    cluster: Cluster, where: TopicPartition, topic_id: bytes, offset: int, end: int
) -> Operation[QuiverlogError]:
    """What to say at `offset` where rows up to `end` were expected and have not come in time."""
    gone: QuiverlogError | None = None
    try:
        gone = yield from _gone_rows(cluster, where, topic_id, offset, end)
    except QuiverlogError as error:
        if not error.retriable:
            return error
    return gone or OffsetNotAvailable(
        f"{where.topic}-{where.partition} gave no rows at offset {offset} for "
        f"{cluster.settings.request_timeout_s:g} s; rows up to {end} were expected."
    )


def _gone_rows(
    cluster: Cluster, where: TopicPartition, topic_id: bytes, offset: int, end: int
) -> Operation[OffsetOutOfRange | None]:
    """The error of who waits at `offset` for rows up to `end`; None: there are rows. No retry.

    Raises:
        OffsetNotAvailable: the leader does not know yet.
    """
    assert offset < end
    found = yield from _ask(cluster, where, topic_id, LATEST)
    if found > offset:
        return None
    first = yield from _ask(cluster, where, topic_id, EARLIEST)
    return OffsetOutOfRange(
        f"{where.topic}-{where.partition}: the rows [{offset}, {end}) are not there any more: its "
        f"log ends at {found}, they were lost with an earlier leader.",
        topic=where.topic,
        partition=where.partition,
        offset=offset,
        log_start_offset=first,
        high_watermark=found,
    )


def _ask(cluster: Cluster, where: TopicPartition, topic_id: bytes, at: int) -> Operation[int]:
    entries = {where: offset_entry(where.partition, at, topic_id=topic_id)}
    asked = ask_leaders(cluster, entries, lambda parts: m.ListOffsetsRequest(partitions=parts))
    _, results = yield from within(cluster.clock, _LOOK_S, asked)
    raise_for(results[where], where)
    found: int = results[where].offset
    return found
