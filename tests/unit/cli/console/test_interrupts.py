"""Ctrl-C while a library that ignores signals runs."""

from __future__ import annotations

import errno
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from quiverlog.cli.console.interrupts import interrupts_carried_to, interrupts_held


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    """A test run in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1
    assert not [t for t in threading.enumerate() if t.name == "quiverlog-ctrl-c"]
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("ending", [None, RuntimeError("interrupted"), StopIteration()], ids=repr)
def test_ctrl_c_stops_the_library_and_is_raised_at_the_end(ending: Exception | None) -> None:
    times = threading.Semaphore(0)

    def call_the_library() -> None:
        signal.raise_signal(signal.SIGINT)
        for _ in range(3):  # the first may have come too early to count
            assert times.acquire(timeout=60), "the library was not stopped"
        if ending is not None:
            raise ending

    with pytest.raises(KeyboardInterrupt), interrupts_carried_to(times.release):
        call_the_library()


def test_without_ctrl_c_nothing_is_stopped_and_errors_pass() -> None:
    stopped = threading.Event()
    with interrupts_carried_to(stopped.set):
        pass
    with pytest.raises(ValueError, match="own"), interrupts_carried_to(stopped.set):
        raise ValueError("own")
    assert not stopped.is_set()


def test_other_signals_are_not_carried() -> None:
    stopped = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with interrupts_carried_to(stopped.set):
            signal.raise_signal(signal.SIGUSR1)
        assert not stopped.is_set(), "the thread has ended, and read what there was"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_one_that_has_decided_what_ctrl_c_means_keeps_it() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    with interrupts_carried_to(lambda: pytest.fail("not ours")), interrupts_held():
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.SIGINT]


def test_without_descriptors_ctrl_c_takes_effect_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "socketpair", none_left)
    with interrupts_carried_to(lambda: pytest.fail("it cannot be forwarded")):
        pass
    with (
        pytest.raises(KeyboardInterrupt),
        interrupts_carried_to(lambda: pytest.fail("it cannot be forwarded")),
    ):
        signal.raise_signal(signal.SIGINT)
