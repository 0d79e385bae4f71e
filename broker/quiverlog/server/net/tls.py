"""TLS of the listeners: contexts, the watch over their files, handshakes as bounded tasks.

A connection counts from accept(2) on. Until its first byte it costs a socket and a timer; then one
of `RUNNING_MAX` handshakes, or a place in the queue for one. One begins in each turn of the loop:
however many come at once, clients that are connected wait for few. While others wait, one that has
taken `CROWDED_S` is cut off: clients that stop within it keep no other out. A first byte of another
protocol gets one answer without TLS, so that a client from before TLS can report the reason; where
TLS is not required it is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from quiverlog.addresses import Address
from quiverlog.errors import InvalidConfig
from quiverlog.server.net.certified import Certified
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics, TlsDates
from quiverlog.tls import (
    BadTlsFiles,
    Fingerprint,
    ServerTls,
    authorities_in,
    certificates_in,
    client_context,
    fingerprint,
    server_context,
    why_failed,
)

__all__ = ["Admission", "Handshakes", "TlsHolder", "TlsWatch", "read_tls"]

RUNNING_MAX: Final = 256
HANDSHAKE_S: Final = 5.0
"""Until the first byte, and from the beginning of the handshake to its end."""
CROWDED_S: Final = 1.0
SHUTDOWN_S: Final = 2.0
LOOK_S: Final = 10.0
"""Changed files count after that time, or at once after SIGHUP."""
SETTLE_S: Final = 1.0
"""A certificate and its key are two files: changed ones are read when they rest."""
_HANDSHAKE: Final = 0x16
"""The first byte of every connection with TLS."""
_NO_ROOM: Final = bytes.fromhex("15030300020250")
"""TLS's alert `internal_error`, in plain as all before a handshake: clients try again."""
_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH


class Contexts(NamedTuple):
    """`client`: of this broker's links, with the same certificate; None: no authority is given."""

    server: ssl.SSLContext
    client: ssl.SSLContext | None
    dates: TlsDates
    authorities: frozenset[bytes]


def _contexts(settings: ServerTls) -> Contexts:
    """Raises BadTlsFiles: a file cannot be used, or every user may use the key."""
    key, ca_file = settings.key_file or settings.cert_file, settings.client_ca_file
    with contextlib.suppress(OSError):  # A missing one is reported below.
        mode = stat.S_IMODE(os.stat(key).st_mode)
        if mode & _OTHERS:
            raise BadTlsFiles(
                f"{key} is a private key, and every user of this machine may use it (mode"
                f" {mode:04o}): `chmod o= {key}`"
            )
    client = None
    if ca_file:
        client = client_context(ca_file, settings.cert_file, settings.key_file)
    shown = certificates_in(settings.cert_file)
    trusted = certificates_in(ca_file) if ca_file else []
    dates = TlsDates(
        certificate_s=min(one.not_after_s for one in shown),
        authority_s=min((one.not_after_s for one in trusted), default=0.0),
        serial=f"{shown[0].serial:x}",
    )
    authorities = authorities_in(ca_file) if ca_file else frozenset()
    return Contexts(server_context(settings), client, dates, authorities)


class TlsHolder:
    """The contexts of one listener's new connections; a reload replaces them as one.

    `certified`: its open connections, and this broker's links to others, that rest on certificates.
    """

    __slots__ = ("certified", "contexts", "settings")

    def __init__(self, settings: ServerTls) -> None:
        """Raises BadTlsFiles."""
        self.settings = settings
        self.contexts = _contexts(settings)
        self.certified = Certified(self.contexts.authorities)


def read_tls(by_listener: Mapping[str, ServerTls]) -> dict[str, TlsHolder]:
    """Raises InvalidConfig: a file cannot be used."""
    holders = {}
    for name, settings in by_listener.items():
        try:
            holders[name] = TlsHolder(settings)
        except BadTlsFiles as error:
            raise InvalidConfig(f"TLS of listener {name!r}: {error}.") from None
    return holders


class TlsWatch:
    """Reads the files of all listeners again when they change, and on request.

    A file that cannot be used changes nothing: the listener goes on with what it had. All methods
    are for the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        holders: Mapping[str, TlsHolder],
        *,
        metrics: ServerMetrics,
        log: Logger,
    ) -> None:
        self._loop = loop
        self._holders = holders
        self._metrics = metrics
        self._log = log
        self._read = {name: fingerprint(one.settings.files) for name, one in holders.items()}
        self._seen: dict[str, Fingerprint] = dict(self._read)
        self._errors: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(LOOK_S, self._look)
        for name, one in holders.items():
            metrics.tls_dates[name] = one.contexts.dates

    def request(self) -> None:
        """Read all files soon."""
        self._read.clear()
        self._timer.cancel()
        self._look()

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        for holder in self._holders.values():
            holder.certified.close()

    def _look(self) -> None:
        changing = False
        due = []
        for name, holder in self._holders.items():
            now = fingerprint(holder.settings.files)
            if now != self._seen[name]:
                # Being written perhaps: it is read when the next look finds it the same.
                self._seen[name] = now
                changing = True
            elif now != self._read.get(name):
                due.append(name)
        self._timer = self._loop.call_later(SETTLE_S if changing else LOOK_S, self._look)
        if due and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._take(due))

    async def _take(self, names: list[str]) -> None:
        for name in names:
            holder, seen = self._holders[name], self._seen[name]
            try:
                found = await self._loop.run_in_executor(None, _contexts, holder.settings)
            except BadTlsFiles as error:
                self._refused(name, str(error))
            else:
                self._taken(name, holder, found)
            self._read[name] = seen

    def _refused(self, name: str, why: str) -> None:
        self._metrics.tls_files_refused[name] = 1
        if self._errors.get(name) != why:
            self._errors[name] = why
            self._log.error("changed TLS files are not used", listener=name, why=why)

    def _taken(self, name: str, holder: TlsHolder, found: Contexts) -> None:
        self._errors.pop(name, None)
        self._metrics.tls_files_refused[name] = 0
        before = holder.contexts.dates
        holder.contexts = found
        holder.certified.trust(found.authorities)
        self._metrics.tls_dates[name] = found.dates
        self._log.warning(
            "TLS files are read again", listener=name, serial=found.dates.serial,
            before=before.serial,
        )  # fmt: skip


class Admission(Protocol):
    """Counts a listener's connections from accept(2) on."""

    def enter(self, peer: str) -> Any:
        """Return the place of a new connection; None: there is none."""

    def leave(self, place: Any) -> None:
        """Free the place of a connection that no protocol has."""


class _Shaking:
    """One connection before the end of its handshake."""

    __slots__ = ("began_s", "is_over", "peer", "place", "sock", "task", "timer")

    def __init__(self, sock: socket.socket, peer: str, place: Any) -> None:
        self.sock = sock
        self.peer = peer
        self.place = place
        self.began_s = 0.0
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Handshakes:
    """The handshakes of one listener.

    Args:
        make: makes the protocol of a connection that has this place; `is_made` of it is True once
            it owns the place.
        plain_answer: sent to a client that begins without TLS.
        yields: where there is no place, the oldest connection that has sent nothing gives way.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        holder: TlsHolder,
        make: Callable[[Any], Any],
        admission: Admission,
        *,
        plain_answer: bytes,
        metrics: ServerMetrics,
        log: Logger,
        yields: bool = False,
    ) -> None:
        self._yields = yields
        self._loop = loop
        self._holder = holder
        self._make = make
        self._admission = admission
        self._plain_answer = plain_answer
        self._metrics = metrics
        self._log = log
        self._silent: dict[_Shaking, None] = {}
        self._queue: deque[_Shaking] = deque()
        self._running: dict[_Shaking, None] = {}
        self._plain: set[asyncio.Task[Any]] = set()
        self._crowded: asyncio.TimerHandle | None = None
        self._is_due = self._is_closed = False

    def take(self, sock: socket.socket) -> None:
        """Begin with an accepted connection; never blocks, never raises."""
        try:
            peer = str(Address(*sock.getpeername()[:2]))
        except OSError:
            sock.close()  # It has gone.
            return
        place = self._admission.enter(peer)
        if place is None and self._yields and self._make_room():
            place = self._admission.enter(peer)
        if place is None:
            # Without a handshake, which would cost what is lacking.
            self._metrics.count_handshake("no_room")
            with contextlib.suppress(OSError):
                sock.send(_NO_ROOM)
            sock.close()
            return
        shaking = _Shaking(sock, peer, place)
        self._silent[shaking] = None
        shaking.timer = self._loop.call_later(HANDSHAKE_S, self._is_silent, shaking)
        self._loop.add_reader(sock, self._has_spoken, shaking)

    def _make_room(self) -> bool:
        """Return whether there is a place now; else there may be one a moment later."""
        if self._silent:
            self._drop(next(iter(self._silent)), "cut_off")
            return True
        oldest = next(iter(self._running), None)
        if oldest is not None and self._loop.time() - oldest.began_s >= CROWDED_S:
            self._cut_off(oldest)
        return False

    def _cut_off(self, running: _Shaking) -> None:
        assert running.task is not None
        del self._running[running]
        running.task.cancel()

    def close(self) -> None:
        """End all that are under way."""
        self._is_closed = True
        for shaking in list(self._silent):
            self._drop(shaking, "stopped")
        while self._queue:
            self._drop(self._queue.popleft(), "stopped")
        for task in [*self._plain, *(one.task for one in self._running)]:
            if task is not None:
                task.cancel()

    # --- before the first byte ------------------------------------------------------------------
    def _is_silent(self, shaking: _Shaking) -> None:
        self._drop(shaking, "silent")

    def _drop(self, shaking: _Shaking, outcome: str) -> None:
        """Close a connection whose handshake has not begun."""
        self._forget_silent(shaking)
        shaking.sock.close()
        self._end(shaking, outcome)

    def _forget_silent(self, shaking: _Shaking) -> None:
        if shaking in self._silent:
            del self._silent[shaking]
            self._loop.remove_reader(shaking.sock)
        if shaking.timer is not None:
            shaking.timer.cancel()

    def _end(self, shaking: _Shaking, outcome: str) -> None:
        assert not shaking.is_over
        shaking.is_over = True
        self._metrics.count_handshake(outcome)
        self._admission.leave(shaking.place)

    def _has_spoken(self, shaking: _Shaking) -> None:
        try:
            first = shaking.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._drop(shaking, "left")
            return
        self._forget_silent(shaking)
        if first[0] != _HANDSHAKE:
            is_taken = not self._holder.settings.is_required
            answer = self._take_plain if is_taken else self._refuse_plain
            task = self._loop.create_task(answer(shaking))
            self._plain.add(task)
            task.add_done_callback(self._plain.discard)
            return
        self._queue.append(shaking)
        self._go_on_soon()

    async def _take_plain(self, shaking: _Shaking) -> None:
        protocol = self._make(shaking.place)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, shaking.sock)
        except OSError:
            shaking.sock.close()
        if protocol.is_made:
            self._metrics.count_handshake("plain_taken")
        else:
            self._end(shaking, "left")

    async def _refuse_plain(self, shaking: _Shaking) -> None:
        sock, loop = shaking.sock, self._loop
        self._log.info("a connection without TLS is refused", peer=shaking.peer)
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                await loop.sock_sendall(sock, self._plain_answer)
                sock.shutdown(socket.SHUT_WR)
                # Closed with unread bytes, the kernel sends a reset, which discards the answer.
                while await loop.sock_recv(sock, 65_536):
                    pass
        except (OSError, TimeoutError):
            pass
        finally:
            sock.close()
            self._end(shaking, "plain")

    # --- handshakes -----------------------------------------------------------------------------
    def _go_on_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        if not self._queue or self._is_closed:
            return
        now_s = self._loop.time()
        if len(self._running) >= RUNNING_MAX:
            oldest = next(iter(self._running))
            if now_s - oldest.began_s < CROWDED_S:
                if self._crowded is None:
                    due_s = oldest.began_s + CROWDED_S
                    self._crowded = self._loop.call_at(due_s, self._look_again)
                return
            self._cut_off(oldest)
        shaking = self._queue.popleft()
        shaking.began_s = now_s
        self._running[shaking] = None
        shaking.task = self._loop.create_task(self._shake(shaking))
        # The loop polls in between: what connected clients have sent meanwhile comes first.
        self._go_on_soon()

    def _look_again(self) -> None:
        # Forgotten first: a timer that is early by a rounding is followed by another.
        self._crowded = None
        self._go_on()

    async def _shake(self, shaking: _Shaking) -> None:
        protocol = self._make(shaking.place)
        outcome, why = "done", ""
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                shaking.sock,
                ssl=self._holder.contexts.server,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except asyncio.CancelledError:
            outcome, why = "cut_off", "others wait, or the broker stops"
        except OSError as error:
            # Not closed here: the loop has the descriptor, and closes it a moment later.
            outcome = "failed"
            why = why_failed(error)
        except Exception as error:  # A bug ends this connection, not the listener.
            outcome = "failed"
            context = {"message": "taking a connection", "exception": error}
            self._loop.call_exception_handler(context)
        finally:
            self._running.pop(shaking, None)
            if protocol.is_made:
                self._metrics.count_handshake("done")
            else:
                if why:
                    self._log.info("a TLS handshake failed", peer=shaking.peer, why=why)
                self._end(shaking, "failed" if outcome == "done" else outcome)
            self._go_on_soon()
