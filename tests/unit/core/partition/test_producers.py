"""The rules of idempotent producers, one by one (KIP-98; rule 21 of the replication rules)."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import MAGIC, BatchHeader
from quiverlog.core.partition.producers import SEQUENCE_MODULUS, ProducerStates
from quiverlog.errors import (
    CorruptLog,
    InvalidProducerEpoch,
    InvalidRequest,
    OutOfOrderSequence,
    UnknownProducerId,
)


def batch(
    sequence: int, rows: int = 10, *, pid: int = 7, epoch: int = 0, offset: int = 0
) -> BatchHeader:
    return BatchHeader(offset, 0, 0, 0, MAGIC, 0, epoch, pid, sequence, rows, 1, 0, 0, 0)


def states_with(*batches: BatchHeader, **options: int) -> ProducerStates:
    states = ProducerStates(0, **options)
    for header in batches:
        states.replay(header)
    return states


def test_sequences_count_rows() -> None:
    states = states_with(batch(0, rows=10))
    assert states.check(batch(10, rows=3)) is None
    with pytest.raises(OutOfOrderSequence, match="sent sequence 1, expected 10"):
        states.check(batch(1, rows=3))


def test_a_repetition_gets_the_first_offset() -> None:
    states = states_with(batch(0, offset=100), batch(10, offset=130))
    assert states.check(batch(0)) == 100
    assert states.check(batch(10)) == 130


def test_same_sequence_with_other_rows_is_no_repetition() -> None:
    states = states_with(batch(0, rows=10))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(0, rows=9))


def test_five_batches_are_remembered_and_the_sixth_is_not() -> None:
    """Rule 21 of docs/replication-rules.md."""
    states = states_with(*(batch(i * 10, offset=i * 10) for i in range(6)))
    assert states.check(batch(10)) == 10
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(0))


def test_sequence_wraps_at_two_to_the_31() -> None:
    states = states_with(batch(SEQUENCE_MODULUS - 4, rows=10))
    assert states.check(batch(6)) is None
    states = states_with(batch(SEQUENCE_MODULUS - 10, rows=10))
    assert states.check(batch(0)) is None


def test_unknown_producer_must_start_at_zero() -> None:
    states = ProducerStates(0)
    assert states.check(batch(0)) is None
    with pytest.raises(UnknownProducerId):
        states.check(batch(10))


def test_new_epoch_must_start_at_zero_and_fences_the_old() -> None:
    states = states_with(batch(0))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(10, epoch=1))
    assert states.check(batch(0, epoch=1)) is None
    states.record(batch(0, epoch=1), 10, 0)
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(10, epoch=0))
    assert states.check(batch(0, epoch=1)) == 10, "the old epoch's batch 0 is forgotten"


def test_producers_do_not_see_each_other() -> None:
    states = states_with(batch(0, pid=1), batch(0, pid=2))
    assert states.check(batch(10, pid=1)) is None
    assert states.check(batch(10, pid=2)) is None


def test_batches_without_producer_are_never_repetitions() -> None:
    states = ProducerStates(0)
    for _ in range(2):
        assert states.check(batch(-1, pid=-1, epoch=-1)) is None
        states.record(batch(-1, pid=-1, epoch=-1), 0, 0)
    assert len(states) == 0


@pytest.mark.parametrize(("sequence", "epoch"), [(-1, 0), (0, -1)])
def test_producer_id_needs_epoch_and_sequence(sequence: int, epoch: int) -> None:
    with pytest.raises(InvalidRequest):
        ProducerStates(0).check(batch(sequence, epoch=epoch))


def test_the_newest_epoch_is_known_before_it_is_stored() -> None:
    states = states_with(batch(0))
    assert (states.newest_epoch(7), states.newest_epoch(8)) == (0, -1)
    states.admit(batch(0, epoch=3), 10, 0)
    assert states.newest_epoch(7) == 3
    states.drop_admitted()
    assert states.newest_epoch(7) == 0


def test_the_longest_silent_makes_room() -> None:
    states = states_with(batch(0, pid=1), batch(0, pid=2), producers_max=2)
    states.record(batch(10, pid=1), 20, 0)
    states.record(batch(0, pid=3), 30, 0)
    assert len(states) == 2
    assert states.check(batch(20, pid=1)) is None
    with pytest.raises(UnknownProducerId):
        states.check(batch(10, pid=2))


def test_expiry_forgets_the_silent_only() -> None:
    states = ProducerStates(0, expiry_us=100)
    states.record(batch(0, pid=1), 0, 0)
    states.record(batch(0, pid=2), 0, 50)
    assert states.expire(100) == 0
    assert states.expire(101) == 1
    with pytest.raises(UnknownProducerId):
        states.check(batch(10, pid=1))
    assert states.check(batch(10, pid=2)) is None


def test_replayed_producers_count_as_seen_at_opening() -> None:
    states = ProducerStates(1_000_000, expiry_us=100)
    states.replay(batch(0))
    assert states.expire(1_000_050) == 0
    assert states.expire(1_000_101) == 1


def test_snapshot_brings_everything_back() -> None:
    states = states_with(
        *(batch(i * 10, offset=i * 10) for i in range(7)), batch(0, pid=9, epoch=3)
    )
    restored = ProducerStates(0)
    restored.restore(states.snapshot())
    assert restored.snapshot() == states.snapshot()
    assert restored.check(batch(60)) == 60
    assert restored.check(batch(70)) is None
    with pytest.raises(InvalidProducerEpoch):
        restored.check(batch(10, pid=9, epoch=2))


@pytest.mark.parametrize("blob", [b"\xff", b"\x93", b"\x92\x02\x90"])
def test_a_bad_snapshot_is_refused(blob: bytes) -> None:
    states = states_with(batch(0))
    with pytest.raises(CorruptLog):
        states.restore(blob)
    assert len(states) == 0


def test_an_empty_snapshot_is_no_producers() -> None:
    states = states_with(batch(0))
    states.restore(b"")
    assert len(states) == 0


def test_admitted_batches_count_for_checks_and_not_for_snapshots() -> None:
    states = states_with(batch(0))
    before = states.snapshot()
    states.admit(batch(10), 10, 0)
    states.admit(batch(0, pid=8), 20, 0)
    assert states.check(batch(20)) is None
    assert states.check(batch(10)) == 10
    assert states.snapshot() == before
    states.drop_admitted()
    assert states.check(batch(10)) is None
    states.admit(batch(10), 10, 0)
    states.commit_admitted()
    assert states.check(batch(10)) == 10
    assert states.snapshot() != before


def test_an_admitted_epoch_fences_the_old_one_only_once_it_is_stored() -> None:
    states = states_with(batch(0))
    states.admit(batch(0, epoch=1), 10, 0)
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(10))
    states.drop_admitted()
    assert states.check(batch(10)) is None


def test_a_snapshot_of_more_producers_than_are_remembered_loses_the_longest_silent() -> None:
    many = states_with(*(batch(0, pid=pid, offset=10 * pid) for pid in range(5)))
    few = ProducerStates(0, producers_max=3)
    few.restore(many.snapshot())
    assert len(few) == 3
    assert few.check(batch(0, pid=4)) == 40
    few.replay(batch(0, pid=9, offset=50))
    assert len(few) == 3
    with pytest.raises(UnknownProducerId):
        few.check(batch(10, pid=2))


def test_a_reader_from_an_offset_on_needs_the_batches_below_it() -> None:
    batches = [batch(10 * n, pid=7, offset=10 * n) for n in range(4)]
    batches += [batch(0, pid=8, offset=40), batch(10, pid=7, offset=50)]
    batches[-1] = batch(40, pid=7, offset=50)
    batches += [batch(0, pid=9, epoch=1, offset=60)]
    whole = states_with(*batches)
    for begin in range(0, 80, 5):  # Also inside of batches, which then come with the rows.
        part = states_with()
        part.restore(whole.snapshot_below(begin))
        for header in batches:
            if header.next_offset > begin:
                part.replay(header)
        assert part.snapshot() == whole.snapshot()
    assert len(states_with(*batches[:1])) == 1


def test_what_is_read_again_was_seen_when_the_newest_was() -> None:
    states = ProducerStates(0, expiry_us=1_000)
    states.record(batch(0), 0, 5_000)
    again = states.blank()
    again.restore(states.snapshot())
    states.adopt(again)
    assert states.expire(5_500) == 0, "a process may be older than what it remembers"
    assert states.expire(6_001) == 1


def test_the_progress_of_a_producer_is_that_of_its_newest_stored_batch() -> None:
    states = ProducerStates(100)
    assert states.progress(7, 200) is None
    states.record(batch(0, rows=10, epoch=2), 40, 1_000)
    states.admit(batch(10, rows=3, epoch=2), 50, 2_000)
    assert states.progress(7, 5_000) == (2, 10, 49, 4_000), "an admitted batch is not stored yet"
    states.commit_admitted()
    assert states.progress(7, 5_000) == (2, 13, 52, 3_000)
    assert states.progress(7, 1_999) == (2, 13, 52, 0), "never negative"
    again = ProducerStates(9_000)
    again.restore(states.snapshot())
    assert again.progress(7, 9_500) == (2, 13, 52, 500), "silent since it was opened here"
    assert again.progress(8, 9_500) is None
