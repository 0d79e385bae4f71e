"""Starts a bare server as a process of its own and stops it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

__all__ = ["REPOSITORY", "bare_server"]


@contextmanager
def bare_server(mode: str, *options: object) -> Iterator[tuple[str, int]]:
    """Yield the address of a running `benchmarks.baselines.servers MODE`."""
    command = [sys.executable, "-m", "benchmarks.baselines.servers", mode, *map(str, options)]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the bare server ended at once, status {process.wait()}")
        yield "127.0.0.1", int(line)
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
