"""One group: what its members have and when, and what bad heartbeats get."""

from __future__ import annotations

from typing import Any

import pytest

from quiverlog.core.groups.group import GroupState, Heartbeat
from quiverlog.core.groups.reconcile import MemberState
from quiverlog.core.groups.records import Kind, Record
from quiverlog.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    InvalidGroup,
    InvalidRequest,
    QuiverlogError,
    ThrottledBroker,
    UnknownMember,
    UnsupportedAssignor,
)
from quiverlog.limits import (
    GROUP_INSTANCE_CHARS_MAX,
    GROUP_MEMBERS_MAX,
    GROUP_PARTITIONS_MAX,
    GROUP_SESSION_TIMEOUT_MS_MAX,
    GROUP_SESSION_TIMEOUT_MS_MIN,
    GROUP_TOPICS_MAX,
)
from tests.support.group_core import A, B, GroupDriver, id_of, offered

ALL = {*((A, number) for number in range(4)), (B, 0), (B, 1)}


def test_a_member_joins_and_has_all() -> None:
    driver = GroupDriver()
    answer = driver.beat(1)
    assert (answer.epoch, answer.assignment, answer.interval_ms) == (0, (), 250)
    assert driver.group.state() is GroupState.ASSIGNING
    assert driver.group.member_state(id_of(1)) is MemberState.JOINING
    driver.advance(199)
    assert driver.beat(1).epoch == 0
    driver.advance(1)
    assert driver.group.state() is GroupState.RECONCILING
    answer = driver.beat(1)
    assert (answer.epoch, offered(answer), answer.may_wait) == (1, ALL, False)
    assert driver.group.state() is GroupState.STABLE
    answer = driver.beat(1, 1, owned=frozenset(ALL))
    assert (answer.epoch, answer.assignment, answer.may_wait) == (1, None, True)
    assert answer.interval_ms == 5_000
    driver.beat(1, 1, session_timeout_ms=6_000)
    assert driver.beat(1, 1).interval_ms == 2_000


def test_changes_within_200_ms_share_a_target() -> None:
    driver = GroupDriver()
    for number in range(1, 6):
        driver.beat(number)
        driver.advance(40)
    assert driver.group.epoch == 5
    assert [one.value.epoch for one in driver.log if one.kind is Kind.TARGET and not one.key] == [5]
    driver.settle()
    assert sorted(len(driver.assigned(number)) for number in range(1, 6)) == [1, 1, 1, 1, 2]


def test_a_partition_is_given_when_its_last_member_has_given_it_up() -> None:
    driver = GroupDriver()
    driver.join(1)
    driver.beat(2)
    driver.advance(300)
    answer = driver.beat(2)
    assert (answer.epoch, offered(answer)) == (2, frozenset()), "it waits for no other"
    assert driver.group.member_state(id_of(2)) is MemberState.UNRELEASED
    kept = offered(driver.beat(1, 1))
    assert kept is not None
    assert len(kept) == 3
    assert driver.group.member_state(id_of(1)) is MemberState.UNREVOKED
    assert driver.epoch(1) == 1
    # Not reported, or reported as still there: the member goes on having it.
    driver.beat(1, 1)
    driver.beat(1, 1, owned=frozenset(ALL))
    driver.beat(2, 2, owned=frozenset())
    assert not driver.assigned(2)
    driver.core.take_woken()
    assert driver.beat(1, 1, owned=kept).epoch == 2
    assert driver.core.take_woken() == [("g", id_of(2))]
    woken = driver.core.wake("g", id_of(2), driver.now)
    assert woken is not None
    assert offered(woken) == ALL - kept
    driver.put(woken.records)
    assert driver.group.state() is GroupState.STABLE


def test_what_was_never_offered_again_is_free_at_once() -> None:
    """The answer was lost: the member reports that it has nothing."""
    driver = GroupDriver()
    driver.beat(1)
    driver.advance(300)
    driver.beat(1)
    driver.beat(2)
    driver.advance(300)
    driver.beat(2)
    answer = driver.beat(1, 1, owned=frozenset())
    assert answer.epoch == 2
    assert driver.group.member_state(id_of(1)) is MemberState.STABLE


def test_as_before_is_what_this_coordinator_was_told() -> None:
    """A member that has reported nothing is offered all, which it does not read: none of it is to
    be given up."""
    driver = GroupDriver()
    driver.beat(1, owned=frozenset())
    driver.advance(300)
    driver.beat(1, owned=frozenset())
    assert len(driver.assigned(1)) == 6
    driver.beat(1, 1, owned=frozenset())
    driver.beat(2)
    driver.advance(300)
    driver.beat(1, 1)
    assert driver.group.member_state(id_of(1)) is MemberState.STABLE
    assert len(driver.assigned(1)) == 3
    # Another coordinator has no report of it.
    driver.fail_over()
    driver.beat(1, driver.epoch(1), topics=("b",))
    driver.advance(300)
    driver.beat(1, driver.epoch(1))
    assert driver.group.member_state(id_of(1)) is MemberState.UNREVOKED


def test_a_repetition_with_the_epoch_before_is_answered_and_changes_nothing() -> None:
    driver = GroupDriver()
    driver.join(1)
    driver.beat(2)
    driver.advance(300)
    driver.beat(2)
    owned = driver.assigned(1)
    driver.settle()
    assert driver.epoch(1) == 2
    kept = driver.assigned(1)
    before = len(driver.log)
    answer = driver.beat(1, 1, owned=kept)
    assert (answer.epoch, offered(answer)) == (2, kept)
    assert len(driver.log) == before + 1, "only that the heartbeat is noted"
    with pytest.raises(FencedMemberEpoch, match="member epoch 1 is not the current one, 2"):
        driver.beat(1, 1, owned=owned)


@pytest.mark.parametrize("epoch", [3, 9, 2**40, 0 + 1])
def test_every_other_epoch_is_fenced(epoch: int) -> None:
    """Also an older one than the one before, which a copy of the member may have."""
    driver = GroupDriver()
    driver.join(1)
    for number in range(2, 5):
        driver.join(number)
    assert driver.epoch(1) == 4
    epoch = 2 if epoch == 3 else epoch
    with pytest.raises(FencedMemberEpoch):
        driver.beat(1, epoch, owned=frozenset())


def test_a_member_that_is_in_and_joins_has_its_epoch_and_all_again() -> None:
    driver = GroupDriver()
    driver.join(1, 2)
    had = driver.assigned(1)
    epoch = driver.group.epoch
    answer = driver.beat(1, 0, owned=frozenset())
    assert (answer.epoch, offered(answer)) == (driver.epoch(1), had)
    assert driver.assigned(1) == had
    assert driver.group.epoch == epoch


def test_an_older_heartbeat_changes_nothing() -> None:
    driver = GroupDriver()
    driver.join(1)
    driver.beat(1, 1, beat=100)
    with pytest.raises(ThrottledBroker, match="heartbeat 99 comes after 100"):
        driver.beat(1, 1, beat=99, owned=frozenset())
    answer = driver.beat(1, 1, beat=100, owned=frozenset(), topics=())
    assert (answer.records, answer.epoch) == ([], 1), "the same one again, too"
    assert driver.group.members[id_of(1)].topics == ("a", "b")


def test_partitions_that_it_was_never_given_are_ignored() -> None:
    driver = GroupDriver()
    driver.join(1)
    answer = driver.beat(1, 1, owned=frozenset({*ALL, (A, 77)}))
    assert answer.note == "1 partitions that it was not given"
    assert driver.assigned(1) == ALL


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, InvalidGroup),
        ({"group": "x" * 256}, InvalidGroup),
        ({"group": "__x"}, InvalidGroup),
        ({"group": "a/b"}, InvalidGroup),
        ({"member_id": b"x" * 15}, InvalidRequest),
        ({"member_id": b"x" * 17}, InvalidRequest),
        ({"topics": None}, InvalidRequest),
        ({"topics": ("t",) * (GROUP_TOPICS_MAX + 1)}, InvalidRequest),
        ({"owned": frozenset((A, one) for one in range(GROUP_PARTITIONS_MAX + 1))}, InvalidRequest),
        ({"session_timeout_ms": GROUP_SESSION_TIMEOUT_MS_MIN - 1}, InvalidRequest),
        ({"session_timeout_ms": GROUP_SESSION_TIMEOUT_MS_MAX + 1}, InvalidRequest),
        ({"session_timeout_ms": 0}, InvalidRequest),
        ({"rebalance_timeout_ms": 999}, InvalidRequest),
        ({"rebalance_timeout_ms": 3_600_001}, InvalidRequest),
        ({"instance_id": "i" * (GROUP_INSTANCE_CHARS_MAX + 1)}, InvalidRequest),
        ({"beat": -1}, InvalidRequest),
        ({"epoch": -3}, InvalidRequest),
        ({"epoch": 1}, UnknownMember),
        ({"assignor": "sticky"}, UnsupportedAssignor),
    ],
)
def test_bad_heartbeats(fields: dict[str, Any], error: type[QuiverlogError]) -> None:
    driver = GroupDriver()
    with pytest.raises(error):
        driver.beat(1, **fields)
    assert not driver.log
    assert not driver.core.groups


@pytest.mark.parametrize(
    "fields",
    [
        {"group": "x" * 255},
        {"topics": ("t",) * GROUP_TOPICS_MAX},
        {"topics": ()},
        {"owned": frozenset((A, one) for one in range(GROUP_PARTITIONS_MAX))},
        {"session_timeout_ms": GROUP_SESSION_TIMEOUT_MS_MIN},
        {"session_timeout_ms": GROUP_SESSION_TIMEOUT_MS_MAX},
        {"rebalance_timeout_ms": 1_000},
        {"rebalance_timeout_ms": 3_600_000},
        {"instance_id": "i" * GROUP_INSTANCE_CHARS_MAX},
        {"assignor": "range"},
    ],
)
def test_heartbeats_at_the_bounds(fields: dict[str, Any]) -> None:
    assert GroupDriver().beat(1, **fields).epoch == 0


def test_members_of_a_group_take_one_assignor() -> None:
    driver = GroupDriver()
    driver.join(1, assignor="range")
    assert driver.assigned(1) == ALL
    with pytest.raises(UnsupportedAssignor, match="take 'range', not 'uniform'"):
        driver.beat(2, assignor="uniform")
    driver.join(2)
    assert driver.assigned(1) == {(A, 0), (A, 1), (B, 0)}
    for number in (1, 2):
        driver.beat(number, -1)
    driver.join(3, assignor="uniform")
    assert driver.assigned(3) == ALL


def test_the_group_is_full() -> None:
    driver = GroupDriver()
    for number in range(1, GROUP_MEMBERS_MAX + 1):
        driver.beat(number, topics=())
    with pytest.raises(GroupFull, match="1,000 members"):
        driver.beat(GROUP_MEMBERS_MAX + 1, topics=())
    driver.beat(1, -1)
    driver.beat(GROUP_MEMBERS_MAX + 1, topics=())


def test_a_member_that_leaves_is_gone_and_its_late_heartbeats_do_not_join_again() -> None:
    driver = GroupDriver()
    driver.join(1, 2)
    assert driver.beat(1, -1, beat=50).epoch == -1
    assert driver.beat(1, -1, beat=50).records == [], "again"
    with pytest.raises(ThrottledBroker, match="left"):
        driver.beat(1, beat=49)
    with pytest.raises(UnknownMember):
        driver.beat(1, 2, beat=51)
    driver.settle()
    assert driver.assigned(2) == ALL
    driver.join(1, beat=52)
    assert len(driver.assigned(1)) == 3


def test_a_silent_member_is_fenced_after_its_session() -> None:
    driver = GroupDriver()
    driver.join(1, session_timeout_ms=10_000)
    driver.join(2)
    driver.beat(1, driver.epoch(1))
    driver.advance(9_999)
    assert not driver.fences
    driver.advance(1)
    assert [(one.member_id, one.reason) for one in driver.fences] == [(id_of(1), "silent")]
    with pytest.raises(UnknownMember, match="was silent for too long"):
        driver.beat(1, driver.epoch(2))
    driver.settle()
    assert driver.assigned(2) == ALL
    driver.advance(45_000)
    assert driver.group.state() is GroupState.EMPTY


def test_a_member_that_does_not_give_up_is_fenced() -> None:
    driver = GroupDriver()
    driver.join(1, rebalance_timeout_ms=20_000)
    driver.beat(2)
    driver.advance(300)
    driver.beat(1, 1, owned=frozenset(ALL))
    for _ in range(19):
        driver.advance(1_000)
        driver.beat(1, 1, owned=frozenset(ALL))
        driver.beat(2)
    driver.advance(999)
    assert not driver.fences
    driver.advance(1)
    assert [(one.member_id, one.reason) for one in driver.fences] == [(id_of(1), "unrevoked")]


def test_a_static_member_that_comes_back_has_what_it_had() -> None:
    driver = GroupDriver()
    driver.join(1, instance_id="one")
    driver.join(2)
    had, epoch = driver.assigned(1), driver.group.epoch
    with pytest.raises(FencedInstance, match="'one' is in 'g' as member"):
        driver.beat(3, instance_id="one")
    assert driver.beat(1, -2).epoch == -2
    with pytest.raises(FencedMemberEpoch):
        driver.beat(1, epoch)
    driver.advance(44_000)
    driver.beat(2, epoch)
    answer = driver.beat(3, instance_id="one")
    assert (answer.epoch, offered(answer)) == (epoch, had)
    assert driver.group.epoch == epoch, "nothing moves"
    assert id_of(1) not in driver.group.members
    driver.settle()
    assert driver.assigned(3) == had
    assert driver.beat(3, 0, instance_id="one").epoch == epoch, "its answer was lost"


def test_a_static_member_that_stays_away_is_fenced_after_a_session() -> None:
    driver = GroupDriver()
    driver.join(1, instance_id="one")
    driver.join(2)
    driver.beat(1, -2)
    driver.advance(44_999)
    assert id_of(1) in driver.group.members
    driver.beat(2, driver.epoch(2))
    driver.advance(1)
    assert [one.member_id for one in driver.fences] == [id_of(1)]
    driver.join(3, instance_id="one")
    assert len(driver.assigned(3)) == 3


def test_only_static_members_leave_for_a_while() -> None:
    driver = GroupDriver()
    driver.join(1)
    with pytest.raises(InvalidRequest, match="instance id"):
        driver.beat(1, -2)


def test_partitions_that_come_and_go() -> None:
    driver = GroupDriver()
    driver.join(1)
    driver.topics["a"] = (A, 5)
    driver.put(driver.core.topics_changed(["c"], driver, driver.now))
    assert driver.group.epoch == 1
    driver.put(driver.core.topics_changed(["a"], driver, driver.now))
    driver.put(driver.core.topics_changed(None, driver, driver.now))
    assert driver.group.epoch == 2, "once"
    driver.settle()
    assert driver.assigned(1) == {*ALL, (A, 4)}
    del driver.topics["b"]
    driver.put(driver.core.topics_changed(["b"], driver, driver.now))
    driver.settle()
    assert driver.assigned(1) == {(A, number) for number in range(5)}


def test_a_change_of_the_subscription() -> None:
    driver = GroupDriver()
    driver.join(1, 2)
    driver.beat(1, driver.epoch(1), topics=("b",))
    driver.settle()
    assert driver.assigned(1) == {(B, 0), (B, 1)}
    assert driver.assigned(2) == {(A, number) for number in range(4)}
    epoch = driver.group.epoch
    driver.beat(1, driver.epoch(1), topics=("b",), rack="r2")
    assert driver.group.epoch == epoch
    assert driver.group.members[id_of(1)].rack == "r2"


@pytest.mark.parametrize("count", range(7))
def test_rows_that_are_stored_in_part_heal(count: int) -> None:
    """A static member comes back, some of the rows of that are stored, and it is not seen again."""
    driver = GroupDriver()
    driver.join(1, instance_id="one")
    driver.join(2)
    driver.beat(1, -2)
    back = Heartbeat("g", id_of(3), 0, 1, ("a", "b"), instance_id="one")
    records = driver.core.heartbeat(back, driver, driver.now).records
    assert len(records) == 6
    driver.put(records[:count])
    driver.fail_over()
    driver.advance(1_000)
    assert driver.group.targets.keys() == driver.group.members.keys()
    for _ in range(60):
        owned = driver.assigned(2)
        driver.beat(2, driver.epoch(2), owned=owned)
        driver.advance(1_000)
    driver.settle()
    assert driver.assigned(2) == ALL


@pytest.mark.parametrize("count", range(4))
def test_a_join_that_is_stored_in_part_heals(count: int) -> None:
    driver = GroupDriver()
    driver.join(1)
    join = Heartbeat("g", id_of(2), 0, 1, ("a", "b"))
    records = driver.core.heartbeat(join, driver, driver.now).records
    assert len(records) == 3
    driver.put(records[:count])
    driver.fail_over()
    driver.settle()
    driver.join(2)
    assert len(driver.assigned(1)) == len(driver.assigned(2)) == 3


@pytest.mark.parametrize("count", range(5))
def test_a_departure_that_is_stored_in_part_heals(count: int) -> None:
    driver = GroupDriver()
    driver.join(1, 2)
    records = driver.group.remove([id_of(1)], driver, driver.now)
    assert len(records) == 4
    driver.put(records[:count])
    driver.fail_over()
    for _ in range(60):
        driver.beat(2, driver.epoch(2), owned=driver.assigned(2))
        driver.advance(1_000)
    driver.settle()
    assert driver.assigned(2) == ALL


def test_a_target_that_is_stored_in_part_is_none() -> None:
    driver = GroupDriver()
    driver.beat(1)
    driver.beat(2)
    driver.ms += 300
    records: list[Record] = []
    while not records:
        records = driver.core.tick(driver, driver.now).records
    driver.put(records[:1])
    driver.fail_over()
    assert driver.group.targets
    answer = driver.beat(1)
    assert (answer.epoch, answer.assignment) == (0, ())
    driver.settle()
    assert len(driver.assigned(1)) == len(driver.assigned(2)) == 3
