"""The reaper: staging leaders ask coordinators what became of staged rows, and give up the dead.

They ask about rows that are silent, and, where room is short, about undecided ones that keep the
most from being given up. Nothing is timed where nothing is staged.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final, NamedTuple

from quiverlog.core.transactions.coordinator import PINNED_MS_MAX, Resolved, Resolving
from quiverlog.core.transactions.staged import NEARLY_FULL_PERCENT, Key, Staged
from quiverlog.errors import CoordinatorNotReady, QuiverlogError, error_from_code
from quiverlog.node.runtime.effects import Peer, Purpose
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import Answer, Peers
from quiverlog.node.transactions.coordinators import Coordinators
from quiverlog.node.transactions.staging import Staging
from quiverlog.types import Now
from quiverlog.wire.transaction_messages import (
    ResolvedTransaction,
    ResolveStagedRequest,
    ResolveStagedResponse,
    StagedTransaction,
)

__all__ = ["Reaper"]

ROUND_MS: Final = 1_000
"""Between two looks at what is staged."""
QUESTIONS_MAX: Final = 4_000
QUESTIONS_PER_TURN: Final = 64
REQUESTS_MAX: Final = 16
"""PUBLISH has most of the places before a peer."""


class _Question(NamedTuple):
    """`partition`: of `__staged`."""

    partition: int
    key: Key
    pins_front: bool

    def transaction(self) -> StagedTransaction:
        return StagedTransaction(*self.key, pins_front=self.pins_front)


class Reaper:
    __slots__ = (
        "_asked", "_coordinators", "_node_id", "_outbox", "_peers", "_pinning", "_questions",
        "_requests", "_round_ms", "_round_us", "_staging",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        staging: Staging,
        coordinators: Coordinators,
        peers: Peers,
        outbox: Outbox,
        *,
        round_ms: int = ROUND_MS,
    ) -> None:
        self._node_id = node_id
        self._staging = staging
        self._coordinators = coordinators
        self._peers = peers
        self._outbox = outbox
        self._round_ms = round_ms
        self._round_us = 0
        self._questions: deque[_Question] = deque()
        # Without an answer.
        self._asked = 0
        self._requests = 0
        # Partitions whose front is asked about.
        self._pinning: set[int] = set()

    # --- turns ---------------------------------------------------------------------------------
    def next_us(self) -> int | None:
        if self._questions and self._requests < REQUESTS_MAX:
            return AT_ONCE_US
        return self._round_us if self._staging.holds_rows else None

    def tick(self, now: Now) -> None:
        if self._round_us <= now.mono_us and self._staging.holds_rows:
            self._round_us = now.mono_us + self._round_ms * 1000
            self._look(now)
        if self._questions and self._requests < REQUESTS_MAX:
            self._ask(now)

    def _look(self, now: Now) -> None:
        indexes = self._staging.indexes()
        for partition in self._full(indexes, now):
            key = indexes[partition].front()
            if key is not None:
                self._pinning.add(partition)
                self._questions.append(_Question(partition, key, pins_front=True))
        for partition, staged in indexes.items():
            count_max = max(0, QUESTIONS_MAX - self._asked - len(self._questions))
            for key in staged.to_ask(now.mono_us, count_max):
                self._questions.append(_Question(partition, key, pins_front=False))
        assert self._asked + len(self._questions) <= QUESTIONS_MAX + len(self._pinning)

    def _full(self, indexes: dict[int, Staged], now: Now) -> list[int]:
        """Return where room is short."""
        held = sum(one.bytes_held for one in indexes.values())
        is_short = 100 * held > NEARLY_FULL_PERCENT * self._staging.bytes_max
        found = []
        for partition, staged in indexes.items():
            oldest_us = staged.oldest_us
            if oldest_us is None or partition in self._pinning:
                continue
            is_old = now.mono_us - oldest_us > PINNED_MS_MAX * 1000
            # A front with little behind it is not closed for what the others hold.
            holds_much = is_short and staged.bytes_held * len(indexes) >= held
            if is_old and (holds_much or staged.is_nearly_full):
                found.append(partition)
        return found

    # --- asking --------------------------------------------------------------------------------
    def _ask(self, now: Now) -> None:
        by_leader: dict[int, list[_Question]] = {}
        for _ in range(min(len(self._questions), QUESTIONS_PER_TURN)):
            question = self._questions.popleft()
            leader_id = self._coordinators.leader_id(question.key.transactional_id)
            by_leader.setdefault(leader_id, []).append(question)
            self._asked += 1
        for leader_id, questions in by_leader.items():
            if leader_id == self._node_id:
                self._ask_here(questions, now)
            elif leader_id < 0:
                self._end(questions, CoordinatorNotReady("it has no leader now."))
            else:
                self._ask_peer(leader_id, questions, now)

    def _ask_here(self, questions: list[_Question], now: Now) -> None:
        failed, why = [], None
        for question in questions:
            try:
                resolving, wait = self._coordinators.resolve(question.transaction(), now)
            except Exception as error:
                failed.append(question)
                why = error.with_traceback(None)
                continue
            wait(partial(self._resolved, question, resolving))
        self._end(failed, why)

    def _resolved(
        self,
        question: _Question,
        resolving: Resolving,
        _result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        self._end([question], error)
        if error is None:
            self._take(question, resolving.standing, now)

    def _ask_peer(self, leader_id: int, questions: list[_Question], now: Now) -> None:
        self._requests += 1
        request = ResolveStagedRequest(
            broker_id=self._node_id, transactions=[one.transaction() for one in questions]
        )
        then = partial(self._answered, questions)
        try:
            self._peers.ask(Peer(leader_id, Purpose.ROWS), request, then, now)
        except QuiverlogError as error:
            then(None, error, now)

    def _answered(
        self,
        questions: list[_Question],
        answer: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        asked, questions[:] = list(questions), []
        if not asked:
            return  # Called again after a bug of ours.
        self._requests -= 1
        assert self._requests >= 0
        results: list[ResolvedTransaction] = []
        if error is None:
            assert isinstance(answer, Answer)
            response = answer.response
            code, message = response.error_code, response.error_message
            if not code:
                assert isinstance(response, ResolveStagedResponse)
                results = response.results
                for one in results:
                    if one.error_code:
                        code, message = one.error_code, one.error_message
            error = error_from_code(code, message) if code else None
        self._end(asked, error)
        for question, result in zip(asked, results, strict=False):
            if not result.error_code:
                self._take(question, result.state, now)

    # --- answers -------------------------------------------------------------------------------
    def _end(self, questions: list[_Question], error: BaseException | None) -> None:
        assert questions or error is None
        self._asked -= len(questions)
        assert self._asked >= 0
        self._pinning.difference_update(one.partition for one in questions if one.pins_front)
        if isinstance(error, QuiverlogError):
            self._outbox.log(
                "warning",
                "staged rows stay: what became of them is not answered",
                transactional_id=questions[0].key.transactional_id,
                questions=len(questions),
                why=error.message,
            )
        elif error is not None:
            self._outbox.internal_error("RESOLVE_STAGED", error)

    def _take(self, question: _Question, standing: int, now: Now) -> None:
        if standing not in (Resolved.DEAD, Resolved.PUBLISHED):
            return
        key = question.key
        try:
            batch_count = self._staging.give_up(question.partition, key, now)
        except QuiverlogError:
            return  # Another leader asks.
        if batch_count:
            self._outbox.log(
                "info",
                "staged rows given up",
                **key._asdict(),
                batches=batch_count,
                why=Resolved(standing).name.lower(),
            )
