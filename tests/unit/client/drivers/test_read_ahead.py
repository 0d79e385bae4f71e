"""The blocking client reads the files of the next answer on a thread, while earlier rows are used.

The broker is the real node behind real sockets, on a real disk, in the test's process.
"""

from __future__ import annotations

import collections
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.drivers import blocking, local_reads
from quiverlog.client.drivers.blocking import ArrowMemory
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.wire import messages as m
from tests.support.local_reads import (  # noqa: F401 (fixtures)
    BATCH_ROWS,
    EXPECTED,
    System,
    broker_fixture,
    filled_fixture,
    wishes,
)
from tests.support.scripted_broker import Cut, ScriptedBroker
from tests.support.until import until

THREAD = "quiverlog-local-read"
SMALL = 64 * 1024
"""Bytes of a fetch: one batch in each."""
WAIT_S = 20.0


def by_read(client: quiverlog.Client) -> list[int]:
    ids: list[int] = client.read("t", fetch_bytes=SMALL).to_arrow()["id"].to_pylist()
    return sorted(ids)


def by_consumer(client: quiverlog.Client) -> list[int]:
    with client.consumer("t", start="earliest", follow=False, fetch_bytes=SMALL) as consumer:
        return sorted(i for batch in consumer for i in batch.data["id"].to_pylist())


def by_fetcher(client: quiverlog.Client) -> list[int]:
    found = []
    for partition in (0, 1):
        with PartitionFetcher(client, "t", partition, 0, 50_000, bytes_max=SMALL) as fetcher:
            found += [i for batch in fetcher for i in batch.data["id"].to_pylist()]
    return found


READERS = (by_read, by_consumer, by_fetcher)
Reader = Callable[[quiverlog.Client], list[int]]


def is_reader() -> bool:
    return threading.current_thread().name.startswith(THREAD)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads_alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer has come, and its files are being read, before rows are decoded."""
    advanced = blocking.BlockingConnection.advance
    queued = local_reads.LocalReads.read_ahead

    def advance(self: blocking.BlockingConnection) -> Any:
        reply = advanced(self)
        while reply is None and not self.has_answer:
            blocking.readable([self], WAIT_S)
            reply = advanced(self)
        return reply

    def read_ahead(self: local_reads.LocalReads, reading: local_reads.FileReading) -> None:
        queued(self, reading)
        if self._queue is not None:
            until(lambda: reading.is_begun)

    monkeypatch.setattr(blocking.BlockingConnection, "advance", advance)
    monkeypatch.setattr(local_reads.LocalReads, "read_ahead", read_ahead)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.usefixtures("always_ahead")
def test_all_answers_but_the_first_are_read_by_the_thread(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    by_thread: list[bool] = []

    def preadv(*arguments: Any) -> int:
        by_thread.append(is_reader())
        return os.preadv(*arguments)

    monkeypatch.setattr(local_reads, "os", System("preadv", 0, preadv, always=True))
    with quiverlog.connect(broker.bootstrap) as client:
        assert reader(client) == EXPECTED
    assert all(wishes(broker))
    assert by_thread.count(False) == (2 if reader is by_fetcher else 1), "before there are rows"
    assert by_thread.count(True) > 2


# --- each call fails once, on the thread ----------------------------------------------------------
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["stat", "open", "fstat", "preadv", "pread"])
@pytest.mark.parametrize("nth", [2, 4])
@pytest.mark.usefixtures("always_ahead")
def test_a_call_that_fails_there_costs_an_answer_and_no_row(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, reader: Reader, name: str, nth: int
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    system = System(name, nth, fail)
    monkeypatch.setattr(local_reads, "os", system)
    opened = descriptors()
    with quiverlog.connect(broker.bootstrap, request_timeout=10) as client:
        assert reader(client) == EXPECTED
        assert system.calls == nth, "its files are left alone after that"
    asked = wishes(broker)
    assert not any(asked[asked.index(False) :]), "rows are asked for from then on"
    until(lambda: descriptors() <= opened, "the broker's ends are closed, too")


@pytest.mark.parametrize("by", ["read", "consumer"])
@pytest.mark.usefixtures("always_ahead")
def test_two_answers_are_held_at_most(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The one whose rows are handed out, and the one that is read ahead; not the one before."""
    take = ArrowMemory.take
    held: list[int] = []

    def counted(self: ArrowMemory, size: int) -> memoryview:
        room = take(self, size)
        held.append(pa.total_allocated_bytes())
        return room

    monkeypatch.setattr(ArrowMemory, "take", counted)
    with quiverlog.connect(broker.bootstrap) as client:
        before = pa.total_allocated_bytes()
        rows: Any = client.read("t", fetch_bytes=SMALL)
        if by == "consumer":
            rows = client.consumer("t", start="earliest", follow=False, fetch_bytes=SMALL)
        collections.deque(rows, maxlen=0)
    answer_bytes = BATCH_ROWS * 8
    assert len(held) > 2
    assert max(held) - before in range(answer_bytes, 5 * answer_bytes // 2)


@pytest.mark.parametrize("reader", READERS)
def test_without_a_thread_rows_are_read_by_who_needs_them(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith(THREAD):
            raise RuntimeError("can't start new thread")
        real(self)

    with quiverlog.connect(broker.bootstrap) as client:
        monkeypatch.setattr(threading.Thread, "start", start)
        assert reader(client) == EXPECTED
    assert all(wishes(broker))


@pytest.mark.usefixtures("always_ahead")
def test_what_found_no_thread_is_read_by_none_later(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for the rows has read them by then, and handed them out."""
    start, read = threading.Thread.start, local_reads.FileRows.read
    refused = []
    seen: list[int] = []
    kept: list[local_reads.FileRows] = []

    def start_second(self: threading.Thread) -> None:
        if self.name.startswith(THREAD) and not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    def read_once(self: local_reads.FileRows) -> None:
        kept.append(self)  # so that no other has its id
        seen.append(id(self))
        read(self)

    monkeypatch.setattr(local_reads.FileRows, "read", read_once)
    with quiverlog.connect(broker.bootstrap) as client:
        monkeypatch.setattr(threading.Thread, "start", start_second)
        assert by_read(client) == EXPECTED
    for thread in threads_alive():
        thread.join(WAIT_S)
    assert refused
    assert len(seen) == len(set(seen)) == len(wishes(broker))


def test_after_close_no_thread_is_begun() -> None:
    reads = local_reads.LocalReads()
    reads.close()
    reads.read_ahead(local_reads.FileReading(None))  # type: ignore[arg-type]
    assert not threads_alive()


@pytest.mark.usefixtures("always_ahead")
def test_a_connection_that_ends_meanwhile_costs_no_row(broker: ScriptedBroker) -> None:
    """Found out while earlier rows are at hand, it is told when the next ones are needed."""
    with (
        quiverlog.connect(broker.bootstrap) as client,
        client.consumer("t", start="earliest", follow=False, fetch_bytes=SMALL) as consumer,
    ):
        broker.fault(m.FetchRequest, Cut(0), Cut(20, resets=True), Cut(1))
        found = [i for batch in consumer for i in batch.data["id"].to_pylist()]
    assert sorted(found) == EXPECTED


# --- whoever stops does not wait for the thread, nor does it write where others read --------------
class Held:
    """The thread's reads wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.rooms: list[memoryview] = []
        monkeypatch.setattr(local_reads, "os", System("preadv", 0, self._preadv, always=True))

    def _preadv(self, fd: int, rooms: list[memoryview], position: int) -> int:
        if is_reader():
            self.rooms += rooms
            self.began.set()
            assert self.go_on.wait(WAIT_S)
        return os.preadv(fd, rooms, position)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.go_on.set()
    for thread in threads_alive():
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.usefixtures("always_ahead")
def test_closing_waits_for_no_file(broker: ScriptedBroker, held: Held) -> None:
    opened = descriptors()
    with quiverlog.connect(broker.bootstrap) as client:
        consumer = client.consumer("t", start="earliest", follow=False, fetch_bytes=SMALL)
        first = next(consumer)
        assert held.began.wait(WAIT_S)
        rows = first.data["id"].to_pylist()
        consumer.close()
    assert not held.go_on.is_set(), "it still reads"
    held.go_on.set()
    for thread in threads_alive():
        thread.join(WAIT_S)
    assert first.data["id"].to_pylist() == rows == list(range(rows[0], rows[0] + len(rows)))
    until(lambda: descriptors() <= opened, "the broker's ends are closed, too")


@pytest.mark.usefixtures("always_ahead")
def test_an_interrupt_while_the_thread_reads_harms_nobody(
    broker: ScriptedBroker, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader goes on with the same rows, on another connection; none is handed out twice."""
    real = local_reads.FileReading.finish
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

    def finish(self: local_reads.FileReading) -> memoryview:
        if self.is_begun and interrupts:
            assert held.began.wait(WAIT_S)
            raise interrupts.pop()
        return real(self)

    monkeypatch.setattr(local_reads.FileReading, "finish", finish)
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=5) as client,
        client.consumer("t", start="earliest", follow=False, fetch_bytes=SMALL) as consumer,
    ):
        found = []
        while (batch := _next_despite_interrupts(consumer, held)) is not None:
            found += batch.data["id"].to_pylist()
    assert not interrupts
    assert sorted(found) == EXPECTED


def _next_despite_interrupts(consumer: quiverlog.Consumer, held: Held) -> Any:
    while True:
        try:
            return next(consumer, None)
        except KeyboardInterrupt:
            held.go_on.set()


ENDS = """
import os, sys, quiverlog
client = quiverlog.connect(sys.argv[1])
consumer = client.consumer("t", start="earliest", follow=False, fetch_bytes=65536)
first = next(consumer), next(consumer), next(consumer)
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        try:
            next(consumer)
        except quiverlog.errors.ForkedClient:
            sys.exit(7)
        sys.exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert sum(len(batch) for batch in consumer) + sum(map(len, first)) == 100_000
print("ended")
"""


@pytest.mark.parametrize("how", ["fork", "end"])
def test_a_process_ends_and_forks_with_the_thread(broker: ScriptedBroker, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, broker.bootstrap, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
