"""What may reach a terminal: text without characters that steer it.

Owns the rule and its place. Names of columns, values of rows and messages of a broker are a
stranger's; escape codes in them set titles and colours or hide text, C1 codes do the same in one
character, bidirectional overrides turn text around. `shield` puts the rule between a standard
stream and its terminal, so whatever prints, by whatever way, goes through it. A pipe or a file gets
the data as they are.

Only what draws a terminal itself (rich) writes to the stream behind the shield; it is given cells
that went through `printable`.
"""

from __future__ import annotations

import codecs
import io
import os
from typing import IO, Any, Final, TextIO

__all__ = ["ShieldedBytes", "clear_screen", "printable", "shield", "unshielded"]

_LAYOUT: Final = "\n\t"
"""What text of several lines is made of."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with its control and other invisible characters escaped, but for those of `keep`.

    From DEL on they are escaped as in JSON, which has escaped the control characters before it:
    JSON stays JSON.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x20:
        return f"\\x{number:02x}"
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class ShieldedBytes(io.BufferedIOBase):
    """Takes the bytes of text for a terminal; `target` gets what may be shown."""

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
    """A standard stream on a terminal; `behind` is the stream that it was."""

    def __init__(self, behind: io.TextIOWrapper) -> None:
        target: Any = behind.buffer
        shielded: Any = ShieldedBytes(target, behind.encoding)
        super().__init__(shielded, behind.encoding, "backslashreplace", line_buffering=True)
        self.behind = behind


def shield(stream: TextIO) -> TextIO:
    """The stream for text that may be a stranger's: itself where it is no terminal."""
    if isinstance(stream, io.TextIOWrapper) and stream.isatty():
        return stream if isinstance(stream, _ShieldedText) else _ShieldedText(stream)
    return stream


def unshielded(stream: TextIO) -> TextIO:
    """The stream for what draws a terminal itself, from text that is `printable`."""
    return stream.behind if isinstance(stream, _ShieldedText) else stream


def clear_screen(stream: TextIO) -> None:
    """Begin a terminal anew; nothing happens to a pipe, or to a terminal that cannot do it."""
    if not stream.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return
    stream.flush()
    behind = unshielded(stream)
    behind.write("\x1b[2J\x1b[H")
    behind.flush()
