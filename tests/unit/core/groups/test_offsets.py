"""Committed offsets: whose commits are taken, transactions, expiry, and what bad ones get."""

from __future__ import annotations

from typing import Any

import pytest

from quiverlog.core.groups import offsets
from quiverlog.core.groups.offsets import Preparing
from quiverlog.core.groups.records import Entry
from quiverlog.errors import (
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    InvalidGroup,
    InvalidRequest,
    UnknownMember,
    UnknownTopicId,
    UnstableOffsets,
)
from tests.support.group_core import A, B, GroupDriver, entry, id_of

DAY_MS = 24 * 3_600_000


def shared() -> GroupDriver:
    """Members 1 and 2; 1 has partition 0 of `a`."""
    driver = GroupDriver()
    driver.join(1, topics=("a",))
    driver.join(2, topics=("a",))
    assert driver.assigned(1) == {(A, 0), (A, 1)}
    return driver


# --- commits -----------------------------------------------------------------------------------
def test_a_commit_is_taken_from_its_member_also_where_its_epoch_was_just_raised() -> None:
    driver = shared()
    assert driver.epoch(1) == 2
    given = driver.group.standings[id_of(1)].assigned[A, 0]
    assert given == 1
    for epoch in (1, 2):
        assert driver.codes(driver.commit(1, epoch, entry(A, 0, 5 + epoch))) == [""]
    assert driver.committed((A, 0)) == 7
    for epoch in (0, 3, -1):
        assert driver.codes(driver.commit(1, epoch, entry(A, 0, 9))) == ["FENCED_MEMBER_EPOCH"]
    # Given in epoch 2: a commit of epoch 1 is from a time before.
    assert driver.codes(driver.commit(2, 1, entry(A, 2, 9))) == ["FENCED_MEMBER_EPOCH"]
    assert driver.codes(driver.commit(2, 2, entry(A, 2, 9))) == [""]


def test_what_is_being_revoked_may_be_committed_and_what_was_may_not() -> None:
    driver = GroupDriver()
    driver.join(1, topics=("a",))
    driver.beat(2, topics=("a",))
    driver.advance(300)
    driver.beat(1, 1)
    (one, *_) = driver.group.standings[id_of(1)].revoking
    assert driver.codes(driver.commit(1, 1, entry(*one, 4))) == [""]
    driver.settle()
    assert driver.codes(driver.commit(1, 1, entry(*one, 3))) == ["FENCED_MEMBER_EPOCH"]
    assert driver.codes(driver.commit(1, 2, entry(*one, 3))) == ["FENCED_MEMBER_EPOCH"]
    assert driver.committed(one) == 4


def test_each_entry_has_its_error() -> None:
    driver = shared()
    done = driver.commit(
        1,
        2,
        entry(A, 0, 2**62),
        entry(A, 0, -1),
        entry(b"x" * 16, 0, 1),
        entry(A, 2, 1),
        entry(A, 4, 1),
    )
    assert driver.codes(done) == [
        "", "INVALID_REQUEST", "UNKNOWN_TOPIC_ID", "FENCED_MEMBER_EPOCH", "UNKNOWN_PARTITION",
    ]  # fmt: skip
    assert driver.committed((A, 0)) == 2**62


def test_commits_without_a_member() -> None:
    driver = GroupDriver()
    assert driver.codes(driver.commit(0, -1, entry(A, 0, 5))) == [""]
    assert driver.committed((A, 0)) == 5
    driver.join(1)
    assert driver.committed((A, 0)) == 5
    with pytest.raises(GroupNotEmpty, match="1 members"):
        driver.commit(0, -1, entry(A, 0, 6))
    with pytest.raises(UnknownMember):
        driver.commit(7, 1, entry(A, 0, 6))
    with pytest.raises(InvalidGroup):
        driver.commit(0, -1, entry(A, 0, 6), group="__g")


def test_the_leader_epoch_and_the_metadata_are_kept() -> None:
    driver = GroupDriver()
    driver.commit(0, -1, Entry(A, 0, 5, 77, "here"))
    driver.fail_over()
    (found,) = driver.core.fetch("g", None, driver)
    assert found.committed is not None
    assert (found.committed.leader_epoch, found.committed.metadata) == (77, "here")


def test_the_room_for_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "GROUP_OFFSETS_MAX", 3)
    driver = GroupDriver()
    done = driver.commit(0, -1, *(entry(A, number, 1) for number in range(4)))
    assert driver.codes(done) == ["", "", "", "GROUP_FULL"]
    assert driver.codes(driver.commit(0, -1, entry(A, 0, 2))) == [""]
    with pytest.raises(GroupFull):
        prepare(driver, entries=[entry(A, 3, 1)])


def test_a_deleted_topic_and_one_that_is_made_again() -> None:
    driver = GroupDriver()
    driver.commit(0, -1, entry(A, 0, 5), entry(B, 0, 6))
    driver.topics["a"] = (b"c" * 16, 4)
    assert driver.committed((A, 0)) == -1
    assert driver.committed((b"c" * 16, 0)) == -1
    assert [one.partition for one in driver.core.fetch("g", None, driver)] == [(B, 0)]
    sweep(driver)
    assert driver.group.offsets.committed.keys() == {(B, 0)}


# --- by command --------------------------------------------------------------------------------
def test_offsets_are_set_and_deleted_where_no_member_has_the_partition() -> None:
    driver = shared()
    driver.commit(1, 2, entry(A, 0, 5))
    for deletes in (False, True):
        done = driver.core.alter("g", [entry(A, 0, 1)], driver, driver.now, deletes=deletes)
        assert driver.codes(done) == ["GROUP_NOT_EMPTY"]
        assert id_of(1).hex() in str(done.errors[0])
    done = driver.core.alter("g", [entry(B, 0, 8), entry(B, 1, -1)], driver, driver.now)
    assert driver.codes(done) == ["", "INVALID_REQUEST"]
    driver.put(done.records)
    assert driver.committed((B, 0)) == 8
    for number in (1, 2):
        driver.beat(number, -1)
    done = driver.core.alter("g", [entry(A, 0, 1)], driver, driver.now, deletes=True)
    driver.put(done.records)
    assert driver.committed((A, 0)) == -1


# --- transactions ------------------------------------------------------------------------------
def prepare(driver: GroupDriver, **changed: Any) -> Preparing:
    fields: dict[str, Any] = {
        "tid": "app", "epoch": 1, "sequence": 0, "digest": b"d", "attempt": 1, "member_id": b"",
        "member_epoch": -1, "entries": [entry(A, 0, 5)],
    }  # fmt: skip
    done = driver.core.prepare("g", *(fields | changed).values(), driver, driver.now)
    driver.put(done.records)
    return done


def settle(driver: GroupDriver, digest: bytes, attempt: int | None = None, **changed: int) -> int:
    key = {"epoch": 1, "sequence": 0} | changed
    records = driver.core.settle(
        "g", "app", key["epoch"], key["sequence"], digest, driver.now, attempt=attempt
    )
    driver.put(records)
    return len(records)


def test_a_pending_offset_is_settled_once() -> None:
    driver = GroupDriver()
    prepare(driver)
    assert driver.committed((A, 0)) == -2
    assert prepare(driver) == Preparing([]), "again"
    assert driver.codes(driver.commit(0, -1, entry(A, 0, 9))) == ["UNSTABLE_OFFSETS"]
    done = driver.core.alter("g", [entry(A, 0, 9)], driver, driver.now)
    assert driver.codes(done) == ["UNSTABLE_OFFSETS"]
    with pytest.raises(UnstableOffsets):
        prepare(driver, tid="other")
    with pytest.raises(UnstableOffsets):
        driver.core.delete("g")
    driver.fail_over()
    assert driver.committed((A, 0)) == -2
    assert settle(driver, b"d") == 2
    assert driver.committed((A, 0)) == 5
    driver.commit(0, -1, entry(A, 0, 7))
    assert settle(driver, b"d") == 0
    assert prepare(driver) == Preparing([], is_settled=True)
    assert driver.committed((A, 0)) == 7


def test_only_the_decided_digest_settles_as_committed() -> None:
    driver = GroupDriver()
    prepare(driver)
    assert settle(driver, b"other", sequence=1) == 0
    assert settle(driver, b"d", epoch=2) == 0
    assert settle(driver, b"other") == 1
    assert driver.committed((A, 0)) == -1


def test_the_failure_of_one_try_does_not_settle_the_next() -> None:
    driver = GroupDriver()
    prepare(driver, attempt=1)
    prepare(driver, attempt=2)
    assert settle(driver, b"", attempt=1) == 0
    assert driver.committed((A, 0)) == -2
    with pytest.raises(FencedMemberEpoch):
        prepare(driver, attempt=1)
    # Another content in its place.
    prepare(driver, attempt=3, digest=b"e", entries=[entry(A, 1, 6)])
    assert driver.committed((A, 0)) == -1
    assert settle(driver, b"e") == 2
    assert driver.committed((A, 1)) == 6


def test_a_late_prepare_begins_nothing_again() -> None:
    driver = GroupDriver()
    prepare(driver, attempt=5)
    settle(driver, b"", attempt=5)
    for late in ({"attempt": 5}, {"attempt": 4}, {"attempt": 9, "epoch": 0}):
        with pytest.raises(FencedMemberEpoch):
            prepare(driver, **late)
    prepare(driver, attempt=6)
    settle(driver, b"d")
    for late in ({"attempt": 7, "digest": b"e"}, {"attempt": 9, "epoch": 2}):
        with pytest.raises(FencedMemberEpoch):
            prepare(driver, **late)
    assert prepare(driver, attempt=7, sequence=1).records
    with pytest.raises(UnstableOffsets, match="transaction 1 of 'app' is not settled"):
        prepare(driver, attempt=8, sequence=2)


def test_all_or_nothing_pends() -> None:
    driver = shared()
    who = {"member_id": id_of(1), "member_epoch": 2}
    bad = [
        ([entry(A, 0, 1), entry(A, 3, 1)], FencedMemberEpoch),
        ([entry(A, 0, 1), entry(b"x" * 16, 0, 1)], UnknownTopicId),
        ([entry(A, 0, 1), entry(A, 1, -1)], InvalidRequest),
        ([], InvalidRequest),
    ]
    for entries, error in bad:
        with pytest.raises(error):
            prepare(driver, **who, entries=entries)
    assert not driver.group.offsets.pending
    prepare(driver, **who)
    # Its member is gone meanwhile: that changes nothing.
    driver.beat(1, -1)
    assert settle(driver, b"d") == 2
    assert driver.committed((A, 0)) == 5


def test_what_pends_for_long_is_asked_about() -> None:
    driver = GroupDriver()
    prepare(driver)
    assert driver.core.unsettled(driver.now) == []
    driver.ms += 4_999
    assert driver.core.unsettled(driver.now) == []
    driver.ms += 1
    (one,) = driver.core.unsettled(driver.now)
    assert (one.group, one.transactional_id, one.pending.digest) == ("g", "app", b"d")
    driver.fail_over()
    assert driver.core.unsettled(driver.now) == []
    driver.ms += 5_000
    assert len(driver.core.unsettled(driver.now)) == 1
    settle(driver, b"")
    assert driver.core.unsettled(driver.now) == []


# --- what goes ---------------------------------------------------------------------------------
def sweep(driver: GroupDriver) -> None:
    for _ in range(2):
        driver.put(driver.core.sweep(driver, driver.now, 7 * DAY_MS))


def test_offsets_expire_after_their_group_became_empty() -> None:
    driver = GroupDriver()
    driver.join(1)
    driver.commit(1, 1, entry(A, 0, 5))
    driver.ms += 30 * DAY_MS
    sweep(driver)
    assert driver.committed((A, 0)) == 5
    driver.beat(1, -1)
    driver.ms += 7 * DAY_MS - 1
    sweep(driver)
    assert driver.committed((A, 0)) == 5
    driver.ms += 1
    sweep(driver)
    sweep(driver)
    assert not driver.core.groups


def test_a_commit_keeps_its_offset_and_what_pends_stays() -> None:
    driver = GroupDriver()
    driver.commit(0, -1, entry(A, 0, 5), entry(A, 1, 5))
    driver.ms += 6 * DAY_MS
    driver.commit(0, -1, entry(A, 0, 6))
    prepare(driver, entries=[entry(A, 1, 6)])
    driver.ms += 6 * DAY_MS
    sweep(driver)
    assert driver.committed((A, 0)) == 6
    assert (A, 1) in driver.group.offsets.committed
    settle(driver, b"d")
    sweep(driver)
    assert "app" in driver.group.offsets.pending, "late requests of it are known"
    driver.ms += 3_600_000
    sweep(driver)
    assert not driver.group.offsets.pending
