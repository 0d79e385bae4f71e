"""The log's two halves, the durable one and the tail, look like one."""

from __future__ import annotations

import random

import pytest

from quiverlog.core.raft.log import LogView, Place
from quiverlog.core.raft.messages import Entry, EntryKind, RaftConfig, SnapshotMeta
from quiverlog.core.raft.outbox import Write
from tests.support.raft import MemoryStore, entries, voters


def make_log(terms: list[int], *, snapshot: int = 0) -> tuple[LogView, MemoryStore]:
    store = MemoryStore(SnapshotMeta(snapshot, 1, voters(0)), entries(snapshot + 1, terms))
    return LogView(store), store


def test_entries_span_both_halves_and_are_bounded_by_bytes() -> None:
    log, _ = make_log([1, 1, 1])
    for _ in range(3):
        log.append(2, EntryKind.DATA, b"x")
    assert [e.index for e in log.entries(2, 10_000)] == [2, 3, 4, 5, 6]
    assert [e.index for e in log.entries(5, 1)] == [5], "one always fits"
    assert [e.index for e in log.entries(3, 35 + 33 + 33)] == [3, 4, 5]


def test_terms_are_known_from_the_snapshot_to_the_end() -> None:
    log, _ = make_log([2, 3], snapshot=5)
    assert [log.term(index) for index in range(4, 9)] == [None, 1, 2, 3, None]
    assert log.last == Place(7, 3)


def test_committed_entries_are_applied_when_they_are_durable() -> None:
    log, _ = make_log([1])
    log.append(1, EntryKind.DATA, b"x")
    log.commit_to(2)
    assert [e.index for e in log.to_apply(10_000)] == [1]


def test_a_call_applies_a_bounded_amount() -> None:
    log, _ = make_log([1] * 10)
    log.commit_to(10)
    assert [e.index for e in log.to_apply(110)] == [1, 2, 3]
    log.applied_to(3)
    assert log.to_apply(1)[0].index == 4


def test_a_committed_entry_is_never_replaced() -> None:
    log, _ = make_log([1, 1])
    log.commit_to(2)
    with pytest.raises(AssertionError, match="never replaced"):
        log.append_from_leader(1, entries(2, [2]))


def test_any_order_of_appends_conflicts_and_writes_gives_the_same_log() -> None:
    """Against a plain list, with a write that finishes at any time."""
    for seed in range(200):
        rng = random.Random(seed)
        log, store = make_log([])
        model: list[Entry] = []
        under_way: tuple[list[Entry], Write] | None = None
        for step in range(1, 40):
            kind = rng.random()
            if kind < 0.5:
                prev = rng.randint(0, len(model))
                new = entries(prev + 1, [step] * rng.randint(1, 4))
                assert log.append_from_leader(prev, new) == new
                model[prev:] = new
            elif under_way is None:
                written = log.begin_write()
                if written:
                    first = written[0].index
                    assert written == tuple(model[first - 1 :])
                    under_way = (list(model), Write(step, None, written, None))
            else:
                store.write(under_way[1])
                log.complete_write()
                known = under_way[0]
                equal = [a for a, b in zip(known, model, strict=False) if a == b]
                assert log.durable_index == len(equal)
                assert store.stored[: log.durable_index] == model[: log.durable_index]
                under_way = None
            if model:
                assert log.entries(1, 10**6) == model
            assert log.last_index == len(model)
            assert (
                log.has_unwritten == (under_way is None and log.durable_index < len(model))
                or under_way is not None
            )


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_us": 400_000},
        {"heartbeat_us": 0},
        {"inflight_bytes_max": 10},
        {"uncommitted_bytes_max": 10},
        {"chunk_bytes_max": 0},
        {"observers_max": 0},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    assert RaftConfig().election_timeout_us == 750_000
    with pytest.raises(ValueError, match="must"):
        RaftConfig(**wrong)
