"""`failOnDataLoss`, in the driver and in the executors: fail for lost rows, or log them and go
on."""

from __future__ import annotations

import logging

from quiverlog.errors import DataLoss, QuiverlogError

__all__ = ["Losses"]

logger = logging.getLogger("pyspark_quiverlog")


class Losses:
    """`fail`: the option `failOnDataLoss`."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str, cause: QuiverlogError | None = None) -> None:
        """Report lost rows; `what` names the partition. Raises DataLoss if `fail`."""
        if self._fail:
            raise DataLoss(f"{what}.") from cause
        logger.warning("data loss, going on (failOnDataLoss=false): %s", what)
