"""Since when a version of the metadata is awaited, and when a broker that lacks it is late."""

from __future__ import annotations

from quiverlog.core.controller.overdue import Awaited

SESSION_US = 2_000_000
DUE_US = SESSION_US // 2
LATE_US = DUE_US + SESSION_US
STEP_US = SESSION_US // 20


def test_nothing_is_due_while_nothing_is_awaited() -> None:
    awaited = Awaited(SESSION_US)
    assert (awaited.due(10**12), awaited.late(10**12), awaited.next_us()) == (-1, -1, None)


def test_a_version_is_due_after_half_a_session_and_late_a_session_later() -> None:
    awaited = Awaited(SESSION_US)
    awaited.add(7, 100)
    assert awaited.next_us() == 100 + LATE_US
    assert [awaited.due(100 + DUE_US + us) for us in (-1, 0, 1)] == [-1, 7, 7]
    assert [awaited.late(100 + LATE_US + us) for us in (-1, 0, 1)] == [-1, 7, 7]


def test_a_lease_given_before_a_version_was_due_is_over_when_it_is_late() -> None:
    """Also where later versions have joined it: they may be late early, never due late."""
    awaited = Awaited(SESSION_US)
    for version, at_us in ((1, 0), (2, STEP_US - 1), (3, STEP_US)):
        awaited.add(version, at_us)
    for version in (1, 2, 3):
        due_us = next(us for us in range(0, 2 * SESSION_US, 50) if awaited.due(us) >= version)
        late_us = next(
            us for us in range(due_us, 4 * SESSION_US, 50) if awaited.late(us) >= version
        )
        assert late_us - due_us >= SESSION_US


def test_what_all_brokers_have_applied_is_awaited_no_more() -> None:
    awaited = Awaited(SESSION_US)
    for version in (3, 5, 8):
        awaited.add(version, version * STEP_US)
    awaited.reached(5)
    assert awaited.next_us() == 8 * STEP_US + LATE_US
    awaited.reached(8)
    assert awaited.next_us() is None
    awaited.add(9, 10 * STEP_US)
    awaited.clear()
    assert awaited.next_us() is None


def test_however_many_wait_what_is_remembered_is_bounded() -> None:
    awaited = Awaited(SESSION_US)
    for version in range(100_000):
        awaited.add(version, version * 30)
    assert len(awaited._since) <= 100_000 * 30 // STEP_US + 1
    assert awaited.late(100_000 * 30 + LATE_US) == 99_999
