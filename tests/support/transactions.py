"""One node with transactions, and staging leaders that the test plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS
from quiverlog.core.transactions.coordinator import Coordinator
from quiverlog.errors import QuiverlogError
from quiverlog.node.apis.handlers import STEPS_HANDLERS
from quiverlog.node.node import Node
from quiverlog.node.runtime.events import Tick
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.tasks import Call
from quiverlog.node.transactions.hosted import LEISURE_US
from quiverlog.types import Durability
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    CountedTarget,
    CountStagedRequest,
    CountStagedResponse,
    OpenTransactionRequest,
    PublishedTarget,
    PublishRequest,
    PublishResponse,
)

from . import node as nodes
from .node import NodeDriver

__all__ = ["ATTEMPT", "OTHER", "TransactionDriver", "attempt"]

ATTEMPT, OTHER = b"a" * 16, b"b" * 16


def attempt(name: bytes = ATTEMPT, rows: int = 5, partition: int = 0) -> CommittedAttempt:
    return CommittedAttempt(name, rows, [CommittedPart(partition, 0, 2 * rows, rows)])


class TransactionDriver(NodeDriver):
    """`counts`, `publishes`: what staging leaders were asked and have not answered."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.counts: list[tuple[CountStagedRequest, Then]] = []
        self.publishes: list[tuple[PublishRequest, Then]] = []
        super().__init__(root, **config)
        self.target = self.create("target")
        # The first OPEN has the topics made.
        self.done(OpenTransactionRequest(transactional_id="first", instance=b"x"))
        self.settle()

    def start(self) -> None:
        self.counts.clear()
        self.publishes.clear()

        def make(*args: Any, **options: Any) -> Node:
            node = Node(*args, **options)
            node.broker.coordinators.leaders.local = {
                CountStagedRequest: self._asked(self.counts),
                PublishRequest: self._asked(self.publishes),
            }
            return node

        with mock.patch.object(nodes, "Node", make):
            super().start()

    @staticmethod
    def _asked(waiting: list[Any]) -> Any:
        return lambda request, then, _now: waiting.append((request, then))

    def settle(self) -> None:
        self.send(Tick())
        while self.syncs:
            self.flush()

    def record_ends(self) -> None:
        """Have recorded what is appended with other records, or after a while."""
        self.advance(LEISURE_US // 1000)
        self.settle()

    def done(self, request: Any) -> Any:
        """The response, when all that it waits for was flushed."""
        correlation = self.request(request)
        self.settle()
        answer = self.answer(correlation)
        assert answer is not None, "not answered"
        return answer[0]

    def steps(self, request: Any) -> int:
        """Begin a request between brokers, which this lone one refuses from outside; returns the
        correlation id."""
        correlation = self._number(request)
        broker, call = self.node.broker, Call(1, request, self.now)
        broker.tasks.start(call, STEPS_HANDLERS[type(request)](broker, call))
        self.send(Tick())
        return correlation

    # --- clients -------------------------------------------------------------------------------
    def open(self, instance: bytes = b"one", tid: str = "app", timeout_ms: int = 900_000) -> Any:
        return self.done(
            OpenTransactionRequest(transactional_id=tid, instance=instance, timeout_ms=timeout_ms)
        )

    def commit_request(
        self, epoch: int, sequence: int, *attempts: CommittedAttempt, **options: Any
    ) -> CommitTransactionRequest:
        return CommitTransactionRequest(
            transactional_id="app",
            epoch=epoch,
            sequence=sequence,
            attempts=list(attempts) or [attempt()],
            **options,
        )

    def commit(self, *args: Any, **options: Any) -> int:
        """Sends it; returns the correlation id."""
        correlation = self.request(self.commit_request(*args, **options))
        self.settle()
        return correlation

    def abort(self, epoch: int, sequence: int, *, force: bool = False) -> Any:
        return self.done(
            AbortTransactionRequest(
                transactional_id="app", epoch=epoch, sequence=sequence, force=force
            )
        )

    def response(self, correlation: int) -> Any:
        answer = self.answer(correlation)
        return None if answer is None else answer[0]

    # --- staging leaders -----------------------------------------------------------------------
    def end(self, then: Then, response: object, error: QuiverlogError | None = None) -> None:
        then(response, error, self.now)
        self.settle()

    def count(self, *, is_whole: bool = True, **options: Any) -> CountStagedRequest:
        """Answers the oldest COUNT_STAGED."""
        request, then = self.counts.pop(0)
        targets = [CountedTarget(self.target, 0, sum(a.row_count for a in request.attempts))]
        response = CountStagedResponse(
            is_whole=is_whole, **{"targets": targets, "durability": Durability.FLUSHED, **options}
        )
        self.end(then, response)
        return request

    def published(
        self, end_offset: int = 5, durability: int = Durability.FLUSHED
    ) -> PublishRequest:
        """Answers the oldest PUBLISH."""
        request, then = self.publishes.pop(0)
        targets = [PublishedTarget(self.target, 0, end_offset, 5)]
        self.end(then, PublishResponse(targets=targets, durability=durability))
        return request

    def machine(self, tid: str = "app") -> Coordinator:
        machine = self.node.broker.coordinators.find(tid).serve()
        assert isinstance(machine, Coordinator)
        return machine

    def topic_id(self, name: str) -> bytes:
        assert name in (STAGED, TRANSACTIONS)
        return self.node.broker.view.image.topics[name].topic_id
