"""Throw-away authorities and certificates."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

__all__ = ["TlsFiles", "write_files"]

HOSTS: Final = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class TlsFiles:
    """The files of one certificate, and those of its authority."""

    ca: str
    cert: str
    key: str


def write_files(
    folder: Path,
    name: str,
    *,
    authority: trustme.CA | None = None,
    hosts: tuple[str, ...] = HOSTS,
    begins: datetime.datetime | None = None,
    ends: datetime.datetime | None = None,
) -> TlsFiles:
    """Write a certificate; without an authority one of its own is made."""
    made = authority or trustme.CA()
    issued = made.issue_cert(*hosts, not_before=begins, not_after=ends)
    files = TlsFiles(*(str(folder / f"{name}.{kind}") for kind in ("ca", "crt", "key")))
    made.cert_pem.write_to_path(files.ca)
    Path(files.cert).write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files.key)
    Path(files.key).chmod(0o600)
    return files
