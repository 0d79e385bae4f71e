"""The only copy of a partition that was never made begins; one that is lost does not (ADR 0056)."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.errors import DiskFull
from quiverlog.storage.directory.data_directory import DataDirectory, PartitionDirectories
from quiverlog.storage.disk.frames import pack_file
from quiverlog.wire import messages as m
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, batch_of, check_codes

THIRD = 3
PARTITIONS = 6


class World:
    """Three brokers; the disk of the third takes no directories while it is `full`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        make = PartitionDirectories.create_partition

        def create(directory: PartitionDirectories, name: str, topic_id: bytes) -> bool:
            if self.full and directory is self.third.node.broker.directory.data:
                raise DiskFull("planted")
            return make(directory, name, topic_id)

        monkeypatch.setattr(PartitionDirectories, "create_partition", create)
        self.members = members = Members(root)
        members.add(1)
        for node_id in (2, THIRD):
            member = members.add(node_id, seeds=(1,))
            members.run_until(lambda member=member: member.started)  # type: ignore[misc]
        members.run_until(lambda: self.alive == 3, 20_000)
        for node_id in (1, THIRD):
            members.by_id[node_id].call(m.HelloRequest())

    @property
    def alive(self) -> int:
        return len(self.members.by_id[1].node.broker.metadata.image.live_brokers())

    @property
    def third(self) -> Member:
        return self.members.by_id[THIRD]

    def create(self, name: str) -> bytes:
        """A topic of single copies, some of them at the third broker."""
        first = self.members.by_id[1]
        new = m.NewTopic(name, serialize_schema(SCHEMA), PARTITIONS, 1)
        asked = first.request(m.CreateTopicsRequest(topics=[new]))
        self.members.run_until(lambda: first.answer(asked) is not None)
        answer = first.answer(asked)
        assert answer is not None
        check_codes(answer[0])
        self.members.run(100)
        return bytes(answer[0].topics[0].topic_id)

    def here(self, topic_id: bytes) -> set[int]:
        """Return the partitions of the third broker."""
        image = self.members.by_id[1].node.broker.metadata.image
        found = image.topics_by_id[topic_id].partitions
        return {one.partition for one in found if one.replicas == (THIRD,)}

    def led(self, topic_id: bytes) -> set[int]:
        replicas = self.third.node.broker.replicas
        return {number for topic, number in replicas if topic == topic_id}

    def down(self) -> None:
        self.third.stop()
        self.members.down.add(THIRD)
        self.members.run_until(lambda: self.alive == 2)

    def up(self) -> None:
        self.members.down.discard(THIRD)
        self.members.add(THIRD, seeds=(1,))
        self.members.run_until(lambda: self.alive == 3, 20_000)
        self.members.run(6_000)
        self.third.call(m.HelloRequest())

    def produce(self, topic_id: bytes, partition: int) -> None:
        """One row, to the third broker."""
        asked = self.third.produce(topic_id, batch_of([1]), partition=partition)
        while self.third.syncs:
            self.third.flush()
        self.members.run_until(lambda: self.third.answer(asked) is not None)
        answer = self.third.answer(asked)
        assert answer is not None
        assert (answer[0].error_code, answer[0].partitions[0].error_code) == (0, 0)

    def remove(self, name: str, numbers: set[int]) -> None:
        for number in numbers:
            shutil.rmtree(Path(self.third.config.data_dir) / "data" / f"{name}-{number}")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(tmp_path, monkeypatch)
    found.members.run(2_000)
    return found


@pytest.mark.parametrize("noted_ms", [0, 3_000], ids=["before the note", "in the note"])
def test_what_was_never_made_begins_with_the_next_start(world: World, noted_ms: int) -> None:
    """The disk was full from the creation to the death; ever after the partition was offline."""
    world.full = True
    topic = world.create("t")
    here = world.here(topic)
    assert here
    assert not world.led(topic)
    world.members.run(noted_ms)
    noted = world.third.node.broker.directory.noted_made()
    assert noted is not None
    assert noted[1] == ({(topic, number) for number in here} if noted_ms else set())
    world.down()
    world.full = False
    world.up()
    assert world.led(topic) == here == world.here(topic)
    world.produce(topic, min(here))


def test_what_was_made_and_is_lost_does_not_begin_by_itself(world: World) -> None:
    topic = world.create("t")
    here = world.here(topic)
    assert world.led(topic) == here
    world.members.run(2_000)
    world.down()
    world.remove("t", here)
    world.up()
    assert not world.led(topic)
    assert {
        number for t, number in world.third.node.broker.assignment.offline if t == topic
    } == here


def test_without_a_note_no_partition_counts_as_never_created(world: World) -> None:
    """That of an earlier version, and one that was replaced."""
    topic = world.create("t")
    here = world.here(topic)
    world.members.run(2_000)
    world.down()
    world.remove("t", here)
    (Path(world.third.config.data_dir) / "made-directories").unlink()
    world.up()
    assert not world.led(topic)


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_damaged_note_is_none(tmp_path: Path, at: int) -> None:
    member = Members(tmp_path).add(1)
    directory = member.node.broker.directory
    directory.note_made(7, [(bytes(16), 3), (b"x" * 16, 0)])
    assert directory.noted_made() == (7, {(bytes(16), 3), (b"x" * 16, 0)})
    path = Path(directory.made_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert directory.noted_made() is None


def test_a_note_that_cannot_be_written_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_directory: DataDirectory, _version: int, _never_created: object) -> None:
        raise DiskFull("planted")

    before = world.third.node.broker.directory.noted_made()
    with monkeypatch.context() as patched:
        patched.setattr(DataDirectory, "note_made", full)
        world.create("t")
        world.members.run(12_000)
        assert world.third.node.broker.directory.noted_made() == before
        lines = [one for one in world.third.lines if one.event == "made directories not noted"]
        assert len(lines) == 1, "logged once"
    world.members.run(6_000)
    after = world.third.node.broker.directory.noted_made()
    assert before is not None
    assert after is not None
    assert after[0] > before[0]
    assert world.third.node.broker.creation_note.next_us() is None


@pytest.mark.parametrize("note", ["older", "newer", "all of these", "of other topics"])
@pytest.mark.parametrize("is_there", [True, False], ids=["whole", "a directory is lost"])
def test_a_note_of_another_broker_costs_no_row(world: World, note: str, is_there: bool) -> None:
    """Well formed, and another day's or another's: beside the directories it means nothing."""
    topic = world.create("t")
    here = world.here(topic)
    world.members.run(2_000)
    for number in sorted(here):
        world.produce(topic, number)
    directory = world.third.node.broker.directory
    noted = directory.noted_made()
    assert noted is not None
    never_created = {
        "all of these": [(topic, number) for number in sorted(here)],
        "of other topics": [(b"x" * 16, number) for number in range(PARTITIONS)],
    }
    version = {"older": 0, "newer": 10**6}.get(note, noted[0])
    directory.note_made(version, never_created.get(note, []))
    path = Path(directory.made_path)
    foreign = path.read_bytes()
    world.down()
    path.write_bytes(foreign)
    lost = set() if is_there else {min(here)}
    world.remove("t", lost)
    world.up()
    assert world.led(topic) == here - lost
    for number in here - lost:
        assert world.third.broker_end(topic, number) == 1
    assert {n for t, n in world.third.node.broker.assignment.offline if t == topic} == lost


def test_a_note_of_another_directory_is_not_believed_after_a_kill_either(world: World) -> None:
    """By it the only copy of a partition began anew where its directory was lost."""
    topic = world.create("t")
    here = world.here(topic)
    world.members.run(2_000)
    for number in sorted(here):
        world.produce(topic, number)
    second = world.members.by_id[2].node.broker.directory
    second.note_made(0, [])
    foreign = Path(second.made_path).read_bytes()
    world.down()
    data = Path(world.third.config.data_dir)
    (data / "clean-shutdown").unlink()  # As a kill leaves it.
    (data / "made-directories").write_bytes(foreign)
    lost = {min(here)}
    world.remove("t", lost)
    world.up()
    assert world.led(topic) == here - lost
    assert {n for t, n in world.third.node.broker.assignment.offline if t == topic} == lost
    (line,) = [one for one in world.third.lines if one.event == "data directory"]
    note = line.fields["note"]
    assert note.startswith(f"made-directories is of the directory {second.directory_id}, and this ")
    assert (data / "made-directories.unusable").read_bytes() == foreign
    assert world.third.node.broker.directory.noted_made() is not None, "a note of its own"


def test_a_note_that_names_no_directory_is_not_believed(tmp_path: Path) -> None:
    directory = Members(tmp_path).add(1).node.broker.directory
    payload = struct.pack("<Q", 7) + struct.pack("<16sI", bytes(16), 3)
    Path(directory.made_path).write_bytes(pack_file(b"QVMADE\0\0", 1, payload))
    assert directory.noted_made() is None
    assert directory.notes[0].startswith("made-directories is of the directory unnamed, and this ")
