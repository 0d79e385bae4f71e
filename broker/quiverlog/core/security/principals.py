"""The principal that a connection acts for: `user:alice`, `broker:3` or `anonymous`.

A principal is proved by the connection, never by a field of a request. Names are ASCII without
control characters, blanks and `:`, so that two that look alike are the same, and the text form
can be read back.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from quiverlog.limits import USER_NAME_CHARS_MAX
from quiverlog.types import USER_NAME

__all__ = ["ANONYMOUS", "NAME", "Kind", "Principal", "of_broker", "of_user", "parse_principal"]

NAME: Final = USER_NAME


class Kind(enum.StrEnum):
    ANONYMOUS = "anonymous"
    USER = "user"
    BROKER = "broker"


class Principal(NamedTuple):
    """`name` is empty for ANONYMOUS, the node id in decimal for BROKER."""

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


ANONYMOUS: Final = Principal(Kind.ANONYMOUS)
"""Of a connection that has proved nothing."""


def of_user(name: str) -> Principal:
    assert NAME.fullmatch(name), "checked where it came in"
    return Principal(Kind.USER, name)


def of_broker(node_id: int) -> Principal:
    assert node_id >= 0
    return Principal(Kind.BROKER, str(node_id))


def parse_principal(text: str) -> Principal:
    """Raises ValueError: what was expected instead."""
    if text == ANONYMOUS.kind.value:
        return ANONYMOUS
    kind, colon, name = text.partition(":")
    if kind == Kind.USER and colon and NAME.fullmatch(name):
        return of_user(name)
    if kind == Kind.BROKER and colon and name.isascii() and name.isdecimal():
        return of_broker(int(name))
    raise ValueError(
        "`anonymous`, `user:<name>` with 1 to"
        f" {USER_NAME_CHARS_MAX} letters, digits and `._@-`, or `broker:<node id>`"
    )
