"""The sparse index against a scan of all batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiverlog.storage.segment.index import NO_TIME, IndexSummary, SparseIndex

Steps = list[tuple[int, int, int]]
STEPS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=30
)


def built(steps: Steps) -> tuple[SparseIndex, list[tuple[int, int, int]]]:
    index, entries = SparseIndex(), []
    relative, position, newest = 0, 64, NO_TIME
    for rows, blocks, later in steps:
        index.add(relative, position, newest)
        entries.append((relative, position, newest))
        relative += rows
        position += 64 * blocks
        newest = later if newest == NO_TIME else newest + later
    return index, entries


@given(STEPS, st.integers(0, 160))
def test_entry_at_offset_is_the_last_entry_not_beyond_the_row(steps: Steps, row: int) -> None:
    index, entries = built(steps)
    naive = [n for n, (relative, _, _) in enumerate(entries) if relative <= row]
    assert index.entry_at_offset(row) == naive[-1]


@given(STEPS, st.integers(0, 20_000))
def test_entry_at_position_is_the_last_entry_not_beyond_the_byte(steps: Steps, at: int) -> None:
    index, entries = built(steps)
    naive = [n for n, (_, position, _) in enumerate(entries) if position <= at]
    assert index.entry_at_position(at) == (naive[-1] if naive else 0)


@given(STEPS, st.integers(-1, 130))
def test_entry_at_time_is_the_last_entry_behind_nothing_but_older_rows(
    steps: Steps, at: int
) -> None:
    index, entries = built(steps)
    naive = [n for n, (_, _, newest) in enumerate(entries) if newest < at]
    assert index.entry_at_time(at) == naive[-1]


@given(STEPS)
def test_its_file_gives_it_back(steps: Steps) -> None:
    index, entries = built(steps)
    summary = IndexSummary(5, 99, 7, 2**32)
    loaded_summary, loaded = SparseIndex.load("i", index.dump(summary))
    columns = zip(loaded.relative_offsets, loaded.positions, loaded.times, strict=True)
    assert (loaded_summary, list(columns)) == (summary, entries)
