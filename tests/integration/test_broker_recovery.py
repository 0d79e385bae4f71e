"""What a start logs of a partition's files, and how a producer goes on after one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient, make_batch

pytestmark = pytest.mark.process

SEGMENT = f"{0:020d}.log"


def lines_of(broker: BrokerProcess, before: str) -> list[str]:
    return broker.log_text.removeprefix(before).splitlines()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_files_that_do_not_belong_to_a_partition_are_named_in_the_log(
    tmp_path: Path, kill: bool
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0, 100))
        directory = tmp_path / "data" / "data" / "t-0"
        strays = ["5.log", f"{'9' * 20}.log", f"producers-{'9' * 20}.snapshot", "notes.txt"]
        for name in strays:
            (directory / name).write_bytes(b"something else")
        (directory / f"{7:020d}.index").mkdir()
        before = broker.log_text
        broker.restart(kill=kill)
        printed = [line for line in lines_of(broker, before) if 'event="partition file"' in line]
        assert all("level=warning" in line and "partition=t-0" in line for line in printed)
        for name in [*strays, f"{7:020d}.index"]:
            assert sum(f"t-0/{name} " in line for line in printed) == 1, printed
        assert len(printed) == len(strays) + 1
        assert str(tmp_path) not in "".join(printed), "names, no absolute paths"
        with RawClient(broker.address) as client:
            assert [i for s in client.read_all(topic_id) for i in s.ids] == list(range(100))


def positions(path: Path) -> list[int]:
    """Where the batches of a segment begin."""
    data, at, found = path.read_bytes(), SEGMENT_HEADER_BYTES, []
    while at < len(data):
        found.append(at)
        at += BatchHeader.unpack(data, at).total_bytes
    return found


@pytest.mark.parametrize("batches", [1, 3], ids=["the only batch", "the last of several"])
def test_a_producer_whose_stored_batch_is_damaged_goes_on(tmp_path: Path, batches: int) -> None:
    """The broker has lost the next number: the producer takes the next epoch."""
    with BrokerProcess(tmp_path / "data") as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", pa.schema([("id", pa.int64())]), partitions=1)
        with client.producer("t") as producer:
            for number in range(batches):
                (delivered,) = producer.send({"id": number}).result(30)
                assert delivered.base_offset == number
            broker.kill()
            path = tmp_path / "data" / "data" / "t-0" / SEGMENT
            data = bytearray(path.read_bytes())
            data[positions(path)[-1] + 80] ^= 1
            path.write_bytes(data)
            for name in ("recovery-point", "recovery-point-copy"):
                (path.parent / name).unlink()  # So that the start looks at all batches.
            broker.start()
            assert 'event="damaged rows found"' in broker.log_text
            for number in range(batches, batches + 3):
                (delivered,) = producer.send({"id": number}).result(30)
                assert delivered.base_offset == number
        newest = max(path.parent.glob("*.log"))
        (first, last) = (
            BatchHeader.unpack(p.read_bytes(), positions(p)[-1]) for p in (path, newest)
        )
        assert last.producer_id == first.producer_id
        assert last.producer_epoch == first.producer_epoch + 1
        with client.consumer("t", start={0: batches}) as consumer:
            later = [i for batch in consumer for i in batch.data["id"].to_pylist()]
        assert later == list(range(batches, batches + 3))
        with client.consumer("t") as consumer, pytest.raises(CorruptLog):
            list(consumer)
