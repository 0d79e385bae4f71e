"""Looking for planted bugs: which seed finds each, and does sound code pass that seed?

Owns the hunt, on one process or several. The list of bugs is in `planted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.support.once import once

from .checker import Violation
from .mutations import NotThere
from .planted import BUGS, Bug
from .run import simulate

__all__ = ["Caught", "hunt", "hunt_all", "print_table", "write_table"]


@dataclass(frozen=True, slots=True)
class Caught:
    """`seed` None: not caught within the bound. `report`: the checker's report, or why it cannot be
    caught.
    """

    bug: str
    seed: int | None
    report: str
    tried: int = 0
    """Seeds that were needed."""


def hunt(
    bug: Bug,
    *,
    seeds: Iterable[int],
    duration_ms: int,
    run: Callable[..., object] = simulate,
) -> Caught:
    """A seed that catches the bug and that sound code passes: the known one, or the first.

    Args:
        run: the simulation, `simulate` or one that takes the same arguments.
    """
    try:
        for change in bug.changes:
            change.code()
    except NotThere as error:
        return Caught(bug.name, None, f"cannot be planted: {error}")
    for tried, seed in enumerate(dict.fromkeys((bug.seed, *seeds)), start=1):
        report = _run(run, bug, seed, duration_ms, plant=True)
        if report and not _report_of_sound_code(run, bug, seed, duration_ms):
            return Caught(bug.name, seed, report, tried)
    return Caught(bug.name, None, "")


def _report_of_sound_code(run: Callable[..., object], bug: Bug, seed: int, duration_ms: int) -> str:
    """Several bugs are found by the same seed and shape: sound code runs them once."""
    key = (run.__module__, seed, duration_ms, sorted(bug.opened), sorted(bug.shape))
    return once(key, lambda: _run(run, bug, seed, duration_ms, plant=False))


def _run(run: Callable[..., object], bug: Bug, seed: int, duration_ms: int, *, plant: bool) -> str:
    try:
        run(
            seed,
            duration_ms=duration_ms,
            opened=bug.opened,
            plant=bug.plant if plant else None,
            shape=dict(bug.shape),
        )
    except Violation as violation:
        return str(violation).splitlines()[0].partition(": ")[2]
    return ""


def print_table(caught: Iterable[Caught]) -> int:
    """One line for each bug. Returns how many were missed."""
    print(f"{'planted bug':60} {'caught by seed':>14} {'tried':>5}  the checker's report")
    missed = count = 0
    for one in caught:
        count += 1
        missed += one.seed is None
        where = "MISSED" if one.seed is None else str(one.seed)
        print(f"{one.bug:60} {where:>14} {one.tried:5}  {one.report[:70]}", flush=True)
    print(f"{count - missed} of {count} planted bugs caught")
    return missed


def write_table(caught: Iterable[Caught], path: Path, *, seeds: int, part: str = "") -> None:
    """The same as one part of a page of the docs; the others stay as they are.

    Args:
        part: the heading above the table; the page begins with one broker's.
    """
    found = list(caught)
    missed = [one for one in found if one.seed is None]
    lines = [
        f"{len(found) - len(missed)} of {len(found)} caught, each within {seeds} seeds.",
        "",
        "| planted bug | seed | seeds tried | the checker's report |",
        "|---|---|---|---|",
    ]
    for one in found:
        report = one.report[:90].replace("|", "/").replace("`", "'")
        where = "missed | " if one.seed is None else f"{one.seed} | {one.tried}"
        name = one.bug.replace("|", "\\|")
        lines.append(f"| {name} | {where} | {report} |")
    parts = _parts(path.read_text() if path.exists() else "")
    parts[part or _PARTS[0]] = "\n".join(lines)
    text = "".join(f"\n## {name}\n\n{parts[name]}\n" for name in _PARTS if name in parts)
    path.write_text(_ABOVE + text)


_PARTS = (
    *("One broker", "A cluster", "Transactions in a cluster", "Transactions in a model"),
    *("Groups in a model", "Raft"),
)
_ABOVE = """# Planted bugs

Written by `make sim-bugs ARGS='--table tests/sim/planted-bugs.md'`.
The seeds are those of one run: any change of the broker may shift them.
"""


def _parts(text: str) -> dict[str, str]:
    """The text below each heading."""
    found = {}
    for piece in text.split("\n## ")[1:]:
        name, _, below = piece.partition("\n")
        found[name] = below.strip()
    return found


def _hunt_number(number: int, seeds: int, duration_ms: int) -> Caught:
    return hunt(BUGS[number], seeds=range(seeds), duration_ms=duration_ms)


def hunt_all(*, seeds: int, duration_ms: int, processes: int = 2) -> Iterable[Caught]:
    """All bugs, in the order of the list, on some processes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = [pool.submit(_hunt_number, n, seeds, duration_ms) for n in range(len(BUGS))]
        for future in found:
            yield future.result()
