"""What the broker knows of topics, and how a decision becomes true.

Owns the metadata image, those who wait for another version of it, and the cache of what METADATA
answers. It is the state machine of the quorum (quorum.py). A decision is made of records:

    propose(records, then)  the records join the view that further decisions are made on (`pending`)
                            and wait for their turn (decisions.py)
    directories             what they need on the disk is made first
    quorum                  all that wait are proposed together
    apply(entry)            they join the image, which everything else is answered from; partitions
                            are opened, changed or removed (`on_applied`); `then` answers

Other nodes' decisions are applied in the same way. No handler assumes in the same call that its
decision holds. The image's version is the index of the entry that was applied last.

Invariant: records are applied in the order of the quorum's log, each once, those of an entry
together.

Must not know: what partitions are made of, requests, who leads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    ProducerIdBlockRecord,
    Record,
    RemoveTopicRecord,
    decode_entry,
    encode_long_entry,
)
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import Entry, EntryKind
from quiverlog.errors import DiskFull
from quiverlog.node.admission import Admission
from quiverlog.node.decision import Decision, Directories
from quiverlog.node.decisions import Decisions
from quiverlog.node.effects import Job
from quiverlog.node.jobs import Jobs
from quiverlog.node.outbox import Outbox
from quiverlog.node.quorum import Quorum
from quiverlog.node.wakeups import Wakeups
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from quiverlog.storage.metadata.quorum_log import QuorumLog
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["Metadata"]

_START_RECORDS: Final = 5_000
"""Of one entry of a start, which has leader epochs for all partitions of a broker."""


class Metadata(Decisions):
    """See the module docstring.

    Args:
        on_heard: called with the records of entries, and their versions, before `begin_to_serve`.
        on_applied: called with the records that have just become true and with the partitions
            whose directories were made for them (None: others have decided), before `then` is.
    """

    __slots__ = (
        "_held", "_on_applied", "_on_heard", "_owed_holds", "_serving", "_wakeups", "cache",
    )  # fmt: skip

    def __init__(
        self,
        jobs: Jobs,
        wakeups: Wakeups,
        admission: Admission,
        outbox: Outbox,
        quorum: Quorum,
        *,
        topic_defaults: Mapping[str, str],
        make_directories: Callable[[Directories], Job],
        on_applied: Callable[[Sequence[Record], Set[str] | None, Now], None],
        on_heard: Callable[[Sequence[Record], int], None],
    ) -> None:
        super().__init__(
            jobs,
            admission,
            outbox,
            quorum,
            topic_defaults=topic_defaults,
            make_directories=make_directories,
        )
        self._wakeups = wakeups
        self._on_applied = on_applied
        self._on_heard = on_heard
        # Entries that were decided while somebody read the image.
        self._held: deque[Entry] = deque()
        # The image has the records that are owed already.
        self._owed_holds = False
        self._serving = False
        self.cache: dict[str, m.TopicMetadata] = {}

    @property
    def log(self) -> QuorumLog:
        """To look at."""
        assert self._quorum.log is not None
        return self._quorum.log

    @property
    def is_decided_here(self) -> bool:
        """True when nobody else decides anything: what was decided is known here."""
        return self._quorum.is_alone

    def remember(self, answer: m.TopicMetadata) -> None:
        """What METADATA says of a topic, until the image changes."""
        self.cache[answer.name] = answer

    # --- start ---------------------------------------------------------------------------------
    def commit_at_start(self, records: list[Record], now: Now) -> None:
        """Before anybody is served, off the loop: have records decided at once, by a quorum of one.

        A disk without room makes the broker owe them: readers are served, and nothing may be
        written under the epochs that they begin until they are durable.

        Raises:
            StorageFault, OSError: not durable, nothing changed.
        """
        assert self._quorum.is_alone
        parts = range(0, len(records), _START_RECORDS)
        self._owed.extend(records[at : at + _START_RECORDS] for at in parts)
        try:
            self._quorum.settle(now)
        except DiskFull:
            self._owed_holds = True
            for part in self._owed:
                self.image.replay_entry(part)
                self.pending.replay_entry(part)
        self._serving = True

    def begin_to_serve(self) -> None:
        """What is decided from now on is brought about at once; what was before, by the caller."""
        self._serving = True

    @property
    def owes(self) -> bool:
        """True while records of this start are not in the log, because the disk was full."""
        return bool(self._owed)

    def pay(self, now: Now) -> None:
        """Have the records decided that the start could not; called when the disk has room again.

        The next decision does so too, and this is for a broker without decisions.
        """
        if self._owed:
            self._quorum.try_again(now)

    def give_defaults(self, given: Mapping[str, str]) -> None:
        """The process was told other defaults of topics: what METADATA says of them is new."""
        for one in (self.image, self.pending):
            one.give_defaults(given)
        self.cache.clear()

    # --- what the quorum has decided -----------------------------------------------------------
    def apply(self, entry: Entry, now: Now) -> None:
        """See `StateMachine`."""
        if self.image.frozen:
            self._held.append(entry)
            return
        self._take(entry, now)

    def _take(self, entry: Entry, now: Now) -> None:
        place, decision = self._place, None
        if place is not None and entry.index == place.index:
            assert entry.term == place.term, "who proposed leads, or was interrupted"
            self._place = Place(place.index + 1, place.term)
            if self._owed:
                owed = self._owed.popleft()
                if self._owed_holds:
                    entry = Entry(entry.index, entry.term, EntryKind.NO_OP, b"")
                    self.image.decided(owed, entry.index)
                    self.pending.decided(owed, entry.index)
            else:
                decision = self._logging.popleft()
        try:
            self._replay(entry, decision)
            self._follow(entry, decision, now)
            if decision is not None:
                self._tell(decision, None, now)
        except Exception as error:
            if decision is None:
                raise
            self._outbox.internal_error("applying a decision", error)
            self._tell(decision, error, now)
        if self._place is not None and not self._owed and not self._logging:
            self._place = None
            self._busy = False
            self._start_next(now)

    def _replay(self, entry: Entry, decision: Decision | None) -> None:
        self.cache.clear()
        if entry.kind is not EntryKind.DATA:
            self.image.version = entry.index
            return
        records = decode_entry(entry.data) if decision is None else decision.records
        self.image.replay_entry(records, version=entry.index)
        if not self._serving:
            self._on_heard(records, entry.index)
        if decision is None:
            self.pending.replay_entry(records, version=entry.index)
        else:
            self.pending.decided(records, entry.index)

    def _follow(self, entry: Entry, decision: Decision | None, now: Now) -> None:
        """Bring what is here to what the image says."""
        if not self._serving:
            return
        try:
            if decision is not None:
                self._on_applied(decision.records, decision.made, now)
            elif entry.kind is EntryKind.DATA:
                records = _of_others(decode_entry(entry.data))
                if records:
                    self._on_applied(records, None, now)
        except Exception as error:
            self._outbox.internal_error("applying a decision", error)
        self._wakeups.changed(self)

    def restore(self, snapshot: Snapshot, now: Now) -> None:
        """See `StateMachine`."""
        assert not self.image.frozen
        records = decode_entry(snapshot.records) if snapshot.records else []
        before = self.image
        image, pending = Image(before.given), Image(before.given)
        for one in (image, pending):
            if records:
                # Snapshots from before there were broker epochs have none: theirs is the newest.
                one.replay_entry(records, version=snapshot.meta.index)
            one.version = snapshot.meta.index
        self.image, self.pending = image, pending
        self.cache.clear()
        if self._serving:
            now_there = self.image.topics_by_id
            gone = [RemoveTopicRecord(t) for t in before.topics_by_id if t not in now_there]
            changed = [*_of_others(records), *gone]
            if changed:
                self._on_applied(changed, None, now)
            self._wakeups.changed(self)

    # --- snapshots -----------------------------------------------------------------------------
    @property
    def may_be_captured(self) -> bool:
        """See `StateMachine`. What is owed is in the image, and nobody has decided it."""
        return not self.image.frozen and not self._owed

    def capture(self) -> Callable[[], bytes]:
        """See `StateMachine`."""
        # It takes as long as there are topics. Nothing is applied before `captured`, and
        # decisions wait in the queue.
        image = self.image
        image.frozen = True
        return lambda: encode_long_entry(image.snapshot_records())

    def captured(self, now: Now) -> None:
        """See `StateMachine`."""
        self.image.frozen = False
        while self._held and not self.image.frozen:
            self.apply(self._held.popleft(), now)
        self._start_next(now)


def _of_others(records: Sequence[Record]) -> list[Record]:
    """Records that this node has not proposed: ids set aside are not its own to give out."""
    return [record for record in records if not isinstance(record, ProducerIdBlockRecord)]
