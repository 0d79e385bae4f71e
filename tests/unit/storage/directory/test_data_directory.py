"""The data directory: no name, no leftover and no failed system call may stop a later start."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest

from quiverlog.errors import (
    DataDirectoryInUse,
    QuiverlogError,
    StorageFault,
    UnsupportedFormat,
)
from quiverlog.storage.directory.data_directory import RESERVE_BYTES, DataDirectory
from quiverlog.storage.disk import posix
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.files import NAME_BYTES_MAX, doomed_name, orphan_name, read_topic_id
from tests.support.failing_os import failing_calls

NUMBERS = [errno.EIO, errno.ENOSPC, errno.EMFILE]
TOPIC = bytes(range(16))
OTHER = bytes(range(100, 116))


def take(path: Path, disk: PosixDisk | None = None, **options: bool) -> DataDirectory:
    return DataDirectory.open(
        disk or PosixDisk(), str(path), node_id=0, entropy=os.urandom, **options
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "d"


def fill(directory: DataDirectory, name: str, topic_id: bytes = TOPIC) -> Path:
    """A partition with rows."""
    assert directory.data.create_partition(name, topic_id)
    path = Path(directory.data.partition_path(name))
    (path / f"{0:020d}.log").write_bytes(b"rows")
    return path


# --- names --------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [0, 9999])
def test_topics_of_every_length_are_deleted_and_set_aside(place: Path, number: int) -> None:
    """`<name>.<8 hex>.deleted` had more than 255 bytes, and the broker never started again."""
    names = [f"{'n' * length}-{number}" for length in range(230, 250)]
    directory = take(place)
    for name in names:
        fill(directory, name)
    directory.data.sync_partitions()
    directory.data.remove_partitions(dict.fromkeys(names[::2], TOPIC))
    assert directory.data.partitions() == sorted(names[1::2])
    for name in names[::2]:
        fill(directory, name, OTHER)
    directory.close(clean=False)

    directory = take(place)
    removed, aside = directory.data.remove_leftovers(dict.fromkeys(names[::2], OTHER), [])
    assert (removed, sorted(aside)) == ([], sorted(names[1::2]))
    assert directory.data.partitions() == sorted(names[::2])
    orphans = [name for name in os.listdir(place / "data") if name.endswith(".orphan")]
    assert len(orphans) == len(aside)
    found = {(place / "data" / orphan / "partition.json").read_text() for orphan in orphans}
    assert all(any(f'"name":"{name}"' in text for text in found) for name in aside)
    removed, aside = directory.data.remove_leftovers({}, [OTHER])
    assert sorted(removed) == sorted(names[::2])
    assert sorted(os.listdir(place / "data")) == sorted(orphans)
    assert directory.notes == []


def test_names_on_their_way_out_fit_and_differ() -> None:
    names = [f"{'n' * length}-{number}" for length in (1, 249) for number in range(1000)]
    assert len({doomed_name(name, TOPIC) for name in names}) == len(names)
    for name in names:
        for attempt in (0, 999):
            assert len(os.fsencode(orphan_name(name, TOPIC, attempt))) <= NAME_BYTES_MAX
    assert orphan_name("t-0", TOPIC, 0) == "t-0.00010203.orphan"


def test_an_unfinished_removal_and_a_second_orphan_are_no_obstacle(place: Path) -> None:
    directory = take(place)
    for _ in range(2):
        path = fill(directory, "t-0")
        (place / "data" / doomed_name("t-0", TOPIC)).mkdir()
        directory.data.remove_partition("t-0")
        assert not path.exists()
    for _ in range(3):
        fill(directory, "t-0")
        assert directory.data.remove_leftovers({}, []) == ([], ["t-0"])
    assert sorted(os.listdir(place / "data")) == [
        "t-0.00010203.1.orphan",
        "t-0.00010203.2.orphan",
        "t-0.00010203.orphan",
    ]


# --- what is not ours ---------------------------------------------------------------------------
def test_foreign_entries_are_left_alone_and_reported(place: Path) -> None:
    directory = take(place)
    fill(directory, "t-0")
    data = place / "data"
    (data / "note.txt").write_text("mine")
    (data / "file-7").write_text("mine")
    (data / "backup").mkdir()
    (data / "backup" / "precious").write_text("mine")
    (data / "looks-like-0").mkdir()
    (data / "looks-like-0" / "precious").write_text("mine")
    (data / os.fsdecode(b"\xff-0")).mkdir()
    (data / os.fsdecode(b"\xff-0") / "x").write_text("mine")
    (data / "link-0").symlink_to(data / "nowhere")
    before = sorted(os.listdir(data))
    directory.close(clean=False)
    directory = take(place)
    assert directory.data.remove_leftovers({"t-0": TOPIC}, []) == ([], [])
    assert sorted(os.listdir(data)) == before
    assert len(directory.notes) == len(before) - 1
    assert all(note.isascii() for note in directory.notes)
    assert directory.data.missing(["t-0", "t-1"]) == ["t-1"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", None])
def test_a_partition_whose_file_cannot_be_read_is_kept_and_labelled(
    place: Path, content: bytes | None
) -> None:
    directory = take(place)
    label = fill(directory, "t-0") / "partition.json"
    label.unlink()
    if content is not None:
        label.write_bytes(content)
    assert directory.data.remove_leftovers({"t-0": TOPIC}, []) == ([], [])
    assert not directory.notes, "a power failure leaves it so"
    assert read_topic_id(PosixDisk(), directory.data.partition_path("t-0")) == TOPIC


@pytest.mark.parametrize("length", [1, 15, 17, 200])
def test_a_topic_id_that_no_topic_has_stops_no_start(place: Path, length: int) -> None:
    """The name of a directory on its way out is made of it, and was longer than a name may be."""
    directory = take(place)
    for name in ("t-0", "u-0"):
        path = fill(directory, name)
        label = path / "partition.json"
        label.write_bytes(label.read_bytes().replace(TOPIC.hex().encode(), b"ab" * length))
        (path / f"{0:020d}.log").unlink()
    removed, aside = directory.data.remove_leftovers({"t-0": TOPIC}, [])
    assert (removed, aside) == (["u-0"], [])
    assert directory.data.partitions() == ["t-0"]
    assert read_topic_id(PosixDisk(), directory.data.partition_path("t-0")) == TOPIC


def test_only_what_a_deletion_left_is_removed(place: Path) -> None:
    directory = take(place)
    data = place / "data"
    ours = [f"{'ab' * 16}-0123abcd.deleted", "unknown-0123abcd.deleted"]
    others = ["mystuff.deleted", "t-0.0123abcd.deleted", "t-0.deleted"]
    for name in [*ours, *others]:
        fill(directory, "t-0").rename(data / name)
    gone, aside = directory.data.remove_leftovers({}, [])
    assert sorted(gone) == sorted(ours)
    assert sorted(aside) == others
    assert len(list(data.glob("*.deleted.*.orphan/partition.json"))) == 3


def test_an_unreadable_file_keeps_a_directory_from_being_judged(place: Path) -> None:
    directory = take(place)
    fill(directory, "t-0")
    with failing_calls(0, errno.EIO, only="pread", for_ever=True):
        assert directory.data.remove_leftovers({}, [TOPIC]) == ([], [])
    assert directory.notes
    assert directory.data.partitions() == ["t-0"]


def test_an_unfinished_creation_goes_and_a_newer_format_stops_the_start(place: Path) -> None:
    directory = take(place)
    directory.data.create_partition("t-0", TOPIC)
    (place / "data" / "t-1").mkdir()
    assert directory.data.remove_leftovers({}, []) == (["t-0", "t-1"], [])
    assert directory.data.create_partition("t-0", TOPIC)
    path = Path(directory.data.partition_path("t-0")) / "partition.json"
    path.write_text(path.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(UnsupportedFormat):
        directory.data.remove_leftovers({"t-0": TOPIC}, [])


def test_a_removal_that_resists_keeps_none_of_the_others(place: Path) -> None:
    directory = take(place)
    for number in range(3):
        fill(directory, f"t-{number}")
    with failing_calls(0, errno.EIO, only="unlink"), pytest.raises(QuiverlogError):
        directory.data.remove_partitions({f"t-{number}": TOPIC for number in range(3)})
    assert directory.data.partitions() == []
    assert len(os.listdir(place / "data")) == 1
    removed, _ = directory.data.remove_leftovers({}, [])
    assert len(removed) == 1
    assert os.listdir(place / "data") == []


# --- locks --------------------------------------------------------------------------------------
def test_a_deleted_lock_file_still_keeps_others_out(place: Path) -> None:
    directory = take(place)
    (place / "lock").unlink()
    assert directory.is_owned()
    with pytest.raises(DataDirectoryInUse):
        take(place)
    directory.close(clean=False)
    take(place).close(clean=False)


def test_a_directory_that_was_replaced_is_not_owned_any_more(place: Path) -> None:
    directory = take(place)
    assert directory.is_owned()
    place.rename(place.parent / "moved")
    assert not directory.is_owned()
    shutil.copytree(place.parent / "moved", place)
    assert not directory.is_owned()
    other = take(place)
    assert other.is_owned()
    directory.close(clean=True)
    assert not (place / "clean-shutdown").exists(), "it is the other broker's directory"


def test_a_claim_by_another_machine_is_seen(place: Path) -> None:
    directory = take(place)
    (place / "lock").write_bytes(b"another incarnation")
    assert not directory.is_owned()


# --- modes --------------------------------------------------------------------------------------
def test_only_the_owner_may_look(place: Path) -> None:
    before = os.umask(0)
    try:
        directory = take(place)
        directory.data.create_partition("t-0", TOPIC)
        directory.close(clean=True)
    finally:
        os.umask(before)
    paths = [place, *place.rglob("*")]
    assert {path.name for path in paths} >= {"lock", "node.json", "clean-shutdown", "t-0"}
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_looser_directories_of_older_brokers_are_closed_with_a_note(place: Path) -> None:
    take(place).close(clean=True)
    (place / "data").chmod(0o755)
    directory = take(place)
    assert (place / "data").stat().st_mode & 0o777 == 0o700
    assert len(directory.notes) == 1


# --- a full disk --------------------------------------------------------------------------------
class Full(PosixDisk):
    """A file system without room, but for what the reserve gives back."""

    def free_bytes(self, path: str) -> int:
        return 0


def test_a_start_without_room_gives_up_the_reserve(place: Path) -> None:
    take(place).close(clean=False)
    assert (place / "reserve").stat().st_size == RESERVE_BYTES
    with failing_calls(0, errno.ENOSPC, only="pwrite", for_ever=True):
        directory = take(place, Full())
    assert not (place / "reserve").exists()
    assert directory.notes
    assert not directory.release_reserve()
    directory.close(clean=False)
    take(place)
    assert (place / "reserve").stat().st_size == RESERVE_BYTES


def test_a_clean_mark_takes_the_room_of_the_reserve(place: Path) -> None:
    directory = take(place)
    with failing_calls(0, errno.ENOSPC, only="pwrite"):
        directory.close(clean=True, metadata_bytes=77)
    assert not (place / "reserve").exists()
    directory = take(place)
    assert (directory.clean, directory.metadata_bytes) == (True, 77)


# --- every system call --------------------------------------------------------------------------
@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_every_system_call_may_fail_once(tmp_path: Path, number: int) -> None:
    """Errors are of the table, and the next start finds what belongs to the topics."""
    failed: set[str] = set()
    for nth in itertools.count():
        place = tmp_path / f"{nth}"
        directory = take(place)
        fill(directory, "kept-0")
        fill(directory, "gone-0", OTHER)
        directory.close(clean=False)
        with failing_calls(nth, number) as calls, contextlib.suppress(QuiverlogError):
            live(place)
        if not calls.failed:
            break
        failed.add(calls.failed)
        directory = take(place)
        directory.data.remove_leftovers({"kept-0": TOPIC}, [OTHER])
        assert (place / "data" / "kept-0" / f"{0:020d}.log").read_bytes() == b"rows"
        assert read_topic_id(PosixDisk(), directory.data.partition_path("kept-0")) == TOPIC
        for name in os.listdir(place / "data"):
            assert name == "kept-0", f"{name} is left after a failed {calls.failed}"
        directory.close(clean=True, metadata_bytes=1)
        assert take(place).clean
        assert not list(place.rglob("*.tmp"))
    assert failed >= {"open", "fsync", "pwrite", "rename", "mkdir", "unlink", "rmdir", "listdir"}


def live(place: Path) -> None:
    """Start, create, delete, and stop."""
    directory = take(place)
    try:
        directory.data.remove_leftovers({"kept-0": TOPIC}, [OTHER])
        directory.data.create_partition("new-0", OTHER)
        directory.data.create_partition("new-1", OTHER)
        directory.data.sync_partitions()
        directory.data.remove_partitions({"new-0": OTHER, "new-1": OTHER})
    finally:
        directory.close(clean=True)


@pytest.mark.parametrize("kind", ["directory", "fifo", "link"])
@pytest.mark.parametrize(
    "name",
    [
        *("lock", "clean-shutdown", "reserve", "clean-shutdown.tmp"),
        *("metadata/quorum-state.tmp", "metadata/metadata.log.tmp"),
        *("metadata/metadata.log.new", "metadata/metadata.log.install"),
    ],
)
def test_what_lies_in_place_of_a_small_file_is_moved_aside(
    tmp_path: Path, name: str, kind: str
) -> None:
    """A start was refused, because the mark that it consumes could not be removed."""
    path = tmp_path / "data"
    take(path).close(clean=True, metadata_bytes=24)
    (path / name).unlink(missing_ok=True)
    if kind == "directory":
        (path / name / "x").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to(path)
    directory = take(path)
    assert directory.clean is (name != "clean-shutdown")
    assert directory.is_owned()
    name = name.removeprefix("metadata/")
    assert f"{name} was not a regular file: moved to {name}.unusable" in directory.notes
    directory.close(clean=True, metadata_bytes=24)
    assert take(path).clean


def test_half_a_claim_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short write of the lock file looked like another broker's claim: writes were refused."""
    real = os.pwrite

    def short(fd: int, data: bytes, offset: int) -> int:
        return real(fd, data[:7] if os.fstat(fd).st_size == 0 else data, offset)

    path = tmp_path / "data"
    take(path).close(clean=False)
    with monkeypatch.context() as patch:
        patch.setattr(posix.os, "pwrite", short)
        directory = take(path)
    assert directory.is_owned()
    assert (path / "lock").read_bytes() == b""


def test_a_foreign_note_that_cannot_be_moved_is_an_error_of_the_table(tmp_path: Path) -> None:
    """EIO from the listing was a bare OSError, without the file's name for the operator."""
    first, second = take(tmp_path / "first"), take(tmp_path / "second")
    first.note_made(7, [])
    Path(second.made_path).write_bytes(Path(first.made_path).read_bytes())
    with (
        failing_calls(0, errno.EIO, only="listdir") as calls,
        pytest.raises(StorageFault) as caught,
    ):
        second.noted_made()
    assert calls.failed == "listdir"
    assert "second" in str(caught.value)
