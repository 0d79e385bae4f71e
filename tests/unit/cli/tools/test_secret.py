"""`quiverlog secret`: files that a broker accepts and other users cannot read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quiverlog.cli.app import cli
from quiverlog.local import secret_file
from quiverlog.server.config.secret_file import read_secret_file
from quiverlog.wire.peer_proof import parse_secrets


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["secret", *map(str, words)])


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_a_new_secret_is_in_a_file_of_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    before = os.umask(0)
    try:
        assert run("new", file).exit_code == 0
    finally:
        os.umask(before)
    assert mode(file) == 0o600
    assert len(read_secret_file(str(file)).values) == 1


def test_a_new_secret_may_be_printed(tmp_path: Path) -> None:
    first, second = (run("new").stdout for _ in range(2))
    assert first != second
    assert len(parse_secrets(first.encode()).values) == 1


def test_no_secret_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    run("new", file)
    before = lines(file)
    done = run("new", file)
    assert done.exit_code != 0
    assert "secret rotate" in str(done.exception)
    assert lines(file) == before
    assert before[0] not in done.output


def test_a_secret_is_rotated_and_the_old_one_retired(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    run("new", file)
    (old,) = lines(file)
    file.chmod(0o640)
    assert run("rotate", file).exit_code == 0
    new, kept = lines(file)
    assert kept == old != new
    done = run("rotate", file)
    assert "secret retire" in str(done.exception)
    assert lines(file) == [new, old]
    assert run("retire", file).exit_code == 0
    assert lines(file) == [new]
    assert mode(file) == 0o640
    assert "which stays" in str(run("retire", file).exception)
    assert lines(file) == [new]
    assert os.listdir(tmp_path) == ["secret"]


def test_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    run("new", file)
    (old,) = lines(file)
    file.write_text(f"# of the cluster in the cellar\n\n{old}\n  # its end\n")
    assert run("rotate", file).exit_code == 0
    first, empty, new, kept, last = lines(file)
    assert (first, empty, last) == ("# of the cluster in the cellar", "", "  # its end")
    assert kept == old != new
    assert run("retire", file).exit_code == 0
    assert lines(file) == [first, "", new, last]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "secret", tmp_path / "link"
    run("new", file)
    link.symlink_to(file)
    assert run("rotate", link).exit_code == 0
    assert link.is_symlink()
    assert len(lines(file)) == 2


@pytest.mark.parametrize("word", ["rotate", "retire"])
def test_what_is_no_file_of_secrets_is_left_alone(tmp_path: Path, word: str) -> None:
    file = tmp_path / "secret"
    assert "cannot be read" in str(run(word, file).exception)
    file.write_text("short\n")
    assert "line 1 has 5 bytes" in str(run(word, file).exception)
    assert lines(file) == ["short"]


def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    run("new", file)
    before = lines(file)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(secret_file.os, "chmod", full)
    done = run("rotate", file)
    assert "No space left on device" in str(done.exception)
    assert lines(file) == before
    assert os.listdir(tmp_path) == ["secret"]
