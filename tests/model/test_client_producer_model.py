"""The producer's machine against the broker's own sequence rule, over a network that lies.

Every run ends with a healed network; then: each send has an end, what was acknowledged lies at the
offsets of the answers, nothing lies in the log twice, what failed for a reason that means "not
stored" is not in the log, and the order of sending is the order in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from quiverlog.batch.codec import decode_batch
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.schema import SchemaHistory
from quiverlog.client.base.results import PartitionInfo, TopicInfo
from quiverlog.client.producer.core import Identity, ProduceCall, ProducerCore, ProducerOptions
from quiverlog.client.producer.types import Delivery
from quiverlog.client.rows.convert import Converter
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import (
    BatchTooLarge,
    ConnectionClosed,
    ConnectionFailed,
    CorruptBatch,
    DiskFull,
    InvalidProducerEpoch,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    RequestTimedOut,
    UnknownProducerId,
    UnknownTopicId,
)
from quiverlog.types import Compression, Durability, Now
from quiverlog.wire import messages as m

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
HISTORY = SchemaHistory({1: SCHEMA})
NOT_STORED = (CorruptBatch, BatchTooLarge)
PARTITIONS = 2


@dataclass
class Log:
    """One partition of the broker. `epochs`: the newest of each producer id that was given out."""

    epochs: dict[int, int]
    ids: list[int] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=lambda: ProducerStates(0))

    def append(self, batch: bytearray) -> m.ProducePartitionResult:
        header = BatchHeader.unpack(batch)
        result = m.ProducePartitionResult(row_count=header.row_count, durability=1)
        try:
            if header.producer_epoch < self.epochs.get(header.producer_id, 0):
                known, result.next_sequence = self.producers.under_ended_epoch(header)
                if known is None:
                    raise InvalidProducerEpoch
            else:
                known = self.producers.check(header)
        except QuiverlogError as error:
            result.error_code = error.code
            return result
        if known is not None:
            result.base_offset, result.duplicate = known, True
            return result
        result.base_offset = len(self.ids)
        self.producers.record(header, len(self.ids), 0)
        self.ids.extend(decode_batch(memoryview(batch), header, HISTORY).column(0).to_pylist())
        return result


class World:
    """Core, network and broker."""

    def __init__(self, in_flight_seed: int, *, delivery_timeout_us: int = 3_000_000) -> None:
        self.now = Now(1_000_000, 1_700_000_000_000_000)
        self.epochs: dict[int, int] = {}
        self.logs = [Log(self.epochs) for _ in range(PARTITIONS)]
        self.wire: list[ProduceCall] = []
        self.late: list[tuple[ProduceCall, m.ProduceResponse]] = []
        """Served, and the answer is still on its way."""
        self.at_large: list[ProduceCall] = []
        """Sent over connections that the client has given up: the broker may get it yet."""
        self.sent: list[tuple[list[int], int, Delivery]] = []
        self.next_id = 0
        self.next_producer = 10
        topic = TopicInfo(
            "t",
            b"t" * 16,
            1,
            (),
            Durability.FLUSHED,
            1 << 20,
            Compression.NONE,
            tuple(PartitionInfo(p, 0, 1) for p in range(PARTITIONS)),
        )
        options = ProducerOptions(
            batch_rows=3,
            batch_bytes=1 << 16,
            linger_us=0,
            compression=Compression.NONE,
            durability=Durability.TOPIC_DEFAULT,
            buffer_bytes=1 << 20,
            delivery_timeout_us=delivery_timeout_us,
            request_timeout_us=1_000_000,
        )
        self.core = ProducerCore(
            topic,
            Converter(SCHEMA, "t"),
            1,
            options,
            Identity(in_flight_seed + 1, 0),
            jitter=lambda: 0.5,
        )

    # --- what may happen ------------------------------------------------------------------------
    def send(self, count: int) -> None:
        self.send_to(count % PARTITIONS, count)

    def send_to(self, partition: int, count: int) -> None:
        ids = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        delivery = Delivery()
        batch = pa.record_batch([pa.array(ids, pa.int64())], schema=SCHEMA)
        for where, rows in self.core.split(batch, partition):
            self.core.add(where, rows, delivery, self.now)
        delivery.mark_complete()
        self.sent.append((ids, partition, delivery))

    def send_one(self, partition: int) -> None:
        delivery = Delivery()
        where = partition % PARTITIONS
        self.core.add_row(where, {"id": self.next_id}, delivery, self.now)
        self.sent.append(([self.next_id], where, delivery))
        self.next_id += 1

    def poll(self, _: int = 0, *, introduces: bool = True) -> None:
        work = self.core.poll(self.now)
        # The network has its own copies: numbers are written into the client's bytes.
        self.wire.extend(c._replace(body=[bytearray(b) for b in c.body]) for c in work.calls)
        if work.needs_metadata:
            self.core.topic_changed(self.core.topic)
        if work.needs_identity:
            self.introduce(answers=introduces)

    def introduce(self, *, answers: bool) -> None:
        """INIT_PRODUCER_ID with the identity that the producer has, as the client asks it."""
        producer_id, epoch = self.core.identity
        newest = self.epochs.get(producer_id, 0)
        if epoch < newest:  # An answer was lost.
            self.next_producer += 1
            identity = Identity(self.next_producer, 0)
        else:
            self.epochs[producer_id] = epoch + 1
            identity = Identity(producer_id, epoch + 1)
        if answers:
            self.core.identity_renewed(identity)

    def lose_introduction(self, _: int) -> None:
        """The next epoch is there, and its answer is lost."""
        self.poll(introduces=False)

    def advance(self, steps: int) -> None:
        self.now = Now(self.now.mono_us + steps * 20_000, self.now.wall_us + steps * 20_000)

    def wait_long(self, steps: int) -> None:
        """What was not answered by now is given up soon."""
        self.advance(20 * steps)

    def answer(self, count: int) -> None:
        for _ in range(min(count, len(self.late) + len(self.wire))):
            if not self.late:
                call = self.wire.pop(0)
                self.late.append((call, self.serve(call)))
            self.core.on_response(*self.late.pop(0), self.now)

    def answer_youngest(self, count: int) -> None:
        """All are served in order; the last answers come first (other partitions hold up some)."""
        self.late.extend((call, self.serve(call)) for call in self.wire)
        self.wire.clear()
        for _ in range(min(count, len(self.late))):
            self.core.on_response(*self.late.pop(), self.now)

    def break_connection(self, served: int) -> None:
        """Some requests arrived and their replies are lost, the others arrive late, or never."""
        for call in self.wire[:served]:
            self.serve(call)
        self.at_large += self.wire[served:]
        self.fail_all_calls(ConnectionClosed("broke"))

    def arrive_late(self, count: int) -> None:
        """The network gives what it has kept, in order; the answers have no waiter."""
        for _ in range(min(count, len(self.at_large))):
            self.serve(self.at_large.pop(0))

    def time_out(self, served: int) -> None:
        for call in self.wire[: served % 2]:
            self.serve(call)
        self.at_large += self.wire[served % 2 :]
        self.fail_all_calls(RequestTimedOut("slow"))

    def fail_all_calls(self, error: QuiverlogError) -> None:
        calls = [*(call for call, _ in self.late), *self.wire]
        self.late, self.wire = [], []
        for call in calls:
            self.core.on_failure(call, error, self.now)

    def refuse(self, which: int) -> None:
        if self.wire:
            error = (DiskFull, NotLeader, ConnectionFailed)[which % 3]("for now")
            self.answer_with(self.wire.pop(0), error)

    def reject(self, which: int) -> None:
        if self.wire:
            self.answer_with(self.wire.pop(0), NOT_STORED[which % 2]("no"))

    def drop_producer_states(self, partition: int) -> None:
        """The broker remembers a bounded number of producers."""
        if not (self.wire or self.late or self.at_large):
            self.logs[partition % PARTITIONS].producers = ProducerStates(0)

    # --- the broker -----------------------------------------------------------------------------
    def serve(self, call: ProduceCall) -> m.ProduceResponse:
        results = []
        for entry, batch in zip(call.request.partitions, call.body, strict=True):
            result = self.logs[entry.partition].append(batch)
            result.partition = entry.partition
            results.append(result)
        return m.ProduceResponse(partitions=results)

    def answer_with(self, call: ProduceCall, error: QuiverlogError) -> None:
        results = [
            m.ProducePartitionResult(partition=p.partition, error_code=error.code)
            for p in call.request.partitions
        ]
        self.core.on_response(call, m.ProduceResponse(partitions=results), self.now)

    def heal(self) -> None:
        """No fault any more: it must come to rest well before deliveries time out."""
        for _ in range(120):
            self.core.close_batches(self.now)
            self.poll()
            self.answer(len(self.late) + len(self.wire))
            if not (self.core.has_unsent or self.wire or self.late):
                self.arrive_late(len(self.at_large))
                return
            self.advance(1)
        raise AssertionError("the producer does not come to rest")

    def check(self) -> None:
        stored = [i for log in self.logs for i in log.ids]
        assert len(stored) == len(set(stored)), "stored twice"
        last = dict.fromkeys(range(PARTITIONS), -1)
        for ids, partition, delivery in self.sent:
            assert delivery.is_done
            holes = (OutOfOrderSequence, UnknownProducerId)
            assert not isinstance(delivery.error, holes), "a hole of our own making was reported"
            log = self.logs[partition].ids
            if delivery.error is None:
                stored = [
                    log[offset]
                    for piece in delivery.produced
                    for offset in range(piece.base_offset, piece.next_offset)
                ]
                assert stored == ids, "not at the acknowledged offsets"
                assert ids[0] > last[partition], "order is lost"
                last[partition] = ids[-1]
            elif isinstance(delivery.error, NOT_STORED) and len(ids) == 1:
                if getattr(delivery.error, "__notes__", None):
                    continue  # an earlier try had no answer, and the error names that
                assert ids[0] not in log, "refused, but stored"
        for log_ids in (log.ids for log in self.logs):
            assert log_ids == sorted(log_ids), "order is lost"
        assert self.core.buffered_bytes == 0


ACTIONS = (
    "send",
    "send_one",
    "poll",
    "advance",
    "answer",
    "answer_youngest",
    "break_connection",
    "time_out",
    "refuse",
    "reject",
    "arrive_late",
    "wait_long",
    "lose_introduction",
    "drop_producer_states",
)
WEIGHTS = (9, 4, 9, 3, 6, 4, 3, 2, 3, 3, 3, 1, 1, 0)
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(min_value=1, max_value=8)), max_size=60
)


def long_walk(seed: int) -> list[tuple[str, int]]:
    """Many steps, most of them harmless: holes need a history to open in."""
    rng = Random(seed)
    actions = rng.choices(ACTIONS, WEIGHTS, k=rng.choice((20, 80, 300)))
    return [(action, rng.randint(1, 8)) for action in actions]


@settings(max_examples=300)
@given(STEPS)
@example([("send", 8), ("poll", 1), ("break_connection", 1)])
@example([("send_one", 1), ("poll", 1), ("reject", 1), ("send_one", 1)])
def test_acknowledged_rows_are_stored_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    world = World(0)
    forgot = False
    for action, argument in steps:
        forgot = forgot or action == "drop_producer_states"
        getattr(world, action)(argument)
        if action.startswith("send"):
            world.poll()
    world.heal()
    if not forgot:  # a broker that forgets what it has stored can be asked twice for it
        world.check()


@pytest.mark.parametrize("seed", range(150))
def test_long_walks(seed: int) -> None:
    world = World(0)
    for action, argument in long_walk(seed):
        getattr(world, action)(argument)
    world.heal()
    world.check()


@settings(max_examples=100)
@given(STEPS)
def test_a_forgetful_broker_never_stalls_the_producer(steps: list[tuple[str, int]]) -> None:
    world = World(1)
    for action, argument in steps:
        getattr(world, action)(argument)
    world.heal()
    assert all(delivery.is_done for _, _, delivery in world.sent)
    assert world.core.buffered_bytes == 0


def test_a_producer_that_waits_for_metadata_does_not_ask_without_a_pause() -> None:
    """The pause between tries is over, but the leader is unknown: only metadata can help."""
    world = World(0)
    world.send(1)
    (call,) = world.core.poll(world.now).calls
    world.core.on_failure(call, ConnectionFailed("gone."), world.now)
    world.advance(10)  # longer than the pause
    work = world.core.poll(world.now)
    assert work.needs_metadata
    assert not work.calls
    assert work.wake_at_us is not None
    assert work.wake_at_us > world.now.mono_us


def test_rows_wait_for_a_leader_with_late_metadata_and_the_controller_is_asked() -> None:
    """As long as the metadata show the topic, however long that takes."""
    world = World(0, delivery_timeout_us=60_000_000)
    world.send(3)
    for _ in range(12):
        (call,) = world.core.poll(world.now).calls
        world.core.on_failure(call, UnknownTopicId("there is no such topic."), world.now)
        assert world.core.is_topic_unconfirmed
        assert world.core.poll(world.now).needs_metadata
        world.core.topic_changed(world.core.topic)
        assert not world.core.is_topic_unconfirmed, "the metadata show the topic"
        world.advance(200)
    (_, _, delivery) = world.sent[0]
    assert not delivery.is_done
    world.heal()
    world.check()
    assert delivery.is_done


def test_answers_that_overtake_each_other_never_leave_more_behind_than_the_broker_remembers() -> (
    None
):
    """The oldest batch waits, younger ones are answered: its retry must still be recognised."""
    world = World(0)
    for _ in range(12):
        world.send_to(0, 3)
    world.poll()
    oldest = world.wire.pop(0)
    world.serve(oldest)  # stored, and its answer is late
    for _ in range(12):
        world.answer(1)
        world.poll()
    assert not world.wire, "more may be sent only when the oldest is answered"
    assert len(world.logs[0].ids) == 3 * 5
    world.core.on_failure(oldest, ConnectionClosed("broke"), world.now)
    world.heal()
    world.check()
    assert all(delivery.error is None for _, _, delivery in world.sent)


@pytest.mark.parametrize("refusal", [InvalidProducerEpoch, UnknownProducerId])
def test_what_may_be_stored_is_not_sent_under_other_numbers(refusal: type[QuiverlogError]) -> None:
    """Stored, answers lost, and then the broker has no state of the producer, or another epoch."""
    world = World(0)
    world.send_to(0, 3)
    world.poll()
    world.answer(1)
    for _ in range(3):
        world.send_to(0, 3)
    world.poll()
    calls, world.wire = world.wire, []
    for call in calls:
        world.serve(call)
        world.core.on_failure(call, ConnectionClosed("broke"), world.now)
    stored = list(world.logs[0].ids)
    assert len(stored) == 12
    world.late.clear()
    for _ in range(20):
        world.advance(4)
        world.poll()
        for call in world.wire:
            if call.batches[0].identity == Identity(1, 0):
                world.answer_with(call, refusal(""))
            else:
                world.core.on_response(call, world.serve(call), world.now)
        world.wire.clear()
    assert world.logs[0].ids == stored, "rows are stored twice"
    assert [delivery.error is None for _, _, delivery in world.sent] == [True, *[False] * 3]
