"""A partition of `__groups`: replay, snapshots, appends that fail, bounds, and Spark's queries."""

from __future__ import annotations

import pytest

from quiverlog.core.groups import coordinator
from quiverlog.core.groups.coordinator import OBSERVERS_PER_GROUP_MAX, Coordinator, Room
from quiverlog.core.groups.group import GroupState, Heartbeat
from quiverlog.core.groups.records import Kind, Position, Record
from quiverlog.errors import (
    CorruptLog,
    GroupFull,
    GroupNotEmpty,
    InvalidGroup,
)
from quiverlog.types import Now
from tests.support.group_core import A, GroupDriver, entry, id_of, offered

DAY_MS = 24 * 3_600_000


def rows(core: Coordinator) -> set[Record]:
    return {row for group in core.groups.values() for row in group.rows()}


def busy() -> GroupDriver:
    driver = GroupDriver()
    driver.join(1, 2, 3)
    assert (A, 0) in driver.assigned(1)
    driver.commit(1, driver.epoch(1), *(entry(*one, 5) for one in driver.assigned(1)))
    driver.commit(0, -1, entry(A, 0, 9), group="other")
    driver.core.prepare("other", "t", 1, 0, b"d", 1, b"", -1, [entry(A, 1, 3)], driver, driver.now)
    return driver


def test_members_go_on_after_a_failover_and_count_as_seen_then() -> None:
    driver = busy()
    before, had = rows(driver.core), driver.assigned(1)
    driver.ms += 3_600_000
    driver.fail_over()
    assert rows(driver.core) == before
    assert driver.group.state() is GroupState.STABLE
    driver.advance(1_000)
    answer = driver.beat(1, driver.epoch(1))
    assert (answer.epoch, offered(answer)) == (3, had)
    driver.advance(43_999)
    assert not driver.fences
    driver.advance(1)
    assert sorted(one.member_id for one in driver.fences) == [id_of(2), id_of(3)]


def test_heartbeats_of_before_are_older_after_a_failover_too() -> None:
    driver = GroupDriver()
    driver.join(1)
    newest = driver.group.standings[id_of(1)].beat
    driver.fail_over()
    answer = driver.beat(1, 1, beat=newest, owned=frozenset())
    assert answer.records == []
    driver.beat(2)
    driver.advance(300)
    # Offered again: a copy of this heartbeat will not free what the member has.
    owned = driver.assigned(1)
    driver.beat(1, 1, beat=newest + 5)
    assert driver.group.standings[id_of(1)].beat == newest + 5
    driver.fail_over()
    driver.beat(1, 1, beat=newest + 5, owned=frozenset())
    assert len(owned) == 6
    assert len(driver.group.standings[id_of(1)].revoking) == 3


def test_a_target_that_was_not_computed_is_by_the_next_coordinator() -> None:
    driver = GroupDriver()
    driver.beat(1)
    driver.fail_over()
    assert driver.group.state() is GroupState.ASSIGNING
    driver.advance(1)
    assert driver.beat(1).epoch == 1


def test_a_snapshot_has_all_and_rows_between_count() -> None:
    driver = busy()
    start = len(driver.log)
    for number, record in enumerate(driver.core.capture()):
        driver.log.append(record)
        if number == 3:
            driver.commit(1, 3, entry(A, 0, 6))
            driver.beat(2, -1)
        if number == 6:
            driver.commit(0, -1, entry(A, 0, 1), group="new")
    assert driver.log[start].kind is Kind.SNAPSHOT_BEGIN
    before = rows(driver.core)
    driver.fail_over(start)
    assert rows(driver.core) == before
    assert driver.committed((A, 0)) == 6
    assert driver.committed((A, 0), group="new") == 1
    assert id_of(2) not in driver.group.members
    # A whole log passes it over.
    driver.fail_over()
    assert rows(driver.core) == before


def test_a_snapshot_without_its_end_is_no_state() -> None:
    driver = busy()
    start = len(driver.log)
    driver.log += list(driver.core.capture())[:-1]
    with pytest.raises(CorruptLog, match="snapshot without an end"):
        driver.fail_over(start)
    driver.fail_over()
    assert driver.committed((A, 0)) == 5


def test_a_snapshot_of_nothing() -> None:
    driver = GroupDriver()
    driver.log += [Record(Kind.GROUP, "x"), *driver.core.capture()]
    driver.fail_over(1)
    assert not driver.core.groups


def test_what_could_not_be_stored_is_dropped() -> None:
    driver = busy()
    before, count = rows(driver.core), driver.core.member_count
    core, now = driver.core, driver.now
    pended = [
        *core.heartbeat(Heartbeat("g", id_of(9), 0, 1, ("a",)), driver, now).records,
        *driver.group.remove([id_of(1)], driver, now),
        *core.commit("fresh", b"", -1, [entry(A, 0, 1)], driver, now).records,
        *core.delete("other"),
    ]
    for record in pended:
        core.pend(record)
    assert core.is_waiting("g")
    assert "other" not in core.groups
    core.drop_pending()
    assert not core.is_waiting("g")
    assert rows(core) == before
    assert core.member_count == count
    core.tick(driver, now)
    assert driver.beat(1, 3).epoch == 3
    sweep(driver)
    assert core.groups.keys() == {"g", "other"}


def test_what_is_due_is_due_again_where_it_could_not_be_proposed() -> None:
    driver = GroupDriver()
    driver.beat(1)
    driver.ms += 300
    while not driver.core.tick(driver, driver.now).records:
        pass
    driver.advance(1_000)
    assert driver.group.target_epoch == 1
    driver.ms += 60_000
    assert len(driver.core.tick(driver, driver.now).fences) == 1
    driver.advance(1_000)
    assert driver.group.state() is GroupState.EMPTY


def test_answers_wait_for_what_is_pending() -> None:
    driver = GroupDriver()
    records = driver.core.heartbeat(
        Heartbeat("g", id_of(1), 0, 1, ("a",)), driver, driver.now
    ).records
    for record in records:
        driver.core.pend(record)
    for number, record in enumerate(records):
        assert driver.core.is_waiting("g")
        driver.core.apply(number, record)
    assert not driver.core.is_waiting("g")


def test_the_room_of_a_broker_is_of_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "GROUPS_PER_BROKER_MAX", 3)
    monkeypatch.setattr(coordinator, "MEMBERS_PER_BROKER_MAX", 2)
    driver, room = GroupDriver(), Room()
    here, there = Coordinator(room), Coordinator(room)
    here.begin(driver.now)
    there.begin(driver.now)

    def join(one: Coordinator, group: str, number: int) -> None:
        beat = Heartbeat(group, id_of(number), 0, 1, ("a",))
        for record in one.heartbeat(beat, driver, driver.now).records:
            one.pend(record)

    join(here, "g", 1)
    join(there, "h", 1)
    with pytest.raises(GroupFull, match="2 members"):
        join(here, "g", 2)
    for record in there.commit("i", b"", -1, [entry(A, 0, 1)], driver, driver.now).records:
        there.pend(record)
    with pytest.raises(GroupFull, match="3 groups"):
        here.commit("j", b"", -1, [entry(A, 0, 1)], driver, driver.now)
    del there
    join(here, "k", 2)


def test_deleting_a_group() -> None:
    driver = busy()
    with pytest.raises(GroupNotEmpty, match="3 members"):
        driver.core.delete("g")
    with pytest.raises(InvalidGroup, match="no group 'none'"):
        driver.core.delete("none")
    driver.put(driver.core.delete("other"))
    for number in (1, 2, 3):
        driver.beat(number, -1)
    records = driver.core.delete("g")
    assert records[-1].kind is Kind.GROUP
    driver.put(records)
    assert not driver.core.groups
    driver.fail_over()
    assert not driver.core.groups


# --- Spark's queries ---------------------------------------------------------------------------
def report(driver: GroupDriver, reporter: bytes = b"r", offset: int = 5, name: str = "q") -> int:
    position = Position(A, 0, offset, 1)
    records = driver.core.report(name, reporter, "title", [position], 2.0, driver.now)
    driver.put(records)
    return len(records)


def sweep(driver: GroupDriver) -> None:
    for _ in range(2):
        driver.put(driver.core.sweep(driver, driver.now, 7 * DAY_MS))


def test_a_query_is_an_observer_whose_position_is_written_now_and_then() -> None:
    driver = GroupDriver()
    assert report(driver) == 2
    driver.ms += 9_999
    assert report(driver, offset=6) == 0
    group = driver.core.groups["q"]
    assert group.is_observer
    assert group.reports[b"r"].positions[0].next_offset == 6
    driver.ms += 1
    assert report(driver, offset=7) == 1
    driver.ms += 5_000
    report(driver, offset=8)
    sweep(driver)
    assert group.observed[b"r"].positions[0].next_offset == 7
    driver.ms += 5_000
    report(driver, offset=8)
    driver.fail_over()
    assert driver.core.groups["q"].observed[b"r"].positions[0].next_offset == 8


def test_an_observer_cannot_be_joined_committed_to_reset_or_deleted() -> None:
    driver = GroupDriver()
    report(driver)
    with pytest.raises(InvalidGroup, match="Spark query"):
        driver.beat(1, group="q")
    with pytest.raises(InvalidGroup):
        driver.commit(0, -1, entry(A, 0, 1), group="q")
    with pytest.raises(InvalidGroup):
        driver.core.alter("q", [entry(A, 0, 1)], driver, driver.now)
    with pytest.raises(InvalidGroup):
        driver.core.delete("q")
    driver.join(1)
    with pytest.raises(InvalidGroup, match="group of consumers"):
        report(driver, name="g")


def test_queries_of_one_name_are_bounded_and_forgotten() -> None:
    driver = GroupDriver()
    for number in range(OBSERVERS_PER_GROUP_MAX):
        report(driver, reporter=bytes([number]))
    with pytest.raises(GroupFull):
        report(driver, reporter=b"one more")
    driver.ms += 7 * DAY_MS - 1
    sweep(driver)
    assert len(driver.core.groups["q"].observed) == OBSERVERS_PER_GROUP_MAX
    driver.fail_over()
    driver.ms += 7 * DAY_MS
    sweep(driver)
    assert not driver.core.groups


def test_nothing_is_due_in_an_empty_coordinator() -> None:
    driver = GroupDriver()
    assert driver.core.next_us() is None
    assert driver.core.tick(driver, Now(0, 0)) == ([], [])
    driver.join(1)
    assert driver.core.next_us() is not None


def test_deadlines_do_not_pile_up() -> None:
    driver = GroupDriver()
    driver.join(1, rebalance_timeout_ms=10_000)
    for number in range(2, 40):
        driver.join(number)
        driver.beat(number, -1)
        driver.settle()
        driver.advance(30_000)
        driver.beat(1, driver.epoch(1))
    assert driver.core.member_count == 1
    driver.advance(40_000)
    assert len(driver.core._deadlines) <= 2


def test_a_member_is_not_fenced_for_what_it_was_not_asked_for() -> None:
    """The row of what it must give up could not be stored, and then there was no need."""
    driver = GroupDriver()
    driver.join(1, rebalance_timeout_ms=10_000)
    driver.beat(2)
    driver.advance(300)
    beat = Heartbeat("g", id_of(1), 1, 90)
    records = driver.core.heartbeat(beat, driver, driver.now).records
    assert records
    for record in records:
        driver.core.pend(record)
    driver.core.drop_pending()
    driver.advance(9_999)
    driver.beat(2, -1)
    driver.advance(20_000)
    assert not driver.fences
