"""The text forms of principals, and which names a user may have."""

from __future__ import annotations

import pytest

from quiverlog.core.security.principals import (
    ANONYMOUS,
    NAME,
    Principal,
    of_broker,
    of_user,
    parse_principal,
)
from quiverlog.limits import USER_NAME_CHARS_MAX


@pytest.mark.parametrize(
    "principal",
    [ANONYMOUS, of_user("alice"), of_user("a.b-c_d@example.org"), of_user("A" * 128), of_broker(0)],
    ids=str,
)
def test_a_principal_is_read_back_from_its_text(principal: Principal) -> None:
    assert parse_principal(str(principal)) == principal


@pytest.mark.parametrize(
    "text",
    [
        *("", "alice", "user:", "user", "user:a b", "user:a:b", "user:ü", "user:a\n", "user:a,b"),
        *("User:alice", "broker:", "broker:x", "broker:-1", "broker:٣", "anonymous:", "group:a"),
        "user:" + "a" * (USER_NAME_CHARS_MAX + 1),
    ],
)
def test_other_texts_are_no_principal(text: str) -> None:
    with pytest.raises(ValueError, match="`anonymous`, `user:<name>`"):
        parse_principal(text)


def test_names_differ_from_the_words_for_other_kinds() -> None:
    assert NAME.fullmatch("anonymous"), "a user of that name is `user:anonymous`"
    assert str(of_user("anonymous")) != str(ANONYMOUS)
    assert not NAME.fullmatch("broker:1")
