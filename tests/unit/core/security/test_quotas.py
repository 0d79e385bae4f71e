"""Quotas against a model of ten lines: what a bucket lets through, and whose limit counts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import QuotaRecord, decode_entry, encode_entry
from quiverlog.core.security.quotas import (
    UNCHANGED,
    Bucket,
    Caller,
    Found,
    Limit,
    Owner,
    Quota,
    change,
    find,
)
from quiverlog.errors import InvalidRequest, PolicyViolation
from quiverlog.limits import (
    CLIENT_ID_CHARS_MAX,
    QUOTA_BYTES_MAX,
    QUOTA_BYTES_MIN,
    QUOTA_CONNECTIONS_MAX,
    QUOTAS_MAX,
)
from quiverlog.types import QuotaKind as Kind

S = 1_000_000
RATE = 100_000


class Model:
    """Seconds in use, as a fraction: they run off, and bytes add to them."""

    def __init__(self) -> None:
        self.owed = Fraction(0)

    def pass_by(self, microseconds: int) -> None:
        self.owed = max(Fraction(0), self.owed - Fraction(microseconds, S))

    def charge(self, rate: int, byte_count: int) -> Fraction:
        self.owed += Fraction(byte_count, rate)
        return max(Fraction(0), min(Fraction(byte_count), (self.owed - 1) * rate))


STEPS = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 999, 250_000, S, 3 * S)) | st.integers(0, 2 * S),
        st.sampled_from((0, 1, RATE // 2, RATE, 3 * RATE)) | st.integers(0, 2 * RATE),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from((RATE, 99_991)))
def test_a_bucket_owes_what_the_model_owes(steps: list[tuple[int, int]], rate: int) -> None:
    bucket, model, now_us = Bucket(rate, 7), Model(), 7
    for microseconds, byte_count in steps:
        now_us += microseconds
        model.pass_by(microseconds)
        beyond = model.charge(rate, byte_count)
        assert bucket.charge(byte_count, now_us) == -(-beyond // 1)
        wait = max(Fraction(0), model.owed - 1) * S
        assert bucket.wait_us(now_us) == -(-wait // 1)
        assert bucket.is_unused(now_us) is (model.owed == 0)


@given(STEPS)
def test_whoever_waits_as_told_gets_the_rate_a_second_and_one_request(
    steps: list[tuple[int, int]],
) -> None:
    bucket, now_us, passed = Bucket(RATE, 0), 0, 0
    for microseconds, byte_count in steps:
        now_us += microseconds + bucket.wait_us(now_us)
        assert passed <= RATE * (now_us + S) // S
        bucket.charge(byte_count, now_us)
        passed += byte_count


def test_a_second_may_come_at_once_and_no_byte_more() -> None:
    below, at, above = (Bucket(RATE, 0) for _ in range(3))
    assert (below.charge(RATE - 1, 0), below.wait_us(0)) == (0, 0)
    assert (at.charge(RATE, 0), at.wait_us(0)) == (0, 0)
    assert (above.charge(RATE + 1, 0), above.wait_us(0)) == (1, 10)
    assert above.wait_us(9) == 1
    assert above.wait_us(10) == 0


def test_a_request_larger_than_a_second_passes_and_is_made_up_for() -> None:
    bucket = Bucket(RATE, 0)
    assert bucket.charge(8 * RATE, 0) == 7 * RATE
    assert bucket.wait_us(0) == 7 * S
    assert bucket.wait_us(4 * S) == 3 * S
    assert bucket.charge(10, 4 * S) == 10, "all of it is beyond"


def test_a_new_rate_counts_for_what_is_owed() -> None:
    bucket = Bucket(RATE, 0)
    bucket.charge(3 * RATE, 0)
    bucket.set_rate(2 * RATE, 0)
    assert bucket.wait_us(0) == S // 2
    bucket.set_rate(RATE, 0)
    assert bucket.wait_us(0) == 2 * S


def test_an_earlier_moment_takes_no_time_back() -> None:
    bucket = Bucket(RATE, 10 * S)
    bucket.charge(2 * RATE, 10 * S)
    assert bucket.wait_us(9 * S) == S
    assert bucket.wait_us(11 * S) == 0


# --- whose limit counts --------------------------------------------------------------------------
OWNERS = [
    *(Owner(Kind.USER, name) for name in ("alice", "bob")),
    *(Owner(Kind.CLIENT_ID, name) for name in ("app", "job", "alice")),
    Owner(Kind.DEFAULT),
]
QUOTAS = st.dictionaries(
    st.sampled_from(OWNERS), st.builds(Quota, *[st.sampled_from((0, 5, 7))] * 3)
)
CALLERS = st.builds(
    Caller,
    st.sampled_from(("", "alice", "bob", "carol")),
    st.sampled_from(("", "app", "job", "alice")),
    st.sampled_from(("", "10.0.0.1")),
)


def model(quotas: dict[Owner, Quota], limit: Limit, caller: Caller) -> Found | None:
    values = {(owner.kind, owner.name): quota[limit] for owner, quota in quotas.items()}
    if caller.user and values.get((1, caller.user)):
        return Found(Owner(1, caller.user), values[1, caller.user])
    if values.get((2, caller.client_id)):
        return Found(Owner(2, caller.client_id), values[2, caller.client_id])
    if values.get((3, "")):
        payer = Owner(1, caller.user) if caller.user else Owner(0, caller.network)
        return Found(payer, values[3, ""])
    return None


@given(QUOTAS, st.sampled_from(Limit), CALLERS)
def test_the_user_counts_then_the_client_id_then_the_default(
    quotas: dict[Owner, Quota], limit: Limit, caller: Caller
) -> None:
    assert find(quotas, limit, caller) == model(quotas, limit, caller)


def test_a_client_that_has_not_logged_in_is_no_user_of_an_empty_name() -> None:
    quotas = {Owner(Kind.USER, ""): Quota(5), Owner(Kind.DEFAULT): Quota(7)}
    found = find(quotas, Limit.BYTES_IN, Caller("", "app", "10.0.0.1"))
    assert found == Found(Owner(0, "10.0.0.1"), 7)


# --- in the metadata -----------------------------------------------------------------------------
def test_an_image_has_its_quotas_in_a_snapshot_and_gets_them_back_after_a_failure() -> None:
    image, other = Image({}), Image({})
    image.replay_entry([QuotaRecord(1, "alice", 7), QuotaRecord(2, "app", 0, 8)], version=5)
    image.replay_entry([QuotaRecord(3, "", 0, 0, 9), QuotaRecord(2, "app")], version=6)
    expected = {Owner(1, "alice"): Quota(7), Owner(3): Quota(0, 0, 9)}
    assert image.quotas == expected
    other.replay_entry(decode_entry(encode_entry(image.snapshot_records())), version=6)
    assert other.quotas == expected
    seen = image.quotas
    other.replay_entry([QuotaRecord(1, "alice")], version=7)
    other.revert(image, [])
    assert other.quotas == expected
    image.replay_entry([QuotaRecord(3)], version=7)
    assert seen == expected, "what a reader holds does not change"


# --- changing ------------------------------------------------------------------------------------
ALICE = Owner(Kind.USER, "alice")
MIB = 1 << 20


def test_a_change_leaves_what_it_does_not_name() -> None:
    before = {ALICE: Quota(MIB, 2 * MIB, 3)}
    assert change(before, [(ALICE, Quota(UNCHANGED, 0, 4))]) == {ALICE: Quota(MIB, 0, 4)}
    assert change(before, [(ALICE, Quota(MIB, UNCHANGED, UNCHANGED))]) == {}
    assert change({}, [(ALICE, Quota(UNCHANGED, UNCHANGED, UNCHANGED))]) == {}
    assert change(before, [(ALICE, Quota())]) == {ALICE: Quota()}
    twice = [(ALICE, Quota(MIB, 0, 0)), (ALICE, Quota(UNCHANGED, MIB, 0))]
    assert change({}, twice) == {ALICE: Quota(MIB, MIB, 0)}


@pytest.mark.parametrize(
    ("owner", "is_good"),
    [
        (ALICE, True),
        (Owner(Kind.USER, ""), False),
        (Owner(Kind.USER, "a b"), False),
        (Owner(Kind.CLIENT_ID, "a b"), True),
        (Owner(Kind.CLIENT_ID, ""), False),
        (Owner(Kind.CLIENT_ID, "a\n"), False),
        (Owner(Kind.CLIENT_ID, "x" * CLIENT_ID_CHARS_MAX), True),
        (Owner(Kind.CLIENT_ID, "x" * (CLIENT_ID_CHARS_MAX + 1)), False),
        (Owner(Kind.DEFAULT), True),
        (Owner(Kind.DEFAULT, "x"), False),
        (Owner(0), False),
        (Owner(4), False),
    ],
)
def test_whose_a_quota_may_be(owner: Owner, is_good: bool) -> None:
    if is_good:
        assert change({}, [(owner, Quota(MIB))]) == {owner: Quota(MIB)}
        return
    with pytest.raises(InvalidRequest):
        change({}, [(owner, Quota(MIB))])


@pytest.mark.parametrize(
    ("place", "least", "most"),
    [
        (Limit.BYTES_IN, QUOTA_BYTES_MIN, QUOTA_BYTES_MAX),
        (Limit.BYTES_OUT, QUOTA_BYTES_MIN, QUOTA_BYTES_MAX),
        (Limit.CONNECTIONS, 1, QUOTA_CONNECTIONS_MAX),
    ],
)
def test_limits_have_limits(place: Limit, least: int, most: int) -> None:
    def asked(value: int) -> list[tuple[Owner, Quota]]:
        return [(ALICE, Quota(*(value if one is place else 0 for one in Limit)))]

    for value in (least, most):
        assert change({}, asked(value))[ALICE][place] == value
    for value in (least - 1, most + 1, -2):
        if value:
            with pytest.raises(InvalidRequest, match=r"outside"):
                change({}, asked(value))


def test_there_are_so_many_quotas_and_no_more() -> None:
    owners = [Owner(Kind.CLIENT_ID, f"app-{n}") for n in range(QUOTAS_MAX + 1)]
    full = {owner: Quota(MIB) for owner in owners[:QUOTAS_MAX]}
    assert len(change({}, list(full.items()))) == QUOTAS_MAX
    with pytest.raises(PolicyViolation, match=str(QUOTAS_MAX)):
        change(full, [(owners[-1], Quota(MIB))])
    # One for another, and a change of one that is there.
    swapped = change(full, [(owners[0], Quota()), (owners[-1], Quota(MIB))])
    assert swapped == {owners[0]: Quota(), owners[-1]: Quota(MIB)}
    assert change(full, [(owners[0], Quota(2 * MIB))]) == {owners[0]: Quota(2 * MIB)}
