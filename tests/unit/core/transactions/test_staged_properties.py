"""The index of staged rows against a naive one: lists that are searched from the front."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quiverlog.core.transactions.staged import (
    ASK_AFTER_US,
    AttemptRange,
    Done,
    Key,
    Known,
    New,
    Staged,
    key_of,
)
from quiverlog.core.transactions.staged_rows import DoneRow, End, PublishRow, StagedRow

ATTEMPTS = [bytes([n]) * 16 for n in (0, 1, 255)]
KEYS = st.builds(Key, st.sampled_from(["a", "ü", "zoo"]), st.integers(0, 2), st.integers(0, 2))
NAMES = st.sampled_from(ATTEMPTS)
SIZES = st.integers(1, 50)


def make_id(count: int) -> int:
    return 2**62 + count


@dataclass
class Naive:
    """All that is staged, in log order, with the time since which its attempt is silent."""

    rows: list[tuple[int, StagedRow]] = field(default_factory=list)
    quiet_us: dict[tuple[Key, bytes], int] = field(default_factory=dict)
    all_rows: list[tuple[int, StagedRow]] = field(default_factory=list)
    publishes: dict[Key, tuple[int, PublishRow]] = field(default_factory=dict)
    done: dict[Key, DoneRow] = field(default_factory=dict)

    def of(self, key: Key, name: bytes | None = None) -> list[tuple[int, StagedRow]]:
        return [
            (offset, row)
            for offset, row in self.rows
            if key_of(row) == key and (name is None or row.attempt == name)
        ]

    def drop(self, keys: set[Key]) -> None:
        keys -= set(self.publishes)
        self.rows = [(offset, row) for offset, row in self.rows if key_of(row) not in keys]
        self.quiet_us = {one: at for one, at in self.quiet_us.items() if one[0] not in keys}


class Against(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.staged = Staged(make_id)
        self.naive = Naive()
        self.log: list[tuple[int, StagedRow | PublishRow | DoneRow]] = []
        self.pending: list[PublishRow | DoneRow] = []
        self.now_us = 0
        self.published = 0
        # What publish rows name that are not done; written down when they are proposed.
        self.named: dict[Key, PublishRow] = {}

    @property
    def end(self) -> int:
        return len(self.log)

    # --- the log ---------------------------------------------------------------------------
    @rule(key=KEYS, name=NAMES, rows=SIZES, partition=st.integers(0, 1), size=SIZES)
    def stage(self, key: Key, name: bytes, rows: int, partition: int, size: int) -> None:
        row = StagedRow(*key, name, b"t" * 16, partition, rows, size)
        self.staged.check_room([row])
        self.staged.stage(self.end, row, self.now_us)
        self.naive.rows.append((self.end, row))
        self.naive.all_rows.append((self.end, row))
        self.naive.quiet_us.pop((key, name), None)
        self.naive.quiet_us[key, name] = self.now_us
        self.log.append((self.end, row))

    @rule(key=KEYS, names=st.lists(NAMES, unique=True), first=st.integers(0, 9))
    def publish(self, key: Key, names: list[bytes], first: int) -> None:
        answer = self.staged.publish(key, names, first, self.end, 2, -1, 0)
        ending = [one for one in self.pending if isinstance(one, DoneRow) and key_of(one) == key]
        if key in self.naive.done:
            assert answer == Done(self.naive.done[key])
        elif ending:
            assert answer == Done(ending[0])
        elif key in self.naive.publishes or key in map(key_of, self.pending):
            assert answer == Known()
        elif self.end == 0:
            assert answer == Done(None)
        else:
            assert isinstance(answer, New)
            expected = [
                (offset, row)
                for offset, row in self.naive.of(key)
                if row.attempt in names and offset >= first
            ]
            for target in answer.row.targets:
                rows, base = [], 0
                for offset, row in expected:
                    if row.partition == target.partition:
                        rows.append((offset, base, row.row_count))
                        base += row.row_count
                assert list(target.rows()) == rows
            assert answer.row.row_count == sum(row.row_count for _, row in expected)
            assert answer.row.producer_id == make_id(self.published)
            self.published += 1
            self.staged.pend(answer.row)
            self.pending.append(answer.row)
            self.named[key] = answer.row

    @precondition(lambda self: self.naive.rows)
    @rule(data=st.data())
    def publish_an_attempt(self, data: st.DataObject) -> None:
        _, row = data.draw(st.sampled_from(self.naive.rows))
        self.publish(key_of(row), [row.attempt], 0)

    @precondition(lambda self: self.pending)
    @rule(later=SIZES)
    def is_safe(self, later: int) -> None:
        """The oldest row that was proposed; others may have been staged behind it meanwhile."""
        row = self.pending.pop(0)
        self.log.append((self.end, row))
        offset = self.end - 1
        self.staged.apply(offset, row)
        key = key_of(row)
        if isinstance(row, PublishRow):
            self.naive.publishes[key] = (offset, row)
            return
        del self.naive.publishes[key]
        del self.named[key]
        self.naive.done[key] = row
        id_, upto = key.transactional_id, key[1:]
        keys = {key_of(row) for _, row in self.naive.rows} - set(map(key_of, self.pending))
        self.naive.drop({one for one in keys if one[0] == id_ and one[1:] <= upto})

    @precondition(lambda self: self.naive.publishes)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.naive.publishes)))
        if key not in map(key_of, self.pending):
            done = DoneRow(*key, (End(b"t" * 16, 0, 7, 1),), 2)
            self.staged.pend(done)
            self.pending.append(done)

    # --- giving up -------------------------------------------------------------------------
    @rule(key=KEYS)
    def dead(self, key: Key) -> None:
        if key not in map(key_of, self.pending):
            self.naive.drop({key})
        self.staged.give_up(key)

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def dead_too_late(self, data: st.DataObject) -> None:
        """The answer to a question from before the decision."""
        self.dead(data.draw(st.sampled_from(list(self.named))))

    @rule(seconds=st.integers(0, 70), count_max=st.integers(1, 5))
    def ask(self, seconds: int, count_max: int) -> None:
        self.now_us += seconds * 1_000_000
        undecided = [
            key
            for (key, _), at in self.naive.quiet_us.items()
            if at + ASK_AFTER_US <= self.now_us
            and key not in self.naive.publishes
            and key not in map(key_of, self.pending)
        ]
        due = list(dict.fromkeys(undecided))
        asked = self.staged.to_ask(self.now_us, count_max)
        assert len(asked) <= count_max
        assert asked == due[: len(asked)]
        if len(asked) < count_max:
            assert asked == due
            for one, at in list(self.naive.quiet_us.items()):
                if at + ASK_AFTER_US <= self.now_us:
                    del self.naive.quiet_us[one]
                    self.naive.quiet_us[one] = self.now_us
        else:
            # The others are asked about next, in any number of calls.
            while asked:
                asked = self.staged.to_ask(self.now_us, count_max)
                assert set(asked) <= set(due)
            for one, at in list(self.naive.quiet_us.items()):
                if at + ASK_AFTER_US <= self.now_us:
                    del self.naive.quiet_us[one]
                    self.naive.quiet_us[one] = self.now_us

    # --- what always holds -----------------------------------------------------------------
    @rule(key=KEYS, name=NAMES, safe=st.integers(0, 40), wrong=st.sampled_from([0, 0, 1]))
    def count(self, key: Key, name: bytes, safe: int, wrong: int) -> None:
        rows = self.naive.of(key, name)
        if not rows:
            return
        row_count = sum(row.row_count for _, row in rows)
        one = AttemptRange(name, row_count + wrong, rows[0][0], rows[-1][0] + 1)
        counted = self.staged.count(key, [one], safe)
        assert counted.is_whole == (not wrong and rows[-1][0] < safe)
        assert sum(counted.targets.values()) == row_count

    @invariant()
    def same(self) -> None:
        staged, naive = self.staged, self.naive
        assert staged.next_offset == self.end
        assert staged.batch_count == len(naive.rows)
        assert staged.attempt_count == len({(key_of(row), row.attempt) for _, row in naive.rows})
        assert set(staged.ids()) == {row.transactional_id for _, row in naive.rows}
        for id_ in ("a", "ü", "zoo"):
            mine = [row for _, row in naive.rows if row.transactional_id == id_]
            found = staged.staged_of(id_)
            assert (found is None) == (not mine)
            if found is not None:
                assert found[1:4] == (
                    len(mine), sum(row.row_count for row in mine),
                    sum(row.byte_count for row in mine),
                )  # fmt: skip
        assert list(staged.unfinished()) == [row for _, row in naive.publishes.values()]
        first = naive.rows[0][0] if naive.rows else self.end
        assert staged.bytes_held == sum(
            row.byte_count for offset, row in naive.all_rows if offset >= first
        )
        front = staged.trim_offset()
        assert front <= min([first, *(offset for offset, _ in naive.publishes.values())])
        if not self.pending:
            assert front == min([first, *(offset for offset, _ in naive.publishes.values())])

    @invariant()
    def what_a_publish_row_names_is_never_dead(self) -> None:
        """Whatever is answered about it, and however late: its rows stay in the log."""
        for key, row in self.named.items():
            offsets = [offset for target in row.targets for offset in target.offsets]
            assert self.staged.trim_offset() <= min(offsets, default=self.end)
            found = self.staged.staged_of(key.transactional_id)
            assert (found.row_count if found else 0) >= row.row_count

    @precondition(lambda self: not self.pending)
    @rule()
    def replay(self) -> None:
        """A new leader that reads from where the log may begin has the same state."""
        start = self.staged.trim_offset()
        other = Staged(make_id, self.published)
        for offset, row in self.log[start:]:
            other.apply(offset, row)
        assert list(other.unfinished()) == list(self.staged.unfinished())
        assert other.trim_offset() <= start, "it begins where something is needed"


Against.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAgainst = Against.TestCase
