"""A real broker that asks for logins, for tests that need users."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from quiverlog import Security
from quiverlog.client.admin.users import make_credentials
from quiverlog.local.secret_file import write_private
from quiverlog.wire.security.scram import Credential, credential_line
from tests.support.broker import BrokerProcess

ROOT_PASSWORD = "correct horse battery"
SECURED = {
    "listeners.default.authentication": "required",
    "listeners.default.allow.plaintext": True,
}
ROOT = Security(tls=False, user="root", password=ROOT_PASSWORD)


@contextlib.contextmanager
def secured_broker(folder: Path, **more: object) -> Iterator[BrokerProcess]:
    """The administrator is `root`. `more`: keys of the configuration, with `_` for `.`."""
    lines = [
        credential_line(
            "root",
            one.mechanism,
            Credential(one.salt, one.iterations, one.stored_key, one.server_key),
        )
        for one in make_credentials(ROOT_PASSWORD)
    ]
    admin = folder / f"admin-{os.urandom(4).hex()}.credential"
    write_private(admin, "".join(f"{line}\n" for line in lines))
    keys = {key.replace("_", "."): value for key, value in more.items()}
    config = {**SECURED, "admin.credential.file": str(admin), **keys}
    with BrokerProcess(config=config) as broker:
        yield broker
