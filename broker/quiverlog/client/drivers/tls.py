"""TLS of the drivers: one context a client, made anew when its files change; a blocking socket.

Imported only by a client that uses TLS.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Final

from quiverlog.client.base.results import Address
from quiverlog.client.base.security import Security
from quiverlog.errors import ConnectionFailed, InvalidSecurity, QuiverlogError, TlsFailed
from quiverlog.tls import BadTlsFiles, Fingerprint, client_context, fingerprint, is_busy, why_failed

__all__ = ["ClientTls", "TlsSocket"]

logger = logging.getLogger("quiverlog")

RECORD_BYTES_MAX: Final = 16 << 10
"""Buffers are joined up to here: one record costs less than several."""
WRITE_BYTES_MAX: Final = 256 << 10
_CUT: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
HANDSHAKE_S_MIN: Final = 0.001
"""0 would make the socket non-blocking."""


class ClientTls:
    """The context of a client's new connections. Threads may share it."""

    def __init__(self, security: Security) -> None:
        assert security.tls
        self._security = security
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._seen: Fingerprint = ()

    def current(self) -> ssl.SSLContext:
        """Return the context of the files as they are now; of unusable ones, the one before.

        Raises:
            InvalidSecurity: there is none before.
        """
        of = self._security
        with self._lock:
            seen = fingerprint((of.ca_file, of.cert_file, of.key_file))
            if self._context is not None and seen == self._seen:
                return self._context
            try:
                context = client_context(of.ca_file, of.cert_file, of.key_file)
            except BadTlsFiles as error:
                if self._context is None:
                    raise InvalidSecurity(f"{error}.") from None
                logger.warning("changed TLS files are not used: %s", error)
                context = self._context
            self._context, self._seen = context, seen
            return context

    def server_name(self, address: Address) -> str:
        return self._security.server_name or address.host

    def connect(self, plain: socket.socket, address: Address, end_s: float) -> TlsSocket:
        """Secure a connected socket until `end_s` of the monotonic clock.

        Raises:
            TlsFailed, ConnectionFailed, InvalidSecurity: the socket is closed then.
        """
        try:
            context = self.current()
            plain.settimeout(max(HANDSHAKE_S_MIN, end_s - time.monotonic()))
            tls = context.wrap_socket(
                plain, server_hostname=self.server_name(address), do_handshake_on_connect=False
            )
            try:
                tls.do_handshake()
            except BaseException:
                tls.close()
                raise
        except (OSError, ValueError) as error:
            plain.close()
            raise _failed_handshake(address, error) from error
        except BaseException:
            plain.close()
            raise
        return TlsSocket(tls)

    def handshake_error(self, address: Address, error: OSError) -> Exception:
        """Return the error for a connection that was not made, by TCP or by TLS."""
        is_handshake = isinstance(
            error, (ssl.SSLError, ConnectionAbortedError, ConnectionResetError)
        )
        return _failed_handshake(address, error) if is_handshake else error

    def early_close_error(self, address: Address, error: QuiverlogError) -> QuiverlogError:
        """Return the error for a connection that ended before HELLO was answered."""
        cause = error.__cause__
        if isinstance(cause, ssl.SSLError):
            return TlsFailed(f"Cannot connect to {address} by TLS: {why_failed(cause)}.")
        shown = (
            "it refuses the certificate of this client"
            if self._security.cert_file
            else ("it may ask for the certificate of a client, and none is given")
        )
        return ConnectionFailed(
            f"{address} closed the connection before it answered: {shown}, or it is overloaded."
        )


def _failed_handshake(address: Address, error: Exception) -> Exception:
    """Return the error for a failed handshake; one that was cut off may be tried again."""
    if isinstance(error, TimeoutError):
        why = "the handshake was not answered in time; the listener may have no TLS"
    elif isinstance(error, OSError):
        why = why_failed(error)
    else:
        why = "no certificate can have that name"
    text = f"Cannot connect to {address} by TLS: {why}."
    is_cut = not isinstance(error, ssl.SSLError) or isinstance(error, _CUT) or is_busy(error)
    return ConnectionFailed(text) if is_cut else TlsFailed(text)


class TlsSocket:
    """A connected socket after its handshake, with what a blocking connection uses of one.

    `recv_into` raises BlockingIOError where nothing has arrived: the alerts, keys and tickets of
    TLS make a socket readable without a byte for the caller.
    """

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls

    def fileno(self) -> int:
        return self._tls.fileno()

    def settimeout(self, seconds: float) -> None:
        self._tls.settimeout(seconds)

    def pending(self) -> int:
        """Return the bytes that are decrypted already: `poll` does not report them."""
        return self._tls.pending()

    @property
    def certificate_ends_s(self) -> float:
        """Return when the broker's certificate ends, in seconds since 1970."""
        shown = self._tls.getpeercert()
        assert shown, "the handshake has checked it"
        return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))

    def is_stale(self) -> bool:
        """Return whether more has arrived than TLS's own messages."""
        self._tls.settimeout(0.0)
        try:
            self._tls.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            return True
        return True

    def recv_into(self, room: memoryview) -> int:
        try:
            return self._tls.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Send some of the buffers, as a socket's does; return the bytes."""
        first = buffers[0]
        if len(buffers) == 1 or first.nbytes >= RECORD_BYTES_MAX:
            return self._tls.send(first[:WRITE_BYTES_MAX])
        joined = bytearray()
        for buffer in buffers:
            joined += buffer[: RECORD_BYTES_MAX - len(joined)]
            if len(joined) == RECORD_BYTES_MAX:
                break
        return self._tls.send(joined)

    def close(self) -> None:
        # Without a closing alert: every frame has its length, so a cut is seen anyway.
        with contextlib.suppress(OSError):
            self._tls.close()
