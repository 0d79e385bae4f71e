"""ProducerStates against a model that keeps every batch for ever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quiverlog.batch.header import MAGIC, BatchHeader
from quiverlog.core.partition.producers import SEQUENCE_MODULUS, ProducerStates
from quiverlog.errors import InvalidProducerEpoch, OutOfOrderSequence, UnknownProducerId

REMEMBERED = 5


def header_of(pid: int, epoch: int, sequence: int, rows: int, offset: int = 0) -> BatchHeader:
    return BatchHeader(offset, 0, 0, 0, MAGIC, 0, epoch, pid, sequence, rows, 1, 0, 0, 0)


class ProducersAgainstLog(RuleBasedStateMachine):
    """The log is a list of headers; the right answer follows from the list alone."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[BatchHeader] = []
        self.end = 0
        self.states = ProducerStates(0)
        self.snapshots: list[tuple[int, bytes]] = []

    # --- the model -----------------------------------------------------------------------------
    def expected(self, header: BatchHeader) -> int | type[Exception] | None:
        mine = [h for h in self.log if h.producer_id == header.producer_id]
        if not mine:
            return None if header.base_sequence == 0 else UnknownProducerId
        epoch = mine[-1].producer_epoch
        if header.producer_epoch < epoch:
            return InvalidProducerEpoch
        if header.producer_epoch > epoch:
            return None if header.base_sequence == 0 else OutOfOrderSequence
        recent = [h for h in mine if h.producer_epoch == epoch][-REMEMBERED:]
        last = recent[-1]
        if header.base_sequence == (last.base_sequence + last.row_count) % SEQUENCE_MODULUS:
            return None
        for known in recent:
            if known.base_sequence == header.base_sequence and known.row_count == header.row_count:
                return known.base_offset
        return OutOfOrderSequence

    def send(self, header: BatchHeader) -> None:
        expected = self.expected(header)
        if isinstance(expected, type):
            try:
                self.states.check(header)
            except expected:
                return
            raise AssertionError(f"{header} was taken, {expected.__name__} expected")
        assert self.states.check(header) == expected
        if expected is None:
            self.states.record(header, self.end, 0)
            self.append(header)

    def append(self, header: BatchHeader) -> None:
        self.log.append(header._replace(base_offset=self.end))
        self.end += header.row_count

    # --- what happens --------------------------------------------------------------------------
    @rule(pid=st.integers(0, 2), rows=st.integers(1, 4))
    def next_batch(self, pid: int, rows: int) -> None:
        mine = [h for h in self.log if h.producer_id == pid]
        epoch = mine[-1].producer_epoch if mine else 0
        mine = [h for h in mine if h.producer_epoch == epoch]
        sequence = mine[-1].base_sequence + mine[-1].row_count if mine else 0
        self.send(header_of(pid, epoch, sequence % SEQUENCE_MODULUS, rows))

    @rule(pids=st.lists(st.integers(0, 2), max_size=8), stored=st.booleans())
    def group(self, pids: list[int], stored: bool) -> None:
        """Batches on their way together: all of them reach the log, or none."""
        before = self.states.snapshot()
        log, end = list(self.log), self.end
        for pid in pids:
            mine = [h for h in self.log if h.producer_id == pid]
            epoch = mine[-1].producer_epoch if mine else 0
            mine = [h for h in mine if h.producer_epoch == epoch]
            sequence = mine[-1].base_sequence + mine[-1].row_count if mine else 0
            header = header_of(pid, epoch, sequence % SEQUENCE_MODULUS, 2)
            assert self.states.check(header) is None
            self.states.admit(header, self.end, 0)
            self.append(header)
            assert self.states.check(header) == self.expected(header)
        assert self.states.snapshot() == before, "a snapshot is never ahead of the log"
        if stored:
            self.states.commit_admitted()
        else:
            self.states.drop_admitted()
            self.log, self.end = log, end

    @rule(back=st.integers(1, 12))
    def repeat(self, back: int) -> None:
        if len(self.log) >= back:
            self.send(self.log[-back])

    @rule(
        pid=st.integers(0, 2),
        epoch=st.integers(0, 3),
        sequence=st.integers(0, 30),
        rows=st.integers(1, 4),
    )
    def anything(self, pid: int, epoch: int, sequence: int, rows: int) -> None:
        self.send(header_of(pid, epoch, sequence, rows))

    @rule(pid=st.integers(0, 2), before_wrap=st.integers(1, 10))
    def near_the_wrap(self, pid: int, before_wrap: int) -> None:
        """As if the producer had sent two billion rows: only the log's tail has them."""
        mine = [h for h in self.log if h.producer_id == pid]
        epoch = mine[-1].producer_epoch if mine else 0
        header = header_of(pid, epoch, SEQUENCE_MODULUS - before_wrap, 4, self.end)
        self.states.replay(header)
        self.log.append(header)
        self.end += 4

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((len(self.log), self.states.snapshot()))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """From any snapshot, or none: the rest of the log is replayed."""
        count, blob = data.draw(st.sampled_from([(0, b""), *self.snapshots]))
        self.states = ProducerStates(0)
        self.states.restore(blob)
        for header in self.log[count:]:
            self.states.replay(header)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """The log loses its tail, and the producers forget exactly that."""
        keep = data.draw(st.integers(0, len(self.log)))
        self.log = self.log[:keep]
        self.end = self.log[-1].next_offset if self.log else 0
        self.snapshots = [entry for entry in self.snapshots if entry[0] <= keep]
        self.restart(data)

    @invariant()
    def remembers_each_producer_once(self) -> None:
        assert len(self.states) == len({h.producer_id for h in self.log})


ProducersAgainstLog.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestProducersAgainstLog = ProducersAgainstLog.TestCase
