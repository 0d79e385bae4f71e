"""A read's progress on the terminal: one line on stderr that is written over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from quiverlog.client.base.arguments import shown
from quiverlog.errors import InvalidArgument

from .reading_plan import ReadProgress

__all__ = ["progress_of"]

EVERY_S: Final = 0.2


def progress_of(wanted: Any) -> Callable[[ReadProgress], object] | None:
    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return _Line()
    if callable(wanted):
        called: Callable[[ReadProgress], object] = wanted
        return called
    raise InvalidArgument(f"progress={shown(wanted)}: give True, or a function.")


class _Line:
    """Writes at most one line in `EVERY_S`, and the last."""

    def __init__(self) -> None:
        self._again_s = 0.0

    def __call__(self, progress: ReadProgress) -> None:
        now_s = time.monotonic()
        is_last = progress.rows >= progress.rows_total
        if now_s < self._again_s and not is_last:
            return
        self._again_s = now_s + EVERY_S
        end = "\n" if is_last else ""
        text = f"\r{progress.topic}: {progress.rows:,} of {progress.rows_total:,} rows{end}"
        sys.stderr.write(text)
        sys.stderr.flush()
