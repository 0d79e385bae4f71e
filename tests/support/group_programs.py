"""Members of groups as a correct client behaves, and what they believe to have.

A member believes in its partitions for a session from the heartbeat that was answered last; at its
end, or when it has not given up what it must in time, it drops all and joins anew. Programs die,
freeze, leave, come back, change their topics. `run_world` checks what is promised.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from quiverlog.core.groups.group import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    Answer,
    GroupState,
    Heartbeat,
)
from quiverlog.core.groups.offsets import Fetched
from quiverlog.core.groups.reconcile import unpacked_shares
from quiverlog.core.groups.records import Entry, TopicPartition
from quiverlog.errors import (
    FencedInstance,
    FencedMemberEpoch,
    QuiverlogError,
    ThrottledBroker,
    UnknownMember,
    UnknownTopicId,
    UnstableOffsets,
)

from .group_world import ROWS, TICK_US, GroupWorld, Violation

__all__ = ["Program", "run_world"]

CHAOS_TICKS: Final = 800
SESSION_TICKS: Final = 70
REBALANCE_TICKS: Final = 80
"""More than a session: while its answers are lost a member ends by that."""
_FENCING: Final = (FencedMemberEpoch, UnknownMember)


class Tenure:
    """One time of having a partition."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.position: int | None = None
        self.committed = 0
        self.is_asked = False


class Program:
    """One member after the other; `life` counts them and what a member has lost."""

    def __init__(
        self, world: GroupWorld, group: str, number: int, topics: list[str], *,
        is_static: bool, has_transactions: bool,
    ) -> None:  # fmt: skip
        self.world, self.group, self.number = world, group, number
        self.topics = topics
        self.instance_id = f"i{number}" if is_static else ""
        self.has_transactions = has_transactions
        self.life = self.beat = 0
        self.fenced = 0
        self.is_dead = False
        self.frozen_until = self.hangs_until = 0
        self.owned: dict[TopicPartition, Tenure] = {}
        self.giving: set[TopicPartition] = set()
        self._commits_at = 0
        self._transaction: dict[TopicPartition, tuple[int, int]] = {}
        self._key: tuple[str, int, int] | None = None
        self._asked = 0
        self._asked_of: tuple[str, int, int] | None = None
        self._new_member()
        world.after(world.rng.randint(1, 100), self._step)

    # --- members -------------------------------------------------------------------------------
    def _new_member(self) -> None:
        self.member_id = self.world.rng.randbytes(16)
        self.beat = 0
        self._forget()

    def _forget(self) -> None:
        """All that it had is lost; it joins anew."""
        self.life += 1
        self.epoch = JOINS
        self.owned, self.giving = {}, set()
        self.valid_until = -1
        self._revoke_by: int | None = None
        # Since when a heartbeat has no answer; what the newest has sent.
        self._unanswered_at: int | None = None
        self._sent_at = 0
        self._topics_told = self._owned_told = False
        self._beat_at = max(self.world.now + self.world.rng.randint(1, 10), self._commits_at)
        self._transaction = {}
        self._asked_at: int | None = None
        if self.has_transactions:
            # What is undecided of the transactions before is not decided any more.
            tid = f"t{self.number}"
            self._key = (tid, *self.world.decisions.open(tid))

    def is_valid(self) -> bool:
        now = self.world.now
        in_time = self._revoke_by is None or now < self._revoke_by
        return now < self.valid_until and in_time and not self.is_dead

    def crash(self, ticks: int) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.world.after(ticks, self._begin_again)

    def leave(self, ticks: int) -> None:
        if self.is_dead or self._transaction:
            return
        self._commit()
        epoch = LEAVES_FOR_A_WHILE if self.instance_id else LEAVES
        self.owned = {}
        self._send_beat(epoch)
        self.crash(ticks)

    def _begin_again(self) -> None:
        self.is_dead = False
        self._new_member()

    def change_topics(self) -> None:
        rng = self.world.rng
        self.topics = rng.sample(["a", "b", "c"], rng.randint(1, 3))
        self._topics_told = False

    def _lose(self) -> None:
        """Drop all; join as another member, or as the same when its commits have arrived."""
        if self.world.rng.random() < 0.5 and not self.instance_id:
            self._new_member()
        else:
            self._forget()

    # --- steps ---------------------------------------------------------------------------------
    def _step(self) -> None:
        rng, now = self.world.rng, self.world.now
        self.world.after(rng.randint(1, 4), self._step)
        if self.is_dead or now < self.frozen_until:
            return
        if self.epoch != JOINS and not self.is_valid():
            self._lose()
        for tenure in self.owned.values():
            self._read(tenure)
        if self.has_transactions:
            self._transact()
        elif rng.random() < 0.2:
            self._commit()
        if self.giving and not self._transaction and now >= self.hangs_until:
            self._give_up()
        if now >= self._beat_at:
            self._send_beat(self.epoch)

    def _read(self, tenure: Tenure) -> None:
        world, one = self.world, tenure.partition
        if tenure.position is None:
            if not tenure.is_asked or world.rng.random() < 0.1:
                tenure.is_asked = True
                floor = world.acknowledged.get((self.group, one), 0)
                reply = partial(self._fetched, tenure, floor)
                world.coordinators.ask("fetch", self.group, [one], reply)
            return
        place = self.group, one
        if one not in self.giving and one not in self._transaction:
            count = world.rng.randint(0, 1) if world.chaos else world.rng.randint(3, 12)
            tenure.position = min(ROWS, tenure.position + count)
            world.read[place] = max(world.read.get(place, 0), tenure.position)

    def _fetched(self, tenure: Tenure, floor: int, found: list[Fetched]) -> None:
        if self.owned.get(tenure.partition) is not tenure or tenure.position is not None:
            return
        (one,) = found
        if one.is_unstable:
            tenure.is_asked = False
            return
        place = self.group, tenure.partition
        offset = 0 if one.committed is None else one.committed.offset
        if one.committed is not None and one.committed.leader_epoch != offset % 7:
            raise Violation(f"{place}: another leader epoch")
        if self.world.partitions(one.partition[0]) and not (
            floor <= offset <= self.world.read.get(place, 0)
        ):
            raise Violation(f"{place}: begins at {offset}, {floor} is committed")
        tenure.position = tenure.committed = offset

    def _give_up(self) -> None:
        self._commit()
        for one in self.giving:
            del self.owned[one]
        # It must have been reported by then, too.
        self.giving, self._owned_told = set(), False
        self._beat_at = self.world.now

    # --- heartbeats ----------------------------------------------------------------------------
    def _send_beat(self, epoch: int) -> None:
        rng, now = self.world.rng, self.world.now
        self.beat += 1
        joins = epoch == JOINS
        tells_owned = joins or not self._owned_told or rng.random() < 0.2
        tells_topics = joins or not self._topics_told
        beat = Heartbeat(
            self.group, self.member_id, epoch, self.beat,
            tuple(self.topics) if tells_topics else None,
            frozenset(self.owned) if tells_owned else None,
            self.instance_id,
            session_timeout_ms=SESSION_TICKS * 100 if joins else -1,
            rebalance_timeout_ms=REBALANCE_TICKS * 100 if joins else -1,
        )  # fmt: skip
        self._sent_at = now
        if self._unanswered_at is None:
            self._unanswered_at = now
        self._beat_at = now + rng.randint(8, 12)
        told = (tuple(self.topics) if tells_topics else None, beat.owned)
        reply = partial(self._answered, self.life, self.beat, told)
        self.world.coordinators.ask("heartbeat", beat, reply)

    def _answered(
        self, life: int, beat: int, told: tuple[Any, Any], answer: Answer | None,
        error: QuiverlogError | None,
    ) -> None:  # fmt: skip
        # Of answers that cross only the first one to the newest heartbeat counts.
        is_late = beat != self.beat or self._unanswered_at is None
        if self.is_dead or life != self.life or is_late:
            return
        if self.world.now < self.frozen_until:
            again = partial(self._answered, life, beat, told, answer, error)
            self.world.after(self.frozen_until - self.world.now, again)
            return
        if self.epoch != JOINS and not self.is_valid():
            self._lose()
            return
        if error is not None:
            self._refused(error)
            return
        assert answer is not None
        self.valid_until = self._sent_at + SESSION_TICKS
        if not self.is_valid():
            # It was frozen since it has sent that.
            self._lose()
            return
        self.epoch = answer.epoch
        self._topics_told |= told[0] == tuple(self.topics)
        if told[1] == self.owned.keys():
            self._owned_told = True
            self._revoke_by = self._revoke_by if self.giving else None
        if answer.assignment is not None:
            self._assigned(unpacked_shares(answer.assignment))
        self._unanswered_at = None
        interval = max(1, answer.interval_ms * 1_000 // TICK_US)
        self._beat_at = min(self._beat_at, self.world.now + interval)

    def _refused(self, error: QuiverlogError) -> None:
        if isinstance(error, ThrottledBroker | FencedInstance):
            return
        if not isinstance(error, _FENCING):
            raise Violation(f"{self.group}: a heartbeat is refused: {error!r}")
        if self.is_valid():
            raise Violation(f"{self.group}: a member that is alive is fenced: {error!r}")
        self.fenced += 1
        self._lose()

    def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for one in sorted(self.owned.keys() - partitions - self.giving):
            self.giving.add(one)
            if self._revoke_by is None:
                # Since then at the earliest it was to be given up.
                assert self._unanswered_at is not None
                self._revoke_by = self._unanswered_at + REBALANCE_TICKS
        if again := self.giving & partitions:
            raise Violation(f"{self.group}: {again} are given before they were given up")
        for one in sorted(partitions - self.owned.keys()):
            self.world.take(self, one)
            self.owned[one] = Tenure(one)
        self._owned_told = False
        self._beat_at = self.world.now + 1

    # --- commits -------------------------------------------------------------------------------
    def _commit(self) -> None:
        """One after the other on one connection, which may be slow."""
        tenures = [one for one in self.owned.values() if one.position is not None]
        entries = [
            Entry(*one.partition, one.position, one.position % 7, "")
            for one in tenures
            if one.position is not None
        ]
        if self.has_transactions or not entries:
            return
        world = self.world
        delay = world.rng.choice((1, 1, 1, 2, 5, 60)) if world.chaos else 1
        self._commits_at = max(self._commits_at, world.now + delay)
        positions = [entry.offset for entry in entries]
        reply = partial(self._committed, self.life, tenures, positions)
        args = (self.group, self.member_id, self.epoch, entries, reply)
        for _ in range(world.rng.choice((0, 1, 1, 1, 2)) if world.chaos else 1):
            at = self._commits_at - world.now
            world.after(at, world.coordinators.deliver, "commit", args)

    def _committed(
        self, life: int, tenures: list[Tenure], positions: list[int],
        errors: list[QuiverlogError | None],
    ) -> None:  # fmt: skip
        for tenure, position, error in zip(tenures, positions, errors, strict=True):
            place = self.group, tenure.partition
            if error is None:
                known = self.world.acknowledged.get(place, 0)
                self.world.acknowledged[place] = max(known, position)
            elif isinstance(error, _FENCING):
                is_its_own = self.owned.get(tenure.partition) is tenure
                if life == self.life and is_its_own and self.is_valid():
                    raise Violation(f"{place}: a commit of its member is refused: {error!r}")
            elif not isinstance(error, UnknownTopicId | UnstableOffsets):
                raise Violation(f"{place}: a commit is refused: {error!r}")

    # --- transactions --------------------------------------------------------------------------
    def _transact(self) -> None:
        world = self.world
        if self._asked_at is not None:
            # Of unknown outcome: the same again, and nothing else.
            if world.now - self._asked_at > 60:
                self._ask()
            return
        if self.giving and not self._transaction:
            return
        gone = {one for one in self._transaction if not world.partitions(one[0])}
        # The same again, or another one in its place.
        if not self._transaction or gone or world.rng.random() < 0.5:
            self._transaction = {
                one: (tenure.committed, tenure.position)
                for one, tenure in self.owned.items()
                if tenure.position is not None
                and tenure.position > tenure.committed
                and world.partitions(one[0])
                and world.rng.random() < 0.8
            }
            if self._asked_of == self._key and world.rng.random() < 0.2:
                # Without offsets in its place.
                self._transaction = {}
                self._ask()
        if self._transaction:
            self._ask()

    def _ask(self) -> None:
        world = self.world
        assert self._key is not None
        self._asked_of = self._key
        entries = [(one, *rows) for one, rows in sorted(self._transaction.items())]
        who = self.group, self.member_id, self.epoch
        self._asked_at, self._asked = world.now, self._asked + 1
        reply = partial(self._decided, self.life, self._asked)
        world.decisions.commit(self._key, repr(entries).encode(), who, entries, reply)

    def _decided(self, life: int, asked: int, is_committed: bool) -> None:
        if life != self.life or asked != self._asked or self.is_dead:
            return
        assert self._key is not None
        self._asked_at = None
        if not is_committed:
            return
        for one, (_, end) in self._transaction.items():
            if one in self.owned:
                self.owned[one].committed = end
        self._transaction = {}
        self._key = (*self._key[:2], self._key[2] + 1)


def run_world(seed: int) -> GroupWorld:
    """Raises Violation."""
    world = GroupWorld(seed)
    rng = world.rng
    for group, has_transactions in (("plain", False), ("exact", True)):
        for _ in range(rng.randint(2, 4)):
            number = len(world.programs)
            program = Program(
                world, group, number, rng.sample(["a", "b", "c"], rng.randint(1, 3)),
                is_static=rng.random() < 0.3, has_transactions=has_transactions,
            )  # fmt: skip
            world.programs.append(program)
    for _ in range(rng.randint(5, 25)):
        world.after(rng.randint(20, CHAOS_TICKS), _fault, world)
    world.run(CHAOS_TICKS)
    world.chaos = False
    for program in world.programs:
        program.frozen_until = program.hangs_until = 0
    world.run(CHAOS_TICKS + 300)
    _check_converged(world)
    # No member joins anew because a coordinator fails.
    fenced = [one.fenced for one in world.programs]
    world.coordinators.elect()
    world.run(world.now + 100)
    _check_converged(world)
    if fenced != [one.fenced for one in world.programs] or world.coordinators.present.fences:
        raise Violation("a member is fenced after a failover")
    world.run(world.now + 250)
    _check_read(world)
    world.check_offsets()
    return world


def _fault(world: GroupWorld) -> None:
    rng, kind = world.rng, world.rng.random()
    program = rng.choice(world.programs)
    if not world.chaos:
        return
    if kind < 0.2:
        world.coordinators.elect()
    elif kind < 0.35:
        world.coordinators.present.snapshot()
        world.after(rng.choice((1, 3, 10, 40)), world.coordinators.elect)
    elif kind < 0.5:
        program.crash(rng.randint(1, 150))
    elif kind < 0.65:
        program.frozen_until = world.now + rng.randint(5, 150)
    elif kind < 0.7:
        program.hangs_until = world.now + rng.randint(5, 150)
    elif kind < 0.8:
        program.leave(rng.randint(1, 100))
    elif kind < 0.9:
        program.change_topics()
    else:
        world.change_topic()


def _check_converged(world: GroupWorld) -> None:
    coordinator = world.coordinators.present.core
    for name in ("plain", "exact"):
        programs = [one for one in world.programs if one.group == name]
        group = coordinator.groups[name]
        if group.state() is not GroupState.STABLE:
            raise Violation(f"{name} is {group.state()}: {group.standings}")
        found = [world.find(topic) for one in programs for topic in one.topics]
        wanted = {(one[0], number) for one in found if one for number in range(one[1])}
        owned = [partition for one in programs for partition in one.owned]
        if sorted(owned) != sorted(wanted):
            raise Violation(f"{name} owns {sorted(owned)}, not {sorted(wanted)}")


def _check_read(world: GroupWorld) -> None:
    for program in world.programs:
        for partition in program.owned:
            place = program.group, partition
            end = world.output if program.has_transactions else world.read
            if end.get(place, 0) != ROWS:
                raise Violation(f"{place} is read to {end.get(place, 0)}, not {ROWS}")
