"""Text in other encodings than UTF-8, for readers of UTF-8. None is guessed: any bytes are Latin-1,
so a wrong guess would be stored."""

from __future__ import annotations

import codecs
import io
from typing import Any

import click

__all__ = ["codec_of", "in_utf8", "no_utf8", "recoded"]

_PIECE_BYTES = 1 << 16


def codec_of(name: str) -> str | None:
    try:
        found = codecs.lookup(name)
        "a".encode(name)  # Refuses codecs such as base64, which are not of text.
    except (LookupError, ValueError) as error:
        raise click.UsageError(
            f"--encoding {name!r} is none that Python knows, as latin1, cp1252 or utf-16 are."
        ) from error
    return None if found.name == "utf-8" else found.name


def in_utf8(binary: io.BufferedReader, codec: str) -> io.BufferedReader:
    """Reading raises UnicodeError for text in another encoding."""
    return io.BufferedReader(_Recoded(binary, codec))


def recoded(name: str) -> str:
    return f"--encoding names its encoding, e.g. --encoding {name}"


def no_utf8(text: bytes) -> str | None:
    """Return the error; None: the text is UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"byte 0x{text[error.start]:02x} is no UTF-8: {recoded('latin1')}"
    return None


class _Recoded(io.RawIOBase):
    """Text in UTF-8; `readinto` returns what has arrived, so that rows of a pipe do not wait."""

    def __init__(self, binary: io.BufferedReader, codec: str) -> None:
        self._binary = binary
        self._decoder = codecs.getincrementaldecoder(codec)()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        is_last = False
        while not self._ready and not is_last:
            data = self._binary.read1(_PIECE_BYTES)
            is_last = not data
            self._ready = memoryview(self._decoder.decode(data, final=is_last).encode())
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
