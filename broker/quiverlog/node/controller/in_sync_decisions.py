"""ALTER_PARTITION at the controller, for requests of brokers and of its own broker.

Each partition is decided on its own (core.controller.alter_partition); accepted changes are
proposed together, and the response has the committed state.
"""

from __future__ import annotations

from functools import partial

from quiverlog.core.controller.alter_partition import (
    alter_partition,
    check_broker,
    find_partition,
)
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.replica_offline import replica_offline
from quiverlog.core.controller.replication_factor import factors_follow
from quiverlog.errors import InvalidRequest, NotController, QuiverlogError, ThrottledBroker
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.jobs import Then
from quiverlog.types import Now
from quiverlog.wire.replica_messages import (
    AlterPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    OfflineReplica,
)

__all__ = ["InSyncDecisions"]


class InSyncDecisions:
    __slots__ = ("_metadata", "_quorum")

    def __init__(self, quorum: Quorum, metadata: Metadata) -> None:
        self._quorum = quorum
        self._metadata = metadata

    def decide(self, request: AlterPartitionRequest, then: Then, now: Now) -> None:
        """Decide, and pass the response to `then` when the accepted changes are committed or
        failed.

        Raises:
            NotController: this node is not the controller.
            StaleBrokerEpoch: the sender has registered again.
        """
        if not self._quorum.is_leading:
            raise NotController
        check_broker(self._metadata.pending, request.broker_id, request.broker_epoch)
        records: list[Record] = []
        taken: list[AlterPartitionResult] = []
        response = AlterPartitionResponse()
        response.partitions, response.offline = [], []
        seen: set[tuple[bytes, int]] = set()

        def take(
            asked: AlterPartition | OfflineReplica, results: list[AlterPartitionResult]
        ) -> None:
            key = (asked.topic_id, asked.partition)
            result = AlterPartitionResult(*key)
            results.append(result)
            try:
                if key in seen:
                    raise InvalidRequest(f"partition {asked.partition} comes twice.")
                records.extend(self._decide(request, asked))
                taken.append(result)
            except QuiverlogError as error:
                _fail(result, error)
            seen.add(key)

        for proposed in request.partitions:
            take(proposed, response.partitions)
        for offline in request.offline:
            take(offline, response.offline)
        assert len(response.partitions) == len(request.partitions)
        assert len(records) <= len(taken), "each is one change at most"
        records.extend(factors_follow(self._metadata.pending, records))
        decided = partial(self._decided, response, taken, [then])
        if records:
            self._metadata.propose(records, now, decided)
        else:
            decided(None, None, now)

    def _decide(
        self, request: AlterPartitionRequest, asked: AlterPartition | OfflineReplica
    ) -> list[Record]:
        image, pending = self._metadata.image, self._metadata.pending
        broker_id, broker_epoch = request.broker_id, request.broker_epoch
        if isinstance(asked, OfflineReplica):
            key = (asked.topic_id, asked.partition)
            return replica_offline(pending, broker_id, broker_epoch, *key, asked.leader_epoch)
        try:
            return alter_partition(pending, broker_id, broker_epoch, asked)
        except QuiverlogError as error:
            try:
                _, held = find_partition(image, asked.topic_id, asked.partition)
                _, coming = find_partition(pending, asked.topic_id, asked.partition)
            except QuiverlogError:
                raise error from None
            # The error may follow from a pending change: if that fails, the leader would never get
            # a right answer.
            if held.partition_epoch != coming.partition_epoch:
                raise ThrottledBroker("a change of the partition is being decided.") from error
            raise

    def _decided(
        self,
        response: AlterPartitionResponse,
        taken: list[AlterPartitionResult],
        waiting: list[Then],
        _image: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        if not waiting:
            return  # Called again after a bug.
        failed = error if error is None or isinstance(error, QuiverlogError) else QuiverlogError()
        assert len(taken) <= len(response.partitions) + len(response.offline)
        for result in taken:
            assert not result.error_code, "it was accepted"
            try:
                if failed is not None:
                    raise failed
                _, partition = find_partition(
                    self._metadata.image, result.topic_id, result.partition
                )
            except QuiverlogError as failure:
                _fail(result, failure)
                continue
            result.leader_epoch = partition.leader_epoch
            result.partition_epoch = partition.partition_epoch
            result.in_sync_replicas = list(partition.in_sync_replicas)
        waiting.pop()(response, None, now)


def _fail(result: AlterPartitionResult, error: QuiverlogError) -> None:
    result.error_code = error.code
    result.error_message = error.message
