"""The consumer's machine: from positions to batches, as operations. Invariants:

- A partition is in at most one request; the caller receives its rows in offset order.
- A row in the log is skipped only on request (`seek`, `skip_corrupt`).
- At most one reply waits; about twice `fetch_bytes` are held, plus one larger batch.
- A partition that returned rows goes to the end of the next request.
- An early answer without rows is followed by a growing pause; a partition that has rows and
  returns none for the request timeout is an error.
- A partition that cannot be read holds up no other. It is an error when for the request timeout no
  other has had rows either.
- Ctrl-C arrives at calls and loops only: no change is left half done.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from quiverlog.client.base.arguments import names
from quiverlog.client.base.commands import Operation, PendingReply, Sleep
from quiverlog.client.base.results import FetchedPartition
from quiverlog.client.base.waits import Wait
from quiverlog.client.cluster.answers import about, named
from quiverlog.client.cluster.replica_choice import IN_SYNC_EVERY_S, LEADER
from quiverlog.client.cluster.routing import Cluster, pause_s
from quiverlog.client.rows.decoding import (
    ConsumerBatch,
    StoredBatch,
    fetch_error,
    stored_batches,
)
from quiverlog.errors import (
    CorruptBatch,
    InvalidArgument,
    OffsetNotAvailable,
    QuiverlogError,
    UnknownPartition,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH

from .fetches import ROUND_S, Fetches, Request, Source, Trouble
from .options import (
    ConsumerOptions,
)
from .positions import PartitionKey, Position, first_gone
from .topics import TopicReader, Turns

if TYPE_CHECKING:
    pass

__all__ = [
    "ROUND_S",
    "Assigned",
    "ConsumerCore",
]


NEW_PARTITIONS_EVERY_S = 2.0

logger = logging.getLogger("quiverlog")


_Ready: TypeAlias = deque[tuple[Position, StoredBatch]]
_Held: TypeAlias = dict[PartitionKey, list[tuple[Position, StoredBatch]]]


class Assigned(NamedTuple):
    """A partition that is to be read from `offset`, or, when that is negative, from `start`."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int = -1
    # Of the row before `offset`.
    leader_epoch: int = NO_EPOCH

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class ConsumerCore:
    """Args:
    topic: the name, or several names with their options, or none: `assign` adds partitions.
    options: what is common to all topics.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str | Mapping[str, ConsumerOptions],
        options: ConsumerOptions,
    ) -> None:
        # Callers name partitions by numbers.
        self.is_single = isinstance(topic, str)
        self.is_assigned = not self.is_single and not topic
        self.clock = cluster.clock
        self._cluster = cluster
        self._options = options
        by_name = {topic: options} if isinstance(topic, str) else topic
        self.readers = {name: TopicReader(cluster, name, of) for name, of in by_name.items()}
        self._reader_of: dict[bytes, TopicReader] = {}
        self._positions: dict[PartitionKey, Position] = {}
        self._turns = Turns()
        self._ready: _Ready = deque()
        # The rows of paused partitions.
        self._held: _Held = {}
        self._fetches = Fetches(cluster, options)
        self._failures = 0
        self._failing_since_s: float | None = None
        # Since when rows are waited for, perhaps without an end: `follow`.
        self._idle_since_s: float | None = None
        self._failure: QuiverlogError | None = None
        self._logged_reasons: set[str] = set()
        cluster.waits.others.add(self)
        self._look_again_s = 0.0
        # The last batch, with `delivered` and `delivered_epoch` before it.
        self._on_its_way: tuple[Position, StoredBatch, int, int] | None = None
        # An error of one partition that arrived with rows of others, which the caller gets first.
        self._deferred: QuiverlogError | None = None

    @property
    def topic(self) -> str:
        """The topics' names, as a text."""
        return names(list(self.readers)) or ("" if self.is_single else "no topic")

    def waiting(self) -> Wait | None:
        failing_s, failure = self._failing_since_s, self._failure
        if failing_s is None and (troubles := list(self._fetches.troubles.values())):
            return self._wait_for(min(troubles, key=lambda one: one.since_s))
        since_s = self._idle_since_s if failing_s is None else failing_s
        if since_s is None:
            return None
        if failing_s is None and self._options.follow:
            return self._fetches.overdue_wait(since_s)
        until_s = min(since_s + self._patience_s, self._cluster.deadline_s)
        wait = Wait(since_s, until_s, f"rows of {self.topic}", "rows")
        if failure is not None:
            wait.failed(failure, until_s)
        return wait

    def _wait_for(self, trouble: Trouble) -> Wait:
        since_s, idle_s = trouble.since_s, self._idle_since_s
        until_s = min(since_s + self._patience_s, self._cluster.deadline_s)
        if idle_s is None or idle_s > since_s:  # Others have rows.
            until_s = math.inf
        wait = Wait(since_s, until_s)
        wait.failed(trouble.error, until_s)
        return wait

    @property
    def _patience_s(self) -> float:
        is_endless = self._cluster.waits.are_endless
        return math.inf if is_endless else self._cluster.settings.request_timeout_s

    @property
    def requests(self) -> list[Request]:
        return self._fetches.requests

    @property
    def positions(self) -> dict[Any, int]:
        return {self._shown(p): p.delivered for p in self._positions.values()}

    def _shown(self, position: Position) -> int | tuple[str, int]:
        return position.partition if self.is_single else (position.topic, position.partition)

    def position(self, partition: int | tuple[str, int]) -> Position:
        """Return that of a partition as callers name it. Raises UnknownPartition."""
        for position in self._positions.values():
            if self._shown(position) == partition:
                return position
        read = list(self.positions)
        if isinstance(partition, int) and self.is_single:
            raise UnknownPartition(
                f"{self.topic}-{partition} is not read here; {sorted(read)} are.",
                topic=self.topic,
                partition=partition,
            )
        if self.is_single or isinstance(partition, int):
            form = "a number" if self.is_single else "a pair of a topic and a number"
            raise InvalidArgument(f"{partition!r}: partitions of this consumer are each {form}.")
        name, number = partition
        raise UnknownPartition(
            f"{name}-{number} is not read here; {sorted(read)} are.", topic=name, partition=number
        )

    @property
    def last_key(self) -> PartitionKey:
        """The partition of the batch that was returned last."""
        assert self._on_its_way is not None
        return self._on_its_way[0].key

    @property
    def keys(self) -> list[PartitionKey]:
        return list(self._positions)

    def ends(self) -> Operation[dict[Any, int]]:
        """Return where each partition's readable rows end now."""
        return (yield from self._cluster.retrying(self._ends))

    def _ends(self) -> Operation[dict[Any, int]]:
        found: dict[Any, int] = {}
        for topic_id, reader in self._reader_of.items():
            asked = dict.fromkeys((p for t, p in self._positions if t == topic_id), LATEST)
            at = yield from reader.finder.offsets(asked)
            ends = ((self._positions.get((topic_id, p)), end) for p, end in at.items())
            found.update((self._shown(one), end) for one, end in ends if one is not None)
        return found

    def go_to(self, partition: Any, end: Literal["earliest", "latest"]) -> Operation[None]:
        """Go on at one end of a log whose rows at the position are gone, with a warning."""
        position = self.position(partition)
        finder = self._reader_of[position.topic_id].finder
        asked = {position.partition: EARLIEST if end == "earliest" else LATEST}
        found = yield from self._cluster.retrying(lambda: finder.offsets(asked))
        offset = found[position.partition]
        logger.warning(
            "%s-%d: the rows at offset %d are gone; going on at %s, offset %d",
            position.topic, position.partition, position.offset, end, offset,
        )  # fmt: skip
        self.seek(partition, offset)

    def seek(self, partition: int | tuple[str, int], offset: int) -> None:
        position = self.position(partition)
        if not isinstance(offset, int) or offset < 0:
            raise InvalidArgument(f"seek: {offset!r} is not an offset from 0 on.")
        self._deferred = None  # the next answer repeats an error that still holds
        self._fetches.troubles.pop(position.key, None)
        ready, held = self._rows_without({position.key})
        # Ctrl-C arrives before it or not at all: rows are not dropped without the move.
        position.seek(offset)
        self._ready, self._held = ready, held

    def _rows_without(self, keys: Collection[PartitionKey]) -> tuple[_Ready, _Held]:
        ready = deque(one for one in self._ready if one[0].key not in keys)
        return ready, {key: rows for key, rows in self._held.items() if key not in keys}

    def pause(self, partition: int | tuple[str, int]) -> None:
        """Return no rows of a partition; those that were fetched are kept."""
        position = self.position(partition)
        if position.is_paused:
            return
        ready, held = self._rows_without({position.key})
        assert position.key not in held, "rows are held for paused partitions only"
        held[position.key] = [one for one in self._ready if one[0] is position]
        self._ready, self._held, position.is_paused = ready, held, True

    def resume(self, partition: int | tuple[str, int]) -> None:
        position = self.position(partition)
        if not position.is_paused:
            return
        ready, held = self._rows_without({position.key})
        ready += self._held.get(position.key, ())
        self._ready, self._held, position.is_paused = ready, held, False
        self._idle_since_s = None  # Its rows were not waited for.
        assert position.key not in self._held, "rows are held for paused partitions only"

    def handed_out(self) -> None:
        self._on_its_way = None

    def take_back(self) -> None:
        # The caller was interrupted before it received the last batch.
        if self._on_its_way:
            position, stored, *before = self._on_its_way
            if not (self._ready and self._ready[0][1] is stored):
                self._ready.appendleft((position, stored))
            assert self._ready[0][1] is stored
            position.delivered, position.delivered_epoch = before

    # --- opening --------------------------------------------------------------------------------
    def open(self) -> Operation[None]:
        if self.is_single:
            yield from about(self.topic, self._cluster.retrying(self._open))
        else:
            yield from self._cluster.retrying(self._open)

    def _open(self) -> Operation[None]:
        positions: dict[PartitionKey, Position] = {}
        if self.is_single:
            (reader,) = self.readers.values()
            # A settled plan has just asked for it.
            chosen = yield from reader.open(fresh=not self._options.is_settled)
            positions = yield from reader.resolve(chosen)
        else:
            yield from self._cluster.refresh(list(self.readers))
            for name, reader in self.readers.items():
                chosen = yield from about(name, reader.open(fresh=False))
                positions |= yield from about(name, reader.resolve(chosen))
        self._set(positions, {reader.topic_id: reader for reader in self.readers.values()})
        self._look_again_s = self.clock() + self._look_every_s()

    def _set(
        self, positions: dict[PartitionKey, Position], readers: dict[bytes, TopicReader]
    ) -> None:
        """Add partitions, and take out those that `positions` lacks."""
        gone, new = self._positions.keys() - positions.keys(), positions.keys() - self._positions
        ready, held = self._rows_without(gone)
        turns = self._turns.without(gone).added(key for key in positions if key in new)
        by_name = {reader.name: reader for reader in readers.values()}
        self._fetches.names.update({topic_id: one.name for topic_id, one in readers.items()})
        self._fetches.forget(gone)
        self._reader_of, self.readers = readers, by_name
        self._positions, self._turns = positions, turns
        self._ready, self._held = ready, held
        if self._on_its_way is not None and self._on_its_way[0].key in gone:
            self._on_its_way = None
        self._fetches.names = {topic_id: one.name for topic_id, one in readers.items()}
        if gone:  # The error may be that of a partition that is not read any more.
            self._deferred = None
        assert {topic_id for topic_id, _ in positions} <= readers.keys(), "each topic has a decoder"
        assert len(turns) == len(positions), "each partition has its turn"

    # --- partitions that come and go ------------------------------------------------------------
    def assign(self, added: Sequence[Assigned], removed: Iterable[PartitionKey]) -> Operation[None]:
        """Read other partitions from now on; after an error those of `added` are not read.

        What was fetched of a removed partition is dropped, and so is what is in flight. One whose
        topic is gone is not read, after a warning.
        """
        assert self.is_assigned, "the caller of a consumer chooses what is read"
        self._remove(removed)
        yield from self._fetches.leave_useless()
        # Grouped, as a topic's leaders are asked for all offsets at once.
        by_topic: dict[tuple[str, bytes], list[Assigned]] = {}
        assert len({one.key for one in added}) == len(added), "a partition is added once"
        for one in added:
            if one.key not in self._positions:
                by_topic.setdefault((one.topic, one.topic_id), []).append(one)
        positions: dict[PartitionKey, Position] = {}
        readers: dict[bytes, TopicReader] = {}
        for (name, topic_id), ones in by_topic.items():
            reader = self._reader_of.get(topic_id)
            if reader is None:
                own = replace(self._options, topic_id=topic_id, partitions=())
                reader = TopicReader(self._cluster, name, own)
            attempt = partial(self._assigned, reader, ones, is_new=topic_id not in self._reader_of)
            try:
                positions |= yield from about(name, self._cluster.retrying(attempt))
            except (UnknownTopic, UnknownTopicId) as error:
                logger.warning("%s: its partitions are not read: %s", name, error.message)
                continue
            readers[topic_id] = reader
        self._set({**self._positions, **positions}, {**self._reader_of, **readers})

    def _remove(self, keys: Iterable[PartitionKey]) -> None:
        gone = {*keys}
        positions = {k: position for k, position in self._positions.items() if k not in gone}
        read = {topic_id for topic_id, _ in positions}
        self._set(positions, {t: reader for t, reader in self._reader_of.items() if t in read})

    def _assigned(
        self, reader: TopicReader, ones: Sequence[Assigned], *, is_new: bool
    ) -> Operation[dict[PartitionKey, Position]]:
        if is_new:
            yield from reader.open(fresh=False)
        yield from reader.learn([one.partition for one in ones])
        fixed = {
            one.key: Position(
                one.topic,
                one.key,
                one.offset,
                None,
                last_epoch=one.leader_epoch,
                delivered=one.offset,
                delivered_epoch=one.leader_epoch,
            )
            for one in ones
            if one.offset >= 0
        }
        unknown = [one.partition for one in ones if one.offset < 0]
        return {**fixed, **(yield from reader.resolve(unknown))}

    # --- reading --------------------------------------------------------------------------------
    def next(self, timeout_s: float) -> Operation[ConsumerBatch | None]:
        """Return the next batch; None at the end, or when `timeout_s` have passed.

        Raises:
            OffsetOutOfRange: the rows at a position were deleted by retention, or lost.
            LogTruncated: rows that were read were lost with an earlier leader.
            CorruptBatch: at every call, until `seek`.
            InvalidResponse: the broker does not return rows that exist.
        """
        deadline_s = self.clock() + timeout_s
        while True:
            batch = yield from self._next_ready()
            if batch is not None or self.is_at_end:
                self._idle_since_s = None
                return batch
            if self._idle_since_s is None:
                self._idle_since_s = self.clock()
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                raise deferred
            wait_s = 0.0
            round_began_s = self.clock()
            try:
                yield from self._look_around()
                yield from self._fetches.leave_deposed()
                yield from self._start()
                pending = yield from self._fetches.wait(deadline_s)
                if pending is not None:
                    yield from self._receive(pending)
                    yield from self._look_for_ends()
                    # In flight while the caller uses these rows.
                    yield from self._start()
            except UnknownTopicId as error:
                resolved = yield from self._resolve_unknown_id(error)
                if resolved is None:
                    continue
                wait_s = self._after_failure(resolved, round_began_s)
            except QuiverlogError as error:
                wait_s = self._after_failure(error, round_began_s)
            if self._ready:
                continue
            left_s = deadline_s - self.clock()
            if left_s <= 0:
                return None
            if wait_s:
                yield Sleep(min(wait_s, left_s))

    def _resolve_unknown_id(self, error: UnknownTopicId) -> Operation[QuiverlogError | None]:
        """Return the error itself where a topic is gone, else one that passes.

        None: the topic is not read any more, as others assign the partitions.
        """
        found: QuiverlogError = error
        name = error.details.get("topic")
        for topic_id, reader in self._reader_of.items():
            if name not in (None, reader.name):
                continue
            found = yield from self._cluster.resolve_unknown_id(reader.name, topic_id, error)
            if found is not error:
                continue
            if not self.is_assigned:
                return named(error, reader.name)
            logger.warning("%s: its partitions are not read: %s", reader.name, error.message)
            self._remove([key for key in self._positions if key[0] == topic_id])
            return None
        return found

    def at_hand(self) -> Operation[list[ConsumerBatch]]:
        """Return waiting batches, up to one that is compressed or cannot be decoded."""
        batches: list[ConsumerBatch] = []
        try:
            while self._ready and not self._ready[0][1].header.is_compressed:
                batch = yield from self._next_ready()
                if batch is None:
                    break
                batches.append(batch)
        except QuiverlogError as error:
            logger.debug("the next call meets it again: %s", error)
        return batches

    @property
    def is_at_end(self) -> bool:
        # More partitions may be assigned; rows that are held come after a `resume`.
        if self._ready or self._held or self.is_assigned:
            return False
        return all(p.is_done for p in self._positions.values())

    def _next_ready(self) -> Operation[ConsumerBatch | None]:
        # A batch stays queued until it is decoded.
        while self._ready:
            position, stored = self._ready[0]
            batch: ConsumerBatch | None = None
            try:
                batch = yield from self._reader_of[position.topic_id].decoder.decode(stored)
            except QuiverlogError as error:
                if stored.follower != LEADER:
                    self._read_again(position, stored, error)
                    continue
                if not (self._options.skip_corrupt and isinstance(error, CorruptBatch)):
                    raise
                if "next_offset" not in error.details:
                    raise
                logger.warning("stepping over rows (skip_corrupt): %s", error.message)
            assert position.delivered < stored.next_offset <= position.offset
            self._on_its_way = position, stored, position.delivered, position.delivered_epoch
            self._ready.popleft()
            position.delivered = stored.next_offset
            position.delivered_epoch = stored.header.leader_epoch
            if batch is not None:
                return batch
        return None

    def _read_again(self, position: Position, stored: StoredBatch, error: QuiverlogError) -> None:
        logger.warning("rows of a follower are read again from the leader: %s", error.message)
        self._fetches.choice.failed(position.key, stored.follower, self.clock())
        ready, _ = self._rows_without({position.key})
        assert position.delivered < position.offset, "rows that were handed out are not read again"
        self._ready = ready
        position.offset, position.last_epoch = position.delivered, position.delivered_epoch

    def _start(self) -> Operation[None]:
        for trouble in (yield from self._fetches.start(self._positions, self._turns)):
            self._check_patience(trouble)

    def _receive(self, pending: PendingReply) -> Operation[None]:
        request = self._fetches.take(pending)
        assert request.offsets.keys() <= self._positions.keys()
        try:
            parts = yield from self._fetches.finish(request)
        except QuiverlogError as error:
            since_s = self.clock() - request.waited_s  # Includes the wait of earlier rounds.
            if request.offsets:
                self._check_patience(self._fetches.failed(request.offsets, error, since_s))
            return
        current = []
        for fetched in parts:
            position = self._positions.get((fetched.topic_id, fetched.partition))
            # Without it: the caller has called `seek` meanwhile, or it is not read any more.
            if position is not None and request.offsets.get(position.key) == position.offset:
                current.append((position, fetched))
        if request.source.is_follower:
            self._receive_copies(request, current)
        else:
            self._receive_rows(request, current)

    def _receive_copies(
        self, request: Request, parts: Sequence[tuple[Position, FetchedPartition]]
    ) -> None:
        # Rows are progress; the leader is asked about all else.
        source = request.source
        assert source.is_follower
        behind: list[PartitionKey] = []
        brought = failed = False
        for position, fetched in parts:
            offset = position.offset
            try:
                has_rows = self._take(position, fetched, source)
            except QuiverlogError as error:
                failed = True
                self._fetches.leave_follower(source, (position.key,), error)
                continue
            self._fetches.troubles.pop(position.key, None)
            brought = brought or has_rows
            self._fetches.choice.follower_answered(
                position.key,
                source.follower,
                offset=offset,
                next_offset=position.offset,
                high_watermark=fetched.high_watermark,
                now_s=self.clock(),
            )
            if position.offset < position.known_end and not has_rows:
                behind.append(position.key)
        if not brought:  # Else other partitions may have filled the answer.
            for key in behind:
                self._fetches.choice.failed(key, source.follower, self.clock())
        self._fetches.pauses.answered(request, brought=brought, failed=failed or bool(behind))
        if brought:
            self._failures = 0
            self._recovered()

    def _receive_rows(
        self, request: Request, parts: Sequence[tuple[Position, FetchedPartition]]
    ) -> None:
        assert not request.source.is_follower
        failures: dict[PartitionKey, QuiverlogError] = {}
        brought = False
        limit_s = self._cluster.settings.request_timeout_s
        for position, fetched in parts:
            try:
                has_rows = self._take(position, fetched, request.source)
                if not (has_rows or brought):  # Else other partitions have filled the answer.
                    position.check_stalled(fetched.high_watermark, self.clock(), limit_s)
                self._fetches.choice.leader_answered(
                    position.key, brought=has_rows, now_s=self.clock()
                )
                self._fetches.troubles.pop(position.key, None)
                brought = brought or has_rows
                continue
            except QuiverlogError as why:
                partial = why
            if position.moved_start(partial, fetched):
                continue
            if self._options.skip_corrupt and position.skipped_damage(partial):
                brought = True
                continue
            failures[position.key] = partial
        self._fetches.pauses.answered(request, brought=brought, failed=bool(failures))
        self._receive_failures(failures)
        self._failures = 0
        self._recovered()

    def _receive_failures(self, failures: Mapping[PartitionKey, QuiverlogError]) -> None:
        assert failures.keys() <= self._positions.keys()
        # Rows of other partitions are returned first. A retriable error must not hide one that is
        # not.
        for key, failure in sorted(failures.items(), key=lambda one: one[1].retriable):
            if failure.retriable:
                self._check_patience(self._fetches.failed((key,), failure, self.clock()))
            elif not self._ready:
                raise failure
            else:
                self._deferred = self._deferred or failure

    def _recovered(self) -> None:
        self._failing_since_s = self._failure = None
        if not self._fetches.troubles:
            self._logged_reasons.clear()

    def _check_patience(self, trouble: Trouble) -> None:
        """Raise the error of a partition that fails for long, if no other has had rows either."""
        assert self._idle_since_s is not None, "a caller waits for rows"
        assert trouble.error.retriable
        since_s = max(trouble.since_s, self._idle_since_s)
        limit_s = min(since_s + self._patience_s, self._cluster.deadline_s)
        if self.clock() >= limit_s and not self._ready:
            self._failing_since_s = since_s  # `_after_failure` comes to the same end.
            self._fetches.troubles.clear()
            raise trouble.error
        self._log(self._wait_for(trouble))

    def _log(self, wait: Wait) -> None:
        if wait.reason not in self._logged_reasons:
            self._logged_reasons.update(self._cluster.waits.log_long(wait))

    def _take(self, position: Position, fetched: FetchedPartition, source: Source) -> bool:
        """Queue a partition's batches; False: there are none. Raises its error."""
        error = fetch_error(fetched, position.topic, position.offset)
        if error is not None:
            raise error
        batches = stored_batches(
            fetched, position.topic, position.offset, position.end, follower=source.follower
        )
        if not source.is_follower:
            position.known_end = max(position.known_end, fetched.high_watermark)
        if not batches:
            return False
        next_offset, epoch = batches[-1].next_offset, batches[-1].header.leader_epoch
        assert next_offset > position.offset, "a reader that does not move spins"
        found = [(position, stored) for stored in batches]
        # It was in flight when the partition was paused.
        if position.is_paused:
            self._held[position.key] = [*self._held.get(position.key, ()), *found]
        else:
            self._ready += found  # no call from here on
        position.offset, position.last_epoch = next_offset, epoch
        position.is_from_earliest = position.may_be_gone = False
        position.empty_since_s = None
        self._cluster.progressed()
        self._turns = self._turns.served(position.key)
        assert len(self._turns) == len(self._positions), "each partition has one turn"
        return True

    def _look_for_ends(self) -> Operation[None]:
        try:
            gone = yield from first_gone(self._cluster, self._positions.values())
        except OffsetNotAvailable:  # The wait for these rows is over already.
            self._failing_since_s = self.clock() - self._cluster.settings.request_timeout_s
            raise
        if gone is not None and not self._ready:
            raise gone
        self._deferred = self._deferred or gone

    def _after_failure(self, error: QuiverlogError, round_began_s: float) -> float:
        if self._failing_since_s is None:
            self._failing_since_s = round_began_s
        now_s = self.clock()
        limit_s = self._failing_since_s + self._patience_s
        if not error.retriable or now_s >= min(limit_s, self._cluster.deadline_s):
            self._recovered()
            raise self._named(error)
        self._failure = error
        if (wait := self.waiting()) is not None:
            self._log(wait)
        if error.refresh_metadata:
            self._cluster.invalidate_topics()
        self._failures += 1
        return pause_s(error, self._failures, self._cluster.jitter())

    def _named(self, error: QuiverlogError) -> QuiverlogError:
        if len(self.readers) == 1:
            return named(error, self.topic)
        if "topic" not in error.details and not error.message.startswith(f"{self.topic}: "):
            error.message = f"{self.topic}: {error.message}"
        return error

    @property
    def _finds_partitions(self) -> bool:
        return self._options.follows_all and not self.is_assigned

    def _look_every_s(self) -> float:
        if self._finds_partitions:
            return NEW_PARTITIONS_EVERY_S
        return IN_SYNC_EVERY_S if self._fetches.choice.wants_followers else math.inf

    def _look_around(self) -> Operation[None]:
        """Refresh the metadata when due; read added partitions from their first row on."""
        if self.clock() < self._look_again_s:
            return
        self._look_again_s = self.clock() + self._look_every_s()
        yield from self._cluster.refresh(list(self.readers))
        topics = yield from self._fetches.current_topics(self._positions)
        if not self._finds_partitions:
            return
        for topic_id, topic in topics.items():
            known = self._positions
            new = [p.partition for p in topic.partitions if (topic_id, p.partition) not in known]
            if new:
                reader = self._reader_of[topic_id]
                added = yield from reader.finder.added(new)
                self._set({**self._positions, **added}, self._reader_of)
