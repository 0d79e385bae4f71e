"""How far one follower has come, in its leader's view.

Owns the state machine of one follower (etcd's raft has the same three states):

```
            accepted                            log is compacted there
   PROBE ─────────────▶ REPLICATE        PROBE, REPLICATE ──────────▶ SNAPSHOT
     ▲  ◀───────────────────┘     ▲                                      │ │
     │       refused              └── installed, or found to be further ─┘ │
     └────────────────────── the snapshot is gone ─────────────────────────┘
```

- PROBE: the place where the logs agree is unknown. One message at a time, repeated after each
  heartbeat that is answered.
- REPLICATE: entries are sent ahead, up to a bound on messages and bytes in flight.
- SNAPSHOT: the log no longer holds what the follower needs; no entries are sent.

Invariants: match < next. `match` counts only what the follower acknowledged in this term, and never
falls: acknowledgements are durable, and a replica that lost its disk has another key. An observer
that asks again gets a new progress.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from quiverlog.core.raft.messages import Entry, RaftConfig, ReplicaKey, SnapshotMeta

__all__ = ["Progress", "ProgressState", "SnapshotSend"]


class ProgressState(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


_LEGAL: Final = {
    ProgressState.PROBE: (ProgressState.PROBE, ProgressState.REPLICATE, ProgressState.SNAPSHOT),
    ProgressState.REPLICATE: (ProgressState.PROBE, ProgressState.SNAPSHOT),
    ProgressState.SNAPSHOT: (ProgressState.PROBE, ProgressState.REPLICATE),
}


_REFUSALS: Final = 3
"""Refusals of probes at `match`, none accepted between: fewer may be delayed ones."""


class SnapshotSend:
    __slots__ = ("offset", "read_under_way", "sent_us", "snapshot")

    def __init__(self, snapshot: SnapshotMeta) -> None:
        self.snapshot = snapshot
        self.offset = 0
        self.read_under_way = False
        self.sent_us: int | None = None


class _Sent(NamedTuple):
    last_index: int
    size_bytes: int


class Progress:
    __slots__ = (
        "_bytes_in_flight",
        "_config",
        "_in_flight",
        "_probe_sent",
        "_refused_at_match",
        "commit_sent",
        "confirmed_us",
        "key",
        "last_contact_us",
        "match",
        "next",
        "state",
        "transfer",
    )

    def __init__(self, key: ReplicaKey, next_index: int, config: RaftConfig, now_us: int) -> None:
        assert next_index >= 1
        self.key = key
        self.match = 0
        self.next = next_index
        self.state = ProgressState.PROBE
        # A new leader waits a full timeout before it counts a follower as silent.
        self.last_contact_us = now_us
        self.confirmed_us = 0
        """When the newest heartbeat that it answered was sent."""
        self.commit_sent = 0
        self.transfer: SnapshotSend | None = None
        self._config = config
        self._probe_sent = False
        self._refused_at_match = 0
        self._in_flight: deque[_Sent] = deque()
        self._bytes_in_flight = 0

    @property
    def is_paused(self) -> bool:
        if self.state is ProgressState.PROBE:
            return self._probe_sent
        if self.state is ProgressState.SNAPSHOT:
            return True
        return (
            len(self._in_flight) >= self._config.inflight_messages_max
            or self._bytes_in_flight >= self._config.inflight_bytes_max
        )

    @property
    def has_lost_entries(self) -> bool:
        """True when the follower keeps refusing entries right after its own acknowledgement."""
        return self._refused_at_match >= _REFUSALS

    @property
    def is_unacknowledged(self) -> bool:
        """True when entries were sent ahead and not acknowledged: they may be lost."""
        return self.state is ProgressState.REPLICATE and self.match + 1 < self.next

    # --- sending -------------------------------------------------------------------------------
    def sent(self, entries: Sequence[Entry], commit: int) -> None:
        assert not self.is_paused
        assert self.transfer is None, "entries and a snapshot are not sent at once"
        self.commit_sent = max(self.commit_sent, commit)
        if self.state is ProgressState.PROBE:
            self._probe_sent = True
        elif entries:
            assert entries[0].index == self.next
            sent = _Sent(entries[-1].index, sum(entry.size_bytes for entry in entries))
            self._in_flight.append(sent)
            self._bytes_in_flight += sent.size_bytes
            self.next = sent.last_index + 1

    # --- answers -------------------------------------------------------------------------------
    def confirmed(self, sent_us: int, now_us: int) -> None:
        assert sent_us >= 0
        self.confirmed_us = max(self.confirmed_us, min(sent_us or now_us, now_us))

    def accepted(self, index: int) -> None:
        """Record that the log is equal up to `index`, durably. Answers may come twice or late."""
        self.match = max(self.match, index)
        self._refused_at_match = 0
        self.next = max(self.next, self.match + 1)
        # Answers may be lost, and each covers all entries before it.
        while self._in_flight and self._in_flight[0].last_index <= index:
            self._bytes_in_flight -= self._in_flight.popleft().size_bytes
        if self.state is ProgressState.PROBE:
            self._become(ProgressState.REPLICATE)
        elif self.transfer is not None and self.match >= self.transfer.snapshot.index:
            # After a snapshot the next index is known as exactly as after an append.
            self._become(ProgressState.REPLICATE)
        assert self.match < self.next
        assert bool(self._in_flight) == (self._bytes_in_flight > 0)

    def refused(self, index: int, next_index: int) -> bool:
        """Probe from `next_index`, as the logs differ at `index`. Return False for an answer that
        moves nothing."""
        # One that comes with each probe at `match` means that the follower lacks entries that it
        # has acknowledged.
        if self.state is ProgressState.PROBE and 0 < self.match == index == self.next - 1:
            self._refused_at_match += next_index <= index
        # A delayed answer: the place is acknowledged meanwhile, or is not being probed.
        if self.state is ProgressState.SNAPSHOT or index <= self.match:
            return False
        if self.state is ProgressState.PROBE and index != self.next - 1:
            return False
        self.next = max(self.match + 1, min(index, next_index))
        self._become(ProgressState.PROBE)
        assert self.match < self.next
        return True

    def probe_again(self) -> None:
        self._probe_sent = False

    # --- snapshots -----------------------------------------------------------------------------
    def needs_snapshot(self, snapshot: SnapshotMeta) -> None:
        assert self.state is not ProgressState.SNAPSHOT
        assert self.match < snapshot.index
        self._become(ProgressState.SNAPSHOT)
        self.transfer = SnapshotSend(snapshot)

    def abandon_snapshot(self) -> None:
        assert self.state is ProgressState.SNAPSHOT
        self._become(ProgressState.PROBE)

    def _become(self, state: ProgressState) -> None:
        assert state in _LEGAL[self.state], f"{self.state} cannot become {state}"
        assert (self.transfer is None) == (self.state is not ProgressState.SNAPSHOT)
        self.state = state
        self.transfer = None
        self._probe_sent = False
        self._in_flight.clear()
        self._bytes_in_flight = 0
        if state is ProgressState.REPLICATE:
            self.next = self.match + 1
