"""docs/spark.md has the options' table as the code has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_quiverlog.option_table import OPTIONS, Use, options_page

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize("use", [Use.READ, Use.WRITE])
def test_the_guide_holds_the_generated_table(use: Use) -> None:
    assert options_page(use) in GUIDE.read_text(), "run `make docs`"


def test_every_option_is_in_the_guide() -> None:
    text = GUIDE.read_text()
    assert [key for key in OPTIONS if f"| `{key}` |" not in text] == []
