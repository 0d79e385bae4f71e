"""The queues of committed rows, alone and against a naive target that loses and repeats."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.errors import NotLeader, OutOfOrderSequence
from quiverlog.limits import (
    FORWARD_BACKOFF_MS_MAX,
    FORWARD_BACKOFF_MS_MIN,
    FORWARD_BATCHES_MAX,
    FORWARD_BYTES_MAX,
    FORWARD_PIECE_BYTES,
    FORWARD_TARGET_BYTES,
)
from quiverlog.node.transactions.queues import Item, Piece, Publish, Queues, TargetKey
from quiverlog.types import Durability

A, B = (b"a" * 16, 0), (b"b" * 16, 3)
FLUSHED, REPLICATED = Durability.FLUSHED, Durability.REPLICATED
MS = 1000


def items(*row_counts: int, offset: int = 0) -> list[Item]:
    """Staged rows from `offset` on, each of this number of rows."""
    found, sequence = [], 0
    for number, row_count in enumerate(row_counts):
        found.append(Item(offset + number, sequence, row_count))
        sequence += row_count
    return found


class Driven:
    """Queues, and a moment."""

    def __init__(self) -> None:
        self.queues = Queues()
        self.now_us = 0

    def add(
        self, targets: dict[TargetKey, list[Item]], producer_id: int = 1, source: str = "s"
    ) -> Publish:
        publish = Publish(producer_id, FLUSHED, dict(targets), lambda publish: None)
        self.queues.add(source, publish, self.now_us)
        return publish

    def take(self) -> Piece:
        piece = self.queues.take(self.now_us)
        assert piece is not None
        return piece

    def nothing(self) -> bool:
        return self.queues.take(self.now_us) is None

    def load(self, piece: Piece, count: int = -1, byte_count: int = 1) -> Piece:
        self.queues.loaded(piece, piece.end - piece.first if count < 0 else count, byte_count)
        return piece

    def sent(self, count: int = -1) -> Piece:
        return self.load(self.take(), count)

    def acknowledge(self, piece: Piece, end: int = 1) -> None:
        self.queues.acknowledged(piece, end, FLUSHED, self.now_us)


def test_pieces_of_a_publish_follow_one_another() -> None:
    driven = Driven()
    publish = driven.add({A: items(3, 4, 5)})
    first = driven.take()
    assert (first.key, first.first, first.sequence) == (A, 0, 0)
    assert driven.nothing(), "where the next one begins is not known before it is read"
    driven.load(first, 2)
    second = driven.sent()
    assert (second.first, second.sequence, second.head) == (2, 7, Item(2, 7, 5))
    driven.acknowledge(first, end=7)
    assert not driven.queues.finished
    driven.acknowledge(second, end=12)
    assert driven.queues.finished == [publish]
    assert (publish.ends, publish.level) == ({A: 12}, FLUSHED)
    assert not driven.queues
    assert driven.queues.byte_count == 0


def test_publishes_of_a_source_reach_a_target_in_order_and_others_do_not_wait() -> None:
    driven = Driven()
    first = driven.add({A: items(1), B: items(1, offset=1)}, 1)
    second = driven.add({A: items(1, offset=5), B: items(1, offset=6)}, 2)
    to_a, to_b = driven.sent(), driven.sent()
    assert (to_a.publish, to_b.publish) == (first, first)
    assert driven.nothing(), "one publish of a source at a time"
    driven.acknowledge(to_b)
    to_b = driven.sent()
    assert to_b.publish is second, "A still waits for the first one"
    driven.acknowledge(to_b)
    assert driven.nothing()
    driven.acknowledge(to_a)
    assert driven.queues.finished == [first]
    driven.acknowledge(driven.sent())
    assert driven.queues.finished == [first, second]


def test_sources_share_a_target_piece_by_piece() -> None:
    driven = Driven()
    driven.add({A: items(1, 1)}, source="s")
    driven.add({A: items(1, 1)}, source="t")
    assert [driven.sent(1).source for _ in range(4)] == ["s", "t", "s", "t"]


def test_rows_that_are_safe_make_those_before_them_safe() -> None:
    driven = Driven()
    publish = driven.add({A: items(1, 1, 1)})
    first, second, third = driven.sent(1), driven.sent(1), driven.sent(1)
    driven.acknowledge(second)
    driven.queues.failed(first, NotLeader(), 0)
    assert not driven.queues.finished
    driven.acknowledge(third)
    assert driven.queues.finished == [publish]
    assert not driven.queues
    assert driven.queues.byte_count == 0


def test_what_was_sent_behind_a_piece_that_fails_is_sent_again() -> None:
    driven = Driven()
    driven.add({A: items(3, 4, 5)})
    first, second, third = driven.sent(1), driven.sent(1), driven.sent(1)
    driven.acknowledge(first)
    driven.queues.failed(second, NotLeader(), 0)
    driven.queues.failed(third, NotLeader(), 0)
    assert driven.nothing()
    driven.now_us = FORWARD_BACKOFF_MS_MIN * MS
    again = driven.sent()
    assert (again.first, again.sequence) == (1, 3)


@pytest.mark.parametrize(("more", "is_taken"), [(0, True), (1, False)])
def test_bytes_under_way_to_a_target_are_bounded(more: int, is_taken: bool) -> None:
    driven = Driven()
    driven.add({A: items(1, 1)})
    first = driven.load(driven.take(), 1, FORWARD_TARGET_BYTES - FORWARD_PIECE_BYTES + more)
    assert driven.nothing() is not is_taken
    if not is_taken:
        driven.acknowledge(first)
        assert driven.take().first == 1


def test_a_batch_passes_however_large_and_alone() -> None:
    driven = Driven()
    driven.add({A: items(1, 1)})
    first = driven.load(driven.take(), 1, 8 * FORWARD_TARGET_BYTES)
    assert driven.nothing()
    driven.acknowledge(first)
    driven.load(driven.take(), 1, 8 * FORWARD_TARGET_BYTES)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rows_that_are_missing_are_counted_once_the_rest_is_safe(order: tuple[int, int]) -> None:
    driven = Driven()
    publish = driven.add({A: items(3, 4, 5)})
    driven.queues.loaded(first := driven.take(), 2, 1, 3)
    last = driven.take()
    for which in order:
        assert not driven.queues.finished
        if which == 0:
            driven.acknowledge(first, end=9)
        else:
            driven.queues.skipped(last, 1, 5, 0)
    assert driven.queues.finished == [publish]
    assert driven.queues.lost == [first, last]
    assert (publish.missing_count, publish.ends) == (8, {A: 9})


def test_missing_rows_of_a_piece_that_fails_are_not_counted_twice() -> None:
    driven = Driven()
    publish = driven.add({A: items(3, 4)})
    for _ in range(2):
        driven.queues.loaded(piece := driven.take(), 2, 1, 3)
        driven.queues.failed(piece, NotLeader(), driven.now_us)
        driven.now_us += FORWARD_BACKOFF_MS_MAX * MS
    driven.queues.loaded(piece := driven.take(), 2, 1, 3)
    driven.acknowledge(piece)
    assert publish.missing_count == 3


def test_the_weakest_level_counts() -> None:
    driven = Driven()
    publish = driven.add({A: items(1), B: items(1)})
    driven.queues.acknowledged(driven.sent(), 1, REPLICATED, 0)
    assert publish.level == REPLICATED
    driven.queues.acknowledged(driven.sent(), 1, FLUSHED, 0)
    assert publish.level == FLUSHED


@pytest.mark.parametrize(("more", "is_taken"), [(0, True), (1, False)])
def test_bytes_under_way_are_bounded(more: int, is_taken: bool) -> None:
    driven = Driven()
    keys = [(b"a" * 16, number) for number in range(3)]
    for key in keys:
        driven.add({key: items(1)})
    first, second = driven.take(), driven.take()
    driven.load(first, 1, FORWARD_BYTES_MAX - 2 * FORWARD_PIECE_BYTES + more)
    assert driven.nothing() is not is_taken
    if not is_taken:
        driven.acknowledge(driven.load(second))
        assert driven.take().key == keys[2]


def test_one_piece_passes_however_large() -> None:
    driven = Driven()
    driven.add({A: items(1)})
    driven.add({B: items(1)})
    first = driven.take()
    driven.load(first, 1, FORWARD_BYTES_MAX + 1)
    assert driven.nothing()
    assert driven.queues.next_us() is None
    driven.acknowledge(first)
    assert driven.queues.next_us() == 0
    driven.load(driven.take(), 1, FORWARD_BYTES_MAX + 1)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_batches_of_a_piece_are_bounded(more: int) -> None:
    driven = Driven()
    driven.add({A: items(*[1] * (FORWARD_BATCHES_MAX + more))})
    assert driven.take().end == FORWARD_BATCHES_MAX + min(more, 0)


def test_a_failed_piece_is_tried_again_later_and_later() -> None:
    driven = Driven()
    driven.add({A: items(1)})
    error = NotLeader("no leader")
    delays = []
    for _ in range(8):
        driven.queues.failed(driven.take(), error, driven.now_us)
        assert driven.nothing()
        due_us = driven.queues.next_us()
        assert due_us is not None
        delays.append((due_us - driven.now_us) // MS)
        driven.now_us = due_us - 1
        assert driven.nothing()
        driven.now_us = due_us
    assert delays == [50, 100, 200, 400, 800, 1600, 2000, 2000]
    assert (delays[0], delays[-1]) == (FORWARD_BACKOFF_MS_MIN, FORWARD_BACKOFF_MS_MAX)
    (waiting,) = driven.queues.waiting()
    assert waiting == (A, error, 0, 1)
    driven.acknowledge(driven.sent())
    driven.add({A: items(1)})
    driven.queues.failed(driven.take(), error, driven.now_us)
    assert driven.queues.next_us() == driven.now_us + FORWARD_BACKOFF_MS_MIN * MS, "it had got on"


def test_what_waits_is_counted() -> None:
    driven = Driven()
    driven.add({A: items(3, 4), B: items(5)})
    driven.add({A: items(6)}, source="t")
    rows = {one.key: one.row_count for one in driven.queues.waiting("s")}
    assert rows == {A: 7, B: 5}
    driven.now_us = 9
    driven.acknowledge(driven.sent(1))
    by_key = {one.key: one for one in driven.queues.waiting()}
    assert by_key[A] == (A, None, 9, 10)
    assert by_key[B] == (B, None, 0, 5)


# --- going back --------------------------------------------------------------------------------
@pytest.mark.parametrize(("expected", "first"), [(0, 0), (3, 1), (7, 2)])
def test_the_publisher_goes_back_to_what_the_target_expects(expected: int, first: int) -> None:
    driven = Driven()
    driven.add({A: items(3, 4, 5, 6)})
    driven.acknowledge(driven.sent(3))
    piece = driven.sent()
    assert piece.sequence == 12
    driven.queues.go_back(piece, expected, OutOfOrderSequence(), 0)
    again = driven.take()
    assert (again.first, again.sequence, again.end) == (first, expected, 4)


@pytest.mark.parametrize("expected", [1, 12, 18, 99])
def test_an_answer_that_nothing_explains_is_tried_again_later(expected: int) -> None:
    driven = Driven()
    driven.add({A: items(3, 4, 5, 6)})
    driven.acknowledge(driven.sent(3))
    driven.queues.go_back(driven.sent(), expected, OutOfOrderSequence(), 0)
    assert driven.nothing()
    driven.now_us = FORWARD_BACKOFF_MS_MIN * MS
    assert driven.take().sequence == 12


@pytest.mark.parametrize("more", [0, 1])
def test_rows_that_are_missing_are_counted_once(more: int) -> None:
    """Also where they are read again; one that is missing only then is counted, too."""
    driven = Driven()
    publish = driven.add({A: items(3, 4, 5, 6)})
    first = driven.take()
    driven.queues.loaded(first, 2, 1, missing_count=3)
    driven.acknowledge(first)
    driven.queues.go_back(driven.sent(), 0, OutOfOrderSequence(), 0)
    again = driven.take()
    driven.queues.loaded(again, 2 + more, 1, missing_count=3 + 4 * more)
    driven.acknowledge(again)
    assert publish.missing_count == 3 + 4 * more
    assert [one.missing_count for one in driven.queues.lost] == [3, 4][: 1 + more]
    driven.acknowledge(driven.sent())
    assert driven.queues.finished == [publish]


def test_missing_rows_of_the_next_publish_are_its_own() -> None:
    driven = Driven()
    both = [driven.add({A: items(3, 4)}, number) for number in (1, 2)]
    for publish in both:
        driven.queues.skipped(driven.take(), 2, 7, driven.now_us)
        assert publish.missing_count == 7


# --- ends ----------------------------------------------------------------------------------------
def test_rows_of_a_deleted_target_are_dropped_and_counted() -> None:
    driven = Driven()
    first = driven.add({A: items(3, 4), B: items(2)}, 1)
    second = driven.add({A: items(5)}, 2)
    driven.acknowledge(driven.sent(1))
    to_b = driven.sent()
    assert driven.queues.deleted(driven.take()) == 9
    assert driven.queues.finished == [second]
    assert (first.dropped_count, second.dropped_count) == (4, 5)
    driven.acknowledge(to_b)
    assert driven.queues.finished == [second, first]
    assert not driven.queues


def test_a_source_that_has_stopped_sends_nothing_more() -> None:
    driven = Driven()
    stopped = driven.add({A: items(1), B: items(1)})
    stays = driven.add({A: items(1)}, source="t")
    under_way = driven.sent()
    driven.queues.stop("s")
    piece = driven.sent()
    assert (piece.key, piece.source) == (A, "t")
    driven.acknowledge(piece)
    assert driven.queues.finished == [stays]
    assert driven.nothing()
    assert driven.queues.byte_count == 1, "its piece is still under way"
    driven.acknowledge(under_way)
    assert driven.queues.finished == [stays]
    assert stopped.todo == 2
    assert not driven.queues


def test_a_source_that_stops_while_its_target_rests() -> None:
    driven = Driven()
    driven.add({A: items(1)})
    driven.queues.failed(driven.take(), NotLeader(), 0)
    driven.queues.stop("s")
    again = driven.add({A: items(2)}, source="t")
    driven.now_us = FORWARD_BACKOFF_MS_MIN * MS
    driven.acknowledge(driven.sent())
    assert driven.queues.finished == [again]
    assert driven.nothing()
    assert not driven.queues


@pytest.mark.parametrize("is_resting", [True, False])
def test_a_moment_of_a_target_that_is_forgotten_passes(is_resting: bool) -> None:
    """A loop that waits for `next_us` takes its turn, and would spin for ever."""
    driven = Driven()
    driven.add({A: items(1)})
    if is_resting:
        driven.queues.failed(driven.take(), NotLeader(), 0)
    driven.queues.stop("s")
    assert driven.queues, "it wants another turn"
    driven.now_us = FORWARD_BACKOFF_MS_MIN * MS
    assert driven.nothing()
    assert not driven.queues
    assert driven.queues.next_us() is None


def test_a_piece_that_fails_after_its_source_has_stopped() -> None:
    driven = Driven()
    driven.add({A: items(1)})
    piece = driven.take()
    driven.queues.stop("s")
    driven.queues.failed(piece, NotLeader(), 0)
    assert not driven.queues
    assert driven.queues.byte_count == 0


# --- against a naive target ---------------------------------------------------------------------
@dataclass
class Target:
    """Rows as (source, publish, sequence); all that FORWARD promises, from the rows alone."""

    rows: list[tuple[str, int, int]] = field(default_factory=list)

    def newest(self, source: str) -> tuple[int, int]:
        """The newest publish of the source, and the sequence that follows."""
        of_source = [row[1:] for row in self.rows if row[0] == source]
        if not of_source:
            return 0, 0
        publish, last = of_source[-1]
        return publish, last + 1

    def forward(self, source: str, publish: int, begin: int, sent: list[Item]) -> int | None:
        """Return the sequence that is expected instead, None where all is stored."""
        newest, following = self.newest(source)
        if publish < newest:
            return None
        expected = following if publish == newest else 0
        new = [item for item in sent if item.base_sequence + item.row_count > expected]
        # Rows before the first batch are missing, if the entry begins before them.
        is_told = bool(new) and new[0] is sent[0] and begin <= expected < new[0].base_sequence
        if new and new[0].base_sequence != expected and not is_told:
            return expected
        for item in new:
            at = item.base_sequence
            self.rows += [(source, publish, at + row) for row in range(item.row_count)]
        return None


class World:
    """Two sources publish to three targets; each publish has a number, as brokers give them."""

    def __init__(
        self, publishes: list[tuple[str, dict[int, list[int]]]], missing: set[tuple[int, int]]
    ) -> None:
        self.missing = missing
        self.now_us = 0
        self.queues = Queues()
        self.targets = [Target() for _ in range(3)]
        self.publishes = publishes
        self.done: set[int] = set()
        self.sent: list[tuple[int, str, int, int, list[Item]]] = []
        self.under_way: list[Piece] = []
        self.bodies: dict[Piece, list[Item]] = {}
        self.lives = {"s": 0, "t": 0}
        for source in self.lives:
            self.begin(source)

    def begin(self, source: str) -> None:
        """A new leader of the source goes on with every publish that is not done."""
        self.queues.stop((source, self.lives[source]))
        self.lives[source] += 1
        for number, (of, targets) in enumerate(self.publishes, 1):
            if of == source and number not in self.done:
                parts = {(b"", key): items(*counts) for key, counts in targets.items()}
                publish = Publish(number, FLUSHED, parts, lambda publish: None)
                self.queues.add((source, self.lives[source]), publish, self.now_us)

    def take(self) -> None:
        """A piece is read at once, of all sizes."""
        piece = self.queues.take(self.now_us)
        if piece is None:
            return
        wanted = range(piece.first, piece.first + 1 + len(self.sent) % (piece.end - piece.first))
        lost = list(itertools.takewhile(lambda at: self.is_missing(piece, at), wanted))
        there = list(
            itertools.takewhile(lambda at: not self.is_missing(piece, at), wanted[len(lost) :])
        )
        row_count = sum(piece.items[at].row_count for at in lost)
        if there:
            self.queues.loaded(piece, len(lost) + len(there), 1, row_count)
            self.bodies[piece] = [piece.items[at] for at in there]
            self.under_way.append(piece)
        else:
            self.queues.skipped(piece, len(lost), row_count, self.now_us)
            self.take_finished()

    def is_missing(self, piece: Piece, at: int) -> bool:
        """Each second leader of a source lacks some rows of the first publishes."""
        source = piece.source
        assert isinstance(source, tuple)
        return bool(source[1] % 2) and (piece.publish.producer_id, at) in self.missing

    def take_finished(self) -> None:
        self.done |= {publish.producer_id for publish in self.queues.finished}
        self.queues.finished.clear()

    def end(self, which: int, *, arrives: bool = True, answered: bool = True) -> None:
        if not self.under_way:
            return
        piece = self.under_way.pop(which % len(self.under_way))
        sent = self.bodies.pop(piece)
        source = piece.source
        assert isinstance(source, tuple)
        message = (piece.key[1], source[0], piece.publish.producer_id, piece.sequence, sent)
        self.sent.append(message)
        expected = self.deliver(message) if arrives else None
        if not (arrives and answered):
            self.queues.failed(piece, NotLeader(), self.now_us)
        elif expected is None:
            end = len(self.targets[piece.key[1]].rows)
            self.queues.acknowledged(piece, end, FLUSHED, self.now_us)
        else:
            self.queues.go_back(piece, expected, OutOfOrderSequence(), self.now_us)
        self.take_finished()

    def deliver(self, message: tuple[int, str, int, int, list[Item]]) -> int | None:
        key, *forwarded = message
        return self.targets[key].forward(*forwarded)

    def repeat(self, which: int) -> None:
        """A message arrives once more, late."""
        if self.sent:
            self.deliver(self.sent[which % len(self.sent)])

    def lose(self, key: int, count: int) -> None:
        """A new leader of a target lacks the last batches, acknowledged or not, of publishes that
        are not complete there: what was complete is lost for good, no publisher can mend that."""
        target = self.targets[key]
        for _ in range(count):
            if not target.rows:
                break
            _, publish, sequence = target.rows[-1]
            row_counts = self.publishes[publish - 1][1][key]
            if publish in self.done or sequence + 1 == sum(row_counts):
                break
            begins = [item.base_sequence for item in items(*row_counts)]
            begin = max(at for at in begins if at <= sequence)  # A batch goes whole.
            del target.rows[begin - sequence - 1 :]

    def settle(self) -> None:
        for _ in range(500):
            self.take()
            while self.under_way:
                self.end(0)
            self.now_us += FORWARD_BACKOFF_MS_MAX * MS
            if not self.queues:
                break

    def check(self) -> None:
        for key, target in enumerate(self.targets):
            for source in self.lives:
                rows = [row for row in target.rows if row[0] == source]
                wanted, there = self.wanted(source, key)
                assert rows == [row for row in wanted if row in set(rows)], "once, in order"
                assert set(rows) >= there
        assert len(self.done) == len(self.publishes)

    def wanted(self, source: str, key: int) -> tuple[list[Any], set[Any]]:
        """All rows, and those that no leader lacks."""
        rows, there = [], set()
        for number, (of, targets) in enumerate(self.publishes, 1):
            for at, item in enumerate(items(*targets.get(key, ())) if of == source else ()):
                of_item = [(source, number, item.base_sequence + n) for n in range(item.row_count)]
                rows += of_item
                if (number, at) not in self.missing:
                    there |= set(of_item)
        return rows, there


MISSING = st.sets(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=6)
COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=4)
PUBLISHES = st.lists(
    st.tuples(
        st.sampled_from("st"), st.dictionaries(st.integers(0, 2), COUNTS, min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=6,
)
NUMBER = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take")),
        st.tuples(st.just("answered"), NUMBER),
        st.tuples(st.just("answer lost"), NUMBER),
        st.tuples(st.just("request lost"), NUMBER),
        st.tuples(st.just("late"), NUMBER),
        st.tuples(st.just("rows lost"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("elected"), st.sampled_from("st")),
        st.tuples(st.just("wait")),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(PUBLISHES, MISSING, STEPS)
def test_every_row_reaches_its_target_once_and_in_order(
    publishes: list[tuple[str, dict[int, list[int]]]],
    missing: set[tuple[int, int]],
    steps: list[tuple[object, ...]],
) -> None:
    world = World(publishes, missing)
    for name, *values in steps:
        first, second = [*values, 0, 0][:2]
        if name == "elected":
            world.begin(str(first))
            continue
        assert isinstance(first, int)
        assert isinstance(second, int)
        if name == "take":
            world.take()
        elif name == "wait":
            world.now_us += FORWARD_BACKOFF_MS_MIN * MS
        elif name == "late":
            world.repeat(first)
        elif name == "rows lost":
            world.lose(first, second)
        else:
            world.end(first, arrives=name != "request lost", answered=name == "answered")
    world.settle()
    world.check()
