"""A broker as a process: start, ready line, work, drain, exit code.

Owns the order of things. Start: bind both addresses (a port in use is found out before the data
directory is touched), recover in a thread while `/healthz` already answers, then accept. Stop
(SIGTERM, SIGINT): accept no more, let the node answer and flush what is in flight, within
`shutdown.timeout.ms`, then leave; a second signal leaves at once, as a crash would.

Exit codes: 0 stopped cleanly, and the directory is marked so; 1 failed, or not stopped cleanly; 2
refused to start, and will refuse again until somebody changes something (wrong configuration,
address or data directory in use, foreign or newer data, a path that cannot be used).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import secrets
import socket
import sys
from collections.abc import Callable

import uvloop

from quiverlog.addresses import Address
from quiverlog.errors import (
    AddressInUse,
    CorruptLog,
    DataDirectoryInUse,
    ForeignDataDirectory,
    InvalidConfig,
    QuiverlogError,
    UnsupportedFeatureLevel,
    UnsupportedFormat,
)
from quiverlog.node.runtime.config import LISTENER_DEFAULT
from quiverlog.server.broker_server import BrokerServer
from quiverlog.server.config import BrokerConfig
from quiverlog.server.listener_config import LISTENERS_PREFIX, ListenerConfig
from quiverlog.server.logs import LogControl, Logger, bridge_logging, make_logger
from quiverlog.server.reloader import ConfigReloader
from quiverlog.server.signals import handle_signals, hold_hangups
from quiverlog.server.streams import STDERR, STDOUT, hold_standard_streams, say
from quiverlog.server.supervisor import Supervisor

__all__ = ["bind", "run_broker"]

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2

_REFUSALS = (
    AddressInUse,
    CorruptLog,
    DataDirectoryInUse,
    ForeignDataDirectory,
    InvalidConfig,
    UnsupportedFeatureLevel,
    UnsupportedFormat,
)
_REFUSED_PATHS = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOENT,
        errno.EEXIST,
        errno.EROFS,
        errno.ELOOP,
        errno.ENXIO,
        errno.ENAMETOOLONG,
    )
)
"""The data directory cannot be used by this user, is none, or something else has a file's name."""
_SWITCH_INTERVAL_S = 0.001
"""A thread that renders metrics gives the interpreter back to the loop after so long."""


def run_broker(
    config: BrokerConfig, *, read_config: Callable[[], BrokerConfig] | None = None
) -> int:
    """Run a broker in this process until it is told to stop. Returns the exit code.

    Args:
        read_config: reads the configuration once more (SIGHUP); None: there is no file to read.
    """
    hold_standard_streams()
    hold_hangups()
    control = LogControl(config.log_level)
    log = make_logger(level=config.log_level, format=config.log_format, control=control)
    bridge_logging(log)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        return uvloop.run(_run(config, log, control, read_config))
    except QuiverlogError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error, _REFUSALS):
            return _path_failed(error.__cause__, str(error.details.get("file", "")))
        say(f"quiverlog broker: {' '.join(str(error).split())}", STDERR)
        return EXIT_REFUSED if isinstance(error, _REFUSALS) else EXIT_FAILED
    except OSError as error:
        return _path_failed(error, "")
    finally:
        # The process ends: full collections over thousands of logs would free what goes anyway.
        gc.freeze()


def _path_failed(error: OSError, path: str) -> int:
    """Say which path, whole: errors of the storage, made for clients as well, shorten it."""
    name = error.filename or path
    say(f"quiverlog broker: {f'{name}: ' if name else ''}{error.strerror or error}", STDERR)
    return EXIT_REFUSED if error.errno in _REFUSED_PATHS else EXIT_FAILED


async def _run(
    config: BrokerConfig,
    log: Logger,
    control: LogControl,
    read_config: Callable[[], BrokerConfig] | None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(os.environ)
    reloader = ConfigReloader(loop, read_config, log=log)
    handle_signals(stop=stop, reload=reloader.request, log=log, exit_code_forced=EXIT_FAILED)
    with contextlib.ExitStack() as held:
        held.callback(supervisor.close)
        supervisor.watch(loop)
        listen = {LISTENER_DEFAULT: held.enter_context(bind(config.listen, "listen"))}
        for name, one in config.listeners.items():
            key = f"{LISTENERS_PREFIX}{name}.bind"
            listen[name] = held.enter_context(bind(one.bind, key))
        http = None
        if config.http_listen is not None:
            http = held.enter_context(bind(config.http_listen, "http.listen"))
        wanted = {LISTENER_DEFAULT: ListenerConfig(config.listen, config.advertise)}
        wanted |= config.listeners
        advertised = {n: advertised_address(wanted[n], listen[n], log) for n in listen}
        server = BrokerServer(config, log, control=control, advertised=advertised)
        try:
            if await server.start(listen, http, entropy=secrets.token_bytes, stop=stop):
                reloader.begin(server.reload)
                say(server.ready_line(), STDOUT)
                supervisor.ready()
                await stop.wait()
        except BaseException:
            await server.abandon()
            raise
        supervisor.stopping()
        clean = await server.stop()
    return EXIT_OK if clean else EXIT_FAILED


def bind(address: Address, key: str) -> socket.socket:
    """A socket bound to `address`, not listening yet.

    Raises:
        AddressInUse: another program listens there.
        InvalidConfig: this machine has no such address, or may not use the port.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidConfig(f"`{key}` {address}: {error.strerror}.") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"`{key}` {address}: another program listens there.") from error
        raise InvalidConfig(f"`{key}` {address}: {error.strerror}.") from error
    return sock


def advertised_address(config: ListenerConfig, listen: socket.socket, log: Logger) -> Address:
    """What those who ask at a listener are told to connect to."""
    bound = Address(*listen.getsockname()[:2])
    if config.advertise is not None:
        return Address(config.advertise.host, config.advertise.port or bound.port)
    if bound.host not in ("0.0.0.0", "::"):
        return Address(config.bind.host, bound.port)
    host = socket.gethostname()
    log.warning(
        "listening on every address: clients are given this host's name; set `advertise` if they"
        " cannot resolve it",
        advertised=f"{host}:{bound.port}",
    )
    return Address(host, bound.port)
