"""How a query logs in: its own credentials in the driver, a token of them in the tasks.

Options hold names of files and variables, which each process reads for itself. What a literal
`password` option has stays in the driver: in its place tasks are sent a token, which is worth hours
and one user's rights. No text, `repr` or error has either.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from quiverlog.errors import InvalidOption, InvalidSecurity

if TYPE_CHECKING:
    from quiverlog.client.base.security import Security

    from .options import ReadOptions, WriteOptions

__all__ = ["Access", "Secret", "access_of", "parse_secret", "without_login"]

RENEWED_AT: Final = 0.5
"""Of a token's life: tasks that begin then still have the other half."""

logger = logging.getLogger("pyspark_quiverlog")


class Secret:
    """A text that is shown as `***`."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


def parse_secret(value: str) -> Secret:
    if not value:
        raise ValueError("a text that is not empty")
    return Secret(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`token`: what the driver has sent, in place of its own credentials."""

    file: str = ""
    user: str = ""
    password: Secret | None = None
    password_file: str = ""
    password_env: str = ""
    token_file: str = ""
    token: Secret | None = None

    @property
    def is_drivers(self) -> bool:
        """True for credentials that tasks do not get: the driver sends a token."""
        return bool(self.user) and self.token is None

    def security(self) -> Security | None:
        """Return the client's description. Raises InvalidSecurity, InvalidOption."""
        from quiverlog.client.base.security import Security, security_of

        base = security_of(self.file or None)
        logins = {
            "user": self.user,
            "password": self.password.value if self.password else "",
            "password_file": self.password_file,
            "password_env": self.password_env,
            "token_file": self.token_file,
            "token": "",
        }
        if self.token is not None:
            logins = dict.fromkeys(logins, "") | {"token": self.token.value}
        if not any(logins.values()):
            return base
        try:
            return replace(base or Security(), **logins, mechanism="")  # type: ignore[arg-type]
        except InvalidSecurity as error:
            raise InvalidOption(f"the options for the login: {error.message}") from None


def access_of(options: ReadOptions | WriteOptions) -> Access:
    return Access(
        file=options.security_file or "",
        user=options.user or "",
        password=options.password,
        password_file=options.password_file or "",
        password_env=options.password_env or "",
        token_file=options.token_file or "",
        token=options.token,
    )


_warned = False


def warn_of_literal_password() -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "option `password`: Spark's own processes and memory have it as text; `passwordFile`"
            " and `passwordEnv` name the place where the driver reads it"
        )


def without_login(options: Any, token: Secret | None = None) -> Any:
    """Return options as tasks may get them: without the driver's credentials."""
    if not access_of(options).is_drivers:
        return options
    return replace(
        options, token=token, user=None, password=None, password_file=None, password_env=None
    )
