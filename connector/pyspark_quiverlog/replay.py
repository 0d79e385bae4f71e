"""Checks that a micro-batch which Spark runs again after a restart still has the same rows.

Spark replays a batch whose end it had logged, before it asks the source for anything else. The
batch is what it was when it was planned: its topics are looked up by the ids that its end offset
holds, whether or not the options still select them.
"""

from __future__ import annotations

from quiverlog.types import TopicPartition

from .log_view import LogView
from .losses import Losses
from .offsets import Position, SourceOffset

__all__ = ["check_replay"]


def check_replay(
    view: LogView,
    losses: Losses,
    end: SourceOffset,
    begins: dict[TopicPartition, Position],
    ends: dict[TopicPartition, Position],
) -> None:
    """Narrow `begins` and `ends` to what is left, and report what is not.

    Raises:
        DataLoss: rows are gone, and `failOnDataLoss` is true.
    """
    wanted = {w: b for w, b in begins.items() if b.offset < ends[w].offset}
    ids = {topic: positions.topic_id for topic, positions in end.topics.items()}
    firsts = view.earliest(wanted, ids)
    lasts = view.ends(wanted, ids)
    cut = view.truncated({w: ends[w] for w in wanted}, ids)
    for where, begin in wanted.items():
        stop = ends[where].offset
        if where not in firsts or where not in lasts:
            losses.report(
                f"topic {where.topic!r} (id {ids[where.topic]}) was deleted or created anew: "
                f"partition {where.partition}, rows [{begin.offset}, {stop})"
            )
            del begins[where], ends[where]
            continue
        first = firsts[where].offset
        if first > begin.offset:
            gone = min(first, stop)
            losses.report(f"{where}: rows [{begin.offset}, {gone}) are no longer kept")
            begins[where] = Position(gone)
        last = cut.get(where) or lasts[where]
        if last.offset < stop:
            losses.report(f"{where}: rows [{last.offset}, {stop}) have been truncated")
            ends[where] = Position(max(last.offset, begins[where].offset))
