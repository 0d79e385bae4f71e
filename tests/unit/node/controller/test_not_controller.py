"""The controller id in METADATA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quiverlog.node.controller.not_controller import announced_controller


@pytest.mark.parametrize(
    ("elected", "is_leading", "decides_alone", "announced"),
    [
        (1, True, False, 1),
        (1, False, False, -1),  # It may lack topics that were decided before it.
        (1, False, True, 1),
        (2, False, False, 2),
        (-1, False, False, -1),
    ],
)
def test_a_node_names_itself_when_it_has_applied_all_earlier_decisions(
    elected: int, *, is_leading: bool, decides_alone: bool, announced: int
) -> None:
    broker: Any = SimpleNamespace(
        controller=SimpleNamespace(controller_id=elected),
        config=SimpleNamespace(node_id=1),
        quorum=SimpleNamespace(is_leading=is_leading, decides_alone=decides_alone),
    )
    assert announced_controller(broker) == announced
