"""Disk trouble: no room, room again; damaged files at start; retention without requests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiverlog.errors import DiskFull, QuiverlogError
from quiverlog.types import EARLIEST
from quiverlog.wire import messages as m
from tests.support.broker import BrokerFailed, BrokerProcess
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import until

pytestmark = pytest.mark.process

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("NOT TESTED on a full disk: this machine has no mount command")
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting a small disk needs root and CAP_SYS_ADMIN: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def produce_until_refused(client: RawClient, topic_id: bytes, first: int) -> int:
    """The first id that was not taken."""
    for number in range(first, first + 100_000, 100):
        try:
            client.produce(topic_id, make_batch(number, 100, text="x" * 1000))
        except DiskFull:
            return number
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize("reserve", [4 * MIB, 1 * MIB], ids=["reserve", "tiny-reserve"])
def test_a_full_disk_refuses_cleanly_and_recovers(small_disk: Path, reserve: int) -> None:
    config = {"disk.reserve.bytes": reserve, "topic.defaults.segment.bytes": MIB}
    with BrokerProcess(small_disk / "data", config) as broker, RawClient(broker.address) as client:
        topic_id = client.create_topic("t")
        filler = small_disk / "filler"
        written = produce_until_refused(client, topic_id, 0)
        assert written > 0
        # Reading goes on, and so does everything that writes nothing.
        assert sum(len(s.ids) for s in client.read_all(topic_id)) == written
        # Another program takes what is left, to the last byte.
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(65_536)):
                pass
        for _ in range(5):
            with pytest.raises(DiskFull):
                client.produce(topic_id, make_batch(written))
        with pytest.raises(QuiverlogError):
            client.create_topic("more")
        filler.unlink()
        entry = m.DeleteRecordsPartition(topic_id=topic_id, partition=0, before_offset=-1)
        deleted = client.ask(m.DeleteRecordsRequest(partitions=[entry])).partitions[0]
        assert deleted.error_code == 0, deleted

        def taken() -> bool:
            with contextlib.suppress(DiskFull):
                client.produce(topic_id, make_batch(written, 100))
                return True
            return False

        until(taken)
        (stored,) = client.read_all(topic_id)
        assert (stored.base_offset, stored.ids[0]) == (written, written)
        assert "disk has room again" in broker.log_text
        assert broker.restart(kill=True).running
        with RawClient(broker.address) as again:
            assert [s.ids[0] for s in again.read_all(topic_id)] == [written]


def test_a_start_on_a_full_disk(small_disk: Path) -> None:
    """The broker comes up and serves reads, or prints one line why not; no row is lost."""
    config = {"disk.reserve.bytes": MIB}
    with BrokerProcess(small_disk / "data", config) as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0, 100))
        broker.kill()
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        try:
            broker.start()
        except BrokerFailed:
            assert "Traceback" not in broker.log_text
        filler.unlink()
        if not broker.running:
            broker.start()
        with RawClient(broker.address) as client:
            (stored,) = client.read_all(topic_id)
            assert stored.ids == list(range(100))


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("*.index", "garbage"),
        ("producers.snapshot", "garbage"),
        ("partition.json", "missing"),
        pytest.param("*.timeindex", "empty", marks=pytest.mark.long),
        pytest.param("leader-epochs", "missing", marks=pytest.mark.long),
        pytest.param("partition.json", "garbage", marks=pytest.mark.long),
    ],
)
def test_damaged_helper_files_cost_no_row(tmp_path: Path, pattern: str, damage: str) -> None:
    config = {"topic.defaults.segment.bytes": 1 << 16}
    with BrokerProcess(tmp_path / "data", config) as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            for number in range(0, 2_000, 100):
                client.produce(topic_id, make_batch(number, 100, text="x" * 100))
        assert broker.stop() == 0
        for path in (tmp_path / "data").rglob(pattern):
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(os.urandom(200) if damage == "garbage" else b"")
        try:
            broker.start()
        except BrokerFailed:
            assert pattern == "partition.json", broker.log_text
            assert "Traceback" not in broker.log_text
            return
        with RawClient(broker.address) as client:
            ids = [i for stored in client.read_all(topic_id) for i in stored.ids]
            assert ids == list(range(2_000))
            client.produce(topic_id, make_batch(2_000))


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("clean-shutdown", "garbage"),
        ("node.json", "empty"),
        ("metadata*", "garbage"),
        pytest.param("metadata*", "empty", marks=pytest.mark.long),
    ],
)
def test_damaged_files_of_the_node_are_refused_in_one_line_or_cost_nothing(
    tmp_path: Path, pattern: str, damage: str
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0, 100))
        assert broker.stop() == 0
        found = [tmp_path / "data" / p for p in (tmp_path / "data").glob(pattern)]
        paths = [q for p in found for q in ([p] if p.is_file() else p.rglob("*")) if q.is_file()]
        assert paths
        kept = {path: path.read_bytes() for path in paths}
        for path in kept:
            path.write_bytes(os.urandom(200) if damage == "garbage" else b"")
        before = broker.log_text
        try:
            broker.start()
        except BrokerFailed:
            printed = broker.log_text.removeprefix(before).splitlines()
            assert len([line for line in printed if "level=info" not in line]) == 1, printed
            for path, data in kept.items():
                path.write_bytes(data)
            broker.start()
        with RawClient(broker.address) as client:
            (stored,) = client.read_all(topic_id)
            assert stored.ids == list(range(100))


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_broker_does_not_start_on_a_part_of_its_metadata(tmp_path: Path, damage: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0, 100))
        assert broker.stop() == 0
        log = tmp_path / "data" / "metadata" / "metadata.log"
        kept = log.read_bytes()
        if damage == "cut":
            log.write_bytes(kept[: len(kept) // 2])
        else:
            log.unlink()
        for _ in range(2):  # A second try must not be taken in either.
            with pytest.raises(BrokerFailed):
                broker.start()
            assert "metadata.log" in broker.log_text
        log.write_bytes(kept)
        broker.start()
        with RawClient(broker.address) as client:
            (stored,) = client.read_all(topic_id)
            assert stored.ids == list(range(100))


def test_rows_of_topics_that_the_metadata_log_lacks_are_set_aside(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        log = tmp_path / "data" / "metadata" / "metadata.log"
        with RawClient(broker.address) as client:
            client.create_topic("known")
        broker.kill()
        old = log.read_bytes()
        broker.start()
        with RawClient(broker.address) as client:
            client.produce(client.create_topic("t"), make_batch(0, 100))
        broker.kill()
        rows = next((tmp_path / "data" / "data" / "t-0").glob("*.log")).read_bytes()
        log.write_bytes(old)
        broker.start()
        (aside,) = (tmp_path / "data" / "data").glob("t-0.*.orphan")
        assert next(aside.glob("*.log")).read_bytes() == rows
        assert broker.stop() == 0
        broker.start()
        assert aside.exists()


def test_a_flipped_bit_in_a_segment_is_a_fault_of_that_range_alone(tmp_path: Path) -> None:
    config = {"topic.defaults.segment.bytes": 1 << 16}
    with BrokerProcess(tmp_path / "data", config) as broker:
        with RawClient(broker.address) as client:
            topic_id, other = client.create_topic("t"), client.create_topic("other")
            for number in range(0, 3_000, 100):
                client.produce(topic_id, make_batch(number, 100, text="x" * 100))
            client.produce(other, make_batch(0))
        broker.kill()
        segment = min((tmp_path / "data").rglob("t-0/*.log"))
        size = segment.stat().st_size
        with segment.open("r+b") as file:
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 4]))
        broker.start()
        assert segment.stat().st_size == size, "a damaged file is kept, never cut"
        with RawClient(broker.address) as client:
            assert client.list_offset(topic_id) == 3_000
            assert len(list(client.read_all(other))) == 1
            response, body = client.ask_for_body(client.fetch_request(topic_id, 2_900))
            assert response.partitions[0].error_code == 0
            assert body.nbytes
            client.produce(topic_id, make_batch(3_000))


def test_retention_holds_on_an_idle_topic(tmp_path: Path) -> None:
    """Two seconds of retention, a check each ten: rows go although no client asks for anything."""
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t", retention_ms=2_000)
            kept = client.create_topic("kept")
            for number in range(10):
                client.produce(topic_id, make_batch(number * 10))
                client.produce(kept, make_batch(number * 10))
        with RawClient(broker.address) as client:
            until(lambda: client.list_offset(topic_id, at=EARLIEST) == 100, timeout_s=30)
            assert client.list_offset(topic_id) == 100
            assert client.list_offset(kept, at=EARLIEST) == 0
            client.produce(topic_id, make_batch(100))
            assert [s.base_offset for s in client.read_all(topic_id)] == [100]
