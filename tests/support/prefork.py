"""Brokers for tests by fork, from a process that has imported all that a broker imports.

Imports are three quarters of the processor time of a start, and a run of the suite starts hundreds.
A forked broker is a process like any other: its own pid, session, streams, limits, signals. What it
does not show is how `quiverlog broker` starts: tests of that set `BrokerProcess.forks` to False.

`Template` is the side of the tests. Run as a program, this module is the process that forks: it
reads a `Start` a line, and writes `started PID` and `ended PID CODE`. It has one thread: a fork
loses all others.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

__all__ = ["Forked", "Template", "may_fork"]

STARTS_WITHIN_S = 60.0
LIMITS = tuple(getattr(resource, name) for name in ("RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_AS"))
_OF_A_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "MIMALLOC", "ARROW", "OPENSSL")


def may_fork(env: Mapping[str, str]) -> bool:
    """Return whether these variables are read by the broker alone, and not before it."""
    return not any(name.startswith(_OF_A_START) for name in env)


class Start(NamedTuple):
    arguments: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    """Path of a file that exists."""
    stderr: str
    """As `stdout`."""
    limits: Sequence[tuple[int, int]]


class Forked:
    """As much of `subprocess.Popen` as tests use."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template = template
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._template.codes.get(self.pid)

    def poll(self) -> int | None:
        self._template.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(self.pid)
            try:
                select.select([ended], [], [], timeout)
            finally:
                os.close(ended)
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("broker", timeout or 0.0)
            self._template.listen(0.05)
        return code


class Template:
    """The process that forks brokers; started at the first use, ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._unread = b""
        self._started: list[int] = []
        self.codes: dict[int, int] = {}
        """Exit codes by pid; of a signal, its negative number."""

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], stdout: str, stderr: str
    ) -> Forked:
        limits = [resource.getrlimit(one) for one in LIMITS]
        line = json.dumps(Start(arguments, env, os.getcwd(), stdout, stderr, limits))
        with self._lock:
            stdin = self._running().stdin
            assert stdin is not None
            stdin.write(f"{line}\n".encode())
            stdin.flush()
            deadline = time.monotonic() + STARTS_WITHIN_S
            while not self._started:
                assert time.monotonic() < deadline, "no broker was forked"
                self._listen(1.0)
            pid = self._started.pop()
            self.codes.pop(pid, None)  # Of an earlier process with this number.
            return Forked(self, pid)

    def listen(self, timeout_s: float) -> None:
        """Read what the process reports, and wait at most this long for it."""
        with self._lock:
            self._listen(timeout_s)

    def _listen(self, timeout_s: float) -> None:
        stdout = self._running().stdout
        assert stdout is not None
        while select.select([stdout], [], [], timeout_s)[0]:
            data = os.read(stdout.fileno(), 65_536)
            assert data, "the process that forks brokers has ended"
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                what, *numbers = line.split()
                if what == b"started":
                    self._started.append(int(numbers[0]))
                else:
                    self.codes[int(numbers[0])] = int(numbers[1])
            timeout_s = 0.0

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.prefork"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, "JE_ARROW_MALLOC_CONF": "background_thread:false"},
                start_new_session=True,
            )
            atexit.register(self._end)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _next_start() -> Start:
    """Return in a new process, once for each start; the process that forks ends here."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    unread = b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4_096)
            _report_ended()
        if 0 in ready:
            data = os.read(0, 65_536)
            if not data:
                os._exit(0)
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(woken)
                    os.close(wakes)
                    return Start(*json.loads(line))
                os.write(1, f"started {pid}\n".encode())


def _report_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            os.write(1, f"ended {ended[0]} {os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _become(start: Start) -> None:
    os.setsid()
    os.chdir(start.cwd)
    os.environ.clear()
    os.environ.update(start.env)
    time.tzset()
    for one, (soft, hard) in zip(LIMITS, start.limits, strict=True):
        resource.setrlimit(one, (soft, hard))
    append = os.O_WRONLY | os.O_APPEND
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, start.stdout, append),
        (2, start.stderr, append),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["quiverlog", "broker", *start.arguments]


def _main() -> NoReturn:
    from quiverlog.cli.tools.broker import _as_a_broker_imports

    with _as_a_broker_imports():
        import quiverlog.cli.app
        import quiverlog.server.process.run  # noqa: F401
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()
    _become(_next_start())
    from quiverlog.cli import main

    sys.exit(main())


if __name__ == "__main__":
    _main()
