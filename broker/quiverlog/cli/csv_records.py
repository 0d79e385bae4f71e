"""Where a record of CSV ends: at the end of a line that lies within no quotes."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["Records"]

_LINE_END: Final = re.compile(rb"\r\n?|\n")


class Records:
    """Finds out whether a line's end lies within quotes, as pyarrow's parser sees them."""

    def __init__(self, delimiter: str) -> None:
        self._before = frozenset((b"", b"\r", b"\n", delimiter.encode()))
        """A quote opens a field only at its beginning; elsewhere it is a character as any."""
        mark = re.escape(delimiter.encode())
        self._close = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
        """Possessive: the first of two quotes in a row never closes a field."""
        self._rest = re.compile(rb"(?:(?!" + mark + rb")[^\r\n])*")

    def ends_inside(self, text: bytes, inside: bool) -> bool:
        """Whether the end of `text` is within a quoted field; `inside` says it of its beginning."""
        return self.last_end(text, inside)[1]

    def last_end(self, text: bytes, inside: bool) -> tuple[int, bool]:
        """Where the last record ends that ends in `text` (0: none does), and as `ends_inside`."""
        if not inside and b'"' not in text:
            return len(text), False
        at = end = 0
        while True:
            if inside:
                close = self._close.match(text, at)
                if close is None:
                    return end, True
                rest = self._rest.match(text, close.end())
                assert rest is not None
                at = rest.end()
            quote = text.find(b'"', at)
            while quote >= 0 and text[max(0, quote - 1) : quote] not in self._before:
                quote = text.find(b'"', quote + 1)
            if quote < 0:
                return len(text), False
            end = text.rfind(b"\n", at, quote) + 1 or end
            at, inside = quote + 1, True

    def first_end(self, text: bytes) -> int:
        """Where the first record of `text` ends, its line's end and empty lines before included.

        A line may end with CR alone, as pyarrow's parser has it.
        """
        start = end = len(text) - len(text.lstrip(b"\r\n"))
        inside = False
        while found := _LINE_END.search(text, end):
            inside = self.ends_inside(text[end : found.end()], inside)
            end = found.end()
            if not inside:
                return end
        return len(text) if start < len(text) else 0
