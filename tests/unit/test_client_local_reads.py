"""The blocking client reads the files of a broker on its machine; whatever fails, no row is lost.

The broker is the real node behind real sockets, on a real disk, in the test's process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client import local_reads
from quiverlog.client.local_reads import LEFT_ALONE_S, LocalReads
from quiverlog.client.results import Address
from quiverlog.errors import CorruptBatch, InvalidResponse, UnknownTopicId
from quiverlog.wire import messages as m
from tests.support.client_kinds import connect
from tests.support.scripted_broker import Answer, ScriptedBroker

ROWS = 100_000
BATCH_ROWS = 20_000
EXPECTED = list(range(ROWS))


@pytest.fixture(scope="module")
def filled() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", pa.schema([("id", pa.int64())]), partitions=2)
            with client.producer("t", batch_rows=BATCH_ROWS, compression="none") as producer:
                producer.send(pa.table({"id": EXPECTED[:50_000]}), partition=0)
                producer.send(pa.table({"id": EXPECTED[50_000:]}), partition=1)
        yield broker


@pytest.fixture
def broker(filled: ScriptedBroker) -> Iterator[ScriptedBroker]:
    filled.requests.clear()
    yield filled
    filled.heal()


def ids(client: Any) -> list[int]:
    return sorted(client.read("t").to_arrow()["id"].to_pylist())


def wishes(broker: ScriptedBroker) -> list[bool]:
    return [request.file_ranges for request in broker.seen(m.FetchRequest)]


def read_bytes(broker: ScriptedBroker) -> int:
    counted: int = broker.on_loop(lambda: broker.node.broker.metrics.local_read_bytes)
    return counted


def test_rows_come_from_the_files(broker: ScriptedBroker) -> None:
    before = read_bytes(broker)
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert all(wishes(broker))
    assert read_bytes(broker) - before >= ROWS * 8


def test_asyncio_has_rows_sent(broker: ScriptedBroker) -> None:
    with connect("asyncio", broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert not any(wishes(broker))


def test_a_broker_that_knows_no_such_wish_sends_rows(broker: ScriptedBroker) -> None:
    def forget(request: Any) -> None:
        request.file_ranges = False

    broker.always(m.FetchRequest, forget)
    before = read_bytes(broker)
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert read_bytes(broker) == before


# --- each call fails once -------------------------------------------------------------------------
CALLS = {
    "open": (
        errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENXIO, errno.ESTALE,
    ),
    "fstat": (errno.EIO, errno.ESTALE, errno.EOVERFLOW),
    "preadv": (errno.EIO, errno.EISDIR, errno.ESTALE, errno.EINVAL),
}  # fmt: skip


class System:
    """`os`, with one call that fails, or does something else, the n-th time it is made."""

    def __init__(self, name: str, nth: int, action: Callable[..., Any]) -> None:
        self._name, self._nth, self._action = name, nth, action
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name != self._name:
            return real

        def call(*arguments: Any) -> Any:
            self.calls += 1
            return (self._action if self.calls == self._nth else real)(*arguments)

        return call


def raising(number: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(("name", "number"), [(c, n) for c, ns in CALLS.items() for n in ns])
def test_a_call_that_fails_costs_an_answer_and_no_row(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, name: str, number: int, nth: int
) -> None:
    system = System(name, nth, raising(number))
    monkeypatch.setattr(local_reads, "os", system)
    opened = len(os.listdir("/proc/self/fd"))
    with quiverlog.connect(broker.bootstrap, request_timeout=10) as client:
        assert ids(client) == EXPECTED
        assert system.calls == nth, "its files are left alone after that"
        assert ids(client) == EXPECTED
        assert system.calls == nth
    asked = wishes(broker)
    assert asked[0]
    assert not any(asked[asked.index(False) :]), "rows are asked for from then on"
    assert len(os.listdir("/proc/self/fd")) <= opened + 1


def test_a_file_that_is_cut_meanwhile_ends_the_read_of_it(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_reads, "os", System("preadv", 1, lambda *_: 0))
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


def test_short_reads_are_gone_on_with(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def little(fd: int, rooms: list[memoryview], position: int) -> int:
        return os.preadv(fd, [rooms[0][:1000]], position)

    system = System("preadv", 1, little)
    monkeypatch.setattr(local_reads, "os", system)
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert system.calls > 2
    assert all(wishes(broker))


# --- what a broker says is not believed -----------------------------------------------------------
def changing(change: Callable[[m.FileRange], None]) -> Answer:
    """The first range of an answer is changed."""

    def answer(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for result in response.partitions:
            if result.file_ranges:
                change(result.file_ranges[0])
                break
        return response, body

    return Answer(answer)


def no_such(one: m.FileRange) -> None:
    one.path += ".gone"


def other_inode(one: m.FileRange) -> None:
    one.inode += 1


def other_device(one: m.FileRange) -> None:
    one.device += 1


def nul(one: m.FileRange) -> None:
    one.path = "/tmp/a\0b"


def nameless(one: m.FileRange) -> None:
    one.path = ""


def directory(one: m.FileRange) -> None:
    one.path = str(Path(one.path).parent)
    one.inode = Path(one.path).stat().st_ino


@pytest.mark.parametrize(
    "change",
    [no_such, other_inode, other_device, nul, nameless, directory],
    ids=lambda c: c.__name__,
)
def test_a_file_that_is_not_the_one_is_not_read(
    broker: ScriptedBroker, change: Callable[[m.FileRange], None]
) -> None:
    broker.fault(m.FetchRequest, changing(change))
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


def test_a_pipe_in_the_place_of_the_file_does_not_hang(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = pipe.stat()
    assert stat.S_ISFIFO(found.st_mode)

    def to_pipe(one: m.FileRange) -> None:
        one.path, one.device, one.inode = str(pipe), found.st_dev, found.st_ino

    broker.fault(m.FetchRequest, changing(to_pipe))
    with quiverlog.connect(broker.bootstrap, request_timeout=10) as client:
        assert ids(client) == EXPECTED


def test_a_device_is_not_read(broker: ScriptedBroker) -> None:
    found = os.stat("/dev/zero")

    def to_device(one: m.FileRange) -> None:
        one.path, one.device, one.inode = "/dev/zero", found.st_dev, found.st_ino

    broker.fault(m.FetchRequest, changing(to_device))
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


def test_a_file_without_rows_is_a_corrupt_batch(broker: ScriptedBroker, tmp_path: Path) -> None:
    """As are such bytes when they are sent: nothing but an error comes of another file."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"something that is no batch" * 100_000)
    found = secret.stat()

    def to_secret(one: m.FileRange) -> None:
        one.path, one.device, one.inode, one.position = str(secret), found.st_dev, found.st_ino, 0

    broker.fault(m.FetchRequest, changing(to_secret))
    with quiverlog.connect(broker.bootstrap) as client, pytest.raises(CorruptBatch) as failed:
        ids(client)
    assert "something" not in str(failed.value)


def grown(one: m.FileRange) -> None:
    one.byte_count += 1


def huge(one: m.FileRange) -> None:
    one.byte_count = 2**62


def negative(one: m.FileRange) -> None:
    one.byte_count = -one.byte_count


def before_the_file(one: m.FileRange) -> None:
    one.position = -1


@pytest.mark.parametrize("change", [grown, huge, negative, before_the_file])
def test_sizes_that_contradict_each_other_are_refused(
    broker: ScriptedBroker, change: Callable[[m.FileRange], None]
) -> None:
    broker.always(m.FetchRequest, changing(change))
    with quiverlog.connect(broker.bootstrap, request_timeout=2) as client:
        with pytest.raises(InvalidResponse):
            ids(client)
        broker.heal()
        assert ids(client) == EXPECTED


def test_more_than_a_frame_holds_is_refused_before_room_is_made(broker: ScriptedBroker) -> None:
    def swell(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for result in response.partitions:
            for one in result.file_ranges:
                one.byte_count = result.batch_bytes = 2**62
            del result.file_ranges[1:]
        return response, body

    broker.always(m.FetchRequest, Answer(swell))
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=2) as client,
        pytest.raises(InvalidResponse, match="in files"),
    ):
        ids(client)


def test_ranges_that_nobody_asked_for_are_refused(broker: ScriptedBroker) -> None:
    def wish(request: Any) -> None:
        request.file_ranges = True

    broker.always(m.FetchRequest, wish)
    with (
        connect("asyncio", broker.bootstrap, request_timeout=2) as client,
        pytest.raises(InvalidResponse),
    ):
        ids(client)


def test_a_topic_that_is_deleted_before_its_files_are_opened_is_told_of(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the broker's own answer: the client knows nothing by a file that is gone."""
    with (
        quiverlog.connect(broker.bootstrap) as client,
        quiverlog.connect(broker.bootstrap) as other,
    ):
        client.create_topic("gone", pa.schema([("id", pa.int64())]))
        with client.producer("gone", batch_rows=BATCH_ROWS, compression="none") as producer:
            producer.send(pa.table({"id": EXPECTED}))
        reading = client.read("gone")

        def too_late(path: str, flags: int) -> int:
            other.delete_topic("gone")
            raise FileNotFoundError(errno.ENOENT, "no such file", path)

        monkeypatch.setattr(local_reads, "os", System("open", 1, too_late))
        with pytest.raises(UnknownTopicId):
            reading.to_arrow()


# --- for how long files are left alone ------------------------------------------------------------
def test_files_are_tried_again_after_a_while() -> None:
    now_s = 100.0
    reads = LocalReads(lambda: now_s)
    one, other = Address("a", 1), Address("a", 2)
    assert reads.are_tried(one)
    reads.failed(one, OSError("no"))
    assert not reads.are_tried(one)
    assert reads.are_tried(other)
    now_s += LEFT_ALONE_S - 0.001
    assert not reads.are_tried(one)
    now_s += 0.002
    assert reads.are_tried(one)
