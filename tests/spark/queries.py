"""Streaming queries of the Spark tests: what they collect, and how they are run and waited for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Collected:
    """A foreachBatch sink that replaces a batch that is run again: what is in it counts."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.partitions: list[int] = []

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.partitions.append(frame.rdd.getNumPartitions())
        self.batches[batch_id] = [row.id for row in frame.collect()]

    @property
    def ids(self) -> list[int]:
        return sorted(i for rows in self.batches.values() for i in rows)

    @property
    def sizes(self) -> list[int]:
        return [len(self.batches[b]) for b in sorted(self.batches)]


def run_available(
    stream: Any, sink: Callable[[Any, int], None], checkpoint: Path, timeout: float = 60
) -> Any:
    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(timeout)
    finally:
        query.stop()
    return query


def wait_for(condition: Callable[[], bool], query: Any, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def run_cli(*words: str) -> str:
    command = [sys.executable, "-m", "quiverlog", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
