"""`quiverlog security`: files that brokers and clients take, with nothing secret in the output."""

from __future__ import annotations

import errno
import json
import os
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from quiverlog.cli.app import cli
from quiverlog.client.base.security import Security
from quiverlog.local.authority import Authority
from quiverlog.server.net.tls import TlsHolder
from quiverlog.tls import ServerTls, certificates_in, client_context

CLUSTER = "flights"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["security", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    before = os.umask(0)
    try:
        done = run(
            "init", tmp_path / "pki", "--cluster-id", CLUSTER,
            "--broker", "1=one.example,10.0.0.1", "--client", "alice",
        )  # fmt: skip
    finally:
        os.umask(before)
    assert done.exit_code == 0, done.output
    assert "PRIVATE" not in done.output
    return tmp_path / "pki"


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_keys_are_their_owners_alone(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    keys = list(folder.glob("*.key"))
    assert {key.stem for key in keys} == {"brokers-ca", "clients-ca", "broker-1", "alice"}
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


def test_a_certificate_of_a_broker_names_it_and_its_hosts(folder: Path) -> None:
    made = read(folder / "broker-1.pem")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["one.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == [f"quiverlog://{CLUSTER}/broker/1"]
    made.verify_directly_issued_by(read(folder / "brokers-ca.pem"))


def test_a_certificate_of_a_client_can_be_no_broker(folder: Path) -> None:
    made = read(folder / "alice.pem")
    made.verify_directly_issued_by(read(folder / "clients-ca.pem"))
    uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_brokers_and_clients_take_the_files(folder: Path) -> None:
    broker = folder / "broker-1"
    settings = ServerTls(f"{broker}.pem", f"{broker}.key", str(folder / "clients-ca.pem"), "wanted")
    assert (
        TlsHolder(settings).contexts.dates.serial
        == f"{read(folder / 'broker-1.pem').serial_number:x}"
    )
    alice = Security.load(folder / "alice.toml")
    context = client_context(alice.ca_file, alice.cert_file, alice.key_file)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert Security.load(folder / "client.toml") == Security(ca_file=alice.ca_file)


def test_renewing_makes_another_key_and_keeps_the_hosts(folder: Path) -> None:
    before, key = read(folder / "broker-1.pem"), (folder / "broker-1.key").read_bytes()
    assert run("issue", folder, "--broker", "1", "--days", "5").exit_code == 0
    after = read(folder / "broker-1.pem")
    san = x509.SubjectAlternativeName
    names = [one.extensions.get_extension_for_class(san).value for one in (before, after)]
    assert sorted(map(str, names[0])) == sorted(map(str, names[1]))
    assert before.serial_number != after.serial_number
    assert key != (folder / "broker-1.key").read_bytes()
    shown = json.loads(run("show", folder, "--format", "json").output)["certificates"]
    (row,) = [one for one in shown if one["file"] == "broker-1.pem"]
    assert row["days_left"] == 4
    assert row["serial"] == f"{after.serial_number:x}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--broker", "one=host"], "is not NODE_ID=HOST"),
        (["--broker", "1=a,,b"], "is not NODE_ID=HOST"),
        (["--broker", "01=a"], "is not NODE_ID=HOST"),
        (["--broker", "2"], "name the hosts"),
        *(
            (["--broker", f"2={host}"], "is no host name")
            for host in (
                "bröker",
                "broker-1:9292",
                "[::1]",
                "-a",
                "a-",
                "a..b",
                "a b",
                "a" * 64,
                "*",
                ".".join(["a" * 49] * 6),
            )
        ),
        (["--client", ""], "1 to 64 letters"),
        (["--client", "client"], "not 'client'"),
        (["--client", "../x"], "1 to 64 letters"),
        (["--client", "broker-1"], "no name of a broker"),
        (["--client", "brokers-ca"], "no name of a broker"),
        (["--client", "x" * 65], "1 to 64 letters"),
        ([], "Name a --broker or a --client"),
        (["--client", "a", "--days", "0"], "0 is not in the range"),
    ],
)
def test_what_is_refused(folder: Path, words: list[str], why: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    done = run("issue", folder, *words)
    assert done.exit_code != 0
    assert why in (done.output + str(done.exception))
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_folder_that_holds_something_is_left_alone(folder: Path) -> None:
    done = run("init", folder, "--cluster-id", "x")
    assert "is not empty" in str(done.exception)
    empty = folder.parent / "empty"
    empty.mkdir()
    done = run("issue", empty, "--client", "a")
    assert "holds no authorities" in str(done.exception)
    assert "holds no authorities" in str(run("show", empty).exception)


def test_numbers_and_dates_are_read_as_others_read_them(tmp_path: Path) -> None:
    made = [Authority.make(f"a{n}", days=days) for n, days in enumerate((1, 36_500))]
    path = tmp_path / "all.pem"
    path.write_bytes(b"text before\n" + b"".join(one.certificate for one in made))
    found = certificates_in(str(path))
    for one, ours in zip(made, found, strict=True):
        theirs = x509.load_pem_x509_certificate(one.certificate)
        assert ours.serial == theirs.serial_number
        assert ours.not_after_s == theirs.not_valid_after_utc.timestamp()
        assert ours.not_before_s == theirs.not_valid_before_utc.timestamp()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--cluster-id", "x", "--broker", "1"], "name its hosts"),
        (["--cluster-id", "x", "--broker", "1=a", "--broker", "2=b:1"], "is no host name"),
        (["--cluster-id", "x", "--client", "client"], "not 'client'"),
        (["--cluster-id", ""], "1 to 249"),
        (["--cluster-id", "x" * 250], "1 to 249"),
    ],
)
def test_a_first_folder_is_made_whole_or_not_at_all(
    tmp_path: Path, words: list[str], why: str
) -> None:
    done = run("init", tmp_path / "pki", *words)
    assert done.exit_code == 2
    assert why in done.output
    assert not (tmp_path / "pki").exists()


def test_long_ids_and_all_kinds_of_hosts_are_taken(tmp_path: Path) -> None:
    subjects = set()
    for number, cluster_id in enumerate(("x" * 50, "x" * 51, "x" * 249, "é" * 249)):
        folder = tmp_path / str(number)
        hosts = f"a,*.b.example,10.0.0.1,::1,{'.'.join(['a' * 61] * 4)},_x"
        done = run("init", folder, "--cluster-id", cluster_id, "--broker", f"1={hosts}")
        assert done.exit_code == 0, done.output
        subjects.add(read(folder / "brokers-ca.pem").subject.rfc4514_string())
    assert len(subjects) == 4


def test_a_renewal_keeps_an_edited_description(folder: Path) -> None:
    edited = (folder / "alice.toml").read_text() + 'server_name = "log.example"\n'
    (folder / "alice.toml").write_text(edited)
    before = read(folder / "alice.pem").serial_number
    assert run("issue", folder, "--client", "alice").exit_code == 0
    assert read(folder / "alice.pem").serial_number != before
    assert (folder / "alice.toml").read_text() == edited


# --- a disk that fails ---------------------------------------------------------------------------
def fails_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let a write fail, counted from 0; what comes is the list of all that began."""
    begun: list[int] = []
    sync, write_text = os.fsync, Path.write_text

    def write() -> None:
        begun.append(number)
        if len(begun) == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    def fsync(fd: int) -> None:
        write()
        sync(fd)

    def write_some(path: Path, text: str) -> int:
        done = write_text(path, text[:3])
        write()
        return done and write_text(path, text)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "write_text", write_some)
    return begun


@pytest.mark.parametrize("is_there", [True, False])
def test_a_full_disk_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    pki = tmp_path / "pki"
    words = ["--cluster-id", CLUSTER, "--broker", "1=one.example", "--client", "alice"]
    if is_there:
        pki.mkdir()
    for number in range(100):
        with monkeypatch.context() as patched:
            begun = fails_at(patched, number)
            done = run("init", pki, *words)
        if done.exit_code == 0:
            break
        assert "No space left on device" in str(done.exception)
        assert "alice" not in done.output
        assert (list(pki.iterdir()) if is_there else pki.exists()) in ([], False)
    assert number == len(begun) > 10
    assert len(list(pki.iterdir())) == 11


def test_a_full_disk_leaves_a_certificate_and_its_own_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [folder / "broker-1.pem", folder / "broker-1.key"]
    before = [path.read_bytes() for path in files]
    for number in range(100):
        with monkeypatch.context() as patched:
            fails_at(patched, number)
            done = run("issue", folder, "--broker", "1")
        if done.exit_code == 0:
            break
        # The last write is synced a second time, with nothing new to write.
        assert number == 2 or [path.read_bytes() for path in files] == before
    assert number == 3
    assert [path.read_bytes() for path in files] != before
    assert len(list(folder.iterdir())) == 11
