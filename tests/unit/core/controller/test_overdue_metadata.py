"""A broker that gets decisions only sessions later soon leads nothing (docs/adr/0042)."""

from __future__ import annotations

import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.overdue import Overdue
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.controller.registrations import Heartbeat, Registrations

SESSION_US = 2_000_000
BEAT_US = SESSION_US // 5
KNOWN = 5


def cluster() -> tuple[Registrations, Image]:
    """This node is the controller, and had contact with a live broker that has applied
    everything."""
    image = Image({})
    record = BrokerRecord(1, b"first", "host", 1, directory_id="disk", broker_epoch=1)
    image.replay_entry([record], version=KNOWN)
    machine = Registrations(9, b"controller", SESSION_US)
    machine.begin(image, 0, {})
    return machine, image


def beats(machine: Registrations, image: Image, version: int, begin_us: int, end_us: int) -> int:
    """When the broker, which stays at this version, last got "caught up"; -1: never."""
    last_us = -1
    for now_us in range(begin_us, end_us, BEAT_US):
        beat = Heartbeat(1, 1, version, wants_to_stop=False)
        if machine.heartbeat(image, image, beat, now_us).is_caught_up:
            last_us = now_us
    return last_us


def test_a_broker_that_applies_nothing_new_for_three_sessions_is_not_caught_up() -> None:
    """The broker's session has ended before the lag time, five sessions, is over."""
    machine, image = cluster()
    begin_us = 10 * SESSION_US
    assert beats(machine, image, KNOWN, 0, begin_us) >= begin_us - BEAT_US
    image.version = KNOWN + 1  # Another broker leads what this one led.
    last_us = beats(machine, image, KNOWN, begin_us, begin_us + 20 * SESSION_US)
    assert begin_us + 2 * SESSION_US <= last_us <= begin_us + 3 * SESSION_US
    assert beats(machine, image, KNOWN + 1, begin_us + 20 * SESSION_US, 31 * SESSION_US) > last_us


def test_a_broker_that_is_always_a_little_late_stays() -> None:
    machine, image = cluster()
    for number in range(200):
        now_us = number * BEAT_US
        image.version = KNOWN + number
        late = KNOWN + max(0, number - 10)  # By two sessions.
        beat = Heartbeat(1, 1, late, wants_to_stop=False)
        assert machine.heartbeat(image, image, beat, now_us).is_caught_up, number


def test_what_a_controller_begins_with_is_due_a_session_later() -> None:
    machine, image = cluster()
    last_us = beats(machine, image, KNOWN - 1, 0, 10 * SESSION_US)
    assert SESSION_US - BEAT_US <= last_us < SESSION_US


@pytest.mark.parametrize("step_us", [1, 1_000, 150_000, SESSION_US, 9 * SESSION_US])
def test_what_is_remembered_is_bounded_and_never_ahead(step_us: int) -> None:
    overdue = Overdue(SESSION_US)
    overdue.begin(0, 0)
    for number in range(2_000):
        due = overdue.version(number, number * step_us)
        assert due <= max(0, number - 3 * SESSION_US // step_us)
    assert len(overdue._known) <= 32
