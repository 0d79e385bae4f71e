"""Users and tokens: what the controller decides, and what of it a snapshot keeps."""

from __future__ import annotations

import time

import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    Credential,
    FeatureLevelRecord,
    Record,
    RemoveUserRecord,
    SecurityKeyRecord,
    TokenRecord,
    UserRecord,
    decode_entry,
    encode_entry,
)
from quiverlog.core.security import users
from quiverlog.errors import (
    FeatureNotFinalised,
    InvalidRequest,
    PolicyViolation,
    UnknownToken,
    UnknownUser,
    UserExists,
)
from quiverlog.limits import (
    FEATURE_LEVEL_MAX,
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    TOKEN_LIFETIME_MS_MAX,
    TOKEN_REMEMBERED_US,
)
from quiverlog.wire.security.scram import SCRAM_SHA_256, SCRAM_SHA_512

KEY = b"k" * 32
HOUR_MS = 3_600_000
NOW_US = 1_700_000_000_000_000


def credential(fill: int, mechanism: str = SCRAM_SHA_256, salt: bytes = bytes(16),
               iterations: int = SCRAM_ITERATIONS_MIN) -> Credential:  # fmt: skip
    size = 32 if mechanism == SCRAM_SHA_256 else 64
    return (mechanism, salt, iterations, bytes([fill]) * size, bytes([fill + 1]) * size)


def image_of(*records: Record, level: int = FEATURE_LEVEL_MAX) -> Image:
    image = Image({})
    image.replay_entry([FeatureLevelRecord(level), *records], version=1)
    return image


def apply(image: Image, records: list[Record]) -> None:
    """As an entry of the log, which is what another node reads."""
    image.replay_entry(decode_entry(encode_entry(records)), version=image.version + 1)


def create(image: Image, name: str, *credentials: Credential, is_admin: bool = False) -> None:
    made = users.create_user(
        image, name, credentials or (credential(1),), is_admin=is_admin, now_us=NOW_US, key=KEY
    )
    apply(image, made)


def change(image: Image, name: str, *credentials: Credential, keeps_old: bool = False) -> None:
    apply(
        image,
        users.change_password(image, name, credentials, keeps_old=keeps_old, now_us=NOW_US + 1),
    )


def add_token(
    image: Image, token_id: str, owner: str, *, lifetime_ms: int = HOUR_MS, now_us: int = NOW_US
) -> None:
    apply(
        image,
        users.add_token(
            image, token_id, owner, credential(9), lifetime_ms=lifetime_ms, now_us=now_us
        ),
    )


def test_the_key_comes_with_the_first_user_and_stays() -> None:
    image = image_of()
    create(image, "alice")
    assert image.security_key == KEY
    create(image, "bob")
    assert image.users.keys() == {"alice", "bob"}
    apply(image, users.delete_user(image, "alice", may_be_last=True))
    apply(image, users.delete_user(image, "bob", may_be_last=False))
    assert image.security_key == KEY
    made = users.create_user(
        image, "carol", (credential(1),), is_admin=False, now_us=1, key=b"x" * 32
    )
    assert [type(one) for one in made] == [UserRecord]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a,b", "a=b", "ü", "a\n", "x" * 129, "../a/b"])
def test_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="a user name has"):
        create(image_of(), name)


@pytest.mark.parametrize("name", ["a", "x" * 128, "A.b_c-d@example.org", "..", "anonymous2"])
def test_a_name_is_taken(name: str) -> None:
    image = image_of()
    create(image, name)
    with pytest.raises(UserExists):
        create(image, name)


@pytest.mark.parametrize(
    "credentials",
    [
        (),
        (credential(1), credential(2)),
        (("SCRAM-SHA-1", bytes(16), 4096, bytes(20), bytes(20)),),
        (("TOKEN", bytes(16), 4096, bytes(32), bytes(32)),),
        (credential(1, iterations=SCRAM_ITERATIONS_MIN - 1),),
        (credential(1, iterations=SCRAM_ITERATIONS_MAX + 1),),
        (credential(1, salt=bytes(7)),),
        (credential(1, salt=bytes(65)),),
        ((SCRAM_SHA_512, bytes(16), 4096, bytes(32), bytes(32)),),
    ],
    ids=str,
)
def test_credentials_are_refused(credentials: tuple[Credential, ...]) -> None:
    image = image_of()
    with pytest.raises(InvalidRequest):
        users.create_user(image, "a", credentials, is_admin=False, now_us=1, key=KEY)
    create(image, "b")
    with pytest.raises(InvalidRequest):
        change(image, "b", *credentials)


def test_no_user_is_made_before_all_brokers_understand_it() -> None:
    with pytest.raises(FeatureNotFinalised, match="needs feature level 3"):
        create(image_of(level=2), "alice")
    image = image_of(UserRecord("alice", 1, (credential(1),)), level=2)
    with pytest.raises(FeatureNotFinalised):
        add_token(image, "t", "alice")


def test_the_number_of_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "USERS_MAX", 2)
    image = image_of()
    create(image, "a")
    create(image, "b")
    with pytest.raises(PolicyViolation, match="has 2 users"):
        create(image, "c")


def test_a_password_replaces_the_ones_before() -> None:
    image = image_of()
    create(image, "alice", credential(1), credential(2, SCRAM_SHA_512))
    change(image, "alice", credential(3))
    assert image.users["alice"].credentials == (credential(3),)


def test_the_old_password_counts_beside_the_new_one_until_it_is_dropped() -> None:
    image = image_of()
    both = (credential(1), credential(2, SCRAM_SHA_512))
    create(image, "alice", *both, is_admin=True)
    newer = (credential(3), credential(4, SCRAM_SHA_512))
    change(image, "alice", *newer, keeps_old=True)
    kept = image.users["alice"]
    assert kept.credentials == (newer[0], both[0], newer[1], both[1])
    assert kept.is_admin
    newest = (credential(5), credential(6, SCRAM_SHA_512))
    change(image, "alice", *newest, keeps_old=True)
    assert image.users["alice"].credentials == (newest[0], newer[0], newest[1], newer[1])
    apply(image, users.drop_old_passwords(image, "alice", now_us=NOW_US))
    assert image.users["alice"].credentials == newest
    assert users.drop_old_passwords(image, "alice", now_us=NOW_US) == []


def test_the_same_password_beside_the_old_one_again_does_not_end_the_old_one() -> None:
    """As a client does whose first answer was lost."""
    image = image_of()
    create(image, "alice", credential(1), credential(2, SCRAM_SHA_512))
    newer = (credential(3), credential(4, SCRAM_SHA_512))
    change(image, "alice", *newer, keeps_old=True)
    kept = image.users["alice"].credentials
    assert len(kept) == 4
    again = users.change_password(image, "alice", newer, keeps_old=True, now_us=NOW_US + 2)
    assert again == []


@pytest.mark.parametrize(
    "wrong",
    [
        (credential(3, salt=b"x" * 16), credential(4, SCRAM_SHA_512)),
        (credential(3, iterations=5_000), credential(4, SCRAM_SHA_512)),
        (credential(3),),
    ],
    ids=["another salt", "other iterations", "of one mechanism alone"],
)
def test_a_password_beside_another_is_made_as_that_one(wrong: tuple[Credential, ...]) -> None:
    image = image_of()
    create(image, "alice", credential(1), credential(2, SCRAM_SHA_512))
    with pytest.raises(InvalidRequest):
        change(image, "alice", *wrong, keeps_old=True)


def test_the_same_change_again_changes_nothing() -> None:
    image = image_of()
    create(image, "alice")
    again = users.change_password(image, "alice", [credential(1)], keeps_old=False, now_us=9)
    assert again == []
    assert users.change_admin(image, "alice", is_admin=False, now_us=9, may_be_last=False) == []
    apply(image, users.change_admin(image, "alice", is_admin=True, now_us=9, may_be_last=False))
    assert image.users["alice"].is_admin


def test_the_last_administrator_stays_unless_others_administer() -> None:
    image = image_of()
    create(image, "alice", is_admin=True)
    create(image, "bob")
    for ask in (
        lambda **given: users.delete_user(image, "alice", **given),
        lambda **given: users.change_admin(image, "alice", is_admin=False, now_us=9, **given),
    ):
        with pytest.raises(PolicyViolation, match="'alice' is the last administrator"):
            ask(may_be_last=False)
        assert len(ask(may_be_last=True)) == 1
    assert len(users.delete_user(image, "bob", may_be_last=False)) == 1
    create(image, "chief", is_admin=True)
    apply(image, users.change_admin(image, "alice", is_admin=False, now_us=9, may_be_last=False))
    assert not image.users["alice"].is_admin
    with pytest.raises(PolicyViolation, match="chief"):
        users.delete_user(image, "chief", may_be_last=False)


def test_no_user_is_called_as_clients_without_a_login_are() -> None:
    image = image_of()
    with pytest.raises(InvalidRequest, match="without a login"):
        create(image, "anonymous")
    create(image, "anonymous2")


def test_an_unknown_user_is_named() -> None:
    image = image_of()
    for ask in (
        lambda: users.delete_user(image, "bob", may_be_last=False),
        lambda: users.change_admin(image, "bob", is_admin=True, now_us=1, may_be_last=False),
        lambda: users.drop_old_passwords(image, "bob", now_us=1),
        lambda: change(image, "bob", credential(1)),
        lambda: add_token(image, "t", "bob"),
    ):
        with pytest.raises(UnknownUser, match="'bob'"):
            ask()


# --- tokens ------------------------------------------------------------------------------------
@pytest.mark.parametrize("lifetime_ms", [1_000, TOKEN_LIFETIME_MS_MAX])
def test_a_token_has_a_life(lifetime_ms: int) -> None:
    image = image_of(UserRecord("alice", 1, (credential(1),)))
    add_token(image, "t", "alice", lifetime_ms=lifetime_ms)
    assert image.tokens["t"].expires_us == NOW_US + lifetime_ms * 1_000


@pytest.mark.parametrize("lifetime_ms", [999, 0, -1, TOKEN_LIFETIME_MS_MAX + 1])
def test_a_life_is_refused(lifetime_ms: int) -> None:
    image = image_of(UserRecord("alice", 1, (credential(1),)))
    with pytest.raises(InvalidRequest, match="lifetime"):
        add_token(image, "t", "alice", lifetime_ms=lifetime_ms)


def test_a_token_is_of_sha_256_alone() -> None:
    image = image_of(UserRecord("alice", 1, (credential(1),)))
    for wrong in (credential(1, SCRAM_SHA_512), credential(1, salt=b"")):
        with pytest.raises(InvalidRequest):
            users.add_token(image, "t", "alice", wrong, lifetime_ms=HOUR_MS, now_us=NOW_US)


def test_expired_tokens_go_with_a_new_one_after_an_hour() -> None:
    image = image_of(UserRecord("alice", 1, (credential(1),)))
    add_token(image, "a", "alice", lifetime_ms=1_000)
    ended_us = NOW_US + 1_000_000
    add_token(image, "b", "alice", now_us=ended_us + TOKEN_REMEMBERED_US - 1)
    assert image.tokens.keys() == {"a", "b"}
    add_token(image, "c", "alice", now_us=ended_us + TOKEN_REMEMBERED_US)
    assert image.tokens.keys() == {"b", "c"}


def test_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "TOKENS_PER_USER_MAX", 2)
    monkeypatch.setattr(users, "TOKENS_MAX", 3)
    image = image_of(
        UserRecord("alice", 1, (credential(1),)), UserRecord("bob", 1, (credential(1),))
    )
    add_token(image, "a", "alice")
    add_token(image, "b", "alice")
    with pytest.raises(PolicyViolation, match="'alice' has 2 tokens"):
        add_token(image, "c", "alice")
    add_token(image, "c", "bob")
    with pytest.raises(PolicyViolation, match="has 3 tokens"):
        add_token(image, "d", "bob")
    apply(image, users.end_tokens(image, "alice", ["a"]))
    add_token(image, "d", "bob")


def test_expired_tokens_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "TOKENS_PER_USER_MAX", 2)
    monkeypatch.setattr(users, "TOKENS_MAX", 4)
    image = image_of(UserRecord("alice", 1, (credential(1),)))
    add_token(image, "a", "alice", lifetime_ms=1_000)
    add_token(image, "b", "alice")
    with pytest.raises(PolicyViolation, match="'alice' has 2 tokens"):
        add_token(image, "c", "alice", now_us=NOW_US + 999_999)
    add_token(image, "c", "alice", lifetime_ms=1_000, now_us=NOW_US + 1_000_000)
    assert image.tokens.keys() == {"a", "b", "c"}, "a login with it gets the reason"
    add_token(image, "d", "alice", lifetime_ms=1_000, now_us=NOW_US + 2_000_000)
    add_token(image, "e", "alice", now_us=NOW_US + 3_000_000)
    assert image.tokens.keys() == {"b", "e"}, "no place is left for the expired ones"


def test_tokens_are_ended_by_their_owner_alone() -> None:
    image = image_of(
        UserRecord("alice", 1, (credential(1),)), UserRecord("bob", 1, (credential(1),))
    )
    for name, owner in (("a", "alice"), ("b", "alice"), ("c", "bob")):
        add_token(image, name, owner)
    with pytest.raises(UnknownToken, match="'alice' has no token 'c'"):
        users.end_tokens(image, "alice", ["a", "c"])
    apply(image, users.end_tokens(image, "alice", []))
    assert image.tokens.keys() == {"c"}
    assert users.end_tokens(image, "alice", []) == []
    apply(image, users.delete_user(image, "bob", may_be_last=False))
    assert not image.tokens, "they end with their user"


def test_a_snapshot_has_users_tokens_and_the_key() -> None:
    image = image_of()
    create(image, "alice", credential(1), is_admin=True)
    create(image, "bob")
    add_token(image, "a", "alice")
    add_token(image, "b", "bob")
    apply(image, users.end_tokens(image, "bob", []))
    apply(image, users.delete_user(image, "bob", may_be_last=False))
    restored = Image({})
    restored.replay_entry(decode_entry(encode_entry(image.snapshot_records())))
    assert (restored.users, restored.tokens) == (image.users, image.tokens)
    assert restored.security_key == image.security_key


def test_a_failed_decision_is_taken_back() -> None:
    image = image_of()
    create(image, "alice")
    pending = Image({})
    pending.revert(image, ())
    pending.replay_entry([RemoveUserRecord("alice"), TokenRecord("t", "x", 1, 2, credential(1))])
    assert image.users.keys() == {"alice"}, "what readers hold is never changed"
    pending.revert(image, ())
    assert (pending.users, pending.tokens) == (image.users, image.tokens)
    assert pending.security_key == KEY


def test_no_repr_of_a_record_has_a_key() -> None:
    kept = credential(1)
    for record in (
        SecurityKeyRecord(KEY),
        UserRecord("alice", 1, (kept,)),
        TokenRecord("0123456789", "alice", 1, 2, kept),
    ):
        text = repr(record) + str([record])
        for secret in (KEY, kept[3], kept[4]):
            assert repr(secret)[2:-1] not in text
        assert "0123456789" not in text


# --- many of them -------------------------------------------------------------------------------
def test_a_snapshot_of_many_users_and_tokens_is_replayed_quickly() -> None:
    names = [f"u{number}" for number in range(10_000)]
    records: list[Record] = [UserRecord(name, NOW_US, (credential(1),)) for name in names]
    records += [
        TokenRecord(f"{n:024}", name, 1, NOW_US, credential(2)) for n, name in enumerate(names)
    ]
    began = time.process_time()
    image = image_of(*records)
    assert time.process_time() - began < 1.0, "the tables are copied once"
    assert len(image.users) == len(image.tokens) == 10_000


def test_tables_are_replaced_by_each_entry_and_never_changed() -> None:
    image = image_of()
    create(image, "alice")
    add_token(image, "a" * 24, "alice")
    before = image.users, image.tokens
    create(image, "bob")
    assert image.users is not before[0]
    assert image.tokens is before[1], "a reader sees that nothing of it has changed"
    add_token(image, "b" * 24, "bob")
    apply(image, users.delete_user(image, "alice", may_be_last=True))
    assert (set(before[0]), set(before[1])) == ({"alice"}, {"a" * 24})
    assert (set(image.users), set(image.tokens)) == ({"bob"}, {"b" * 24})
