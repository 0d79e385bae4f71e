"""Where rows lie in a topic: what was acknowledged, held against what a reader has found.

Owns what loss, doubling and another order mean: an acknowledgement names the place of each row, and
every reader finds that row there, once, and nothing else. Not here: which reader, and how it read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Place", "Row", "Seen", "disorder", "misfits"]

Place = tuple[int, int]
"""Partition and offset."""
Row = tuple[str, int]
"""The program that has sent it, and its number among the rows of that program."""
Seen = tuple[Place, Row]


def misfits(acknowledged: Mapping[Place, Row], found: Iterable[Seen]) -> list[str]:
    """A line for each run of rows that are lost, doubled, in another place, or never sent."""
    by_place: dict[Place, Row] = {}
    doubled: dict[Place, Row] = {}
    for place, row in found:
        (doubled if place in by_place else by_place)[place] = row
    lost = {place: row for place, row in acknowledged.items() if place not in by_place}
    other = {p: row for p, row in by_place.items() if acknowledged.get(p, row) != row}
    unknown_rows = {p: row for p, row in by_place.items() if p not in acknowledged}
    kinds = {"lost": lost, "found twice": doubled, "not the acknowledged": other}
    kinds["never acknowledged"] = unknown_rows
    return [f"{what}: {run}" for what, rows in kinds.items() for run in _runs(rows)]


def disorder(acknowledged: Mapping[Place, Row]) -> list[str]:
    """Rows that lie before earlier ones of their program, which sends one after the other."""
    found = []
    last: dict[tuple[int, str], int] = {}
    for (partition, offset), (program, number) in sorted(acknowledged.items()):
        before = last.get((partition, program), -1)
        if number <= before:
            found.append(f"{program} {number} at {partition}/{offset} comes after {before}")
        last[partition, program] = number
    return found


def _runs(rows: Mapping[Place, Row]) -> Iterator[str]:
    """Rows side by side are reported as one."""
    run: list[Seen] = []
    for (partition, offset), (program, number) in sorted(rows.items()):
        if run and ((partition, offset - 1), (program, number - 1)) != run[-1]:
            yield _run(run)
            run = []
        run.append(((partition, offset), (program, number)))
    if run:
        yield _run(run)


def _run(run: list[Seen]) -> str:
    ((partition, first), (program, number)), ((_, last), (_, number_last)) = run[0], run[-1]
    return f"partition {partition}, offsets {first}-{last}: {program} {number}-{number_last}"
