"""A client's side of a login: what it reads, what it sends, and what it refuses of a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quiverlog.client.base import login as login_module
from quiverlog.client.base.login import Credentials
from quiverlog.client.base.results import Address
from quiverlog.client.base.security import Security
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerNotProved,
    CredentialsExpired,
    InvalidSecurity,
    LoginMissing,
    MechanismNotOffered,
    QuiverlogError,
    ThrottledBroker,
)
from quiverlog.limits import PASSWORD_FILE_BYTES_MAX, SCRAM_ITERATIONS_MIN
from quiverlog.wire.authentication_messages import (
    CERTIFICATE,
    DEFAULT_MECHANISMS,
    MECHANISMS,
    TOKEN,
    AuthenticateResponse,
    parse_token,
    token_text,
)
from quiverlog.wire.messages import HelloResponse
from quiverlog.wire.security.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Credential,
    ScramClient,
    ScramServer,
    make_credential,
)

AT = Address("broker", 9292)
PASSWORD = "correct horse"
TOKEN_TEXT = token_text("ab" * 12, b"k" * 32)
ALICE = Security(tls=False, user="alice", password=PASSWORD)


def hello(*mechanisms: str, needed: bool = True) -> HelloResponse:
    offered = list(mechanisms or DEFAULT_MECHANISMS)
    return HelloResponse(needs_authentication=needed, mechanisms=offered)


class Broker:
    """Checks what a login sends, with this password of each name."""

    def __init__(self, name: str, password: bytes) -> None:
        self.name, self.password = name, password

    def answers(self, security: Security, peer: HelloResponse, **last: Any) -> Any:
        """Run a login; returns it."""
        login = Credentials(security).begin(AT, peer)
        assert login is not None
        mechanism = login.request.mechanism
        scram = SCRAM_SHA_256 if mechanism == TOKEN else mechanism
        kept = make_credential(scram, self.password, bytes(16), SCRAM_ITERATIONS_MIN)

        def find(name: str) -> list[Credential]:
            return [kept] if name == self.name else []

        server = ScramServer(scram, find, "b" * 24, fake_key=b"", iterations=SCRAM_ITERATIONS_MIN)
        first = AuthenticateResponse(data=server.first(login.request.data))
        request = login.answer(first)
        assert request is not None
        assert request.mechanism == mechanism
        data, _ = server.final(request.data)
        assert login.answer(AuthenticateResponse(data=data, is_done=True, **last)) is None
        return login


@pytest.mark.parametrize("offered", [(SCRAM_SHA_512, SCRAM_SHA_256, TOKEN), (SCRAM_SHA_256,)])
def test_the_best_mechanism_that_both_have_is_taken(offered: tuple[str, ...]) -> None:
    done = Broker("alice", PASSWORD.encode()).answers(ALICE, hello(*offered))
    assert done.request.mechanism == offered[0]
    assert done.expires_ms == -1


def test_a_named_mechanism_is_taken() -> None:
    named = Security(tls=False, user="alice", password=PASSWORD, mechanism=SCRAM_SHA_256)
    assert Credentials(named).begin(AT, hello()).request.mechanism == SCRAM_SHA_256  # type: ignore[union-attr]


def test_a_token_logs_in_by_its_id_and_key() -> None:
    token_id, key = parse_token(TOKEN_TEXT)
    token = Security(tls=False, token=TOKEN_TEXT)
    done = Broker(token_id, key).answers(token, hello(), expires_ms=9)
    assert (done.request.mechanism, done.expires_ms) == (TOKEN, 9)


@pytest.mark.parametrize(
    ("security", "offered"),
    [
        (ALICE, (TOKEN,)),
        (Security(tls=False, token=TOKEN_TEXT), (SCRAM_SHA_256, SCRAM_SHA_512)),
        (ALICE, ("SCRAM-SHA-1", "PLAIN")),
        (Security(tls=False, user="a", password="b", mechanism=SCRAM_SHA_512), (SCRAM_SHA_256,)),
    ],
)
def test_without_a_common_mechanism_nothing_is_sent(
    security: Security, offered: tuple[str, ...]
) -> None:
    with pytest.raises(MechanismNotOffered, match=offered[0]):
        Credentials(security).begin(AT, hello(*offered))


@pytest.mark.parametrize("security", [None, Security(tls=True)])
def test_a_login_that_is_needed_and_not_given_is_named(security: Security | None) -> None:
    with pytest.raises(LoginMissing, match="broker:9292 asks for a login"):
        Credentials(security).begin(AT, hello())
    assert Credentials(security).begin(AT, hello(needed=False)) is None


def test_a_login_that_a_broker_does_not_take_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    credentials, peer = Credentials(ALICE), HelloResponse()
    for _ in range(2):
        assert credentials.begin(AT, peer) is None
    assert caplog.messages == [f"{AT} takes no logins: this client is anonymous there"]
    assert Credentials(None).begin(AT, peer) is None
    assert len(caplog.messages) == 1, "nothing was given"


def test_a_broker_that_asks_for_nothing_gets_nothing() -> None:
    assert Credentials(ALICE).begin(AT, HelloResponse()) is None


# --- what a broker may answer ------------------------------------------------------------------
def begin(security: Security = ALICE) -> Any:
    return Credentials(security).begin(AT, hello(SCRAM_SHA_256))


@pytest.mark.parametrize("kind", [AuthenticationFailed, CredentialsExpired, ThrottledBroker])
def test_a_refusal_names_the_user_and_the_broker_and_no_secret(kind: type[QuiverlogError]) -> None:
    with pytest.raises(kind) as found:
        begin().answer(AuthenticateResponse(error_code=kind.code, error_message="no."))
    assert PASSWORD not in str(found.value)
    if kind is not ThrottledBroker:
        assert "broker:9292, user 'alice': no." in str(found.value)


BAD_FIRSTS = {
    "another nonce": b"r=" + b"x" * 40 + b",s=AAAAAAAAAAAAAAAAAAAAAA==,i=4096",
    "nothing": b"",
    "no text": b"\xff",
}


@pytest.mark.parametrize("name", BAD_FIRSTS)
def test_a_broker_that_breaks_the_rules_gets_no_proof(name: str) -> None:
    with pytest.raises(BrokerNotProved, match="broker:9292, user 'alice'"):
        begin().answer(AuthenticateResponse(data=BAD_FIRSTS[name]))


@pytest.mark.parametrize("iterations", [1, 4_095, 100_001, 10**9])
def test_a_broker_cannot_choose_the_work(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "derive_keys", lambda *_: pytest.fail("work was done"))
    login = begin()
    nonce = login.request.data.decode().rpartition("r=")[2]
    data = f"r={nonce}{'b' * 24},s=AAAAAAAAAAAAAAAAAAAAAA==,i={iterations}".encode()
    with pytest.raises(BrokerNotProved, match="iterations"):
        login.answer(AuthenticateResponse(data=data))


@pytest.mark.parametrize("done", [True, False])
def test_a_broker_without_the_users_keys_is_refused(done: bool) -> None:
    login = begin()
    nonce = login.request.data.decode().rpartition("r=")[2]
    data = f"r={nonce}{'b' * 24},s=AAAAAAAAAAAAAAAAAAAAAA==,i=4096".encode()
    assert login.answer(AuthenticateResponse(data=data)) is not None
    forged = AuthenticateResponse(data=b"v=" + b"A" * 43 + b"=", is_done=done)
    with pytest.raises(BrokerNotProved, match="the user's keys"):
        login.answer(forged)


def test_a_broker_that_asks_for_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScramClient, "check", lambda one, data: None)
    monkeypatch.setattr(ScramClient, "final", lambda one, data: b"")
    login = begin()
    login.answer(AuthenticateResponse())
    with pytest.raises(BrokerNotProved, match="asks for more"):
        login.answer(AuthenticateResponse())


# --- what is read ------------------------------------------------------------------------------
def test_files_and_the_environment_are_read_at_each_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    by_file = Security(tls=False, user="alice", password_file=str(file))
    by_name = Security(tls=False, user="alice", password_env="QUIVERLOG_TEST_PASSWORD")
    tokens = Security(tls=False, token_file=str(file))
    for password in ("first", "second"):
        file.write_text(f"{password}\n")
        monkeypatch.setenv("QUIVERLOG_TEST_PASSWORD", password)
        Broker("alice", password.encode()).answers(by_file, hello())
        Broker("alice", password.encode()).answers(by_name, hello())
    for number in (1, 2):
        text = token_text("ab" * 12, bytes([number]) * 32)
        file.write_text(text)
        Broker(*parse_token(text)).answers(tokens, hello())


def test_a_file_with_a_secret_that_every_user_may_read_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password, described, plain = (tmp_path / name for name in ("password", "it.toml", "plain.toml"))
    password.write_text(PASSWORD)
    described.write_text('user = "alice"\npassword = "secret"\ntls = false\n')
    plain.write_text('tls = false\nuser = "alice"\npassword_file = "password"\n')
    by_file = Security.load(plain)
    for mode, count in ((0o640, 0), (0o604, 2), (0o604, 2)):
        password.chmod(mode)
        described.chmod(mode)
        Broker("alice", PASSWORD.encode()).answers(by_file, hello())
        Security.load(described)
        assert len(caplog.messages) == count
    assert all("chmod o= " in one and 'secret"' not in one for one in caplog.messages)


def _is_missing(path: Path) -> None:
    path.unlink()


WRONG_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (_is_missing, "cannot be read"),
    "two lines": (lambda p: p.write_text("one\nsecret\n"), "has 2"),
    "empty": (lambda p: p.write_text(""), "has 0"),
    "no text": (lambda p: p.write_bytes(b"\xff\xfe"), "UTF-8"),
    "too large": (lambda p: p.write_text("s" * (PASSWORD_FILE_BYTES_MAX + 1)), "bytes or more"),
    # The cut of what is read may fall into a letter.
    "too large, and no ASCII": (
        lambda p: p.write_text("é" * (PASSWORD_FILE_BYTES_MAX // 2 + 1)),
        "bytes or more",
    ),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_is_refused_without_being_quoted(tmp_path: Path, name: str) -> None:
    file = tmp_path / "password"
    file.write_text("fine")
    make, why = WRONG_FILES[name]
    make(file)
    for security in (
        Security(tls=False, user="alice", password_file=str(file)),
        Security(tls=False, token_file=str(file)),
    ):
        with pytest.raises(InvalidSecurity, match=why) as found:
            Credentials(security).begin(AT, hello())
        assert "secret" not in str(found.value)


def test_what_is_no_token_and_no_password_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIVERLOG_TEST_PASSWORD", raising=False)
    for security, why in (
        (Security(tls=False, token="secret"), "no token"),
        (Security(tls=False, user="a", password_env="QUIVERLOG_TEST_PASSWORD"), "no such variable"),
    ):
        with pytest.raises(InvalidSecurity, match=why) as found:
            Credentials(security).begin(AT, hello())
        assert "secret" not in str(found.value)


CONTRADICTIONS: list[dict[str, str]] = [
    {"user": "alice"},
    {"password": "x"},
    {"password_file": "x"},
    {"user": "alice", "password": "x", "password_file": "y"},
    {"user": "alice", "password": "x", "password_env": "y"},
    {"user": "alice", "password": "x", "token": TOKEN_TEXT},
    {"token": TOKEN_TEXT, "token_file": "x"},
    {"user": "a b", "password": "x"},
    {"user": "alice", "password": "x", "mechanism": "PLAIN"},
    {"user": "alice", "password": "x", "mechanism": TOKEN},
    {"user": "alice", "password": "x", "mechanism": CERTIFICATE},
    {"token": TOKEN_TEXT, "mechanism": SCRAM_SHA_256},
    {"token": TOKEN_TEXT, "mechanism": CERTIFICATE},
    {"user": "alice", "password": "x\ny"},
]


@pytest.mark.parametrize("given", CONTRADICTIONS, ids=lambda given: ",".join(given))
def test_contradictions_are_refused_before_a_connection(given: dict[str, str]) -> None:
    with pytest.raises(InvalidSecurity) as found:
        Security(tls=False, **given)  # type: ignore[arg-type]
    assert TOKEN_TEXT not in str(found.value)


def test_a_mechanism_goes_with_its_login() -> None:
    assert Security(tls=False, token=TOKEN_TEXT, mechanism=TOKEN).has_login
    assert Security(tls=False, user="alice", password="x", mechanism=SCRAM_SHA_512).has_login
    assert not Security(mechanism=CERTIFICATE, cert_file="x").has_login


def test_no_text_of_a_description_has_a_secret() -> None:
    for security, secret in (
        (ALICE, PASSWORD),
        (Security(tls=False, token=TOKEN_TEXT), TOKEN_TEXT.rpartition(".")[2]),
    ):
        login = Credentials(security).begin(AT, hello())
        for shown in (security, [security], login, login_module._read(security)):
            assert secret not in repr(shown) + str(shown)


def test_the_slow_step_is_done_once_for_a_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, ...]] = []
    real = login_module.derive_keys

    def counted(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    monkeypatch.setattr(login_module, "derive_keys", counted)
    credentials = Credentials(ALICE)
    for _ in range(3):
        credentials._derive(SCRAM_SHA_256, b"pw", bytes(16), 4096)
    assert len(made) == 1
    credentials._derive(SCRAM_SHA_256, b"other", bytes(16), 4096)
    assert len(made) == 2
    for number in range(20):
        credentials._derive(SCRAM_SHA_256, b"pw", bytes([number]) * 16, 4096)
    assert len(credentials._keys) <= login_module._KEYS_MAX
    assert all(b"pw" not in part for key in credentials._keys for part in key[1:2])


def test_nonces_differ() -> None:
    assert len({begin().request.data for _ in range(50)}) == 50


# --- certificates ------------------------------------------------------------------------------
SHOWN = Security(cert_file="alice.pem")


def test_a_certificate_logs_in_where_nothing_else_is_given() -> None:
    login = Credentials(SHOWN).begin(AT, hello(*MECHANISMS))
    assert login is not None
    assert (login.request.mechanism, login.request.data) == (CERTIFICATE, b"")
    assert login.answer(AuthenticateResponse(is_done=True, expires_ms=5)) is None
    assert login.expires_ms == 5
    both = Security(cert_file="alice.pem", user="alice", password=PASSWORD)
    assert Credentials(both).begin(AT, hello(*MECHANISMS)).request.mechanism == SCRAM_SHA_512  # type: ignore[union-attr]
    with pytest.raises(LoginMissing):
        Credentials(SHOWN).begin(AT, hello(*DEFAULT_MECHANISMS))


def test_a_certificate_that_is_refused_is_named() -> None:
    login = Credentials(SHOWN).begin(AT, hello(CERTIFICATE))
    assert login is not None
    refused = AuthenticateResponse(error_code=AuthenticationFailed.code, error_message="no.")
    with pytest.raises(AuthenticationFailed, match="by the certificate: no"):
        login.answer(refused)
    with pytest.raises(BrokerNotProved, match="asks for more"):
        login.answer(AuthenticateResponse())
