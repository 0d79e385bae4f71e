"""The process of a broker: sockets, event loop, signals, supervisor (sd_notify), exit code.

An error before the broker serves is one line and an exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import gc
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import Final

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
from quiverlog.server.config.config import BrokerConfig
from quiverlog.server.config.listeners import LISTENERS_PREFIX, ListenerConfig
from quiverlog.server.config.reload import ConfigReloader
from quiverlog.server.observe.logs import (
    STDERR,
    STDOUT,
    LogControl,
    Logger,
    bridge_logging,
    hold_standard_streams,
    make_logger,
    write_line,
)
from quiverlog.server.process.broker_server import BrokerServer, Page

__all__ = ["Supervisor", "bind", "handle_signals", "hold_hangups", "run_broker"]


_IGNORED: Final = (
    signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
)  # fmt: skip

_SAME_S: Final = 0.1
"""A launcher forwards a signal that the whole process group received: it arrives twice. A person is
slower."""


def hold_hangups() -> None:
    """Ignore SIGHUP until there is something to reload: its default ends the process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def handle_signals(
    *,
    stop: asyncio.Event,
    reload: Callable[[], None],
    log: Logger,
    exit_code_forced: int,
) -> None:
    """
    Args:
        stop: set by the first SIGTERM or SIGINT.
        reload: called for each SIGHUP; must not raise.
        exit_code_forced: for a second SIGTERM or SIGINT.
    """
    loop = asyncio.get_running_loop()
    first_received_s: dict[int, float] = {}

    def stop_or_leave(number: int) -> None:
        since_s = loop.time() - first_received_s.setdefault(number, loop.time())
        if stop.is_set() and (len(first_received_s) > 1 or since_s >= _SAME_S):
            log.error("second signal: leaving without a clean stop", signal=number)
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(exit_code_forced)
        log.info("signal received", signal=signal.Signals(number).name)
        stop.set()

    def ignore(number: int) -> None:
        log.info("signal ignored", signal=signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_leave, number)
    loop.add_signal_handler(signal.SIGHUP, reload)
    for number in _IGNORED:
        loop.add_signal_handler(number, ignore, number)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no standard error
        faulthandler.register(signal.SIGUSR1, all_threads=True)


_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_US: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"


class Supervisor:
    """The program that started this process; `environ` has its socket and its watchdog's period."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        name = environ.pop(_SOCKET, "")
        watchdog_us = environ.pop(_WATCHDOG_US, "")
        watched_pid = environ.pop(_WATCHDOG_PID, "") or str(os.getpid())
        # "@" replaces the zero byte that begins the name of an abstract socket.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._period_s = 0.0
        if watchdog_us.isdecimal() and watched_pid == str(os.getpid()):
            # Twice in the allowed time, as sd_watchdog_enabled(3) recommends.
            self._period_s = int(watchdog_us) / 2e6
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Report that clients may connect."""
        self._notify("READY=1")

    def stopping(self) -> None:
        """Report that the stop has begun; it may take `shutdown.timeout.ms`."""
        self._notify("STOPPING=1")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report periodically that the loop runs, if there is a watchdog."""
        if self._period_s > 0:
            self._notify("WATCHDOG=1")
            self._timer = loop.call_later(self._period_s, self.watch, loop)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _notify(self, what: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError, ValueError), _datagrams() as sock:
            sock.sendto(what.encode(), self._address)


def _datagrams() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


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
"""The user may not use the data directory, or something else has a file's name."""
_SWITCH_INTERVAL_S = 0.001
"""How long another thread, such as one that renders metrics, may keep the interpreter."""


def run_broker(
    config: BrokerConfig,
    *,
    read_config: Callable[[], BrokerConfig] | None = None,
    page: Page | None = None,
) -> int:
    """Run a broker until a signal stops it; return the exit code.

    Args:
        read_config: reads the configuration again (SIGHUP); None: there is no file.
        page: see `BrokerServer`.
    """
    hold_standard_streams()
    hold_hangups()
    control = LogControl(config.log_level)
    log = make_logger(level=config.log_level, format=config.log_format, control=control)
    bridge_logging(log)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        return uvloop.run(_run(config, log, control, read_config, page))
    except QuiverlogError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error, _REFUSALS):
            return _path_failed(error.__cause__, str(error.details.get("file", "")))
        write_line(f"quiverlog broker: {' '.join(str(error).split())}", STDERR)
        return EXIT_REFUSED if isinstance(error, _REFUSALS) else EXIT_FAILED
    except OSError as error:
        return _path_failed(error, "")
    finally:
        # The exit frees everything: full collections over thousands of logs would only delay it.
        gc.freeze()


def _path_failed(error: OSError, path: str) -> int:
    # The whole path: the storage's errors, which clients may see, shorten it.
    name = error.filename or path
    write_line(f"quiverlog broker: {f'{name}: ' if name else ''}{error.strerror or error}", STDERR)
    return EXIT_REFUSED if error.errno in _REFUSED_PATHS else EXIT_FAILED


async def _run(
    config: BrokerConfig,
    log: Logger,
    control: LogControl,
    read_config: Callable[[], BrokerConfig] | None,
    page: Page | None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(os.environ)
    reloader = ConfigReloader(loop, read_config, log=log)
    servers: list[BrokerServer] = []

    def reload() -> None:
        for server in servers:
            server.read_files()
        # Without a file of the configuration these may be all that there is to read.
        if read_config is not None or not (config.cluster_secret_file or config.listeners_tls):
            reloader.request()

    handle_signals(stop=stop, reload=reload, log=log, exit_code_forced=EXIT_FAILED)
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
        server = BrokerServer(config, log, control=control, advertised=advertised, page=page)
        servers.append(server)
        try:
            if await server.start(listen, http, entropy=secrets.token_bytes, stop=stop):
                reloader.begin(server.reload)
                write_line(server.ready_line(), STDOUT)
                supervisor.ready()
                await stop.wait()
        except BaseException:
            await server.abandon()
            raise
        supervisor.stopping()
        clean = await server.stop()
    return EXIT_OK if clean else EXIT_FAILED


def bind(address: Address, key: str) -> socket.socket:
    """Return a bound socket, not listening yet. `key`: of the configuration, for errors."""
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
    bound = Address(*listen.getsockname()[:2])
    if config.advertise is not None:
        return Address(config.advertise.host, config.advertise.port or bound.port)
    if bound.host not in ("0.0.0.0", "::"):
        return Address(config.bind.host, bound.port)
    host = socket.gethostname()
    log.warning(
        "listening on every address: METADATA returns this host's name; set `advertise` if clients"
        " cannot resolve it",
        advertised=f"{host}:{bound.port}",
    )
    return Address(host, bound.port)
