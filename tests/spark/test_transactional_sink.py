"""The sink's default, exactly once, on a real Spark: what is skipped, refused, fenced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import produce, read_stream, stored_ids
from tests.support.spark import run_once

pytestmark = pytest.mark.spark


def forget_commits(checkpoint: Path, batch: int) -> None:
    """Leave the checkpoint as of a driver that died behind its commit, and before Spark's log."""
    for path in (checkpoint / "commits").iterdir():
        if path.name.strip(".").split(".")[0] == str(batch):
            path.unlink()


def test_a_micro_batch_that_is_repeated_is_skipped_though_its_rows_differ(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    produce(client, source, 0, 100)
    options = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    checkpoint = tmp_path / "checkpoint"
    options["checkpointLocation"] = str(checkpoint)
    stream = read_stream(spark, broker, source)
    first = run_once(stream, fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(100))
    known = client.transactional_id(f"spark/{first.id}/{sink}")
    assert known.last_sequence == 0

    forget_commits(checkpoint, 0)
    run_once(stream.where("id < 50"), fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(100))
    produce(client, source, 100, 10)
    run_once(stream, fmt="quiverlog", **options)
    assert stored_ids(client, sink) == list(range(110))
    shutil.rmtree(checkpoint)
