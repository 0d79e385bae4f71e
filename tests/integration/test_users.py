"""Real brokers whose listeners ask for logins: users, tokens, the command line, a lock-out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
import quiverlog.testing
from quiverlog import Security
from quiverlog.errors import (
    AuthenticationFailed,
    CredentialsExpired,
    FrameTooLarge,
    InvalidRequest,
    LoginMissing,
    NotAuthenticated,
    PolicyViolation,
    QuiverlogError,
)
from quiverlog.limits import UNPROVED_FRAME_BYTES_MAX
from quiverlog.local.ports import free_port
from quiverlog.local.secret_file import write_private
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import token_text
from quiverlog.wire.security.scram import HASHES, SCRAM_SHA_256, parse_credential_line
from tests.stranger import login
from tests.stranger.client import Refused, Stranger
from tests.support.broker import BrokerProcess, ordinary_environment
from tests.support.pages import ROOT as REPOSITORY
from tests.support.pages import blocks, typed
from tests.support.rawclient import RawClient
from tests.support.secured import ROOT, ROOT_PASSWORD, secured_broker
from tests.support.until import until

pytestmark = pytest.mark.process

PAGES = REPOSITORY / "docs"
SCHEMA = pa.schema([("id", pa.int64())])


def run(*words: str, env: dict[str, str] | None = None, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "quiverlog", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**ordinary_environment(), **(env or {})},
    )
    return done.returncode, done.stdout, done.stderr


def as_(user: str, password: str, **more: str) -> Security:
    return Security(tls=False, user=user, password=password, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class World:
    broker: BrokerProcess
    folder: Path

    def connect(self, security: Security | None = ROOT) -> quiverlog.Client:
        return quiverlog.connect(self.broker.bootstrap, security=security)

    def cli(self, *words: str, security: Path) -> tuple[int, str, str]:
        return run(*words, "-b", self.broker.bootstrap, "--security-file", str(security))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("users")
    with secured_broker(folder) as broker:
        yield World(broker, folder)
        assert ROOT_PASSWORD not in broker.log_text


def test_the_first_user_logs_in_and_all_others_are_refused(world: World) -> None:
    with world.connect() as client:
        me = client.who_am_i()
    assert (me.principal, me.mechanism, me.is_super) == ("user:root", "SCRAM-SHA-512", True)
    with pytest.raises(LoginMissing):
        world.connect(None)
    for wrong in (as_("root", "wrong"), as_("mallory", ROOT_PASSWORD)):
        began_s = time.monotonic()
        with pytest.raises(AuthenticationFailed, match="refuses the login"):
            world.connect(wrong)
        assert time.monotonic() - began_s > 0.7


def test_rows_go_through_logged_in_connections(world: World) -> None:
    with world.connect() as client:
        client.create_topic("rows", SCHEMA)
        with client.producer("rows") as producer:
            for number in range(10):
                producer.send({"id": number})
        assert client.read("rows").to_arrow().column("id").to_pylist() == list(range(10))

    async def count() -> int:
        async with quiverlog.aio.connect(world.broker.bootstrap, security=ROOT) as client:
            assert (await client.who_am_i()).principal == "user:root"
            return (await (await client.read("rows")).to_arrow()).num_rows

    assert asyncio.run(count()) == 10


def test_asyncio_clients_name_a_refusal(world: World) -> None:
    async def connect(security: Security | None) -> None:
        async with quiverlog.aio.connect(world.broker.bootstrap, security=security):
            pass

    with pytest.raises(AuthenticationFailed):
        asyncio.run(connect(as_("root", "wrong")))
    with pytest.raises(LoginMissing):
        asyncio.run(connect(None))


def test_before_a_login_nothing_large_is_taken(world: World) -> None:
    with RawClient(world.broker.address, hello=False) as raw:
        assert raw.ask(m.HelloRequest()).needs_authentication
        raw.send(m.MetadataRequest())
        assert raw.receive()[1].error_code == NotAuthenticated.code
        assert raw.next_frame() is None, "closed"
    with RawClient(world.broker.address, hello=False) as raw:
        size = UNPROVED_FRAME_BYTES_MAX + 1
        raw.send_bytes(size.to_bytes(4, "little") + (16).to_bytes(4, "little"))
        assert raw.expect_refusal().error_code == FrameTooLarge.code
        assert raw.next_frame() is None, "closed"


def test_the_lines_of_a_first_user_have_no_password() -> None:
    code, lines, _ = run(*("user", "hash", "root", "--password-env", "P"), env={"P": ROOT_PASSWORD})
    assert code == 0
    found = [parse_credential_line(line) for line in lines.splitlines()]
    assert [(user, mechanism) for user, mechanism, _ in found] == [
        ("root", mechanism) for mechanism in HASHES
    ]
    assert ROOT_PASSWORD not in lines


def test_users_by_the_command_line(world: World) -> None:
    root = world.folder / "root.toml"
    write_private(world.folder / "root.password", f"{ROOT_PASSWORD}\n")
    root.write_text('tls = false\nuser = "root"\npassword_file = "root.password"\n')
    code, password, _ = world.cli("user", "create", "carol", "--generate", security=root)
    assert code == 0
    write_private(world.folder / "carol.password", password)
    carol = world.folder / "carol.toml"
    carol.write_text('tls = false\nuser = "carol"\npassword_file = "carol.password"\n')
    code, shown, _ = world.cli("whoami", "--format", "json", security=carol)
    assert code == 0
    assert json.loads(shown)["principal"] == "user:carol"

    code, _, _ = world.cli(
        *("token", "create", "--file", str(world.folder / "carol.token")), security=carol
    )
    assert code == 0
    assert (world.folder / "carol.token").stat().st_mode & 0o777 == 0o600
    token = world.folder / "token.toml"
    token.write_text('tls = false\ntoken_file = "carol.token"\n')
    code, shown, _ = world.cli("whoami", security=token)
    assert code == 0
    assert "TOKEN" in shown
    code, _, why = world.cli("token", "create", security=token)
    assert (code, "needs a login by password" in why) == (1, True)
    code, shown, _ = world.cli("token", "list", "--format", "json", security=root)
    assert [one["user"] for one in json.loads(shown)] == ["carol"]
    code, _, said = world.cli("token", "end", "--all", "--yes", security=carol)
    assert (code, said.strip()) == (0, "1 ended")
    code, _, why = world.cli("whoami", security=token)
    assert (code, "AUTHENTICATION_FAILED" in why) == (1, True)

    code, _, _ = world.cli("user", "delete", "carol", "--yes", security=root)
    assert code == 0
    code, shown, _ = world.cli("user", "list", "--format", "json", security=root)
    assert "carol" not in {one["name"] for one in json.loads(shown)}
    assert password.strip() not in world.broker.log_text


def test_a_password_is_replaced_under_load_without_an_error(world: World) -> None:
    """Both count until the old one is dropped: no request fails, and no row is lost or doubled."""
    file = world.folder / "dave.password"
    file.write_text("old password\n")
    with world.connect() as admin:
        admin.create_user("dave", "old password", is_admin=True)
        admin.create_topic("replaced", SCHEMA)
        dave = Security(tls=False, user="dave", password_file=str(file))
        stop, failures, sent = threading.Event(), [], []

        def load() -> None:
            try:
                with world.connect(dave) as client, client.producer("replaced") as producer:
                    while not stop.is_set():
                        producer.send({"id": len(sent)}).result(30)
                        sent.append(len(sent))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            until(lambda: len(sent) > 5, "the load has begun")
            admin.change_password("dave", "new password", keep_old=True)
            with world.connect(as_("dave", "new password")) as client:
                assert client.who_am_i().principal == "user:dave"
            before = len(sent)
            until(lambda: len(sent) > before + 5, "rows go on")
            file.write_text("new password\n")  # As a deployment does.
            admin.drop_old_password("dave")
            before = len(sent)
            until(lambda: len(sent) > before + 5, "the client logs in again")
        finally:
            stop.set()
            thread.join(30)
        assert not failures
        stored = admin.read("replaced").to_arrow().column("id").to_pylist()
        assert stored == sent
        with pytest.raises(AuthenticationFailed):
            world.connect(as_("dave", "old password"))
        admin.delete_user("dave")


def test_a_client_renews_its_token_before_it_ends(world: World) -> None:
    file = world.folder / "renewed.token"
    with world.connect() as owner:
        file.write_text(owner.create_token(3.0).text)
        token = Security(tls=False, token_file=str(file))
        with world.connect(token) as client:
            first = client.who_am_i()
            assert first.mechanism == "TOKEN"
            assert first.expires_s is not None
            assert first.expires_s <= 3
            file.write_text(owner.create_token(60.0).text)
            until(lambda: (client.who_am_i().expires_s or 0) > 10, "it has the newer one")

        async def renewed() -> None:
            file.write_text(owner.create_token(3.0).text)
            async with quiverlog.aio.connect(world.broker.bootstrap, security=token) as aclient:
                assert ((await aclient.who_am_i()).expires_s or 9) <= 3
                file.write_text(owner.create_token(60.0).text)
                connections = set(aclient.driver._connections.values())
                end_s = time.monotonic() + 10
                while ((await aclient.who_am_i()).expires_s or 0) < 10:
                    assert time.monotonic() < end_s, "it was not renewed"
                    await asyncio.sleep(0.05)
                assert set(aclient.driver._connections.values()) == connections, "on the same one"

        asyncio.run(renewed())


def test_a_token_that_has_ended_is_named_as_such(world: World) -> None:
    with world.connect() as owner:
        made = owner.create_token(1.0)
        with quiverlog.connect(
            world.broker.bootstrap, security=Security(tls=False, token=made.text),
            request_timeout=2.0,
        ) as client:  # fmt: skip
            assert client.who_am_i().principal == "user:root"
            until(lambda: _fails(client) is CredentialsExpired, "the token has ended")


def _fails(client: quiverlog.Client) -> type[QuiverlogError] | None:
    try:
        client.who_am_i()
    except QuiverlogError as error:
        return type(error)
    return None


def test_lives_and_mechanisms_may_be_chosen(world: World) -> None:
    with world.connect() as owner, pytest.raises(InvalidRequest):
        owner.create_token(100_000.0)
    named = as_("root", ROOT_PASSWORD, mechanism=SCRAM_SHA_256)
    with world.connect(named) as client:
        assert client.who_am_i().mechanism == SCRAM_SHA_256


def test_a_stranger_logs_in_from_the_docs_alone(world: World) -> None:
    with world.connect() as owner:
        token = owner.create_token(60.0).text

    def connected() -> Stranger:
        stranger = Stranger(*world.broker.address)
        stranger.hello()
        return stranger

    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        stranger = connected()
        assert login.log_in(stranger, mechanism, "root", ROOT_PASSWORD) == ("user:root", -1)
        assert login.who_am_i(stranger) == "user:root"
        stranger.close()
    stranger = connected()
    principal, left_ms = login.log_in_by_token(stranger, token)
    assert (principal, 0 < left_ms <= 60_000) == ("user:root", True)
    stranger.close()
    stranger = connected()
    with pytest.raises(Refused) as found:
        login.log_in(stranger, "SCRAM-SHA-256", "root", "wrong")
    assert found.value.code == AuthenticationFailed.code
    stranger.close()
    assert "quiverlog" not in Path(login.__file__).read_text()


# --- clusters of their own -------------------------------------------------------------------
def test_a_user_counts_at_every_broker_and_outlives_the_controller() -> None:
    """Brokers share the listener with clients, and prove themselves by their secret."""
    with quiverlog.testing.cluster(3, users=True) as cluster, cluster.client() as admin:
        admin.create_user("frank", "pw")
        made = admin.create_token(60.0, owner="frank")
        everywhere = [
            (one.listen, security)
            for one in cluster.brokers.values()
            for security in (as_("frank", "pw"), Security(tls=False, token=made.text))
        ]
        for address, security in everywhere:
            with quiverlog.connect(address, security=security) as client:
                assert client.who_am_i().principal == "user:frank"
            with pytest.raises(LoginMissing):
                quiverlog.connect(address)
        controller = admin.describe_cluster().controller
        assert controller is not None
        cluster.brokers[controller].kill()
        until(lambda: admin.describe_cluster().controller not in (None, controller), "another")
        with quiverlog.connect(cluster.bootstrap, security=as_("frank", "pw")) as client:
            client.change_password("frank", "newer")
        unknown = Security(tls=False, token=token_text("0" * 24, bytes(32)))
        with pytest.raises(AuthenticationFailed):
            quiverlog.connect(cluster.bootstrap, security=unknown)
        cluster.start()
        with quiverlog.connect(
            cluster.brokers[controller].listen, security=as_("frank", "newer")
        ) as client:
            assert client.who_am_i().principal == "user:frank", "it has caught up"


# --- a broker of its own each ------------------------------------------------------------------
def test_the_first_lines_of_the_guide_work(tmp_path: Path) -> None:
    (script,) = [
        one.text for one in blocks(PAGES / "security.md", "sh") if "quiverlog user hash" in one.text
    ]
    assert script.count("quiverlog broker ") == 1
    port = free_port()
    own = f"quiverlog broker --listen 127.0.0.1:{port} --http-listen off "
    script = script.replace("quiverlog broker ", own)
    shown = typed(f"trap 'kill %1' EXIT\n{script}", tmp_path, f"127.0.0.1:{port}")
    assert "user:admin" in shown
    assert len(shown.splitlines()[-1]) == 32, "the password of alice"
    for name in ("admin.password", "admin.credential", "admin.toml"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name


def test_a_lock_out_is_ended_by_the_brokers_own_configuration(tmp_path: Path) -> None:
    """`super.users` and SIGHUP let one in, without a restart; without it the last administrator
    stays."""
    with (
        secured_broker(tmp_path) as broker,
        quiverlog.connect(broker.bootstrap, security=ROOT) as client,
    ):
        client.create_user("eve", "pw")
        with pytest.raises(PolicyViolation, match="last administrator"):
            client.set_admin("root", False)
        broker.write_config({**broker.config, "super.users": "eve"})
        os.kill(broker.pid, signal.SIGHUP)
        with quiverlog.connect(broker.bootstrap, security=as_("eve", "pw")) as rescued:
            until(lambda: rescued.who_am_i().is_super, "the file is read again")
            client.set_admin("root", False)
            assert not client.who_am_i().is_super
            rescued.set_admin("root", True)
        assert client.who_am_i().is_super


def test_a_listener_without_tls_asks_for_no_login_by_chance(tmp_path: Path) -> None:
    code, _, why = run(
        *("broker", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0"),
        *("--http-listen", "off", "--set", "listeners.default.authentication=required"),
    )
    assert code == 2
    assert "asks for logins without TLS" in why
