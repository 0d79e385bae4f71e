"""The real disk and the simulated one, asked the same: all answers and kinds of errors agree."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.errors import QuiverlogError
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.disk.posix import PosixDisk
from tests.sim.disk import SimDisk

NAMES = ("a", "b", "d", "n" * 254, "n" * 256)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
DATA = st.binary(min_size=1, max_size=12)
ASKED: tuple[str, ...] = ("read_file", "list", "entries", "exists", "is_file", "directories")
DONE: tuple[str, ...] = ("remove", "remove_tree", "make_dir", "sync_dir")
STEPS = st.one_of(
    st.tuples(st.sampled_from(ASKED + DONE), PATHS),
    st.tuples(st.just("make_dir"), st.sampled_from(["d", "d/a", "a/d"])),
    st.tuples(st.sampled_from(["write_file_atomic", "overwrite"]), PATHS, DATA),
    st.tuples(st.just("rename"), PATHS, st.sampled_from(NAMES)).filter(
        lambda step: step[1].rpartition("/")[2] != step[2]
    ),
    st.tuples(st.just("open"), PATHS, st.booleans()),
)


def outcome(disk: Disk, root: str, step: tuple[Any, ...]) -> object:
    name, path, *more = step
    path = f"{root}/{path}"
    call: Callable[..., object] = getattr(disk, name)
    try:
        if name == "rename":
            return call(path, f"{path.rpartition('/')[0]}/{more[0]}")
        if name == "open":
            return disk.open(path, create=more[0]).size
        return call(path, *more)
    except OSError as error:
        return type(error), error.errno
    except QuiverlogError as error:
        return type(error)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=25))
def test_the_same_course_has_the_same_answers(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        real, simulated = PosixDisk(), SimDisk()
        simulated.make_dir("root")
        for step in steps:
            expected = outcome(real, directory, step)
            assert outcome(simulated, "root", step) == expected, step
        assert simulated.entries("root") == real.entries(directory)


def test_entries_have_the_kinds_that_is_file_returns(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    links = ("file", "directory", "fifo", "nothing", "loop", "file/below", "directory/nothing")
    for number, target in enumerate(links):
        name = "loop" if target == "loop" else f"link-{number}"
        (tmp_path / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    disk = PosixDisk()
    found = disk.entries(str(tmp_path))
    assert found == {name: disk.is_file(f"{tmp_path}/{name}") for name in disk.list(str(tmp_path))}
    assert {name for name, is_file in found.items() if is_file} == {"file", "link-0"}
