"""A small certificate authority: for people without one, for local clusters and for tests.

Keys are of P-256, of which a broker signs ten times as many handshakes in a second as of RSA.
Certificates have what strict verifiers ask for (RFC 5280: key identifiers, critical constraints).
`cryptography` comes with the extra `security`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Issued", "hosts_in"]

_CLOCKS: Final = timedelta(hours=1)
"""Clocks of other machines may be this far behind."""


@dataclass(frozen=True, slots=True, repr=False)
class Issued:
    """A certificate and its key, in PEM form."""

    certificate: bytes
    key: bytes


class Authority:
    """An authority that signs by itself."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, name: str, *, days: int = 3_650) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        # Each has a name of its own: verifiers find an issuer by its name first.
        subject = _named(name)
        now = datetime.now(UTC)
        usage = _usage(signs_certificates=True)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Authority:
        """Raises ValueError: the two are no authority."""
        found = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("its key is none of an elliptic curve")
        if found.public_key() != private.public_key():
            raise ValueError("its key is not that of the certificate")
        return cls(found, private)

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        return _pem(self._key)

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        uris: Sequence[str] = (),
        serves: bool = True,
        days: float = 397,
        begins: datetime | None = None,
    ) -> Issued:
        """Return a new certificate with a new key.

        Args:
            hosts: names and addresses under which clients connect.
            uris: `quiverlog.wire.peer_proof.broker_uri` of a broker.
            serves: for a broker, which also connects to others; False: for a client alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        begins = begins or datetime.now(UTC) - _CLOCKS
        # A stolen key of a client must not answer as a broker.
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + timedelta(days=days) + _CLOCKS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer.value), False
            )
        )
        names = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, uris)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Issued(signed.public_bytes(serialization.Encoding.PEM), _pem(key))


def hosts_in(certificate: bytes) -> list[str]:
    """Return the names and addresses of a certificate. Raises ValueError: it has none."""
    found = x509.load_pem_x509_certificate(certificate)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("no alternative names") from error
    addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    hosts = [*names.get_values_for_type(x509.DNSName), *addresses]
    if not hosts:
        raise ValueError("no hosts")
    return hosts


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    # An address counts only as one: verifiers do not look for it among names.
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
