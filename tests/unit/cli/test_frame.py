"""The command's frame: exit codes, one-line errors, speed of a start, completion, its page."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from quiverlog.cli import main
from quiverlog.cli.console.failures import CommandFailed, ExitCode, report
from quiverlog.cli.reference import render
from quiverlog.cli.rows.perf import percentile
from quiverlog.cli.tools.doctor import Finding, _judge_workers, _worker_sockets, java_major
from quiverlog.cli.topics.topic import parse_before
from quiverlog.errors import ConnectionFailed, QuiverlogError, UnknownTopic

ROOT = Path(__file__).resolve().parents[3]
NO_BROKER = "127.0.0.1:1"  # no broker may listen on a port this low


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("words", [["--version"], ["--debug", "--version"]])
def test_version(capsys, words):
    assert run(capsys, *words) == (0, f"quiverlog {version('quiverlog')}\n", "")


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in ("broker", "topic", "produce", "consume", "perf", "dump-log", "doctor", "demo"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["topci", "list"], "Did you mean 'topic'?"),
        (["topic", "list", "--formt", "json"], "--formt"),
        (["topic", "create", "t"], "--schema"),
        (["topic", "create", "t", "--schema", "id longg"], "at character 4"),
        (["topic", "create", "t", "--schema", "id long", "--schema-file", __file__], "not both"),
        (["topic", "create", "t", "--schema", "id long", "-c", "retention.ms"], "KEY=VALUE"),
        (["topic", "create", "t", "--schema", "id long", "-c", "a=1", "-c", "a=2"], "twice"),
        (["topic", "create", "t", "--schema", "id long", "--key", "a,,b"], "empty column"),
        (["topic", "create", "t", "--schema", "id long", "-p", "0"], "1<=x<=10000"),
        (["topic", "alter", "t"], "Nothing to change"),
        (["topic", "delete", "t"], "--yes"),
        (["topic", "trim", "t", "--before", "soon"], "'soon' is neither"),
        (["consume", "--topic", "t", "--from", "yesterday"], "'yesterday' is not earliest"),
        (["consume", "-t", "t", "--format", "parquet", "--follow"], "--max-rows"),
        (["consume"], "quiverlog consume TOPIC"),
        (["consume", "a", "-t", "b", "--tail", "5"], "--tail is for one topic"),
        (["consume", "a", "-g", "x", "--to", "latest"], "--to with --group"),
        (["consume", "a", "-g", "x", "--tail", "1"], "--tail with --group"),
        (["consume", "a", "-g", "x", "--partition", "1"], "--partition with --group"),
        (["consume", "a", "-g", "x", "--from", "5"], "--from with an offset with --group"),
        (["consume", "a", "b", "--partition", "0"], "--partition is for one topic"),
        (["consume", "a", "b", "--from", "0=5"], "--from PARTITION=OFFSET is for one topic"),
        (["consume", "a", "b", "--to", "0=5"], "--to PARTITION=OFFSET is for one topic"),
        (["consume", "t", "--where", " "], "--where is empty"),
        (["consume", "t", "-f", "--to", "latest"], "--follow has no end"),
        (["consume", "t", "--tail", "5", "--from", "-1h"], "--tail sets"),
        (["consume", "t", "-o", "rows.txt"], ".txt is no suffix of a known format"),
        (["consume", "t", "-o", "rows.xlsx.gz"], ".xlsx is no suffix"),
        (["consume", "t", "-o", "rows.parquet.gz"], "compressed inside"),
        (["consume", "t", "--template", "%k %x"], "no field %x"),
        (["consume", "t", "--template", "%"], "middle of a field"),
        (["consume", "t", "--template", "%s", "--format", "json"], "leave --format out"),
        (["produce", __file__, "-t", "t"], ".py is no suffix of a known format"),
        (["broker", "--node-id", "x"], "--node-id"),
        (["broker", "--set", "nonsense=1"], "nonsense"),
        (["broker", "--data-dir", "a", "--set", "data.dir=b"], "data.dir is given by"),
    ],
)
def test_a_senseless_command_line_is_one_line_and_2(capsys, words, expected):
    code, out, err = run(capsys, *words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert expected in err
    assert err.startswith("quiverlog: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["topic", "describe", "t"],
        ["consume", "--topic", "t"],
        ["produce", "-", "--topic", "t"],
        ["perf", "latency"],
    ],
)
def test_no_broker_is_3(capsys, words):
    code, out, err = run(capsys, *words, "--bootstrap-server", NO_BROKER, "--timeout", "2")
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert NO_BROKER in err
    assert err.count("\n") == 1


def test_the_bootstrap_address_comes_from_the_environment_too(capsys, monkeypatch):
    monkeypatch.setenv("QUIVERLOG_BOOTSTRAP_SERVER", NO_BROKER)
    code, _, err = run(capsys, "topic", "list")
    assert code == ExitCode.UNREACHABLE
    assert NO_BROKER in err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (CommandFailed("no\n  such thing"), 1, "no such thing"),
        (CommandFailed("differs", ExitCode.DIFFERENT), 5, "differs"),
        (UnknownTopic("There is no topic 'x'."), 1, "[UNKNOWN_TOPIC 20]"),
        (ConnectionFailed("Cannot connect."), 3, "[CONNECTION_FAILED 1000]"),
        (QuiverlogError("odd"), 70, "odd"),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), 1, "a.csv: No such file"),
        (ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"), 1,
         "matplotlib is missing: "),
        (ModuleNotFoundError("No module named 'x'", name="x"), 70, "internal error"),
        (RuntimeError("surprise"), 70, "RuntimeError: surprise"),
    ],
)  # fmt: skip
def test_every_failure_has_its_code_and_one_line(capsys, error, code, line):
    assert report(error) == code
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(capsys):
    code, _, err = run(capsys, "topic", "list", "-b", NO_BROKER, "--debug")
    assert code == ExitCode.UNREACHABLE
    assert "Traceback" in err


def test_a_missing_file_is_1(capsys):
    code, _, err = run(capsys, "dump-log", "/nonexistent/00000000000000000000.log")
    assert code in (ExitCode.FAILED, ExitCode.USAGE)
    assert "00000000000000000000.log" in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(capsys, shell):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    assert "_QUIVERLOG_COMPLETE" in out
    assert "quiverlog" in out


def completed(*words: str) -> list[str]:
    environment = {
        "_QUIVERLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["quiverlog", *words]),
        "COMP_CWORD": str(len(words)),
        "PATH": "/usr/bin:/bin",
        "QUIVERLOG_BOOTSTRAP_SERVER": NO_BROKER,
    }
    done = subprocess.run(
        [sys.executable, "-m", "quiverlog"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_of_words():
    assert completed("to") == ["topic", "token"]
    assert {"create", "list", "describe", "alter", "delete", "trim"} <= set(completed("topic", ""))
    assert "--bootstrap-server" in completed("topic", "list", "--b")
    assert completed("topic", "describe", "fl") == []  # no broker: no names, and no error


def sourced(shell: str, script: str, home: str = "/nonexistent") -> str:
    """What a shell prints that has `quiverlog` on its PATH."""
    found = shutil.which(shell)
    assert found is not None
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "QUIVERLOG_BOOTSTRAP_SERVER": NO_BROKER, "HOME": home}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run(
        [found, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_after_sourcing_the_script():
    script = """
        eval "$(quiverlog completion bash)"
        complete -p quiverlog
        COMP_WORDS=(quiverlog topic de) COMP_CWORD=2
        _quiverlog_completion quiverlog
        echo "${COMPREPLY[@]}"
    """
    registered, words = sourced("bash", script).splitlines()
    assert "-F _quiverlog_completion" in registered
    assert words == "delete describe"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_zsh_completes_after_sourcing_the_script():
    """`compdef` and `_describe` belong to an interactive shell: here they print their arguments."""
    script = """
        compdef() { print registered $2 }
        _describe() { print -l ${(P)3} }
        eval "$(quiverlog completion zsh)"
        words=(quiverlog topic de) CURRENT=3
        _quiverlog_completion
    """
    lines = sourced("zsh", script).splitlines()
    assert lines[0] == "registered quiverlog"
    assert [line.partition(":")[0] for line in lines[1:]] == ["delete", "describe"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish on this machine")
def test_fish_completes_after_sourcing_the_script(tmp_path):
    script = 'quiverlog completion fish | source; complete -C "quiverlog topic de"'
    lines = sourced("fish", script, str(tmp_path)).splitlines()
    assert sorted(line.split()[0] for line in lines) == ["delete", "describe"]
    # A help text is shown with what stands behind its commas.
    assert any("Show columns, configuration" in line for line in lines)


def test_the_script_for_fish_divides_a_line_once(capsys):
    """What the test above sees, for machines without fish."""
    _, out, _ = run(capsys, "completion", "fish")
    assert 'string split --max 1 "," $completion' in out


def test_version_is_fast():
    """A ratio of CPU times to the bare interpreter, taken in turns: other programs add none."""

    def used_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    bare_s, ours_s = [], []
    for _ in range(5):
        for words, times in ((["-c", "pass"], bare_s), (["-m", "quiverlog", "--version"], ours_s)):
            before_s = used_s()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            times.append(used_s() - before_s)
    ratio = min(ours_s) / min(bare_s)
    assert ratio < 4, f"{min(ours_s) * 1000:.0f} ms, {ratio:.1f} times a bare start"


def test_help_of_a_broker_has_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "broker", "--help")
    assert code == 0
    assert "`quiverlog docs security`" in out
    assert "](" not in out


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["topic", "--help"]])
def test_a_start_loads_nothing_heavy(words):
    script = (
        "import sys; from quiverlog.cli import main; main(sys.argv[1:]);"
        "print([m for m in ('pyarrow', 'numpy', 'rich', 'pyspark', 'uvloop', 'asyncio')"
        " if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_without_click_the_error_names_what_to_install():
    script = (
        "import sys; sys.modules['click'] = None\n"
        "from quiverlog.cli import main\nsys.exit(main(['topic', 'list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.search(r"needs click: .*pip install .*click", done.stderr)
    assert "pip install quiverlog" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_of_the_command_line_is_up_to_date():
    page = ROOT / "docs" / "cli.md"
    assert page.read_text() == render(), "run `make docs`"


@pytest.mark.parametrize(
    ("text", "before"),
    [("latest", "latest"), ("17", 17), ("0=5,2=latest", {0: 5, 2: "latest"})],
)
def test_what_to_trim(text, before):
    assert parse_before(text) == before


@pytest.mark.parametrize("text", ["", "-1", "0=", "x=1", "earliest"])
def test_what_not_to_trim(text):
    with pytest.raises(click.BadParameter):
        parse_before(text)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, 0.0),
        ([3.0], 99, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        ([float(i) for i in range(101)], 50, 50.0),
        ([float(i) for i in range(101)], 99, 99.0),
        ([1.0, 2.0], 99, 1.99),
    ],
)
def test_percentiles(values, percent, expected):
    assert percentile(values, percent) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_java_versions(text, major):
    assert java_major(text) == major


def judged(**found: object) -> list[Finding]:
    seen = {
        "version": list(sys.version_info[:3]),
        "executable": "/usr/bin/python3",
        "failing": {},
        "name": "quiverlog",
    } | found
    return list(_judge_workers(seen, "workers", "python3 on PATH", "use this"))


def test_workers_that_are_fine():
    assert [finding.status for finding in judged()] == ["ok", "ok"]


def test_workers_of_another_python_or_without_the_package():
    assert judged(version=[3, 9, 1])[0].status == "problem"
    missing = judged(name=None)[-1]
    assert missing.status == "problem"
    assert missing.advice.startswith("use this")


def test_a_strangers_broken_data_source_is_named():
    findings = judged(failing={"pyspark_other": "ImportError: boom"})
    assert [finding.status for finding in findings] == ["ok", "problem", "ok"]
    assert "pyspark_other" in findings[1].detail


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("spark.python.unix.domain.socket.enabled   true", "Unix domain, from "),
        ("spark.python.unix.domain.socket.enabled=TRUE", "Unix domain, from "),
        ("# spark.python.unix.domain.socket.enabled true", "TCP, unless"),
        ("spark.python.unix.domain.socket.enabled false", "TCP, unless"),
    ],
)
def test_doctor_reports_how_spark_connects_to_its_workers(tmp_path, monkeypatch, line, expected):
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"spark.ui.enabled false\n{line}\n")
    assert _worker_sockets().detail.startswith(expected)


def test_doctor_without_spark_defaults_names_the_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "none"))
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)
    found = _worker_sockets()
    assert found.status == "ok"
    assert "spark.python.unix.domain.socket.enabled=true" in found.advice
    monkeypatch.setenv("PYSPARK_UDS_MODE", "true")
    assert _worker_sockets().detail == "Unix domain, from PYSPARK_UDS_MODE"


def test_doctor_without_broker_or_spark(capsys):
    code, out, _ = run(capsys, "doctor", "--no-broker", "--no-spark", "--format", "json")
    result = json.loads(out)
    assert (code, result["ok"]) == (0, True)
    assert {"Python", "pyarrow"} <= {finding["check"] for finding in result["findings"]}


def test_doctor_finds_problems_with_4(capsys, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setenv("PYSPARK_PYTHON", "/nonexistent/python")
    code, out, _ = run(capsys, "doctor", "-b", NO_BROKER, "--timeout", "2", "--format", "json")
    problems = {f["check"] for f in json.loads(out)["findings"] if f["status"] == "problem"}
    assert code == ExitCode.PROBLEMS_FOUND
    assert problems == {"Java", "Spark's workers", "bootstrap"}
