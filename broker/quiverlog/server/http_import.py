"""Importing the HTTP server with what it needs, and no more.

The web framework comes with a client, which reads the certificates of all authorities when it is
imported: as long as 300 logs take to open. No broker uses that client.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quiverlog.server.http import HttpServer

__all__ = ["http_server_class"]

_CERTIFICATES: Final = "SSL_CERT_FILE"
"""Where OpenSSL looks for them."""


def http_server_class() -> type[HttpServer]:
    """Imported when somebody has connected, or the broker is ready. May run in any thread.

    No other thread changes the environment or reads certificates.
    """
    before = os.environ.get(_CERTIFICATES)
    os.environ[_CERTIFICATES] = os.devnull
    try:
        from quiverlog.server.http import HttpServer
    finally:
        if before is None:
            del os.environ[_CERTIFICATES]
        else:
            os.environ[_CERTIFICATES] = before
    return HttpServer
