"""What the connector does to PySpark's worker process, seen in a worker of PySpark's own daemon.

No JVM: the test itself plays its part on the worker's socket, with a worker module of its own.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from pyspark_quiverlog import _compat, worker_process
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.reader import SplitReader

WORKER = '''
"""Unpickles a command as PySpark's worker does, runs it and reports."""
import gc, json, os, pickle, socket
from pyspark.serializers import read_int, write_with_length

kept = []
at_start = gc.get_freeze_count()  # Python 3.12 freezes some objects by itself.

def main(infile, outfile):
    task = infile.read(read_int(infile))
    kept.append([[] for _ in range(read_int(infile))])
    ours = socket.socket(fileno=os.dup(infile.fileno()))
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is not None:
        ours.setsockopt(socket.IPPROTO_TCP, quick, 0)
    command = pickle.loads(task)
    report = {"quick": quick and ours.getsockopt(socket.IPPROTO_TCP, quick)}
    ours.close()
    command()
    report["frozen"] = gc.get_freeze_count() - at_start
    write_with_length(json.dumps(report).encode(), outfile)
'''
SECRET = b"secret"
TIMEOUT_S = 60.0


class Read:
    """A task that reads nothing, with the reader in it as in the command that Spark sends."""

    def __init__(self) -> None:
        from pyspark.sql.types import LongType, StructType

        raw = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
        options = parse_read_options(raw, Use.STREAM_READ)
        self.reader = SplitReader(options, StructType().add("id", LongType()))

    def __call__(self) -> None:
        assert list(self.reader.read(None)) == []


class Worker:
    """One worker of a daemon, and the tasks that it is given."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.replies = connection.makefile("rb")
        self.pid = self._int()
        self._send(SECRET)
        assert self._text() == b"ok"

    def run(self, command: Callable[[], None], objects: int = 0) -> dict[str, Any]:
        """Run `command` in the worker after it has made this number of objects that stay."""
        self._send(pickle.dumps(command))
        self._connection.sendall(struct.pack("!i", objects))
        found: dict[str, Any] = json.loads(self._text())
        return found

    def _send(self, data: bytes) -> None:
        self._connection.sendall(struct.pack("!i", len(data)) + data)

    def _int(self) -> int:
        return int(struct.unpack("!i", self.replies.read(4))[0])

    def _text(self) -> bytes:
        return self.replies.read(self._int())


def port_of(daemon: subprocess.Popen[bytes]) -> int:
    out: IO[bytes] | None = daemon.stdout
    assert out is not None
    return int(struct.unpack("!i", out.read(4))[0])


@contextlib.contextmanager
def worker(tmp_path: Path, **environment: str) -> Iterator[Worker]:
    (tmp_path / "pyspark_probe.py").write_text(WORKER)
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_probe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        | {"PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(), "SPARK_REUSE_WORKER": "1"}
        | environment,
    )
    try:
        address = ("127.0.0.1", port_of(process))
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            own = Worker(connection)
            with own.replies:
                yield own
    finally:
        assert process.stdin is not None
        process.stdin.close()  # that is how Spark ends its daemon, and the daemon its workers
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_the_first_task_freezes_what_is_loaded(tmp_path: Path) -> None:
    """The daemon collects after every task: what is loaded must not be looked at each time."""
    with worker(tmp_path) as own:
        first = own.run(Read())
        assert first["frozen"] > worker_process.OBJECTS_MIN
        assert own.run(Read())["frozen"] == pytest.approx(first["frozen"], rel=0.1)


def test_a_worker_freezes_a_few_times_only(tmp_path: Path) -> None:
    """Frozen cycles are never freed: the tasks of a day must not add up."""
    with worker(tmp_path) as own:
        counts = [
            own.run(Read(), objects=2 * worker_process.OBJECTS_MIN)["frozen"]
            for _ in range(worker_process.FREEZES_MAX + 2)
        ]
    grown = [b - a for a, b in itertools.pairwise(counts)]
    assert all(g >= worker_process.OBJECTS_MIN for g in grown[: worker_process.FREEZES_MAX - 1])
    assert max(grown[worker_process.FREEZES_MAX - 1 :]) < worker_process.OBJECTS_MIN


@pytest.mark.skipif(_compat.QUICK_ACKNOWLEDGEMENT[1] < 0, reason="Linux alone has TCP_QUICKACK")
def test_a_command_is_acknowledged_while_it_is_unpickled(tmp_path: Path) -> None:
    """The JVM holds the first rows back until then; and the option does not last by itself."""
    with worker(tmp_path) as own:
        assert [own.run(Read())["quick"] for _ in range(3)] == [1, 1, 1]


def test_the_environment_turns_both_off(tmp_path: Path) -> None:
    with worker(tmp_path, **{worker_process.SWITCH: "off"}) as own:
        report = own.run(Read())
    assert report["frozen"] == 0
    assert not report["quick"]


def test_no_other_process_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver, a notebook: its garbage is its own."""
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("frozen outside of a worker"))
    assert not _compat.in_daemon_worker()
    assert _compat.worker_socket() is None
    command = pickle.loads(pickle.dumps(Read()))
    command()
