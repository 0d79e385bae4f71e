"""The file of the cluster's secrets: what is refused of it, and when it is read again."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import InvalidConfig
from quiverlog.server.config import secret_file
from quiverlog.server.config.config import load_config
from quiverlog.server.config.secret_file import SecretWatch, read_admin_file, read_secret_file
from quiverlog.server.observe.logs import make_logger
from quiverlog.wire.peer_proof import NO_SECRETS, ClusterSecrets
from quiverlog.wire.security.scram import (
    HASHES,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    credential_line,
    make_credential,
)

OLD, NEW = "o" * 32, "n" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "secret", OLD)


def written(path: Path, *lines: str, mode: int = 0o600) -> Path:
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines))
    new.chmod(mode)
    new.replace(path)
    return path


def secrets(*lines: str) -> ClusterSecrets:
    return ClusterSecrets(tuple(line.encode() for line in lines))


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o660])
def test_a_file_of_owner_and_group_is_taken(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert read_secret_file(str(file)) == secrets(OLD)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o666])
def test_a_file_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(InvalidConfig, match=rf"every user .* \(mode {mode:04o}\): `chmod o= "):
        read_secret_file(str(file))


def test_no_path_is_no_secret() -> None:
    assert read_secret_file("") == NO_SECRETS


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, why in (
        (pipe, "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(InvalidConfig, match=why):
            read_secret_file(str(path))


def test_a_refused_path_takes_no_descriptor(file: Path, tmp_path: Path) -> None:
    others = written(tmp_path / "others", OLD, mode=0o644)
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, others) * 5:
        with pytest.raises(InvalidConfig):
            read_secret_file(str(path))
    read_secret_file(str(file))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_large_file_is_refused(file: Path) -> None:
    comments = "# " + "x" * 1_000 + "\n"
    written(file, comments * 8 + OLD)
    assert read_secret_file(str(file)) == secrets(OLD)
    written(file, comments * 9 + OLD)
    with pytest.raises(InvalidConfig, match="larger than 8192 bytes"):
        read_secret_file(str(file))


def test_proofs_cannot_be_required_without_a_secret() -> None:
    with pytest.raises(InvalidConfig, match=r"the secret is missing: `cluster\.secret\.file`"):
        load_config(flags={"cluster.secret.required": "true"})


# --- watching -----------------------------------------------------------------------------------
def watch(file: Path, scenario: Callable[[SecretWatch, list[Any]], Any]) -> str:
    """Run `scenario` with a watch and what it has reported; return the log."""
    log = io.StringIO()

    async def whole() -> None:
        seen: list[Any] = []
        one = SecretWatch(
            asyncio.get_running_loop(),
            str(file),
            read_secret_file(str(file)),
            seen.append,
            log=make_logger(level="debug", format="logfmt", stream=log),
        )
        try:
            await scenario(one, seen)
        finally:
            one.stop()

    asyncio.run(whole())
    return log.getvalue()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it is others who make it true
            await asyncio.sleep(0.002)


def test_a_changed_file_is_read_by_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_file, "LOOK_S", 0.01)

    async def scenario(_: SecretWatch, seen: list[Any]) -> None:
        for lines in ((NEW, OLD), (NEW,)):
            written(file, *lines)
            await until(lambda lines=lines: seen[-1:] == [secrets(*lines)])

    log = watch(file, scenario)
    assert log.count("secrets have changed") == 2
    assert OLD not in log
    assert NEW not in log


def test_a_changed_file_is_read_at_once_on_request(file: Path) -> None:
    async def scenario(one: SecretWatch, seen: list[Any]) -> None:
        written(file, NEW)
        one.request()
        await until(lambda: seen == [secrets(NEW)])

    watch(file, scenario)


def test_a_bad_file_changes_nothing_and_is_reported_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_file, "LOOK_S", 0.01)
    reads = []

    def counted(path: str) -> ClusterSecrets:
        reads.append(path)
        return read_secret_file(path)

    monkeypatch.setattr(secret_file, "read_secret_file", counted)

    async def scenario(_: SecretWatch, seen: list[Any]) -> None:
        for lines, mode in (((NEW,), 0o644), (("short",), 0o600)):
            written(file, *lines, mode=mode)
            before = len(reads)
            await until(lambda before=before: len(reads) > before + 3)
        assert seen == []
        written(file, NEW)
        await until(lambda: seen == [secrets(NEW)])

    log = watch(file, scenario)
    assert log.count("are not read again") == 2


def test_nothing_is_reported_while_the_file_stays(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(one: SecretWatch, seen: list[Any]) -> None:
        for _ in range(3):
            one.request()
            assert one._reading is not None
            await one._reading
        assert seen == []

    assert watch(file, scenario) == ""


# --- the first user ----------------------------------------------------------------------------
def lines_of(name: str, *mechanisms: str) -> list[str]:
    return [
        credential_line(name, one, make_credential(one, b"planted", bytes(16), 4096))
        for one in mechanisms
    ]


def test_the_first_user_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "admin", *lines_of("root", *HASHES), "")
    user = read_admin_file(str(path))
    assert user is not None
    assert (user.name, user.is_admin) == ("root", True)
    assert [one[0] for one in user.credentials] == list(HASHES)
    assert read_admin_file("") is None


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "it has one user"),
        (lines_of("root", SCRAM_SHA_256) + lines_of("other", SCRAM_SHA_512), "it has one user"),
        (lines_of("root", SCRAM_SHA_256) * 2, "one line for each mechanism"),
        (["root planted"], "no line of `quiverlog user hash`"),
        (["r\xf6\xf6t planted"], "it is no text"),
    ],
)
def test_a_wrong_file_of_the_first_user_is_refused_and_not_quoted(
    tmp_path: Path, lines: list[str], why: str
) -> None:
    path = written(tmp_path / "admin", *lines)
    with pytest.raises(InvalidConfig, match=why) as found:
        read_admin_file(str(path))
    assert "planted" not in str(found.value)


def test_the_file_of_the_first_user_is_its_owners(tmp_path: Path) -> None:
    path = written(tmp_path / "admin", *lines_of("root", SCRAM_SHA_256), mode=0o644)
    with pytest.raises(InvalidConfig, match="every user of this machine"):
        read_admin_file(str(path))
