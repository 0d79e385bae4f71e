"""Brokers that copy one partition, as machines over lists: the shipped cores, and nothing around.

Owns the brokers, their logs and what they exchange. Which of them does what next, which dies and
which is elected is the business of `replication_world`; whether all is well, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from quiverlog.core.partition.levels import safe_offset
from quiverlog.core.partition.partition import Assigned, PartitionState
from quiverlog.core.replication.follower import Cut, Follower, Skip, Take
from quiverlog.core.replication.peer_fetcher import FetchPlan, PeerFetcher
from quiverlog.core.replication.serving import check, record_report, sessions_of
from quiverlog.core.replication.sessions import FetchSessions
from quiverlog.errors import InvalidFetchSession, QuiverlogError
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.types import Durability, TopicPartition
from quiverlog.wire.replica_messages import ReplicaFetchResult

__all__ = ["KEY", "LAG_US", "Answer", "Meta", "ModelBroker", "ModelLog", "Row"]

Row = tuple[int, int]
"""(leader epoch, value)."""
KEY = (b"topic", 0)
LAG_US = 200_000


class Meta(NamedTuple):
    """The metadata at one version. `fit`: broker epochs of those that are unfenced."""

    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    min_in_sync: int
    fit: dict[int, int]

    def fit_epoch(self, broker_id: int) -> int | None:
        return self.fit.get(broker_id)


class Answer(NamedTuple):
    """To a fetch. `rows`: by result, with the offset of the first."""

    error_code: int
    session_id: int = 0
    results: tuple[tuple[ReplicaFetchResult, int, list[Row]], ...] = ()


class Unanswered(NamedTuple):
    """A produce that waits: its rows end at `end`."""

    level: int
    start: int
    end: int
    leader_epoch: int


class ModelLog:
    """A log in memory. `high_watermark` is that of its partition's state."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.flushed_offset = 0
        self.log_start_offset = 0
        self.log_start_saved = 0
        self.high_watermark = 0
        self.readers_wait = False
        self.epochs = LeaderEpochs(lambda: len(self.rows))

    @property
    def log_end_offset(self) -> int:
        return len(self.rows)

    @property
    def saved_epoch(self) -> int:
        """The list is on the disk with each change of it."""
        return self.epochs.newest

    def append(self, rows: Iterable[Row]) -> None:
        for epoch, value in rows:
            assert epoch >= self.epochs.newest or not self.rows
            if epoch > self.epochs.newest:
                self.epochs.assign(epoch, len(self.rows))
            self.rows.append((epoch, value))

    def cut(self, offset: int) -> None:
        """As a log does: the list of epochs is cut, too."""
        del self.rows[offset:]
        self.flushed_offset = min(self.flushed_offset, len(self.rows))
        self.epochs.truncate_to(len(self.rows))

    def recover(self, end: int) -> None:
        """What a start finds: rows up to `end`, with their epochs, and one that begins there."""
        del self.rows[end:]
        self.flushed_offset = len(self.rows)
        self.epochs.truncate_to(end + 1)


class ModelBroker:
    """One broker: its log outlives its processes, all else begins anew with each."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log = ModelLog()
        self.up = False
        self.broker_epoch = -1
        self.lives = 0
        self.waiting: dict[int, object] = {}
        self.asked: object = None

    def start(self, broker_epoch: int, meta: Meta, version: int, now_us: int) -> None:
        self.up = True
        self.lives += 1
        self.broker_epoch = broker_epoch
        log = self.log
        self.state = PartitionState(
            TopicPartition("t", 0),
            leader_epoch=max(0, log.epochs.newest),
            durability=Durability.REPLICATED,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            node_id=self.broker_id,
            lag_max_us=LAG_US,
        )
        self.follower = Follower(log)
        self.fetchers: dict[int, PeerFetcher] = {}
        self.copied_from: int | None = None
        self.sessions = FetchSessions(1_000 * self.lives)
        self.jobs: list[Callable[[int], None]] = []
        self.unanswered: list[Unanswered] = []
        self.elected_us = 0
        self.apply(meta, version, now_us)

    # --- metadata ------------------------------------------------------------------------------
    def apply(self, meta: Meta, version: int, now_us: int) -> None:
        """Act on the metadata. Not while a job cuts the log: what it cuts may be the leader's."""
        assert not self.jobs
        self.meta, self.version = meta, version
        state, log = self.state, self.log
        leads = meta.leader == self.broker_id
        self._copy_from(None if leads else meta.leader, meta.leader_epoch, now_us)
        if leads:
            begins = not state.leads or state.leader_epoch != meta.leader_epoch
            if begins:
                self.unanswered.clear()
                self.elected_us = now_us
            assigned = Assigned(
                meta.leader_epoch,
                meta.partition_epoch,
                meta.replicas,
                meta.in_sync,
                meta.min_in_sync,
            )
            newest, start = log.epochs.latest()
            is_tail_bare = newest >= 0 and start >= log.log_end_offset
            if begins:
                log.epochs.assign(meta.leader_epoch, log.log_end_offset)
            state.lead(assigned, now_us, is_tail_bare=is_tail_bare)
        else:
            state.follow(meta.leader_epoch)
            self.unanswered.clear()
        log.high_watermark = state.high_watermark

    def _copy_from(self, leader: int | None, leader_epoch: int, now_us: int) -> None:
        self.follower.led_by(leader_epoch, has_leader=leader is not None)
        if leader != self.copied_from:
            if self.copied_from is not None:
                self.fetchers[self.copied_from].remove(KEY)
            self.copied_from = leader
            if leader is not None:
                self.fetchers.setdefault(leader, PeerFetcher()).add(KEY, self.follower, now_us)
        elif leader is not None:
            self.fetchers[leader].mark_news(KEY, now_us)

    # --- leading -------------------------------------------------------------------------------
    def produce(self, values: list[int], level: int) -> None:
        """Raises NotEnoughReplicas."""
        state = self.state
        assert state.leads
        state.required_level(level)
        start = self.log.log_end_offset
        self.log.append((state.leader_epoch, value) for value in values)
        state.appended(self.log.log_end_offset)
        self.unanswered.append(
            Unanswered(level, start, self.log.log_end_offset, state.leader_epoch)
        )
        self.moved()

    def moved(self) -> None:
        self.log.high_watermark = self.state.high_watermark
        for session in sessions_of(self.state):
            session.moved(KEY)

    def acknowledge(self) -> list[Unanswered]:
        """What is as safe as was asked for by now."""
        state = self.state
        found = [one for one in self.unanswered if one.end <= safe_offset(one.level, state)]
        self.unanswered = [one for one in self.unanswered if one not in found]
        return found

    def serve(self, source: int, source_epoch: int, plan: FetchPlan, now_us: int) -> Answer:
        """Answer a fetch at once."""
        state, log = self.state, self.log
        try:
            session, ended = self.sessions.request(
                source, source_epoch, plan.session_id, plan.session_epoch, now_us
            )
            if ended is not None and state.leadership is not None:
                state.leadership.session_ended(ended.broker_id)
            gone = session.take(plan.entries, plan.forgotten)
            if gone and state.leadership is not None:
                state.leadership.session_ended(source)
            for entry in plan.entries:
                if record_report(state, log.epochs, session, entry, self.meta, now_us):
                    self.moved()
        except QuiverlogError as error:
            return Answer(error.code)
        results = []
        while (key := session.next_news()) is not None:
            entry = session.entries[key]
            result = check(state, log.epochs, source, entry)
            rows: list[Row] = []
            if not result.error_code:
                rows = log.rows[entry.offset : entry.offset + 3]
            results.append((result, entry.offset, rows))
        return Answer(0, session.session_id, tuple(results))

    # --- following -----------------------------------------------------------------------------
    def answered(self, leader: int, answer: Answer, now_us: int) -> None:
        fetcher = self.fetchers[leader]
        if answer.error_code == InvalidFetchSession.code:
            fetcher.refused(now_us)
            return
        if answer.error_code:
            fetcher.failed(now_us)
            return
        fetcher.answered(answer.session_id)
        for result, offset, rows in answer.results:
            action = fetcher.result(result, now_us)
            if isinstance(action, Take):
                self._take(fetcher, result, offset, rows, now_us)
            elif isinstance(action, Cut):
                self.jobs.append(lambda now, cut=action: self._cut(cut, now))  # type: ignore[misc]
            else:
                assert not isinstance(action, Skip), "no replica gives up rows here"

    def _take(
        self,
        fetcher: PeerFetcher,
        result: ReplicaFetchResult,
        offset: int,
        rows: list[Row],
        now_us: int,
    ) -> None:
        log, state = self.log, self.state
        if rows and offset == log.log_end_offset:
            cut = self.follower.rows_of(rows[0][0])
            if cut is not None:
                self.jobs.append(lambda now: self._cut(cut, now))
                return
            log.append(rows)
            state.appended(log.log_end_offset)
            fetcher.mark_news(KEY, now_us)
        state.on_leader_high_watermark(result.high_watermark)
        log.high_watermark = state.high_watermark
        if result.epoch_start_offset == log.log_end_offset > 0:
            log.epochs.assign(result.leader_epoch, log.log_end_offset)

    def _cut(self, cut: Cut, now_us: int) -> None:
        self.log.cut(cut.offset)
        self.state.truncated(self.log.log_end_offset)
        self.log.high_watermark = self.state.high_watermark
        self.follower.cut()
        if self.copied_from is not None:
            self.fetchers[self.copied_from].mark_news(KEY, now_us)

    def flush(self, now_us: int) -> None:
        if self.jobs:
            return
        self.log.flushed_offset = self.log.log_end_offset
        self.state.flushed(self.log.flushed_offset)
        if self.copied_from is not None:
            self.fetchers[self.copied_from].mark_news(KEY, now_us)
