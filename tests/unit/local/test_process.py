"""Processes that outlive who started them: which one is meant, and what is done to it."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiverlog.local.process import (
    ProcessMark,
    ProcessState,
    send_signal,
    spawn,
    state_of,
    wait_until,
)

WAITS = "import signal; print('up', flush=True); signal.pause()"
BOUND_S = 30.0


def started(folder: Path, program: str) -> ProcessMark:
    return spawn([sys.executable, "-c", program], {"A": "b"}, folder / "out", folder / "err")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[ProcessMark]:
    mark = started(tmp_path, WAITS)
    try:
        assert wait_until(lambda: (tmp_path / "out").read_text() == "up\n", BOUND_S)
        yield mark
    finally:
        send_signal(mark, signal.SIGKILL)
        assert wait_until(lambda: state_of(mark) is ProcessState.ENDED, BOUND_S)


def test_a_process_runs_is_paused_goes_on_and_ends(waiting: ProcessMark) -> None:
    assert state_of(waiting) is ProcessState.RUNNING
    assert send_signal(waiting, signal.SIGSTOP)
    assert wait_until(lambda: state_of(waiting) is ProcessState.PAUSED, BOUND_S)
    assert send_signal(waiting, signal.SIGCONT)
    assert wait_until(lambda: state_of(waiting) is ProcessState.RUNNING, BOUND_S)
    assert send_signal(waiting, signal.SIGTERM)
    assert wait_until(lambda: state_of(waiting) is ProcessState.ENDED, BOUND_S)
    assert not send_signal(waiting, signal.SIGTERM)
    with pytest.raises(ChildProcessError):  # it was waited for: no zombie is left
        os.waitpid(waiting.pid, os.WNOHANG)


@pytest.mark.parametrize(
    "change", [{"began_ticks": 1}, {"boot_id": "another"}], ids=["a later process", "a later boot"]
)
def test_a_number_that_another_process_has_now_gets_no_signal(
    waiting: ProcessMark, change: dict[str, object]
) -> None:
    earlier = dataclasses.replace(waiting, **change)
    assert state_of(earlier) is ProcessState.ENDED
    assert not send_signal(earlier, signal.SIGKILL)
    assert state_of(waiting) is ProcessState.RUNNING


def test_it_has_a_session_and_the_environment_that_it_was_given(tmp_path: Path) -> None:
    reported = (
        "import os, sys; print(os.getsid(0) == os.getpid(), os.environ['A'], 'HOME' in os.environ)"
    )
    mark = started(tmp_path, f"{reported}; print(sys.stdin.read() == '', file=sys.stderr)")
    assert wait_until(lambda: state_of(mark) is ProcessState.ENDED, BOUND_S)
    assert (tmp_path / "out").read_text() == "True b False\n"
    assert (tmp_path / "err").read_text() == "True\n"


def test_output_is_written_anew_and_errors_are_written_on(tmp_path: Path) -> None:
    for text in ("first", "second"):
        mark = started(tmp_path, f"import sys; print('{text}'); print('{text}', file=sys.stderr)")
        assert wait_until(lambda mark=mark: state_of(mark) is ProcessState.ENDED, BOUND_S)
    assert (tmp_path / "out").read_text() == "second\n"
    assert (tmp_path / "err").read_text() == "first\nsecond\n"


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn(["/does/not/exist"], {}, tmp_path / "out", tmp_path / "err")


def test_a_condition_that_never_holds_is_given_up() -> None:
    assert not wait_until(lambda: False, 0.0)
    assert wait_until(lambda: True, 0.0)
