"""What a broker reports of its files is not trusted, and they may have other rows by now.

The broker is the real node behind real sockets, on a real disk, in the test's process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.batch.header import SIZE_END, SIZE_OFFSET
from quiverlog.client.drivers import local_reads
from quiverlog.errors import InvalidResponse
from quiverlog.limits import BATCH_ALIGNMENT_BYTES
from quiverlog.wire import messages as m
from tests.support.client_kinds import connect
from tests.support.local_reads import (  # noqa: F401 (fixtures)
    BATCH_ROWS,
    EXPECTED,
    ROWS,
    System,
    broker_fixture,
    changing,
    filled_fixture,
    ids,
    now_at,
    wishes,
)
from tests.support.scripted_broker import Answer, ScriptedBroker


def segment_of(broker: ScriptedBroker, topic_id: bytes) -> Path:
    """The only file of rows of a topic's first partition."""
    log = broker.on_loop(lambda: broker.node.broker.replicas[topic_id, 0].log)
    (segment,) = log.reader.segments
    return Path(segment.path)


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


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_what_is_no_file_is_not_opened(
    broker: ScriptedBroker, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open is to act already: on a pipe's writer, or on what a device drives."""
    for place in (pipe, Path("/dev/zero"), pipe.parent):
        broker.requests.clear()
        opening = System("open", 0, os.open)
        monkeypatch.setattr(local_reads, "os", opening)
        broker.fault(m.FetchRequest, changing(now_at(place)))
        with quiverlog.connect(broker.bootstrap) as client:
            assert ids(client) == EXPECTED
        assert opening.calls == 0
        assert wishes(broker)[-1] is False


def test_a_pipe_that_takes_the_name_before_it_is_opened_does_not_hang(
    broker: ScriptedBroker, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pipe.stat()
    was_a_file = os.stat_result((stat.S_IFREG | 0o600, *found[1:]))
    monkeypatch.setattr(local_reads, "os", System("stat", 1, lambda _: was_a_file))
    broker.fault(m.FetchRequest, changing(now_at(pipe)))
    with quiverlog.connect(broker.bootstrap, request_timeout=10) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


def test_a_file_without_rows_is_not_believed(broker: ScriptedBroker, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"something that is no batch" * 100_000)
    broker.fault(m.FetchRequest, changing(now_at(secret)))
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


# --- a file that has its name and its inode, and other rows by now --------------------------------
@pytest.mark.parametrize("batch_rows", [BATCH_ROWS, BATCH_ROWS - 3_000, 5_000])
@pytest.mark.parametrize("kept_rows", [0, BATCH_ROWS])
def test_rows_that_were_written_since_are_not_taken_for_those_asked_for(
    broker: ScriptedBroker, tmp_path: Path, kept_rows: int, batch_rows: int
) -> None:
    """A topic made again under its name, or a log that was cut and written anew: the first batches
    may be the same, the new ones join up, and their checksums are right."""
    topic = f"u{kept_rows}-{batch_rows}"
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic(topic, pa.schema([("id", pa.int64())]))
        for rows, found in ((BATCH_ROWS, range(kept_rows)), (batch_rows, range(-ROWS, 0))):
            with client.producer(topic, batch_rows=rows, compression="none") as producer:
                producer.send(pa.table({"id": found}))
        info = client.describe_topic(topic)
    written = tmp_path / "written"
    written.write_bytes(segment_of(broker, info.topic_id).read_bytes())

    def change(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for result in response.partitions:
            for one in result.file_ranges:
                now_at(written)(one)
        return response, body

    broker.fault(m.FetchRequest, Answer(change))
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


def test_a_file_that_is_written_anew_while_it_is_read_is_found_out(
    broker: ScriptedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the look at what it holds comes after the rows."""
    copy = tmp_path / "copy"

    def to_copy(one: m.FileRange) -> None:
        copy.write_bytes(Path(one.path).read_bytes())
        now_at(copy)(one)

    def read_and_cut(fd: int, rooms: list[memoryview], position: int) -> int:
        count = os.preadv(fd, rooms, position)
        os.truncate(copy, position)
        return count

    broker.fault(m.FetchRequest, changing(to_copy))
    monkeypatch.setattr(local_reads, "os", System("preadv", 1, read_and_cut))
    with quiverlog.connect(broker.bootstrap) as client:
        assert ids(client) == EXPECTED
    assert wishes(broker)[-1] is False


def no_header(one: m.FileRange) -> None:
    one.last_header = b""


def long_batch(one: m.FileRange) -> None:
    """The last batch would begin before the range."""
    size = one.byte_count + BATCH_ALIGNMENT_BYTES - SIZE_END
    header = bytearray(one.last_header)
    header[SIZE_OFFSET:SIZE_END] = size.to_bytes(4, "little")
    one.last_header = bytes(header)


def short_batch(one: m.FileRange) -> None:
    """The last batch would end within its header."""
    one.last_header = one.last_header[:SIZE_OFFSET] + bytes(SIZE_END - SIZE_OFFSET) + bytes(48)


def grown(one: m.FileRange) -> None:
    one.byte_count += 1


def huge(one: m.FileRange) -> None:
    one.byte_count = 2**62


def negative(one: m.FileRange) -> None:
    one.byte_count = -one.byte_count


def before_the_file(one: m.FileRange) -> None:
    one.position = -1


@pytest.mark.parametrize(
    "change", [grown, huge, negative, before_the_file, no_header, long_batch, short_batch]
)
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


def test_ranges_that_were_not_asked_for_are_refused(broker: ScriptedBroker) -> None:
    def wish(request: Any) -> None:
        request.file_ranges = True

    broker.always(m.FetchRequest, wish)
    with (
        connect("asyncio", broker.bootstrap, request_timeout=2) as client,
        pytest.raises(InvalidResponse),
    ):
        ids(client)
