"""The blocking client reads the files of a broker on its machine; whatever fails, no row is lost.

The broker is the real node behind real sockets, on a real disk, in the test's process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.base.results import Address
from quiverlog.client.drivers import local_reads
from quiverlog.client.drivers.local_reads import LEFT_ALONE_S, LocalReads
from quiverlog.errors import UnknownTopicId
from quiverlog.wire import messages as m
from tests.support.client_kinds import connect
from tests.support.local_reads import (  # noqa: F401 (fixtures)
    BATCH_ROWS,
    EXPECTED,
    ROWS,
    System,
    broker_fixture,
    filled_fixture,
    ids,
    wishes,
)
from tests.support.scripted_broker import ScriptedBroker


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


def test_a_broker_without_local_reads_sends_rows(broker: ScriptedBroker) -> None:
    def drop_ranges(request: Any) -> None:
        request.file_ranges = False

    broker.always(m.FetchRequest, drop_ranges)
    before = read_bytes(broker)
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert read_bytes(broker) == before


# --- each call fails once -------------------------------------------------------------------------
CALLS = {
    "stat": (errno.ENOENT, errno.EACCES, errno.EIO, errno.ELOOP, errno.EOVERFLOW),
    "open": (
        errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENXIO, errno.ESTALE,
    ),
    "fstat": (errno.EIO, errno.ESTALE, errno.EOVERFLOW),
    "preadv": (errno.EIO, errno.EISDIR, errno.ESTALE, errno.EINVAL),
    "pread": (errno.EIO, errno.ESTALE),
}  # fmt: skip


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


def test_a_topic_that_is_deleted_before_its_files_are_opened_is_an_error(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the broker's own answer: a missing file proves nothing."""
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
