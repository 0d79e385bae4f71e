"""What must hold in a quorum, checked after every event from outside of all replicas.

Owns the properties of the paper's figure 3 and some more. It is independent of how a replica comes
to its decisions: it sees logs, roles, commit indexes, messages and plates.

- election safety: one leader in a term, one vote of a replica in a term, also across crashes
- log matching: an index and a term determine an entry and all before it
- leader completeness: a new leader has every entry that was committed in an earlier term
- state machine safety: the state machines at one index are the same
- commit: never falls in a life, and what a leader commits is on the plates of a majority
- voters: a leader's log has at most one change that is not committed
- check-quorum: a leader without answers of a majority is none after a bounded time
- confirmed leaders: none was confirmed after the moment that a later one takes for the last
- promises: what a message promises is on the plate when it is sent
- snapshots: hold what was applied, and that was committed
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.messages import Entry, EntryKind, ReplicaKey, SnapshotMeta
from tests.sim.checker import Violation

from .store import Plate

if TYPE_CHECKING:
    from .host import Host
    from .world import World

__all__ = ["Checker"]

_FINGERPRINT = tuple[EntryKind, bytes]
_LATE_US = 60_000


class _Seen:
    """What was seen of one life of a replica."""

    __slots__ = ("commit", "contact_us", "led_term", "log", "term", "voters")

    def __init__(self) -> None:
        self.term = 0
        self.commit = 0
        self.led_term = 0
        self.voters: frozenset[ReplicaKey] = frozenset()
        self.log: dict[int, tuple[int, EntryKind]] = {}
        self.contact_us: dict[ReplicaKey, int] = {}


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: list[Host] = []
        self.on_elected: Callable[[Host], None] = lambda host: None
        self.leaders: dict[int, ReplicaKey] = {}
        self.committed: dict[int, tuple[int, _FINGERPRINT]] = {}
        self.commit = 0
        self.commits: dict[int, int] = {}
        """Term of a leader -> up to where it was the first to commit."""
        self.acknowledged_count = 0
        self._entries: dict[tuple[int, int], tuple[_FINGERPRINT, int | None]] = {}
        self._digests: dict[int, bytes] = {0: b""}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._seen: dict[int, _Seen] = {}
        self._buried: dict[ReplicaKey, Plate] = {}
        self._confirmed_us: dict[int, int] = {}
        self._led_before_us: dict[int, int] = {}

    # --- what happened -------------------------------------------------------------------------
    def started(self, host: Host) -> None:
        seen = _Seen()
        seen.term = host.plate.hard_state.term
        self._seen[host.node_id] = seen

    def buried(self, key: ReplicaKey, plate: Plate) -> None:
        """A disk is gone for ever; what it held had counted."""
        self._buried[key] = plate

    def delivered(self, host: Host, message: m.Message) -> None:
        answers = m.AppendResponse | m.HeartbeatResponse | m.SnapshotChunkResponse
        if isinstance(message, answers):
            self._seen[host.node_id].contact_us[message.source] = self.world.now_us

    def acknowledged(self, entry: Entry) -> None:
        """A client got the answer that its proposal is decided."""
        self.acknowledged_count += 1
        found = self.committed.get(entry.index)
        if found is None or found[1] != (entry.kind, entry.data):
            raise Violation(f"entry {entry.index} was acknowledged and is not committed")

    def applied(self, host: Host, entry: Entry) -> None:
        known = self._digests.setdefault(entry.index, host.state.digest)
        if known != host.state.digest:
            raise Violation(f"node {host.node_id} has another state at {entry.index}")

    def restored(self, host: Host, snapshot: SnapshotMeta) -> None:
        if host.state.index != snapshot.index:
            raise Violation(f"a snapshot of {snapshot.index} holds {host.state.index}")
        if self._digests.get(snapshot.index) != host.state.digest:
            raise Violation(f"node {host.node_id} restored another state at {snapshot.index}")

    def snapshot_begun(self, host: Host, point: SnapshotMeta) -> None:
        if point.index > self.commit:
            raise Violation(f"a snapshot names {point.index}, committed is {self.commit}")
        if point.index != host.state.index:
            raise Violation(f"a snapshot names {point.index}, applied is {host.state.index}")

    # --- messages ------------------------------------------------------------------------------
    def sent(self, host: Host, message: m.Message) -> None:
        if message.source != host.key:
            raise Violation(f"node {host.node_id} speaks for {message.source}")
        vote = None
        if isinstance(message, m.Vote):
            vote = message.source
        elif isinstance(message, m.VoteResponse) and message.granted:
            vote = message.target
        if vote is not None:
            known = self._votes.setdefault((message.source, message.term), vote)
            if known != vote:
                raise Violation(f"{message.source} votes twice in term {message.term}")
        if self.world.scenario.check_promises:
            self._check_promise(host, message)

    def _check_promise(self, host: Host, message: m.Message) -> None:
        state = host.plate.hard_state
        index = 0
        if isinstance(message, m.PreVote | m.PreVoteResponse | m.Observe):
            return
        if isinstance(message, m.Vote):
            index = message.last_index
            if state != (message.term, message.source):
                raise Violation(f"{host.key} asks for votes and has not stored its own")
        elif isinstance(message, m.VoteResponse) and message.granted:
            if state != (message.term, message.target):
                raise Violation(f"{host.key} sends a vote that it has not stored")
        elif isinstance(message, m.AppendResponse) and message.accepted:
            index = message.index
        if state.term < message.term:
            raise Violation(f"{host.key} speaks of term {message.term} and has not stored it")
        if max(host.plate.last_index, host.plate.snapshot.index) < index:
            raise Violation(f"{host.key} acknowledges {index} and has not stored it")

    # --- a replica as it is ----------------------------------------------------------------------
    def look(self, host: Host) -> None:
        """After every event of a replica."""
        raft = host.raft
        assert raft is not None
        seen = self._seen[host.node_id]
        if raft.term < seen.term:
            raise Violation(f"the term of node {host.node_id} falls")
        seen.term = raft.term
        self._look_at_log(host, seen)
        if raft.role is Role.LEADER:
            self._look_at_leader(host, seen)
        self._look_at_commit(host, seen)

    def _look_at_log(self, host: Host, seen: _Seen) -> None:
        raft = host.raft
        assert raft is not None
        log = raft.log
        index = last = log.last_index
        for gone in range(last + 1, max(seen.log, default=0) + 1):
            seen.log.pop(gone, None)
        while index >= log.first_index:
            term = log.term(index)
            assert term is not None
            known = seen.log.get(index)
            if known is not None and known[0] == term:
                break  # All before it was looked at, by induction.
            entry = log.entries(index, 1)[0]
            if (entry.index, entry.term) != (index, term):
                raise Violation(f"node {host.node_id} has {entry} at {index}")
            seen.log[index] = (term, entry.kind)
            fact = ((entry.kind, entry.data), log.term(index - 1))
            before = self._entries.setdefault((index, term), fact)
            if before[0] != fact[0] or (None not in (before[1], fact[1]) and before[1] != fact[1]):
                raise Violation(f"logs do not match at {index} of term {term}")
            index -= 1

    def _look_at_leader(self, host: Host, seen: _Seen) -> None:
        raft = host.raft
        assert raft is not None
        if seen.led_term != raft.term:
            seen.led_term = raft.term
            seen.contact_us.clear()
            seen.voters = frozenset()
            self.world.counts["election won"] += 1
            if self.leaders.setdefault(raft.term, host.key) != host.key:
                raise Violation(f"two leaders in term {raft.term}")
            self._check_complete(host)
            self.on_elected(host)
        changes = 0
        for index in range(raft.log.last_index, max(raft.log.commit, self.commit), -1):
            changes += seen.log[index][1] is EntryKind.VOTERS
        if changes > 1:
            raise Violation(f"{changes} changes of the voters are not committed")
        if host.key not in raft.voters:
            last = max(i for i, (_, kind) in seen.log.items() if kind is EntryKind.VOTERS)
            if last <= raft.log.commit:
                raise Violation(f"node {host.node_id} leads, and its removal is committed")
        self._check_quorum(host, seen)
        self._check_confirmed(host)

    def _check_confirmed(self, host: Host) -> None:
        """Whatever a leader has promised for a while after it was confirmed, a later one can tell
        when that ends: moments are compared by the clock of the world.
        """
        raft = host.raft
        assert raft is not None
        found_us = raft.majority_confirmed_us
        assert found_us is not None, "it leads"
        term, clock_us = raft.term, host.skew_us
        confirmed_us = min(found_us, host.now_us) - clock_us
        is_new = term not in self._led_before_us
        if is_new:
            self._led_before_us[term] = raft.led_before_us - clock_us
        if not is_new and confirmed_us <= self._confirmed_us[term]:
            return
        self._confirmed_us[term] = confirmed_us
        earlier_us = max((us for one, us in self._confirmed_us.items() if one < term), default=0)
        before_us = [us for one, us in self._led_before_us.items() if one > term]
        if is_new and earlier_us > self._led_before_us[term]:
            raise Violation(f"a leader before term {term} was confirmed later than that one takes")
        if before_us and confirmed_us > min(before_us):
            raise Violation(f"the leader of term {term} is confirmed later than the next one takes")

    def _check_complete(self, host: Host) -> None:
        raft = host.raft
        assert raft is not None
        log = raft.log
        # A paused replica finds votes of long ago when others lead a newer term already.
        commit = max((index for term, index in self.commits.items() if term < raft.term), default=0)
        for index in range(commit, 0, -1):
            if index < log.first_index:
                break
            if log.term(index) != self.committed[index][0]:
                raise Violation(f"the leader of term {raft.term} lacks the committed {index}")
        if log.last_index < commit:
            raise Violation(f"the leader of term {raft.term} ends before {commit}")

    def _check_quorum(self, host: Host, seen: _Seen) -> None:
        raft = host.raft
        assert raft is not None
        voters = frozenset(raft.voters)
        now_us = self.world.now_us
        if voters != seen.voters:
            # A change may leave a majority that is silent already.
            seen.contact_us.update(dict.fromkeys(voters, now_us))
            seen.voters = voters
        times = [now_us if v == host.key else seen.contact_us[v] for v in voters]
        times.sort(reverse=True)
        contact_us = max(times[len(times) // 2], host.paused_until_us)
        bound_us = self.world.scenario.config.election_timeout_us + _LATE_US
        if now_us - contact_us > bound_us:
            raise Violation(f"node {host.node_id} leads without answers of a majority")

    def _look_at_commit(self, host: Host, seen: _Seen) -> None:
        raft = host.raft
        assert raft is not None
        log = raft.log
        if log.commit < seen.commit or not log.applied <= log.commit <= log.last_index:
            raise Violation(f"the commit index of node {host.node_id} goes wrong")
        if log.commit == seen.commit:
            return
        first = max(seen.commit + 1, log.first_index)
        seen.commit = log.commit
        for index in range(first, log.commit + 1):
            term = log.term(index)
            if term is None:
                continue
            fact = (term, self._entries[index, term][0])
            if self.committed.setdefault(index, fact) != fact:
                raise Violation(f"two entries were committed at {index}")
        if log.commit > self.commit:
            self._check_majority(host, log.commit)
            self.commit = self.commits[raft.term] = log.commit

    def _check_majority(self, host: Host, index: int) -> None:
        """When the first replica commits, a majority of its voters has the entry on the plate."""
        raft = host.raft
        assert raft is not None
        term = raft.log.term(index)
        assert term is not None
        plates = {each.key: each.plate for each in self.hosts} | self._buried
        holders = sum(plates[voter].holds(index, term) for voter in raft.voters)
        if 2 * holders <= len(raft.voters):
            raise Violation(f"{index} is committed and on {holders} of {len(raft.voters)} plates")
