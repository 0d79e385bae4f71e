"""A resolver that does not answer: no caller, and no end of a process, waits for it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

import quiverlog
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.until import until

STUCK: Final = "stuck.test"
STUCK_S: Final = 25.0
"""A bound: a test that waits for the resolver ends nevertheless."""
SLACK_S: Final = 10.0
"""What a busy machine may add."""

PROGRAM: Final = """
import asyncio, socket, sys, threading
real = socket.getaddrinfo
def stuck(host, *rest, **options):
    if host == "stuck.test" and not options.get("flags"):
        threading.Event().wait(25.0)
    return real(host, *rest, **options)
socket.getaddrinfo = stuck
"""
COMMAND: Final = f"""{PROGRAM}
from quiverlog.cli import main
sys.exit(main(sys.argv[1:]))
"""
COROUTINE: Final = f"""{PROGRAM}
import quiverlog.aio
async def run():
    try:
        await quiverlog.aio.connect("stuck.test:1", connect_timeout=0.5, request_timeout=0.5)
    except quiverlog.ConnectionFailed as error:
        sys.stderr.write(str(error) + "\\n")
        sys.exit(3)
asyncio.run(run())
"""


class Resolver:
    """Answers about one name when it is let go, and as the system does about others."""

    def __init__(self) -> None:
        self.asked = 0
        self.let_go = threading.Event()
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: Any, *rest: Any, **options: Any) -> Any:
        if host == STUCK and not options.get("flags"):
            self.asked += 1
            self.let_go.wait(STUCK_S)
            host = "127.0.0.1"
        return self._real(host, *rest, **options)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.let_go.set()
    until(lambda: not any(one.name == "quiverlog-names" for one in threading.enumerate()))


def fails_in_time(kind: str, timeout_s: float) -> quiverlog.ConnectionFailed:
    began_s = time.monotonic()
    limits = {"connect_timeout": timeout_s, "request_timeout": timeout_s}
    with pytest.raises(quiverlog.ConnectionFailed) as caught:
        connect(kind, f"{STUCK}:1", **limits)
    assert time.monotonic() - began_s < timeout_s + SLACK_S
    return caught.value


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_name_that_is_not_resolved_in_time(resolver: Resolver, kind: str) -> None:
    """However often it is tried, one thread waits for the resolver."""
    for timeout_s in (0.2, 0.5):
        error = fails_in_time(kind, timeout_s)
        assert f"The name of {STUCK}:1 was not resolved within" in error.message
    assert resolver.asked == 1
    resolver.let_go.set()
    until(lambda: "not resolved" not in fails_in_time(kind, 0.5).message)
    asked = resolver.asked
    assert "Cannot connect" in fails_in_time(kind, 5.0).message
    assert resolver.asked > asked, "nothing is remembered of an answer"


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_client_that_is_closed_leaves_the_resolver_alone(
    resolver: Resolver, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(quiverlog.QuiverlogError):
        connect(kind, f"{STUCK}:1", connect_timeout=0.1, request_timeout=0.1)
    resolver.let_go.set()
    until(lambda: not any(one.name == "quiverlog-names" for one in threading.enumerate()))
    assert not caplog.records, caplog.text


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (COMMAND, ["topic", "list"]),
        (COMMAND, ["cluster", "status"]),
        (COMMAND, ["consume", "t", "--follow"]),
        (COROUTINE, []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_process_ends_while_the_resolver_is_asked(program: str, words: list[str]) -> None:
    more = ["-b", f"{STUCK}:1", "--timeout", "1"] if words else []
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, *words, *more], capture_output=True, timeout=90
    )
    assert time.monotonic() - began_s < STUCK_S - 5.0
    assert done.returncode == 3, done.stderr
    assert b"was not resolved within" in done.stderr


def test_no_thread_for_the_resolver_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    for _ in range(2):
        with pytest.raises(quiverlog.ConnectionFailed, match="temporarily unavailable"):
            quiverlog.connect("localhost:1", connect_timeout=1.0, request_timeout=1.0)
