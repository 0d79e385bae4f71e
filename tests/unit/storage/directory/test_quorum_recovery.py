"""A stopped directory becomes that of the only voter: all or nothing, and everything is kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quiverlog.core.controller.records import BrokerRecord, encode_entry
from quiverlog.core.raft.membership import pack_voters
from quiverlog.core.raft.messages import Entry, EntryKind, HardState, ReplicaKey, SnapshotMeta
from quiverlog.errors import CorruptLog, DataDirectoryInUse, ForeignDataDirectory
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.directory.quorum_recovery import StoppedQuorum
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.metadata.metadata_log import file_header, pack_frame
from quiverlog.storage.metadata.quorum_jobs import (
    STATE_FILE,
    Snapshot,
    pack_entry,
    pack_snapshot,
    pack_state,
)
from quiverlog.storage.metadata.quorum_log import QuorumLog
from tests.sim.disk import SimDisk
from tests.sim.mutations import Mutation, planted
from tests.support.quorum_logs import Cut, SteppingDisk

PATH = "data"
OTHERS = {ReplicaKey(2, "b"): "two:9292", ReplicaKey(3, "c"): "three:9292"}
REGISTERED = BrokerRecord(
    3, b"i" * 16, "moved", 9292, "", (("default", "moved", 9292),), directory_id="c"
)
TERM = 7


def make(disk: Disk, *, voters: bool = True) -> ReplicaKey:
    """A directory that was stopped cleanly: one voter of three, and two entries behind that."""
    directory = DataDirectory.open(
        disk, PATH, node_id=1, cluster_id="c", entropy=lambda count: b"\7" * count
    )
    key = ReplicaKey(1, directory.directory_id)
    items = [pack_snapshot(Snapshot(SnapshotMeta(0, 0, {}), b""))]
    if voters:
        entries = [
            Entry(1, TERM, EntryKind.VOTERS, pack_voters({key: "one:9292", **OTHERS})),
            Entry(2, TERM, EntryKind.DATA, encode_entry([REGISTERED])),
            Entry(3, TERM, EntryKind.NO_OP, b""),
        ]
        items += [pack_entry(entry) for entry in entries]
    log = file_header() + b"".join(pack_frame([item]) for item in items)
    state = HardState(TERM if voters else 0, None)
    disk.write_file_atomic(f"{PATH}/metadata/{STATE_FILE}", pack_state(state))
    disk.write_file_atomic(f"{PATH}/metadata/metadata.log", log)
    directory.close(clean=True, metadata_bytes=len(log), written={})
    return key


@contextmanager
def stopped(disk: Disk) -> Iterator[StoppedQuorum]:
    found = StoppedQuorum(disk, PATH)
    try:
        yield found
    finally:
        found.close()


def entries_of(disk: Disk, key: ReplicaKey) -> list[Entry]:
    log = QuorumLog.open(disk, f"{PATH}/metadata", key, create=False)
    found = list(log.entries(log.first_index, 1 << 30))
    log.close()
    return found


def test_the_directory_reports_the_quorum() -> None:
    disk = SimDisk()
    key = make(disk)
    with stopped(disk) as found:
        assert found.key == key
        assert (found.term, found.last_index, found.is_only_voter) == (TERM, 3, False)
        assert found.others() == {2: ["two:9292"], 3: ["three:9292", "moved:9292"]}


def test_its_node_is_the_only_voter_and_all_is_kept() -> None:
    disk = SimDisk()
    key = make(disk)
    before = entries_of(disk, key)
    with stopped(disk) as found:
        found.recover()
        assert found.is_only_voter
    after = entries_of(disk, key)
    assert after[:-1] == before
    assert (after[-1].index, after[-1].term, after[-1].kind) == (4, TERM + 1, EntryKind.VOTERS)
    with stopped(disk) as found:
        assert found.voters == {key: "one:9292"}
        assert (found.term, found.is_only_voter) == (TERM + 1, True)
    again = DataDirectory.open(disk, PATH, node_id=1, cluster_id="", entropy=lambda n: rb"\8" * n)
    assert again.clean, "the mark of a clean stop is kept"
    again.close(clean=False)


def test_a_directory_in_use_is_left_alone() -> None:
    disk = SimDisk()
    make(disk)
    with stopped(disk), pytest.raises(DataDirectoryInUse):
        StoppedQuorum(disk, PATH)
    with stopped(disk) as found:
        assert not found.is_only_voter, "the first one has let go"


def test_a_directory_of_no_broker_and_of_no_quorum_is_refused() -> None:
    disk = SimDisk()
    with pytest.raises(ForeignDataDirectory, match="no data directory") as refused:
        StoppedQuorum(disk, PATH)
    assert "give the directory of a broker that voted and is left" in str(refused.value)
    assert "or to an empty one" not in str(refused.value), "there is nothing to recover in it"
    make(disk, voters=False)
    with pytest.raises((ForeignDataDirectory, CorruptLog)):
        StoppedQuorum(disk, PATH)


def test_a_directory_without_metadata_is_refused_by_that_name() -> None:
    whole, disk = SimDisk(), SimDisk()
    make(whole)
    disk.make_dir(PATH)
    disk.write_file_atomic(f"{PATH}/node.json", whole.read_file(f"{PATH}/node.json"))
    with pytest.raises(ForeignDataDirectory, match="data has no folder metadata"):
        StoppedQuorum(disk, PATH)


def test_nothing_is_cut() -> None:
    disk = SimDisk()
    make(disk)
    path = f"{PATH}/metadata/metadata.log"
    data = disk.read_file(path)
    disk.write_file_atomic(path, data[:-3])
    with pytest.raises(CorruptLog, match="start the broker on it once"):
        StoppedQuorum(disk, PATH)
    assert disk.read_file(path) == data[:-3]


@pytest.mark.parametrize("has_power", [True, False])
def test_interrupted_at_any_step_it_loses_nothing_and_can_be_typed_again(
    *, has_power: bool
) -> None:
    ends = set()
    for nth in itertools.count():
        was_cut = False
        for seed in range(6):
            disk = SteppingDisk(seed)
            disk.reorder_pages = bool(seed % 2)
            key = make(disk)
            before = entries_of(disk, key)
            disk.sync_dir(PATH)
            disk.fuse = nth
            try:
                with stopped(disk) as found:
                    found.recover()
            except Cut:
                was_cut = True
            disk.fuse = -1
            if has_power:
                disk.kill()
            else:
                disk.crash()
            state = QuorumLog.open(disk, f"{PATH}/metadata", key, create=False)
            entries = list(state.entries(state.first_index, 1 << 30))
            state.close()
            assert entries[: len(before)] == before, (nth, seed)
            ends.add(len(entries) - len(before))
            with stopped(disk) as found:
                if not found.is_only_voter:
                    found.recover()
            with stopped(disk) as found:
                assert found.is_only_voter, (nth, seed)
            assert entries_of(disk, key)[: len(before)] == before
        if not was_cut:
            break
    assert nth > 8, "the steps at which it can be interrupted"
    assert ends == {0, 1}, "before the entry, and behind it"


BUGS = {
    "its entry replaces the last one": ("self.last_index + 1, term", "self.last_index, term"),
    "its term was used before": ("term = self.term + 1", "term = self.term"),
    "the other voters stay": ("pack_voters({self.key:", "pack_voters({**self.voters, self.key:"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    bug = Mutation("storage.directory.quorum_recovery:StoppedQuorum.recover", *BUGS[name])
    with planted((bug,)), pytest.raises(AssertionError):
        test_its_node_is_the_only_voter_and_all_is_kept()
