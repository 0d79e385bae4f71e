"""A leader's replication: followers' progress, the commit index, heartbeats and check-quorum.

Invariants:
- An entry is committed by count only when it is of the leader's own term; older ones are committed
  with it (paper, section 5.4.2 and figure 8). So a leader begins with an entry of its own.
- This replica counts itself only up to what is durable here, and may commit without itself
  (thesis, section 10.2.1): the others need not wait for the leader's disk.
- A leader without contact to a majority for an election timeout steps down (thesis, section 6.2;
  check-quorum in etcd and KRaft), so that callers do not wait for decisions that cannot come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quiverlog.core.raft.log import LogView
from quiverlog.core.raft.membership import Membership
from quiverlog.core.raft.messages import (
    ENTRY_OVERHEAD_BYTES,
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    ProposalRefused,
    RaftConfig,
    Refusal,
    ReplicaKey,
    TimeoutNow,
    Voters,
)
from quiverlog.core.raft.outbox import Outbox
from quiverlog.core.raft.progress import Progress, ProgressState
from quiverlog.core.raft.quorum import majority, reached_by_majority

__all__ = ["Replication"]

_OBSERVER_TIMEOUTS = 8
"""An observer that is silent for this many election timeouts is dropped; it may ask again."""
_NEVER_US = 1 << 62


@dataclass(slots=True)
class _Transfer:
    target: ReplicaKey
    deadline_us: int
    asked: bool = False


class Replication:
    def __init__(
        self,
        key: ReplicaKey,
        term: int,
        config: RaftConfig,
        log: LogView,
        membership: Membership,
        outbox: Outbox,
        now_us: int,
    ) -> None:
        self._key = key
        self._term = term
        self._config = config
        self._log = log
        self._membership = membership
        self._outbox = outbox
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._transfer: _Transfer | None = None
        self.progress: dict[ReplicaKey, Progress] = {}
        self.lost_entries: dict[ReplicaKey, int] = {}
        self.heartbeat_due_us = now_us
        self.wants_to_send = True
        self.voters_changed(now_us)
        assert len(self.progress) >= len(membership.voters) - 1, "every other voter is followed"

    # --- members -------------------------------------------------------------------------------
    def voters_changed(self, now_us: int) -> None:
        """Add new voters. A removed voter stays as an observer until it is silent: it needs the
        entry that removes it."""
        for voter in self._membership.voters:
            if voter != self._key and voter not in self.progress:
                self._add(voter, now_us)
        self.wants_to_send = True

    def on_observe(self, key: ReplicaKey, now_us: int) -> None:
        known = self.progress.get(key)
        if known is not None and self._membership.is_voter(key):
            known.probe_again()
        elif known is not None and known.transfer is not None:
            known.last_contact_us = now_us
        elif known is not None:
            # It may have restarted with an earlier state of its disk, so its acknowledgements no
            # longer count. Nothing rested on them, as it has no vote.
            self._add(key, now_us)
            assert self.progress[key].match == 0
        elif self._observer_count < self._config.observers_max:
            self._add(key, now_us)
        self.wants_to_send = True

    @property
    def _observer_count(self) -> int:
        return sum(not self._membership.is_voter(key) for key in self.progress)

    def _add(self, key: ReplicaKey, now_us: int) -> None:
        assert key != self._key, "a leader sends itself nothing"
        assert key not in self.progress or not self._membership.is_voter(key)
        self.progress[key] = Progress(key, self._log.last_index + 1, self._config, now_us)

    def _drop_silent_observers(self, now_us: int) -> None:
        silent_us = _OBSERVER_TIMEOUTS * self._config.election_timeout_us
        for key, progress in list(self.progress.items()):
            if (
                not self._membership.is_voter(key)
                and now_us - progress.last_contact_us >= silent_us
            ):
                del self.progress[key]

    def check_caught_up(self, key: ReplicaKey, now_us: int) -> None:
        """Raise ProposalRefused unless the replica may become a voter.

        The next commits might wait for one that lags (thesis, section 4.2.1).
        """
        progress = self.progress.get(key)
        assert progress is None or progress.match <= self._log.last_index
        if (
            progress is None
            or progress.state is not ProgressState.REPLICATE
            or progress.match + self._config.catch_up_entries_max < self._log.last_index
            or progress.match < self._log.commit
            or now_us - progress.last_contact_us >= self._config.election_timeout_us
        ):
            raise ProposalRefused(Refusal.NOT_CAUGHT_UP)

    def is_silent(self, voter: ReplicaKey, now_us: int) -> bool:
        assert voter != self._key, "a leader needs no contact with itself"
        assert self._membership.is_voter(voter)
        # A shorter timeout could call every voter silent between two heartbeats.
        return now_us - self.progress[voter].last_contact_us >= self._config.election_timeout_us

    def check_majority_reachable(self, stay: Voters, now_us: int) -> None:
        """Raise ProposalRefused unless a majority of those voters answers."""
        assert stay.keys() <= self._membership.voters.keys()
        # They alone commit their own set: with too few of them every later decision stays open.
        reachable = sum(key == self._key or not self.is_silent(key, now_us) for key in stay)
        if reachable < majority(len(stay)):
            raise ProposalRefused(Refusal.TOO_FEW_REACHABLE)

    # --- proposals -----------------------------------------------------------------------------
    def check_proposal(self, data: Sequence[bytes]) -> None:
        assert data
        sizes = [len(each) + ENTRY_OVERHEAD_BYTES for each in data]
        if self._transfer is not None:
            raise ProposalRefused(Refusal.TRANSFERRING)
        if max(sizes) > self._config.append_bytes_max:
            raise ProposalRefused(Refusal.TOO_LARGE)
        if self._uncommitted_bytes + sum(sizes) > self._config.uncommitted_bytes_max:
            raise ProposalRefused(Refusal.TOO_MUCH_UNCOMMITTED)

    def append(self, kind: EntryKind, data: bytes, now_us: int) -> int:
        entry = self._log.append(self._term, kind, data)
        assert not self._uncommitted or entry.index == self._uncommitted[-1][0] + 1
        self._uncommitted.append((entry.index, entry.size_bytes))
        self._uncommitted_bytes += entry.size_bytes
        if self._membership.appended((entry,)):
            self.voters_changed(now_us)
        self.wants_to_send = True
        return entry.index

    # --- sending -------------------------------------------------------------------------------
    def send(self) -> None:
        self.wants_to_send = False
        for progress in self.progress.values():
            while not progress.is_paused and self._has_news(progress):
                if not self._send_append(progress):
                    break

    def _has_news(self, progress: Progress) -> bool:
        return (
            progress.state is ProgressState.PROBE
            or progress.next <= self._log.last_index
            or progress.commit_sent < min(self._log.commit, progress.match)
        )

    def _send_append(self, progress: Progress, *, empty: bool = False) -> bool:
        """Returns False when the log was compacted there: a snapshot must go."""
        assert progress.match < progress.next
        assert progress.next <= self._log.last_index + 1, "only what is here is sent"
        prev_index = progress.next - 1
        prev_term = self._log.term(prev_index)
        if prev_term is None or progress.next < self._log.first_index:
            progress.needs_snapshot(self._log.snapshot)
            return False
        entries: tuple[Entry, ...] = ()
        if not empty and progress.next <= self._log.last_index:
            entries = tuple(self._log.entries(progress.next, self._config.append_bytes_max))
        if not empty:
            progress.sent(entries, self._log.commit)
        self._outbox.send(
            Append(
                source=self._key,
                target=progress.key,
                term=self._term,
                prev_index=prev_index,
                prev_term=prev_term,
                entries=entries,
                commit=self._log.commit,
            )
        )
        return True

    # --- answers -------------------------------------------------------------------------------
    def contact(self, key: ReplicaKey, now_us: int) -> Progress | None:
        progress = self.progress.get(key)
        if progress is not None:
            progress.last_contact_us = now_us
        return progress

    def on_append_response(self, progress: Progress, message: AppendResponse) -> bool:
        self.wants_to_send = True
        if not message.accepted:
            fits = self._log.newest_possible_match(message.hint_index, message.hint_term)
            progress.refused(message.index, fits.index + 1)
            # Only a voter's acknowledgements have committed anything.
            if progress.has_lost_entries and self._membership.is_voter(progress.key):
                self.lost_entries[progress.key] = progress.match
            return False
        # Durable on the follower, in this term: it counts (paper, section 5.3).
        assert message.index <= self._log.last_index, "a follower acknowledges what it was sent"
        progress.accepted(message.index)
        # It is back on the disk that holds what it acknowledged.
        self.lost_entries.pop(progress.key, None)
        self._hand_over_when_ready()
        return self.advance_commit()

    def on_heartbeat_response(
        self, progress: Progress, message: HeartbeatResponse, now_us: int
    ) -> None:
        progress.confirmed(message.sent_us, now_us)
        progress.probe_again()
        self.wants_to_send = True
        if progress.is_unacknowledged:
            # Without entries: a follower with a slow disk has them in memory and must not get them
            # twice. One that lost them refuses, and probing begins.
            self._send_append(progress, empty=True)

    def advance_commit(self) -> bool:
        voters = self._membership.voters
        reached = reached_by_majority(self._match(voter) for voter in voters)
        if reached <= self._log.commit:
            return False
        assert reached <= self._log.last_index, "a majority has what the leader has sent"
        # Not by count: an entry of an older term may still be replaced (paper, figure 8).
        if self._log.term(reached) != self._term:
            return False
        self._log.commit_to(reached)
        while self._uncommitted and self._uncommitted[0][0] <= reached:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        assert bool(self._uncommitted) == (self._uncommitted_bytes > 0)
        self.wants_to_send = True
        return True

    def _match(self, voter: ReplicaKey) -> int:
        if voter == self._key:
            return self._log.durable_index
        return self.progress[voter].match

    # --- time ----------------------------------------------------------------------------------
    def tick(self, now_us: int) -> None:
        if now_us >= self.heartbeat_due_us:
            self.heartbeat_due_us = now_us + self._config.heartbeat_us
            self._drop_silent_observers(now_us)
            for progress in self.progress.values():
                assert progress.match <= self._log.last_index
                # Not beyond the follower's own log: what follows `match` there may be another
                # leader's.
                commit = min(progress.match, self._log.commit)
                heartbeat = Heartbeat(
                    source=self._key,
                    target=progress.key,
                    term=self._term,
                    commit=commit,
                    sent_us=now_us,
                )
                self._outbox.send(heartbeat)
        if self._transfer is not None and now_us >= self._transfer.deadline_us:
            self._transfer = None  # The target was too slow: go on leading (thesis, section 3.10).

    @property
    def quorum_deadline_us(self) -> int:
        assert self._config.election_timeout_us > 0
        return self.majority_contact_us + self._config.election_timeout_us

    @property
    def majority_contact_us(self) -> int:
        return self._reached({key: one.last_contact_us for key, one in self.progress.items()})

    @property
    def majority_confirmed_us(self) -> int:
        """A majority of the voters, this one included, had contact with this leader then or
        later."""
        return self._reached({key: one.confirmed_us for key, one in self.progress.items()})

    def _reached(self, moments: dict[ReplicaKey, int]) -> int:
        if self._membership.is_only_voter(self._key):
            return _NEVER_US
        voters = self._membership.voters
        assert voters, "a leader was elected by voters"
        reached = [us for key, us in moments.items() if key in voters]
        if self._key in voters:
            reached.append(_NEVER_US)
        return reached_by_majority(reached)

    @property
    def deadline_us(self) -> int:
        if not self.progress:
            return _NEVER_US  # No followers: a quorum of one sleeps.
        due_us = min(self.heartbeat_due_us, self.quorum_deadline_us)
        return due_us if self._transfer is None else min(due_us, self._transfer.deadline_us)

    # --- handing over ----------------------------------------------------------------------------
    def transfer(self, target: ReplicaKey, now_us: int) -> None:
        if target not in self.progress or not self._membership.is_voter(target):
            raise ProposalRefused(Refusal.NOT_VOTER)
        if self._transfer is not None:
            raise ProposalRefused(Refusal.TRANSFERRING)
        assert target != self._key
        self._transfer = _Transfer(target, now_us + self._config.election_timeout_us)
        self._hand_over_when_ready()
        self.wants_to_send = True

    def _hand_over_when_ready(self) -> None:
        transfer = self._transfer
        if transfer is None or transfer.asked:
            return
        progress = self.progress.get(transfer.target)
        # Only a voter that has every entry is sure to win, and no proposal is lost (thesis, section
        # 3.10).
        if progress is not None and progress.match == self._log.last_index:
            assert self._membership.is_voter(transfer.target), "only voters may lead"
            transfer.asked = True
            self.ask_to_take_over(transfer.target)

    def ask_to_take_over(self, target: ReplicaKey) -> None:
        assert target != self._key
        self._outbox.send(TimeoutNow(source=self._key, target=target, term=self._term))

    def closest_voter(self) -> ReplicaKey | None:
        others = (p for key, p in self.progress.items() if self._membership.is_voter(key))
        best = max(others, key=lambda p: (p.match, p.last_contact_us), default=None)
        return None if best is None else best.key
