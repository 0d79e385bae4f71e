"""A driver that kills itself at one point of a micro-batch. Run by test_crash.py as a program:

python -m tests.spark.crash_driver BOOTSTRAP TOPIC CHECKPOINT ROWS BATCH POINT
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.spark import new_session


def write_rows(frame: Any, batch_id: int, rows: Path) -> None:
    """Write the batch where a second run of it replaces the first."""
    frame.select("id").write.mode("overwrite").parquet(str(rows / f"batch={batch_id}"))


def die() -> None:
    """SIGKILL for this program and its JVM, which are one process group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(bootstrap: str, topic: str, checkpoint: str, rows: str, batch: str, point: str) -> None:
    spark = new_session()

    def sink(frame: Any, batch_id: int) -> None:
        if batch_id == int(batch) and point == "before-write":
            die()
        write_rows(frame, batch_id, Path(rows))
        if batch_id == int(batch) and point == "before-commit":
            die()

    stream = (
        spark.readStream.format("quiverlog")
        .options(
            **{"bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "latest"}
        )
        .load()
    )
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
    committed = Path(checkpoint) / "commits" / batch
    deadline = time.monotonic() + 280
    while query.isActive and time.monotonic() < deadline:
        if point == "after-commit" and committed.exists():
            die()
        time.sleep(0.02)
    sys.exit(f"the query ended: {query.exception()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
