"""What `quiverlog doctor` reports of certificates, by their ends."""

from __future__ import annotations

import time

import pytest

from quiverlog.cli.tools import doctor

DAY_S = 86_400


@pytest.mark.parametrize(
    ("days", "status", "text"),
    [
        (-3.5, doctor.PROBLEM, "has ended on"),
        (0, doctor.PROBLEM, "has ended on"),
        (0.5, doctor.WARNING, "in 0 days"),
        (29.9, doctor.WARNING, "in 29 days"),
        (30.1, doctor.OK, "ends on"),
    ],
)
def test_a_certificate_that_has_ended_is_a_problem(days: float, status: str, text: str) -> None:
    found = doctor._ends("the certificate of a:1", time.time() + days * DAY_S)
    assert (found.status, text in found.detail) == (status, True)
