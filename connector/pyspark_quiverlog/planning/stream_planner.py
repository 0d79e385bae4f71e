"""The driver's part of a streaming read: where micro-batches begin and end.

One object per query run, called by Spark from one thread. Rules:

- What a later call or a restart needs is in the end offset (`offsets`), which Spark logs before it
  runs the batch, never in memory alone.
- Without news, the start offset is returned unchanged: another text makes Spark run a batch.
- A trigger sends each leader one request, a long poll; more when topics or leaders change, rows are
  lost, a bound cuts short, or there is one of bytes.
- What disappears after its end was chosen stays in the plan: the executor reports it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark_quiverlog.options import Use
from quiverlog.client.replay.stream_offsets import (
    ID_DIGITS,
    Position,
    SourceOffset,
    TopicPositions,
    begin_positions,
)
from quiverlog.errors import QuiverlogError, RequestTimedOut
from quiverlog.types import TopicPartition

from .admission import admit
from .bounds import starting
from .log_view import LogView, group_positions
from .losses import Losses
from .ranges import Range

__all__ = ["LONG_POLL_S", "StreamPlanner"]

LONG_POLL_S: Final = 0.15
"""Bound on one request's wait for rows; a stop waits for its answer."""

Json = dict[str, Any]


class StreamPlanner:
    def __init__(self, view: LogView) -> None:
        self._view = view
        self._options = view.options
        self._losses = Losses(fail=view.options.fail_on_data_loss)
        self._is_new_query = False
        # For a query without one, until Spark has logged an end with it.
        self._new_id = secrets.token_hex(ID_DIGITS // 2)
        self._initial: SourceOffset | None = None
        self._no_start: QuiverlogError | None = None
        self._target: dict[TopicPartition, Position] | None = None
        self._target_ids: dict[str, str] = {}
        self._start: SourceOffset | None = None
        self._start_json: Json = {}
        self._begin: dict[TopicPartition, Position] = {}
        self._resume: dict[TopicPartition, Position] = {}
        self._latest: dict[TopicPartition, Position] = {}
        self._checked_epoch: dict[TopicPartition, int] = {}
        self._lost_topics: set[tuple[str, str]] = set()
        self._end: SourceOffset | None = None
        self._end_json: Json = {}
        self._last_batch = float("-inf")

    # --- Spark's calls ------------------------------------------------------------------------
    def initial_offset(self) -> Json:
        """Return the start of a new query, as of the first call."""
        self._is_new_query = True
        try:
            return self._resolved_start().to_json()
        except QuiverlogError:
            # Spark calls this also to replay the first batch, whose end has the start. What the
            # options no longer give is an error when a new batch needs it.
            return SourceOffset({}, is_start=True).to_json()

    def prepare_available_now(self) -> None:
        """Fix the end: later rows and partitions are for the next run."""
        self._view.refresh()
        self._target = self._all_latest()
        self._target_ids = self._view.ids

    def latest_offset(self, start_json: Json | None, *, unlimited: bool) -> Json:
        """Return the end of the next micro-batch; `start_json` itself when there is none to run.

        `unlimited`: regardless of the options.

        Raises:
            DataLoss: rows that were to be read are gone, and `failOnDataLoss` is true.
        """
        if start_json is None:  # PySpark 4.0 and 4.1 do not pass it
            if self._end is None and not self._is_new_query:
                return self._end_of_all()
            start_json = self._end_json if self._end is not None else self.initial_offset()
        self._begin_from(start_json)
        assert self._start is not None
        latest = self._wait()
        ends = self._admit(latest, unlimited)
        if not self._start.is_start and not self._has_news(ends):
            return start_json
        self._last_batch = self._view.clock()
        self._end = self._make_end(ends, latest)
        self._end_json = self._end.to_json()
        return self._end_json

    def report_latest(self) -> Json | None:
        """Return the last known end of the log, without a request."""
        if not self._latest:
            return None
        known = {w: p for w, p in self._latest.items() if w.topic in self._view.topics}
        return SourceOffset(self._view.group(known)).to_json()

    def ranges(self, start_json: Json, end_json: Json) -> list[Range]:
        """Return the rows of one micro-batch. Sends requests only for a replay, or without a start
        (PySpark 4.0 and 4.1).

        Raises:
            DataLoss: rows have gone since the end was chosen, and `failOnDataLoss` is true.
        """
        replay = end_json != self._end_json
        end = SourceOffset.from_json(end_json) if replay or self._end is None else self._end
        current = self._start is not None and start_json == self._start_json
        start = self._start if current else SourceOffset.from_json(start_json)
        assert start is not None
        begins = begin_positions(start, end)
        if current and not replay:
            # A replay after a crash has only the two offsets to go by.
            planned = {w: self._begin[TopicPartition(*w)] for w in begins}
            assert begins == planned, "the two offsets give another begin"
        unknown = [TopicPartition(*w) for w, position in begins.items() if position is None]
        known = {TopicPartition(*w): p for w, p in begins.items() if p is not None}
        known |= self._first_rows(unknown, end)
        ends = {w: end.topics[w.topic].partitions[w.partition] for w in known}
        if replay:
            _check_replay(self._view, self._losses, end, known, ends)
            self._end, self._end_json = end, end_json
        ids = {topic: positions.topic_id for topic, positions in end.topics.items()}
        return [
            Range(w.topic, ids[w.topic], w.partition, b.offset, e.offset, b.epoch, e.epoch)
            for w, b, e in ((w, b, ends[w]) for w, b in sorted(known.items()))
            if self._goes_forward(w, b, e)
        ]

    def _first_rows(
        self, wanted: list[TopicPartition], end: SourceOffset
    ) -> dict[TopicPartition, Position]:
        """Return the first rows of partitions without a start (PySpark 4.0 and 4.1)."""
        found = self._view.earliest(wanted, {t: p.topic_id for t, p in end.topics.items()})
        for where in wanted:
            if where not in found:
                last = end.position(*where)
                assert last is not None, "only partitions with an end are asked for"
                self._losses.report(f"{where} is gone, and its rows before {last.offset}")
        return found

    def _goes_forward(self, where: TopicPartition, begin: Position, end: Position) -> bool:
        if end.offset < begin.offset:
            self._losses.report(
                f"{where}: the batch ends at {end.offset}, before its start {begin.offset}"
            )
        return end.offset > begin.offset

    def _end_of_all(self) -> Json:
        # After a restart, PySpark 4.0 and 4.1 ask for an end before they pass the position: an end
        # under a bound could be before it.
        self._view.refresh()
        self._end = SourceOffset(self._view.group(self._all_latest()))
        self._end_json = self._end.to_json()
        return self._end_json

    # --- where the next batch begins ----------------------------------------------------------
    def _resolved_start(self) -> SourceOffset:
        """Return the start by the options; the first end offset makes it durable."""
        if self._no_start is not None:
            raise self._no_start
        if self._initial is None:
            try:
                self._view.refresh(required=True)
                starts = starting(self._view, Use.STREAM_READ)
            except QuiverlogError as error:
                self._no_start = error
                raise
            self._initial = SourceOffset(self._view.group(starts), is_start=True)
        return self._initial

    def _begin_from(self, start_json: Json) -> None:
        """Take over the position that Spark passes."""
        if self._start is not None and start_json == self._start_json:
            if self._view.stale:
                self._refresh()
            return
        ours = self._end is not None and start_json == self._end_json
        start = self._end if ours else SourceOffset.from_json(start_json)
        assert start is not None
        if start.is_start:
            start = self._resolved_start()
        is_first_look = self._start is None or not ours
        self._start, self._start_json = start, start_json
        kept = {w: p for w, p in self._resume.items() if start.position(*w) is None}
        self._resume = kept if ours else {}
        if self._view.stale:
            self._refresh()
        elif is_first_look or not all(w in self._resume for w in self._unknown()):
            self._look_for_changes()
        else:
            self._settle()
        if is_first_look and not start.is_start:
            # After a restart: rows before the position may have gone or changed meanwhile.
            self._step_over_gaps(self._begin)
            self._check_epochs(self._view.latest())

    def _reads(self) -> Iterable[TopicPartition]:
        if self._target is None:
            return self._view.partitions
        # A fixed end leaves out later partitions, and those of topics created anew.
        ids = self._view.ids
        return [
            w
            for w in self._view.partitions
            if w in self._target and ids[w.topic] == self._target_ids.get(w.topic)
        ]

    def _unknown(self) -> list[TopicPartition]:
        return [w for w in self._reads() if self._known_position(w) is None]

    def _refresh(self) -> None:
        before = self._view.ids
        self._view.refresh()
        changed = {t for t, topic_id in before.items() if self._view.id_of(t) != topic_id}
        for where in [w for w in self._resume if w.topic in changed]:
            position, latest = self._resume.pop(where), self._latest.get(where)
            if latest is not None and latest.offset > position.offset:
                self._losses.report(
                    f"topic {where.topic!r} (id {before[where.topic]}) was deleted or created "
                    f"anew: partition {where.partition}, rows [{position.offset}, {latest.offset})"
                )
        for known in (self._latest, self._checked_epoch):
            for where in [w for w in known if w.topic in changed]:
                del known[where]
        self._look_for_changes()

    def _look_for_changes(self) -> None:
        assert self._start is not None
        for topics in (self._start.topics, self._start.kept or {}):
            for topic, positions in topics.items():
                now = self._view.id_of(topic)
                if now != positions.topic_id:
                    self._lose_topic(topic, positions, "created anew" if now else "deleted")
        fresh = [w for w in self._unknown() if w not in self._resume]
        for where, first in self._view.earliest(fresh).items():
            if first.offset > 0:
                self._losses.report(
                    f"{where}: rows [0, {first.offset}) were no longer kept when the query first "
                    "saw the partition"
                )
            self._resume[where] = first
        self._settle()

    def _lose_topic(self, topic: str, positions: TopicPositions, happened: str) -> None:
        lost = self._selected(topic, positions)
        if not lost or (topic, positions.topic_id) in self._lost_topics:
            return  # Not selected, or reported before; the next end offset no longer has it.
        parts = ", ".join(
            f"partition {partition} from offset {position.offset} on"
            for partition, position in sorted(lost.items())
        )
        self._losses.report(f"topic {topic!r} (id {positions.topic_id}) was {happened}: {parts}")
        self._lost_topics.add((topic, positions.topic_id))

    def _selected(self, topic: str, positions: TopicPositions) -> dict[int, Position]:
        return {p: at for p, at in positions.partitions.items() if self._view.selects(topic, p)}

    def _known_position(self, where: TopicPartition) -> Position | None:
        """Return the start's position in the present topic."""
        assert self._start is not None
        topic_id = self._view.id_of(where.topic)
        for topics in (self._start.topics, self._start.kept or {}):
            positions = topics.get(where.topic)
            if positions is not None and positions.topic_id == topic_id:
                position = positions.partitions.get(where.partition)
                if position is not None:
                    return position
        return None

    def _settle(self) -> None:
        self._begin = {}
        for where in self._reads():
            position = self._resume.get(where) or self._known_position(where)
            if position is not None:
                self._begin[where] = position

    def _step_over_gaps(self, wanted: Iterable[TopicPartition]) -> bool:
        """Go on after rows that are no longer kept; return whether there were any."""
        gaps = False
        for where, first in self._view.earliest(wanted).items():
            begin = self._begin[where]
            if first.offset > begin.offset:
                self._losses.report(
                    f"{where}: rows [{begin.offset}, {first.offset}) are no longer kept"
                )
                self._resume[where] = first
                gaps = True
        self._settle()
        return gaps

    def _check_epochs(self, latest: Mapping[TopicPartition, Position]) -> None:
        """Go back where rows that were read have been truncated."""
        doubtful = {}
        for where, begin in self._begin.items():
            end = latest.get(where)
            if end is None or where in self._resume:
                continue
            # One request per new epoch, not one per trigger.
            changed = end.epoch != begin.epoch and self._checked_epoch.get(where) != end.epoch
            if end.offset < begin.offset or (begin.epoch >= 0 and changed):
                doubtful[where] = begin
                self._checked_epoch[where] = end.epoch
        if not doubtful:
            return
        found = self._view.truncated(doubtful)
        for where, begin in doubtful.items():
            if where not in found and latest[where].offset < begin.offset:
                found[where] = latest[where]
        for where, position in found.items():
            assert position.offset < doubtful[where].offset, "a truncation leads back"
            self._losses.report(
                f"{where}: rows [{position.offset}, {doubtful[where].offset}) were read and have "
                "been truncated since; others may have taken their offsets"
            )
            self._resume[where] = position
        self._settle()

    # --- what waits ---------------------------------------------------------------------------
    def _wait(self) -> dict[TopicPartition, Position]:
        """Return all ends, once there is something to read or the wait is over."""
        if self._target is not None:
            self._latest = self._target
            return self._target
        assert self._start is not None
        clock = self._view.clock
        max_wait = 0.0 if self._start.is_start else LONG_POLL_S
        started = clock()
        latest = self._poll(max_wait)
        if self._view.stale:
            self._refresh()
            latest = self._poll(0.0)
        elif max_wait and self._nothing_waits(latest) and clock() - started < max_wait / 2:
            # An early answer without news must not become a busy loop.
            self._view.pause(max_wait / 2)
        self._check_epochs(latest)
        return latest

    def _poll(self, max_wait: float) -> dict[TopicPartition, Position]:
        if not self._view.partitions:
            self._view.pause(max_wait)
            self._view.stale = True
            return {}
        known = {w: p.offset for w, p in self._begin.items()}
        if self._options.min_rows_per_trigger is not None and not self._is_due():
            known = {w: p.offset for w, p in self._latest.items()} or known
        answered = self._view.latest(known, max_wait)
        if len(answered) < len(self._view.partitions):
            self._view.pause(max_wait)  # some partition has no leader
        self._latest = {w: self._latest[w] for w in self._latest if w in self._begin} | answered
        return self._latest

    def _is_due(self) -> bool:
        return self._view.clock() - self._last_batch >= self._options.max_trigger_delay

    def _nothing_waits(self, latest: Mapping[TopicPartition, Position]) -> bool:
        return all(p.offset <= self._begin[w].offset for w, p in latest.items() if w in self._begin)

    def _all_latest(self) -> dict[TopicPartition, Position]:
        """Return all ends; wait for partitions that have no leader yet."""
        view = self._view
        deadline = view.clock() + self._options.request_timeout
        while True:
            latest = view.latest()
            missing = [str(w) for w in view.partitions if w not in latest]
            if not missing:
                return latest
            if view.clock() > deadline:
                raise RequestTimedOut(
                    f"no broker leads {', '.join(missing[:10])}: no answer in time."
                )
            view.pause(LONG_POLL_S)
            view.refresh()

    # --- what is taken ------------------------------------------------------------------------
    def _admit(
        self, latest: Mapping[TopicPartition, Position], unlimited: bool
    ) -> dict[TopicPartition, int]:
        taken, cut_short = self._taken(latest, unlimited)
        if cut_short and self._step_over_gaps(cut_short):
            taken, _ = self._taken(latest, unlimited)
        return taken

    def _taken(
        self, latest: Mapping[TopicPartition, Position], unlimited: bool
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        begins = {w: begin.offset for w, begin in self._begin.items()}
        stops = {w: latest[w].offset if w in latest else begins[w] for w in begins}
        waited = None if unlimited else self._view.clock() - self._last_batch
        # A fixed end is all there will be: no reason to wait for more.
        return admit(self._view, begins, stops, waited, minimum=self._target is None)

    def _has_news(self, ends: Mapping[TopicPartition, int]) -> bool:
        assert self._start is not None
        for where, begin in self._begin.items():
            known = self._known_position(where)
            if ends[where] != begin.offset or (known is not None and known != begin):
                return True
        return any(
            self._view.id_of(topic) != positions.topic_id and self._selected(topic, positions)
            for topic, positions in self._start.topics.items()
        )

    def _make_end(
        self, ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, Position]
    ) -> SourceOffset:
        assert self._start is not None
        assert ends.keys() == self._begin.keys(), "each partition has one begin and one end"
        positions: dict[tuple[str, int], Position] = {}
        resumed: dict[tuple[str, int], Position] = {}
        for where, begin in self._begin.items():
            known = self._known_position(where)
            if known is None and ends[where] == begin.offset and not self._must_be_named(where):
                continue  # a new partition without rows is not worth an empty batch
            positions[where] = self._position(where, begin, ends[where], latest)
            if known != begin:
                resumed[where] = begin
        group = self._view.group
        query_id, name = self._start.query_id or self._new_id, self._options.group_id or ""
        if self._start.is_start:
            first = group({w: self._begin[w] for w in self._begin})
            return SourceOffset(group(positions), first=first, query_id=query_id, group=name)
        return SourceOffset(
            group(positions),
            resume=group(resumed) if resumed else None,
            kept=self._unselected() or None,
            query_id=query_id,
            group=name,
        )

    def _must_be_named(self, where: TopicPartition) -> bool:
        """Return whether the end offset has this partition even without rows."""
        assert self._start is not None
        # A topic created anew must appear under its new id, or each trigger finds it again.
        return self._start.is_start or where.topic in self._start.topics

    def _unselected(self) -> dict[str, TopicPositions]:
        """Return the start's positions in partitions that the options do not select."""
        assert self._start is not None
        found: dict[tuple[str, int], Position] = {}
        ids: dict[str, str] = {}
        for topics in (self._start.topics, self._start.kept or {}):
            for topic, positions in topics.items():
                if ids.setdefault(topic, positions.topic_id) != positions.topic_id:
                    continue  # of a topic that was read under another id since
                for partition, position in positions.partitions.items():
                    if not self._view.selects(topic, partition):
                        found.setdefault((topic, partition), position)
        return group_positions(found, ids)

    def _position(
        self,
        where: TopicPartition,
        begin: Position,
        end: int,
        latest: Mapping[TopicPartition, Position],
    ) -> Position:
        if end == begin.offset:
            return begin
        last = latest[where]
        assert begin.offset < end <= last.offset, f"{where}: [{begin.offset}, {end}) of {last}"
        if end == last.offset or begin.epoch == last.epoch:  # one epoch: no request
            return Position(end, last.epoch)
        return Position(end, self._view.epoch_before(where, end, last.epoch))


# Spark replays a logged batch before it calls anything else, as it was planned: topics are looked
# up by the ids in its end offset, selected by the options or not.
def _check_replay(
    view: LogView,
    losses: Losses,
    end: SourceOffset,
    begins: dict[TopicPartition, Position],
    ends: dict[TopicPartition, Position],
) -> None:
    """Reduce `begins` and `ends` to the rows that exist, and report the others."""
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
        assert begin.offset <= begins[where].offset <= ends[where].offset <= stop, "only fewer rows"
