"""A process of this machine that outlives the one that started it.

A mark separates it from later processes of that number: the moment of its start, as the kernel
counts it, and the boot. No signal goes to any other process. Linux only: it reads /proc.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["ProcessMark", "ProcessState", "send_signal", "spawn", "state_of", "wait_until"]

_PROC: Final = Path("/proc")
_LOOK_S: Final = 0.01


class ProcessState(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """`began_ticks`: clock ticks from the boot to the process's beginning."""

    pid: int
    began_ticks: int
    boot_id: str


def spawn(
    command: Sequence[str], env: Mapping[str, str], stdout: Path, stderr: Path
) -> ProcessMark:
    """Start a program in a session of its own: it survives the terminal.

    Args:
        command: an absolute path and its arguments.
        env: its whole environment.
        stdout: truncated.
        stderr: appended to.

    Raises:
        OSError: it cannot be started.
    """
    write, append = os.O_WRONLY | os.O_CREAT, os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(stdout), write | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_OPEN, 2, str(stderr), write | append, 0o644),
        ],
        setsid=True,
    )
    # Not waited for yet: no other process has the number.
    _state, began_ticks = _stat(pid) or ("Z", 0)
    return ProcessMark(pid, began_ticks, _boot_id())


def state_of(mark: ProcessMark) -> ProcessState:
    """Return its state. An ended child is waited for: no zombie stays."""
    if mark.boot_id != _boot_id():  # Process numbers and ticks begin again with each boot.
        return ProcessState.ENDED
    found = _stat(mark.pid)
    if found is None or found[1] != mark.began_ticks:
        return ProcessState.ENDED
    if found[0] in "ZX":
        with contextlib.suppress(ChildProcessError):  # It may be the child of an earlier command.
            os.waitpid(mark.pid, os.WNOHANG)
        return ProcessState.ENDED
    return ProcessState.PAUSED if found[0] in "Tt" else ProcessState.RUNNING


def send_signal(mark: ProcessMark, number: signal.Signals) -> bool:
    """Send a signal; False if the process has ended.

    The descriptor is taken before the mark is compared: the signal meets that process or none.

    Raises:
        PermissionError: it is another user's.
    """
    try:
        descriptor = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return False
    try:
        if state_of(mark) is ProcessState.ENDED:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether the condition came to hold in time; checked a hundred times a second."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and beginning of a process, from proc(5); None where there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may hold blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
