"""Both clients over TLS: rows, idle connections, what is refused and why, and changed files."""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiverlog.client.base.results import Address
from quiverlog.client.base.security import Security
from quiverlog.client.drivers.blocking import readable, system_reason
from quiverlog.client.drivers.tls import ClientTls
from quiverlog.errors import ConnectionFailed, InvalidSecurity, TlsFailed, UnknownTopic
from quiverlog.local.authority import Authority
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, read, rows
from tests.support.scripted_broker import ScriptedBroker
from tests.support.tls import TlsFiles, write_files

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
LARGE_BYTES = 3 << 20


def server(files: TlsFiles, *, clients_of: str = "") -> ssl.SSLContext:
    """A context as others make it: with tickets, which our brokers do not send."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    if clients_of:
        context.load_verify_locations(clients_of)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make("tests")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def files(folder: Path, authority: Authority) -> TlsFiles:
    return write_files(folder, "broker", authority=authority)


@pytest.fixture(scope="module")
def broker(files: TlsFiles):
    with ScriptedBroker(tls=server(files)) as broker:
        security = Security(ca_file=files.ca)
        with connect("blocking", broker.bootstrap, security=security) as client:
            client.create_topic("t", SCHEMA, partitions=2)
        yield broker


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_rows_go_both_ways(kind, broker, files):
    with connect(kind, broker.bootstrap, security=Security(ca_file=files.ca)) as client:
        with client.producer("t", partition=0) as producer:
            producer.send({"id": 1, "name": "x" * LARGE_BYTES})
            producer.send(rows(50))
        found = read(client, "t")
    assert [row for row in found if row["name"] == "x" * LARGE_BYTES]
    assert len(found) >= 51


def test_an_idle_connection_is_used_again_until_it_ends(broker, files):
    with connect("blocking", broker.bootstrap, security=Security(ca_file=files.ca)) as client:
        client.list_topics()
        (idle,) = client.driver._idle.values()
        connections, made = broker.connections, idle[0]
        client.list_topics()
        assert broker.connections == connections
        broker.drop_connections()
        until = time.monotonic() + 10
        while not made.is_stale():
            assert time.monotonic() < until
        client.list_topics()
        assert broker.connections == connections + 1


@pytest.mark.parametrize("kind", CLIENT_KINDS)
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("another authority", "its certificate is refused: (unable to get local|self.signed)"),
        ("expired", "its certificate is refused: certificate has expired"),
        ("not yet valid", "its certificate is refused: certificate is not yet valid"),
        ("another name", "its certificate is refused: IP address mismatch"),
    ],
)
def test_a_broker_that_is_refused(kind, case, why, folder, files, authority):
    made = {
        "another authority": lambda: write_files(folder, "other"),
        "expired": lambda: write_files(
            folder, "expired", authority=authority, begins=NOW - 2 * DAY, days=1
        ),
        "not yet valid": lambda: write_files(
            folder, "early", authority=authority, begins=NOW + DAY, days=1
        ),
        "another name": lambda: write_files(
            folder, "name", authority=authority, hosts=("localhost", "10.0.0.1")
        ),
    }[case]()
    with ScriptedBroker(tls=server(made)) as broker:
        began_s = time.monotonic()
        with pytest.raises(TlsFailed, match=why) as refused:
            connect(kind, broker.bootstrap, security=Security(ca_file=files.ca))
        assert time.monotonic() - began_s < 10, "it would not help to wait"
        assert broker.bootstrap in refused.value.message
        assert "\n" not in refused.value.message


def test_another_name_is_checked_where_one_is_given(folder, files, authority):
    made = write_files(folder, "named", authority=authority, hosts=("broker.example",))
    with ScriptedBroker(tls=server(made)) as broker:
        good = Security(ca_file=files.ca, server_name="broker.example")
        with connect("blocking", broker.bootstrap, security=good) as client:
            client.list_topics()
        bad = Security(ca_file=files.ca, server_name="other.example")
        with pytest.raises(TlsFailed, match="Hostname mismatch"):
            connect("blocking", broker.bootstrap, security=bad)


def test_a_subject_is_no_name(folder, files, authority):
    """Authorities check alternative names alone."""
    made = write_files(folder, "named.example", authority=authority, hosts=())
    security = Security(ca_file=files.ca, server_name="named.example")
    with (
        ScriptedBroker(tls=server(made)) as broker,
        pytest.raises(TlsFailed, match="Hostname mismatch"),
    ):
        connect("blocking", broker.bootstrap, security=security)


def test_a_broken_connection_has_no_text_of_the_system():
    """OpenSSL's numbers are none of the system's: 1 is "Operation not permitted" there."""
    reset = ConnectionResetError(errno.ECONNRESET, "asyncio names the address here")
    assert system_reason(reset) == "Connection reset by peer"
    cases = {
        "BAD_RECORD_MAC": "TLS failed (bad record mac)",
        "UNEXPECTED_EOF_WHILE_READING": "it was cut off",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a client certificate, and none was sent",
    }
    for reason, text in cases.items():
        error = ssl.SSLError(1, f"[SSL: {reason}]")
        error.reason = reason
        assert system_reason(error) == text
    assert system_reason(ssl.SSLEOFError(8, "EOF occurred")) == "it was cut off"


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that gives each connection to `answer`; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as plain, contextlib.suppress(OSError):
                        answer(plain)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_server_of_another_kind(kind, files):
    old = server(files)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    kinds = (
        (
            lambda it: (it.recv(9000), it.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            "without TLS",
        ),
        (lambda it: old.wrap_socket(it, server_side=True), "another version of TLS"),
    )
    for answer, why in kinds:
        with answering(answer) as where, pytest.raises(TlsFailed, match=why) as refused:
            connect(kind, where, security=Security(ca_file=files.ca))
        assert where in refused.value.message
    silent = answering(lambda it: it.recv(9000))
    cut_off = pytest.raises(ConnectionFailed, match="closed during the TLS handshake")
    with silent as where, cut_off:
        connect(kind, where, security=Security(ca_file=files.ca), request_timeout=0.5)


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_client_shows_its_certificate_where_one_is_asked_for(kind, folder, files, authority):
    mine = write_files(folder, "client", authority=authority, hosts=("alice",))
    with ScriptedBroker(tls=server(files, clients_of=files.ca)) as broker:
        good = Security(ca_file=files.ca, cert_file=mine.cert, key_file=mine.key)
        with connect(kind, broker.bootstrap, security=good) as client:
            client.list_topics()
        bare = Security(ca_file=files.ca)
        with pytest.raises(ConnectionFailed, match="certificate") as refused:
            connect(kind, broker.bootstrap, security=bare, request_timeout=1.0)
        assert "\n" not in refused.value.message


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_broker_that_never_answers_the_handshake(kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        options = {"connect_timeout": 0.3, "request_timeout": 0.5}
        with pytest.raises(ConnectionFailed, match=r"in time|did not answer"):
            connect(kind, where, security=Security(), **options)
        assert time.monotonic() - began_s < 5


def test_changed_files_count_for_the_next_connection_and_bad_ones_do_not(
    tmp_path, authority, caplog
):
    files = write_files(tmp_path, "ca", authority=authority)
    contexts = ClientTls(Security(ca_file=files.ca))
    first = contexts.current()
    assert contexts.current() is first
    Path(files.ca).write_text("no certificate")
    with caplog.at_level(logging.WARNING, "quiverlog"):
        assert contexts.current() is first
        assert contexts.current() is first
    assert len(caplog.records) == 1, "once for each change"
    assert "has no certificates in PEM form" in caplog.text
    Path(files.ca).write_bytes(authority.certificate)
    assert contexts.current() is not first
    os.unlink(files.ca)
    assert contexts.current() is not first


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ca_file": "absent"}, "absent cannot be read: No such file"),
        ({"cert_file": "broker.crt", "key_file": "other.key"}, "the key is not that of"),
        ({"cert_file": "broker.crt", "key_file": "broker.crt"}, "no private key"),
        ({"cert_file": "broker.crt", "key_file": "locked.key"}, "the key is encrypted"),
        ({"ca_file": "broken.ca"}, "has a damaged certificate"),
    ],
)
def test_files_that_cannot_be_used(folder, files, change, why):
    write_files(folder, "other")
    write_locked_key(folder / "locked.key")
    lines = Path(files.ca).read_text().splitlines()
    (folder / "broken.ca").write_text("\n".join([lines[0], lines[1], lines[-1]]))
    security = Security(**{key: str(folder / name) for key, name in change.items()})
    with pytest.raises(InvalidSecurity, match=why) as refused:
        ClientTls(security).current()
    assert "PRIVATE" not in refused.value.message


def write_locked_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    made = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        made.private_bytes(
            s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")
        )
    )


class Pair:
    """A client's socket, and the other end in the hands of the test."""

    def __init__(self, files: TlsFiles) -> None:
        ours, self.theirs = socket.socketpair()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = server(files).wrap_bio(self._in, self._out, server_side=True)
        thread = threading.Thread(target=self._shake)
        thread.start()
        contexts = ClientTls(Security(ca_file=files.ca))
        self.ours = contexts.connect(ours, Address("127.0.0.1", 1), time.monotonic() + 10)
        thread.join()
        self.fileno, self.pending = self.ours.fileno, self.ours.pending

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.theirs.close()
        self.ours.close()

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self.flush()

    def flush(self) -> None:
        self.theirs.sendall(self._out.read())

    def _shake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._in.write(self.theirs.recv(1 << 16))
            else:
                return  # The tickets wait for `flush`.


def test_tickets_make_a_socket_readable_and_not_stale(files):
    with Pair(files) as pair:
        pair.flush()
        assert readable([pair], 1) == [pair.fileno()]
        assert not pair.ours.is_stale()
        assert readable([pair], 0) == []
        pair.send(b"too late")
        assert readable([pair], 1)
        assert pair.ours.is_stale()
    with Pair(files) as pair:
        pair.theirs.close()
        assert pair.ours.is_stale(), "its end"


def test_bytes_that_were_decrypted_are_reported_though_the_socket_is_empty(files):
    with Pair(files) as pair:
        pair.send(b"x" * 1000)
        pair.ours.settimeout(5)
        assert pair.ours.recv_into(memoryview(bytearray(10))) == 10
        assert pair.pending() == 990
        assert readable([pair], 0) == [pair.fileno()]
        assert pair.ours.recv_into(memoryview(bytearray(4096))) == 990
        assert readable([pair], 0) == []
        pair.ours.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            pair.ours.recv_into(memoryview(bytearray(10)))


def test_plain_clients_never_import_ssl():
    code = (
        "import sys, quiverlog\n"
        "from quiverlog.client.client import Client\n"
        "Client('127.0.0.1:1').close()\n"
        "assert 'ssl' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_request_that_is_refused_is_an_answer_all_the_same(broker, files):
    security = Security(ca_file=files.ca)
    with connect("blocking", broker.bootstrap, security=security, request_timeout=3) as client:
        with pytest.raises(UnknownTopic):
            client.describe_topic("absent")
        broker.fault(m.MetadataRequest, "drop_reply")
        assert client.list_topics() == ["t"]
