"""What was sent over a connection that is given up may arrive later: what the producer makes of it.

One partition, batches of three rows; `World` is that of test_client_producer_model.
"""

from __future__ import annotations

from quiverlog.client.producer.core import Identity
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import (
    ClientClosed,
    ConnectionClosed,
    CorruptBatch,
    DeliveryTimedOut,
    InvalidProducerEpoch,
    QuiverlogError,
    UnknownProducerId,
)
from tests.model.test_client_producer_model import World

TIMEOUT_STEPS = 3_000_000 // 20_000


def sent(count: int) -> World:
    """A row is stored, then `batches` batches are sent, and the network keeps them."""
    world = World(0)
    world.send_to(0, 1)
    world.poll()
    world.answer(1)
    for _ in range(count):
        world.send_to(0, 3)
    world.poll()
    assert len(world.wire) == count
    return world


def errors(world: World) -> list[QuiverlogError | None]:
    return [delivery.error for _, _, delivery in world.sent]


def settle(world: World) -> None:
    world.heal()
    world.check()


def test_rows_behind_a_batch_that_was_given_up_are_stored_once_and_in_order() -> None:
    """The case of old: the retry is refused as out of order, then both first tries arrive."""
    world = sent(0)
    world.send_to(0, 3)
    world.poll()
    world.advance(TIMEOUT_STEPS // 2)
    world.send_to(0, 3)
    world.poll()
    world.break_connection(0)
    world.advance(TIMEOUT_STEPS // 2)
    world.poll()
    assert isinstance(errors(world)[1], DeliveryTimedOut)
    assert "may be stored" in str(errors(world)[1].__notes__)
    world.answer(8)
    world.send_to(0, 3)
    world.heal()
    world.check()
    assert [type(error) for error in errors(world)[2:]] == [type(None)] * 2
    assert world.core.identity == Identity(1, 1), "the next epoch, not another id"
    assert world.logs[0].ids == [0, 4, 5, 6, 7, 8, 9], "what was given up came too late"


def test_what_arrives_between_the_refusal_and_the_next_epoch_is_stored_once() -> None:
    """An answer speaks of its moment."""
    world = sent(0)
    world.send_to(0, 3)
    world.poll()
    world.advance(TIMEOUT_STEPS // 2)
    world.send_to(0, 3)
    world.poll()
    world.break_connection(0)
    world.advance(TIMEOUT_STEPS // 2)
    world.poll()
    assert isinstance(errors(world)[1], DeliveryTimedOut)
    world.poll()  # The metadata are there.
    (call,) = world.wire
    world.answer(1)  # Out of order: the batch before is not there.
    assert call.batches[0].maybe_stored
    world.arrive_late(2)
    settle(world)
    assert world.logs[0].ids == [0, 1, 2, 3, 4, 5, 6]
    assert [error is None for error in errors(world)] == [True, False, True]


def test_a_batch_that_is_acknowledged_mends_the_numbers_before_it() -> None:
    """What was given up was stored: no other epoch is needed."""
    world = sent(2)
    world.break_connection(2)
    world.core._sender._queues[0].retry[0].deadline_us = world.now.mono_us
    world.poll()
    assert isinstance(errors(world)[1], DeliveryTimedOut)
    world.advance(10)
    world.send_to(0, 3)
    settle(world)
    assert world.logs[0].ids == list(range(10))
    assert [error is None for error in errors(world)] == [True, False, True, True]
    assert world.core.identity == Identity(1, 0)


def test_a_batch_that_was_refused_costs_no_epoch() -> None:
    """All that was sent is answered: the numbers of what is not stored are used again."""
    world = sent(3)
    world.answer_with(world.wire.pop(0), CorruptBatch("no."))
    world.answer(2)  # Out of order.
    settle(world)
    assert isinstance(errors(world)[1], CorruptBatch)
    assert world.logs[0].ids == [0, 4, 5, 6, 7, 8, 9]
    assert world.core.identity == Identity(1, 0)


def test_a_batch_refused_before_the_answer_to_the_one_before_it() -> None:
    world = sent(3)
    first, second, third = world.wire
    world.wire.clear()
    world.answer_with(second, CorruptBatch("no."))
    world.core.on_failure(first, ConnectionClosed("broke"), world.now)
    world.at_large.append(first)
    world.core.on_response(third, world.serve(third), world.now)
    settle(world)
    assert [error is None for error in errors(world)] == [True, True, False, True]
    assert world.logs[0].ids == [0, 1, 2, 3, 7, 8, 9]


def test_what_was_never_sent_costs_no_epoch() -> None:
    """A leader that is away for longer than rows wait."""
    world = sent(0)
    for _ in range(3):
        world.send_to(0, 3)
        for _ in range(4):
            world.poll()
            while world.wire:
                world.refuse(2)
            world.advance(TIMEOUT_STEPS // 3)
    world.send_to(0, 3)
    settle(world)
    assert [type(error) for error in errors(world)[1:4]] == [DeliveryTimedOut] * 3
    assert world.logs[0].ids == [0, 10, 11, 12]
    assert world.core.identity == Identity(1, 0)


def test_numbers_that_may_arrive_later_are_not_used_again() -> None:
    """The batch behind the refused one was sent, and its connection is lost."""
    world = sent(2)
    world.answer_with(world.wire.pop(0), CorruptBatch("no."))
    world.break_connection(0)
    for _ in range(3):
        world.advance(10)
        world.send_to(0, 3)
        world.poll()
        world.answer(3)
        world.arrive_late(1)
    settle(world)
    assert world.core.identity == Identity(1, 1)
    assert [error is None for error in errors(world)] == [True, False, *[True] * 4]


def test_the_batches_of_other_partitions_are_settled_by_the_epoch_that_one_needs() -> None:
    """Stored or not, answered or not: each goes under the next epoch only if it is not stored."""
    world = sent(0)
    world.send_to(1, 1)
    world.poll()
    world.answer(1)
    for partition in (0, 1, 1, 1):
        world.send_to(partition, 3)
        world.poll()
    late = next(call for call in world.wire if 0 in call.batches)
    stored, lost, waiting = (call for call in world.wire if 0 not in call.batches)
    world.wire.clear()
    world.serve(stored)  # Its answer is lost.
    world.core.on_failure(stored, ConnectionClosed("broke"), world.now)
    world.core.on_failure(lost, ConnectionClosed("broke"), world.now)
    world.at_large += [late, lost]
    world.core.on_failure(late, ConnectionClosed("broke"), world.now)
    world.core._sender._queues[0].retry[0].deadline_us = world.now.mono_us
    world.send_to(0, 3)
    world.poll()
    world.poll()
    assert world.core.identity == Identity(1, 1)
    world.core.on_response(waiting, world.serve(waiting), world.now)
    settle(world)
    assert [error is None for error in errors(world)] == [True, True, False, *[True] * 4]
    assert world.logs[1].ids == [1, *range(5, 14)]


def test_a_broker_without_the_producers_state_leaves_the_outcome_unknown() -> None:
    world = sent(1)
    world.break_connection(1)
    world.logs[0].producers = ProducerStates(0)
    world.epochs[1] = 1
    world.advance(10)
    world.poll()
    world.answer(1)
    settle(world)
    (error,) = [error for error in errors(world) if error is not None]
    assert isinstance(error, InvalidProducerEpoch | UnknownProducerId)
    assert "may be stored" in str(error.__notes__)
    assert world.logs[0].ids == [0, 1, 2, 3], "not twice"


def test_the_controllers_answer_with_a_new_epoch_may_be_lost() -> None:
    world = sent(1)
    world.break_connection(0)
    world.core._sender._queues[0].retry[0].deadline_us = world.now.mono_us
    world.send_to(0, 3)
    world.poll()
    world.lose_introduction(0)
    assert world.core.identity == Identity(1, 0)
    world.arrive_late(1)
    settle(world)
    assert world.core.identity == Identity(11, 0), "the older one is over, so a new id does"
    assert world.logs[0].ids == [0, 4, 5, 6]


def test_rows_that_are_given_up_are_no_longer_counted() -> None:
    """Rows that wait to be converted, a closed batch, and one that is under way."""
    world = sent(1)
    world.send_to(1, 3)
    world.send_one(2)
    assert world.core.buffered_bytes > 0
    world.core.fail_all(ClientClosed("gone"))
    assert world.core.buffered_bytes == 0
    assert not world.core.has_unsent
    assert all(isinstance(error, ClientClosed) for error in errors(world)[1:])
