"""A bug anywhere in the node: the request that meets it is answered, and all others are right.

Every function of the node's modules that a fixed course of requests calls raises once, at its first
call. Nothing may leave `handle_many`; every request is answered exactly once; what a client was
answered is stored is there; and after the bug the broker works.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from unittest import mock

import pytest

import quiverlog.node
from quiverlog.node.runtime.events import RequestReceived, Tick
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of, serialize_schema

GUARDS = {
    # The way out itself: what it is made of cannot also be what fails.
    "Node.handle_many", "Node.handle", "Node._effects", "Node._guarded", "Node._fail",
    "Node._broken", "Node._event_broken", "Node._list_turns",
    "Broker.endings", "Broker.timed", "Node.next_deadline_us", "Node.start", "Broker.fail",
    "Purgatory.fail", "Append.fail", "Tasks._end", "Tasks._as_error",
    "Tasks._advance", "Jobs.done", "Jobs._start_next", "Waiter.answer", "Outbox.take",
    "Outbox.internal_error", "Outbox.respond", "Outbox.emit", "offsets.fail_entry",
    "produce.fail_result", "Decisions._fail", "Decisions._guarded", "Purgatory.finish",
    "Purgatory._unpark", "Openings._begin",
    "Purgatory.of_request", "Purgatory.all_live",
}  # fmt: skip
ONLY_AT_START_OR_STOP = ("lifecycle", "closing", "closing_jobs", "config", "metrics")


SCHEMA_BYTES = serialize_schema(SCHEMA)


class Planted(RuntimeError):
    """The bug."""


def modules() -> Iterator[str]:
    for info in pkgutil.walk_packages(quiverlog.node.__path__, "quiverlog.node."):
        if not info.ispkg and info.name.rpartition(".")[2] not in ONLY_AT_START_OR_STOP:
            yield info.name.removeprefix("quiverlog.node.")


def functions(module: ModuleType) -> Iterator[tuple[object, str, str]]:
    """(owner, attribute, name) of every function of a module of the node."""
    short = module.__name__.rpartition(".")[2]
    for name, thing in vars(module).items():
        if getattr(thing, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(thing):
            yield module, name, f"{short}.{name}"
        elif inspect.isclass(thing):
            for attribute, method in vars(thing).items():
                if isinstance(method, FunctionType) and not attribute.startswith("__"):
                    yield thing, attribute, f"{name}.{attribute}"


class Course:
    """The same requests every time; `answers` by what was asked."""

    def __init__(self, node: NodeDriver, topic: bytes) -> None:
        self.node = node
        self.topic = topic
        self.asked: dict[int, m.Request] = {}
        self._number = 500_000

    def ask(self, *requests: tuple[m.Request, bytes], connection: int = 1) -> None:
        events = []
        for request, body in requests:
            self._number += 1
            request.correlation_id = self._number
            self.asked[self._number] = request
            events.append(RequestReceived(connection, request, memoryview(bytearray(body))))
        self.node._perform(self.node.handle(*events))

    def produce(self, *values: int, partition: int = 0) -> tuple[m.Request, bytes]:
        body = bytes(batch_of(values))
        entry = m.ProducePartition(self.topic, partition, -1, len(body))
        return m.ProduceRequest(partitions=[entry], timeout_ms=2_000), body

    def run(self) -> None:
        node, topic = self.node, self.topic
        poll = m.ListOffsetsPartition(topic, 1, known_offset=0)
        self.ask(
            (node.fetch_request(topic, 0, partition=1, max_wait_ms=3_000), b""),
            (m.ListOffsetsRequest(max_wait_ms=3_000, partitions=[poll]), b""),
            (m.ListOffsetsRequest(max_wait_ms=3_000, metadata_version=10**6), b""),
        )
        self.ask(self.produce(1, 2), self.produce(3), self.produce(4, partition=1))
        self.pump()
        body = bytes(batch_of([5]))
        entries = [m.ProducePartition(topic, p, -1, len(body)) for p in (0, 1)]
        self.ask((m.ProduceRequest(partitions=entries, timeout_ms=2_000), body * 2))
        self.ask(
            self.produce(6),
            (m.MetadataRequest(), b""),
            (m.InitProducerIdRequest(), b""),
            (m.DescribeTopicsRequest(), b""),
            (m.TopicSchemasRequest(topic_id=topic), b""),
            (m.CreateTopicsRequest(topics=[m.NewTopic("u", SCHEMA_BYTES, 2)]), b""),
            (m.CreateTopicsRequest(topics=[m.NewTopic("v", SCHEMA_BYTES, 1)]), b""),
        )
        self.pump()
        epoch = m.EpochEndOffsetsPartition(topic, 0, epoch=0)
        self.ask(
            (m.AlterTopicRequest(name="t", set_configs={"retention.ms": "100000000"}), b""),
            (m.DeleteTopicsRequest(names=["u"]), b""),
            (node.fetch_request(topic, 0), b""),
            (m.DescribeRangesRequest(partitions=[m.RangePartition(topic, 0)]), b""),
            (m.EpochEndOffsetsRequest(partitions=[epoch]), b""),
            (m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(topic, 0, at=5)]), b""),
            (m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(topic, 1, 1)]), b""),
        )
        self.pump()
        node.set_clock(node.mono_us + 15_000_000)
        self.ask((m.HelloRequest(client_id="x"), b""), connection=3)
        node._perform(node.handle(Tick()))
        self.pump()
        node.close_connection(3)

    def pump(self) -> None:
        """All jobs and all that is due, flushes included."""
        for _ in range(300):
            self.node.run_until_idle()
            if not self.node.syncs:
                return
            self.node.flush()
        raise AssertionError("the node never comes to rest")


def course(tmp_path: Path) -> Course:
    node = NodeDriver(tmp_path)
    return Course(node, node.create(partitions=2))


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> set[CodeType]:
    """What the course calls: a bug in any other function would not be met."""
    run, found = course(tmp_path_factory.mktemp("sound")), set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run.run()
    finally:
        sys.setprofile(before)
    return found


def test_the_course_calls_much_of_the_node(called: set[CodeType]) -> None:
    of_the_node = [code for code in called if "/quiverlog/node/" in code.co_filename]
    assert len(of_the_node) > 300


@pytest.mark.parametrize("name", list(modules()))
def test_a_bug_is_answered_and_all_other_requests_are_served(
    tmp_path: Path, called: set[CodeType], name: str
) -> None:
    module = importlib.import_module(f"quiverlog.node.{name}")
    for owner, attribute, full_name in functions(module):
        if full_name in GUARDS or getattr(owner, attribute).__code__ not in called:
            continue
        place = tmp_path / full_name
        place.mkdir()
        try:
            plant(place, owner, attribute)
        except BaseException as error:
            error.add_note(f"the bug was in {full_name}")
            raise
        shutil.rmtree(place)


def plant(place: Path, owner: Any, attribute: str) -> None:
    run = course(place)
    node = run.node
    original = getattr(owner, attribute)
    calls = 0

    def broken(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Planted(attribute)
        return original(*arguments, **options)

    with mock.patch.object(owner, attribute, broken):
        node.node._list_turns()  # They are bound when a node is made.
        run.run()
    if not calls:
        return  # A table has the function itself, and calls it by no name.
    node.node._list_turns()
    node.advance(60_000)
    run.pump()
    for correlation, request in run.asked.items():
        answers = [r for r in node.responses if r.correlation_id == correlation]
        assert len(answers) == 1, f"{type(request).__name__} got {len(answers)} answers"
    acknowledged = 0
    for correlation, request in run.asked.items():
        if isinstance(request, m.ProduceRequest):
            answer = node.answer(correlation)
            assert answer is not None
            results = answer[0].partitions if answer[0].error_code == 0 else []
            acknowledged += sum(
                r.row_count for r in results if r.error_code == 0 and r.partition == 0
            )
    if not node.metrics.partitions_with_faults:
        assert node.produced(run.topic, batch_of([7, 8])).error_code == 0
    node.crash()
    assert node.offset_of(run.topic, -1).offset >= acknowledged
    assert node.produced(run.topic, batch_of([9])).error_code == 0
