"""Rules as records: decided, replayed, kept by snapshots, and taken back."""

from __future__ import annotations

from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    Record,
    RemoveRuleRecord,
    RuleNumberRecord,
    RuleRecord,
    changed_by,
    decode_entry,
    encode_entry,
)
from quiverlog.core.security import acls
from quiverlog.core.security.acls import Rule
from quiverlog.errors import InvalidRequest, PolicyViolation
from quiverlog.types import Operation, ResourceKind

READ = Rule("user:alice", True, Operation.READ, ResourceKind.TOPIC, "orders")
DENY = Rule("user:bob", False, Operation.ALL, ResourceKind.TOPIC, "or", True, "10.0.0.0/8")


def image_with(*rules: Rule) -> Image:
    image = Image({})
    take(image, *rules)
    return image


def take(image: Image, *rules: Rule, removals: tuple[int, ...] = ()) -> list[int]:
    change = image.rules.change(rules, removals)
    records: list[Record] = [RemoveRuleRecord(number) for number in change.removed]
    records += [RuleRecord(number, *rule) for number, rule in change.added.items()]
    if records:
        image.replay_entry(decode_entry(encode_entry(records)))
    return change.numbers


def restored(image: Image) -> Image:
    found = Image({})
    for record in decode_entry(encode_entry(image.snapshot_records())):
        found.replay(record)
    return found


def test_rules_get_numbers_that_are_never_used_again() -> None:
    image = image_with(READ)
    assert take(image, DENY) == [2]
    take(image, removals=(2,))
    again = restored(image)
    assert again.rules.next_id == 3, "a snapshot keeps it where the newest rule is gone"
    assert take(again, DENY) == [3]


def test_an_equal_rule_keeps_its_number_and_is_no_record() -> None:
    image = image_with(READ, DENY)
    assert image.rules.change([DENY, READ], []) == ({}, [], [2, 1])
    other = READ._replace(name="other")
    assert image.rules.change([other, other], []) == ({3: other}, [], [3, 3])


def test_a_rule_that_is_removed_and_added_in_one_request_gets_a_new_number() -> None:
    image = image_with(READ)
    assert take(image, READ, removals=(1,)) == [2]
    assert image.rules.rules == {2: READ}


def test_removing_a_rule_looks_at_no_other() -> None:
    class Unlisted(dict):  # type: ignore[type-arg]
        def keys(self) -> NoReturn:
            raise AssertionError("a request with many removals takes that time for each")

    image = image_with(DENY, DENY._replace(name="other"), READ)
    image.rules.networks = Unlisted(image.rules.networks)
    take(image, removals=(1, 3))
    assert list(image.rules.networks) == [2]
    assert take(image, READ, DENY._replace(name="other")) == [4, 2]


def test_removing_what_is_gone_changes_nothing_and_what_never_was_is_refused() -> None:
    image = image_with(READ)
    take(image, removals=(1,))
    assert image.rules.change([], [1, 1]) == ({}, [], [])
    for number in (0, -1, 2):
        with pytest.raises(InvalidRequest, match=f"no rule {number}"):
            image.rules.change([], [number])


def test_the_number_of_rules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "RULES_MAX", 2)
    image = image_with(READ, DENY)
    with pytest.raises(PolicyViolation, match="3 rules, allowed are 2"):
        take(image, READ._replace(name="other"))
    assert take(image, READ) == [1]
    assert take(image, READ._replace(name="other"), removals=(1,)) == [3]


def test_rules_change_no_topic() -> None:
    records: list[Record] = [RuleRecord(1, *READ), RemoveRuleRecord(1), RuleNumberRecord(5)]
    assert changed_by(records) == {}


CHANGES = st.lists(st.one_of(st.sampled_from("abcd"), st.integers(1, 6)), max_size=12)


@given(CHANGES, CHANGES)
def test_a_snapshot_and_a_falling_back_have_the_same_rules(
    first: list[str | int], second: list[str | int]
) -> None:
    image = image_with()
    _change(image, first)
    assert restored(image).rules.rules == image.rules.rules
    assert restored(image).rules.next_id == image.rules.next_id
    pending = restored(image)
    _change(pending, second)
    pending.revert(image, [])
    assert pending.rules.rules == image.rules.rules
    assert pending.rules.next_id == image.rules.next_id


def _change(image: Image, changes: list[str | int]) -> None:
    for change in changes:
        if isinstance(change, str):
            take(image, READ._replace(name=change))
        elif change < image.rules.next_id:
            take(image, removals=(change,))
