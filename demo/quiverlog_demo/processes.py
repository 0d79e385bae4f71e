"""The Spark query of the demo as a child process: its start, its events on stdout, its end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quiverlog.cli.console.failures import CommandFailed

__all__ = ["SparkQuery"]

_STOP_S = 30.0
_CAUSE_CHARS_MAX = 400


def _environment(**more: str) -> dict[str, str]:
    # Settings such as QUIVERLOG_BOOTSTRAP_SERVER are meant for another broker.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("QUIVERLOG_")}
    return kept | more


_CAUSE = re.compile(r"[\w.]*(?:Error|Exception|error)\b.*\S")


def _why(log: Path) -> str:
    """Return the last line of a log that names an error, and the log's path."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    # Lines of a JVM's stack trace begin with "\tat ".
    messages = [line.strip() for line in lines if line.strip() and not line.startswith("\tat ")]
    causes = [line for line in messages if _CAUSE.match(line)] or messages
    cause = causes[-1][:_CAUSE_CHARS_MAX] if causes else "it printed no error"
    return f"{cause} (its log: {log})"


class _Lines:
    """The lines of a pipe, read by a thread: a pipe's own `readline` has no timeout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._thread.start()

    def _read(self, pipe: Any) -> None:
        for line in pipe:
            self._lines.put(line)
        self._lines.put(None)

    def next(self, deadline_s: float) -> str | None:
        """Return the next line; None at the end. Raises queue.Empty at the deadline."""
        return self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))

    def close(self, process: subprocess.Popen[str]) -> None:
        """Join the thread; the process must have ended."""
        self._thread.join(timeout=5.0)
        if process.stdout is not None and not self._thread.is_alive():
            process.stdout.close()


class SparkQuery:
    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        *,
        rows: int,
        rows_per_batch: int,
        timeout_s: float,
        fetch_from: str,
    ) -> None:
        self.log = directory / "spark.log"
        self._done = False
        self._deadline_s = time.monotonic() + timeout_s
        command = [sys.executable, "-m", "quiverlog_demo.query", "--bootstrap", bootstrap]
        command += ["--work-dir", str(directory), "--rows", str(rows)]
        command += ["--rows-per-batch", str(rows_per_batch), "--fetch-from", fetch_from]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Spark looks for data sources in the workers' interpreter.
                env=_environment(
                    PYSPARK_PYTHON=sys.executable,
                    SPARK_LOCAL_IP="127.0.0.1",
                    # A run is too short to pay for what the JVM compiles for long ones.
                    SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1",
                ),
                start_new_session=True,
            )
        self._lines = _Lines(self._process)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the query's events up to `done`.

        Raises:
            CommandFailed: it ended before, or took too long.
        """
        while True:
            try:
                line = self._lines.next(self._deadline_s)
            except queue.Empty:
                raise CommandFailed(
                    f"Spark did not finish in time; give it more with --timeout. {_why(self.log)}"
                ) from None
            if line is None:
                raise CommandFailed(f"The Spark query failed: {_why(self.log)}")
            if not line.startswith("{"):
                continue  # The JVM may print to stdout as well.
            event = json.loads(line)
            self._done = event["event"] == "done"
            yield event
            if self._done:
                return

    def go_on(self) -> None:
        """Signal to the query that the closing row is appended."""
        assert self._process.stdin is not None
        self._process.stdin.write("closed\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Wait for a query that is done, for a while; kill one that is not."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._done:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_S)
        self._kill_group()
        self._process.wait()
        self._lines.close(self._process)

    def _kill_group(self) -> None:
        # The JVM and its Python workers are in the child's session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
