"""`quiverlog perf`: a run ends, whatever becomes of its rows."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from quiverlog.cli.rows.perf import _arrives
from quiverlog.errors import NotEnoughReplicas


def consumer_of(*batches: object) -> SimpleNamespace:
    coming = iter(batches)
    return SimpleNamespace(poll=lambda timeout: next(coming, None))


def test_a_row_that_arrives_before_its_acknowledgement_counts() -> None:
    assert _arrives(consumer_of("a batch"), Future(), time.perf_counter() + 60)
    assert _arrives(consumer_of(None, "a batch"), Future(), time.perf_counter() + 60)


def test_a_refused_row_ends_the_run_with_its_error() -> None:
    refused: Future[None] = Future()
    refused.set_exception(NotEnoughReplicas("one of two"))
    with pytest.raises(NotEnoughReplicas):
        _arrives(consumer_of(), refused, time.perf_counter() + 60)


def test_a_row_that_never_arrives_ends_the_run_in_time() -> None:
    acknowledged: Future[None] = Future()
    acknowledged.set_result(None)
    assert not _arrives(consumer_of(), acknowledged, time.perf_counter() + 0.01)
    assert not _arrives(consumer_of("a batch"), acknowledged, time.perf_counter())
