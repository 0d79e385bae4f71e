"""What the host must send and write, and which message waits for which write.

A message that promises something (a granted vote, an acknowledged append) leaves only when its
promise is durable: a replica that promises, crashes and loses the promise lets two leaders win one
term, or a committed entry vanish (thesis, section 3.8). A message to this replica itself waits in
the same way: a candidate counts its own vote only when it is durable.

Invariant: waiting messages are of the current term; a new term drops older promises, because the
log that they rest on may be truncated.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from quiverlog.core.raft.log import LogView
from quiverlog.core.raft.messages import (
    Entry,
    HardState,
    Message,
    ReplicaKey,
    SnapshotChunk,
)
from quiverlog.limits import RAFT_WAITING_MESSAGES_MAX

__all__ = ["Outbox", "Write"]


class Write(NamedTuple):
    """One job of the host. Its parts become durable in this order, or none from some part on.

    `entries`: the log is cut at the first one's index, then they are appended. `chunk`: bytes of a
    snapshot for a temporary file; offset 0 begins a new file. After a chunk that is `done` come
    fsync and rename; then the snapshot replaces the whole log.
    """

    number: int
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    chunk: SnapshotChunk | None


class _Waiting(msgspec.Struct, frozen=True):
    message: Message
    hard_state: HardState
    index: int


class Outbox:
    __slots__ = (
        "_chunk",
        "_durable_state",
        "_hard_state",
        "_key",
        "_log",
        "_messages",
        "_number",
        "_own",
        "_waiting",
        "is_failed",
        "under_way",
    )

    def __init__(self, key: ReplicaKey, hard_state: HardState, log: LogView) -> None:
        self._key = key
        self._log = log
        self._hard_state = hard_state
        self._durable_state = hard_state
        self._messages: list[Message] = []
        self._waiting: list[_Waiting] = []
        self._own: list[_Waiting] = []
        self._chunk: SnapshotChunk | None = None
        self._number = 0
        self.under_way: Write | None = None
        self.is_failed = False

    # --- sending -------------------------------------------------------------------------------
    def send(self, message: Message) -> None:
        assert message.target != self._key
        self._messages.append(message)

    def send_durable(self, message: Message, index: int = 0) -> None:
        assert message.term == self._hard_state.term
        assert index <= self._log.last_index
        row = self._own if message.target == self._key else self._waiting
        row.append(_Waiting(message, self._hard_state, index))
        if len(row) > RAFT_WAITING_MESSAGES_MAX:
            # The disk hangs, and senders repeat what is not answered: the oldest goes.
            del row[0]
        assert len(row) <= RAFT_WAITING_MESSAGES_MAX

    def take_messages(self) -> tuple[Message, ...]:
        taken = [*self._messages, *(w.message for w in self._waiting if self._is_durable(w))]
        self._messages.clear()
        self._waiting = [w for w in self._waiting if not self._is_durable(w)]
        return tuple(taken)

    def take_own(self) -> list[Message]:
        durable = [w.message for w in self._own if self._is_durable(w)]
        self._own = [w for w in self._own if not self._is_durable(w)]
        return durable

    @property
    def has_messages(self) -> bool:
        return bool(self._messages) or any(map(self._is_durable, self._waiting))

    def _is_durable(self, waiting: _Waiting) -> bool:
        # One vote per term: within a term the newer hard state contains the older.
        state = self._durable_state
        return (
            state.term == waiting.hard_state.term
            and (waiting.hard_state.vote is None or state.vote == waiting.hard_state.vote)
            and self._log.durable_index >= waiting.index
        )

    # --- writing -------------------------------------------------------------------------------
    def change_hard_state(self, hard_state: HardState) -> None:
        assert hard_state.term >= self._hard_state.term
        if hard_state.term > self._hard_state.term:
            self._waiting.clear()
            self._own.clear()
        else:
            assert self._hard_state.vote in (None, hard_state.vote), "one vote in a term"
        self._hard_state = hard_state

    def write_chunk(self, chunk: SnapshotChunk) -> None:
        assert self._chunk is None, "one chunk at a time"
        self._chunk = chunk

    def drop_chunk(self) -> None:
        self._chunk = None

    @property
    def is_state_durable(self) -> bool:
        return self._hard_state == self._durable_state

    @property
    def has_write(self) -> bool:
        if self.under_way is not None or self.is_failed:
            return False
        return not self.is_state_durable or self._chunk is not None or self._log.has_unwritten

    def begin_write(self) -> Write | None:
        if not self.has_write:
            return None
        chunk, self._chunk = self._chunk, None
        # An installed snapshot drops entries: a write with both would lose what it acknowledges.
        entries = () if chunk else self._log.begin_write()
        changed = not self.is_state_durable
        assert changed or entries or chunk, "a write without a part"
        assert not entries or entries[-1].term <= self._hard_state.term
        self._number += 1
        self.under_way = Write(self._number, self._hard_state if changed else None, entries, chunk)
        return self.under_way

    def complete_write(self, write: Write) -> None:
        assert write is self.under_way, "a write is reported once, in its order"
        self.under_way = None
        if write.hard_state is not None:
            assert write.hard_state.term >= self._durable_state.term, "the term never falls"
            self._durable_state = write.hard_state
        assert self._durable_state.term <= self._hard_state.term
        self._log.complete_write()

    def fail(self) -> None:
        """Stop for good: what waits for the disk is never sent."""
        self._waiting.clear()
        self._own.clear()
        self.is_failed = True
