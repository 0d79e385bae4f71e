"""The harness takes turns, turns ratios the right way round, and writes what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, arguments, output_of
from benchmarks.baselines.process import bare_server
from benchmarks.harness import Comparison, Settings, interleave, write_results
from benchmarks.load import Load

FRAME = b"\x10\x00\x00\x00\x04\x00\x00\x00headpayload!"
"""16 bytes follow the size; 4 of them are the header's size, 4 the header."""
assert len(FRAME) == 4 + 16


def comparison(ours: list[float], baseline: list[float], **options: object) -> Comparison:
    return Comparison("a name", "unit", ours, baseline, **({"budget": 0.5} | options))  # type: ignore[arg-type]


def test_sides_take_turns_and_warmups_are_thrown_away() -> None:
    order: list[str] = []

    def side(name: str, figure: float) -> float:
        order.append(name)
        return figure + len(order) / 100

    measured = interleave(2, lambda: side("ours", 1), lambda: side("bare", 2), warmups=1)
    assert order == ["bare", "ours", "ours", "bare", "bare", "ours"]
    assert measured.ours == [1.03, 1.06]
    assert measured.baseline == [2.04, 2.05]


@pytest.mark.parametrize(
    ("bigger_is_better", "ratio"), [(True, 20 / 50), (False, 50 / 20)], ids=["speed", "time"]
)
def test_a_ratio_is_turned_so_that_bigger_is_better(bigger_is_better: bool, ratio: float) -> None:
    made = comparison([10, 20, 90], [40, 50, 60], bigger_is_better=bigger_is_better)
    assert (made.value, made.baseline_value) == (20, 50)
    assert made.ratio == pytest.approx(ratio)
    assert made.is_met is (ratio >= 0.5)


def test_only_budgets_go_to_the_results(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "latest.json"
    budgets = [comparison([2], [4]), comparison([2], [4], budget=None)]
    write_results(budgets, path=path, settings=Settings())
    assert json.loads(path.read_text()) == [
        {"name": "a name", "value": 2, "baseline": 4, "ratio": 0.5, "budget": 0.5, "unit": "unit"}
    ]
    assert len(json.loads((path.parent / "details.json").read_text())["comparisons"]) == 2


def test_a_part_beside_the_whole_leaves_its_details(tmp_path: Path) -> None:
    for name in ("latest", "cluster"):
        write_results([comparison([2], [4])], path=tmp_path / f"{name}.json", settings=Settings())
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"latest.json", "details.json", "cluster.json", "cluster-details.json"}


def test_a_part_never_replaces_the_whole() -> None:
    whole = output_of(arguments([]))
    assert output_of(arguments(["--quick"])) != whole
    assert output_of(arguments([BENCHMARKS[0]])) != whole


def test_every_benchmark_has_a_file() -> None:
    here = Path(__file__).resolve().parents[2] / "benchmarks"
    assert {path.stem for path in here.glob("bench_*.py")} == {f"bench_{b}" for b in BENCHMARKS}


def test_bare_servers_move_the_bytes_that_they_claim(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    stored.write_bytes(b"abcdefghij")
    with bare_server("echo", 12) as address, Load(address) as load:
        assert load.exchange([FRAME]) == b"\x08\x00\x00\x00" + FRAME[4:12]
        assert load.pipeline([[FRAME]] * 100, depth=7) > 0
        assert load.bursts([(FRAME * 3, 3)] * 10, ahead=2) > 0
        assert load.exchange([FRAME[:8], FRAME[8:]])[4:] == FRAME[4:12]
    with bare_server("send", stored, 4, 12) as address, Load(address) as load:
        bodies = [load.exchange([FRAME])[12:] for _ in range(3)]
        assert bodies == [b"abcd", b"efgh", b"abcd"]
    for mode in ("receive", "flush"):
        with bare_server(mode, tmp_path, 20) as address, Load(address) as load:
            assert len(load.exchange([FRAME])) == 20
