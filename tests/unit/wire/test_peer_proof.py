"""The proof between two brokers: it needs the secret, and is good for the meant broker alone."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.wire import registry
from quiverlog.wire.apis import Audience
from quiverlog.wire.authentication_messages import AuthenticateRequest
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from quiverlog.wire.peer_proof import (
    NONCE_BYTES,
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    SECRETS_MAX,
    Acceptor,
    ClusterSecrets,
    Connector,
    Parties,
    ProofRefused,
    parse_secrets,
)
from quiverlog.wire.registry import APIS, SENDERS

NEW, OLD, OTHER = b"n" * 32, b"o" * 40, b"x" * 64
BOTH = (1, 2)


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def connector(
    *secrets: bytes, ids: tuple[int, int] = BOTH, cluster_id: str = "c", number: int = 1
) -> Connector:
    return Connector(ClusterSecrets(secrets), Parties(cluster_id, *ids), nonce(number))


def acceptor(*secrets: bytes, node_id: int = 2, cluster_id: str = "c", number: int = 2) -> Acceptor:
    return Acceptor(ClusterSecrets(secrets), cluster_id, node_id, nonce(number))


def prove(one: Connector, other: Acceptor) -> tuple[int, bytes]:
    return other.check(one.answer(other.challenge(one.opening)))


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ((NEW,), (NEW,), NEW),
        ((NEW, OLD), (OLD,), OLD),
        ((OLD,), (NEW, OLD), OLD),
        ((NEW, OLD), (NEW, OLD), NEW),
        ((NEW, OLD), (OLD, NEW), NEW),
        ((NEW,), (NEW, OLD), NEW),
    ],
    ids=["one", "new here", "new there", "both", "crossed", "old gone here"],
)
def test_two_brokers_agree_on_the_newest_secret_of_the_one_that_connects(
    ours: tuple[bytes, ...], theirs: tuple[bytes, ...], agreed: bytes
) -> None:
    one = connector(*ours)
    assert prove(one, acceptor(*theirs)) == (1, agreed)
    assert one.secret == agreed


@given(
    ours=st.lists(st.sampled_from([NEW, OLD, OTHER]), min_size=1, max_size=2, unique=True),
    theirs=st.lists(st.sampled_from([NEW, OLD, OTHER]), min_size=1, max_size=2, unique=True),
    clusters=st.tuples(*[st.sampled_from(["c", "d", "c\0", ""])] * 2),
    meant=st.sampled_from([2, 3]),
)
def test_exactly_those_with_a_common_secret_cluster_and_target_agree(
    ours: list[bytes], theirs: list[bytes], clusters: tuple[str, str], meant: int
) -> None:
    one = connector(*ours, ids=(1, meant), cluster_id=clusters[0])
    other = acceptor(*theirs, cluster_id=clusters[1])
    fits = bool({*ours} & {*theirs}) and clusters[0] == clusters[1] and meant == 2
    if fits:
        assert prove(one, other)[0] == 1
        return
    with pytest.raises(ProofRefused):
        prove(one, other)
    assert not one.secret


def test_an_old_secret_is_refused_when_it_was_taken_out() -> None:
    with pytest.raises(ProofRefused, match="it has not proved that it has the cluster's secret"):
        prove(connector(OLD), acceptor(NEW))
    # Also where the one that connects does not look at the other's proof.
    other = acceptor(NEW)
    forged = _mac(OLD, b"connector\0", other.challenge(connector(OLD).opening))
    with pytest.raises(ProofRefused, match="not proved that it is node 1: its secret is another"):
        other.check(forged)


def _mac(
    secret: bytes, direction: bytes, challenge: bytes, *, ids: tuple[int, int] = BOTH
) -> bytes:
    """A second implementation, from docs/protocol-internal.md."""
    text = b"quiverlog peer proof 1\0" + direction + struct.pack("<I", 1) + b"c"
    text += struct.pack("<II", *ids) + nonce(1) + challenge[:NONCE_BYTES]
    return hmac.new(secret, text, hashlib.sha256).digest()


def test_a_second_implementation_agrees() -> None:
    other = acceptor(NEW)
    challenge = other.challenge(struct.pack("<II", 1, 2) + nonce(1))
    assert challenge == nonce(2) + _mac(NEW, b"acceptor\0\0", challenge)
    assert other.check(_mac(NEW, b"connector\0", challenge)) == (1, NEW)


def test_a_proof_that_was_seen_is_of_no_use_again() -> None:
    seen = connector(NEW)
    first = acceptor(NEW)
    proof = seen.answer(first.challenge(seen.opening))
    assert first.check(proof) == (1, NEW)
    with pytest.raises(ProofRefused, match="was not challenged"):
        first.check(proof)
    again = acceptor(NEW, number=3)
    again.challenge(seen.opening)
    with pytest.raises(ProofRefused, match="its secret is another"):
        again.check(proof)


def test_what_a_broker_proves_as_acceptor_is_no_proof_of_a_connector() -> None:
    """A stranger without the secret returns the broker's own words, or those of another."""
    other = acceptor(NEW)
    challenge = other.challenge(connector(NEW).opening)
    with pytest.raises(ProofRefused, match="its secret is another"):
        other.check(challenge[NONCE_BYTES:])
    # Broker 2 connects to the stranger, in place of 1: what it proves as acceptor is no answer.
    victim = connector(NEW, ids=(2, 1), number=7)
    mirrored = acceptor(NEW, number=8).challenge(struct.pack("<II", 1, 2) + nonce(7))
    with pytest.raises(ProofRefused, match="has not proved"):
        victim.answer(mirrored)


def test_a_proof_for_one_broker_is_none_for_another() -> None:
    """A relay: broker 1 connects to a stranger in place of 3, which sends all on to broker 2."""
    victim, other = connector(NEW, ids=(1, 3)), acceptor(NEW)
    with pytest.raises(ProofRefused, match="it means node 3, this is 2"):
        other.challenge(victim.opening)
    rewritten = struct.pack("<II", 1, 2) + victim.opening[8:]
    with pytest.raises(ProofRefused, match="has not proved"):
        victim.answer(acceptor(NEW).challenge(rewritten))


def test_a_node_id_is_bound_to_the_proof() -> None:
    """Broker 1 has the secret; changing the ids on the way does not make it broker 3."""
    one, other = connector(NEW), acceptor(NEW)
    challenge = other.challenge(struct.pack("<II", 3, 2) + one.opening[8:])
    with pytest.raises(ProofRefused):
        one.answer(challenge)
    with pytest.raises(ProofRefused, match="it is node 3"):
        other.check(_mac(NEW, b"connector\0", challenge))


def test_a_broker_does_not_take_its_own_node_id() -> None:
    with pytest.raises(ProofRefused, match="node id of this broker, 2"):
        acceptor(NEW).challenge(struct.pack("<II", 2, 2) + nonce(1))


@pytest.mark.parametrize("size", [0, 1, 8, 39, 41, 16_384])
def test_an_opening_of_another_size_is_refused(size: int) -> None:
    opening = (connector(NEW).opening + bytes(size))[:size]
    with pytest.raises(ProofRefused, match=f"its opening has {size} bytes"):
        acceptor(NEW).challenge(opening)


@pytest.mark.parametrize("size", [0, 31, 32, 33, 63, 65, 95, 97, 128, 16_384])
def test_a_challenge_of_another_size_is_refused(size: int) -> None:
    one = connector(NEW)
    challenge = (acceptor(NEW).challenge(one.opening) + bytes(size))[:size]
    with pytest.raises(ProofRefused, match=f"its answer has {size} bytes"):
        one.answer(challenge)


@given(st.binary(max_size=80))
def test_no_other_bytes_are_a_proof(proof: bytes) -> None:
    other = acceptor(NEW, OLD)
    other.challenge(connector(NEW).opening)
    with pytest.raises(ProofRefused):
        other.check(proof)


@given(at=st.integers(0, 31), bit=st.integers(0, 7), of_acceptor=st.booleans())
def test_a_flipped_bit_is_refused(at: int, bit: int, of_acceptor: bool) -> None:
    def flip(data: bytes, at: int) -> bytes:
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    one, other = connector(NEW), acceptor(NEW)
    challenge = other.challenge(one.opening)
    if of_acceptor:
        with pytest.raises(ProofRefused):
            one.answer(flip(challenge, NONCE_BYTES + at))
    else:
        with pytest.raises(ProofRefused):
            other.check(flip(one.answer(challenge), at))


# --- secrets ------------------------------------------------------------------------------------
def test_a_file_has_the_new_secret_and_then_the_old_one() -> None:
    text = b"# made today\n\n" + NEW + b"\r\n  " + OLD + b"  \n"
    assert parse_secrets(text) == ClusterSecrets((NEW, OLD))


@pytest.mark.parametrize("size", [SECRET_BYTES_MIN, SECRET_BYTES_MAX])
def test_the_shortest_and_the_longest_secret_are_taken(size: int) -> None:
    assert parse_secrets(b"s" * size).values == (b"s" * size,)


def test_every_printable_character_and_the_tab_may_be_in_a_secret() -> None:
    secret = b"\t".join((bytes(range(0x21, 0x7F)), bytes(range(0x20, 0x7F)), b"x"))
    assert parse_secrets(secret).values == (secret,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no line is a secret"),
        (b"# " + NEW, "no line is a secret"),
        (b"\n" + b"s" * (SECRET_BYTES_MIN - 1), "line 2 has 31 bytes, a secret has 32 to 1024"),
        (b"s" * (SECRET_BYTES_MAX + 1), "line 1 has 1025 bytes"),
        (b"\n".join([NEW, OLD, OTHER]), f"3 lines are secrets, at most {SECRETS_MAX} count"),
        (b"\xef\xbb\xbf# " + NEW + b"\n" + OLD, "line 1 has bytes that are not printable ASCII"),
        (("# \n" + "s" * 40).encode("utf-16"), "line 1 has bytes"),
        (b"# \n" + bytes(SECRET_BYTES_MIN), "line 2 has bytes"),
        (b"s" * SECRET_BYTES_MIN + b"\x1f", "line 1 has bytes"),
        (b"s" * SECRET_BYTES_MIN + b"\x7f", "line 1 has bytes"),
    ],
    ids=["empty", "a comment", "short", "long", "three", "mark", "utf-16", "nul", "1f", "7f"],
)
def test_a_file_that_is_no_list_of_secrets_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_secrets(text)
    assert "sss" not in str(refused.value)


def test_no_text_of_a_secret_shows_it() -> None:
    secrets = parse_secrets(NEW)
    for text in (repr(secrets), str(secrets), f"{secrets}", repr([secrets])):
        assert NEW.decode() not in text
    assert [one.repr for one in fields(secrets)] == [False]


# --- the table ----------------------------------------------------------------------------------
def test_each_request_between_brokers_names_its_sender() -> None:
    between = {s.request for s in APIS.values() if s.between_brokers} - {AuthenticateRequest}
    assert SENDERS.keys() == between
    for kind, name in SENDERS.items():
        assert name in {"source_id", "node_id", "replica_id", "broker_id"}, kind
        assert isinstance(getattr(kind(), name), int), kind


@pytest.mark.parametrize("sender", ["", "who"])
def test_no_request_between_brokers_can_be_declared_without_its_sender(sender: str) -> None:
    with pytest.raises(AssertionError):
        registry._spec(
            BrokerHeartbeatRequest, BrokerHeartbeatResponse, Audience.BROKERS, sender=sender
        )
