"""What a partition of `__staged` counts, publishes, asks about and gives up, rule by rule."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import FunctionType

import pytest

from quiverlog.core.transactions import staged as staged_module
from quiverlog.core.transactions.staged import (
    ASK_AFTER_US,
    STAGED_ATTEMPTS_MAX,
    STAGED_BATCHES_MAX,
    STAGED_ENDS_MAX,
    STAGED_ID_BYTES_MAX,
    AttemptRange,
    Done,
    Key,
    Known,
    New,
    Staged,
    StagedOf,
    key_of,
)
from quiverlog.core.transactions.staged_rows import DoneRow, End, PublishRow, StagedRow, check_bytes
from quiverlog.errors import StagingFull, TransactionTooLarge
from quiverlog.limits import MIB

A, B, C = (bytes([n]) * 16 for n in (1, 200, 3))
ORDERS, CLICKS = b"o" * 16, b"c" * 16
KEY = Key("app", 2, 5)
END = 10_000
"""Where a log ends that holds all rows of a test."""


def make_id(count: int) -> int:
    return 2**62 | 3 << 52 | 7 << 32 | count


def row(
    attempt: bytes = A,
    rows: int = 10,
    *,
    key: Key = KEY,
    topic: bytes = ORDERS,
    partition: int = 0,
    size: int = 1_000,
) -> StagedRow:
    return StagedRow(*key, attempt, topic, partition, rows, size)


def index(*rows: StagedRow, first: int = 100, now_us: int = 0) -> Staged:
    staged = Staged(make_id)
    for offset, one in enumerate(rows, first):
        staged.stage(offset, one, now_us)
    return staged


def whole(
    staged: Staged, *ranges: tuple[bytes, int, int, int], key: Key = KEY, safe: int = END
) -> bool:
    return staged.count(key, [AttemptRange(*one) for one in ranges], safe).is_whole


def publish(
    staged: Staged,
    *attempts: bytes,
    key: Key = KEY,
    span: tuple[int, int] = (0, END),
    rows: int = -1,
    log_start: int = 0,
) -> object:
    return staged.publish(key, attempts, *span, 2, rows, log_start)


def published(
    staged: Staged, *attempts: bytes, key: Key = KEY, at: int | None = None
) -> PublishRow:
    """A publish whose row is safe."""
    answer = publish(staged, *attempts, key=key)
    assert isinstance(answer, New)
    staged.pend(answer.row)
    staged.apply(staged.next_offset if at is None else at, answer.row)
    return answer.row


def done_row(key: Key = KEY, ends: Iterable[End] = ()) -> DoneRow:
    return DoneRow(*key, tuple(ends), 2)


def finished(staged: Staged, key: Key = KEY) -> None:
    done = done_row(key)
    staged.pend(done)
    staged.apply(staged.next_offset, done)


# --- COUNT_STAGED -----------------------------------------------------------------------------
def test_all_rows_are_there() -> None:
    staged = index(row(A, 10), row(B, 20), row(A, 5, topic=CLICKS, partition=7))
    counted = staged.count(KEY, [AttemptRange(A, 15, 100, 103)], 103)
    assert counted.is_whole
    assert counted.targets == {(ORDERS, 0): 10, (CLICKS, 7): 5}


def test_targets_are_summed_over_attempts() -> None:
    staged = index(row(A, 10), row(B, 20))
    counted = staged.count(KEY, [AttemptRange(A, 10, 100, 101), AttemptRange(B, 20, 101, 102)], 102)
    assert counted.is_whole
    assert counted.targets == {(ORDERS, 0): 30}


def test_an_attempt_that_was_never_staged_is_not_whole() -> None:
    staged = index(row(A, 10))
    assert not whole(staged, (B, 10, 100, 101))
    assert not whole(Staged(make_id), (A, 10, 0, 1))
    assert not whole(staged, (A, 10, 100, 101), (B, 10, 100, 101))


@pytest.mark.parametrize("count", [9, 11])
def test_a_count_that_is_not_so_is_not_whole(count: int) -> None:
    staged = index(row(A, 10))
    assert whole(staged, (A, 10, 100, 101))
    assert not whole(staged, (A, count, 100, 101))


@pytest.mark.parametrize(("first", "following"), [(101, 102), (100, 101)])
def test_rows_outside_the_range_are_not_whole(first: int, following: int) -> None:
    staged = index(row(A, 10), row(A, 10))
    assert whole(staged, (A, 20, 100, 102))
    assert not whole(staged, (A, 20, first, following))
    # The other batch would be published with the ranges of other attempts.
    assert not whole(staged, (A, 10, first, following))


@pytest.mark.parametrize("safe", [102, 103])
def test_rows_at_the_safe_offset_do_not_count(safe: int) -> None:
    staged = index(row(A, 10), row(A, 10), row(A, 10))
    assert whole(staged, (A, 30, 100, 103), safe=safe) == (safe == 103)


def test_a_range_that_ends_behind_what_is_safe_is_not_whole() -> None:
    # Rows that come later would lie in it.
    staged = index(row(A, 10))
    assert whole(staged, (A, 10, 100, 101), safe=101)
    assert not whole(staged, (A, 10, 100, 102), safe=101)


@pytest.mark.parametrize(
    "key", [Key("app", 1, 5), Key("app", 3, 5), Key("app", 2, 4), Key("app", 2, 6), Key("b", 2, 5)]
)
def test_rows_of_another_epoch_sequence_or_id_do_not_count(key: Key) -> None:
    """Rule 23: id, epoch and sequence together name one transaction."""
    staged = index(row(A, 10))
    assert not whole(staged, (A, 10, 100, 101), key=key)
    staged.stage(101, row(A, 20, key=key), 0)
    assert whole(staged, (A, 20, 101, 102), key=key)
    assert whole(staged, (A, 10, 100, 101))


# --- PUBLISH ----------------------------------------------------------------------------------
def test_a_publish_names_the_rows_of_its_attempts_in_log_order() -> None:
    staged = index(
        row(A, 10), row(B, 3), row(C, 1), row(A, 5, topic=CLICKS, partition=7), row(A, 2)
    )
    made = published(staged, C, A)
    assert made[:5] == (*KEY, make_id(0), 2)
    assert [(one.topic_id, one.partition, list(one.rows())) for one in made.targets] == [
        (ORDERS, 0, [(100, 0, 10), (102, 10, 1), (104, 11, 2)]),
        (CLICKS, 7, [(103, 0, 5)]),
    ]


def test_rows_outside_the_range_are_not_published() -> None:
    staged = index(row(A, 1), row(A, 2), row(A, 3))
    answer = publish(staged, A, span=(101, 102))
    assert isinstance(answer, New)
    assert [list(one.rows()) for one in answer.row.targets] == [[(101, 0, 2)]]


def test_a_publish_that_is_known_goes_on() -> None:
    staged = index(row(A))
    answer = publish(staged, A)
    assert isinstance(answer, New)
    staged.pend(answer.row)
    assert publish(staged, A) == Known()
    staged.apply(101, answer.row)
    assert publish(staged, A) == Known()
    assert list(staged.unfinished()) == [answer.row]


def test_done_is_answered_when_the_row_of_kind_2_is_proposed() -> None:
    staged = index(row(A))
    published(staged, A)
    assert publish(staged, A) == Known()
    done = done_row(KEY, [End(ORDERS, 0, 510, 10)])
    for _ in range(2):
        staged.pend(done)
        assert publish(staged, A) == Done(done)
        assert list(staged.unfinished())
        staged.drop_pending()
        assert publish(staged, A) == Known()
    staged.pend(done)
    staged.apply(102, done)
    assert publish(staged, A) == Done(done)
    assert not list(staged.unfinished())


@pytest.mark.parametrize(("start", "is_done"), [(100, False), (101, True), (102, True)])
def test_done_is_answered_where_the_log_start_is_behind_all_its_rows(
    start: int, is_done: bool
) -> None:
    answer = publish(Staged(make_id), A, span=(50, 101), log_start=start)
    assert (answer == Done(None)) == is_done
    assert isinstance(answer, New) != is_done


@pytest.mark.parametrize(("rows", "missing"), [(-1, 0), (14, 0), (15, 0), (16, 1), (35, 20)])
def test_rows_that_a_fault_took_are_counted_and_the_others_published(
    rows: int, missing: int
) -> None:
    answer = publish(index(row(A, 10), row(A, 5)), A, B, rows=rows)
    assert isinstance(answer, New)
    assert answer.missing_count == missing
    assert [list(one.row_counts) for one in answer.row.targets] == [[10, 5]]


def test_a_publish_does_not_wait_for_a_log_that_has_lost_all_rows_of_it() -> None:
    """Seed 393321134 of the simulator: the power of all replicas had failed."""
    answer = publish(Staged(make_id), A, span=(50, 101), rows=7)
    assert isinstance(answer, New)
    assert (answer.missing_count, answer.row.targets) == (7, ())


def test_numbers_of_publishes_grow_by_one() -> None:
    staged = index(*(row(A, key=Key("app", 2, n)) for n in range(3)))
    for n in range(3):
        assert published(staged, A, key=Key("app", 2, n)).producer_id == make_id(n)
    assert staged.next_publish == 3


def test_an_index_that_is_built_again_under_a_leader_epoch_goes_on_counting() -> None:
    # The rows that had the numbers before may be trimmed.
    staged = Staged(make_id, 9)
    staged.stage(100, row(A), 0)
    assert published(staged, A).producer_id == make_id(9)


def test_publishes_that_were_dropped_are_asked_for_again_under_larger_numbers() -> None:
    staged = index(row(A))
    answer = publish(staged, A)
    assert isinstance(answer, New)
    staged.pend(answer.row)
    staged.drop_pending()
    again = publish(staged, A)
    assert isinstance(again, New)
    assert again.row == answer.row._replace(producer_id=make_id(1))


def test_a_new_leader_goes_on_with_unfinished_publishes_in_the_order_of_their_rows() -> None:
    keys = [Key("app", 2, 5), Key("zoo", 1, 1), Key("bee", 4, 0)]
    staged = index(*(row(A, key=key) for key in keys))
    made = [published(staged, A, key=key) for key in keys]
    finished(staged, keys[1])
    replayed = Staged(make_id)
    for offset, key in enumerate(keys, 100):
        replayed.stage(offset, row(A, key=key), 0)
    for offset, one in enumerate(made, 103):
        replayed.apply(offset, one)
    replayed.apply(106, done_row(keys[1]))
    assert list(replayed.unfinished()) == list(staged.unfinished()) == [made[0], made[2]]
    assert replayed.trim_offset() == staged.trim_offset() == 100


def test_the_oldest_ends_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STAGED_ENDS_MAX >= 1_000
    monkeypatch.setattr(staged_module, "STAGED_ENDS_MAX", 6)
    rows = [
        done_row(Key("app", 1, n), [End(ORDERS, 0, 1, 1), End(ORDERS, 1, 1, 1)][: 2 - n])
        for n in range(3)
    ]
    staged = Staged(make_id)
    for offset, one in enumerate(rows):
        staged.apply(offset, one)
    assert publish(staged, key=key_of(rows[0])) == Done(rows[0]), "at the bound"
    staged.apply(3, done_row(Key("app", 1, 3)))
    assert isinstance(publish(staged, key=key_of(rows[0])), New)
    for one in rows[1:]:
        assert publish(staged, key=key_of(one)) == Done(one)


def test_the_ends_of_one_publish_are_kept_whatever_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged_module, "STAGED_ENDS_MAX", 2)
    done = done_row(KEY, [End(ORDERS, n, 1, 1) for n in range(5)])
    staged = Staged(make_id)
    staged.apply(0, done)
    assert publish(staged) == Done(done)


# --- giving up, trimming ----------------------------------------------------------------------
def test_nothing_moves_past_a_staged_row() -> None:
    staged = index(row(A), row(B, key=Key("zoo", 1, 1)))
    assert staged.trim_offset() == 100
    assert Staged(make_id).trim_offset() == 0


def test_what_is_dead_is_given_up_and_the_front_moves() -> None:
    other = Key("zoo", 1, 1)
    staged = index(row(A), row(A, key=other), row(B), row(B, key=other))
    staged.give_up(other)
    assert staged.trim_offset() == 100
    assert staged.batch_count == staged.attempt_count == 2
    staged.give_up(KEY)
    assert staged.trim_offset() == staged.next_offset == 104
    assert staged.batch_count == staged.attempt_count == staged.bytes_held == 0


def test_giving_up_what_is_not_here_changes_nothing() -> None:
    staged = index(row(A))
    staged.give_up(Key("app", 2, 6))
    staged.give_up(Key("zoo", 2, 5))
    assert staged.trim_offset() == 100


def test_what_a_publish_row_names_is_never_dead() -> None:
    staged = index(row(A))
    answer = publish(staged, A)
    assert isinstance(answer, New)
    staged.pend(answer.row)
    staged.give_up(KEY)
    assert staged.batch_count == 1, "its row is on its way"
    staged.apply(101, answer.row)
    staged.give_up(KEY)
    assert staged.batch_count == 1, "its row is in the log"
    assert staged.trim_offset() == 100


def test_winners_and_losers_go_when_the_publish_is_done() -> None:
    staged = index(row(A), row(B))
    published(staged, A)
    assert staged.trim_offset() == 100
    finished(staged)
    assert staged.batch_count == 0
    assert staged.trim_offset() == staged.next_offset == 104


@pytest.mark.parametrize(
    ("key", "goes"),
    [
        (Key("app", 2, 4), True),
        (Key("app", 1, 99), True),
        (Key("app", 2, 6), False),
        (Key("app", 3, 0), False),
        (Key("apq", 2, 5), False),
    ],
)
def test_all_of_an_id_up_to_a_publish_that_is_done_goes(key: Key, goes: bool) -> None:
    staged = index(row(A), row(B, key=key), row(C, key=key))
    published(staged, A)
    finished(staged)
    assert staged.batch_count == (0 if goes else 2)
    assert staged.trim_offset() == (staged.next_offset if goes else 101)


def test_an_earlier_publish_of_the_id_that_is_not_done_stays() -> None:
    earlier = Key("app", 2, 4)
    staged = index(row(A, key=earlier), row(A))
    published(staged, A, key=earlier)
    published(staged, A)
    finished(staged)
    assert staged.batch_count == 1
    assert staged.trim_offset() == 100
    finished(staged, earlier)
    assert staged.batch_count == 0


def test_a_row_that_comes_after_its_transaction_was_published_stays_until_it_is_asked_about() -> (
    None
):
    staged = index(row(A))
    published(staged, A)
    finished(staged)
    staged.stage(200, row(B), 5)
    assert staged.trim_offset() == 200
    assert staged.to_ask(5 + ASK_AFTER_US, 10) == [KEY]
    staged.give_up(KEY)
    assert staged.trim_offset() == 201


def test_a_publish_whose_rows_are_gone_keeps_its_own_row() -> None:
    staged = Staged(make_id)
    published(staged, A, at=150)
    staged.stage(151, row(B, key=Key("zoo", 1, 1)), 0)
    staged.give_up(Key("zoo", 1, 1))
    assert staged.trim_offset() == 150
    finished(staged)
    assert staged.trim_offset() == staged.next_offset == 153


def test_the_front_does_not_pass_a_publish_row_that_is_on_its_way() -> None:
    staged = Staged(make_id)
    staged.stage(100, row(A, key=Key("zoo", 1, 1)), 0)
    answer = publish(staged, A)
    assert isinstance(answer, New)
    staged.pend(answer.row)  # Its row gets 101.
    staged.stage(102, row(B, key=Key("zoo", 1, 1)), 0)
    staged.give_up(Key("zoo", 1, 1))
    assert staged.trim_offset() == 101
    staged.apply(101, answer.row)
    assert staged.trim_offset() == 101
    assert staged.next_offset == 103


def test_the_front_is_the_oldest_transaction_that_is_not_decided() -> None:
    other = Key("zoo", 1, 1)
    staged = index(row(A, key=other), row(A))
    assert staged.front() == other
    published(staged, A, key=other)
    assert staged.front() is None, "one that is decided is never closed"
    finished(staged, other)
    assert staged.front() == KEY
    staged.give_up(KEY)
    assert staged.front() is None


def test_the_bytes_behind_the_front_are_held_though_their_rows_are_given_up() -> None:
    other = Key("zoo", 1, 1)
    staged = index(row(A, size=10), row(A, key=other, size=200), row(B, size=3_000))
    assert staged.bytes_held == 3_210
    assert (staged.bytes_of("app"), staged.bytes_of("zoo"), staged.bytes_of("x")) == (3_010, 200, 0)
    staged.give_up(other)
    assert staged.bytes_held == 3_210
    staged.stage(103, row(A, key=other, size=40_000), 0)
    staged.give_up(KEY)
    assert staged.bytes_held == 40_000
    assert staged.bytes_of("app") == 0


# --- asking -----------------------------------------------------------------------------------
def test_an_attempt_is_asked_about_when_it_is_silent_for_60_s_and_every_60_s_after() -> None:
    staged = index(row(A), now_us=7)
    assert ASK_AFTER_US == 60_000_000
    assert staged.to_ask(60_000_006, 10) == []
    assert staged.to_ask(60_000_007, 10) == [KEY]
    assert staged.to_ask(60_000_008, 10) == []
    assert staged.to_ask(120_000_006, 10) == []
    assert staged.to_ask(120_000_007, 10) == [KEY]


def test_the_newest_row_of_an_attempt_counts_and_each_attempt_for_itself() -> None:
    staged = index(row(A), now_us=0)
    staged.stage(101, row(A), 30_000_000)
    assert staged.to_ask(60_000_000, 10) == []
    assert staged.to_ask(89_999_999, 10) == []
    staged.stage(102, row(B), 80_000_000)
    assert staged.to_ask(90_000_000, 10) == [KEY], "others of its transaction go on"


def test_one_question_for_all_attempts_of_a_transaction() -> None:
    other = Key("zoo", 1, 1)
    staged = index(row(A), row(A, key=other), row(B), now_us=0)
    assert staged.to_ask(ASK_AFTER_US, 10) == [KEY, other]
    assert staged.to_ask(2 * ASK_AFTER_US - 1, 10) == []


@pytest.mark.parametrize("count_max", [1, 2, 3])
def test_at_most_so_many_are_asked_about_at_once_and_the_others_next(count_max: int) -> None:
    keys = [Key("app", 2, n) for n in range(3)]
    staged = index(*(row(A, key=key) for key in keys))
    first = staged.to_ask(ASK_AFTER_US, count_max)
    assert first == keys[:count_max]
    assert first + staged.to_ask(ASK_AFTER_US, 10) == keys


def test_what_is_decided_is_not_asked_about() -> None:
    staged = index(row(A))
    answer = publish(staged, A)
    assert isinstance(answer, New)
    staged.pend(answer.row)
    assert staged.to_ask(ASK_AFTER_US, 10) == []
    staged.apply(101, answer.row)
    assert staged.to_ask(2 * ASK_AFTER_US, 10) == []


def test_what_was_replayed_counts_as_staged_when_its_leader_begins() -> None:
    other = Key("zoo", 1, 1)
    staged = Staged(make_id)
    for offset, one in enumerate([row(A), row(A, key=other), row(A)]):
        staged.apply(offset, one)
    staged.begin(7)
    assert staged.oldest_us == 7
    assert staged.to_ask(6 + ASK_AFTER_US, 10) == []
    staged.stage(3, row(A, key=other), 8)
    assert staged.to_ask(7 + ASK_AFTER_US, 10) == [KEY]
    assert staged.batch_count == 4


def test_nothing_is_asked_about_where_nothing_is_staged() -> None:
    staged = index(row(A))
    staged.give_up(KEY)
    assert staged.to_ask(10 * ASK_AFTER_US, 10) == []


# --- bounds -----------------------------------------------------------------------------------
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "STAGED_BATCHES_MAX", 8)
    monkeypatch.setattr(staged_module, "STAGED_ATTEMPTS_MAX", 6)
    monkeypatch.setattr(staged_module, "STAGED_ID_BYTES_MAX", 12)


def test_the_bounds() -> None:
    assert (STAGED_ATTEMPTS_MAX, STAGED_BATCHES_MAX) == (100_000, 250_000)
    assert STAGED_ID_BYTES_MAX == 4 * MIB


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("held", [0, 1, 3])
def test_an_id_has_half_of_the_batches(held: int) -> None:
    staged = index(*[row(A)] * held)
    staged.check_room([row(A)] * (3 - held))
    staged.check_room([row(A)] * (4 - held))
    with pytest.raises(
        TransactionTooLarge, match=r"have 5 batches .* one id are 4: .*at_least_once"
    ):
        staged.check_room([row(A)] * (5 - held))
    assert staged.batch_count == held


@pytest.mark.usefixtures("small")
def test_an_id_has_half_of_the_attempts() -> None:
    staged = index(row(A), row(B))
    staged.check_room([row(A), row(B)])
    staged.check_room([row(C), row(C)])
    staged.stage(102, row(C), 0)
    staged.check_room([row(A)])
    with pytest.raises(TransactionTooLarge, match=r"would have 4 attempts .* one id are 3"):
        staged.check_room([row(bytes(16))])
    # The same attempt of another transaction is another one.
    with pytest.raises(StagingFull, match=r"would have 4 attempts .* one id are 3"):
        staged.check_room([row(A, key=Key("app", 2, 6))])


@pytest.mark.usefixtures("small")
def test_others_hold_the_batches() -> None:
    staged = index(*[row(A)] * 4, *[row(A, key=Key("b", 1, 1))] * 3)
    staged.check_room([])
    staged.check_room([row(A, key=Key("c", 1, 1))])
    with pytest.raises(StagingFull, match="would have 9 batches, the most are 8"):
        staged.check_room([row(A, key=Key("c", 1, 1)), row(A, key=Key("b", 1, 1))])


@pytest.mark.usefixtures("small")
def test_others_hold_the_attempts() -> None:
    staged = index(row(A), row(B), row(C), row(A, key=Key("b", 1, 1)), row(B, key=Key("b", 1, 1)))
    staged.check_room([row(A, key=Key("c", 1, 1))])
    staged.check_room([row(C, key=Key("b", 1, 1)), row(A)])
    with pytest.raises(StagingFull, match="would have 7 attempts, the most are 6"):
        staged.check_room([row(A, key=Key("c", 1, 1)), row(B, key=Key("c", 1, 1))])


@pytest.mark.usefixtures("small")
def test_others_hold_the_room_of_ids() -> None:
    staged = index(row(A, key=Key("abcde", 1, 1)))
    staged.check_room([row(A, key=Key("äöü", 1, 1))])
    staged.check_room([row(A, key=Key("1234567", 1, 1)), row(A, key=Key("abcde", 1, 1))])
    with pytest.raises(StagingFull, match="would have 13 bytes of transactional ids"):
        staged.check_room([row(A, key=Key("12345678", 1, 1))])
    staged.give_up(Key("abcde", 1, 1))
    staged.check_room([row(A, key=Key("12345678", 1, 1))])


@pytest.mark.usefixtures("small")
def test_what_is_given_up_makes_room() -> None:
    staged = index(*[row(A)] * 4)
    with pytest.raises(TransactionTooLarge):
        staged.check_room([row(A)])
    staged.give_up(KEY)
    staged.check_room([row(A)] * 4)


@pytest.mark.usefixtures("small")
def test_rows_of_an_earlier_transaction_leave_room_later() -> None:
    """An id that began again after an abort was refused for good."""
    later = Key(KEY.transactional_id, KEY.epoch + 2, KEY.sequence)
    staged = index(*[row(A)] * 3, row(A, key=later))
    for key in (KEY, later):
        with pytest.raises(StagingFull, match="would have 5 batches"):
            staged.check_room([row(A, key=key)])
    with pytest.raises(TransactionTooLarge):
        staged.check_room([row(A, key=later)] * 5)
    assert staged.has_others(row(A, key=later))
    staged.give_up(KEY)
    assert not staged.has_others(row(A, key=later))
    assert staged.has_others(row(A))
    assert not staged.has_others(row(A, key=Key("another", 1, 1)))
    staged.check_room([row(A, key=later)] * 3)
    with pytest.raises(TransactionTooLarge, match="would have 5 batches"):
        staged.check_room([row(A, key=later)] * 4)


@pytest.mark.parametrize("added", [21, 50])
def test_bytes_of_an_earlier_transaction_leave_room_later(added: int) -> None:
    check_bytes("app", 20, 30, 20, 30, 100, has_others=True)
    with pytest.raises(StagingFull, match=f"{30 + added} bytes .*one id are 50"):
        check_bytes("app", added, 30, added, 30, 100, has_others=True)


def test_a_transaction_that_alone_has_too_many_bytes() -> None:
    with pytest.raises(TransactionTooLarge, match="81 bytes"):
        check_bytes("app", 51, 30, 51, 30, 100, has_others=True)


def test_an_id_has_half_of_the_bytes() -> None:
    for added in (49, 50):
        check_bytes("app", added, 0, added, 0, 100)
        check_bytes("app", added - 30, 30, added, 30, 100)
    with pytest.raises(
        TransactionTooLarge, match=r"51 bytes .* `staged\.bytes\.max`.*at_least_once"
    ):
        check_bytes("app", 21, 30, 21, 30, 100)


def test_others_hold_the_bytes() -> None:
    for added in (9, 10):
        check_bytes("app", added, 0, added, 90, 100)
    with pytest.raises(StagingFull, match=r"101 bytes staged, `staged\.bytes\.max` is 100"):
        check_bytes("app", 11, 0, 11, 90, 100)
    # Of one request: those of other ids in it count, too.
    with pytest.raises(StagingFull):
        check_bytes("app", 5, 0, 11, 90, 100)


# --- looking ----------------------------------------------------------------------------------
def test_what_an_id_has_staged() -> None:
    staged = index(row(A, 10, size=7), row(B, 5, size=8), row(A, 1, key=Key("b", 1, 1)), now_us=5)
    staged.stage(103, row(A, 2, key=Key("app", 2, 6), size=9), 8)
    assert staged.staged_of("app") == StagedOf("app", 3, 17, 24, 5)
    assert staged.staged_of("c") is None
    assert staged.ids() == ["app", "b"]
    assert staged.oldest_us == 5
    staged.give_up(KEY)
    assert staged.staged_of("app") == StagedOf("app", 1, 2, 9, 8)
    staged.give_up(Key("b", 1, 1))
    assert staged.oldest_us == 8
    staged.give_up(Key("app", 2, 6))
    assert staged.oldest_us is None
    assert staged.ids() == []


@pytest.mark.first
def test_the_fullest_index_takes_at_most_64_mib() -> None:
    """250,000 batches of 100,000 attempts; at worst each attempt has a transaction and an id."""
    staged = Staged(make_id)
    for n in range(STAGED_BATCHES_MAX):
        attempt = n % STAGED_ATTEMPTS_MAX
        key = Key(f"spark/{attempt:035}", 2**40, 2**40 + attempt)
        one = StagedRow(*key, attempt.to_bytes(16, "big"), ORDERS, n % 64, 2**20, 2**20)
        staged.stage(2**40 + n, one, 2**50 + n)
    assert (staged.batch_count, staged.attempt_count) == (STAGED_BATCHES_MAX, STAGED_ATTEMPTS_MAX)
    assert len(staged.ids()) == STAGED_ATTEMPTS_MAX
    assert 0.95 * STAGED_ID_BYTES_MAX < 41 * STAGED_ATTEMPTS_MAX <= STAGED_ID_BYTES_MAX
    assert 32 * MIB < bytes_of(staged) <= 64 * MIB
    for key in staged.to_ask(2**60, STAGED_ATTEMPTS_MAX):
        staged.give_up(key)
    assert staged.batch_count == 0
    assert bytes_of(staged) <= 24 * MIB, "tables of the dictionaries"


def bytes_of(root: object) -> int:
    """Memory of all that an index holds, as it is allocated: in steps of 16 bytes."""
    seen: set[int] = set()
    waiting = [root]
    held = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | FunctionType):
            continue
        seen.add(id(one))
        held += -(-sys.getsizeof(one) // 16) * 16
        waiting += gc.get_referents(one)
    return held
