"""Publishing: committed rows go from this broker's partitions of `__staged` to their targets.

Reads the rows that `Queues` names, renumbers them, by a job where they are many, and sends them to
the leader of their target, which may be this broker. What fails is tried again for ever: the rows
are committed.

Invariant: each piece that is taken ends once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import (
    CorruptLog,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    StorageFault,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.limits import FORWARD_ANSWER_MS, FORWARD_READ_BYTES, FORWARD_TIMEOUT_MS, KIB
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.partitions.cold_reads import Loaded
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.effects import Peer, Purpose
from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import Answer, Peers
from quiverlog.node.transactions.forwarded import Batches, Forwarded, Targets
from quiverlog.node.transactions.queues import Piece, Publish, Queues
from quiverlog.node.transactions.renumbering import (
    Renumbered,
    RenumberJob,
    StagedRange,
    join,
)
from quiverlog.storage.segment.reading import views_of
from quiverlog.storage.segment.reading_jobs import NotResident
from quiverlog.types import Now
from quiverlog.wire.transaction_messages import (
    ForwardPartition,
    ForwardRequest,
    ForwardResponse,
)

__all__ = ["Forwarding", "Source"]

_AT_ONCE_BYTES: Final = 64 * KIB
"""Staged rows that are read, verified and numbered in one turn of the loop."""
_PIECES_PER_TURN: Final = 32
_LOST: Final = "rows of a committed transaction are lost"


class Source:
    """A partition of `__staged` that this broker leads, until `Forwarding.stop`.

    `staged`: the batches that were read last; their rows are for many targets.
    """

    __slots__ = ("missing_count", "replica", "staged")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.staged: StagedRange | None = None
        self.missing_count = 0


class Forwarding:
    __slots__ = (
        "_cluster_number", "_jobs", "_lookup", "_node_id", "_outbox", "_peers", "_view",
        "dropped_count", "missing_count", "queues", "targets",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        view: MetadataView,
        lookup: Lookup,
        jobs: Jobs,
        peers: Peers,
        targets: Targets,
        outbox: Outbox,
        cluster_number: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._lookup = lookup
        self._jobs = jobs
        self._peers = peers
        self._outbox = outbox
        self.targets = targets
        self._cluster_number = cluster_number
        self.queues = Queues()
        self.dropped_count = 0
        self.missing_count = 0

    # --- sources -------------------------------------------------------------------------------
    def begin(self, replica: Replica) -> Source:
        assert replica.state.leads
        return Source(replica)

    def add(self, source: Source, publish: Publish, now: Now) -> None:
        """Forward what a publish row names. The row is safe, and the source's earlier ones are
        added."""
        self.queues.add(source, publish, now.mono_us)

    def stop(self, source: Source) -> None:
        """Forward nothing more of it: another broker leads it."""
        self.queues.stop(source)
        source.staged = None

    # --- turns ---------------------------------------------------------------------------------
    @property
    def is_needed(self) -> bool:
        return bool(self.queues or self.queues.finished)

    def next_us(self) -> int | None:
        return 0 if self.queues.finished else self.queues.next_us()

    def run(self, now: Now) -> None:
        for _ in range(_PIECES_PER_TURN):
            piece = self.queues.take(now.mono_us)
            if piece is None:
                break
            try:
                self._begin(piece, now)
            except Exception as error:
                self._failed(piece, error, now)
        lost, self.queues.lost = self.queues.lost, []
        for piece in lost:
            self._count_lost(piece)
        finished, self.queues.finished = self.queues.finished, []
        for publish in finished:
            try:
                assert not publish.todo, "it is over with its last target"
                publish.then(publish)
            except Exception as bug:
                self._outbox.internal_error("after a publish", bug)

    def _failed(self, piece: Piece, error: BaseException, now: Now) -> None:
        if not isinstance(error, QuiverlogError):
            self._outbox.internal_error("forwarding", error)
            error = QuiverlogError()
        self.queues.failed(piece, error, now.mono_us)

    def _leader(self, piece: Piece) -> PartitionImage:
        """Raises NotLeader: there is none; UnknownTopicId: the topic is deleted."""
        topic_id, partition = piece.key
        # A leader of `__staged` has each topic of its rows in its metadata: the rows were staged
        # under an earlier leader epoch, or its own, by a broker that had the topic.
        topic = self._view.image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id.hex()}.")
        image = topic.partitions[partition]
        if image.leader_id < 0:
            raise NotLeader(f"{topic.name}-{partition} has no leader now.")
        return image

    # --- reading -------------------------------------------------------------------------------
    def _begin(self, piece: Piece, now: Now) -> None:
        try:
            self._leader(piece)
        except UnknownTopicId:
            self._deleted(piece)
            return
        self._read(piece, Loaded(), False, now)

    def _deleted(self, piece: Piece) -> None:
        topic_id, partition = piece.key
        row_count = self.queues.deleted(piece)
        self.dropped_count += row_count
        self._outbox.log(
            "warning",
            "rows of committed transactions are dropped: their topic is deleted",
            topic_id=topic_id.hex(),
            partition=partition,
            rows=row_count,
        )

    def _read(self, piece: Piece, loaded: Loaded, is_final: bool, now: Now) -> None:
        source = piece.source
        assert isinstance(source, Source)
        assert not piece.item_count, "it is read before it is sent"
        replica, first = source.replica, piece.head.offset
        staged = source.staged
        if staged is None or not staged.offset <= first < staged.next_offset:
            if loaded.error is not None:
                raise loaded.error
            reader = replica.log.reader
            if not reader.log_start_offset <= first < reader.log_end_offset:
                self.queues.skipped(piece, 1, piece.head.row_count, now.mono_us)
                return
            try:
                answers = reader.read_answers(
                    first,
                    bytes_max=FORWARD_READ_BYTES,
                    end_offset=min(piece.publish.next_offset, reader.log_end_offset),
                    cold_ok=False,
                    just_read=loaded.reads,
                )
            except NotResident as cold:
                loaded.take(cold)
                self._lookup.cold_read(replica, cold)(
                    partial(self._loaded, piece, loaded, is_final)
                )
                return
            except CorruptLog as error:
                self._corrupt(piece, source, error, now)
                return
            except OSError as error:
                self._lookup.unreadable(replica, error)
                raise StorageFault(f"reading staged rows failed: {error}.") from error
            staged = StagedRange(views_of(answers), first, answers[-1].next_offset)
            source.staged = staged
        job = RenumberJob(
            f"renumber {replica.name}",
            staged,
            piece.key,
            piece.items,
            range(piece.first, piece.end),
            piece.publish.producer_id,
            self._cluster_number(),
            is_final,
        )
        if staged.byte_count <= _AT_ONCE_BYTES:
            # The way to a thread and back would take longer.
            self._renumbered(piece, job.run(), None, now)
        else:
            self._jobs.start(job, partial(self._renumbered, piece), Urgency.ROWS)

    def _loaded(
        self,
        piece: Piece,
        loaded: Loaded,
        is_final: bool,
        _result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        try:
            loaded.failed(error, self._lookup)
            self._check_source(piece)
            self._read(piece, loaded, is_final, now)
        except Exception as failure:
            self._failed(piece, failure, now)

    @staticmethod
    def _check_source(piece: Piece) -> None:
        if piece.is_void:
            raise NotLeader("these rows are read again, or by another broker.")

    def _corrupt(self, piece: Piece, source: Source, error: CorruptLog, now: Now) -> None:
        replica = source.replica
        self._lookup.corrupt_read(replica, error)
        leadership = replica.state.leadership
        if leadership is not None and leadership.is_replicated:
            raise error  # Another replica has the rows, and is to lead.
        end_offset = max(error.details.get("end_offset", 0), piece.head.offset + 1)
        items = (piece.items[at] for at in range(piece.first, piece.end))
        lost = list(itertools.takewhile(lambda item: item.offset < end_offset, items))
        assert lost, "the damage has the row that was read"
        row_count = sum(item.row_count for item in lost)
        self.queues.skipped(piece, len(lost), row_count, now.mono_us)

    def _count_lost(self, piece: Piece) -> None:
        source, (topic_id, partition) = piece.source, piece.key
        assert isinstance(source, Source)
        self.log_lost(
            source,
            piece.missing_count,
            offset=piece.head.offset,
            topic_id=topic_id.hex(),
            partition=partition,
        )

    def log_lost(self, source: Source, row_count: int, **where: object) -> None:
        assert row_count > 0
        source.missing_count += row_count
        self.missing_count += row_count
        name = str(source.replica.name)
        self._outbox.log("error", _LOST, staged=name, rows=row_count, **where)

    # --- sending -------------------------------------------------------------------------------
    def _renumbered(
        self, piece: Piece, result: object, error: BaseException | None, now: Now
    ) -> None:
        try:
            if error is not None:
                raise error
            assert isinstance(result, Renumbered)
            self._check_source(piece)
            if result.suspect >= 0:
                source = piece.source
                assert isinstance(source, Source)
                # The bytes in memory may be wrong, and those on the disk right.
                source.replica.log.distrust(result.suspect)
                source.staged = None
                self._read(piece, Loaded(), True, now)
                return
            missing_count = result.missing_count
            if not result.batches:
                self.queues.skipped(piece, result.item_count, missing_count, now.mono_us)
                return
            self.queues.loaded(piece, result.item_count, result.byte_count, missing_count)
            self._send(piece, result, now)
        except Exception as failure:
            self._failed(piece, failure, now)

    def _send(self, piece: Piece, rows: Renumbered, now: Now) -> None:
        assert not piece.is_void
        last = rows.batches[-1].header
        assert last.base_sequence + last.row_count == piece.next_sequence, "the next follows it"
        # Again: another broker may have been elected while the job ran.
        image = self._leader(piece)
        entry = ForwardPartition(
            *piece.key,
            leader_epoch=image.leader_epoch,
            durability=piece.publish.durability,
            producer_id=piece.publish.producer_id,
            base_sequence=piece.sequence,
            batch_bytes=rows.byte_count,
        )
        if image.leader_id == self._node_id:
            self._send_here(piece, entry, rows)
            return
        # One target in a request: its answer waits for the slowest, and with it the next piece.
        request = ForwardRequest(
            broker_id=self._node_id, timeout_ms=FORWARD_TIMEOUT_MS, partitions=[entry]
        )
        body: list[bytes | memoryview] = [
            part for batch in rows.batches for part in (bytes(batch.head), batch.rows)
        ]
        peer = Peer(image.leader_id, Purpose.ROWS)
        then = partial(self._answered_there, piece)
        self._peers.ask(peer, request, then, now, body=body, timeout_ms=FORWARD_ANSWER_MS)

    def _send_here(self, piece: Piece, entry: ForwardPartition, rows: Renumbered) -> None:
        def batches(_schemas: object) -> Batches:
            return [(batch.header, join(batch)) for batch in rows.batches]

        then = partial(self._take_answer, piece)
        self.targets.appends.add(Forwarded(self.targets, [(entry, batches)], then))

    def _answered_there(
        self, piece: Piece, answer: object, error: BaseException | None, now: Now
    ) -> None:
        if error is not None:
            self._failed(piece, error, now)
            return
        assert isinstance(answer, Answer)
        response = answer.response
        if response.error_code:
            error = error_from_code(response.error_code, response.error_message)
            self._failed(piece, error, now)
            return
        assert isinstance(response, ForwardResponse)
        self._take_answer(piece, response, None, now)

    def _take_answer(
        self, piece: Piece, response: ForwardResponse, bug: Exception | None, now: Now
    ) -> None:
        if bug is not None or len(response.partitions) != 1:
            self._failed(piece, bug or QuiverlogError(), now)
            return
        (result,) = response.partitions
        if not result.error_code:
            self.queues.acknowledged(piece, result.end_offset, result.durability, now.mono_us)
            return
        error = error_from_code(result.error_code, result.error_message)
        if isinstance(error, OutOfOrderSequence) and result.expected_sequence >= 0:
            self.queues.go_back(piece, result.expected_sequence, error, now.mono_us)
        else:
            self.queues.failed(piece, error, now.mono_us)
