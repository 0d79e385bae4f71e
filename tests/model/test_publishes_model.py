"""The publishes of `ProducerStates` against a model that keeps every batch for ever.

A target of a partition: rows are forwarded in pieces, again, and late; they become safe (below the
high watermark), are trimmed, and cut off above it; the process starts anew; another replica leads,
which has begun its copy at the log start. Publishers keep two rules: a newer publish of a staging
partition is sent when the one before is safe, and at most four appends of one are not safe yet.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quiverlog.batch.header import MAGIC, BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.core.partition.publishes import Stored
from quiverlog.errors import OutOfOrderSequence
from quiverlog.types import PublishId

OWN = 5
KEYS = [(OWN, 0), (OWN, 1), (6, 0)]
"""Number of the cluster, and staging partition."""
ROWS = (3, 1, 4, 2, 2, 5, 1, 3)
"""Of the batches of each publish, over and over."""
UNSAFE_APPENDS_MAX = 4


def batches_of(key: tuple[int, int], counter: int, first: int, count: int) -> list[BatchHeader]:
    publish_id = PublishId(key[1], 0, counter).pack()
    found = []
    for number in range(first, first + count):
        sequence = sum(ROWS) * (number // len(ROWS)) + sum(ROWS[: number % len(ROWS)])
        rows = ROWS[number % len(ROWS)]
        found.append(
            BatchHeader(0, 0, 0, 0, MAGIC, 0, key[0], publish_id, sequence, rows, 1, 0, 0, 0)
        )
    return found


class PublishesAgainstLog(RuleBasedStateMachine):
    """`log` has all batches that were ever safe or are stored; the rows below `start` are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[BatchHeader] = []
        self.start = self.safe = 0
        self.states = ProducerStates(0, own_cluster=OWN)
        self.snapshots: list[tuple[int, bytes]] = []

    # --- the model -----------------------------------------------------------------------------
    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def of(self, key: tuple[int, int]) -> list[BatchHeader]:
        return [
            one
            for one in self.log
            if one.producer_id >= 0
            and (one.producer_epoch, PublishId.unpack(one.producer_id)[0]) == key
        ]

    def newest(self, key: tuple[int, int]) -> int:
        mine = self.of(key)
        return PublishId.unpack(mine[-1].producer_id).counter if mine else 0

    def stored_rows(self, key: tuple[int, int], counter: int) -> int:
        """Rows of a publish that the log ever had, which are always its first ones."""
        publish_id = PublishId(key[1], 0, counter).pack()
        mine = [one for one in self.of(key) if one.producer_id == publish_id]
        assert [one.base_sequence for one in mine] == [
            sum(other.row_count for other in mine[:number]) for number in range(len(mine))
        ], "each row once, in order"
        return sum(one.row_count for one in mine)

    def append(self, header: BatchHeader) -> None:
        self.log.append(header._replace(base_offset=self.end))

    # --- what happens --------------------------------------------------------------------------
    def forward(self, key: tuple[int, int], counter: int, first: int, count: int) -> None:
        headers = batches_of(key, counter, first, count)
        has = self.stored_rows(key, counter)
        ends = [one.base_sequence + one.row_count for one in headers]
        if counter < self.newest(key):
            found = self.states.publishes.stored(headers)
            assert found == Stored(count, self.of(key)[-1].next_offset)
            return
        if headers[0].base_sequence > has:
            with pytest.raises(OutOfOrderSequence) as failure:
                self.states.publishes.stored(headers)
            assert failure.value.details["next_sequence"] == has
            return
        skipped = sum(end <= has for end in ends)
        end_offset = self.of(key)[-1].next_offset if skipped else 0
        assert self.states.publishes.stored(headers) == Stored(skipped, end_offset)
        unsafe = [one for one in self.of(key) if one.next_offset > self.safe]
        appends = sum(before.next_offset != one.base_offset for before, one in pairwise(unsafe))
        if appends + 1 >= UNSAFE_APPENDS_MAX:
            return
        for header in headers[skipped:]:
            self.states.admit(header, self.end, 0)
            self.append(header)
        self.states.commit_admitted()

    @rule(key=st.sampled_from(KEYS), ahead=st.integers(-4, 2), count=st.integers(1, 12))
    def send(self, key: tuple[int, int], ahead: int, count: int) -> None:
        """A piece of the newest publish, from before or behind its next batch on."""
        counter = self.newest(key)
        has = self.stored_rows(key, counter)
        batch = 0
        while batches_of(key, counter, batch, 1)[0].base_sequence < has:
            batch += 1
        self.forward(key, counter, max(0, batch + ahead), count)

    @rule(key=st.sampled_from(KEYS), first=st.sampled_from([0, 0, 0, 1]), count=st.integers(1, 9))
    def send_the_next_publish(self, key: tuple[int, int], first: int, count: int) -> None:
        if mine := self.of(key):
            self.safe = max(self.safe, mine[-1].next_offset)
            self.forward(key, self.newest(key) + 1, first, count)

    @rule(key=st.sampled_from(KEYS), back=st.integers(1, 3), count=st.integers(1, 9))
    def send_an_older_publish(self, key: tuple[int, int], back: int, count: int) -> None:
        if self.newest(key) >= back:
            self.forward(key, self.newest(key) - back, 0, count)

    @rule(rows=st.integers(1, 5))
    def produce(self, rows: int) -> None:
        self.append(BatchHeader(0, 0, 0, 0, MAGIC, 0, -1, -1, -1, rows, 1, 0, 0, 0))

    @rule(data=st.data())
    def become_safe(self, data: st.DataObject) -> None:
        ends = [one.next_offset for one in self.log if one.next_offset >= self.safe]
        self.safe = data.draw(st.sampled_from(ends or [self.safe]))

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        """Also inside of a batch; before files go, a snapshot covers them."""
        self.start = data.draw(st.integers(self.start, self.safe))
        if not any(offset >= self.start for offset, _ in self.snapshots):
            self.take_snapshot()

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots = [*self.snapshots, (self.end, self.states.snapshot())][-2:]

    def replay(self, states: ProducerStates, offset: int) -> None:
        for header in self.log:
            if header.next_offset > max(offset, self.start):
                states.replay(header)

    @rule()
    def restart(self) -> None:
        offset, blob = self.snapshots[-1] if self.snapshots else (0, b"")
        self.states = self.states.blank()
        self.states.restore(blob)
        self.replay(self.states, offset)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        ends = [one.next_offset for one in self.log if one.next_offset >= self.safe]
        self.cut(data.draw(st.sampled_from(ends or [self.end])))

    def cut(self, end: int) -> None:
        self.snapshots = [one for one in self.snapshots if one[0] <= end]
        if not any(offset >= self.start for offset, _ in self.snapshots):
            self.snapshots = [(self.start, self.states.snapshot_below(self.start))]
        self.log = [one for one in self.log if one.next_offset <= end]
        self.restart()

    @rule(data=st.data())
    def a_copy_leads(self, data: st.DataObject) -> None:
        """The copy began with the leader's states as of the log start, and has what is safe."""
        self.snapshots = [(self.start, self.states.snapshot_below(self.start))]
        self.truncate(data)

    @rule()
    def expire(self) -> None:
        self.states.expire(2**62)

    @invariant()
    def remembers_what_the_log_had(self) -> None:
        for key in KEYS:
            mine = self.of(key)
            runs = self.states.publishes.table.get(key, ())
            if not mine:
                assert not runs
                continue
            assert runs[-1].publish_id == mine[-1].producer_id
            assert runs[-1].next_sequence == self.stored_rows(key, self.newest(key))
            assert runs[-1].end_offset == mine[-1].next_offset


PublishesAgainstLog.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None
)
TestPublishesAgainstLog = PublishesAgainstLog.TestCase
