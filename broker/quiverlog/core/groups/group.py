"""One group: its members, what they are to have and what they have.

The group's epoch grows when a member joins, leaves, is fenced or changes its subscription, and when
partitions of a subscribed topic come or go. A target is computed of it, and each member comes to
its part of the target by its own heartbeats (`reconcile`).

A question is answered from what is pending and changes no rows; it returns the records, and notes
signs of life. States are derived from rows, never stored.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from quiverlog.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    InvalidRequest,
    QuiverlogError,
    ThrottledBroker,
    UnknownMember,
    UnsupportedAssignor,
)
from quiverlog.limits import (
    GROUP_HEARTBEAT_MS_MAX,
    GROUP_MEMBERS_MAX,
    GROUP_REBALANCE_TIMEOUT_MS_DEFAULT,
    GROUP_SESSION_TIMEOUT_MS_DEFAULT,
)
from quiverlog.types import Now

from .assignors import ASSIGNORS, UNIFORM
from .offsets import Check, Offsets
from .reconcile import (
    MemberState,
    Standing,
    advance,
    check_epoch,
    pack,
    packed_shares,
    state_of,
    unpack,
    unpacked_shares,
)
from .records import (
    Current,
    GroupRow,
    GroupType,
    Kind,
    Member,
    Observed,
    Offset,
    Pending,
    Record,
    Share,
    Target,
    TopicPartition,
    Value,
    partition_of,
)
from .topics import Topics

__all__ = [
    "JOINS",
    "LEAVES",
    "LEAVES_FOR_A_WHILE",
    "TARGET_DELAY_MS",
    "Answer",
    "Group",
    "GroupState",
    "Heartbeat",
    "Live",
]

JOINS: Final = 0
LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2
BEAT_MS_MIN: Final = 250
"""Between heartbeats of a member that is to get or give up something."""
TARGET_DELAY_MS: Final = 200
"""Changes within this time share one target."""

_DIGEST_BYTES: Final = 16
_K = TypeVar("_K")
_V = TypeVar("_V")


class GroupState(enum.Enum):
    EMPTY = "empty"
    ASSIGNING = "assigning"
    """The target is of an earlier epoch."""
    RECONCILING = "reconciling"
    """A member is not at the target."""
    STABLE = "stable"
    DEAD = "dead"


class Heartbeat(NamedTuple):
    """A request. None: as before. Timeouts: -1 as before, at first the default.

    `beat` grows within a member's life; of answers the member takes only that to its newest. It
    reports `owned`, all that it has, when that has changed and after each answer with an
    assignment, again and again until such a heartbeat is answered.
    """

    group: str
    member_id: bytes
    epoch: int
    beat: int
    topics: tuple[str, ...] | None = None
    owned: frozenset[TopicPartition] | None = None
    instance_id: str = ""
    assignor: str = ""
    session_timeout_ms: int = -1
    rebalance_timeout_ms: int = -1
    rack: str = ""
    client_id: str = ""
    host: str = ""


class Answer(NamedTuple):
    """What GROUP_HEARTBEAT answers once its records, and all that pends now, are safe.

    `assignment`: all that the member may have; None while that is what it has reported.
    `may_wait`: there is nothing new. The answer may be held back for `interval_ms`, or until the
    member is among `Coordinator.take_woken`; it is then that of `Coordinator.wake`.
    `note`: for the log, what the member has reported wrongly.
    """

    records: list[Record]
    epoch: int
    assignment: tuple[Share, ...] | None = None
    interval_ms: int = GROUP_HEARTBEAT_MS_MAX
    may_wait: bool = False
    note: str = ""


class Live:
    """What this coordinator has seen of a member.

    `owned`: what it has reported, None before. `revoking_us`: since when it has been asked to give
    something up. `watched_us`: when its end is
    looked at next.
    """

    __slots__ = ("beat", "owned", "revoking_us", "seen_us", "watched_us")

    def __init__(self, seen_us: int) -> None:
        self.seen_us = seen_us
        self.beat = -1
        self.owned: frozenset[TopicPartition] | None = None
        self.revoking_us: int | None = None
        self.watched_us: int | None = None


class Group:
    __slots__ = (
        "_topic_counts",
        "blocked",
        "due_us",
        "freed",
        "header",
        "holders",
        "instances",
        "lives",
        "members",
        "name",
        "noted_us",
        "observed",
        "offsets",
        "reports",
        "standings",
        "target_epoch",
        "targets",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        # Rows.
        self.header: GroupRow | None = None
        self.members: dict[bytes, Member] = {}
        self.targets: dict[bytes, Target] = {}
        self.standings: dict[bytes, Standing] = {}
        self.target_epoch = 0
        self.offsets = Offsets(name)
        self.observed: dict[bytes, Observed] = {}
        # What follows from them; kept from `index` on.
        self.holders: dict[TopicPartition, bytes] = {}
        self.instances: dict[str, bytes] = {}
        self._topic_counts: Counter[str] = Counter()
        # What this coordinator has seen.
        self.lives: dict[bytes, Live] = {}
        self.due_us: int | None = None
        self.noted_us: int | None = None
        # A partition that a member waits for; members whose partition has become free.
        self.blocked: dict[TopicPartition, bytes] = {}
        self.freed: dict[bytes, None] = {}
        # The newest of each observer; its row is older.
        self.reports: dict[bytes, Observed] = {}

    # --- rows ----------------------------------------------------------------------------------
    def put(self, record: Record) -> Value | None:
        """Take a row; return the value that it replaces."""
        kind, value = record.kind, record.value
        match kind:
            case Kind.GROUP:
                assert value is None or isinstance(value, GroupRow)
                before: Value | None = self.header
                self.header = value
            case Kind.MEMBER:
                assert value is None or isinstance(value, Member)
                before = self._put_member(record.key, value)
            case Kind.TARGET:
                assert value is None or isinstance(value, Target)
                before = self._put_target(record.key, value)
            case Kind.CURRENT:
                assert value is None or isinstance(value, Current)
                before = self._put_current(record.key, value)
            case Kind.OFFSET:
                assert value is None or isinstance(value, Offset)
                before = self.offsets.put_offset(partition_of(record.key), value)
            case Kind.PENDING:
                assert value is None or isinstance(value, Pending)
                before = self.offsets.put_pending(record.key.decode(), value)
            case Kind.OBSERVED:
                assert value is None or isinstance(value, Observed)
                before = _put(self.observed, record.key, value)
            case _:
                raise AssertionError(f"{kind.name} is no row of a group")
        return before

    def _put_member(self, member_id: bytes, value: Member | None) -> Member | None:
        before = _put(self.members, member_id, value)
        if before is not None:
            for name in before.topics:
                self._topic_counts[name] -= 1
                if not self._topic_counts[name]:
                    del self._topic_counts[name]
            if self.instances.get(before.instance_id) == member_id:
                del self.instances[before.instance_id]
        if value is not None:
            self._topic_counts.update(value.topics)
            if value.instance_id:
                self.instances[value.instance_id] = member_id
        return before

    def _put_target(self, member_id: bytes, value: Target | None) -> Target | None:
        if member_id:
            return _put(self.targets, member_id, value)
        before = self.target_epoch
        self.target_epoch = 0 if value is None else value.epoch
        # Each member takes the target's epoch, also where its partitions stay.
        self.freed.update(dict.fromkeys(self.members))
        return Target(before) if before else None

    def _put_current(self, member_id: bytes, value: Current | None) -> Current | None:
        standing = None if value is None else unpack(value)
        before = _put(self.standings, member_id, standing)
        if before is not None:
            for one in (*before.assigned, *before.revoking):
                # In a replay a snapshot may bring the next holder first: see `index`.
                if self.holders.get(one) == member_id and not (standing and standing.has(one)):
                    del self.holders[one]
                    waiting = self.blocked.pop(one, None)
                    if waiting is not None:
                        self.freed[waiting] = None
        if standing is not None:
            for one in (*standing.assigned, *standing.revoking):
                self.holders[one] = member_id
        return None if before is None else pack(before)

    def index(self) -> None:
        """Find anew who holds what: rows of a replay come in an order of their own."""
        self.holders = {}
        for member_id, standing in self.standings.items():
            for one in (*standing.assigned, *standing.revoking):
                assert one not in self.holders, "two members hold a partition"
                self.holders[one] = member_id
        self.blocked.clear()
        self.freed.clear()

    def rows(self) -> Iterator[Record]:
        """Yield all rows; some may be newer than the first."""
        if self.header is not None:
            yield Record(Kind.GROUP, self.name, b"", self.header)
        for key, member in list(self.members.items()):
            yield Record(Kind.MEMBER, self.name, key, member)
        for key, target in list(self.targets.items()):
            yield Record(Kind.TARGET, self.name, key, target)
        for key, standing in list(self.standings.items()):
            yield Record(Kind.CURRENT, self.name, key, pack(standing))
        if self.target_epoch:
            yield Record(Kind.TARGET, self.name, b"", Target(self.target_epoch))
        yield from self.offsets.rows()
        for key, observed in list(self.observed.items()):
            yield Record(Kind.OBSERVED, self.name, key, observed)

    # --- states --------------------------------------------------------------------------------
    @property
    def epoch(self) -> int:
        return 0 if self.header is None else self.header.epoch

    @property
    def is_behind(self) -> bool:
        """Whether a target is to be computed, also where rows that belong together were stored in
        part: an append that fails may leave the first of them."""
        if not self.members:
            return False
        return self.target_epoch < self.epoch or self.targets.keys() != self.members.keys()

    @property
    def is_blank(self) -> bool:
        """Whether there is no row of it."""
        return (
            self.header is None
            and not (self.members or self.targets or self.standings or self.observed)
            and not (self.offsets.committed or self.offsets.pending or self.target_epoch)
        )

    @property
    def is_observer(self) -> bool:
        return self.header is not None and self.header.group_type is GroupType.OBSERVER

    def state(self) -> GroupState:
        if self.header is None:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.target_epoch < self.epoch:
            return GroupState.ASSIGNING
        if all(self._is_at_target(member_id) for member_id in self.members):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def member_state(self, member_id: bytes) -> MemberState:
        standing = self.standings.get(member_id)
        if standing is None:
            return MemberState.JOINING
        return state_of(standing, self.target_of(member_id), self.target_epoch)

    def target_of(self, member_id: bytes) -> frozenset[TopicPartition] | None:
        target = self.targets.get(member_id)
        return None if target is None else unpacked_shares(target.shares)

    def _is_at_target(self, member_id: bytes) -> bool:
        standing = self.standings.get(member_id)
        return (
            standing is not None
            and standing.epoch == self.target_epoch
            and self.member_state(member_id) is MemberState.STABLE
        )

    def topic_names(self) -> Collection[str]:
        return self._topic_counts.keys()

    def subscribes_to_any(self, names: Iterable[str]) -> bool:
        return any(name in self._topic_counts for name in names)

    # --- heartbeats ----------------------------------------------------------------------------
    def heartbeat(self, beat: Heartbeat, topics: Topics, now: Now) -> Answer:
        """Raises UnknownMember, FencedMemberEpoch, FencedInstance, UnsupportedAssignor, GroupFull,
        ThrottledBroker, InvalidRequest."""
        member = self.members.get(beat.member_id)
        if beat.epoch in (LEAVES, LEAVES_FOR_A_WHILE):
            return self._leave(beat, member, topics, now)
        if member is None or (member.is_away and beat.epoch == JOINS):
            if beat.epoch != JOINS:
                raise UnknownMember(
                    f"{self.name!r} has no member {beat.member_id.hex()}: it was silent for too"
                    " long, did not give up partitions in time, or has left."
                )
            return self._join(beat, topics, now)
        self._check_newer(beat, member)
        self._check_assignor(beat)
        live = self._seen(beat.member_id, now)
        if beat.beat == self._newest_beat(beat.member_id, member):
            return self._answer([], beat.member_id, self._standing(beat.member_id), live)
        if member.is_away:
            raise FencedMemberEpoch(f"{member.instance_id!r} has left for a while: join with 0.")
        return self._go_on(beat, member, live, topics, now)

    def _go_on(
        self, beat: Heartbeat, member: Member, live: Live, topics: Topics, now: Now
    ) -> Answer:
        member_id, owned = beat.member_id, beat.owned
        standing = self._standing(member_id)
        # A member that is in may ask for all that it has; nothing is taken from it.
        asks_again = beat.epoch == JOINS and standing.epoch != JOINS
        if not asks_again:
            asks_again = check_epoch(standing, beat.epoch, owned)
        # Also where what follows is not stored: the member's next one has a larger number.
        live.beat = beat.beat
        records = self._subscribed(beat, member, topics, now)
        if asks_again:
            live.owned = None if owned is None else frozenset(filter(standing.has, owned))
            if standing.revoking and owned is not None and owned.isdisjoint(standing.revoking):
                standing = standing._replace(revoking={}, beat=beat.beat)
                live.revoking_us = None
                records.append(self._current(member_id, standing))
            return self._answer(records, member_id, standing, live, names_all=True)
        note = ""
        if owned is not None:
            strange = [one for one in owned if not standing.has(one)]
            note = f"{len(strange)} partitions that it was not given" if strange else ""
            live.owned = owned.difference(strange)
        # "As before" is the last report here: of all that came after it a member sends a new one.
        after = self._advance(member_id, standing, live, now, live.owned)
        if after is not standing:
            records.append(self._current(member_id, after))
        is_news = after.epoch != beat.epoch
        return self._answer(records, member_id, after, live, is_news=is_news, note=note)

    def wake(self, member_id: bytes, now: Now) -> Answer | None:
        """Answer the heartbeat that was held back; None where the member is gone."""
        standing, live = self.standings.get(member_id), self.lives.get(member_id)
        if standing is None or live is None:
            return None
        after = self._advance(member_id, standing, live, now, None)
        records = [] if after is standing else [self._current(member_id, after)]
        is_news = after.epoch != standing.epoch
        return self._answer(records, member_id, after, live, is_news=is_news)

    def _advance(
        self,
        member_id: bytes,
        standing: Standing,
        live: Live,
        now: Now,
        owned: frozenset[TopicPartition] | None,
    ) -> Standing:
        row = self.targets.get(member_id)
        # Of a target that was stored in part a later coordinator computes the whole.
        if row is None or row.epoch > self.target_epoch:
            return standing
        target = unpacked_shares(row.shares)
        beat = max(live.beat, standing.beat)
        after = advance(
            member_id, standing, target, self.target_epoch, self.holders, beat=beat, owned=owned
        )
        result = standing if after is None else after
        if not result.revoking:
            live.revoking_us = None
        elif live.revoking_us is None or result is not standing:
            live.revoking_us = now.mono_us
        for one in target if not result.revoking else ():
            if one not in result.assigned:
                self.blocked[one] = member_id
        return result

    def _answer(
        self,
        records: list[Record],
        member_id: bytes,
        standing: Standing,
        live: Live,
        *,
        is_news: bool = True,
        names_all: bool = False,
        note: str = "",
    ) -> Answer:
        # While something is to be given up each answer asks for a report.
        is_known = not standing.revoking and live.owned == standing.assigned.keys()
        is_known &= not names_all
        if not is_known and standing.assigned and standing.beat < live.beat:
            # After a failover, too, a repetition of this heartbeat is known to be from before.
            standing = standing._replace(beat=live.beat)
            records.append(self._current(member_id, standing))
        assignment = None if is_known else packed_shares(standing.assigned)
        return Answer(
            records,
            standing.epoch,
            assignment,
            self.interval_ms(member_id, standing),
            may_wait=is_known and not is_news,
            note=note,
        )

    def interval_ms(self, member_id: bytes, standing: Standing) -> int:
        """Return how long a member may wait before its next heartbeat."""
        member = self.members.get(member_id)
        timeout_ms = (
            GROUP_SESSION_TIMEOUT_MS_DEFAULT if member is None else member.session_timeout_ms
        )
        is_settled = standing.epoch == self.target_epoch == self.epoch and not standing.revoking
        target = self.targets.get(member_id)
        if is_settled and target is not None:
            is_settled = len(standing.assigned) == sum(len(one.partitions) for one in target.shares)
        return min(timeout_ms // 3, GROUP_HEARTBEAT_MS_MAX) if is_settled else BEAT_MS_MIN

    def _standing(self, member_id: bytes) -> Standing:
        return self.standings.get(member_id) or Standing(0, 0, -1, {}, {})

    def _current(self, member_id: bytes, standing: Standing) -> Record:
        return Record(Kind.CURRENT, self.name, member_id, pack(standing))

    def _seen(self, member_id: bytes, now: Now) -> Live:
        live = self.lives.get(member_id)
        if live is None:
            live = self.lives[member_id] = Live(now.mono_us)
        live.seen_us = now.mono_us
        return live

    def _newest_beat(self, member_id: bytes, member: Member) -> int:
        live = self.lives.get(member_id)
        seen = -1 if live is None else live.beat
        return max(seen, member.beat, self._standing(member_id).beat)

    def _check_newer(self, beat: Heartbeat, member: Member) -> None:
        newest = self._newest_beat(beat.member_id, member)
        if beat.beat < newest:
            raise ThrottledBroker(f"heartbeat {beat.beat} comes after {newest}.")

    # --- joining and leaving -------------------------------------------------------------------
    def _join(self, beat: Heartbeat, topics: Topics, now: Now) -> Answer:
        if beat.topics is None:
            raise InvalidRequest("the first heartbeat of a member names its topics.")
        self._check_assignor(beat)
        old_id = self.instances.get(beat.instance_id) if beat.instance_id else None
        if old_id is not None:
            # Its partitions wait for it: no other assignment changes.
            return self._return(beat, old_id, topics, now)
        if len(self.members) >= GROUP_MEMBERS_MAX:
            raise GroupFull(f"{self.name!r} has {GROUP_MEMBERS_MAX:,} members, the most.")
        # The epoch first, in all such lists: of what is stored in part, the epoch shows it.
        records = [
            self._grown(topics, now, beat=beat),
            Record(Kind.MEMBER, self.name, beat.member_id, _member(beat, None)),
            self._current(beat.member_id, Standing(0, 0, beat.beat, {}, {})),
        ]
        live = self._seen(beat.member_id, now)
        live.beat = beat.beat
        return Answer(records, JOINS, (), BEAT_MS_MIN)

    def _return(self, beat: Heartbeat, old_id: bytes, topics: Topics, now: Now) -> Answer:
        """A static member is back and has what it had."""
        old = self.members[old_id]
        if not old.is_away:
            raise FencedInstance(
                f"{beat.instance_id!r} is in {self.name!r} as member {old_id.hex()} (client"
                f" {old.client_id!r})."
            )
        member_id = beat.member_id
        standing = self._standing(old_id)
        if old_id == member_id and beat.beat <= self._newest_beat(old_id, old):
            raise ThrottledBroker(f"heartbeat {beat.beat} comes late.")
        # Its answer may be lost: then it joins with 0 again.
        back = standing._replace(previous_epoch=0, beat=beat.beat, revoking={})
        member = _member(beat, old)
        records = [
            Record(Kind.MEMBER, self.name, member_id, member),
            self._current(member_id, back),
        ]
        if old_id != member_id:
            # First no member has the partitions, and the old one goes last: wherever these end, a
            # later coordinator finds a member that it can fence, or a target without a member.
            freed, *rest = self._removed(old_id)
            target = self.targets.get(old_id)
            moved = [] if target is None else [Record(Kind.TARGET, self.name, member_id, target)]
            records = [freed, *moved, *records, *rest]
        if member.topics != old.topics:
            records.insert(0, self._grown(topics, now, beat=beat, without=[old_id]))
        self.lives.pop(old_id, None)
        live = self._seen(member_id, now)
        live.beat = beat.beat
        return Answer(records, back.epoch, packed_shares(back.assigned), BEAT_MS_MIN)

    def _leave(self, beat: Heartbeat, member: Member | None, topics: Topics, now: Now) -> Answer:
        # Repeated: the answer was lost.
        if member is None or (member.is_away and beat.epoch == LEAVES_FOR_A_WHILE):
            return Answer([], beat.epoch)
        self._check_newer(beat, member)
        if beat.epoch == LEAVES:
            return Answer(self.remove([beat.member_id], topics, now), LEAVES)
        if not member.instance_id:
            raise InvalidRequest("only a member with an instance id leaves for a while (-2).")
        away = replace(member, is_away=True, beat=beat.beat)
        standing = self._standing(beat.member_id)
        records = [Record(Kind.MEMBER, self.name, beat.member_id, away)]
        if standing.revoking:
            # It has stopped: nothing is left to give up.
            given_up = standing._replace(beat=beat.beat, revoking={})
            records.append(self._current(beat.member_id, given_up))
        live = self._seen(beat.member_id, now)
        live.beat, live.revoking_us = beat.beat, None
        return Answer(records, LEAVES_FOR_A_WHILE)

    def remove(self, member_ids: Collection[bytes], topics: Topics, now: Now) -> list[Record]:
        """Return the records of members that have left or are fenced."""
        records = [record for one in member_ids for record in self._removed(one)]
        return [self._grown(topics, now, without=member_ids), *records]

    def _removed(self, member_id: bytes) -> list[Record]:
        # The member last: of what is stored in part, a later coordinator removes the rest.
        kinds = Kind.CURRENT, Kind.TARGET, Kind.MEMBER
        return [Record(kind, self.name, member_id) for kind in kinds]

    def _subscribed(
        self, beat: Heartbeat, member: Member, topics: Topics, now: Now
    ) -> list[Record]:
        after = _member(beat, member)
        # Most heartbeats bring nothing: they leave no row.
        if replace(after, beat=member.beat) == member:
            return []
        records = [Record(Kind.MEMBER, self.name, beat.member_id, after)]
        if after.topics != member.topics:
            records.insert(0, self._grown(topics, now, beat=beat))
        return records

    def _check_assignor(self, beat: Heartbeat) -> None:
        if not beat.assignor:
            return
        if beat.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(f"there is no assignor {beat.assignor!r}.")
        if self.members and self.header is not None and beat.assignor != self.header.assignor:
            raise UnsupportedAssignor(
                f"the members of {self.name!r} take {self.header.assignor!r}, not"
                f" {beat.assignor!r}."
            )

    # --- epochs and targets --------------------------------------------------------------------
    def _grown(
        self,
        topics: Topics,
        now: Now,
        *,
        beat: Heartbeat | None = None,
        without: Collection[bytes] = (),
    ) -> Record:
        """Return the next epoch; its target is due. `beat`: of a member whose topics are new."""
        gone = set(without)
        names: set[str] = set()
        if beat is not None:
            gone.add(beat.member_id)
            names.update(beat.topics or ())
        less = Counter(
            name for one in gone & self.members.keys() for name in self.members[one].topics
        )
        names.update(name for name, count in self._topic_counts.items() if count > less[name])
        is_empty = beat is None and self.members.keys() <= gone
        assignor = UNIFORM if self.header is None else self.header.assignor
        if beat is not None and beat.assignor:
            assignor = beat.assignor
        self.target_due(now.mono_us + TARGET_DELAY_MS * 1000)
        row = GroupRow(
            GroupType.CONSUMER,
            self.epoch + 1,
            assignor,
            _digest(names, topics),
            now.wall_us if is_empty else 0,
        )
        return Record(Kind.GROUP, self.name, b"", row)

    def target_due(self, at_us: int) -> None:
        if self.due_us is None or at_us < self.due_us:
            self.due_us = at_us

    def topics_changed(self, topics: Topics, now: Now, *, is_forced: bool = False) -> list[Record]:
        """Return the next epoch where partitions of a subscribed topic have come or gone."""
        if self.header is None or not self.members:
            return []
        is_same = _digest(self._topic_counts, topics) == self.header.topics
        return [] if is_same and not is_forced else [self._grown(topics, now)]

    # --- commits -------------------------------------------------------------------------------
    def committer(self, member_id: bytes, epoch: int) -> Check:
        """Return the check of a commit by a member, or without one. Raises UnknownMember,
        GroupNotEmpty."""
        if not member_id:
            if self.members:
                raise GroupNotEmpty(
                    f"{self.name!r} has {len(self.members)} members: offsets are committed by them."
                )
            return _no_error
        if member_id not in self.members:
            raise UnknownMember(f"{self.name!r} has no member {member_id.hex()}.")
        standing = self._standing(member_id)

        def check(partition: TopicPartition) -> QuiverlogError | None:
            given = standing.assigned.get(partition, standing.revoking.get(partition))
            # Its epoch may just have been raised: what it kept all the time is its own.
            if given is not None and given <= epoch <= standing.epoch:
                return None
            return FencedMemberEpoch(_not_its_own(partition, given, epoch, standing))

        return check

    def unheld(self, partition: TopicPartition) -> QuiverlogError | None:
        """Return why the offset of a partition is not to be set by command."""
        holder = self.holders.get(partition)
        if holder is None:
            return None
        member = self.members.get(holder)
        client = "" if member is None else f" (client {member.client_id!r}, {member.host})"
        return GroupNotEmpty(
            f"partition {partition[1]} is read by member {holder.hex()}{client} of {self.name!r}."
        )


def _put(rows: dict[_K, _V], key: _K, value: _V | None) -> _V | None:
    before = rows.pop(key, None)
    if value is not None:
        rows[key] = value
    return before


def _digest(names: Iterable[str], topics: Topics) -> bytes:
    """Of the partitions that there are of these topics."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(names):
        found = topics.find(name)
        if found is not None:
            digest.update(found[0] + found[1].to_bytes(4, "big"))
    return digest.digest()


def _member(beat: Heartbeat, before: Member | None) -> Member:
    """Return the member's row, of a request and of what it leaves as it was."""
    if before is None:
        before = Member(
            (),
            "",
            "",
            "",
            "",
            GROUP_SESSION_TIMEOUT_MS_DEFAULT,
            GROUP_REBALANCE_TIMEOUT_MS_DEFAULT,
            -1,
        )
    session_ms, rebalance_ms = beat.session_timeout_ms, beat.rebalance_timeout_ms
    return Member(
        before.topics if beat.topics is None else beat.topics,
        beat.rack or before.rack,
        beat.instance_id or before.instance_id,
        beat.client_id or before.client_id,
        beat.host or before.host,
        before.session_timeout_ms if session_ms == -1 else session_ms,
        before.rebalance_timeout_ms if rebalance_ms == -1 else rebalance_ms,
        beat.beat,
    )


def _no_error(_partition: TopicPartition) -> None:
    return None


def _not_its_own(
    partition: TopicPartition, given: int | None, epoch: int, standing: Standing
) -> str:
    if given is None:
        return f"partition {partition[1]} is not assigned to the member."
    return (
        f"partition {partition[1]} was assigned in epoch {given}, and the member is at"
        f" {standing.epoch}: epoch {epoch} is not between them."
    )
