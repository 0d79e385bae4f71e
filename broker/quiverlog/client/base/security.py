"""How a client reaches a secured listener: the description, and its file.

    ca_file = "ca.pem"            # relative to this file; not given: the authorities of the machine
    cert_file = "client.pem"      # only where the listener asks for one
    key_file = "client.key"
    server_name = "broker.example.org"

The description is text alone: drivers make contexts of it (`client.drivers.tls`), and read its
files again when they change. Its `repr` is shown in errors and logs, so a field that is a secret
has `repr=False`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

from quiverlog.addresses import SECURITY_VARIABLE
from quiverlog.errors import InvalidSecurity

__all__ = ["Security", "SecurityLike", "security_of"]

_FILE_BYTES_MAX: Final = 64 << 10
_TEXT_CHARS_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a client secures its connections.

    Attributes:
        tls: False: connections are not encrypted, and the other fields of TLS must be empty.
        ca_file: trusted authorities, in PEM form; empty: those of this machine.
        cert_file: the client's certificate and its chain, for a listener that asks for one.
        key_file: its key; empty: it is in `cert_file`.
        server_name: the name that brokers' certificates must have; empty: the host of the address.
    """

    tls: bool = True
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if type(value) is not kind:
                # Not the value: a field may be a secret.
                raise InvalidSecurity(f"`{field.name}` is no {_KINDS[kind]}.")
            if isinstance(value, str) and not _is_line(value):
                raise InvalidSecurity(
                    f"`{field.name}` is no line of at most {_TEXT_CHARS_MAX} characters."
                )
        of_tls = [name for name in _OF_TLS if getattr(self, name)]
        if of_tls and not self.tls:
            raise InvalidSecurity(f"`{of_tls[0]}` is given, and `tls` is false: give one of them.")
        if self.key_file and not self.cert_file:
            raise InvalidSecurity("`key_file` is given without `cert_file`: give both.")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Security:
        """Read a description. Relative names in it are relative to its folder.

        Raises:
            InvalidSecurity: the file cannot be read, or is no description.
        """
        where = os.fspath(path)
        content = _content(where)
        known = {field.name: field for field in fields(cls)}
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
        return tomllib.loads(data.decode())
    except OSError as error:
        raise InvalidSecurity(f"{path} cannot be read: {error.strerror or error}.") from None
    except tomllib.TOMLDecodeError as error:
        # Its text has a place, and no value.
        raise InvalidSecurity(f"{path} is no TOML: {error}.") from None
    except ValueError:
        raise InvalidSecurity(f"{path} is no TOML: it is not UTF-8.") from None


def _is_line(text: str) -> bool:
    return len(text) <= _TEXT_CHARS_MAX and text.isprintable()
