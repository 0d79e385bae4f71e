"""TLS contexts, dates of certificates, and why a handshake failed, for clients and brokers.

A context cannot drop an authority or a chain: changed files make a new context, and connections
that are open keep theirs. Versions below 1.3 are refused unless `version_min` allows 1.2. Host
names are always checked, and tickets are off: a resumed session would keep an ended certificate
alive. Imported only where TLS is used, as `ssl` takes its time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn

__all__ = [
    "VERSIONS",
    "BadTlsFiles",
    "Certificate",
    "Fingerprint",
    "ServerTls",
    "Verified",
    "authorities_in",
    "certificates_in",
    "client_context",
    "fingerprint",
    "is_busy",
    "peer_names",
    "server_context",
    "verified",
    "why_broken",
    "why_failed",
]

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_PEM_BYTES_MAX: Final = 4 << 20
_CERTIFICATES_MAX: Final = 1_000
_NAMES_MAX: Final = 100

Fingerprint = tuple[tuple[int, int, int] | None, ...]
"""By file (inode, size, time of change in ns): another one means that it is read again."""


class BadTlsFiles(ValueError):
    """Which file cannot be used, and why. Holds nothing of a file's content."""


class Certificate(NamedTuple):
    """What is shown of a certificate. Times in seconds since 1970."""

    serial: int
    not_before_s: float
    not_after_s: float


class Verified(NamedTuple):
    """Of the certificate that the other end has shown.

    Attributes:
        authority: of `authorities_in`, at the end of its chain.
        ends_s: when the first of the chain does, in seconds since 1970.
    """

    authority: bytes
    ends_s: float


class ServerTls(NamedTuple):
    """How a listener speaks TLS.

    Attributes:
        key_file: empty: the key is in `cert_file`.
        client_auth: whether clients show a certificate: `none`, `wanted` or `required`.
        version_min: `1.2` or `1.3`.
        is_required: False: connections without TLS are taken, too.
    """

    cert_file: str
    key_file: str = ""
    client_ca_file: str = ""
    client_auth: str = "none"
    version_min: str = "1.3"
    is_required: bool = True

    @property
    def files(self) -> tuple[str, str, str]:
        return self.cert_file, self.key_file, self.client_ca_file


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
    # Authorities check alternative names; a subject may be any text.
    context.hostname_checks_common_name = False
    assert context.verify_mode is ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca_file:
        _trust(context, ca_file)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if cert_file:
        _show(context, cert_file, key_file)
    return context


def server_context(settings: ServerTls) -> ssl.SSLContext:
    """Return the context of a listener.

    Raises:
        BadTlsFiles: as `client_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    _show(context, settings.cert_file, settings.key_file)
    if settings.client_auth != "none":
        _trust(context, settings.client_ca_file)
        is_required = settings.client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def certificates_in(path: str) -> list[Certificate]:
    """Return the certificates of a PEM file, in order.

    Raises:
        BadTlsFiles: it cannot be read, or has none.
    """
    ders = _ders(path)
    try:
        return [_certificate(der) for der in ders]
    except (ValueError, IndexError):
        raise BadTlsFiles(f"{path} has a damaged certificate") from None


def authorities_in(path: str) -> frozenset[bytes]:
    """Return a fingerprint of each certificate of a PEM file. Raises BadTlsFiles."""
    return frozenset(map(_digest, _ders(path)))


def verified(tls: ssl.SSLObject | None) -> Verified | None:
    """Return None where there is no TLS, or no certificate was asked for or shown."""
    if tls is None or not tls.getpeercert(binary_form=True):
        return None
    if hasattr(tls, "get_verified_chain"):
        chain = tls.get_verified_chain()
    else:  # Python 3.11 and 3.12 have it in the object below.
        found = tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]
        chain = [one.public_bytes(_DER) for one in found]
    assert chain, "it was verified"
    try:
        ends_s = min(_certificate(der).not_after_s for der in chain)
    except (ValueError, IndexError):
        ends_s = 0.0  # A date that OpenSSL reads and Python does not, such as of the year 0.
    return Verified(_digest(chain[-1]), ends_s)


def _ders(path: str) -> list[bytes]:
    """Raises BadTlsFiles."""
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
        return [base64.b64decode(block, validate=False) for block in blocks]
    except binascii.Error:
        raise BadTlsFiles(f"{path} has a damaged certificate") from None


def peer_names(verified: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified certificate: `URI:...`, `DNS:...`, then `CN:...`.

    Args:
        verified: as `getpeercert` returns it; None or empty: none was shown.
    """
    if not verified:
        return ()
    found = [f"{kind}:{name}" for kind, name in verified.get("subjectAltName", ())]
    for parts in verified.get("subject", ()):
        found += [f"CN:{value}" for key, value in parts if key == "commonName"]
    return tuple(found[:_NAMES_MAX])


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


def why_broken(error: ssl.SSLError) -> str:
    """Return why a connection broke after its handshake, as the end of a sentence."""
    reason = getattr(error, "reason", None) or ""  # Not all of Python's own have one.
    if isinstance(error, ssl.SSLEOFError) or "UNEXPECTED_EOF" in reason:
        return "it was cut off"
    for part, meaning in _REASONS.items():
        if part in reason and "CERTIFICATE" in part:  # Judged after the client's handshake.
            return meaning
    return f"TLS failed ({reason.lower().replace('_', ' ') or error})"


def is_busy(error: ssl.SSLError) -> bool:
    """Return whether the other side has no place for the connection, and may have one later."""
    return "ALERT_INTERNAL_ERROR" in (error.reason or "")


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
    "UNSUPPORTED_PROTOCOL": "it speaks an older version of TLS than is taken",
    "ALERT_INTERNAL_ERROR": "it has no place for another connection now",
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
_DER: Final = 2
"""`_ssl.ENCODING_DER`."""
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


def _digest(der: bytes) -> bytes:
    _, _, behind = _element(der)  # OpenSSL's own form has more than the certificate.
    return hashlib.sha256(der[: len(der) - len(behind)]).digest()


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
