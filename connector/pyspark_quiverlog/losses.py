"""What happens when rows that were to be read are gone: fail, or say so and go on.

One place for `failOnDataLoss`, in the driver and in the executors.
"""

from __future__ import annotations

import logging

from quiverlog.errors import DataLoss, QuiverlogError

__all__ = ["Losses"]

logger = logging.getLogger("pyspark_quiverlog")


class Losses:
    """Reports losses as the query's options want it. `fail`: the option `failOnDataLoss`."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str, cause: QuiverlogError | None = None) -> None:
        """Rows are gone; `what` names topic, partition and range.

        Raises:
            DataLoss: unless the query goes on without them.
        """
        if self._fail:
            raise DataLoss(f"{what}.") from cause
        logger.warning("data loss, going on (failOnDataLoss=false): %s", what)
