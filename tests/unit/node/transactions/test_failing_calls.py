"""Each call of the system fails once, in a fixed course of transactions on one broker.

Every request is answered once, with a typed error where something failed. "Committed" is never
taken back; where the outcome of a COMMIT is not known, the same COMMIT has one after a restart; and
the topic has the rows of each transaction that has committed, once, and no others.
"""

from __future__ import annotations

import errno
import os
import shutil
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.client.transactions.questions import _REFUSED
from quiverlog.core.controller import internal_topics
from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.internal_topics import TRANSACTIONS
from quiverlog.errors import StagingFull
from quiverlog.node.assignment import assignment
from quiverlog.node.partitions.replica import log_config
from quiverlog.node.transactions import hosted
from quiverlog.storage.log.log import LogConfig
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    OpenTransactionRequest,
)
from tests.support.failing_os import CALLS, CallLog, failing_calls
from tests.support.node import GIB, SCHEMA, NodeDriver, batch_of
from tests.support.staged import make_staged, staged_batch, staged_row

PARTS = 4
NEVER_FULL = frozenset(("listdir", "lstat", "pread", "rmdir", "stat", "unlink"))
PARTITION = 1
HISTORY = SchemaHistory({1: SCHEMA})
_NOT_DECIDED = {kind.code for kind in _REFUSED}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments roll, and snapshots are taken, within the course."""

    def small(config: TopicConfig) -> LogConfig:
        return replace(log_config(config), segment_bytes=4096, index_interval_bytes=64)

    monkeypatch.setattr(assignment, "log_config", small)
    monkeypatch.setattr(hosted, "SNAPSHOT_LOG_BYTES_MIN", 4096)
    monkeypatch.setattr(internal_topics, "TRANSACTIONS_PARTITIONS", 1)  # The start is most of it.
    monkeypatch.setattr(internal_topics, "STAGED_PARTITIONS_MIN", PARTITION + 1)
    for name in ("fsync", "fdatasync"):  # A crash here is one of the process: nothing is lost.
        monkeypatch.setattr(os, name, lambda _: None)


class Course:
    """A client without a connection that breaks. `values` by sequence; `unknown`: COMMITs that have
    no outcome yet."""

    def __init__(self, root: Path) -> None:
        self.node = NodeDriver(root, cluster_id="c")
        self.staged = make_staged(self.node)
        self.topic = self.node.create()
        self.rest()
        self.epoch = self.sequence = 0
        self.lives = 0
        self.values: dict[int, list[int]] = {}
        self.unknown: dict[int, CommitTransactionRequest] = {}
        self.codes: set[tuple[str, int]] = set()
        # What was asked when, by the number of calls of the system before it.
        self.log = CallLog()
        self.asked: list[tuple[int, str]] = []

    def rest(self) -> None:
        for _ in range(300):
            self.node.run_until_idle()
            if not self.node.syncs:
                return
            self.node.flush()
        raise AssertionError("the node never comes to rest")

    def wait(self, ms: int) -> None:
        self.node.advance(ms)
        self.node.disk_space(10 * GIB)  # As the server does every second.
        self.rest()

    def ask(self, request: Any) -> Any:
        self.asked.append((len(self.log.names), type(request).__name__))
        correlation = self.node.request(request)
        self.rest()
        for _ in range(8):
            if self.node.answer(correlation) is not None:
                break
            self.wait(5_000)
        answer = self.node.answer(correlation)
        assert answer is not None, f"{type(request).__name__} was not answered"
        assert not self._bugs(), self._bugs()
        self.codes.add((type(request).__name__, answer[0].error_code))
        return answer[0]

    def _bugs(self) -> list[object]:
        return [line.fields for line in self.node.lines if line.event == "internal error"]

    # --- the client ----------------------------------------------------------------------------
    def open(self) -> bool:
        self.lives += 1
        request = OpenTransactionRequest(transactional_id="app", instance=str(self.lives).encode())
        for _ in range(3):
            answer = self.ask(request)
            if not answer.error_code:
                self.epoch = answer.epoch
                self.unknown.pop(answer.last_sequence, None)  # It has committed.
                return True
            self.wait(2_000)
        return False

    def stage(self, attempt: bytes, values: list[int]) -> CommittedPart | None:
        row = staged_row(
            self.topic, bytes(batch_of(values)), attempt=attempt, transactional_id="app",
            epoch=self.epoch, sequence=self.sequence,
        )  # fmt: skip
        self.asked.append((len(self.log.names), "stage"))
        correlation = self.node.produce(
            self.staged, staged_batch([row]), partition=PARTITION, timeout_ms=10_000
        )
        self.rest()
        if self.node.answer(correlation) is None:
            self.wait(11_000)
        answer = self.node.answer(correlation)
        assert answer is not None
        assert not self._bugs(), self._bugs()
        result = answer[0].partitions[0] if answer[0].partitions else answer[0]
        self.codes.add(("stage", result.error_code))
        if result.error_code:
            return None
        return CommittedPart(PARTITION, result.base_offset, result.base_offset + 1, len(values))

    def commit(self, request: CommitTransactionRequest) -> bool:
        """Return whether its outcome is known."""
        answer = self.ask(request)
        if answer.error_code in _NOT_DECIDED:
            self.unknown.setdefault(request.sequence, request)
            return False
        if answer.error_code:
            self.unknown[request.sequence] = request
            return False
        self.unknown.pop(request.sequence, None)
        return True

    def transact(self, size: int) -> None:
        """Stage two batches under an attempt, of which each may need several, and commit."""
        self.sequence += 1
        for number in range(3):
            attempt = bytes([self.sequence, number]) * 8
            base = 1_000 * self.sequence + 100 * number
            values = list(range(base, base + size))
            halves = values[: size // 2], values[size // 2 :]
            parts = [self.stage(attempt, half) for half in halves]
            if None in parts:
                self.wait(2_000)
                continue
            first, second = (part for part in parts if part is not None)
            part = CommittedPart(PARTITION, first.first_offset, second.next_offset, size)
            request = CommitTransactionRequest(
                transactional_id="app",
                epoch=self.epoch,
                sequence=self.sequence,
                attempts=[CommittedAttempt(attempt, size, [part])],
                timeout_ms=1_000,
            )
            self.values[self.sequence] = values
            for _ in range(3):
                if self.commit(request):
                    return
                self.wait(2_000)
            return

    def run(self) -> None:
        self.open()
        self.transact(10)
        self.transact(60)
        self.abort()
        self.open()
        self.transact(60)
        self.wait(70_000)  # What is staged and not committed is asked about.
        self.transact(10)

    def abort(self) -> None:
        """What it stages is never committed."""
        self.sequence += 1
        self.stage(bytes([self.sequence]) * 16, [-1, -2])
        self.ask(
            AbortTransactionRequest(
                transactional_id="app", epoch=self.epoch, sequence=self.sequence
            )
        )

    # --- what has become of it -----------------------------------------------------------------
    def check(self) -> None:
        self.node.crash()
        self.rest()
        assert not self.node.node.broker.assignment.offline
        never = []
        for sequence, request in sorted(self.unknown.items()):
            # Under a later epoch: a refusal is final.
            assert self.open()
            answer = self.ask(request)
            if answer.error_code:
                assert answer.error_code in _NOT_DECIDED, answer
                never.append(sequence)
        self.wait(60_000)
        expected = [
            value
            for sequence, values in sorted(self.values.items())
            if sequence not in never
            for value in values
        ]
        found: list[int] = []
        while len(found) < self.node.broker_end(self.topic):
            _, body = self.node.fetched(self.topic, len(found), entry_bytes_max=2**20)
            for header, view in split_batches(memoryview(body)):
                found += decode_batch(view, header, HISTORY).column(0).to_pylist()
        assert found == expected
        self.open()
        self.sequence = max(self.sequence, 100)
        self.transact(10)
        assert not self.unknown.get(self.sequence), "it goes on"


def one_run(root: Path, nth: int, number: int) -> Course:
    course = Course(root)
    with failing_calls(nth, number) as course.log:
        course.run()
    course.check()
    shutil.rmtree(root)
    return course


@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(part, marks=pytest.mark.long) for part in range(2, PARTS))]
)
def test_a_call_that_fails_once(tmp_path: Path, part: int) -> None:
    # Up to the one that fails, the calls are those of a course in which none does.
    sound = one_run(tmp_path / "sound", -1, 0)
    assert not sound.unknown
    names, marks = sound.log.names, [count for count, _ in sound.asked]
    # The same lines record what OPEN, COMMIT and ABORT decide.
    first: dict[tuple[object, ...], int] = {}
    for nth, place in enumerate(sound.log.places):
        asked = sound.asked[bisect_right(marks, nth) - 1][1]
        first.setdefault((asked, *place), nth)
    for at, nth in list(enumerate(first.values()))[part::PARTS]:
        number = errno.EIO if at % 2 or names[nth] in NEVER_FULL else errno.ENOSPC
        course = one_run(tmp_path / str(nth), nth, number)
        assert course.log.failed == names[nth]
        # A disk that is full is not called a bound of transactions.
        assert ("stage", StagingFull.code) not in course.codes


def test_the_course_covers_what_may_fail(tmp_path: Path) -> None:
    course = one_run(tmp_path, -1, 0)
    assert set(CALLS) - set(course.log.names) <= {
        "chmod", "ftruncate", "lstat", "listdir", "mkdir", "rmdir"
    }  # fmt: skip
    assert {one for _, one in course.asked} == {
        "OpenTransactionRequest", "stage", "CommitTransactionRequest", "AbortTransactionRequest"
    }  # fmt: skip
    broker = course.node.node.broker
    assert any(
        one.log.log_start_offset > 0
        for one in broker.replicas.values()
        if one.topic.name == TRANSACTIONS
    ), "a snapshot"
    assert broker.replicas[course.staged, PARTITION].log.log_start_offset > 0, "a trim"
