"""What several test processes need is worked out by one of them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.support.once import RESULTS_VARIABLE, once


def _worked(path: str) -> int:
    def work() -> int:
        with Path(path).open("a") as file:
            file.write("x")
        return 7

    return once(("a", path), work)


def test_processes_that_ask_together_get_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path))
    path = tmp_path / "worked"
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_worked, [str(path)] * 6, chunksize=1) == [7] * 6
    assert path.read_text() == "x"
    assert once(("b", str(path)), lambda: 8) == 8


def test_a_failure_is_met_by_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            once("c", lambda: 1 // 0)


def test_outside_of_a_run_everybody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RESULTS_VARIABLE)
    assert [once("d", iter(range(2)).__next__) for _ in range(2)] == [0, 0]
