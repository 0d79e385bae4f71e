"""A broker process and its data directory: names, strangers, the lock, and a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiverlog.errors import DiskFull, OutcomeUnknown, StorageFault
from quiverlog.wire import messages as m
from tests.support.broker import BrokerFailed, BrokerProcess
from tests.support.rawclient import RawClient, make_batch

pytestmark = pytest.mark.process


def rows_of(broker: BrokerProcess, topic_id: bytes) -> list[int]:
    with RawClient(broker.address) as client:
        return [number for batch in client.read_all(topic_id) for number in batch.ids]


def test_a_deleted_lock_file_lets_no_second_broker_in(tmp_path: Path) -> None:
    with BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker:
        (tmp_path / "data" / "lock").unlink()
        with pytest.raises(BrokerFailed, match="locked by another broker"):
            BrokerProcess(data_dir=tmp_path / "data").start()
        assert broker.running


@pytest.mark.parametrize(
    ("name", "kind"),
    [("node.json", "damaged"), ("metadata/metadata.log", "missing"), ("node.json", "fifo")],
)
def test_damage_that_only_a_backup_mends_is_a_refusal(tmp_path: Path, name: str, kind: str) -> None:
    """A supervisor that does not restart after code 2 must not loop, and nothing may hang."""
    with (
        BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker,
        RawClient(broker.address) as client,
    ):
        client.create_topic("t")
    path = tmp_path / "data" / name
    path.unlink()
    if kind == "damaged":
        path.write_bytes(b"{")
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(BrokerFailed, match="code 2") as caught:
        BrokerProcess(data_dir=tmp_path / "data", start_timeout=120).start()
    (line,) = [x for x in str(caught.value).splitlines()[1:] if "level=info" not in x]
    assert f"{path} " in line
    assert "from a backup" in line


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_a_path_that_is_no_directory_is_a_refusal_that_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    if kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to(path)
    with pytest.raises(BrokerFailed, match="code 2") as caught:
        BrokerProcess(data_dir=path, start_timeout=120).start()
    (line,) = [x for x in str(caught.value).splitlines()[1:] if "level=info" not in x]
    assert f"{path}: is" in line


def test_a_stop_without_its_mark_is_no_clean_stop(tmp_path: Path) -> None:
    """The broker logged `process ends clean=true`, and its exit code was 0."""
    with BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            client.produce(client.create_topic("t"), make_batch(0))
        (tmp_path / "data" / "clean-shutdown.tmp").mkdir()
        assert broker.stop() == 1
        assert 'event="clean mark not written"' in broker.log_text
        assert 'event="process ends" clean=false' in broker.log_text


def test_a_directory_that_is_replaced_takes_no_more_rows(tmp_path: Path) -> None:
    with (
        BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker,
        RawClient(broker.address) as client,
    ):
        topic_id = client.create_topic("t")
        (tmp_path / "data").rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", tmp_path / "data")
        deadline = time.monotonic() + 60
        while "data directory lost" not in broker.log_text:
            assert time.monotonic() < deadline, broker.log_text
            time.sleep(0.05)
        with pytest.raises(StorageFault, match="replaced"):
            client.produce(topic_id, make_batch(0))


def test_partitions_that_are_replaced_take_no_more_rows(tmp_path: Path) -> None:
    """Only the top directory was guarded: rows in the renamed `data/` were acknowledged."""
    data = tmp_path / "data" / "data"
    with BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0))
            data.rename(tmp_path / "moved")
            data.mkdir()
            # The very next one: the flush looks where its file is.
            with pytest.raises(OutcomeUnknown, match=r"replaced|No such file"):
                client.produce(topic_id, make_batch(10))
            deadline = time.monotonic() + 60
            while "data directory lost" not in broker.log_text:
                assert time.monotonic() < deadline, broker.log_text
                time.sleep(0.05)
            with pytest.raises(StorageFault, match="replaced"):
                client.produce(topic_id, make_batch(10))
            with pytest.raises(StorageFault, match="replaced"):
                client.create_topic("u")
        assert broker.stop() == 1
        data.rmdir()
        (tmp_path / "moved").rename(data)
        broker.start()
        assert rows_of(broker, topic_id)[:10] == list(range(10))


def test_topics_of_every_length_come_and_go(tmp_path: Path) -> None:
    """`<name>-0.<8 hex>.deleted` had more than 255 bytes: the broker never started again."""
    names = ["n" * length for length in range(230, 250)]
    with BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            for name in names:
                client.produce(client.create_topic(name), make_batch(0))
        broker.restart(kill=True)
        with RawClient(broker.address) as client:
            deleted = client.ask(m.DeleteTopicsRequest(names=names))
            assert [topic.error_code for topic in deleted.topics] == [0] * len(names)
        broker.restart()
        with RawClient(broker.address) as client:
            ids = [client.create_topic(name, 3) for name in names]
            for topic_id in ids:
                client.produce(topic_id, make_batch(7))
        broker.restart(kill=True)
        assert rows_of(broker, ids[-1]) == list(range(7, 17))


def test_strangers_in_the_data_directory_stop_no_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data_dir=data, start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0))
        assert broker.stop() == 0
        (data / "data" / "note.txt").write_text("mine")
        (data / "data" / "backup").mkdir()
        (data / "data" / "backup" / "precious").write_text("mine")
        (data / "data" / "t-0" / "note.txt").write_text("mine")
        (data / "data" / "t-0" / "partition.json").write_bytes(b"\xff{")
        broker.start()
        assert "data/note.txt was left alone" in broker.log_text
        assert rows_of(broker, topic_id) == list(range(10))
        assert (data / "data" / "note.txt").exists()
        assert (data / "data" / "backup" / "precious").exists()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        why = mounted.stderr.strip() if mounted.returncode else ""
    except FileNotFoundError:
        why = "there is no mount command"
    if why:
        pytest.skip(f"NOT TESTED on a real full file system: {why}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(ballast: Path) -> None:
    """Until not a byte is free."""
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            while True:
                try:
                    if file.write(b"x" * size) < size:
                        break
                except OSError:
                    break


@pytest.mark.parametrize("reserve", [True, False], ids=["reserve", "no-reserve"])
def test_a_stop_without_a_free_byte(small: Path, reserve: bool) -> None:
    """An index that could not be written cost the clean mark, and the exit code did not show it."""
    config = {"disk.reserve.bytes": 1 << 20}
    with BrokerProcess(data_dir=small / "data", config=config, start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            for first in range(0, 100, 10):
                client.produce(topic_id, make_batch(first))
        if not reserve:
            (small / "data" / "reserve").unlink()
        fill_up(small / "ballast")
        assert broker.stop() == (0 if reserve else 1)
        (small / "ballast").unlink()
        broker.start()
        started = [x for x in broker.log_text.splitlines() if "event=started" in x][-1]
        assert f"clean={str(reserve).lower()}" in started
        assert rows_of(broker, topic_id) == list(range(100))


@pytest.mark.parametrize(
    "clean",
    [pytest.param(True, id="stopped", marks=pytest.mark.long), pytest.param(False, id="killed")],
)
def test_every_start_without_a_free_byte_serves_its_readers(small: Path, clean: bool) -> None:
    """The first one used the reserve up; the second was refused."""
    config = {"disk.reserve.bytes": 1 << 20}
    with BrokerProcess(data_dir=small / "data", config=config, start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t", durability="flushed")
            for first in range(0, 100, 10):
                client.produce(topic_id, make_batch(first))
            client.create_topic("wide", 300)  # Their epochs do not fit into what a page has left.
        if clean:
            assert broker.stop() == 0
        else:
            broker.kill()
        for _ in range(3):
            fill_up(small / "ballast")
            broker.start()
            fill_up(small / "more")
            assert rows_of(broker, topic_id) == list(range(100))
            with RawClient(broker.address) as client, pytest.raises(DiskFull):
                client.produce(topic_id, make_batch(100))
            broker.kill()
        broker.start()
        assert rows_of(broker, topic_id) == list(range(100))
        # Room again, under the running broker: writes resume, in a new leader epoch.
        (small / "ballast").unlink()
        (small / "more").unlink()
        deadline = time.monotonic() + 60
        while "disk has room again" not in broker.log_text:
            assert time.monotonic() < deadline, broker.log_text
            time.sleep(0.05)
        with RawClient(broker.address) as client:
            client.produce(topic_id, make_batch(100))
            topic = client.ask(m.MetadataRequest()).topics[0]
            epoch = topic.partitions[0].leader_epoch
            assert epoch > 0
        broker.restart(kill=True)
        with RawClient(broker.address) as client:
            topic = client.ask(m.MetadataRequest()).topics[0]
            assert topic.partitions[0].leader_epoch == epoch + 1
        assert rows_of(broker, topic_id) == list(range(110))


def test_only_the_owner_may_read_what_a_broker_writes(tmp_path: Path) -> None:
    with BrokerProcess(data_dir=tmp_path / "data", start_timeout=120) as broker:
        with RawClient(broker.address) as client:
            client.produce(client.create_topic("t"), make_batch(0))
        paths = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
        assert any(path.suffix == ".log" for path in paths)
        for path in paths:
            assert path.stat().st_mode & 0o077 == 0, path
