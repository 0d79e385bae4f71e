"""What each signal does to a running broker.

| signal | effect |
|---|---|
| SIGTERM, SIGINT | stop cleanly; a second one leaves at once, but the same again within 0.1 s |
| SIGHUP | read the configuration file again |
| SIGUSR1 | write the stacks of all threads to standard error |
| SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO | a log line, nothing else |
| SIGPIPE, SIGXFSZ | ignored, as Python does: the write fails instead |
| SIGQUIT and the rest | the system's default |

Must not know: how a broker stops or reloads.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from quiverlog.server.logs import Logger

__all__ = ["handle_signals", "hold_hangups"]

_IGNORED: Final = (
    signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
)  # fmt: skip

_SAME_S: Final = 0.1
"""Who stops a broker through a launcher is heard twice: the launcher passes on what the whole group
of processes was sent. A person who has lost patience is not as fast."""


def hold_hangups() -> None:
    """Let a SIGHUP that comes before there is anything to reload pass without effect."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def handle_signals(
    *,
    stop: asyncio.Event,
    reload: Callable[[], None],
    log: Logger,
    exit_code_forced: int,
) -> None:
    """Install the handlers on the running loop.

    Args:
        stop: set by the first SIGTERM or SIGINT.
        reload: called for each SIGHUP; must not raise.
        exit_code_forced: with which the process leaves at a second signal.
    """
    loop = asyncio.get_running_loop()
    heard_s: dict[int, float] = {}

    def stop_or_leave(number: int) -> None:
        since_s = loop.time() - heard_s.setdefault(number, loop.time())
        if stop.is_set() and (len(heard_s) > 1 or since_s >= _SAME_S):
            log.error("second signal: leaving without a clean stop", signal=number)
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(exit_code_forced)
        log.info("signal received", signal=signal.Signals(number).name)
        stop.set()

    def ignore(number: int) -> None:
        log.info("signal ignored", signal=signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_leave, number)
    loop.add_signal_handler(signal.SIGHUP, reload)
    for number in _IGNORED:
        loop.add_signal_handler(number, ignore, number)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no standard error
        faulthandler.register(signal.SIGUSR1, all_threads=True)
