"""Which signals end a broker in order, and which at once."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator
from typing import cast

import pytest

from quiverlog.server.observe.logs import Logger
from quiverlog.server.process import run

FORCED = 1
BOUND_S = 10.0


class Lines:
    """What the broker would log; `came` is set at each line."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.came = asyncio.Event()

    def info(self, text: str, **_: object) -> None:
        self.texts.append(text)
        self.came.set()

    error = info


@contextlib.contextmanager
def handled(log: Lines, stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    run.handle_signals(
        stop=stop, reload=lambda: None, log=cast(Logger, log), exit_code_forced=FORCED
    )
    try:
        yield
    finally:
        for number in signal.Signals:
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                loop.remove_signal_handler(number)
        faulthandler.unregister(signal.SIGUSR1)


@pytest.mark.parametrize(
    ("second", "same_s", "codes"),
    [
        (signal.SIGTERM, 60.0, []),
        (signal.SIGTERM, 0.0, [FORCED]),
        (signal.SIGINT, 60.0, [FORCED]),
    ],
    ids=["the same at once", "the same later", "another"],
)
async def test_a_signal_that_a_launcher_passes_on_is_no_second_one(
    monkeypatch: pytest.MonkeyPatch, second: signal.Signals, same_s: float, codes: list[int]
) -> None:
    """Ctrl-C for the process group of `uvx quiverlog broker` sends the signal twice."""
    left: list[int] = []
    log, stop = Lines(), asyncio.Event()
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(run, "_SAME_S", same_s)
    with handled(log, stop):
        for number in (signal.SIGTERM, second):
            log.came.clear()
            signal.raise_signal(number)
            await asyncio.wait_for(log.came.wait(), BOUND_S)
    assert stop.is_set()
    assert left == codes
