"""The driver is killed (SIGKILL) at three points of a micro-batch and started again.

The start is `latest`, the one that an unlucky restart would move; rows are produced all the time,
also while no driver lives. Every row from the durable start on must come out exactly once.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import produce, read_stream
from tests.spark.crash_driver import write_rows
from tests.support.spark import environment

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROOT = Path(__file__).resolve().parents[2]


class Feed:
    """Appends ten rows at a time until it is stopped; ids count up without gaps."""

    def __init__(self, client: Any, topic: str) -> None:
        self.next_id = 0
        self._client, self._topic = client, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            produce(self._client, self._topic, self.next_id, 10)
            self.next_id += 10

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("batch", "point"), [(0, "before-write"), (1, "before-commit"), (1, "after-commit")]
)
@pytest.mark.timeout(240)
def test_no_row_is_lost_or_doubled(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path, batch: int, point: str
) -> None:
    name = topic(partitions=1)
    checkpoint, rows = tmp_path / "checkpoint", tmp_path / "rows"
    arguments = (broker.bootstrap, name, str(checkpoint), str(rows), str(batch), point)
    with Feed(client, name) as feed:
        driver = subprocess.run(
            [sys.executable, "-m", "tests.spark.crash_driver", *arguments],
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert driver.returncode == -signal.SIGKILL, driver.stderr[-2000:]
        assert (checkpoint / "offsets" / str(batch)).exists()
        is_committed = (checkpoint / "commits" / str(batch)).exists()
        assert is_committed is (point == "after-commit")
    query = (
        read_stream(spark, broker, name, startingOffsets="latest")
        .writeStream.foreachBatch(lambda frame, batch_id: write_rows(frame, batch_id, rows))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = sorted(row.id for row in spark.read.parquet(str(rows)).select("id").collect())
    logged = (checkpoint / "offsets" / "0").read_text().splitlines()[2]
    start = json.loads(logged)["_first"][name]["partitions"]["0"][0]
    assert start < feed.next_id - 10, "rows came while the driver was dead"
    assert found == list(range(start, feed.next_id))
