"""The description of a secured client: its file, its refusals, and what it never shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import quiverlog
from quiverlog.addresses import SECURITY_VARIABLE
from quiverlog.client.base.security import Security, security_of
from quiverlog.errors import InvalidArgument, InvalidSecurity


def described(folder: Path, text: str) -> str:
    path = folder / "security.toml"
    path.write_text(text)
    return str(path)


def test_names_of_files_are_relative_to_the_description(tmp_path, monkeypatch):
    path = described(tmp_path, 'ca_file = "ca.pem"\ncert_file = "/else/where.pem"\n')
    monkeypatch.chdir(tmp_path)
    loaded = Security.load("security.toml")
    assert loaded == Security(ca_file=str(tmp_path / "ca.pem"), cert_file="/else/where.pem")
    assert Security.load(Path(path)) == loaded
    monkeypatch.chdir("/")
    assert loaded.ca_file == str(tmp_path / "ca.pem")


def test_an_empty_description_trusts_the_authorities_of_the_machine(tmp_path):
    assert Security.load(described(tmp_path, "")) == Security()
    assert Security().tls


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("verify = false", "there is no key `verify`"),
        ("check_hostname = false", "there is no key `check_hostname`"),
        ("tls = 0", "`tls` is no true or false"),
        ("ca_file = true", "`ca_file` is no text"),
        ('server_name = "a\\nb"', "`server_name` is no line"),
        (f'server_name = "{"x" * 4097}"', "`server_name` is no line"),
        ('tls = false\nca_file = "ca.pem"', "`ca_file` is given, and `tls` is false"),
        ('key_file = "k.pem"', "`key_file` is given without `cert_file`"),
        ("ca_file = ", "is no TOML"),
        ("#" * (1 << 16) + "\n", "has more than 65536 bytes"),
    ],
)
def test_what_is_refused(tmp_path, text, why):
    path = described(tmp_path, text)
    with pytest.raises(InvalidSecurity, match=why) as refused:
        Security.load(path)
    assert path in refused.value.message


def test_the_longest_line_and_the_largest_file_are_taken(tmp_path):
    assert Security.load(described(tmp_path, f'server_name = "{"x" * 4096}"'))
    assert Security.load(described(tmp_path, "#" * ((1 << 16) - 1) + "\n"))


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(InvalidSecurity, match="No such file"):
        Security.load(tmp_path / "absent")
    (tmp_path / "latin").write_bytes(b'ca_file = "\xff"')
    with pytest.raises(InvalidSecurity, match="not UTF-8"):
        Security.load(tmp_path / "latin")


def test_the_environment_counts_where_nothing_is_given(tmp_path, monkeypatch):
    monkeypatch.delenv(SECURITY_VARIABLE, raising=False)
    assert security_of(None) is None
    monkeypatch.setenv(SECURITY_VARIABLE, described(tmp_path, 'server_name = "b"'))
    assert security_of(None) == Security(server_name="b")
    assert security_of(Security()) == Security()
    plain = Security(tls=False)
    assert security_of(plain) == plain


def test_a_home_is_found_in_all_places(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_text('ca_file = "ca.pem"\n')
    monkeypatch.setenv("QUIVERLOG_SECURITY_FILE", "~/mine.toml")
    mine = Security(ca_file=str(tmp_path / "ca.pem"))
    assert security_of(None) == security_of("~/mine.toml") == mine


def test_a_client_refuses_what_is_no_description_without_quoting_it():
    with pytest.raises(
        InvalidArgument, match=r"security is a dict: give a quiverlog\.Security"
    ) as e:
        quiverlog.connect("127.0.0.1:1", security={"password": "hunter2"})
    assert "hunter2" not in str(e.value)
    with pytest.raises(InvalidSecurity, match="cannot be read"):
        quiverlog.connect("127.0.0.1:1", security=os.path.join("absent", "file"))
