"""The connector inside of a test's own process, where Spark's workers would have one each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_quiverlog import pool

__all__ = ["connections"]


@pytest.fixture(scope="module", autouse=True)
def connections() -> Iterator[None]:
    """Close what the connector's pool has opened: a worker's end does that in Spark."""
    yield
    current = pool._pool
    for _, producer in current.producers.values():
        producer.close()
    for client in current.clients.values():
        client.close()
    current.producers.clear()
    current.clients.clear()
