"""A real broker process for tests, benchmarks and the demo's checks.

Owns the process, its data directory (unless one is handed in) and its output. Everything is bounded
in time; a broker that does not come up raises with its log, so that a failing test shows why. Not
here: what the test does with it.

    with BrokerProcess(config={"topic.defaults.segment.bytes": 1 << 20}) as broker:
        client = quiverlog.connect(broker.bootstrap)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from quiverlog.addresses import parse_address
from tests.support.ports import free_address
from tests.support.prefork import Forked, Template, may_fork

__all__ = ["BrokerFailed", "BrokerProcess"]

COMMAND = (sys.executable, "-m", "quiverlog", "broker")
"""What a person types, in this test's interpreter."""

READY = re.compile(
    r"quiverlog broker (?P<node>\d+) ready: clients (?P<clients>\S+?), http (?P<http>\S+?),"
    r" data (?P<data>.+), durability (?P<durability>\w+)"
)
_POLL_S = 0.005
_TEMPLATE = Template()


def ordinary_environment() -> dict[str, str]:
    """This process's, without what changes a broker: its settings, and how Python buffers."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("QUIVERLOG_") and name != "PYTHONUNBUFFERED"
    }


class BrokerFailed(Exception):
    """The broker did not do what it was asked in time; the text has its log."""


class BrokerProcess:
    """One broker; a context manager that starts it and, at the end, stops or kills it.

    Args:
        data_dir: kept at the end when given; a temporary directory otherwise.
        config: keys of docs/config.md, written to a TOML file.
        listen, http_listen: for port 0 a free one is picked, which later starts keep.
        env: added to this process's environment, from which `QUIVERLOG_*` is taken out; of the next
            start, where it is changed.
        arguments: more flags, after `--config` and the addresses.
        start_timeout: seconds for a start, recovery included.
    """

    forks: ClassVar[bool] = False
    """Brokers that are started by `COMMAND` are forked: true in a run of the suite
    (tests/conftest.py), and not in benchmarks."""

    def __init__(
        self,
        data_dir: str | Path | None = None,
        config: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        *,
        http_listen: str = "127.0.0.1:0",
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        start_timeout: float = 30.0,
    ) -> None:
        self._workspace = Path(tempfile.mkdtemp(prefix="quiverlog-test-"))
        self.data_dir = Path(data_dir) if data_dir is not None else self._workspace / "data"
        self.config = dict(config or {})
        self._listen = free_address(listen)
        self._http_listen = free_address(http_listen)
        self.env = dict(env or {})
        self._arguments = tuple(arguments)
        self._command = tuple(command)
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.bootstrap = ""
        self.http = self._http_listen
        self.ready_line = ""
        self.start_seconds = 0.0
        atexit.register(self._end)

    # --- life ----------------------------------------------------------------------------------
    def __enter__(self) -> BrokerProcess:
        try:
            return self.start()
        except BaseException:
            self._end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def start(self) -> BrokerProcess:
        """Start it (again: same data, same ports) and wait until it is ready.

        Raises:
            BrokerFailed: it ended, or is not ready in time.
        """
        assert self._process is None, "the broker is running"
        started = time.monotonic()
        self.launch()
        self.wait_ready()
        self.start_seconds = time.monotonic() - started
        return self

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        assert self._process is None, "the broker is running"
        config_file = self.write_config(self.config)
        environ = ordinary_environment() | self.env
        arguments = [
            *("--config", str(config_file)),
            *("--data-dir", str(self.data_dir)),
            *("--listen", self._listen),
            *("--http-listen", self._http_listen),
            *self._arguments,
        ]
        with open(self._stdout, "wb") as stdout, open(self._stderr, "ab") as stderr:
            if self.forks and self._command == COMMAND and may_fork(self.env):
                streams = stdout.name, stderr.name
                self._process = _TEMPLATE.start(arguments, environ, *streams)
                return
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environ,
                start_new_session=True,  # Ctrl-C in the test run is not meant for the broker
            )

    def write_config(self, config: Mapping[str, object]) -> Path:
        """Write the file of configuration, also under a running broker."""
        path = self._workspace / "quiverlog.toml"
        lines = (f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in config.items())
        path.write_text("".join(lines))
        return path

    def wait_ready(self) -> None:
        """Wait for the ready line of a launched broker. Raises BrokerFailed."""
        assert self._process is not None
        for _ in _until(self._start_timeout):
            found = READY.search(self._stdout.read_text())
            if found:
                break
            if self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise BrokerFailed(f"the broker ended with exit code {code}:\n{self.log_text}")
        else:
            self.kill()
            raise BrokerFailed(f"not ready after {self._start_timeout} s:\n{self.log_text}")
        self.ready_line = found.group()
        self._listen = self.bootstrap = found["clients"]
        self.http = found["http"]
        if self.http != "off":
            self._http_listen = self.http

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM, and the exit code. Raises BrokerFailed when it does not end in time."""
        self.terminate()
        return self.wait(timeout)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash would; waits until the process is gone."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    kill9 = kill

    def signal(self, number: int) -> None:
        """Send a signal to the running broker."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the end. Returns the exit code. Raises BrokerFailed."""
        assert self._process is not None, "the broker is not running"
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"still running after {timeout} s:\n{self.log_text}") from None
        self._process = None
        return code

    def restart(self, *, kill: bool = False) -> BrokerProcess:
        """Stop (or kill) and start again, same data, same ports."""
        if kill:
            self.kill()
        else:
            code = self.stop()
            assert code == 0, f"exit code {code}:\n{self.log_text}"
        return self.start()

    # --- looking -------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        """Has the process started and not ended?"""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended without being stopped here."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect, for `socket.create_connection`."""
        return parse_address(self.bootstrap)

    @property
    def log_text(self) -> str:
        """All that the broker wrote to standard error, over all its starts."""
        return self._stderr.read_text() if self._stderr.exists() else ""

    @property
    def stdout_text(self) -> str:
        """What the newest start wrote to standard output."""
        return self._stdout.read_text() if self._stdout.exists() else ""

    # --- parts ---------------------------------------------------------------------------------
    @property
    def _stdout(self) -> Path:
        return self._workspace / "stdout"

    @property
    def _stderr(self) -> Path:
        return self._workspace / "stderr"

    def _end(self) -> None:
        atexit.unregister(self._end)
        if self.running:
            with contextlib.suppress(BrokerFailed):
                self.stop(timeout=15.0)
        self.kill()
        shutil.rmtree(self._workspace, ignore_errors=True)


def _until(timeout: float) -> Iterator[None]:
    """Ticks until `timeout` seconds have passed: `for` with `break` on success, `else` on none."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_S)
