"""Leader election: roles, terms, votes and election timeouts.

Owns the role, the hard state (term and vote), the known leader and the election deadline.

```
                  deadline                  majority would vote            majority voted
   FOLLOWER ──────────────────▶ PRE_CANDIDATE ───────────────▶ CANDIDATE ───────────────▶ LEADER
      ▲  ▲  └──────── asked by the leader to take over ─────────▶ │                          │
      │  └─ a leader of this term has contact, or a newer term ───┘                          │
      └──────── a newer term, no majority for an election timeout, no voter any more ────────┘
```

Invariants: the term never falls; one vote in a term; a candidate's requests and its own vote wait
until term, vote and log are durable, or after a crash it might come back with a shorter log and
collect votes given to the longer one.
"""

from __future__ import annotations

import enum
from typing import Final

from quiverlog.core.raft.log import LogView, Place
from quiverlog.core.raft.membership import Membership
from quiverlog.core.raft.messages import (
    HardState,
    PreVote,
    PreVoteResponse,
    RaftConfig,
    RandomSource,
    ReplicaKey,
    Vote,
    VoteResponse,
)
from quiverlog.core.raft.outbox import Outbox
from quiverlog.core.raft.quorum import votes_suffice

__all__ = ["Election", "Role"]


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


_LEGAL: Final = {
    Role.FOLLOWER: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE),
    Role.PRE_CANDIDATE: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE),
    Role.CANDIDATE: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER),
    Role.LEADER: (Role.FOLLOWER,),
}


class Election:
    """Pre-vote (thesis 9.6, KIP-996): a candidate asks whether it would win before it begins a
    term, and a replica that comes back cannot depose a leader that works.

    A vote carries the time since its sender had contact with a leader. Any earlier leader that was
    confirmed by a majority shares a voter with the new leader's majority: none was confirmed after
    `led_before_us`, and what it promised for a while after that has an end (docs/adr/0031).
    """

    __slots__ = (
        "_config",
        "_granted",
        "_key",
        "_log",
        "_membership",
        "_outbox",
        "_random",
        "deadline_us",
        "hard_state",
        "last_contact_us",
        "leader",
        "led_before_us",
        "role",
    )

    def __init__(
        self,
        key: ReplicaKey,
        config: RaftConfig,
        random: RandomSource,
        hard_state: HardState,
        log: LogView,
        membership: Membership,
        outbox: Outbox,
        now_us: int,
    ) -> None:
        assert hard_state.term >= log.last.term, "the hard state is written before the entries"
        self._key = key
        self._config = config
        self._random = random
        self._log = log
        self._membership = membership
        self._outbox = outbox
        self.hard_state = hard_state
        self.role = Role.FOLLOWER
        self.leader: ReplicaKey | None = None
        self.last_contact_us = now_us
        """When this replica last had contact with a leader, led itself, or started."""
        self.led_before_us = now_us
        """Of a leader: no earlier leader was confirmed by a majority after that."""
        self._granted: dict[ReplicaKey, int] = {}
        self.deadline_us = 0
        self._wait(now_us)
        assert self.deadline_us > now_us

    # --- looking -------------------------------------------------------------------------------
    @property
    def term(self) -> int:
        return self.hard_state.term

    @property
    def may_campaign(self) -> bool:
        return self._membership.may_campaign(self._key, self._log.commit)

    def has_live_leader(self, now_us: int) -> bool:
        if self.role is Role.LEADER:
            return True  # Check-quorum ends a leadership without its majority.
        if self.leader is None:
            return False
        return now_us - self.last_contact_us < self._config.election_timeout_us

    def ignores(self, source: ReplicaKey, now_us: int) -> bool:
        """Return whether to disregard a replica that is no voter, while a leader has contact.

        It may be a voter that this log does not hold yet: then the leader falls silent or steps
        down, and its term counts an election timeout later.
        """
        if self._membership.is_voter(source) or source == self.leader:
            return False
        return self.has_live_leader(now_us)

    # --- following -----------------------------------------------------------------------------
    def follow(self, term: int, leader: ReplicaKey | None, now_us: int) -> None:
        assert term >= self.term
        assert leader != self._key, "no replica follows itself"
        if term > self.term:
            self._change(HardState(term, None))
        has_led = self.role is Role.LEADER
        self._become(Role.FOLLOWER)
        self.leader = leader
        if leader is not None or has_led:
            self.last_contact_us = now_us
        self._wait(now_us)
        assert self.term >= self._log.last.term, "no entry is of a term that has not begun"

    def on_leader_message(self, leader: ReplicaKey, now_us: int) -> None:
        assert self.role is not Role.LEADER, "two leaders in one term"
        assert self.leader in (None, leader), "two leaders in one term"
        self.follow(self.term, leader, now_us)

    def _wait(self, now_us: int) -> None:
        # Drawn anew each time, or replicas that collided once would collide again (paper, 5.2).
        timeout_us = self._config.election_timeout_us
        self.deadline_us = now_us + timeout_us + self._random.randrange(timeout_us)

    # --- asking for votes ------------------------------------------------------------------------
    def timed_out(self, now_us: int) -> bool:
        assert self.role is not Role.LEADER
        self._wait(now_us)
        if self.role is Role.CANDIDATE and not self._outbox.is_state_durable:
            return False  # The disk is slow: the votes of this term were not asked for yet.
        if not self.may_campaign:
            self.leader = None
            return False
        self._become(Role.PRE_CANDIDATE)
        self.leader = None
        last = self._log.last
        assert last.term <= self.term
        for voter in self._membership.voters:
            if voter != self._key:
                self._outbox.send(
                    PreVote(
                        source=self._key,
                        target=voter,
                        term=self.term,
                        last_index=last.index,
                        last_term=last.term,
                    )
                )
        return self._count(self._key)

    def campaign(self, now_us: int) -> None:
        assert self.may_campaign
        self._become(Role.CANDIDATE)
        self.leader = None
        self._wait(now_us)
        self._change(HardState(self.term + 1, self._key))
        last = self._log.last
        assert last.term < self.term, "no entry is of a term that only begins"
        for voter in self._membership.voters:
            if voter == self._key:
                # The own vote counts only once term, vote and log are durable (thesis, section
                # 3.8).
                self._outbox.send_durable(self._vote(voter, now_us, granted=True), last.index)
                continue
            vote = Vote(
                source=self._key,
                target=voter,
                term=self.term,
                last_index=last.index,
                last_term=last.term,
            )
            self._outbox.send_durable(vote, last.index)

    def on_pre_vote_response(self, message: PreVoteResponse) -> bool:
        if self.role is not Role.PRE_CANDIDATE or message.asked_term != self.term:
            return False
        return message.granted and self._count(message.source)

    def on_vote_response(self, message: VoteResponse, now_us: int) -> bool:
        if self.role is not Role.CANDIDATE or message.term != self.term:
            return False
        # The sender measured it earlier than now, so this moment is no earlier than the true one.
        last_contact_us = max(0, now_us - message.silent_us)
        return message.granted and self._count(message.source, last_contact_us)

    def _count(self, voter: ReplicaKey, last_contact_us: int = 0) -> bool:
        if self._membership.is_voter(voter):
            self._granted[voter] = max(last_contact_us, self._granted.get(voter, 0))
        return votes_suffice(self._granted, len(self._membership.voters))

    def lead(self) -> None:
        assert self.hard_state.vote == self._key, "a leader has voted for itself in its term"
        assert votes_suffice(self._granted, len(self._membership.voters))
        self.led_before_us = max(self._granted.values())
        self._become(Role.LEADER)
        self.leader = self._key

    # --- being asked ---------------------------------------------------------------------------
    def on_pre_vote(self, message: PreVote, now_us: int) -> None:
        """Answer whether a vote would be granted. Nothing changes: nothing must be durable."""
        granted = (
            message.term >= self.term
            and not self.has_live_leader(now_us)
            and not self._is_newer_than(message)
        )
        assert not (granted and self.role is Role.LEADER), "a leader wants no successor"
        self._outbox.send(
            PreVoteResponse(
                source=self._key,
                target=message.source,
                term=self.term,
                granted=granted,
                asked_term=message.term,
            )
        )

    def on_vote(self, message: Vote, now_us: int) -> None:
        """Grant or refuse a vote; the answer waits until term and vote are durable."""
        assert message.term <= self.term, "a newer term was taken over before"
        granted = (
            message.term == self.term
            and self.hard_state.vote in (None, message.source)
            and self.leader in (None, message.source)
            and not self._is_newer_than(message)
        )
        if granted:
            assert self.role not in (Role.CANDIDATE, Role.LEADER), "it has voted for itself"
            self._change(HardState(self.term, message.source))
            self._wait(now_us)
        response = self._vote(message.source, now_us, granted=granted)
        self._outbox.send_durable(response)

    def _vote(self, target: ReplicaKey, now_us: int, *, granted: bool) -> VoteResponse:
        assert self.last_contact_us <= now_us
        return VoteResponse(
            source=self._key,
            target=target,
            term=self.term,
            granted=granted,
            silent_us=now_us - self.last_contact_us,
        )

    def _is_newer_than(self, message: PreVote | Vote) -> bool:
        """The election restriction (paper, section 5.4.1): a winner has every committed entry."""
        return not Place(message.last_index, message.last_term).is_at_least(self._log.last)

    # --- state ---------------------------------------------------------------------------------
    def _become(self, role: Role) -> None:
        assert role in _LEGAL[self.role], f"{self.role} cannot become {role}"
        self.role = role
        self._granted.clear()

    def _change(self, hard_state: HardState) -> None:
        assert hard_state.term >= self.term, "the term never falls"
        if hard_state != self.hard_state:
            self.hard_state = hard_state
            self._outbox.change_hard_state(hard_state)
