"""A folder with the certificates of one cluster, of two small authorities.

    brokers-ca.pem  brokers-ca.key   signs brokers: clients and other brokers trust it
    clients-ca.pem  clients-ca.key   signs clients: it can make no broker
    broker-1.pem    broker-1.key     for each broker
    NAME.pem        NAME.key         for each client
    client.toml                      for clients without a certificate; NAME.toml for the others

Keys of the authorities are needed only to make certificates.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quiverlog.installing import install_line
from quiverlog.local.failures import LocalClusterFailed
from quiverlog.local.new_folder import new_folder
from quiverlog.local.secret_file import private_file, write_private
from quiverlog.tls import BadTlsFiles, Certificate, certificates_in
from quiverlog.wire.peer_proof import broker_uri

if TYPE_CHECKING:
    from quiverlog.local.authority import Authority

__all__ = ["BROKERS_CA", "CLIENTS_CA", "CLIENT_FILE", "FOLDER_MODE", "TlsFolder", "is_host"]

BROKERS_CA, CLIENTS_CA = "brokers-ca", "clients-ca"
FOLDER_MODE: Final = 0o700
CLIENT_FILE: Final = "client"
"""Of the security file for clients without a certificate."""
_CLUSTER: Final = "cluster-id"
_SUBJECT_BYTES_MAX: Final = 64
_NAME_CHARS_MAX: Final = 253
_NAME: Final = re.compile(
    r"(?:\*\.)?(?:(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.)*(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
)


class TlsFolder:
    """Raises LocalClusterFailed in every method that writes: a file is missing or unusable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, cluster_id: str, *, days: int) -> TlsFolder:
        """Make both authorities in an absent or empty folder."""
        authority = _authority()
        with new_folder(path, mode=FOLDER_MODE):
            made = cls(path)
            # Two, so that the key that makes clients cannot make brokers.
            for name in (BROKERS_CA, CLIENTS_CA):
                of = authority.make(_shortened(f"{name} of {cluster_id}"), days=days)
                made._write(name, of.certificate, of.key)
            (path / _CLUSTER).write_text(f"{cluster_id}\n")
            made._describe(CLIENT_FILE)
        return made

    @property
    def cluster_id(self) -> str:
        try:
            return (self.path / _CLUSTER).read_text().strip()
        except OSError as error:
            raise LocalClusterFailed(
                f"{self.path} holds no authorities of a cluster: {error.strerror}."
                " `quiverlog security init` makes them."
            ) from error

    @property
    def security_file(self) -> Path:
        return self.path / f"{CLIENT_FILE}.toml"

    @property
    def brokers_ca(self) -> Path:
        return self.path / f"{BROKERS_CA}.pem"

    def certificate(self, name: str) -> Path:
        return self.path / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.path / f"{name}.key"

    def days_left(self, name: str) -> float:
        """Return the days until a certificate ends; 0: there is none."""
        try:
            end_s = certificates_in(str(self.certificate(name)))[0].not_after_s
        except BadTlsFiles:
            return 0.0
        return max(0.0, (end_s - time.time()) / 86_400)

    def issue_broker(self, node_id: int, hosts: Sequence[str], *, days: float) -> str:
        """Write the certificate of a broker; return the name of its files.

        Args:
            hosts: none: those of its certificate.
        """
        name, uri = f"broker-{node_id}", broker_uri(self.cluster_id, node_id)
        authority = self._load(BROKERS_CA)
        issued = authority.issue(name, hosts or self._hosts(name), uris=[uri], days=days)
        self._write(name, issued.certificate, issued.key)
        return name

    def issue_client(self, name: str, *, days: float) -> Path:
        """Write the certificate of a client; return its security file."""
        issued = self._load(CLIENTS_CA).issue(name, serves=False, days=days)
        self._write(name, issued.certificate, issued.key)
        return self._describe(name, f'cert_file = "{name}.pem"\nkey_file = "{name}.key"\n')

    def certificates(self) -> list[tuple[str, Certificate]]:
        """Return (file, certificate) of all, by name; of a file with several, the first."""
        assert self.cluster_id, "the folder of no cluster"
        try:
            paths = sorted(self.path.glob("*.pem"))
            return [(path.name, certificates_in(str(path))[0]) for path in paths]
        except BadTlsFiles as error:
            raise LocalClusterFailed(f"{error}.") from error

    def _hosts(self, name: str) -> list[str]:
        from quiverlog.local.authority import hosts_in

        try:
            return hosts_in(self.certificate(name).read_bytes())
        except (OSError, ValueError) as error:
            raise LocalClusterFailed(
                f"{self.certificate(name)} is not there, or has no hosts: name the hosts under"
                " which the broker is reached."
            ) from error

    def _describe(self, name: str, more: str = "") -> Path:
        path = self.path / f"{name}.toml"
        if path.exists():
            return path  # It may have been edited: a renewal changes no name in it.
        # Names without a folder: the files may be copied together to any place.
        path.write_text(f'ca_file = "{BROKERS_CA}.pem"\n{more}')
        return path

    def _load(self, name: str) -> Authority:
        assert self.cluster_id, "an authority without a cluster"
        try:
            return _authority().load(
                self.certificate(name).read_bytes(), self.key(name).read_bytes()
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise LocalClusterFailed(
                f"{self.certificate(name)} and its key make no certificates: {why}."
            ) from error

    def _write(self, name: str, certificate: bytes, key: bytes) -> None:
        with private_file(self.certificate(name), replaces=True) as file:
            # On the disk before its key is replaced: on a full one the old pair stays.
            file.write(certificate)
            file.flush()
            os.fsync(file.fileno())
            # The key first: what watches both files reads them once they rest.
            write_private(self.key(name), key, replaces=True)
        # Nothing of a certificate is secret: every connection is shown it.
        self.certificate(name).chmod(0o644)


def is_host(text: str) -> bool:
    """Return whether a certificate can have a name or an address."""
    try:
        ip_address(text)
    except ValueError:
        return len(text) <= _NAME_CHARS_MAX and _NAME.fullmatch(text) is not None
    return True


def _shortened(subject: str) -> str:
    """Return a subject that a certificate can have, which is another one for another text."""
    data = subject.encode()
    if len(data) <= _SUBJECT_BYTES_MAX:
        return subject
    digest = hashlib.sha256(data).hexdigest()[:8]
    return f"{data[: _SUBJECT_BYTES_MAX - 9].decode(errors='ignore')} {digest}"


def _authority() -> type[Authority]:
    try:
        from quiverlog.local.authority import Authority
    except ImportError as error:
        line = install_line("security", "cryptography")
        raise LocalClusterFailed(f"Certificates need `cryptography`: {line}") from error
    return Authority
