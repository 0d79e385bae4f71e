"""What this package refuses reaches Spark with one frame.

Spark prints a Python error's traceback before its text; here it is logged at DEBUG.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from . import _compat

__all__ = ["RefusedStream", "in_one_frame"]

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger("pyspark_quiverlog")


def in_one_frame(method: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from quiverlog.errors import QuiverlogError

        try:
            return method(*args, **kwargs)
        except QuiverlogError as error:
            logger.debug("refused", exc_info=True)
            refusal = error
        raise refusal.with_traceback(None) from None

    return call


class RefusedStream(_compat.DataSourceStreamReader, _compat.SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Raises at Spark's first call: where making a reader fails, PySpark adds an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @in_one_frame
    def initialOffset(self) -> NoReturn:
        raise self._error

    @in_one_frame
    def latestOffset(self, start: Any = None, limit: Any = None) -> NoReturn:
        raise self._error

    @in_one_frame
    def getDefaultReadLimit(self) -> NoReturn:
        raise self._error

    @in_one_frame
    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._error

    @in_one_frame
    def partitions(self, start: Any, end: Any) -> NoReturn:
        raise self._error

    def read(self, partition: Any) -> NoReturn:
        raise self._error
