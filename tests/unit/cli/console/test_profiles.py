"""Profiles, help of groups, and choices that help lists."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Iterator

import click
import pytest

from quiverlog.cli import main
from quiverlog.cli.app import cli as root
from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.cli.console.profiles import Profile, Profiles, load, path_of_profiles, save
from quiverlog.cli.console.security import chosen_security

NO_BROKER = "127.0.0.1:1"  # no broker may listen on a port this low


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("QUIVERLOG_BOOTSTRAP_SERVER", raising=False)


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_life_of_a_profile(capsys):
    assert run(capsys, "profile", "list")[0] == 0
    assert (
        run(capsys, "profile", "create", 'här "e"', "-b", NO_BROKER)[1]
        == 'created här "e", in use\n'
    )
    assert run(capsys, "profile", "create", "b", "-b", "b-1:1,b-2:2")[1] == "created b\n"
    assert stat.S_IMODE(path_of_profiles().stat().st_mode) == 0o600
    code, _, err = run(capsys, "topic", "list", "--timeout", "1")
    assert (code, NO_BROKER in err) == (ExitCode.UNREACHABLE, True)
    assert run(capsys, "profile", "use", "b")[1] == "in use: b\n"
    assert load().by_name == {'här "e"': Profile(NO_BROKER), "b": Profile("b-1:1,b-2:2")}
    assert load().in_use == "b"
    assert "b-1:1,b-2:2" in run(capsys, "profile", "list", "--format", "json")[1]
    code, _, err = run(capsys, "--profile", 'här "e"', "topic", "list", "--timeout", "1")
    assert (code, NO_BROKER in err) == (ExitCode.UNREACHABLE, True)
    code, _, err = run(capsys, "topic", "list", "--timeout", "1", "-b", "127.0.0.1:2")
    assert "127.0.0.1:2" in err
    run(capsys, "profile", "delete", "b")
    assert load().in_use is None


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["profile", "create", "a", "-b", ""], ExitCode.USAGE, "at least one address"),
        (["profile", "create", "", "-b", NO_BROKER], ExitCode.USAGE, "is no name"),
        (["profile", "use", "none"], ExitCode.FAILED, "no profile 'none'"),
        (["profile", "delete", "none"], ExitCode.FAILED, "no profile 'none'"),
        (["--profile", "none", "topic", "list"], ExitCode.FAILED, "no profile 'none'"),
    ],
)
def test_a_profile_that_makes_no_sense(capsys, words, code, expected):
    found, out, err = run(capsys, *words)
    assert (found, out, err.count("\n")) == (code, "", 1), err
    assert expected in err


@pytest.mark.parametrize(
    "content", [b"\xff", b"use = ", b"[profile.a]\n", b"profile = 5", b"use = 5", b"[profile]\na=1"]
)
def test_a_broken_file_is_one_line(capsys, content):
    path_of_profiles().parent.mkdir(parents=True)
    path_of_profiles().write_bytes(content)
    code, _, err = run(capsys, "topic", "list")
    assert (code, err.count("\n"), "profiles.toml" in err) == (ExitCode.FAILED, 1, True), err


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(capsys, more):
    path_of_profiles().parent.mkdir(parents=True)
    text = f'[profile.a]\nbootstrap-server = "{NO_BROKER}"\n'
    path_of_profiles().write_text(text + "#" * (2**20 + more - len(text)))
    if more <= 0:
        assert load().by_name == {"a": Profile(NO_BROKER)}
        return
    code, _, err = run(capsys, "topic", "list")
    assert (code, err.count("\n"), "profiles.toml" in err) == (ExitCode.FAILED, 1, True), err
    assert "more than 1048576 bytes" in err


def test_a_file_that_could_not_be_read_again_is_not_written():
    overhead = len('\n[profile."a"]\nbootstrap-server = ""\n')
    largest = Profiles({"a": Profile("b" * (2**20 - overhead))})
    save(largest)
    assert path_of_profiles().stat().st_size == 2**20
    assert load() == largest
    with pytest.raises(CommandFailed, match="more than 1048576 bytes"):
        save(Profiles({"a": Profile(largest.by_name["a"].bootstrap + "b")}))
    assert load() == largest, "the file of before is still there"


NAMED, OF_ENVIRONMENT, IN_USE = "127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"


@pytest.mark.parametrize(
    ("words", "variables", "asked"),
    [
        ("topic list", {}, IN_USE),
        ("topic list", {"BOOTSTRAP_SERVER": OF_ENVIRONMENT}, OF_ENVIRONMENT),
        ("--profile named topic list", {"BOOTSTRAP_SERVER": OF_ENVIRONMENT}, NAMED),
        ("--profile named topic list -b 127.0.0.1:6", {}, "127.0.0.1:6"),
        ("topic list", {"PROFILE": "named"}, NAMED),
        ("topic list", {"PROFILE": "named", "BOOTSTRAP_SERVER": OF_ENVIRONMENT}, OF_ENVIRONMENT),
    ],
)
def test_a_flag_comes_before_the_environment_and_this_before_the_profile_in_use(
    capsys, monkeypatch, words, variables, asked
):
    run(capsys, "profile", "create", "default", "-b", IN_USE)
    run(capsys, "profile", "create", "named", "-b", NAMED)
    for name, value in variables.items():
        monkeypatch.setenv(f"QUIVERLOG_{name}", value)
    code, _, err = run(capsys, *words.split(), "--timeout", "1")
    assert (code, asked in err) == (ExitCode.UNREACHABLE, True), err


@pytest.mark.parametrize(
    ("words", "asked"),
    [("topic describe", "a-1:1"), ("--profile b topic describe", "b-1:1"),
     ("consume -b c-1:1", "c-1:1")],
)  # fmt: skip
def test_completion_asks_the_brokers_of_the_profile(capsys, monkeypatch, words, asked):
    run(capsys, "profile", "create", "a", "-b", "a-1:1")
    run(capsys, "profile", "create", "b", "-b", "b-1:1")
    seen = []
    assert list(commands(root, click.Context(root))), "none is imported with what comes now"
    monkeypatch.setattr("quiverlog.cli.console.options.open_client", lambda b, **_: seen.append(b))
    monkeypatch.setenv("_QUIVERLOG_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"quiverlog {words} ")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) + 1))
    main([])
    assert seen == [asked]


@pytest.mark.parametrize("words", ["topic describe", "consume --security-file {file}"])
def test_completion_logs_in_as_its_command_would(capsys, monkeypatch, tmp_path, words):
    file = tmp_path / "alice.toml"
    file.write_text('user = "alice"\npassword = "pw"\n')
    given = ("--security-file", str(file)) if "{file}" not in words else ()
    run(capsys, "profile", "create", "a", "-b", "a-1:1", *given)
    seen = []
    assert list(commands(root, click.Context(root))), "none is imported with what comes now"
    monkeypatch.setattr(
        "quiverlog.cli.console.options.open_client",
        lambda *_, **__: seen.append(chosen_security().user),
    )
    typed = words.format(file=file)
    monkeypatch.setenv("_QUIVERLOG_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"quiverlog {typed} ")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) + 1))
    main([])
    assert seen == ["alice"]


@pytest.mark.parametrize(
    ("words", "variable", "used"),
    [
        ("topic list", False, "mine"),
        ("topic list", True, "mine"),
        ("topic list --security-file given", True, "given"),
        ("--profile plain topic list", False, ""),
        ("--profile plain topic list", True, "environment"),
        ("topic list -b 127.0.0.1:6", False, ""),
        ("topic list -b 127.0.0.1:6", True, "environment"),
    ],
)
def test_the_security_file_of_a_flag_of_the_profile_and_of_the_environment(
    capsys, monkeypatch, tmp_path, words, variable, used
):
    for name in ("mine", "given", "environment"):
        (tmp_path / name).write_text(f'no_such_key_{name} = ""')
    monkeypatch.chdir(tmp_path)
    run(capsys, "profile", "create", "plain", "-b", NAMED)
    run(capsys, "profile", "create", "tls", "-b", IN_USE, "--security-file", "mine", "--use")
    assert f'security-file = "{tmp_path}/mine"' in path_of_profiles().read_text()
    assert f"{tmp_path}/mine" in run(capsys, "profile", "list")[1]
    if variable:
        monkeypatch.setenv("QUIVERLOG_SECURITY_FILE", "environment")
    _, out, err = run(capsys, *words.split(), "--timeout", "1")
    assert (out, err.count("\n")) == ("", 1)
    assert ("no_such_key_" in err) == bool(used)
    assert f"no_such_key_{used}" in err or not used


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, context)
        else:
            yield command


def test_the_shell_offers_files_for_arguments_that_are_files():
    context = click.Context(root)
    asked = [
        (command.name, parameter)
        for command in commands(root, context)
        for parameter in command.params
        if not getattr(parameter, "is_flag", False)
        if "FILE" in (parameter.metavar or "")
        or (parameter.name or "").endswith(("file", "files", "output"))
    ]
    assert len(asked) > 5, "the parameters are found"
    for command, parameter in asked:
        offered = [item.type for item in parameter.type.shell_complete(context, parameter, "")]
        assert offered in (["file"], ["dir"]), (command, parameter.name)


@pytest.mark.parametrize("words", [[], ["topic"], ["perf"], ["profile"]])
def test_a_group_alone_shows_its_help(capsys, words):
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert out == run(capsys, *words, "--help")[1]
    assert "Commands:" in out


def test_help_lists_the_choices(capsys):
    out = run(capsys, "broker", "--help")[1]
    assert "--log-level debug|info|warning|error" in out
    assert "--log-format logfmt|json" in out


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "b'HTTP/1.1'"),
        (b"SSH-2.0-OpenSSH_9\r\n", "b'SSH-2.0-'"),
    ],
)
def test_how_a_server_that_is_no_broker_answers_is_shown(capsys, answer, expected):
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        code, _, err = run(capsys, "topic", "list", "-b", address, "--timeout", "1")
        thread.join()
    assert (code, expected in err, err.count("\n")) == (ExitCode.UNREACHABLE, True, 1), err


def test_of_a_silent_server_the_error_names_the_port_for_clients(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        code, _, err = run(capsys, "topic", "list", "-b", address, "--timeout", "0.3")
    assert (code, "did not answer" in err, "9293" in err) == (ExitCode.UNREACHABLE, True, True), err
    assert "outcome is unknown" not in err, "nothing was asked"


@pytest.mark.parametrize("command", [("topic", "list"), ("doctor", "--no-spark")])
def test_silent_servers_take_the_given_time_together(capsys, command):
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    addresses = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in silent)
    began_s = time.monotonic()
    code, out, err = run(capsys, *command, "-b", addresses, "--timeout", "1.5")
    seconds = time.monotonic() - began_s
    for each in silent:
        each.close()
    assert code in (ExitCode.UNREACHABLE, ExitCode.PROBLEMS_FOUND), out + err
    assert seconds < 1.5 + 4.0, "the four would take eight seconds more, one after the other"
