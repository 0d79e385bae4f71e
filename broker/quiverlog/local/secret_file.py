"""Writing files with a cluster's secret, and of its first user; what they may hold is in
`wire.peer_proof` and `wire.security.scram`."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from quiverlog.limits import SCRAM_ITERATIONS_DEFAULT
from quiverlog.wire.security.scram import (
    HASHES,
    SCRAM_SALT_BYTES,
    credential_line,
    make_credential,
    prepare_password,
)

__all__ = ["credential_text", "make_secret", "private_file", "write_private"]

_RANDOM_BYTES: Final = 32
_MODE: Final = 0o600


def make_secret() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)


def credential_text(name: str, password: str) -> str:
    """Return the content of `admin.credential.file`; no password can be read from them.

    Raises:
        ValueError: no broker takes the password; the text has no part of it.
    """
    prepared = prepare_password(password)
    lines = []
    for mechanism in HASHES:
        salt = secrets.token_bytes(SCRAM_SALT_BYTES)
        made = make_credential(mechanism, prepared, salt, SCRAM_ITERATIONS_DEFAULT)
        lines.append(credential_line(name, mechanism, made))
    return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def private_file(path: Path, *, replaces: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write that its owner alone may read, made before the first byte is there.

    A reader finds all of it, or what was there before; so it is after an error, too.

    Args:
        replaces: put it in the place of one that is there, whose owner, group and mode it gets.

    Raises:
        OSError: it cannot be written; FileExistsError: one is there, and `replaces` is false.
    """
    # In the same directory, so that the name can move; a link stays one.
    target = path.resolve() if replaces else path
    made = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}") if replaces else target
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        with open(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        if replaces:
            with contextlib.suppress(FileNotFoundError):
                before = target.stat()
                with contextlib.suppress(PermissionError):
                    os.chown(made, before.st_uid, before.st_gid)
                os.chmod(made, before.st_mode & 0o770)
            made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def write_private(path: Path, data: str | bytes, *, replaces: bool = False) -> None:
    """Write a `private_file`. Raises OSError."""
    with private_file(path, replaces=replaces) as file:
        file.write(data.encode() if isinstance(data, str) else data)
