"""Writing files with a cluster's secret, and of its first user; what they may hold is in
`wire.peer_proof` and `wire.security.scram`."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from quiverlog.limits import SCRAM_ITERATIONS_DEFAULT
from quiverlog.wire.security.scram import (
    HASHES,
    SCRAM_SALT_BYTES,
    credential_line,
    make_credential,
    prepare_password,
)

__all__ = ["credential_lines", "make_secret", "replace_secret_file", "write_secret_file"]

_RANDOM_BYTES: Final = 32
_MODE: Final = 0o600


def make_secret() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)


def credential_lines(name: str, password: str) -> list[str]:
    """Return the lines of `admin.credential.file`; no password can be read from them.

    Raises:
        ValueError: no broker takes the password; the text has no part of it.
    """
    prepared = prepare_password(password)
    return [
        credential_line(
            name,
            mechanism,
            make_credential(
                mechanism,
                prepared,
                secrets.token_bytes(SCRAM_SALT_BYTES),
                SCRAM_ITERATIONS_DEFAULT,
            ),
        )
        for mechanism in HASHES
    ]


def write_secret_file(path: Path, lines: Sequence[str]) -> None:
    """Write a new file that its owner alone may read. Raises OSError: also where one is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with open(fd, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(fd)


def replace_secret_file(path: Path, lines: Sequence[str]) -> None:
    """Put a file with these lines in the place of another, with its owner, group and mode.

    A broker that reads at that moment finds the whole old file or the whole new one.
    """
    before = path.stat()
    # In the same directory, so that the name can move; a link stays one.
    target = path.resolve()
    new = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}")
    write_secret_file(new, lines)
    try:
        with contextlib.suppress(PermissionError):
            os.chown(new, before.st_uid, before.st_gid)
        os.chmod(new, before.st_mode & 0o770)
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
