"""The reaper: which staged rows are asked about, when, of which broker, and which are given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.core.transactions import staged as staged_module
from quiverlog.core.transactions.coordinator import Coordinator, Resolved, Resolving
from quiverlog.core.transactions.staged import ASK_AFTER_US, Key, Staged
from quiverlog.core.transactions.staged_rows import StagedRow
from quiverlog.errors import CoordinatorNotReady, NotLeader, PeerUnreachable, QuiverlogError
from quiverlog.node.runtime.peers import Answer
from quiverlog.node.transactions import resolving as module
from quiverlog.node.transactions.hosted import LEISURE_US
from quiverlog.node.transactions.resolving import QUESTIONS_MAX, QUESTIONS_PER_TURN, Reaper
from quiverlog.types import Now
from quiverlog.wire.transaction_messages import (
    OpenTransactionRequest,
    ResolvedTransaction,
    ResolveStagedResponse,
)
from tests.support.staged import ATTEMPT
from tests.unit.node.transactions.test_staging import PARTITION, Staging, published

MINUTE_MS = ASK_AFTER_US // 1_000
ROUND_MS = module.ROUND_MS


# --- one broker ---------------------------------------------------------------------------------
class Led(Staging):
    """A broker that leads a partition of `__staged` and coordinates all ids."""

    @property
    def reaper(self) -> Reaper:
        return self.node.node.broker.reaper

    @property
    def log_start(self) -> int:
        return self.node.node.broker.replicas[self.staged, PARTITION].log.log_start_offset

    def open(self, timeout_ms: int = 900_000) -> int:
        asked = self.node.request(
            OpenTransactionRequest(transactional_id="id", instance=b"one", timeout_ms=timeout_ms)
        )
        self.settle()
        return int(published(self, asked).epoch)

    def coordinator(self, tid: str = "id") -> Coordinator:
        machine = self.node.node.broker.coordinators.find(tid).machine
        assert isinstance(machine, Coordinator)
        return machine

    def closed(self, tid: str = "id") -> str | None:
        state = self.coordinator(tid).applied.get(tid)
        return None if state is None else state.closed


@pytest.fixture
def led(tmp_path: Path) -> Led:
    return Led(tmp_path)


def test_rows_of_an_unknown_id_go_behind_a_record_that_is_safe(led: Led) -> None:
    """Rule 23: brokers themselves give up the rows of clients that are gone."""
    led.stage(led.row([1]), led.row([2], transactional_id="other", partition=1))
    led.node.advance(MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 2, "what closes the ids is not safe"
    assert led.closed() is None
    led.settle()
    assert led.index.batch_count == 0
    assert led.closed() == led.closed("other") == "unknown id"
    assert led.log_start == 0
    led.settle(ms=2_000)
    assert led.log_start == 2
    events = [line.fields for line in led.node.lines if line.event == "staged rows given up"]
    assert [(one["transactional_id"], one["batches"], one["why"]) for one in events] == [
        ("id", 1, "dead"),
        ("other", 1, "dead"),
    ]


@pytest.mark.parametrize("is_silent", [False, True])
def test_rows_are_asked_about_after_a_minute_of_silence(led: Led, is_silent: bool) -> None:
    led.stage(led.row([1]))
    began_us = led.index.oldest_us
    assert began_us is not None
    led.settle(ms=MINUTE_MS // 2)
    led.stage(led.row([2]))
    at_us = led.node.mono_us + ASK_AFTER_US - (0 if is_silent else 1_000)
    # From there on the round may come at any moment.
    led.node.set_clock(at_us - 1)
    led.reaper._round_us = at_us
    led.settle(ms=1)
    assert led.index.batch_count == (0 if is_silent else 2)


def test_rows_of_an_id_that_shows_signs_of_life_stay_until_it_is_silent(led: Led) -> None:
    epoch = led.open(timeout_ms=120_000)
    led.stage(led.row([1], epoch=epoch))
    for _ in range(10):
        led.settle(ms=40_000)
        assert led.open(timeout_ms=120_000) == epoch
    assert led.index.batch_count == 1
    led.settle(ms=119_000)
    assert led.index.batch_count == 1
    led.settle(ms=MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 0
    assert str(led.closed()).startswith("no sign of life")


def test_rows_of_a_replaced_epoch_go_and_those_of_the_current_one_stay(led: Led) -> None:
    epoch = led.open()
    led.stage(led.row([1], epoch=epoch - 1), led.row([2], epoch=epoch))
    led.settle(ms=MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 1
    assert led.closed() is None


def test_rows_of_a_later_epoch_than_the_coordinator_knows_go_behind_a_record(led: Led) -> None:
    epoch = led.open()
    led.stage(led.row([1], epoch=epoch + 5))
    led.settle(ms=MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 0
    assert led.coordinator().applied["id"].epoch == epoch + 6


def test_late_rows_of_a_published_transaction_go(led: Led) -> None:
    epoch = led.open()
    led.stage(led.row([1], epoch=epoch))
    led.publish(1, epoch=epoch)
    led.settle(ms=LEISURE_US // 1000)
    led.stage(led.row([2], epoch=epoch, attempt=bytes(16)))
    with mock.patch.object(type(led.node.node.broker.coordinators), "resolve") as resolve:
        standing = Resolving([], Resolved.PUBLISHED)
        resolve.return_value = standing, lambda then: then(0, None, NOW)
        led.settle(ms=MINUTE_MS + ROUND_MS)
    assert resolve.called
    assert led.index.batch_count == 0
    assert led.rows() == [(0, 1)]


def test_what_is_decided_is_neither_asked_about_nor_given_up(led: Led) -> None:
    led.stage(led.row([1]))
    with mock.patch.object(type(led.node.node.broker.forwarding), "add"):
        led.publish(1, max_wait_ms=10 * MINUTE_MS)
        led.settle(ms=3 * MINUTE_MS)
    assert led.index.batch_count == 1
    assert led.closed() is None
    # An answer that was on its way when it was decided.
    led.reaper._take(module._Question(PARTITION, Key("id", 1, 2), False), Resolved.DEAD, NOW)
    assert led.index.batch_count == 1


def test_a_coordinator_that_does_not_serve_is_asked_again(led: Led) -> None:
    led.stage(led.row([1]))
    coordinators = type(led.node.node.broker.coordinators)
    with mock.patch.object(coordinators, "resolve", side_effect=CoordinatorNotReady("a test")):
        led.settle(ms=MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 1
    lines = [line for line in led.node.lines if line.event.startswith("staged rows stay")]
    assert [(one.fields["questions"], one.fields["why"]) for one in lines] == [(1, "a test")]
    led.settle(ms=MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 0


def test_what_could_not_be_recorded_is_no_answer(led: Led) -> None:
    led.stage(led.row([1]))
    led.node.advance(MINUTE_MS + ROUND_MS)
    led.node.flush(OSError(5, "the disk failed"))
    led.settle()
    assert led.index.batch_count == 1


def test_rows_of_a_partition_that_is_no_longer_led_are_another_leader_s(led: Led) -> None:
    led.stage(led.row([1]))
    led.node.advance(MINUTE_MS + ROUND_MS)
    hosted = led.node.node.broker.transactions.find(led.staged, PARTITION)
    led.node.hold_jobs = True
    hosted._restart(NotLeader("a test"), [], led.node.now)
    while led.node.syncs:
        led.node.flush()
    led.node.hold_jobs = False
    led.settle(ms=1_000)
    assert led.closed() == "unknown id"
    assert led.index.batch_count == 1, "asked about again, as it is staged since this replay"
    led.settle(ms=MINUTE_MS + ROUND_MS)
    assert led.index.batch_count == 0


def test_nothing_is_timed_where_nothing_is_staged(led: Led) -> None:
    led.settle(ms=2 * ROUND_MS)
    assert led.reaper.next_us() is None
    led.stage(led.row([1]))
    assert led.reaper.next_us() is not None
    led.settle(ms=MINUTE_MS + ROUND_MS)
    led.settle(ms=ROUND_MS)
    assert led.index.batch_count == 0
    assert led.reaper.next_us() is None
    # A new leader finds the rows of the one before.
    led.stage(led.row([1], transactional_id="later"))
    led.node.crash()
    led.settle()
    assert led.reaper.next_us() is not None


def test_an_undecided_front_is_closed_for_room_though_its_client_is_alive(led: Led) -> None:
    epoch = led.open()
    led.stage(led.row([1], epoch=epoch))
    led.node.node.broker.staging.set_bytes_max(led.index.bytes_held, led.node.now)
    for _ in range(6):
        led.settle(ms=10_000)
        assert led.open() == epoch
        assert led.index.batch_count == 1
    led.settle(ms=2 * ROUND_MS)
    assert led.index.batch_count == 0
    assert led.closed() == "the staging room is nearly full"
    assert led.open() == epoch + 2


# --- asking -------------------------------------------------------------------------------------
NOW = Now(10**12, 10**15)
HERE, THERE = 0, 7


class World:
    """A reaper; what it asks the test answers. `leaders`: of ids, else this broker."""

    def __init__(self, bytes_max: int = 2**40) -> None:
        self.staged = {number: Staged(lambda count: count) for number in range(3)}
        self.holds_rows = True
        self.bytes_max = bytes_max
        self.leaders: dict[str, int] = {}
        self.standing = Resolved.LIVE
        self.here: list[tuple[Any, Any]] = []
        self.sent: list[tuple[int, list[Any], Any]] = []
        self.given_up: list[tuple[int, Key]] = []
        self.logged: list[tuple[str, Any]] = []
        self.bugs: list[BaseException] = []
        self.unreachable: QuiverlogError | None = None
        world: Any = self
        self.reaper = Reaper(HERE, world, world, world, world)
        self.now = NOW

    # What it asks of the staging leader.
    def indexes(self) -> dict[int, Staged]:
        found = {number: one for number, one in self.staged.items() if one.batch_count}
        self.holds_rows = bool(found)
        return found

    def give_up(self, partition: int, key: Key, now: Now) -> int:
        self.given_up.append((partition, key))
        return self.staged[partition].give_up(key)

    # Of the coordinators.
    def leader_id(self, tid: str) -> int:
        return self.leaders.get(tid, HERE)

    def resolve(self, one: Any, now: Now) -> Any:
        return Resolving([], self.standing), lambda then: self.here.append((one, then))

    # Of peers, and of the outbox.
    def ask(self, peer: Any, request: Any, then: Any, now: Now) -> None:
        if self.unreachable is not None:
            raise self.unreachable
        self.sent.append((peer.node_id, request.transactions, then))

    def log(self, level: str, event: str, **fields: Any) -> None:
        self.logged.append((event, fields))

    def internal_error(self, where: str, bug: BaseException) -> None:
        self.bugs.append(bug)

    # What the test does.
    def stage(
        self, tid: str, partition: int = 0, byte_count: int = 10, attempt: bytes = ATTEMPT
    ) -> None:
        index = self.staged[partition]
        row = StagedRow(tid, 1, 2, attempt, b"t" * 16, 0, 1, byte_count)
        index.stage(index.next_offset, row, self.now.mono_us)

    def pass_ms(self, ms: int) -> None:
        end = self.now.mono_us + ms * 1_000
        while (due := self.reaper.next_us()) is not None and due <= end:
            self._move(max(due, self.now.mono_us))
            before = len(self.here), len(self.sent), self.reaper.next_us()
            self.reaper.tick(self.now)
            assert before != (len(self.here), len(self.sent), self.reaper.next_us()), "it spins"
        self._move(end)

    def _move(self, mono_us: int) -> None:
        self.now = Now(mono_us, self.now.wall_us + mono_us - self.now.mono_us)

    def answer(self, *results: ResolvedTransaction) -> None:
        _, _, then = self.sent.pop(0)
        then(Answer(ResolveStagedResponse(results=list(results)), memoryview(b"")), None, self.now)

    @property
    def pinning(self) -> list[str]:
        asked = [one for one, _ in self.here] + [one for _, some, _ in self.sent for one in some]
        return [one.transactional_id for one in asked if one.pins_front]


DEAD = ResolvedTransaction(state=int(Resolved.DEAD))
LIVE = ResolvedTransaction(state=int(Resolved.LIVE))


def test_each_coordinator_is_asked_once_for_all_its_ids() -> None:
    world = World()
    world.leaders = {"a": THERE, "b": THERE, "c": 8, "none": -1}
    for tid, partition in (("a", 0), ("b", 1), ("a", 1), ("c", 2), ("none", 0), ("here", 0)):
        world.stage(tid, partition)
    world.pass_ms(MINUTE_MS)
    asked = {node: [one.transactional_id for one in some] for node, some, _ in world.sent}
    assert asked == {THERE: ["a", "b", "a"], 8: ["c"]} or asked == {
        THERE: ["a", "a", "b"],
        8: ["c"],
    }
    assert [one.transactional_id for one, _ in world.here] == ["here"]
    assert [fields["transactional_id"] for _, fields in world.logged] == ["none"]


@pytest.mark.parametrize(
    ("state", "goes"),
    [
        (Resolved.LIVE, False),
        (Resolved.DEAD, True),
        (Resolved.PUBLISHING, False),
        (Resolved.PUBLISHED, True),
    ],
)
@pytest.mark.parametrize("is_here", [False, True])
def test_only_what_is_dead_or_published_goes(state: Resolved, goes: bool, is_here: bool) -> None:
    world = World()
    world.leaders = {} if is_here else {"a": THERE}
    world.standing = state
    world.stage("a")
    world.pass_ms(MINUTE_MS)
    assert world.given_up == []
    if is_here:
        ((_, then),) = world.here
        then(0, None, world.now)
    else:
        world.answer(ResolvedTransaction(state=int(state)))
    assert world.given_up == ([(0, Key("a", 1, 2))] if goes else [])


def test_an_answer_that_failed_gives_nothing_up_and_the_question_comes_again() -> None:
    world = World()
    world.leaders = {"a": THERE}
    world.stage("a")
    for error in (PeerUnreachable("a test"), ValueError("a bug")):
        world.pass_ms(MINUTE_MS + ROUND_MS)
        _, _, then = world.sent.pop()
        then(None, error, world.now)
        then(None, error, world.now)
    world.unreachable = PeerUnreachable("no address")
    world.pass_ms(MINUTE_MS + ROUND_MS)
    world.unreachable = None
    assert [fields["why"] for _, fields in world.logged] == ["a test", "no address"]
    assert [str(bug) for bug in world.bugs] == ["a bug"]
    world.pass_ms(MINUTE_MS + ROUND_MS)
    world.answer(DEAD)
    assert world.given_up == [(0, Key("a", 1, 2))]


def test_each_id_has_its_own_answer() -> None:
    world = World()
    world.leaders = dict.fromkeys("abcd", THERE)
    for tid in "abcd":
        world.stage(tid)
    world.pass_ms(MINUTE_MS)
    refused = ResolvedTransaction(NotLeader.code, "a test", int(Resolved.DEAD))
    world.answer(LIVE, refused, DEAD)  # One is missing.
    assert world.given_up == [(0, Key("c", 1, 2))]
    assert [fields["why"] for _, fields in world.logged if "why" in fields] == ["a test", "dead"]


def test_an_answer_that_fails_as_a_whole_gives_nothing_up() -> None:
    world = World()
    world.leaders = {"a": THERE}
    world.stage("a")
    world.pass_ms(MINUTE_MS)
    _, _, then = world.sent.pop()
    response = ResolveStagedResponse(results=[DEAD])
    response.error_code, response.error_message = NotLeader.code, "a test"
    then(Answer(response, memoryview(b"")), None, world.now)
    assert world.given_up == []


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_turn_asks_so_many(more: int) -> None:
    world = World()
    for number in range(QUESTIONS_PER_TURN + more):
        world.stage(str(number))
    world._move(world.now.mono_us + ASK_AFTER_US)
    world.reaper.tick(world.now)
    assert len(world.here) == QUESTIONS_PER_TURN + min(more, 0)
    assert (world.reaper.next_us() == 0) == (more > 0)
    world.reaper.tick(world.now)
    assert len(world.here) == QUESTIONS_PER_TURN + more


def test_only_so_many_requests_are_under_way() -> None:
    world = World()
    for number in range(module.REQUESTS_MAX + 1):
        world.leaders[str(number)] = THERE
    with mock.patch.object(module, "QUESTIONS_PER_TURN", 1):
        for number in range(module.REQUESTS_MAX + 1):
            world.stage(str(number))
        world.pass_ms(MINUTE_MS)
        assert len(world.sent) == module.REQUESTS_MAX
        world.answer(LIVE)
        assert world.reaper.next_us() == 0
        world.pass_ms(0)
        assert len(world.sent) == module.REQUESTS_MAX


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_only_so_many_questions_have_no_answer(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 3)
    world = World()
    for number in range(3 + more):
        world.stage(str(number), partition=number % 2)
    world.pass_ms(MINUTE_MS)
    assert len(world.here) == 3 + min(more, 0)
    world.pass_ms(ROUND_MS)
    assert len(world.here) == 3 + min(more, 0)
    for _, then in world.here[:]:
        then(0, NotLeader("a test"), world.now)
    assert QUESTIONS_MAX >= 10 * QUESTIONS_PER_TURN
    world.pass_ms(ROUND_MS)
    assert len(world.here) == 3 + more, "the others are due in the next round"


# --- room ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("bytes_max", "is_short"), [(126, False), (125, False), (124, True)])
def test_above_80_percent_the_front_is_named(bytes_max: int, is_short: bool) -> None:
    world = World(bytes_max)
    world.leaders = {"a": THERE}
    world.stage("a", byte_count=60)
    for _ in range(8):
        world.pass_ms(MINUTE_MS // 8 + 1)
        world.stage("a", byte_count=5)
    # 100 bytes are staged, by an attempt that is not silent.
    assert world.staged[0].bytes_held == 100
    world.pass_ms(ROUND_MS)
    assert world.pinning == (["a"] if is_short else [])


@pytest.mark.parametrize("is_old", [False, True])
def test_a_front_of_the_last_minute_is_not_named(is_old: bool) -> None:
    world = World(100)
    world.stage("a", byte_count=100)
    world._move(world.now.mono_us + ASK_AFTER_US + int(is_old))
    world.reaper.tick(world.now)
    assert world.pinning == (["a"] if is_old else [])


def test_a_front_is_named_once_until_its_answer_and_then_the_next_one() -> None:
    world = World(100)
    world.leaders = dict.fromkeys("ab", THERE)
    for tid in "ab":
        world.stage(tid, byte_count=50)
    world.pass_ms(MINUTE_MS + 5 * ROUND_MS)
    assert world.pinning == ["a"]
    (sent,) = [some for _, some, _ in world.sent if some[0].pins_front]
    answers = [DEAD if one.pins_front else LIVE for one in sent]
    world.sent = [one for one in world.sent if one[1] is sent]
    world.answer(*answers)
    assert world.given_up == [(0, Key("a", 1, 2))]
    world.pass_ms(ROUND_MS)
    assert world.pinning == [], "what is left has room"
    world.bytes_max = 60
    world.pass_ms(ROUND_MS)
    assert world.pinning == ["b"]


def test_a_decided_front_is_not_named() -> None:
    world = World(100)
    world.stage("a", byte_count=100)
    world.stage("b", byte_count=100)
    index = world.staged[0]
    new: Any = index.publish(Key("a", 1, 2), [ATTEMPT], 0, 1, 2, -1, 0)
    index.pend(new.row)
    world.pass_ms(MINUTE_MS + ROUND_MS)
    assert world.pinning == []
    assert [one.transactional_id for one, _ in world.here] == ["b"], "as one that is silent"


def test_a_front_with_little_behind_it_is_not_named_for_what_others_hold() -> None:
    world = World(100)
    world.stage("small", 0, byte_count=1)
    world.stage("large", 1, byte_count=60)
    world.stage("larger", 2, byte_count=70)
    world.pass_ms(MINUTE_MS + ROUND_MS)
    assert world.pinning == ["large", "larger"]


@pytest.mark.parametrize(
    ("bound", "count"),
    [("STAGED_BATCHES_MAX", 8), ("STAGED_ATTEMPTS_MAX", 8), ("STAGED_ID_BYTES_MAX", 8)],
)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_counts_of_a_partition_fill_it_too(
    bound: str, count: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_module, bound, 10)
    world = World()
    for number in range(count + more):
        world.stage(str(number))
    world.pass_ms(MINUTE_MS + ROUND_MS)
    assert world.pinning == (["0"] if more > 0 else [])
