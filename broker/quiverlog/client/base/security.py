"""How a client reaches a secured listener: the description, and its file.

    ca_file = "ca.pem"            # relative to this file; not given: the authorities of the machine
    cert_file = "client.pem"      # only where the listener asks for one
    key_file = "client.key"
    server_name = "broker.example.org"
    user = "alice"
    password_file = "alice.password"

The description is text alone: drivers make contexts of it (`client.drivers.tls`), and read its
files again when they change. Its `repr` is shown in errors and logs, so a field that is a secret
has `repr=False`.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field, fields
from typing import BinaryIO, Final, TypeAlias

from quiverlog.addresses import SECURITY_VARIABLE
from quiverlog.errors import InvalidSecurity
from quiverlog.types import USER_NAME
from quiverlog.wire.authentication_messages import CERTIFICATE, MECHANISMS, TOKEN

__all__ = ["Security", "SecurityLike", "security_of", "warn_if_open"]

_FILE_BYTES_MAX: Final = 64 << 10
_TEXT_CHARS_MAX: Final = 4096
_WARNED_MAX: Final = 1_000

logger = logging.getLogger("quiverlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a client secures its connections.

    Attributes:
        tls: False: connections are not encrypted, and the other fields of TLS must be empty.
        ca_file: trusted authorities, in PEM form; empty: those of this machine.
        cert_file: the client's certificate and its chain, for a listener that asks for one.
        key_file: its key; empty: it is in `cert_file`.
        server_name: the name that brokers' certificates must have; empty: the host of the address.
        user: the name with which to log in, with one of the three kinds of password.
        password: itself; it is in the memory and the pickles of what has this description.
        password_file: a file whose only line it is, read at each connection.
        password_env: the environment variable that has it.
        token: a token, in place of user and password.
        token_file: a file whose only line is a token, read at each connection.
        mechanism: with which to log in; empty: the best that the broker takes.
    """

    tls: bool = True
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    password_env: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    mechanism: str = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, kind = getattr(self, one.name), type(one.default)
            if type(value) is not kind:
                # Not the value: a field may be a secret.
                raise InvalidSecurity(f"`{one.name}` is no {_KINDS[kind]}.")
            if isinstance(value, str) and not _is_line(value):
                raise InvalidSecurity(
                    f"`{one.name}` is no line of at most {_TEXT_CHARS_MAX} characters."
                )
        of_tls = [name for name in _OF_TLS if getattr(self, name)]
        if of_tls and not self.tls:
            raise InvalidSecurity(f"`{of_tls[0]}` is given, and `tls` is false: give one of them.")
        if self.key_file and not self.cert_file:
            raise InvalidSecurity("`key_file` is given without `cert_file`: give both.")
        self._check_login()

    def _check_login(self) -> None:
        passwords = [name for name in _PASSWORDS if getattr(self, name)]
        tokens = [name for name in _TOKENS if getattr(self, name)]
        for found in (passwords, tokens, [*tokens, *(["user"] if self.user else [])]):
            if len(found) > 1:
                both = "` and `".join(found)
                raise InvalidSecurity(f"`{both}` are given: give one of them.")
        if bool(self.user) is not bool(passwords):
            given, missing = ("user", "password_file") if self.user else (passwords[0], "user")
            raise InvalidSecurity(f"`{given}` is given without `{missing}`: give both.")
        if self.user and not USER_NAME.fullmatch(self.user):
            raise InvalidSecurity("`user` has 1 to 128 letters, digits and `._@-`.")
        if self.mechanism not in ("", *MECHANISMS):
            raise InvalidSecurity(f"`mechanism` is one of {', '.join(MECHANISMS)}.")
        if self.mechanism and (self.user or tokens):
            is_for_tokens = self.mechanism == TOKEN
            if self.mechanism == CERTIFICATE or is_for_tokens is bool(self.user):
                given = "user" if self.user else tokens[0]
                raise InvalidSecurity(
                    f"`mechanism` is {self.mechanism}, which does not log in by `{given}`: leave"
                    " one of them out."
                )

    @property
    def has_login(self) -> bool:
        return bool(self.user or self.token or self.token_file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Security:
        """Read a description. Relative names in it are relative to its folder.

        Raises:
            InvalidSecurity: the file cannot be read, or is no description.
        """
        where = os.path.expanduser(os.fspath(path))
        content = _content(where)
        known = {one.name: one for one in fields(cls)}
        for key, value in content.items():
            if key not in known:
                raise InvalidSecurity(
                    f"{where}: there is no key `{key}`; there are: {', '.join(known)}."
                )
            if key.endswith("_file") and isinstance(value, str) and value:
                # Absolute: the program may change its folder later.
                folder = os.path.dirname(os.path.abspath(where))
                content[key] = os.path.join(folder, os.path.expanduser(value))
        try:
            return cls(**content)  # type: ignore[arg-type]  # __post_init__ checks the kinds
        except InvalidSecurity as error:
            raise InvalidSecurity(f"{where}: {error.message}") from None


_PASSWORDS: Final = ("password", "password_file", "password_env")
_TOKENS: Final = ("token", "token_file")
_OF_TLS: Final = ("ca_file", "cert_file", "key_file", "server_name")
_KINDS: Final = {str: "text", bool: "true or false"}

SecurityLike: TypeAlias = Security | str | os.PathLike[str]
"""A description, or the name of a file that holds one."""


def security_of(given: SecurityLike | None) -> Security | None:
    """Return the description; None: connections are plain.

    Args:
        given: None takes the file that the environment's QUIVERLOG_SECURITY_FILE names, if any.

    Raises:
        InvalidSecurity: as `Security.load`.
    """
    if given is None:
        given = os.environ.get(SECURITY_VARIABLE, "").strip()
        if not given:
            return None
    return given if isinstance(given, Security) else Security.load(given)


def _content(path: str) -> dict[str, object]:
    import tomllib  # plain clients do without

    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
            if len(data) > _FILE_BYTES_MAX:
                raise InvalidSecurity(f"{path} has more than {_FILE_BYTES_MAX} bytes.")
            content = tomllib.loads(data.decode())
            if content.get("password") or content.get("token"):
                warn_if_open(file, path)
        return content
    except OSError as error:
        raise InvalidSecurity(f"{path} cannot be read: {error.strerror or error}.") from None
    except tomllib.TOMLDecodeError as error:
        # Its text has a place, and no value.
        raise InvalidSecurity(f"{path} is no TOML: {error}.") from None
    except ValueError:
        raise InvalidSecurity(f"{path} is no TOML: it is not UTF-8.") from None


_warned: dict[str, None] = {}


def warn_if_open(file: BinaryIO, path: str) -> None:
    """Warn once of a secret that every user of the machine may read."""
    mode = os.fstat(file.fileno()).st_mode
    # Other systems have no such modes, and no other process can open a pipe or /dev/stdin again.
    is_open = os.name == "posix" and stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH)
    if is_open and path not in _warned and len(_warned) < _WARNED_MAX:
        _warned[path] = None
        logger.warning(
            "%s has a secret, and every user of this machine may use it (mode %04o): `chmod o= %s`",
            *(path, stat.S_IMODE(mode), path),
        )


def _is_line(text: str) -> bool:
    return len(text) <= _TEXT_CHARS_MAX and text.isprintable()
