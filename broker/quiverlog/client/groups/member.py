"""A member of a group: what it has, what it gives up, and what it commits. No I/O, no clock.

- `owned` is what the coordinator must not give to others: a partition comes into it with the answer
  that assigns it, and leaves it when its rows in hand are finished, committed and dropped, which
  the consumer reports by `revoked`. `reading` is what the program has of it.
- A member that was fenced is LOST: it sends no heartbeat before `on_lost` has returned.
- A row counts as processed when the program asks for the next batch, or by `done`; nothing else is
  committed. One commit is under way at a time, so that none overtakes a later one.
- A program that does not come back in time leaves the group, and gets the error at its next step.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quiverlog.client.consumer.positions import PartitionKey
from quiverlog.errors import (
    ClientClosed,
    FencedMemberEpoch,
    InvalidArgument,
    ProcessingTimedOut,
    QuiverlogError,
    UnknownMember,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.limits import (
    GROUP_REBALANCE_TIMEOUT_MS_DEFAULT,
    GROUP_SESSION_TIMEOUT_MS_DEFAULT,
)
from quiverlog.types import NO_EPOCH
from quiverlog.wire import group_messages as g

__all__ = ["Change", "GroupMember", "MemberOptions", "Phase", "Progress"]

COMMIT_EVERY_S = 1.0
_LEAVES = -1
_LEAVES_FOR_A_WHILE = -2
_BEAT_S = 0.25


class Phase(enum.Enum):
    JOINING = "joining"
    MEMBER = "member"
    LOST = "lost"
    """The coordinator has given the partitions away, and `on_lost` was not called yet."""
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MemberOptions:
    group: str
    instance_id: str = ""
    rack: str = ""
    assignor: str = ""
    session_timeout_ms: int = GROUP_SESSION_TIMEOUT_MS_DEFAULT
    rebalance_timeout_ms: int = GROUP_REBALANCE_TIMEOUT_MS_DEFAULT
    processing_timeout_s: float = math.inf
    # Rows that are processed are committed every second; else on request only.
    commits_processed: bool = True


class Progress(NamedTuple):
    """The offset after the last row that is processed, and the leader epoch of that row."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


class Change(NamedTuple):
    """What the consumer does between two batches; one of the three.

    `loss`: why, where the program is to get an error besides `on_lost`.
    """

    lost: Mapping[PartitionKey, str] | None = None
    loss: QuiverlogError | None = None
    revoked: Mapping[PartitionKey, str] | None = None
    added: Mapping[PartitionKey, str] | None = None


class GroupMember:
    def __init__(
        self, options: MemberOptions, member_id: bytes, topics: Sequence[str] | None
    ) -> None:
        self.options = options
        self.member_id = member_id
        self.phase = Phase.JOINING
        self.epoch = 0
        # Key -> the topic's name.
        self.assignment: dict[PartitionKey, str] = {}
        self.owned: dict[PartitionKey, str] = {}
        self.reading: dict[PartitionKey, str] = {}
        # Grows when all is lost: offsets that were fetched before are not those to begin at.
        self.losses = 0
        # Ends the membership for good.
        self.failure: QuiverlogError | None = None
        # Why the last commit, or a part of it, was not taken.
        self.commit_failure: QuiverlogError | None = None
        self.processed: dict[PartitionKey, Progress] = {}
        self.committed: dict[PartitionKey, Progress] = {}
        self.to_commit: dict[PartitionKey, Progress] = {}
        self._topics = None if topics is None else list(topics)
        self._sends_topics = True
        self._beat = 0
        self._beat_due_s = -math.inf
        self._interval_s = _BEAT_S
        self._beat_sent_s = self._beat_begun_s = 0.0
        # When the last heartbeat was sent that was answered: the session counts from then on.
        self._confirmed_s = -math.inf
        # The first that was sent since; by when partitions must be given up that the
        # coordinator may have asked for.
        self._unanswered_s: float | None = None
        self._revoke_by_s = math.inf
        self._beat_in_flight: g.GroupHeartbeatRequest | None = None
        # It was sent before all was lost: its answer is not about what came after.
        self._stale_beat: g.GroupHeartbeatRequest | None = None
        # An answer was lost: the same heartbeat is sent again.
        self._repeated: g.GroupHeartbeatRequest | None = None
        # What the coordinator has received of `owned`, for certain.
        self._reported: frozenset[PartitionKey] | None = None
        self._leave_epoch = _LEAVES
        self._leaves = False
        self._lost: Mapping[PartitionKey, str] = {}
        self._loss: QuiverlogError | None = None
        self._in_hand: tuple[PartitionKey, Progress] | None = None
        self._program_since_s: float | None = None
        self._commit_in_flight: dict[PartitionKey, Progress] | None = None
        # It was sent before all was lost. The member joins anew when it has arrived: else it could
        # count for what the member gets then, and set back what it commits.
        self._has_stale_commit = False
        self._commit_due_s = -math.inf

    # --- what the program does ------------------------------------------------------------------
    def change(self) -> Change | None:
        """Return what is to be done before the next batch. Raises what ends the membership."""
        if self.phase is Phase.LOST:
            return Change(lost=self._lost, loss=self._loss)
        if self.failure is not None:
            raise self.failure
        if self.owned == self.assignment and self.owned == self.reading:
            return None  # As before nearly every batch.
        revoked = {key: name for key, name in self.owned.items() if key not in self.assignment}
        if revoked:
            return Change(revoked=revoked)
        added = {key: name for key, name in self.owned.items() if key not in self.reading}
        return Change(added=added) if added else None

    def taken(self, keys: Mapping[PartitionKey, str]) -> None:
        """The consumer reads these; one that was revoked meanwhile only until the next step."""
        assert self.phase is Phase.MEMBER
        assert keys.keys() <= self.owned.keys(), "no other member has it"
        self.reading = {**self.reading, **keys}

    def revoked(self, keys: Collection[PartitionKey]) -> None:
        """The rows of these partitions are finished, committed and dropped."""
        if self.phase is Phase.LOST:
            return
        assert not any(key in self.to_commit for key in keys) or self.commit_failure is not None
        self.owned = {key: name for key, name in self.owned.items() if key not in keys}
        self.reading = {key: name for key, name in self.reading.items() if key not in keys}
        for key in keys:
            for offsets in (self.processed, self.to_commit, self.committed):
                offsets.pop(key, None)
        self._beat_due_s = -math.inf

    def lost_over(self) -> None:
        """`on_lost` has returned: the member joins anew, unless it has failed for good."""
        assert self.phase is Phase.LOST
        self._lost, self._loss = {}, None
        self._leaves = False
        if self.failure is not None:
            self.phase = Phase.GONE
        else:
            self._rejoin()

    def _rejoin(self) -> None:
        self.phase = Phase.JOINING
        self.epoch = 0
        self._sends_topics = True
        self._reported = self._repeated = None
        self._beat_due_s = -math.inf

    def hand_out(self, key: PartitionKey, progress: Progress, now_s: float) -> bool:
        """The program gets rows before `progress`; False: they are not the member's any more."""
        self.look_at_program(now_s)
        if self.phase is not Phase.MEMBER or key not in self.reading:
            return False
        self._in_hand = key, progress
        self._program_since_s = now_s
        return True

    def program_began(self, now_s: float) -> None:
        """A callback of the program runs."""
        self._program_since_s = now_s

    def came_back(self) -> None:
        """The program asks for the next batch: the one before is processed."""
        in_hand, self._in_hand = self._in_hand, None
        self._program_since_s = None
        if in_hand is not None:
            self._process(*in_hand)

    def interrupted_batch(self) -> None:
        """The batch did not reach the program, or the program ended with an error in it."""
        self._in_hand = self._program_since_s = None

    def done(self, key: PartitionKey, progress: Progress) -> None:
        """The program reports rows as processed."""
        if self._in_hand is not None and self._in_hand[0] == key:
            self._in_hand = None
        self._process(key, progress)

    def _process(self, key: PartitionKey, progress: Progress) -> None:
        # Of a partition that was lost or given up meanwhile another member commits.
        if self.phase is Phase.MEMBER and key in self.reading:
            self.processed[key] = progress
            if self.options.commits_processed and self.committed.get(key) != progress:
                self.to_commit[key] = progress

    def subscribe(self, topics: Sequence[str]) -> None:
        if self._topics != list(topics):
            self._topics = list(topics)
            self._sends_topics = True
            self._beat_due_s = -math.inf

    def leave(self, *, for_a_while: bool) -> None:
        """Send a last heartbeat; partitions are given away with its arrival."""
        if self.phase in (Phase.GONE, Phase.LEAVING):
            return
        if self.phase is Phase.JOINING and self._beat == 0:
            self.phase = Phase.GONE
            return
        is_static = bool(self.options.instance_id)
        self._leave_epoch = _LEAVES_FOR_A_WHILE if for_a_while and is_static else _LEAVES
        self.phase = Phase.LEAVING
        self._repeated, self._beat_due_s = None, -math.inf

    # --- heartbeats -----------------------------------------------------------------------------
    @property
    def is_over(self) -> bool:
        """No heartbeat will be sent any more."""
        return self.phase is Phase.GONE

    def next_beat(self, now_s: float) -> g.GroupHeartbeatRequest | None:
        """Return the heartbeat that is due; None: ask again at `beat_due_s`."""
        self.look_at_program(now_s)
        if self._beat_in_flight is not None:
            return None
        if self.phase is Phase.LOST:
            if not self._leaves:
                return None
            self._leaves = False
            return self._sent(self._bare(_LEAVES), now_s)
        if self.phase is Phase.GONE or now_s < self._beat_due_s or self._topics is None:
            return None
        if self._has_stale_commit and self.phase is Phase.JOINING:
            return None
        if self.phase is Phase.LEAVING:
            return self._sent(self._bare(self._leave_epoch), now_s)
        if self._repeated is not None:
            return self._sent(self._repeated, now_s)
        return self._sent(self._next(), now_s)

    def beat_due_s(self, now_s: float) -> float:
        ends = [self.program_due_s]
        if self.phase is not Phase.LOST and self._beat_in_flight is None:
            waits = self._topics is None or self._has_stale_commit
            ends.append(math.inf if waits else self._beat_due_s)
        return max(min(ends), now_s)

    @property
    def program_due_s(self) -> float:
        if self.phase is not Phase.MEMBER:
            return math.inf
        session_s = self.options.session_timeout_ms / 1000
        end_s = min(self._confirmed_s + session_s, self._revoke_by_s)
        if self._program_since_s is None:
            return end_s
        return min(end_s, self._program_since_s + self.options.processing_timeout_s)

    def look_at_program(self, now_s: float) -> None:
        if self.phase is not Phase.MEMBER or now_s < self.program_due_s:
            return
        since_s, limit_s = self._program_since_s, self.options.processing_timeout_s
        if since_s is None or now_s - since_s < limit_s:
            # No heartbeat was answered for a session, or partitions were not given up in time: by
            # now others may have them.
            self._lose(None)
            return
        self._leaves = True
        self._lose(
            ProcessingTimedOut(
                f"The program did not ask for the next batch of group {self.options.group!r} for "
                f"{limit_s:g} s, and has lost its partitions."
            )
        )

    def _bare(self, epoch: int) -> g.GroupHeartbeatRequest:
        self._beat += 1
        return g.GroupHeartbeatRequest(
            group=self.options.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.options.instance_id,
            beat=self._beat,
        )

    def _next(self) -> g.GroupHeartbeatRequest:
        options, request = self.options, self._bare(self.epoch)
        if self.epoch == 0 or self._sends_topics:
            request.topics = self._topics
        if self.epoch == 0:
            request.rack, request.assignor = options.rack, options.assignor
            request.session_timeout_ms = options.session_timeout_ms
            request.rebalance_timeout_ms = options.rebalance_timeout_ms
        if self.epoch == 0 or self._reported != self.owned.keys():
            request.owned = _by_topic(self.owned)
        if self.epoch:  # A member that joins is answered at once.
            request.max_wait_ms = round(self._interval_s * 1000)
        self._sends_topics = False
        return request

    def _sent(self, request: g.GroupHeartbeatRequest, now_s: float) -> g.GroupHeartbeatRequest:
        assert self._beat_in_flight is None, "one heartbeat at a time"
        if request is not self._repeated:
            # Its answer may be that to the first try: the session counts from there.
            self._beat_begun_s = now_s
        self._beat_in_flight, self._repeated = request, None
        # What comes while it is in flight makes the next one due at once.
        self._beat_sent_s, self._beat_due_s = now_s, math.inf
        if self._unanswered_s is None:
            self._unanswered_s = now_s
        return request

    @property
    def interrupts(self) -> bool:
        """A heartbeat is held back by the coordinator, and there is news for it."""
        held = self._beat_in_flight
        if held is None or not held.max_wait_ms:
            return False
        return self._beat_due_s == -math.inf or self._leaves or self.phase is Phase.LEAVING

    def interrupted(self) -> None:
        """The answer of the heartbeat in flight is not waited for: all is reported again."""
        held, self._beat_in_flight = self._beat_in_flight, None
        assert held is not None
        self._sends_topics = self._sends_topics or held.topics is not None
        self._reported = None

    def answered(
        self,
        request: g.GroupHeartbeatRequest,
        response: g.GroupHeartbeatResponse,
        now_s: float,
    ) -> None:
        assert request is self._beat_in_flight
        self._beat_in_flight = None
        if request.member_epoch < 0:
            if self.phase is Phase.LEAVING:
                self.phase = Phase.GONE
            return
        if request is self._stale_beat or self.phase not in (Phase.JOINING, Phase.MEMBER):
            return
        self._confirmed_s = self._beat_begun_s
        epoch_before, self.epoch = self.epoch, response.member_epoch
        if self.epoch:
            self.phase = Phase.MEMBER
        if response.assignment is not None:
            self.assignment = {
                (one.topic_id, number): one.name
                for one in response.assignment
                for number in one.partitions
            }
            self.owned = {**self.owned, **self.assignment}
        if request.owned is not None:
            self._reported = frozenset(_keys(request.owned))
        self._note_revoked()
        self._unanswered_s = None
        self._interval_s = max(_BEAT_S, response.heartbeat_interval_ms / 1000)
        is_known = self._reported == self.owned.keys() and self.epoch == epoch_before
        due_s = self._beat_sent_s + self._interval_s if is_known or not self.epoch else now_s
        self._beat_due_s = min(self._beat_due_s, due_s)

    def _note_revoked(self) -> None:
        """Note by when the coordinator fences a member that does not give up what it must."""
        is_told = self.epoch == 0 or self._reported == self.owned.keys()
        if self.owned.keys() <= self.assignment.keys():
            self._revoke_by_s = math.inf if is_told else self._revoke_by_s
        elif self._revoke_by_s == math.inf:
            assert self._unanswered_s is not None
            rebalance_s = self.options.rebalance_timeout_ms / 1000
            self._revoke_by_s = self._unanswered_s + rebalance_s

    def failed(
        self, request: g.GroupHeartbeatRequest, error: QuiverlogError, retry_s: float, now_s: float
    ) -> None:
        """Args: retry_s: after which time one that may pass is tried again."""
        assert request is self._beat_in_flight
        self._beat_in_flight = None
        if request.member_epoch < 0:
            # The session's end does the same.
            if self.phase is Phase.LEAVING:
                self.phase = Phase.GONE
            return
        if request is self._stale_beat or self.phase not in (Phase.JOINING, Phase.MEMBER):
            return
        if isinstance(error, (UnknownMember, FencedMemberEpoch)):
            self._lose(None)
        elif error.retriable:
            self._repeated, self._beat_due_s = request, now_s + retry_s
        else:
            self.fail(error)

    def fail(self, error: QuiverlogError) -> None:
        """End the membership for good; the program gets the error after `on_lost`."""
        self.failure = error
        if self.phase is not Phase.GONE:
            self._lose(error)

    def _lose(self, loss: QuiverlogError | None) -> None:
        if self.reading or loss is not None:
            self.phase, self._lost, self._loss = Phase.LOST, self.reading, loss
        else:  # The program has had nothing.
            self._rejoin()
        self.owned, self.assignment, self.reading = {}, {}, {}
        self.processed, self.to_commit, self.committed = {}, {}, {}
        self._in_hand = self._program_since_s = None
        self.losses += 1
        self._stale_beat = self._beat_in_flight
        self._has_stale_commit = self._commit_in_flight is not None
        self._repeated = self._reported = self._unanswered_s = None
        self._revoke_by_s = math.inf

    # --- commits --------------------------------------------------------------------------------
    def ask_commit(self, offsets: Mapping[PartitionKey, Progress] | None = None) -> None:
        """Commit what is processed, or a choice, as soon as possible.

        Raises InvalidArgument: a partition is not the member's.
        """
        chosen = self.processed if offsets is None else offsets
        strange = [key for key in chosen if key not in self.reading]
        if strange and offsets is not None:
            raise InvalidArgument(
                f"commit: {len(strange)} of the partitions are not assigned to this member, the "
                f"first is number {strange[0][1]}; `assignment` has those that are."
            )
        self.to_commit |= {key: at for key, at in chosen.items() if self.committed.get(key) != at}
        self.commit_failure = None
        self._commit_due_s = -math.inf

    @property
    def has_committed(self) -> bool:
        """Nothing is left to commit, or it cannot be."""
        return not self.to_commit or self.phase is not Phase.MEMBER or bool(self.commit_failure)

    def next_commit(self, now_s: float) -> g.CommitOffsetsRequest | None:
        if self.phase is not Phase.MEMBER or self._commit_in_flight is not None:
            return None
        self.to_commit = {k: at for k, at in self.to_commit.items() if k in self.owned}
        if not self.to_commit or now_s < self._commit_due_s:
            return None
        self._commit_in_flight = dict(self.to_commit)
        self._commit_due_s = now_s + COMMIT_EVERY_S
        entries = [
            g.CommittedOffset(*key, at.offset, at.leader_epoch, at.metadata)
            for key, at in self._commit_in_flight.items()
        ]
        return g.CommitOffsetsRequest(
            group=self.options.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            entries=entries,
        )

    def commit_due_s(self, now_s: float) -> float:
        is_idle = self._commit_in_flight is None and self.phase is Phase.MEMBER
        if not is_idle or not self.to_commit:
            return math.inf
        return max(self._commit_due_s, now_s)

    def commit_answered(self, response: g.CommitOffsetsResponse, now_s: float) -> None:
        sent, self._commit_in_flight = self._commit_in_flight, None
        assert sent is not None
        if self._has_stale_commit:
            self._has_stale_commit = False
            return
        for one in response.entries:
            key = one.topic_id, one.partition
            if one.error_code:
                error = error_from_code(one.error_code, one.error_message)
                self._refused(key, sent[key], error, now_s)
            elif key in self.owned:
                self.committed[key] = sent[key]
                if self.to_commit.get(key) == sent[key]:
                    del self.to_commit[key]

    def commit_failed(self, error: QuiverlogError, retry_s: float, now_s: float) -> None:
        sent, self._commit_in_flight = self._commit_in_flight, None
        assert sent is not None
        if self._has_stale_commit:
            self._has_stale_commit = False
            return
        for key, at in sent.items():
            self._refused(key, at, error, now_s)
        self._commit_due_s = now_s + retry_s

    def _refused(
        self, key: PartitionKey, at: Progress, error: QuiverlogError, now_s: float
    ) -> None:
        if isinstance(error, (UnknownMember, FencedMemberEpoch)):
            # A heartbeat finds out whether the member is fenced; if not, this is sent again.
            self._beat_due_s = -math.inf
        elif not error.retriable:
            if self.to_commit.get(key) == at:
                del self.to_commit[key]
            # Of a topic that was deleted nothing can be committed.
            if not isinstance(error, UnknownTopicId):
                self.commit_failure = error

    def check_commit(self) -> None:
        """Raise why what was asked for was not committed."""
        if self.commit_failure is not None:
            raise self.commit_failure
        if self.phase in (Phase.LEAVING, Phase.GONE):
            raise ClientClosed(f"This consumer has left group {self.options.group!r}.")
        if self.phase is not Phase.MEMBER:
            raise FencedMemberEpoch(
                f"Group {self.options.group!r} has taken the partitions from this member."
            )


def _by_topic(keys: Iterable[PartitionKey]) -> list[g.TopicPartitions]:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in keys:
        found.setdefault(topic_id, []).append(partition)
    return [g.TopicPartitions(topic_id, sorted(some)) for topic_id, some in found.items()]


def _keys(topics: Iterable[g.TopicPartitions]) -> Iterable[PartitionKey]:
    return ((one.topic_id, number) for one in topics for number in one.partitions)
