"""Three rounds without a pause; `make chaos MINUTES=30 ARGS=--rotate` is the whole of it."""

from __future__ import annotations

import pytest

from .rotation import rotation


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(300)
def test_what_rotates_costs_no_error_and_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = rotation(25.0, lambda _: None, every_s=0.1)
    with capsys.disabled():
        print("\n" + found.text(), end="")
    assert found.problems == []
    assert found.authorities > 0
