"""The holder of a transactional id against a real coordinator, over a network that lies.

Requests are not sent, lost, served twice or late, their answers lost; coordinators die with what
they proposed; other programs open the id in between. At the end all that is still under way
arrives. Then: what the client reported of each transaction is what the log has of it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from quiverlog.client.base.commands import Call, CallMany, Operation, Reply, Sleep
from quiverlog.client.base.results import Address, PartitionInfo, TopicInfo
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.client.producer.base import producer_options
from quiverlog.client.transactions.transaction import Holder, Transaction
from quiverlog.core.transactions.coordinator import Coordinator, Standings
from quiverlog.core.transactions.records import Committed, Part, Record, digest_of
from quiverlog.errors import (
    CommitUnknown,
    ConnectionClosed,
    ConnectionFailed,
    NotLeader,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    StagedRowsLost,
    TransactionBusy,
    TransactionFenced,
)
from quiverlog.types import TRANSACTIONS_TOPIC, Compression, Durability, Now
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    CommitTransactionResponse,
    OpenTransactionRequest,
    OpenTransactionResponse,
)
from tests.sim.mutations import Mutation, planted

# A transaction whose check fails is not ended.
pytestmark = pytest.mark.filterwarnings("ignore::quiverlog.client.producer.base.UnsentRows")

NAME = "app"
TIMEOUT_S = 2.0
STEPS = 12
SEEDS = 150
SEEDS_PER_BUG = 500
HOME = Address("127.0.0.1", 1)
HOLDER = "client.transactions.transaction:Holder"
QUESTIONS = "client.transactions.questions"

ASKS = "self.run(commit_transaction(self.cluster, decided, timeout_s=timeout_s))"

BUGS: dict[str, tuple[Mutation, ...]] = {
    "resolved under the same epoch": (
        Mutation(
            f"{HOLDER}._resolve",
            ASKS,
            f"try:\n            {ASKS}\n        except QuiverlogError as error:\n"
            "            if error.code != 89:\n                raise\n            return 'aborted'",
        ),
    ),
    "a commit before the end of the epoch is called an abort": (
        Mutation(
            f"{HOLDER}._resolve",
            'return "committed" if self.abort(ending, timeout_s) else "aborted"',
            'self.abort(ending, timeout_s)\n        return "aborted"',
        ),
    ),
    "a later sequence is called an abort": (
        Mutation(
            f"{HOLDER}._resolve",
            'return "unknown"  # Another client',
            'return "aborted"  # Another client',
        ),
    ),
    "what a forgotten id has committed is called an abort": (
        Mutation(
            f"{HOLDER}._resolve",
            'return "unknown"  # Forgotten:',
            'return "aborted"  # Forgotten:',
        ),
    ),
    "the outcome is forgotten where the next step fails": (
        Mutation(f"{HOLDER}.begin", "self.previous = self._resolve", "self._resolve"),
    ),
    "a lost answer is taken for a refusal": (
        Mutation(
            f"{QUESTIONS}:commit_transaction",
            "was_unknown, is_unknown = is_unknown, True",
            "was_unknown = is_unknown",
        ),
    ),
    "a refusal makes up for a try without an answer": (
        Mutation(
            f"{QUESTIONS}:commit_transaction",
            "except _REFUSED:\n            is_unknown = was_unknown",
            "except _REFUSED:\n            is_unknown = False",
        ),
    ),
    "an interrupted commit is taken for none": (
        Mutation(
            "client.transactions.transaction:Transaction.commit",
            "# No answer, or interrupted: the request may have been sent.",
            "if not isinstance(error, QuiverlogError):\n"
            "                self._holder.unanswered = None",
        ),
    ),
}

FORGOTTEN_SINCE = Mutation(
    f"{HOLDER}._resolve",
    'return "unknown"  # Forgotten since',
    'return "aborted"  # Forgotten since',
)


def topic(name: str, partitions: int) -> TopicInfo:
    places = tuple(PartitionInfo(number, 1, 1) for number in range(partitions))
    return TopicInfo(name, b"t" * 16, 1, (), Durability.FLUSHED, 1 << 20, Compression.NONE, places)


class KnownCluster(Cluster):
    """A cluster whose metadata are known: other tests ask for them."""

    def topic(self, name: str, **_: Any) -> Operation[TopicInfo]:
        assert name == TRANSACTIONS_TOPIC
        return topic(name, 16)
        yield

    def address_of(self, node_id: int) -> Address:
        return HOME


class World:
    """The log, its coordinator and the network."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = self.random.choice([0.0, 0.3, 0.5, 0.5, 0.7])
        # Without other programs, and without those that close epochs and lose rows.
        self.is_alone = self.random.random() < 0.25
        self.is_forgotten = self.random.random() < 0.25
        # Of counts of staged rows that find too few.
        self.flaky = self.random.choice([0.0, self.faults / 8, self.faults])
        self.loses_commits = False
        self.clock_s = 1000.0
        self.log: list[Record] = []
        self.staged: dict[bytes, tuple[int, int]] = {}
        self.lost: set[bytes] = set()
        self.at_large: list[Any] = []
        self.intruders: list[bytes] = []
        self.serving = self.new_coordinator(len(self.log))

    def new_coordinator(self, end: int) -> Coordinator:
        found = Coordinator()
        for offset, record in enumerate(self.log[:end]):
            found.apply(offset, record)
        found.begin(self.now)
        return found

    @property
    def now(self) -> Now:
        micros = round(self.clock_s * 1_000_000)
        return Now(micros, micros)

    def committed(self) -> list[bytes]:
        """The attempts that the log has as committed, in its order."""
        found = [one.change for one in self.log if isinstance(one.change, Committed)]
        return [attempt for change in found for attempt in change.attempts]

    # --- the coordinator --------------------------------------------------------------------------
    def propose(self, records: list[Record]) -> None:
        """Make records safe, and answer; or die before or behind it."""
        for record in records:
            self.serving.pend(record)
        fate = self.random.random()
        if records and fate < self.faults / 4:
            self.serving = self.new_coordinator(len(self.log))
            raise OutcomeUnknown("it died before")
        for record in records:
            self.serving.apply(len(self.log), record)
            self.log.append(record)
        if records and fate < self.faults / 2:
            self.serving = self.new_coordinator(len(self.log))
            raise OutcomeUnknown("it died behind")

    def serve(self, request: m.Request) -> m.Response:
        if isinstance(request, OpenTransactionRequest):
            return self.open(request)
        if isinstance(request, CommitTransactionRequest):
            return self.commit(request)
        assert isinstance(request, AbortTransactionRequest)
        machine = self.serving
        if request.forget:
            self.propose(machine.forget(request.transactional_id))
            return AbortTransactionResponse()
        aborting = machine.abort(
            request.transactional_id, request.epoch, request.sequence, force=request.force
        )
        self.propose(aborting.records)
        return AbortTransactionResponse(outcome=int(aborting.had_committed))

    def open(self, request: OpenTransactionRequest) -> OpenTransactionResponse:
        machine = self.serving
        if self.random.random() < self.faults / 4:
            # One that was replaced without knowing: what it would write is never safe.
            machine = self.new_coordinator(self.random.randint(0, len(self.log)))
        opening = machine.open(
            request.transactional_id, request.instance, "", request.timeout_ms, False, self.now
        )
        if machine is self.serving:
            self.propose(opening.records)
        elif opening.records:
            raise OutcomeUnknown("it was replaced")
        return OpenTransactionResponse(epoch=opening.epoch, last_sequence=opening.last_sequence)

    def commit(self, request: CommitTransactionRequest) -> CommitTransactionResponse:
        attempts = [one.attempt for one in request.attempts]
        digest = digest_of((one.attempt, one.row_count) for one in request.attempts)
        tid, epoch, sequence = request.transactional_id, request.epoch, request.sequence
        standing = self.serving.check_commit(tid, epoch, sequence, digest)
        if standing.kind is Standings.BUSY:
            self.publish()
            raise TransactionBusy("the one before is being published")
        if standing.kind is Standings.COMMITTED_BEFORE:
            return CommitTransactionResponse(outcome=1, is_published=True)
        for attempt in attempts:
            is_lost = attempt in self.lost or self.random.random() < self.flaky
            if self.staged.get(attempt) != (epoch, sequence) or is_lost:
                raise StagedRowsLost("they are not there")
        self.propose(
            self.serving.commit(
                tid, epoch, sequence, digest, attempts, [Part(0, 0, 1, 1, (0,))], 1, 1, self.now
            )
        )
        if not self.random.randrange(3):
            self.publish()
        return CommitTransactionResponse(is_published=bool(self.random.randrange(2)))

    def publish(self) -> None:
        for tid, change in list(self.serving.to_publish()):
            with contextlib.suppress(OutcomeUnknown):
                self.propose(self.serving.published(tid, change.sequence, [], 1))

    # --- the network ------------------------------------------------------------------------------
    def run(self, operation: Operation[Any]) -> Any:
        answer: Any = None
        failure: QuiverlogError | None = None
        while True:
            try:
                command = operation.send(answer) if failure is None else operation.throw(failure)
            except StopIteration as stop:
                return stop.value
            answer, failure = None, None
            if isinstance(command, Sleep):
                self.clock_s += command.seconds
            elif isinstance(command, CallMany):
                answer = [self.answer(call) for call in command.calls]
            else:
                raise AssertionError(f"not expected: {command}")

    def answer(self, call: Call) -> Reply | QuiverlogError:
        self.clock_s += 0.05
        self.meanwhile()
        request = call.request
        if self.loses_commits and isinstance(request, CommitTransactionRequest):
            self.at_large.append(request)
            return ConnectionClosed("lost on the way")
        if self.random.random() >= self.faults:
            return self.reply(request)
        fate = self.random.randrange(6)
        if fate == 0:
            return ConnectionFailed("not sent")
        if fate == 1:
            return Reply(refused(type(request), NotLeader("elsewhere")), memoryview(b""))
        if fate == 2:
            self.at_large.append(request)
            self.clock_s += call.timeout_s / 4
            return RequestTimedOut("lost on the way")
        if fate == 3:
            self.reply(request)
            return ConnectionClosed("the answer is lost")
        answer = self.reply(request)
        if fate == 4:
            # Twice; a refusal of a COMMIT is an answer to all of what was sent.
            if answer.response.error_code and isinstance(request, CommitTransactionRequest):
                return answer
            self.at_large.append(request)
        return answer

    def reply(self, request: m.Request) -> Reply:
        try:
            response = self.serve(request)
        except QuiverlogError as error:
            response = refused(type(request), error)
        return Reply(response, memoryview(b""))

    def meanwhile(self) -> None:
        """What comes between two requests of a program."""
        chance = self.random.random()
        if chance < self.faults / 4 and self.at_large:
            self.reply(self.at_large.pop(self.random.randrange(len(self.at_large))))
        elif chance < self.faults / 3:
            self.serving = self.new_coordinator(len(self.log))
        elif self.is_forgotten and chance < self.faults / 2:
            # By command; perhaps just behind a late COMMIT.
            self.reply(AbortTransactionRequest(transactional_id=NAME, forget=True))
        elif self.is_alone:
            return
        elif chance < self.faults / 2.5:
            self.intrude()
        elif chance < self.faults / 2.2 and self.staged:
            self.lost.add(self.random.choice(list(self.staged)))
        elif chance < self.faults / 2:
            self.reply(AbortTransactionRequest(transactional_id=NAME, force=True))

    def intrude(self) -> None:
        """Another program opens the id, and commits."""
        instance = self.random.randbytes(16)
        opened = self.reply(OpenTransactionRequest(transactional_id=NAME, instance=instance))
        assert isinstance(opened.response, OpenTransactionResponse)
        if opened.response.error_code:
            return
        for number in range(self.random.randrange(3)):
            epoch, sequence = opened.response.epoch, opened.response.last_sequence + 1 + number
            attempt = self.random.randbytes(16)
            self.staged[attempt] = (epoch, sequence)
            self.intruders.append(attempt)
            self.reply(
                CommitTransactionRequest(
                    transactional_id=NAME,
                    epoch=epoch,
                    sequence=sequence,
                    attempts=[named(attempt)],
                )
            )

    def settle(self) -> None:
        """The network is healed, and all that was under way arrives."""
        self.faults = self.flaky = 0.0
        self.random.shuffle(self.at_large)
        for request in self.at_large:
            for _ in range(3):  # The publishing of the one before is waited for.
                self.reply(request)
        self.at_large.clear()


def refused(kind: type[m.Request], error: QuiverlogError) -> m.Response:
    answers: dict[Any, type[m.Response]] = {
        OpenTransactionRequest: OpenTransactionResponse,
        CommitTransactionRequest: CommitTransactionResponse,
        AbortTransactionRequest: AbortTransactionResponse,
    }
    return answers[kind](error_code=error.code, error_message=error.message)


def named(attempt: bytes) -> CommittedAttempt:
    return CommittedAttempt(attempt, 1, [CommittedPart(0, 0, 1, 1)])


class Staging:
    """Plays core and host: each transaction has one row, which is staged at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock = contextlib.nullcontext()
        self.failures: list[Any] = []
        self.lost: QuiverlogError | None = None
        self.buffered_bytes = 0
        self.attempt = b""

    def begin(self, name: str, epoch: int, sequence: int, attempt: bytes, _options: Any) -> None:
        self.attempt = attempt
        self.world.staged[attempt] = (epoch, sequence)

    def attempts(self) -> list[CommittedAttempt]:
        return [named(self.attempt)]

    def lose(self, error: QuiverlogError) -> None:
        self.lost = error

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        return is_true()

    def close_batches(self, now: Any) -> None: ...
    def wake(self) -> None: ...
    def notify(self) -> None: ...
    def stop(self) -> None: ...
    def now(self) -> Any: ...


class ModelHolder(Holder):
    def __init__(self, world: World, cluster: Cluster) -> None:
        super().__init__(cluster, world.run, None, NAME, 60_000)  # type: ignore[arg-type]
        self.world = world

    def _open_staging(self, complete: Any) -> None:
        both: Any = Staging(self.world)
        self._staging = both, both


class Program:
    """`told`: attempt -> what the client reported. `unknown`: a commit without an answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        settings = Settings("model", 1.0, 1.0)
        self.cluster = KnownCluster(
            [HOME], settings, clock=lambda: world.clock_s, jitter=world.random.random
        )
        self.options = producer_options(
            self.cluster,
            batch_rows=10,
            batch_bytes=1000,
            linger=0,
            compression=None,
            durability=None,
            buffer_bytes=1000,
            delivery_timeout=TIMEOUT_S,
            idempotent=True,
            partition=None,
        )
        self.told: dict[bytes, str] = {}
        self.unknown: bytes | None = None
        self.holder = ModelHolder(world, self.cluster)

    def begin(self) -> Transaction | None:
        self.holder.take()
        try:
            self.holder.begin(self.options, TIMEOUT_S, until_published=False)
        except TransactionFenced:
            # This life of the program ends, with what it has not found out.
            self.holder, self.unknown = ModelHolder(self.world, self.cluster), None
            return None
        except QuiverlogError:
            self.holder.release()
            return None
        tx = Transaction(self.holder, self.options, timeout_s=TIMEOUT_S, wait="published")
        assert (tx.previous is not None) == (self.unknown is not None)
        if self.unknown is not None and tx.previous is not None:
            self.told[self.unknown] = tx.previous
            self.unknown = None
        return tx

    def step(self) -> bool:
        """One transaction. True: it has committed."""
        tx = self.begin()
        if tx is None:
            return False
        attempt = tx._core.attempt  # type: ignore[attr-defined]  # the model's own
        end = self.world.random.randrange(6)
        if end == 0:
            with contextlib.suppress(QuiverlogError):
                tx.abort()
            self.told[attempt] = "aborted"
            return False
        try:
            if end == 1:
                self.interrupt()
            tx.commit()
        except (CommitUnknown, KeyboardInterrupt):
            self.unknown = attempt
            return False
        except QuiverlogError:
            self.told[attempt] = "aborted"
            return False
        finally:
            self.holder.run = self.world.run
        self.told[attempt] = "committed"
        return True

    def interrupt(self) -> None:
        """The next question is asked, and its answer not seen."""

        def interrupted(operation: Operation[Any]) -> Any:
            self.holder.run = self.world.run
            with contextlib.suppress(QuiverlogError):
                self.world.run(operation)
            raise KeyboardInterrupt

        self.holder.run = interrupted


def check(seed: int) -> None:
    world = World(seed)
    programs = [Program(world) for _ in range(world.random.randint(1, 2))]
    for _ in range(STEPS):
        world.random.choice(programs).step()
    world.settle()
    last = Program(world)
    assert any(last.step() for _ in range(20)), "a healed cluster commits"
    committed = world.committed()
    assert len(set(committed)) == len(committed), "each once"
    for program in (*programs, last):
        for attempt, told in program.told.items():
            if told != "unknown":
                assert (attempt in committed) == (told == "committed"), told


def test_what_a_program_is_told_is_what_the_log_has() -> None:
    for seed in range(SEEDS):
        check(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    with planted(BUGS[bug]):
        for seed in range(SEEDS_PER_BUG):
            try:
                check(seed)
            except (AssertionError, QuiverlogError):
                return
    pytest.fail(f"not noticed: {bug}")


def after_an_unknown_commit() -> tuple[World, Program, bytes]:
    """A COMMIT is under way; asked again, it is refused for now."""
    world = World(0)
    world.faults = world.flaky = 0.0
    program = Program(world)
    tx = program.begin()
    assert tx is not None
    attempt = tx._core.attempt  # type: ignore[attr-defined]  # the model's own
    world.loses_commits = True
    with pytest.raises(CommitUnknown):
        tx.commit()
    program.unknown, world.loses_commits = attempt, False
    world.lost.add(attempt)  # As where its leader has just begun.
    return world, program, attempt


def commit_arrives_after_its_abort_was_told() -> None:
    world, program, _ = after_an_unknown_commit()
    following = program.begin()
    assert following is not None
    assert following.previous == "aborted"
    world.lost.clear()
    world.settle()
    assert world.committed() == [], "an abort that was answered stays true"
    following.commit()


def test_a_commit_that_arrives_after_its_abort_was_told_commits_nothing() -> None:
    commit_arrives_after_its_abort_was_told()
    with (
        planted(BUGS["resolved under the same epoch"]),
        pytest.raises(AssertionError, match="an abort that was answered stays true"),
    ):
        commit_arrives_after_its_abort_was_told()


def commit_arrives_behind_the_question(*, is_forgotten: bool) -> str | None:
    """What the client then reports of a transaction that has committed."""
    world, program, attempt = after_an_unknown_commit()
    asked: list[object] = []

    def meanwhile() -> None:
        asked.append(None)
        if len(asked) != 2:
            return
        assert world.committed() == [], "the first question was refused"
        world.lost.clear()
        world.settle()
        if is_forgotten:
            world.reply(AbortTransactionRequest(transactional_id=NAME, forget=True))

    with mock.patch.object(world, "meanwhile", meanwhile):
        following = program.begin()
        assert following is not None
        following.commit()
    assert world.committed()[0] == attempt
    assert len(world.committed()) == 2
    return following.previous


def test_a_commit_that_arrives_behind_the_question_is_not_called_an_abort() -> None:
    """Nor where the id is forgotten before the next question."""
    assert commit_arrives_behind_the_question(is_forgotten=False) == "committed"
    assert commit_arrives_behind_the_question(is_forgotten=True) == "unknown"
    with planted((FORGOTTEN_SINCE,)):
        assert commit_arrives_behind_the_question(is_forgotten=True) == "aborted"
