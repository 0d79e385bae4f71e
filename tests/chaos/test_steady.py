"""Some seconds of full load without a false alarm; `make steady MINUTES=10` is the whole of it."""

from __future__ import annotations

import pytest

from .steady import steady

LOAD_S = 8.0
COLD_SEGMENTS = 3
"""Of each partition; writing them in small batches takes longer than the load."""
TRIES = 2
"""What else runs on the machine may keep a broker from running for seconds, once."""


@pytest.mark.long
@pytest.mark.process
async def test_full_load_fences_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(TRIES):
        found = await steady(LOAD_S, lambda _: None, cold_segments=COLD_SEGMENTS)
        with capsys.disabled():
            print("\n" + found.text(), end="")
        assert found.done["topics"] > 0
        assert found.done["cold reads"] > 0
        assert not any("internal error" in problem for problem in found.problems)
        if not found.problems:
            return
    raise AssertionError(found.text())
