"""What a simulated replica has on its disk, and what its Raft is shown of it.

Owns `Plate` (what a crash leaves) and `SimStore` (the durable log as the loop sees it). A write
becomes durable step by step: hard state, cut, entries one by one, chunk. A crash keeps some of it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from quiverlog.core.raft.messages import NO_SNAPSHOT, Entry, HardState, SnapshotMeta
from quiverlog.core.raft.outbox import Write
from tests.sim.checker import Violation

__all__ = ["Plate", "SimStore", "State", "pack_state", "unpack_state"]


class State(msgspec.Struct, frozen=True):
    """The state machine: a digest over everything that was applied, in order."""

    index: int = 0
    digest: bytes = b""

    def applied(self, entry: Entry) -> State:
        if entry.index != self.index + 1:
            raise Violation(f"entry {entry.index} is applied after {self.index}")
        text = b"%d %d %d " % (entry.index, entry.term, entry.kind) + entry.data
        digest = hashlib.blake2b(self.digest + text, digest_size=12).digest()
        return State(entry.index, digest)


def pack_state(state: State, rng: random.Random, size_max: int) -> bytes:
    """A snapshot file. No two replicas write the same bytes, so that a mixture is noticed."""
    filling = rng.randbytes(rng.randrange(size_max + 1))
    body = msgspec.msgpack.encode((state, filling))
    return hashlib.blake2b(body, digest_size=16).digest() + body


def unpack_state(data: bytes) -> State:
    body = data[16:]
    if hashlib.blake2b(body, digest_size=16).digest() != data[:16]:
        raise Violation("a snapshot was installed that was never written")
    state, _ = msgspec.msgpack.decode(body, type=tuple[State, bytes])
    return state


@dataclass(slots=True)
class Plate:
    """`entries` begin at `first_index`. A new disk is empty; `snapshot` may name first voters."""

    hard_state: HardState = HardState(0, None)  # noqa: RUF009  frozen
    snapshot: SnapshotMeta = NO_SNAPSHOT
    snapshot_data: bytes = b""
    first_index: int = 1
    entries: list[Entry] = field(default_factory=list)
    temporary: bytearray = field(default_factory=bytearray)

    @property
    def last_index(self) -> int:
        return self.entries[-1].index if self.entries else self.first_index - 1

    def holds(self, index: int, term: int) -> bool:
        """Return whether the entry is here, or a snapshot that contains it."""
        if self.first_index <= index <= self.last_index:
            return self.entries[index - self.first_index].term == term
        return index <= self.snapshot.index

    def steps(self, write: Write) -> int:
        """How many steps the write takes."""
        return 1 + len(write.entries) + 1

    def do(self, write: Write, steps: int) -> None:
        """The first `steps` steps of the write become durable."""
        if steps > 0 and write.hard_state is not None:
            self.hard_state = write.hard_state
        if steps > 0 and write.entries:
            first = write.entries[0].index
            assert self.first_index <= first <= self.last_index + 1, "a hole in the log"
            del self.entries[first - self.first_index :]
            self.entries.extend(write.entries[: steps - 1])
        if steps == self.steps(write) and write.chunk is not None:
            self._do_chunk(write)

    def _do_chunk(self, write: Write) -> None:
        chunk = write.chunk
        assert chunk is not None
        if chunk.offset == 0:
            self.temporary.clear()
        assert len(self.temporary) == chunk.offset, "a hole in a snapshot"
        self.temporary += chunk.data
        if chunk.done:
            data = bytes(self.temporary)
            if unpack_state(data).index != chunk.snapshot.index:
                raise Violation("an installed snapshot holds another index than its name")
            self.snapshot, self.snapshot_data = chunk.snapshot, data
            self.entries.clear()
            self.first_index = chunk.snapshot.index + 1

    def take_snapshot(self, snapshot: SnapshotMeta, data: bytes, first_index: int) -> None:
        """A snapshot of this replica's own takes the place of the log before `first_index`."""
        if snapshot.index <= self.snapshot.index:
            return
        first_index = max(self.first_index, min(first_index, snapshot.index + 1))
        del self.entries[: first_index - self.first_index]
        self.first_index = first_index
        self.snapshot, self.snapshot_data = snapshot, data

    def copy(self) -> Plate:
        return Plate(
            self.hard_state,
            self.snapshot,
            self.snapshot_data,
            self.first_index,
            list(self.entries),
        )


class SimStore:
    """A `LogStore`: the plate as it was when the last job was reported."""

    def __init__(self, plate: Plate) -> None:
        self._shown = plate.copy()

    def show(self, plate: Plate) -> None:
        """A job was reported: show what it has left."""
        self._shown = plate.copy()

    @property
    def snapshot(self) -> SnapshotMeta:
        return self._shown.snapshot

    @property
    def first_index(self) -> int:
        return self._shown.first_index

    @property
    def last_index(self) -> int:
        return max(self._shown.last_index, self._shown.snapshot.index)

    def term(self, index: int) -> int:
        return self._shown.entries[index - self._shown.first_index].term

    def entries(self, first: int, bytes_max: int) -> Sequence[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in self._shown.entries[first - self._shown.first_index :]:
            size += entry.size_bytes
            if found and size > bytes_max:
                break
            found.append(entry)
        return found
