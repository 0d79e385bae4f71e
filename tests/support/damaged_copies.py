"""Three brokers that hold one partition, whose disks rot: what was written, and what is there.

Owns the producing, the damaging and the comparing. Not here: what a test asserts.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import Tick
from quiverlog.storage.disk.posix_file import PosixFile
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.election_messages import ElectLeadersRequest

from .members import Member, Members
from .node import SCHEMA, batch_of

__all__ = ["DamagedCopies", "failing_reads"]

_HISTORY = SchemaHistory({1: SCHEMA})
_ROWS = 50


@contextlib.contextmanager
def failing_reads(directory: Path, nth: int) -> Iterator[list[str]]:
    """The nth call that reads a file in the directory meets a bad sector; yields what failed."""
    failed: list[str] = []
    count = 0
    bad: tuple[str, int] | None = None
    real = {name: getattr(PosixFile, name) for name in ("read", "read_copy")}

    def make(name: str) -> Callable[..., Any]:
        def call(file: PosixFile, position: int, size: int) -> Any:
            nonlocal count, bad
            if file.path.startswith(f"{directory}/"):
                count += 1
                if count == nth + 1:
                    bad = file.path, position
                if bad is not None and bad[0] == file.path and 0 <= bad[1] - position < size:
                    failed.append(f"{name} of {file.path} at {position}")
                    raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
            return real[name](file, position, size)

        return call

    with contextlib.ExitStack() as stack:
        for name in real:
            stack.enter_context(mock.patch.object(PosixFile, name, make(name)))
        yield failed


class DamagedCopies:
    """`written`: the value of each acknowledged row, in order.

    Broker 1 decides; it leads the partition at first.
    """

    def __init__(self, root: Path, **config: Any) -> None:
        self.members = members = Members(root)
        members.add(1, **config)
        for node_id in (2, 3):
            member = members.add(node_id, seeds=(1,), **config)
            self._until(lambda member=member: member.started)
        self._until(lambda: len(self._image().live_brokers()) == 3)
        first = members.by_id[1]
        configs = {"min.insync.replicas": "2", "durability": "replicated"}
        new = m.NewTopic("t", serialize_schema(SCHEMA), 1, 3, [], configs)
        first.call(m.HelloRequest())
        asked = first.request(m.CreateTopicsRequest(topics=[new]))
        self._until(lambda: first.answer(asked) is not None)
        self.topic = self._image().topics["t"].topic_id
        self.key = (self.topic, 0)
        self.written: list[int] = []
        self.start = 0
        self.all_in_sync()

    def _image(self) -> Any:
        return self.members.by_id[1].node.broker.metadata.image

    def _until(self, condition: Callable[[], bool], ms_max: int = 20_000) -> None:
        self.members.run_until(condition, ms_max)

    # --- looking -------------------------------------------------------------------------------
    @property
    def partition(self) -> PartitionImage:
        """As the controller has it."""
        found = self._image().topics["t"].partitions[0]
        assert isinstance(found, PartitionImage)
        return found

    @property
    def leader(self) -> Member:
        return self.members.by_id[self.partition.leader_id]

    def replica(self, member: Member) -> Replica:
        found = member.node.broker.assignment.find(self.key)
        assert found is not None
        return found

    def directory(self, member: Member, name: str = "t-0") -> Path:
        return Path(member.config.data_dir) / "data" / name

    def aside(self, member: Member) -> list[str]:
        """The names of what was set aside."""
        data = Path(member.config.data_dir) / "data"
        return sorted(path.name for path in data.iterdir() if path.name.endswith(".damaged"))

    def stored(self, member: Member) -> bytes:
        """The bytes of all batches."""
        paths = sorted(self.directory(member).glob("*.log"))
        return b"".join(path.read_bytes()[SEGMENT_HEADER_BYTES:] for path in paths)

    def all_in_sync(self) -> None:
        """Let time pass until all are, under a leader that has begun."""
        self._until(lambda: set(self.partition.in_sync_replicas) == {1, 2, 3} and self._leads())

    def _leads(self) -> bool:
        replica = self.leader.node.broker.replicas.get(self.key)
        return replica is not None and replica.state.leader_epoch == self.partition.leader_epoch

    def lead(self, node_id: int) -> None:
        """This one leads from now on."""
        controller = self.members.by_id[1]
        change = PartitionChangeRecord(
            self.topic, 0, leader_id=node_id, leader_epoch=self.partition.leader_epoch + 1
        )
        errors: list[BaseException | None] = []
        controller.node.broker.propose(
            [change], controller.now, lambda _result, error, _now: errors.append(error)
        )
        controller.send(Tick())
        self._until(lambda: bool(errors))
        assert errors == [None]
        self._until(self._leads)

    def _ask(self, request: m.Request) -> Any:
        first = self.members.by_id[1]
        first.call(m.HelloRequest())
        asked = first.request(request)
        self._until(lambda: first.answer(asked) is not None)
        answer = first.answer(asked)
        assert answer is not None
        return answer[0]

    def alter(self, key: str, value: str) -> None:
        """Change the topic's configuration."""
        assert not self._ask(m.AlterTopicRequest(name="t", set_configs={key: value})).error_code

    def elect_uncleanly(self) -> None:
        """An operator gives up the rows that no replica has any more."""
        answer = self._ask(ElectLeadersRequest(name="t", partitions=[0], unclean=True))
        assert not answer.error_code, answer

    def give_up(self, offset: int) -> None:
        """DELETE_RECORDS, at the leader."""
        leader = self.leader
        leader.call(m.HelloRequest())
        entry = m.DeleteRecordsPartition(self.topic, 0, offset)
        asked = leader.request(m.DeleteRecordsRequest(partitions=[entry]))
        self._until(lambda: leader.answer(asked) is not None)
        answer = leader.answer(asked)
        assert answer is not None
        assert not answer[0].partitions[0].error_code, answer[0]

    # --- rows ----------------------------------------------------------------------------------
    def write(self, batches: int = 1, durability: Durability = Durability.REPLICATED) -> None:
        """Rows of the next values; they are acknowledged."""
        for _ in range(batches):
            first = self.start + len(self.written)
            values = list(range(first, first + _ROWS))
            for _ in range(100):
                if self._leads() and self._write(values, durability):
                    break
                self.members.run(100)
            else:
                raise AssertionError("no leader takes rows")
            self.written += values

    def _write(self, values: list[int], durability: Durability) -> bool:
        leader = self.leader
        leader.call(m.HelloRequest())
        asked = leader.produce(self.topic, batch_of(values), durability=int(durability))
        self._until(lambda: leader.answer(asked) is not None)
        answer = leader.answer(asked)
        assert answer is not None
        return not answer[0].partitions[0].error_code

    def flush(self) -> None:
        """All have what they have on their disks."""
        self.members.run(31_000)

    def read(self, member: Member, offset: int = 0) -> list[int] | int:
        """The values from there on that this broker shows at once, or the error's code."""
        member.call(m.HelloRequest())
        correlation = member.request(member.fetch_request(self.topic, offset))
        self._until(lambda: member.answer(correlation) is not None)
        answer = member.answer(correlation)
        assert answer is not None
        result = answer[0].partitions[0]
        if result.error_code:
            return int(result.error_code)
        found: list[int] = []
        for header, view in split_batches(memoryview(answer[1])):
            rows = decode_batch(view, header, _HISTORY).column(0).to_pylist()
            found += rows[max(0, offset - header.base_offset) :]
        return found

    def read_all(self) -> list[int]:
        """All rows, from the leader."""
        found: list[int] = []
        for _ in range(500):
            more = self.read(self.leader, self.start + len(found)) if self._leads() else 0
            if isinstance(more, list) and more:
                found += more
            elif len(found) < len(self.written):
                self.members.run(100)
            else:
                break
        return found

    # --- damage --------------------------------------------------------------------------------
    def flip(self, member: Member, batch: int, *, bit: int = 1) -> None:
        """Change a bit in the rows of a batch, in the file as it lies there."""
        number = 0
        for path in sorted(self.directory(member).glob("*.log")):
            data = path.read_bytes()
            at = SEGMENT_HEADER_BYTES
            for _, view in split_batches(memoryview(data)[at:]):
                if number == batch:
                    with path.open("r+b") as file:
                        file.seek(at + len(view) - 200)
                        file.write(bytes([data[at + len(view) - 200] ^ bit]))
                    return
                at += len(view)
                number += 1
        raise AssertionError(f"there is no batch {batch}")

    def restart(self, member: Member, *, scans: bool = False) -> None:
        """The process ends and begins anew; `scans`: what was flushed is known no more."""
        self.restart_together([member], scans=scans)

    def restart_together(self, members: Iterable[Member], *, scans: bool = False) -> None:
        """So do several, at once."""
        members = list(members)
        for member in members:
            for path in self.directory(member).glob("recovery-point*") if scans else ():
                path.unlink()
            member.crash()
        self._until(lambda: all(member.started for member in members))
