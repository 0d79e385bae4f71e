"""The driver's side of a streaming read: from where to where does the next micro-batch go?

One object per query run, called by Spark from one thread. Owns the query's position, what waits,
and everything that can go wrong with a position: topics deleted or created anew, logs truncated,
rows gone by retention. Rules:

- Nothing that a later call or a restart needs is kept in memory alone: it is in the end offset
  (`offsets`), which Spark logs before it runs the batch.
- The offset that came in goes out unchanged when there is nothing to read: a text that differs
  makes Spark run a batch.
- In the steady state a trigger costs one request, which also waits for rows and for changes of
  topics (a long poll), and planning costs none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from quiverlog.errors import DataLoss
from quiverlog.types import TopicPartition

from .log_view import LogView
from .offsets import Position, SourceOffset, TopicPositions, begin_positions
from .options import Use
from .planning import Backlog, Range, admit_rows, enough_rows

__all__ = ["LONG_POLL_S", "StreamPlanner"]

LONG_POLL_S: Final = 0.15
"""How long one call waits for rows. Spark asks again at once; a stop waits for the answer."""

Json = dict[str, Any]
logger = logging.getLogger("pyspark_quiverlog")


class StreamPlanner:
    """See the module. `clock`: monotonic seconds; `pause`: sleeps so many seconds."""

    def __init__(
        self,
        view: LogView,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._view = view
        self._options = view.options
        self._clock = clock
        self._pause = pause
        self._initial: SourceOffset | None = None
        self._target: dict[TopicPartition, Position] | None = None
        self._start: SourceOffset | None = None
        self._start_json: Json = {}
        self._begin: dict[TopicPartition, Position] = {}
        self._resume: dict[TopicPartition, Position] = {}
        self._latest: dict[TopicPartition, Position] = {}
        self._checked_epoch: dict[TopicPartition, int] = {}
        self._lost_topics: set[tuple[str, str]] = set()
        self._end: SourceOffset | None = None
        self._end_json: Json = {}
        self._last_batch = clock()

    # --- Spark's calls ------------------------------------------------------------------------
    def initial_offset(self) -> Json:
        """Where a new query starts: resolved once, and made durable by the first end offset."""
        if self._initial is None:
            self._view.refresh(required=True)
            starts = self._view.starting(Use.STREAM_READ)
            self._initial = SourceOffset(self._view.group(starts), is_start=True)
        return self._initial.to_json()

    def prepare_available_now(self) -> None:
        """Freeze the end: rows that come later, and partitions that do, are for the next run."""
        self._view.refresh()
        self._target = self._all_latest()

    def latest_offset(self, start_json: Json | None, *, unlimited: bool) -> Json:
        """The end of the next micro-batch; `start_json` itself when there is none to run.

        `start_json` None: PySpark 4.0 and 4.1 do not say where the batch starts.
        `unlimited`: Spark wants all that is there, whatever the options say.

        Raises:
            DataLoss: rows that were to be read are gone, and `failOnDataLoss` is true.
        """
        if start_json is None:
            start_json, unlimited = self._guessed_start(unlimited)
        self._begin_from(start_json)
        assert self._start is not None
        latest = self._wait(unlimited)
        ends = self._admit(latest, unlimited)
        if not self._start.is_start and not self._has_news(ends):
            return start_json
        self._last_batch = self._clock()
        self._end = self._make_end(ends, latest)
        self._end_json = self._end.to_json()
        return self._end_json

    def report_latest(self) -> Json | None:
        """The end of the log as last seen, for Spark's progress reports. Costs no request."""
        if not self._latest:
            return None
        known = {w: p for w, p in self._latest.items() if w.topic in self._view.topics}
        return SourceOffset(self._view.group(known)).to_json()

    def ranges(self, start_json: Json, end_json: Json) -> list[Range]:
        """The rows of one micro-batch. Asks the brokers only when it is a replay.

        Raises:
            DataLoss: they are no longer what they were, and `failOnDataLoss` is true.
        """
        replay = end_json != self._end_json
        end = SourceOffset.from_json(end_json) if replay or self._end is None else self._end
        current = self._start is not None and start_json == self._start_json
        start = self._start if current else SourceOffset.from_json(start_json)
        assert start is not None
        begins = begin_positions(start, end)
        unknown = [TopicPartition(*w) for w, position in begins.items() if position is None]
        known = {TopicPartition(*w): p for w, p in begins.items() if p is not None}
        known |= self._view.earliest(unknown)
        ends = {w: end.topics[w.topic].partitions[w.partition] for w in known}
        if replay:
            self._check_replay(end, known, ends)
            self._end, self._end_json = end, end_json
        return [
            Range(w.topic, end.topics[w.topic].topic_id, w.partition, b.offset, e.offset, b.epoch)
            for w, b, e in ((w, b, ends[w]) for w, b in sorted(known.items()))
            if self._goes_forward(w, b, e)
        ]

    def _goes_forward(self, where: TopicPartition, begin: Position, end: Position) -> bool:
        if end.offset < begin.offset:
            self._lose(f"{where}: the batch ends at {end.offset}, before its start {begin.offset}")
        return end.offset > begin.offset

    # --- where the next batch begins ----------------------------------------------------------
    def _guessed_start(self, unlimited: bool) -> tuple[Json, bool]:
        """The last planned end, or the start of a new query (PySpark 4.0 and 4.1).

        After a restart these versions ask for the latest offset before they say where the query
        stands; then no bound may be applied, or the answer could lie before that point.
        """
        if self._end is not None:
            return self._end_json, unlimited
        fresh = self._initial is not None
        return self.initial_offset(), unlimited or not fresh

    def _begin_from(self, start_json: Json) -> None:
        """Take the position that Spark hands in, and look after it where that is needed."""
        if self._start is not None and start_json == self._start_json:
            if self._view.stale and self._target is None:
                self._view.refresh()
                self._look_for_changes()
            return
        ours = self._end is not None and start_json == self._end_json
        start = self._end if ours else SourceOffset.from_json(start_json)
        assert start is not None
        first_look = self._start is None
        self._start, self._start_json = start, start_json
        if self._view.stale and (self._target is None or not self._view.topics):
            self._view.refresh()
        kept = {w: p for w, p in self._resume.items() if start.position(*w) is None}
        self._resume = kept if ours else {}
        if first_look or not ours:
            self._look_for_changes()
            if not start.is_start:
                self._look_for_gaps()
        else:
            self._settle()
            if not self._known_everywhere():
                self._look_for_changes()

    def _known_everywhere(self) -> bool:
        return all(w in self._begin for w in self._view.partitions)

    def _look_for_changes(self) -> None:
        """Compare the start with the topics as they are now."""
        assert self._start is not None
        for topic, positions in self._start.topics.items():
            view = self._view.topics.get(topic)
            if view is None or view.topic_id != positions.topic_id:
                self._lose_topic(topic, positions, "deleted" if view is None else "created anew")
        fresh = [
            w
            for w in self._view.partitions
            if self._known_position(w) is None and w not in self._resume
        ]
        self._resume |= self._view.earliest(fresh)
        self._settle()

    def _lose_topic(self, topic: str, positions: TopicPositions, happened: str) -> None:
        if (topic, positions.topic_id) in self._lost_topics:
            return  # said once; the next end offset no longer has it
        parts = ", ".join(
            f"partition {partition} from offset {position.offset} on"
            for partition, position in sorted(positions.partitions.items())
        )
        self._lose(f"topic {topic!r} (id {positions.topic_id}) was {happened}: {parts}")
        self._lost_topics.add((topic, positions.topic_id))

    def _known_position(self, where: TopicPartition) -> Position | None:
        """The start's position, if it is about the topic that exists now."""
        assert self._start is not None
        positions = self._start.topics.get(where.topic)
        if positions is None or positions.topic_id != self._view.topics[where.topic].topic_id:
            return None
        return positions.partitions.get(where.partition)

    def _settle(self) -> None:
        """Work out where the next batch begins, from the start and what overrules it."""
        self._begin = {}
        for where in self._view.partitions:
            position = self._resume.get(where) or self._known_position(where)
            if position is not None:
                self._begin[where] = position

    def _look_for_gaps(self) -> None:
        """After a restart: are the rows at the start still there, and the same?"""
        firsts = self._view.earliest(self._begin)
        for where, position in self._begin.items():
            first = firsts[where]
            if first.offset > position.offset:
                self._lose(f"{where}: rows [{position.offset}, {first.offset}) are no longer kept")
                self._resume[where] = first
        self._settle()
        self._check_epochs(self._target or self._view.latest())

    def _note_truncations(self, found: Mapping[TopicPartition, Position]) -> None:
        for where, position in found.items():
            begin = self._begin[where]
            self._lose(
                f"{where}: rows [{position.offset}, {begin.offset}) were read and have been "
                "truncated since; others may have taken their offsets"
            )
            self._resume[where] = position

    # --- what waits ---------------------------------------------------------------------------
    def _wait(self, unlimited: bool) -> dict[TopicPartition, Position]:
        """The ends of all partitions, once there is something to read or the wait is over."""
        if self._target is not None:
            self._latest = self._target
            return self._target
        assert self._start is not None
        max_wait = 0.0 if self._start.is_start else LONG_POLL_S
        started = self._clock()
        latest = self._poll(max_wait)
        if self._view.stale:
            self._view.refresh()
            self._look_for_changes()
            latest = self._poll(0.0)
        elif max_wait and self._nothing_waits(latest) and self._clock() - started < max_wait / 2:
            # An answer before its time without news: never turn that into a busy loop.
            self._pause(max_wait / 2)
        self._check_epochs(latest)
        return latest

    def _poll(self, max_wait: float) -> dict[TopicPartition, Position]:
        if not self._view.partitions:
            self._pause(max_wait)
            self._view.stale = True
            return {}
        known = {w: p.offset for w, p in self._begin.items()}
        if self._options.min_rows_per_trigger is not None and not self._is_due():
            known = {w: p.offset for w, p in self._latest.items()} or known
        answered = self._view.latest(known, max_wait)
        if len(answered) < len(self._view.partitions):
            self._pause(max_wait)  # some partition is between leaders
        self._latest = {w: self._latest[w] for w in self._latest if w in self._begin} | answered
        return self._latest

    def _is_due(self) -> bool:
        return self._clock() - self._last_batch >= self._options.max_trigger_delay

    def _nothing_waits(self, latest: Mapping[TopicPartition, Position]) -> bool:
        return all(p.offset <= self._begin[w].offset for w, p in latest.items() if w in self._begin)

    def _all_latest(self) -> dict[TopicPartition, Position]:
        """The ends of all partitions, with patience for those that are between leaders."""
        deadline = self._clock() + self._options.request_timeout
        while True:
            latest = self._view.latest()
            missing = [str(w) for w in self._view.partitions if w not in latest]
            if not missing:
                return latest
            if self._clock() > deadline:
                raise DataLoss(f"no broker tells where {', '.join(missing)} ends")
            self._pause(LONG_POLL_S)
            self._view.refresh()

    def _check_epochs(self, latest: Mapping[TopicPartition, Position]) -> None:
        """A log that ends before our position, or under another leader epoch, may have lost rows
        that were read."""
        doubtful = {}
        for where, begin in self._begin.items():
            end = latest.get(where)
            if end is None or where in self._resume:
                continue
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
        self._note_truncations(found)
        self._settle()

    # --- what is taken ------------------------------------------------------------------------
    def _admit(
        self, latest: Mapping[TopicPartition, Position], unlimited: bool
    ) -> dict[TopicPartition, int]:
        """The end offset per partition of the next batch."""
        options = self._options
        backlogs = [
            Backlog(w, begin.offset, latest[w].offset if w in latest else begin.offset)
            for w, begin in self._begin.items()
        ]
        ends = {b.key: max(b.start, b.end) for b in backlogs}
        rows = sum(b.rows for b in backlogs)
        if unlimited or not rows:
            return _by_partition(ends)
        waited = self._clock() - self._last_batch
        rows_min = options.min_rows_per_trigger if self._target is None else None
        if not enough_rows(rows, rows_min, waited, options.max_trigger_delay):
            return {w: begin.offset for w, begin in self._begin.items()}
        if options.max_rows_per_trigger is not None:
            ends = admit_rows(backlogs, options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            backlogs = [b._replace(end=ends[b.key]) for b in backlogs]
            ends = self._view.limit_bytes(backlogs, options.max_bytes_per_trigger)
        return _by_partition(ends)

    def _has_news(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether the next end offset says anything that the start does not."""
        assert self._start is not None
        for where, begin in self._begin.items():
            known = self._known_position(where)
            if ends[where] != begin.offset or (known is not None and known != begin):
                return True
        return any(
            topic not in self._view.topics or self._view.topics[topic].topic_id != p.topic_id
            for topic, p in self._start.topics.items()
        )

    def _make_end(
        self, ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, Position]
    ) -> SourceOffset:
        assert self._start is not None
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
        if self._start.is_start:
            return SourceOffset(
                group(positions), first=group({w: self._begin[w] for w in self._begin})
            )
        return SourceOffset(group(positions), resume=group(resumed) if resumed else None)

    def _must_be_named(self, where: TopicPartition) -> bool:
        """A topic created anew must appear under its new id, even while it is empty."""
        assert self._start is not None
        return self._start.is_start or where.topic in self._start.topics

    def _position(
        self,
        where: TopicPartition,
        begin: Position,
        end: int,
        latest: Mapping[TopicPartition, Position],
    ) -> Position:
        """The end with its leader epoch; asks only when the epoch changed within what waits."""
        if end == begin.offset:
            return begin
        last = latest[where]
        if end == last.offset or begin.epoch == last.epoch:
            return Position(end, last.epoch)
        return Position(end, self._view.epoch_before(where, end, last.epoch))

    # --- loss ---------------------------------------------------------------------------------
    def _check_replay(
        self,
        end: SourceOffset,
        begins: dict[TopicPartition, Position],
        ends: dict[TopicPartition, Position],
    ) -> None:
        """A batch that Spark runs again after a restart: are its rows still the same?

        With `failOnDataLoss` false, `begins` and `ends` are narrowed to what is left.
        """
        if self._view.stale:
            self._view.refresh()
        for where in [w for w in begins if self._is_gone(w, end)]:
            self._lose(
                f"topic {where.topic!r} was deleted or created anew: partition {where.partition}, "
                f"rows [{begins[where].offset}, {ends[where].offset})"
            )
            del begins[where], ends[where]
        wanted = {w: b for w, b in begins.items() if b.offset < ends[w].offset}
        firsts = self._view.earliest(wanted)
        lasts = self._view.latest()
        cut = self._view.truncated({w: ends[w] for w in wanted})
        for where, begin in wanted.items():
            first, stop = firsts[where].offset, ends[where].offset
            if first > begin.offset:
                gone = min(first, stop)
                self._lose(f"{where}: rows [{begin.offset}, {gone}) are no longer kept")
                begins[where] = Position(gone)
            last = cut.get(where) or lasts.get(where)
            if last is not None and last.offset < stop:
                self._lose(f"{where}: rows [{last.offset}, {stop}) have been truncated")
                ends[where] = Position(max(last.offset, begins[where].offset))

    def _is_gone(self, where: TopicPartition, end: SourceOffset) -> bool:
        view = self._view.topics.get(where.topic)
        return view is None or view.topic_id != end.topics[where.topic].topic_id

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what}.")
        logger.warning("data loss, going on (failOnDataLoss=false): %s", what)


def _by_partition(ends: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*key): offset for key, offset in ends.items()}
