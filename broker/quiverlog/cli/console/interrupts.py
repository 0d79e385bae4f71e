"""Ctrl-C: delayed, forwarded to a library that ignores signals, or answered with a line of text."""

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
    """Delay a Ctrl-C to the end of the `with`, whose steps must not be separated."""
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

    DuckDB, for example, ends wrongly when Python handles the signal inside it.
    """
    # Python calls handlers only when the library returns; it writes the wakeup descriptor at once.
    pair = _socket_pair() if _is_ours() else None
    if pair is None:
        yield
        return
    receiver, sender = pair
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    def carry() -> None:
        while True:
            try:
                number = receiver.recv(1)
            except TimeoutError:
                stop()  # Again: between two statements it has no effect on either.
                continue
            if not number:
                return
            if number[0] == signal.SIGINT:
                stop()
                receiver.settimeout(_AGAIN_S)

    sender.setblocking(False)
    thread = threading.Thread(target=carry, name="quiverlog-ctrl-c", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(before)
        sender.close()
        thread.join()
        receiver.close()
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def printed_on_interrupt(text: str) -> Iterator[None]:
    """On Ctrl-C print `text`, which explains that the brokers continue."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\n{text}", err=True)
        raise


def _socket_pair() -> tuple[socket.socket, socket.socket] | None:
    """Return None when no descriptor is free: Ctrl-C then waits for the library."""
    try:
        return socket.socketpair()
    except OSError:
        return None


def _is_ours() -> bool:
    """Return False where an embedding program has its own handler."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
