"""Three broker processes whose disks rot: bits flip in the files of copies and of leaders."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import quiverlog
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from tests.support.broker import BrokerProcess
from tests.support.growing import typed

from .test_broker_five_voters import SCHEMA, Growing, Producing, read_ids, until

pytestmark = pytest.mark.process

ROWS = 200
IN_FIRST_BATCH = SEGMENT_HEADER_BYTES + 64 + 16
CONFIG = {"min.insync.replicas": "2", "durability": "replicated"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


class Rotting(Growing):
    """Three brokers that hold one partition."""

    def data(self, node_id: int) -> Path:
        return self.by_id[node_id].data_dir / "data"

    def flip(self, node_id: int) -> None:
        """Change a bit of the first rows."""
        path = min((self.data(node_id) / "t-0").glob("*.log"))
        with path.open("r+b") as file:
            file.seek(IN_FIRST_BATCH)
            bad = bytes([file.read(1)[0] ^ 1])
            file.seek(IN_FIRST_BATCH)
            file.write(bad)

    def find_at_start(self, node_id: int) -> None:
        """Killed, a bit flips while it is down, and the start looks at everything."""
        self.by_id[node_id].kill9()
        self.flip(node_id)
        for path in (self.data(node_id) / "t-0").glob("recovery-point*"):
            path.unlink()
        self.by_id[node_id].start()

    def asides(self, node_id: int) -> list[Path]:
        return sorted(self.data(node_id).glob("*.damaged"))

    def leader(self) -> int:
        with quiverlog.connect(self.bootstrap) as client:
            return client.describe_topic("t").partitions[0].leader

    def stored(self, node_id: int) -> bytes:
        """The bytes of all batches; when a file was made is in its header."""
        paths = sorted((self.data(node_id) / "t-0").glob("*.log"))
        return b"".join(path.read_bytes()[SEGMENT_HEADER_BYTES:] for path in paths)


def test_copies_and_leaders_are_mended_while_rows_are_written_and_none_is_lost(
    stack: ExitStack,
) -> None:
    three = Rotting(stack)
    three.add()
    three.add()
    until(lambda: three.has_voters(3), "three voters")
    with quiverlog.connect(three.bootstrap) as client:
        client.create_topic("t", SCHEMA, replication_factor=3, config=CONFIG)
    until(three.is_whole, "three copies")
    producing = Producing(three.bootstrap, "t")

    def more_rows() -> None:
        before = producing.acknowledged
        until(lambda: producing.acknowledged >= before + ROWS, "rows")

    more_rows()
    copy = min(set(three.by_id) - {three.leader()})
    three.find_at_start(copy)
    until(lambda: three.asides(copy) and three.is_whole(), "a copy that is mended")
    more_rows()

    led = three.leader()
    three.find_at_start(led)
    until(lambda: three.asides(led) and three.is_whole(), "a former leader that is mended")
    more_rows()

    # While it runs: no read meets what the leader has written, until a copy begins anew.
    led = three.leader()
    before = len(three.asides(led))
    other = min(set(three.by_id) - {led})
    three.flip(led)
    three.find_at_start(other)
    until(
        lambda: len(three.asides(led)) > before and three.is_whole(),
        "a leader that is mended while it runs",
    )
    assert three.leader() != led
    more_rows()

    sent = producing.end()
    assert read_ids(three.bootstrap, "t") == Counter(range(sent))
    until(lambda: len({three.stored(one) for one in three.by_id}) == 1, "the same bytes everywhere")
    for one in three.by_id.values():
        assert "internal error" not in one.log_text
        assert one.stop() == 0, one.log_text
    assert len({three.stored(one) for one in three.by_id}) == 1


FLUSHED = CONFIG | {"durability": "replicated_flushed"}
FAILING_FSYNC = """
import errno, os, runpy, sys
MARK = sys.argv.pop(1)
def failing(sync):
    def call(descriptor):
        if os.path.exists(MARK) and "/data/t-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)
    return call
os.fsync, os.fdatasync = failing(os.fsync), failing(os.fdatasync)
runpy.run_module("quiverlog", run_name="__main__", alter_sys=True)
"""
"""A broker whose fsync of rows fails while a file is there."""


def test_a_broker_whose_fsync_fails_is_named_with_what_to_do(
    stack: ExitStack, tmp_path: Path
) -> None:
    """`cluster status` advised to look at the disk "if its copies do not catch up"."""
    mark = tmp_path / "fsync-fails"
    three = Rotting(stack)
    three.add()
    three.add()
    until(lambda: three.has_voters(3), "three voters")
    old = three.by_id[3]
    old.stop()
    command = (sys.executable, "-c", FAILING_FSYNC, str(mark), "broker")
    three.by_id[3] = stack.enter_context(
        BrokerProcess(old.data_dir, old.config, old.bootstrap, command=command)
    )
    until(three.is_whole, "three live brokers")
    with quiverlog.connect(three.bootstrap) as client:
        client.create_topic("t", SCHEMA, replication_factor=3, config=FLUSHED)
    until(three.is_whole, "three copies")
    producing = Producing(three.bootstrap, "t")
    mark.touch()
    words = "Broker 3: 1 partition takes no writes, because a write or fsync has failed there."
    until(lambda: words in typed("cluster", "status", "-b", three.bootstrap).out, "it is named")
    doctor = typed("doctor", "--no-spark", "-b", three.bootstrap)
    assert words in " ".join(doctor.out.split()), doctor
    mark.unlink()
    assert not three.is_whole(), "a later fsync that succeeds proves nothing"
    three.by_id[3].stop()  # As the advice has it.
    three.by_id[3].start()
    until(three.is_whole, "three copies again")
    until(lambda: typed("cluster", "status", "-b", three.bootstrap).code == 0, "it is healthy")
    count = producing.end()
    assert read_ids(three.bootstrap, "t") == Counter(range(count))
