"""Files that their owner alone may read, made and replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiverlog.local.secret_file import private_file, write_private


@pytest.fixture(autouse=True)
def _all_may_read() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_new_file_is_its_owners_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with private_file(path) as file:
        assert path.stat().st_mode & 0o777 == 0o600
        file.write(b"one\n")
    assert path.read_text() == "one\n"
    with pytest.raises(FileExistsError):
        write_private(path, "two\n")
    assert path.read_text() == "one\n"


@pytest.mark.parametrize("replaces", [False, True])
def test_an_error_leaves_what_was_there(tmp_path: Path, replaces: bool) -> None:
    path = tmp_path / "secret"
    if replaces:
        path.write_text("old\n")

    def fail() -> None:
        with private_file(path, replaces=replaces) as file:
            file.write(b"new")
            file.flush()
            assert not replaces or path.read_text() == "old\n", "all of it, or none"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [one.name for one in tmp_path.iterdir()] == ["secret"] * replaces
    assert not replaces or path.read_text() == "old\n"


def test_a_file_is_replaced_with_its_mode_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old\n")
    real.chmod(0o640)
    link.symlink_to(real)
    write_private(link, b"new\n", replaces=True)
    assert link.is_symlink()
    assert real.read_text() == "new\n"
    assert real.stat().st_mode & 0o777 == 0o640
    real.chmod(0o644)
    write_private(real, b"newer\n", replaces=True)
    assert real.stat().st_mode & 0o777 == 0o640, "never for all to read"
    write_private(tmp_path / "first", b"new\n", replaces=True)
    assert (tmp_path / "first").stat().st_mode & 0o777 == 0o600
