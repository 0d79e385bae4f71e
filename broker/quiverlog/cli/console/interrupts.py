"""Ctrl-C: held back, carried to what does not hear it, and told what it does not end.

It is held back while something must not be cut in two.

Owns the handler of SIGINT while it is another than Python's.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import click

__all__ = ["interrupts_carried_to", "interrupts_held", "said_on_interrupt"]

_AGAIN_S = 0.05


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C that comes meanwhile is raised at the end, not in the middle."""
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
    """Ctrl-C calls `stop` at once, from another thread, until this ends, and then is raised.

    For a library's call that waits without a look at signals, or that ends the wrong way when
    Python tells it of one: DuckDB gives the query up then, and waits for tasks that nobody told.
    `stop` is called again and again because it may come between two statements, where it counts
    for neither.
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
def said_on_interrupt(text: str) -> Iterator[None]:
    """Around all that has brokers begin something and waits for it, which goes on without us."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\n{text}", err=True)
        raise


def _socket_pair() -> tuple[socket.socket, socket.socket] | None:
    """None: there are no descriptors left. Ctrl-C is then heard when the library is done."""
    try:
        return socket.socketpair()
    except OSError:
        return None


def _is_ours() -> bool:
    """False where somebody else has decided what Ctrl-C means."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
