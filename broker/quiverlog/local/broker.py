"""One broker of a local cluster: its directory and its process.

Of the directory: `process.json` marks the process, `stdout` has the newest start's ready line,
`log` the logs of all starts, `data` is the data directory. A broker keeps its addresses for life.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from quiverlog.local.failures import LocalClusterFailed
from quiverlog.local.process import (
    ProcessMark,
    ProcessState,
    send_signal,
    spawn,
    state_of,
    wait_until,
)

__all__ = ["LocalBroker"]

_READY: Final = re.compile(r"^quiverlog broker \d+ ready: ", re.MULTILINE)
_LOG_TAIL_BYTES: Final = 2_000
_KILL_S: Final = 10.0
_CLEAN_MARK: Final = "clean-shutdown"
"""See docs/storage-format.md."""


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """A broker that may be running or not.

    Attributes:
        rack: its label; "" for none.
        listen: HOST:PORT for clients and other brokers.
        http_listen: HOST:PORT of metrics and health.
    """

    node_id: int
    rack: str
    listen: str
    http_listen: str
    directory: Path

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def pid(self) -> int | None:
        """None when it does not run."""
        mark = self._mark()
        return mark.pid if mark is not None and self.state is not ProcessState.ENDED else None

    @property
    def state(self) -> ProcessState:
        mark = self._mark()
        return ProcessState.ENDED if mark is None else state_of(mark)

    @property
    def is_ready(self) -> bool:
        """Return whether its newest process has printed the ready line."""
        stdout = self.directory / "stdout"
        return stdout.exists() and _READY.search(stdout.read_text()) is not None

    @property
    def stopped_cleanly(self) -> bool:
        """Return whether its last process has marked the data directory: all rows are on the
        disk."""
        return (self.directory / "data" / _CLEAN_MARK).exists()

    def start(self, options: Sequence[str]) -> None:
        """Start its process, and do not wait.

        Args:
            options: more options of `quiverlog broker`.

        Raises:
            LocalClusterFailed: it runs already.
            OSError: the process cannot be started.
        """
        if self.state is not ProcessState.ENDED:
            raise LocalClusterFailed(f"Broker {self.node_id} runs already.")
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "quiverlog", "broker", "--node-id", str(self.node_id)]
        command += ["--data-dir", str(self.directory / "data"), "--rack", self.rack]
        command += ["--listen", self.listen, "--http-listen", self.http_listen, *options]
        # Settings in the environment are for another broker.
        env = {name: text for name, text in os.environ.items() if not name.startswith("QUIVERLOG_")}
        mark = spawn(command, env, self.directory / "stdout", self.log)
        temporary = self._mark_file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(mark)))
        temporary.replace(self._mark_file)  # Whole or not at all: a command may read it meanwhile.

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when clients may connect.

        Raises:
            LocalClusterFailed: it ended, or is not ready in time; with the last line of its log.
        """
        in_time = wait_until(
            lambda: self.is_ready or self.state is ProcessState.ENDED, timeout_s=timeout_s
        )
        if not self.is_ready or self.state is ProcessState.ENDED:
            what = "ended" if in_time else f"is not ready after {timeout_s:g} s"
            raise LocalClusterFailed(f"Broker {self.node_id} {what}; {self.last_words()}")

    def kill(self) -> bool:
        """Send SIGKILL, and wait until it is gone; False if it did not run.

        Raises:
            LocalClusterFailed: it still runs after ten seconds.
        """
        return self._end(signal.SIGKILL, _KILL_S)

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM, and wait; False if it did not run. A paused one is resumed first.

        Raises:
            LocalClusterFailed: it still runs when the time is up.
        """
        self.resume()  # A stopped process does not act on SIGTERM.
        return self._end(signal.SIGTERM, timeout_s)

    def pause(self) -> bool:
        """Send SIGSTOP: it neither answers nor closes anything. False if it does not run."""
        return self._signal(signal.SIGSTOP, ProcessState.PAUSED)

    def resume(self) -> bool:
        """Send SIGCONT; False if it is not paused."""
        return self.state is ProcessState.PAUSED and self._signal(
            signal.SIGCONT, ProcessState.RUNNING
        )

    def wipe(self) -> None:
        """Remove its data directory, as a lost disk would. It must not run."""
        assert self.state is ProcessState.ENDED, "a broker that runs holds its directory"
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def last_words(self) -> str:
        """Return the last line of its log, and where the log is."""
        text = self.log.read_bytes()[-_LOG_TAIL_BYTES:] if self.log.exists() else b""
        lines = text.decode(errors="replace").strip().splitlines()
        return f"its log ({self.log}) ends with: {lines[-1] if lines else 'nothing'}"

    # --- parts ----------------------------------------------------------------------------------
    @property
    def _mark_file(self) -> Path:
        return self.directory / "process.json"

    def _mark(self) -> ProcessMark | None:
        try:
            return ProcessMark(**json.loads(self._mark_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LocalClusterFailed(f"{self._mark_file} cannot be read: {error}") from error

    def _signal(self, number: signal.Signals, wanted: ProcessState) -> bool:
        mark = self._mark()
        if mark is None or not send_signal(mark, number):
            return False
        wait_until(lambda: state_of(mark) in (wanted, ProcessState.ENDED), _KILL_S)
        return True

    def _end(self, number: signal.Signals, timeout_s: float) -> bool:
        mark = self._mark()
        if mark is None or not send_signal(mark, number):
            return False
        if not wait_until(lambda: state_of(mark) is ProcessState.ENDED, timeout_s):
            raise LocalClusterFailed(
                f"Broker {self.node_id} (process {mark.pid}) has not ended after {timeout_s:g} s; "
                f"{self.last_words()}"
            )
        return True
