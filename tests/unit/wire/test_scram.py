"""SCRAM by RFC 5802's list of checks: each is one refusal here. Vectors: RFC 7677, and ours."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quiverlog.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from quiverlog.wire.peer_proof import ProofRefused
from quiverlog.wire.security.scram import (
    HASHES,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ClientKeys,
    Credential,
    ScramClient,
    ScramServer,
    check_credential,
    credential_line,
    derive_keys,
    make_credential,
    parse_credential_line,
    prepare_password,
)

VECTORS = Path(__file__).resolve().parents[3] / "docs" / "vectors" / "scram.json"
SALT = bytes(range(16))
CLIENT_NONCE, BROKER_NONCE = "c" * 24, "b" * 24
NAMES = ("alice",)
FIRST = f"n,,n=alice,r={CLIENT_NONCE}".encode()


def client(mechanism: str = SCRAM_SHA_256, password: bytes = b"pencil", user: str = "alice",
           nonce: str = CLIENT_NONCE) -> ScramClient:  # fmt: skip
    def derive(salt: bytes, iterations: int) -> ClientKeys:
        return derive_keys(mechanism, password, salt, iterations)

    return ScramClient(mechanism, user, derive, nonce)


def credential(mechanism: str = SCRAM_SHA_256, password: bytes = b"pencil") -> Credential:
    return make_credential(mechanism, password, SALT, SCRAM_ITERATIONS_MIN)


def broker(*found: Credential, mechanism: str = SCRAM_SHA_256, nonce: str = BROKER_NONCE,
           names: Sequence[str] = NAMES) -> ScramServer:  # fmt: skip
    return ScramServer(
        mechanism, lambda name: found if name in names else (), nonce,
        fake_key=b"f" * 32, iterations=SCRAM_ITERATIONS_MIN,
    )  # fmt: skip


@pytest.mark.parametrize("mechanism", list(HASHES))
def test_both_sides_prove_to_each_other(mechanism: str) -> None:
    own = credential(mechanism)
    one, other = client(mechanism), broker(own, mechanism=mechanism)
    answer, proved = other.final(one.final(other.first(one.first)))
    one.check(answer)
    assert proved == own
    assert other.name == "alice"


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda v: v["source"])
def test_the_vectors_are_what_both_sides_send(vector: dict[str, Any]) -> None:
    mechanism, salt = vector["mechanism"], bytes.fromhex(vector["salt"]["hex"])
    password = prepare_password(vector["password"])
    assert password.hex() == vector["prepared"]["hex"]
    made = make_credential(mechanism, password, salt, vector["iterations"])
    assert made.stored_key.hex() == vector["stored_key"]["hex"]
    assert made.server_key.hex() == vector["server_key"]["hex"]
    one = client(mechanism, password, vector["user"], vector["client_nonce"])
    other = broker(made, mechanism=mechanism, nonce=vector["broker_nonce"], names=[vector["user"]])
    messages = [one.first]
    messages.append(other.first(messages[-1]))
    messages.append(one.final(messages[-1]))
    messages.append(other.final(messages[-1])[0])
    assert [message.decode() for message in messages] == vector["messages"]
    one.check(messages[-1])


def test_the_proofs_are_those_of_the_rfc() -> None:
    messages = json.loads(VECTORS.read_text())[0]["messages"]
    assert messages[2].endswith(",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert messages[3] == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_old_and_the_new_password_count_while_one_is_replaced() -> None:
    new, old = credential(password=b"new"), credential(password=b"old")
    for password, expected in ((b"new", new), (b"old", old)):
        one, other = client(password=password), broker(new, old)
        answer, proved = other.final(one.final(other.first(one.first)))
        one.check(answer)
        assert proved == expected
    one, other = client(password=b"older"), broker(new, old)
    with pytest.raises(ProofRefused, match="password"):
        other.final(one.final(other.first(one.first)))


def _first(change: Callable[[bytes], bytes]) -> Callable[[], None]:
    def run() -> None:
        broker(credential()).first(change(client().first))

    return run


def _final(change: Callable[[bytes], bytes]) -> Callable[[], None]:
    def run() -> None:
        one, other = client(), broker(credential())
        other.final(change(one.final(other.first(one.first))))

    return run


BROKER_REFUSES = {
    "flag p": (_first(lambda m: b"p=tls-unique" + m[1:]), "channel binding 'p'"),
    "flag y": (_first(lambda m: b"y" + m[1:]), "channel binding 'y'"),
    "another's authzid": (_first(lambda m: m.replace(b"n,,", b"n,a=root,", 1)), "another user"),
    "no gs2 header": (_first(lambda m: m[3:]), "no SCRAM|channel binding"),
    "mandatory extension": (_first(lambda m: m.replace(b"n=al", b"m=x,n=al")), "extension"),
    "no nonce": (_first(lambda m: m.split(b",r=")[0]), "attributes"),
    "short nonce": (_first(lambda m: m[:-9]), "nonce has 15"),
    "long nonce": (_first(lambda m: m + b"x" * 233), "nonce has 257"),
    "empty name": (_first(lambda m: m.replace(b"alice", b"")), "name has 0"),
    "long name": (_first(lambda m: m.replace(b"alice", b"a" * 129)), "name has 129"),
    "name twice": (_first(lambda m: m.replace(b"n=alice", b"n=alice,n=bob")), "twice"),
    "not ASCII": (_first(lambda m: m + b"\xff"), "ASCII"),
    "a zero byte": (_first(lambda m: m + b"\0"), "control"),
    "another nonce": (_final(lambda m: m.replace(b"r=cc", b"r=dd")), "another login"),
    "shortened nonce": (_final(lambda m: m.replace(b"bb,p=", b",p=")), "another login"),
    "the client's nonce alone": (_final(lambda m: m.replace(b"b" * 24, b"")), "another login"),
    "another binding": (_final(lambda m: m.replace(b"c=biws", b"c=eSws")), "another login"),
    "short proof": (_final(lambda m: m.split(b",p=")[0] + b",p=AAAA"), "another login"),
    "no proof": (_final(lambda m: m.split(b",p=")[0]), "attributes"),
    "proof not base64": (_final(lambda m: m.split(b",p=")[0] + b",p=%%%%"), "base64"),
    "zero proof": (
        _final(lambda m: m.split(b",p=")[0] + b",p=" + base64.b64encode(bytes(32))), "password"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKER_REFUSES)
def test_the_broker_refuses(case: str) -> None:
    run, why = BROKER_REFUSES[case]
    with pytest.raises(ProofRefused, match=why):
        run()


def test_an_own_authzid_is_taken() -> None:
    one, other = client(), broker(credential())
    own = one.first.replace(b"n,,", b"n,a=alice,", 1)
    assert other.first(own).startswith(b"r=")


def test_a_proof_counts_once_and_in_its_own_login_only() -> None:
    one, other = client(), broker(credential())
    proof = one.final(other.first(one.first))
    other.final(proof)
    with pytest.raises(ProofRefused, match="not asked"):
        other.final(proof)
    again = broker(credential(), nonce="d" * 24)
    again.first(one.first)
    with pytest.raises(ProofRefused, match="another login"):
        again.final(proof)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("r={b},s={s},i=4096", "does not begin"),
        ("r={c},s={s},i=4096", "does not begin"),
        ("r={c}{b},s={s},i=4095", "4095 iterations"),
        ("r={c}{b},s={s},i=100001", "100001 iterations"),
        ("r={c}{b},s={s},i=1000000000", "iterations"),
        ("r={c}{b},s={s},i=-1", "iterations"),
        ("r={c}{b},s={s},i=4_096", "iterations"),
        ("r={c}{b},s=AAAA,i=4096", "salt has 3"),
        ("r={c}{b},s=!,i=4096", "base64"),
        ("m=x,r={c}{b},s={s},i=4096", "extension"),
        ("e=other-error", "refuses"),
        ("s={s},r={c}{b},i=4096", "attributes"),
        ("", "no value"),
    ],
)
def test_the_client_refuses_an_answer(answer: str, why: str) -> None:
    text = answer.format(b=BROKER_NONCE, c=CLIENT_NONCE, s=base64.b64encode(SALT).decode())
    with pytest.raises(ProofRefused, match=why):
        client().final(text.encode())


@pytest.mark.parametrize("iterations", [SCRAM_ITERATIONS_MIN, SCRAM_ITERATIONS_MAX])
def test_the_client_takes_the_bounds_of_iterations(iterations: int) -> None:
    salt = base64.b64encode(SALT).decode()
    text = f"r={CLIENT_NONCE}{BROKER_NONCE},s={salt},i={iterations}"
    assert client().final(text.encode()).startswith(b"c=biws,")


def test_the_client_checks_the_brokers_proof() -> None:
    one, other = client(), broker(credential())
    answer, _ = other.final(one.final(other.first(one.first)))
    with pytest.raises(ProofRefused, match="the user's keys"):
        one.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(ProofRefused, match="refuses"):
        one.check(b"e=invalid-proof")
    one.check(answer)


def test_an_unknown_user_costs_the_same_hmacs(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    real = hmac.digest

    def counted(*given: Any) -> bytes:
        counts[-1] += 1
        return real(*given)

    proof = client().final(broker(credential()).first(client().first))
    salts = []
    known = (credential(), credential(password=b"old"))
    monkeypatch.setattr("quiverlog.wire.security.scram.hmac.digest", counted)
    for found in (known[:1], known, ()):
        counts.append(0)
        other = broker(*found)
        salts.append(other.first(FIRST))
        if found:
            other.final(proof)
        else:
            with pytest.raises(ProofRefused, match="no such user"):
                other.final(proof)
    assert counts[0] == counts[1] == counts[2] > 0
    assert len(salts[2]) == len(salts[0]), "nor does the answer show it"
    assert broker().first(FIRST) == salts[2], "the salt of a name stays"


def test_other_names_have_other_salts() -> None:
    assert broker().first(client(user="bob").first) != broker().first(client().first)


@pytest.mark.parametrize(
    ("password", "prepared"),
    [("pencil", b"pencil"), ("I\u00adX", b"IX"), ("\u00aa", b"a"), ("a\u00a0b", b"a b"),
     ("\u2168", b"IX"), ("x" * 1024, b"x" * 1024)],
)  # fmt: skip
def test_passwords_are_prepared(password: str, prepared: bytes) -> None:
    assert prepare_password(password) == prepared


@pytest.mark.parametrize("password", ["", "\u00ad", "a\x07b", "a\nb", "\ud800", "x" * 1025])
def test_a_password_is_refused_without_being_named(password: str) -> None:
    with pytest.raises(ValueError, match="a password has") as found:
        prepare_password(password)
    assert not password.strip("\u00ad") or password not in str(found.value)


@pytest.mark.parametrize("mechanism", list(HASHES))
def test_a_line_is_read_back(mechanism: str) -> None:
    own = credential(mechanism)
    line = credential_line("alice", mechanism, own)
    assert parse_credential_line(f"{line}\n") == ("alice", mechanism, own)
    assert "pencil" not in line


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda line: "", "no line"),
        (lambda line: line.replace("alice", "a" * 129), "no line"),
        (lambda line: line.replace("alice", "a b"), "no line"),
        (lambda line: line.replace("SHA-256", "SHA-1"), "SCRAM-SHA-1, allowed"),
        (lambda line: line.replace("SHA-256", "SHA-512"), "64 bytes"),
        (lambda line: line.replace("$4096:", "$4095:"), "4095 iterations"),
        (lambda line: line[:-4], "no line|bytes"),
    ],
)
def test_a_broken_line_is_refused_without_being_quoted(
    change: Callable[[str], str], why: str
) -> None:
    line = credential_line("alice", SCRAM_SHA_256, credential())
    with pytest.raises(ValueError, match=why) as found:
        parse_credential_line(change(line))
    assert line[20:] not in str(found.value)


def test_a_credential_is_bounded_and_never_shown() -> None:
    own = credential()
    assert own.stored_key.hex() not in repr(own)
    assert repr(own.stored_key) not in repr(own)
    for salt in (bytes(7), bytes(65)):
        with pytest.raises(ValueError, match="a salt has"):
            check_credential(SCRAM_SHA_256, Credential(salt, 4096, bytes(32), bytes(32)))
    with pytest.raises(ValueError, match="64 bytes"):
        check_credential(SCRAM_SHA_512, own)
    for salt in (bytes(8), bytes(64)):
        check_credential(SCRAM_SHA_256, Credential(salt, 4096, bytes(32), bytes(32)))
