"""Ctrl-C: delayed, passed on to a library that ignores signals, or answered with a line of text."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import click

__all__ = ["interrupts_carried_to", "interrupts_held", "printed_on_interrupt"]

_AGAIN_S = 0.05


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay a Ctrl-C to the end: what runs must not be cut in two."""
    if not _is_ours():
        yield
        return
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts_carried_to(stop: Callable[[], object]) -> Iterator[None]:
    """On Ctrl-C call `stop` at once, from another thread, and raise at the end.

    DuckDB, for example, ends wrongly when Python passes a signal on. `stop` is repeated: between
    two statements it has no effect on either.
    """
    pair = _socket_pair() if _is_ours() else None
    if pair is None:
        yield
        return
    heard, told = pair
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    def carry() -> None:
        while True:
            try:
                number = heard.recv(1)
            except TimeoutError:
                stop()
                continue
            if not number:
                return
            if number[0] == signal.SIGINT:
                stop()
                heard.settimeout(_AGAIN_S)

    told.setblocking(False)
    thread = threading.Thread(target=carry, name="quiverlog-ctrl-c", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(before)
        told.close()
        thread.join()
        heard.close()
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def printed_on_interrupt(text: str) -> Iterator[None]:
    """On Ctrl-C print `text`: what the brokers have begun goes on."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\n{text}", err=True)
        raise


def _socket_pair() -> tuple[socket.socket, socket.socket] | None:
    """Return None without free descriptors: Ctrl-C then waits for the library."""
    try:
        return socket.socketpair()
    except OSError:
        return None


def _is_ours() -> bool:
    """Return False where an embedding program has set its own handler."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
