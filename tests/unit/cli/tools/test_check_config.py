"""`quiverlog broker --check-config`: what a start would use or refuse, without a start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quiverlog.cli import main
from quiverlog.cli.app import cli


def check(*words: object, **environ: str) -> Result:
    return CliRunner().invoke(cli, ["broker", "--check-config", *map(str, words)], env=environ)


def test_what_is_set_is_shown_with_its_source_and_nothing_starts(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('listen = "127.0.0.1:4000"\nnode.id = 1\n')
    data = tmp_path / "data"
    done = check("--config", file, "--node-id", 3, "--data-dir", data, QUIVERLOG_RACK="a")
    assert done.output.splitlines() == [
        f"data.dir = {data}  (flag)",
        "listen = 127.0.0.1:4000  (file)",
        "node.id = 3  (flag)",
        "rack = a  (environment)",
        "The configuration is valid. Whether ports are free and names resolve was not tried.",
    ]
    assert done.exit_code == 0
    assert not data.exists()


def test_what_a_start_would_refuse_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 64)
    secret.chmod(0o644)
    for words, reason in (
        (["--node-id", "x"], "--node-id is 'x'"),
        (["--cluster-secret-file", str(secret)], "every user of this machine may use it"),
        (["--set", f"listeners.default.tls.cert.file={secret}"], "TLS of listener 'default'"),
        (["--data-dir", str(secret / "data")], f"{secret} is a file. Name a directory."),
        (["--data-dir", str(secret)], f"{secret} is a file. Name a directory."),
    ):
        assert main(["broker", "--check-config", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert reason in captured.err


def test_a_place_that_is_closed_to_this_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def access(place: Path, mode: int) -> bool:
        asked.append((place, mode))
        return False

    monkeypatch.setattr("os.access", access)
    assert main(["broker", "--check-config", "--data-dir", str(tmp_path / "a" / "b")]) == 2
    assert f"this user may not write in {tmp_path}." in capsys.readouterr().err
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_a_new_cluster_that_would_serve_nobody_is_named(tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path / "d"), "--set", "listeners.default.allow.plaintext=true"]
    asks = ["--set", "listeners.default.authentication=required"]
    text = "a new cluster has no user"
    assert text in check(*words, *asks).output
    assert text not in check(*words, *asks, "--admin-credential-file", str(tmp_path)).output
    assert text not in check(*words).output
