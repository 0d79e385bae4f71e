"""A coordinator of groups whose records are safe at once, topics, and a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from quiverlog.core.groups.coordinator import Coordinator, Fence, Room
from quiverlog.core.groups.group import Answer, Group, Heartbeat
from quiverlog.core.groups.offsets import Committing
from quiverlog.core.groups.reconcile import unpacked_shares
from quiverlog.core.groups.records import Entry, Record, TopicPartition
from quiverlog.errors import QuiverlogError
from quiverlog.types import Now

__all__ = ["A", "B", "GroupDriver", "entry", "id_of", "offered"]

A: Final = b"a" * 16
B: Final = b"b" * 16
"""Topics `a`, of four partitions, and `b`, of two."""


def id_of(number: int) -> bytes:
    """Return the id of a member."""
    return number.to_bytes(16, "big")


def entry(topic_id: bytes, partition: int, offset: int, leader_epoch: int = 3) -> Entry:
    return Entry(topic_id, partition, offset, leader_epoch, "")


class GroupDriver:
    def __init__(self) -> None:
        self.topics: dict[str, tuple[bytes, int]] = {"a": (A, 4), "b": (B, 2)}
        self.ms = 1_000
        self.log: list[Record] = []
        self.fences: list[Fence] = []
        self._beats: dict[bytes, int] = {}
        self.core = Coordinator(Room())
        self.core.begin(self.now)

    # --- what the coordinator is given ---------------------------------------------------------
    def find(self, name: str) -> tuple[bytes, int] | None:
        return self.topics.get(name)

    def partitions(self, topic_id: bytes) -> int:
        return dict(self.topics.values()).get(topic_id, 0)

    @property
    def now(self) -> Now:
        return Now(self.ms * 1_000, 10**15 + self.ms * 1_000)

    # --- the shell's part ----------------------------------------------------------------------
    def put(self, records: Iterable[Record]) -> None:
        records = list(records)
        for record in records:
            self.core.pend(record)
        for record in records:
            self.core.apply(len(self.log), record)
            self.log.append(record)

    def advance(self, ms: int) -> None:
        """All that is due until then happens, when it is due."""
        end = self.ms + ms
        while (due_us := self.core.next_us()) is not None and due_us <= end * 1_000:
            self.ms = max(self.ms, due_us // 1_000)
            ticked = self.core.tick(self, self.now)
            self.fences += ticked.fences
            self.put(ticked.records)
        self.ms = end

    def fail_over(self, start: int = 0) -> None:
        """Another coordinator replays the log from there."""
        self.core = Coordinator(Room())
        for offset in range(start, len(self.log)):
            self.core.apply(offset, self.log[offset])
        self.ms += 1_000
        self.core.begin(self.now)

    # --- requests ------------------------------------------------------------------------------
    def beat(self, number: int, epoch: int = 0, **fields: Any) -> Answer:
        member_id = fields.pop("member_id", id_of(number))
        newest = self._beats.get(member_id, 0)
        beat = fields.setdefault("beat", newest + 1)
        self._beats[member_id] = max(newest, beat)
        if epoch == 0:
            fields.setdefault("topics", ("a", "b"))
        group = fields.pop("group", "g")
        answer = self.core.heartbeat(Heartbeat(group, member_id, epoch, **fields), self, self.now)
        self.put(answer.records)
        return answer

    def join(self, *numbers: int, **fields: Any) -> None:
        """Members join, and get what they are to have."""
        for number in numbers:
            self.beat(number, **fields)
        self.settle()

    def settle(self) -> None:
        """All members come to the target."""
        self.advance(300)
        for _ in range(4):
            for member_id, member in list(self.group.members.items()):
                if member.is_away:
                    continue
                number = int.from_bytes(member_id, "big")
                standing = self.group.standings.get(member_id)
                epoch = 0 if standing is None else standing.epoch
                owned = frozenset(() if standing is None else standing.assigned)
                self.beat(number, epoch, owned=owned, topics=None)

    @property
    def group(self) -> Group:
        return self.core.groups["g"]

    def assigned(self, number: int) -> frozenset[TopicPartition]:
        return frozenset(self.group.standings[id_of(number)].assigned)

    def epoch(self, number: int) -> int:
        return self.group.standings[id_of(number)].epoch

    def commit(self, number: int, epoch: int, *entries: Entry, group: str = "g") -> Committing:
        """`number` 0: without a member."""
        member_id = id_of(number) if number else b""
        done = self.core.commit(group, member_id, epoch, entries, self, self.now)
        self.put(done.records)
        return done

    def committed(self, partition: TopicPartition, group: str = "g") -> int:
        """Return the committed offset, -1 for none, -2 while it is not stable."""
        (found,) = self.core.fetch(group, [partition], self)
        if found.is_unstable:
            return -2
        return -1 if found.committed is None else found.committed.offset

    def codes(self, done: Committing) -> list[str]:
        return [_name(error) for error in done.errors]


def offered(answer: Answer) -> frozenset[TopicPartition] | None:
    return None if answer.assignment is None else unpacked_shares(answer.assignment)


def _name(error: QuiverlogError | None) -> str:
    return "" if error is None else error.code_name()
