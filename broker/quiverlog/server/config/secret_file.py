"""The files with secrets: the cluster's, read at the start and again while the broker runs, and the
first user's.

Owns what is refused of such a file, and when it is read again. No error and no line of the log has
any part of a secret. A file that cannot be used changes nothing in a broker that runs.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from typing import Final

from quiverlog.core.controller.records import UserRecord
from quiverlog.errors import InvalidConfig
from quiverlog.server.observe.logs import Logger
from quiverlog.wire.peer_proof import (
    NO_SECRETS,
    SECRET_BYTES_MAX,
    SECRETS_MAX,
    ClusterSecrets,
    parse_secrets,
)
from quiverlog.wire.security.scram import parse_credential_line

__all__ = ["LOOK_S", "SecretWatch", "read_admin_file", "read_secret_file"]

LOOK_S: Final = 10.0
"""A new secret counts after that time, or at once after SIGHUP."""
_FILE_BYTES_MAX: Final = 4 * SECRETS_MAX * SECRET_BYTES_MAX
_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH


def read_secret_file(path: str) -> ClusterSecrets:
    """Raises InvalidConfig: it cannot be read, every user may, or it holds something else."""
    if not path:
        return NO_SECRETS
    where = f"`cluster.secret.file` {path}"
    try:
        return parse_secrets(_read(where, path))
    except ValueError as error:
        raise InvalidConfig(f"{where}: {error}. `quiverlog secret new` makes a secret.") from None


def read_admin_file(path: str) -> UserRecord | None:
    """Return the first user. Raises InvalidConfig as `read_secret_file`."""
    if not path:
        return None
    where = f"`admin.credential.file` {path}"
    lines = [line for line in _read(where, path).splitlines() if line.strip()]
    try:
        found = [parse_credential_line(line.decode("ascii")) for line in lines]
        names = sorted({name for name, _, _ in found})
        if len(names) != 1 or len(found) != len({mechanism for _, mechanism, _ in found}):
            raise ValueError("it has one user, and one line for each mechanism")
    except ValueError as error:  # Bytes that are no ASCII are one, too: its text would show them.
        why = "it is no text" if isinstance(error, UnicodeError) else str(error)
        raise InvalidConfig(f"{where}: {why}. `quiverlog user hash` makes the lines.") from None
    credentials = tuple(
        (mechanism, one.salt, one.iterations, one.stored_key, one.server_key)
        for _, mechanism, one in found
    )
    return UserRecord(names[0], 0, credentials, is_admin=True)


def _read(where: str, path: str) -> bytes:
    try:
        # O_NONBLOCK: opening a FIFO would wait until its other end is opened.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidConfig(f"{where}: not a regular file.")
            if mode & _OTHERS:
                raise InvalidConfig(
                    f"{where}: every user of this machine may use it (mode"
                    f" {stat.S_IMODE(mode):04o}): `chmod o= {path}`, and make a new secret where"
                    " others may have read it."
                )
            text = os.read(fd, _FILE_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise InvalidConfig(f"{where}: cannot be read: {error.strerror or error}.") from None
    if len(text) > _FILE_BYTES_MAX:
        raise InvalidConfig(f"{where}: larger than {_FILE_BYTES_MAX} bytes.")
    return text


class SecretWatch:
    """Reads the file again every `LOOK_S`, and on request. All methods are for the loop.

    Args:
        secrets: what was read at the start.
        changed: gets other secrets.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        secrets: ClusterSecrets,
        changed: Callable[[ClusterSecrets], None],
        *,
        log: Logger,
    ) -> None:
        assert path
        self._loop = loop
        self._path = path
        self._secrets = secrets
        self._changed = changed
        self._log = log
        self._error = ""
        self._reading: asyncio.Task[None] | None = None
        self._timer = loop.call_later(LOOK_S, self._look)

    def request(self) -> None:
        """Read the file soon."""
        self._timer.cancel()
        self._look()

    def stop(self) -> None:
        self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        if self._reading is None or self._reading.done():
            self._reading = self._loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            found = await self._loop.run_in_executor(None, read_secret_file, self._path)
        except InvalidConfig as error:
            if error.message != self._error:
                self._error = error.message
                self._log.error("the cluster's secrets are not read again", why=error.message)
            return
        self._error = ""
        if found != self._secrets:
            self._secrets = found
            self._log.warning(
                "the cluster's secrets have changed", count=len(found.values), file=self._path
            )
            self._changed(found)
