"""The log of a partition in the models of transactions and groups, and its leaders: the present one
and deposed ones, which go on.

What a majority has is in `Log`; what only a leader has, in its `tail`, of which an election keeps
some. The machines of leaders are in `transaction_world.py` and `group_world.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

__all__ = ["Entry", "Leader", "Leaders", "Log", "World"]


class World(Protocol):
    """What logs need of a model's world."""

    rng: random.Random
    now: int
    chaos: bool

    def after(self, delay: int, what: Callable[..., None], *args: Any) -> None: ...

    def send(self, what: Callable[..., None], *args: Any) -> None: ...

    def all(self) -> Sequence[Leaders]: ...


class Entry(NamedTuple):
    """A row of a log. `flushed`: its writer waits for disks. `at`: when the log got it."""

    content: Any
    then: Callable[[int | None], None] | None = None
    flushed: bool = False
    at: int = 0


@dataclass(eq=False)
class Log:
    """What a majority has of a partition; below `flushed` it is on their disks."""

    rows: list[Entry] = field(default_factory=list)
    start: int = 0
    flushed: int = 0
    epoch: int = 0

    def add(self, entries: Iterable[Entry], at: int) -> None:
        self.rows += [entry._replace(at=at) for entry in entries]


class Leaders:
    """A partition's present leader and deposed ones, which get some of the messages."""

    def __init__(self, world: World, log: Log, make: Callable[[Any, Log], Any]) -> None:
        self._world = world
        self._make = make
        self.log = log
        self.known: list[Any] = [make(world, log)]

    @property
    def present(self) -> Any:
        return self.known[-1]

    def elect(self, *, keep_tail: bool = True) -> None:
        before = self.present
        count = self._world.rng.randint(0, len(before.tail)) if keep_tail else 0
        # Copies that a new leader has of what the old one had not acknowledged.
        self.log.add(before.tail[:count], self._world.now)
        self.known.append(self._make(self._world, self.log))
        del self.known[:-3]

    def ask(self, question: str, *args: Any) -> None:
        """Send a message to the leader, or to a deposed one."""
        self._world.send(self.deliver, question, args)

    def deliver(self, question: str, args: tuple[Any, ...]) -> None:
        who, rng = self.present, self._world.rng
        if self._world.chaos and rng.random() < 0.35:
            who = rng.choice(self.known)
        getattr(who, question)(*args)


class Leader:
    def __init__(self, world: Any, log: Log) -> None:
        self.world = world
        self.log = log
        log.epoch += 1
        self.epoch = log.epoch
        # A deposed leader sees its own copy.
        self.rows = list(log.rows)
        self.tail: list[Entry] = []
        self.is_broken = False

    @property
    def is_leader(self) -> bool:
        """By its lease: a deposed one has none."""
        return self.epoch == self.log.epoch and not self.is_broken

    @property
    def end(self) -> int:
        return len(self.rows) + len(self.tail)

    def append(
        self, content: Any, then: Callable[[int | None], None] | None, *, flushed: bool = False
    ) -> int:
        offset = self.end
        self.tail.append(Entry(content, then, flushed))
        self.world.after(self.world.rng.choice((1, 1, 2, 6)), self._replicate)
        return offset

    def _replicate(self) -> None:
        if not self.tail:
            return
        if not self.is_leader:
            self._fail()
            return
        if self.world.chaos and self.world.rng.random() < 0.02:
            # Too few replicas: what is stored may or may not survive.
            self.is_broken = True
            survivors = self.world.rng.randint(0, len(self.tail))
            self.log.add(self.tail[:survivors], self.world.now)
            self._fail()
            self.world.after(3, self._begin_again)
            return
        if self.tail[0].flushed:
            self.log.flushed = len(self.rows) + 1
        elif self.world.rng.random() < 0.3:
            self.log.flushed = len(self.rows)
        entry = self.tail.pop(0)
        offset = len(self.rows)
        self.rows.append(entry)
        self.log.add([entry], self.world.now)
        if entry.then is not None:
            entry.then(offset)

    def _fail(self) -> None:
        # It has copies that no other has: it answers nothing more.
        self.is_broken = True
        tail, self.tail = self.tail, []
        for entry in tail:
            if entry.then is not None:
                entry.then(None)

    def _begin_again(self) -> None:
        leaders = next(one for one in self.world.all() if one.log is self.log)
        if leaders.present is self:
            leaders.elect(keep_tail=False)
