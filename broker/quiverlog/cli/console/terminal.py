"""Text for a terminal, without characters that control it.

Names of columns, values of rows and a broker's messages may be an attacker's: escape codes and C1
codes set titles or hide text, bidirectional overrides reorder it. A pipe or a file gets the data
unchanged. Rich writes past the shield, its cells have gone through `printable`; so does
`clear_screen`.
"""

from __future__ import annotations

import codecs
import io
import os
from typing import IO, Any, Final, TextIO

__all__ = ["ShieldedBytes", "clear_screen", "printable", "shield", "unshielded"]

_LAYOUT: Final = "\n\t"
"""Kept in text of several lines."""


def printable(text: str, *, keep: str = "") -> str:
    """Escape control and other invisible characters, except those of `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x20:
        return f"\\x{number:02x}"
    # From DEL on as in JSON, whose encoders escape those below it: JSON stays JSON.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class ShieldedBytes(io.BufferedIOBase):
    """Escapes encoded text on its way to the terminal `target`."""

    def __init__(self, target: IO[bytes], encoding: str) -> None:
        self._target = target
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = printable(self._decoder.decode(bytes(data)), keep=_LAYOUT)
        self._target.write(text.encode(self._encoding, "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        if not self._target.closed:
            self._target.flush()

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()


class _ShieldedText(io.TextIOWrapper):
    """`behind`: the original stream."""

    def __init__(self, behind: io.TextIOWrapper) -> None:
        target: Any = behind.buffer
        shielded: Any = ShieldedBytes(target, behind.encoding)
        super().__init__(shielded, behind.encoding, "backslashreplace", line_buffering=True)
        self.behind = behind


def shield(stream: TextIO) -> TextIO:
    """Return a stream that escapes; the same one if it is no terminal."""
    if isinstance(stream, io.TextIOWrapper) and stream.isatty():
        return stream if isinstance(stream, _ShieldedText) else _ShieldedText(stream)
    return stream


def unshielded(stream: TextIO) -> TextIO:
    """Return the original stream, for a library that draws `printable` text with escape codes."""
    return stream.behind if isinstance(stream, _ShieldedText) else stream


def clear_screen(stream: TextIO) -> None:
    if not stream.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return
    stream.flush()
    behind = unshielded(stream)
    behind.write("\x1b[2J\x1b[H")
    behind.flush()
