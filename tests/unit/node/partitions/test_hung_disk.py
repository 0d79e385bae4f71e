"""A disk that does not come back from an fsync: produces time out, and cost no more memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import RequestTimedOut
from quiverlog.node.partitions.acknowledgements import Answers
from tests.support.node import NodeDriver, batch_of


@pytest.mark.parametrize("first_timeout_ms", [1, 3_600_000], ids=["all-short", "one-long"])
def test_answers_that_timed_out_are_not_kept(tmp_path: Path, first_timeout_ms: int) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    first = node.produce(topic, batch_of([0]), timeout_ms=first_timeout_ms)
    correlations = []
    for value in range(2_000):
        correlations.append(node.produce(topic, batch_of([value]), timeout_ms=1))
        node.advance(2)
    for correlation in correlations:
        answer = node.answer(correlation)
        assert answer is not None
        assert answer[0].partitions[0].error_code == RequestTimedOut.code
    answers: Answers = node.node.broker.replicas[topic, 0].answers
    assert len(answers.unflushed) < 600
    last = node.produce(topic, batch_of([1]))
    node.flush()
    node.flush()
    for correlation in (first, last):
        answer = node.answer(correlation)
        assert answer is not None
        expected = RequestTimedOut.code if (correlation, first_timeout_ms) == (first, 1) else 0
        assert answer[0].partitions[0].error_code == expected
    assert node.metrics.internal_errors == 0
