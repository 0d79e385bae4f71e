"""What programs of transactions were promised, checked by the logs at the end.

The log of the coordinators says what was decided, and in which life of its id: a life ends when the
id is forgotten. Nothing of it may be decided or published afterwards; its last transaction may come
again, under another epoch, and no earlier one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from quiverlog.core.transactions.coordinator import OLD_INSTANCES_MAX
from quiverlog.core.transactions.records import Closed, Committed, Forgotten, Opened, Published
from quiverlog.core.transactions.staged import Key

from .transaction_logs import Entry
from .transaction_world import (
    EXPIRY_TICKS,
    SINGLE_USE_TICKS,
    Name,
    TransactionWorld,
    Violation,
)

if TYPE_CHECKING:
    from .transaction_programs import App

__all__ = ["check"]

_RECORDED_TICKS: Final = 60
"""Between a decision and its place in the log, at the most."""


@dataclass
class _Life:
    """One life of an id. `used_at`: its newest sign of life in the log; `last_before`: the newest
    sequence of the lives before it."""

    last_before: int = -1
    opened: dict[int, bytes] = field(default_factory=dict)
    replaced: list[bytes] = field(default_factory=list)
    epoch: int = 0
    is_single: bool = False
    used_at: int | None = None
    last: int = -1
    publishing: Key | None = None
    keys: list[Key] = field(default_factory=list)


class _Decisions:
    """`decided`: in the order of the log. `given_up`: forgotten by command while they were
    published. `over`: when a life ended, by its keys."""

    def __init__(self, world: TransactionWorld, apps: list[App]) -> None:
        self._world = world
        self._queries = {app.tid for app in apps if app.is_query}
        self._instances: dict[bytes, Name] = {name.attempt: name for name in world.staged}
        self._lives: dict[str, _Life] = defaultdict(_Life)
        self._epochs: dict[str, int] = defaultdict(int)
        self.decided: dict[Key, Committed] = {}
        self.given_up: set[Key] = set()
        self.over: dict[Key, int] = {}
        for entry in world.coordinators.log.rows:
            tid, change = entry.content
            life = self._lives[tid]
            if isinstance(change, Opened | Closed):
                if change.epoch <= self._epochs[tid]:
                    raise Violation(f"{tid} has epoch {change.epoch} after {self._epochs[tid]}")
                self._epochs[tid] = change.epoch
            match change:
                case Opened():
                    self._opened(tid, change, life, entry)
                case Closed():
                    life.epoch = change.epoch
                case Committed():
                    self._committed(tid, change, life, entry)
                case Published():
                    life.publishing = None
                case Forgotten():
                    self._forgotten(tid, life, entry)

    @staticmethod
    def _opened(tid: str, change: Opened, life: _Life, entry: Entry) -> None:
        before = life.opened.get(max(life.opened, default=0), change.instance)
        if before != change.instance:
            life.replaced.append(before)
        if change.instance in life.replaced[-OLD_INSTANCES_MAX:]:
            raise Violation(f"{tid}: {change.instance!r} was replaced, and holds it again")
        life.opened[change.epoch] = change.instance
        life.epoch, life.is_single, life.used_at = change.epoch, change.single_use, entry.at

    def _committed(self, tid: str, change: Committed, life: _Life, entry: Entry) -> None:
        key = Key(tid, change.epoch, change.sequence)
        if change.epoch != life.epoch or change.epoch not in life.opened:
            raise Violation(f"{key} is decided, and its epoch is {life.epoch}")
        for attempt in change.attempts:
            instance = self._instances[attempt].instance
            if instance != life.opened[change.epoch]:
                raise Violation(f"{key} has rows of {instance!r}, of another life")
        if change.sequence <= life.last:
            raise Violation(f"{key} is decided after {life.last}")
        if tid in self._queries and change.sequence < life.last_before:
            raise Violation(f"{key} is repeated: {life.last_before} was the last")
        self.decided[key] = change
        life.keys.append(key)
        life.last, life.publishing, life.used_at = change.sequence, key, entry.at

    def _forgotten(self, tid: str, life: _Life, entry: Entry) -> None:
        if not any(entry.content is one for one in self._world.commanded):
            if life.publishing is not None:
                raise Violation(f"{tid} is forgotten while {life.publishing} is published")
            is_done = life.is_single and life.keys
            least = (SINGLE_USE_TICKS if is_done else EXPIRY_TICKS) - _RECORDED_TICKS
            if life.used_at is not None and entry.at < life.used_at + least:
                raise Violation(f"{tid} is forgotten {entry.at - life.used_at} ticks after its use")
        if life.publishing is not None:
            self.given_up.add(life.publishing)
        self.over.update(dict.fromkeys(life.keys, entry.at))
        self._lives[tid] = _Life(max(life.last, life.last_before))


def check(world: TransactionWorld, apps: list[App]) -> None:
    decisions = _Decisions(world, apps)
    _check_rows(world, decisions)
    _check_targets(world, decisions)
    for app in apps:
        _check_app(app, decisions.decided)
    for leaders in world.staging:
        staging = leaders.present
        staged = staging.core
        if staged.batch_count or list(staged.unfinished()):
            raise Violation(f"staging {staging.number} keeps {staged.batch_count} batches for ever")
    ids = world.coordinators.present.core.applied
    if ids:
        raise Violation(f"{list(ids)} are never forgotten")


def _check_rows(world: TransactionWorld, decisions: _Decisions) -> None:
    stored: dict[Key, set[Name]] = defaultdict(set)
    for leaders in world.targets:
        for entry in leaders.log.rows:
            stored[entry.content.name.key].add(entry.content.name)
    chosen: dict[Key, set[Name]] = defaultdict(set)
    for name in world.staged:
        found = decisions.decided.get(name.key)
        if found is not None and name.attempt in found.attempts:
            chosen[name.key].add(name)
    for key in stored.keys() | chosen.keys():
        missing = chosen[key] - stored[key] - world.excused
        extra = stored[key] - chosen[key]
        if (missing and key not in decisions.given_up) or extra:
            raise Violation(f"{key}: {len(missing)} batches are missing, {len(extra)} are no part")


def _check_targets(world: TransactionWorld, decisions: _Decisions) -> None:
    order = {key: number for number, key in enumerate(decisions.decided)}
    for leaders in world.targets:
        seen = set()
        newest: dict[str, Key] = {}
        for entry in leaders.log.rows:
            name, key = entry.content.name, entry.content.name.key
            if name in seen:
                raise Violation(f"{name} is stored twice")
            seen.add(name)
            # What a power failure took from a target may come again later than newer rows.
            if name in world.excused or key in decisions.given_up:
                continue
            before = newest.setdefault(key.transactional_id, key)
            if order[key] < order[before]:
                raise Violation(f"rows of {key} lie behind those of {before}")
            newest[key.transactional_id] = key
            if entry.at > decisions.over.get(key, entry.at):
                raise Violation(f"{name} is published, and its id was forgotten before")


def _check_app(app: App, decided: dict[Key, Committed]) -> None:
    # Under a later epoch, too: a transaction without rows is the same as any other without.
    own = {
        (key.sequence, tuple(sorted(found.attempts)))
        for key, found in decided.items()
        if key.transactional_id == app.tid
    }
    if not app.committed <= own:
        raise Violation(f"{app.tid}: {app.committed - own} were answered, and are not decided")
    if not set(range(app.next)) <= {sequence for sequence, _ in own}:
        raise Violation(f"{app.tid}: all up to {app.next} was answered, and is not decided")
    for key, found in decided.items():
        if key.transactional_id == app.tid and app.aborted.intersection(found.attempts):
            raise Violation(f"{key} was aborted, and is decided")
    for key, named in app.twice.items():
        if key in decided and tuple(sorted(decided[key].attempts)) != named:
            raise Violation(f"a second write of {key} was dropped in silence")
    if not app.is_calm_done:
        raise Violation(f"{app.tid} does not get on when all is well: {app.calm_count}")
