"""TLS contexts, dates of certificates, and why a handshake failed, for clients and brokers.

A context cannot drop an authority or a chain: changed files make a new context, and connections
that are open keep theirs. Versions below 1.3 are refused unless `version_min` allows 1.2. Host
names are always checked, and tickets are off: a resumed session would keep an ended certificate
alive. Imported only where TLS is used, as `ssl` takes its time.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple, NoReturn

__all__ = [
    "BadTlsFiles",
    "Certificate",
    "Fingerprint",
    "certificates_in",
    "client_context",
    "fingerprint",
    "why_failed",
]

_PEM_BYTES_MAX: Final = 4 << 20
_CERTIFICATES_MAX: Final = 1_000

Fingerprint = tuple[tuple[int, int, int] | None, ...]
"""By file (inode, size, time of change in ns): another one means that it is read again."""


class BadTlsFiles(ValueError):
    """Which file cannot be used, and why. Holds nothing of a file's content."""


class Certificate(NamedTuple):
    """What is shown of a certificate. Times in seconds since 1970."""

    serial: int
    not_before_s: float
    not_after_s: float


def fingerprint(paths: Iterable[str]) -> Fingerprint:
    """Return what changes with the files; a missing one counts as a change, too."""

    def one(path: str) -> tuple[int, int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    return tuple(one(path) for path in paths if path)


def client_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return a context that checks the server's chain and host name.

    Args:
        ca_file: the authorities that are trusted; empty: those of this machine.
        cert_file: this side's certificate, followed by its chain; empty: none.
        key_file: its key, where that is not in `cert_file`.

    Raises:
        BadTlsFiles: a file is missing, or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca_file:
        _trust(context, ca_file)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if cert_file:
        _show(context, cert_file, key_file)
    return context


def certificates_in(path: str) -> list[Certificate]:
    """Return the certificates of a PEM file, in order.

    Raises:
        BadTlsFiles: it cannot be read, or has none.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_PEM_BYTES_MAX + 1)
    except OSError as error:
        raise BadTlsFiles(f"{path} cannot be read: {error.strerror or error}") from None
    if len(text) > _PEM_BYTES_MAX:
        raise BadTlsFiles(f"{path} has more than {_PEM_BYTES_MAX} bytes")
    blocks = _PEM.findall(text)
    if not blocks or len(blocks) > _CERTIFICATES_MAX:
        raise BadTlsFiles(f"{path} has {len(blocks) or 'no'} certificates in PEM form")
    try:
        return [_certificate(base64.b64decode(block, validate=False)) for block in blocks]
    except (ValueError, IndexError, binascii.Error):
        raise BadTlsFiles(f"{path} has a damaged certificate") from None


def why_failed(error: BaseException) -> str:
    """Return the cause of a failed handshake, as the end of a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message.rstrip('.')}"
    if not isinstance(error, ssl.SSLError):
        return "the connection was closed during the TLS handshake"
    reason = error.reason or ""
    for part, meaning in _REASONS.items():
        if part in reason:
            return meaning
    return f"the TLS handshake failed ({reason.lower().replace('_', ' ') or error})"


# Parts of OpenSSL's names, which differ between its versions.
_REASONS: Final = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate, and none was sent",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no client certificate",
    "ALERT_UNKNOWN_CA": "it refuses our certificate: it does not know who signed it",
    "ALERT_CERTIFICATE_EXPIRED": "it refuses our certificate, which has expired",
    "ALERT_BAD_CERTIFICATE": "it refuses our certificate",
    "ALERT_UNSUPPORTED_CERTIFICATE": "it refuses our certificate, which is not for this use",
    "ALERT_DECRYPT_ERROR": "it refuses our certificate's signature",
    "ALERT_ACCESS_DENIED": "it refuses our certificate",
    "WRONG_VERSION_NUMBER": "it answers without TLS",
    "RECORD_LAYER_FAILURE": "it answers without TLS",
    "HTTP_REQUEST": "it was sent HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks another version of TLS",
    "ALERT_PROTOCOL_VERSION": "it speaks another version of TLS",
    "UNEXPECTED_EOF": "the connection was closed during the TLS handshake",
}


def _trust(context: ssl.SSLContext, ca_file: str) -> None:
    certificates_in(ca_file)
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadTlsFiles(f"{ca_file} cannot be used as authorities: {_text(error)}") from None


def _show(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    certificates_in(cert_file)
    try:
        context.load_cert_chain(cert_file, key_file or None, password=_refuse_password)
    except (OSError, ssl.SSLError, _EncryptedKey) as error:
        where = key_file or cert_file
        if isinstance(error, _EncryptedKey):
            why = "the key is encrypted: brokers and clients take keys without a password"
        elif isinstance(error, ssl.SSLError) and "MISMATCH" in (error.reason or ""):
            why = f"the key is not that of the certificate in {cert_file}"
        elif isinstance(error, ssl.SSLError):
            why = "there is no private key in PEM form in it"
        else:
            why = _text(error)
        raise BadTlsFiles(f"{where} cannot be used: {why}") from None


class _EncryptedKey(Exception):
    pass


def _refuse_password() -> NoReturn:
    # Without a callback OpenSSL would ask on the terminal.
    raise _EncryptedKey


def _text(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificates in PEM form").lower().replace("_", " ")
    return error.strerror or str(error)


# --- what is read of a certificate (RFC 5280): its number and its dates ---------------------------
_PEM: Final = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.*?)-----END (?:TRUSTED |X509 )?CERTIFICATE",
    re.DOTALL,
)
_INTEGER, _SEQUENCE, _UTC_TIME, _TIME, _VERSION = 0x02, 0x30, 0x17, 0x18, 0xA0


def _certificate(der: bytes) -> Certificate:
    _, whole, _ = _element(der)
    _, signed, _ = _element(whole)
    tag, value, rest = _element(signed)
    if tag == _VERSION:
        tag, value, rest = _element(rest)
    if tag != _INTEGER:
        raise ValueError("no serial number")
    serial = int.from_bytes(value, "big")
    _, _, rest = _element(rest)  # the algorithm
    _, _, rest = _element(rest)  # the issuer
    tag, dates, _ = _element(rest)
    if tag != _SEQUENCE:
        raise ValueError("no dates")
    kind, begin, rest = _element(dates)
    last_kind, end, _ = _element(rest)
    return Certificate(serial, _time(kind, begin), _time(last_kind, end))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return (tag, value, what follows) of DER."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        count = size & 0x7F
        begin += count
        size = int.from_bytes(data[2:begin], "big")
    if len(data) < begin + size:
        raise ValueError("cut off")
    return tag, data[begin : begin + size], data[begin + size :]


def _time(tag: int, value: bytes) -> float:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
