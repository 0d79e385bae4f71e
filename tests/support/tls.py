"""Throw-away certificates, in files as brokers and clients take them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from quiverlog.local.authority import Authority
from quiverlog.local.secret_file import write_private
from quiverlog.tls import certificates_in
from quiverlog.wire.peer_proof import broker_uri

__all__ = ["LOCAL", "TlsFiles", "write_files"]

LOCAL: Final = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class TlsFiles:
    """The files of one certificate, and that of its authority."""

    ca: str
    cert: str
    key: str

    @property
    def serial(self) -> int:
        return certificates_in(self.cert)[0].serial

    def settings(self, listener: str, auth: str = "none") -> dict[str, str]:
        """Of `quiverlog broker`, for a listener that shows this certificate."""
        prefix = f"listeners.{listener}.tls."
        found = {f"{prefix}cert.file": self.cert, f"{prefix}key.file": self.key}
        if auth != "none":
            found |= {f"{prefix}client.ca.file": self.ca, f"{prefix}client.auth": auth}
        return found


def write_files(
    folder: Path,
    name: str,
    *,
    authority: Authority | None = None,
    hosts: tuple[str, ...] = LOCAL,
    broker: tuple[str, int] | None = None,
    begins: datetime | None = None,
    days: float = 10,
) -> TlsFiles:
    """Write a certificate; without an authority one of its own is made.

    Args:
        broker: (cluster id, node id) for which it counts.
    """
    made = authority or Authority.make(f"authority of {name}")
    uris = () if broker is None else (broker_uri(*broker),)
    issued = made.issue(name, hosts, uris=uris, days=days, begins=begins)
    files = TlsFiles(*(str(folder / f"{name}.{kind}") for kind in ("ca", "crt", "key")))
    Path(files.ca).write_bytes(made.certificate)
    # The key first: what watches both reads them once they rest.
    write_private(Path(files.key), issued.key, replaces=True)
    write_private(Path(files.cert), issued.certificate, replaces=True)
    return files
