"""Some kills of a leader under produce; `make failover` has more, and prints how long they took."""

from __future__ import annotations

import statistics

import pytest

from .failover import failover

KILLS = 3
RESUMES_WITHIN_S = 3.0


@pytest.mark.first
@pytest.mark.process
async def test_writes_go_on_after_the_leader_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    found = await failover(KILLS, 1, lambda _: None)
    with capsys.disabled():
        print("\n" + found.text(), end="")
    assert found.problems == []
    # The median: what else runs on the machine may hold up one of them.
    assert statistics.median(found.writes_s) < RESUMES_WITHIN_S
