"""A broker's configuration: one table of typed keys, read from a file, the environment and flags.

Owns the keys (`CONFIG_KEYS`), their order of precedence (flag over environment over file over
default) and what they may not say together. docs/config.md is made from this table and the table
of topic keys.

Invariants: a key has one name, from which its flag (`data.dir` -> `--data-dir`) and environment
variable (`QUIVERLOG_DATA_DIR`) follow; whatever is refused is refused before anything is opened,
with the file and line, the variable or the flag that said it.

Must not know: sockets, files other than the configuration file, the node.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from quiverlog import limits
from quiverlog.addresses import Address, parse_address
from quiverlog.core.controller.configs import CONFIG_DEFS, topic_config
from quiverlog.errors import InvalidConfig

__all__ = [
    "CONFIG_KEYS",
    "BrokerConfig",
    "ConfigKey",
    "KeyKind",
    "load_config",
]

ENV_PREFIX: Final = "QUIVERLOG_"
TOPIC_DEFAULTS_PREFIX: Final = "topic.defaults."
OFF: Final = "off"
_EVERY_ADDRESS: Final = frozenset(("0.0.0.0", "::"))

_ENV_OF_OTHERS: Final = re.compile(
    # Clients and tools have variables of their own, and Kubernetes sets the last two kinds in
    # every container of a namespace that has a service called `quiverlog`.
    r"QUIVERLOG_(CONFIG|DEBUG|BOOTSTRAP_SERVER|(CLIENT|TEST|DEMO|BENCH)_\w+|PORT|PORT_\d\w+|SERVICE_\w+)"
)


class KeyKind(enum.Enum):
    """How a value is written."""

    INT = "integer"
    TEXT = "text"
    CHOICE = "choice"
    ADDRESS = "host:port"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of a broker's configuration. `minimum` and `maximum` are inclusive."""

    name: str
    kind: KeyKind
    default: int | str
    doc: str
    unit: str = ""
    minimum: int = 0
    maximum: int = 2**63 - 1
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The attribute of `BrokerConfig`."""
        return self.name.replace(".", "_")

    @property
    def flag(self) -> str:
        """The flag of `quiverlog broker`."""
        return "--" + self.name.replace(".", "-")

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.field.upper()

    @property
    def range_text(self) -> str:
        """The allowed values, for messages and docs."""
        if self.kind is KeyKind.CHOICE:
            return ", ".join(self.choices)
        if self.kind is KeyKind.INT:
            return f"{self.minimum} to {self.maximum}"
        return ""

    def parse(self, value: object) -> int | str | Address | None:
        """The typed value of what a file (typed already) or a flag (text) says.

        Raises:
            InvalidConfig: naming the value and what is allowed, not the key.
        """
        if self.kind is KeyKind.INT:
            return self._parse_int(value)
        if not isinstance(value, str):
            raise InvalidConfig(f"is {value!r}, not {self.kind.value}.")
        if self.kind is KeyKind.ADDRESS:
            return _parse_address(value)
        if self.kind is KeyKind.CHOICE and value not in self.choices:
            raise InvalidConfig(f"is {value!r}, allowed are {self.range_text}.")
        return value

    def _parse_int(self, value: object) -> int:
        if isinstance(value, str):
            try:
                value = int(value.replace("_", ""))
            except ValueError:
                raise InvalidConfig(f"is {value!r}, not a whole number.") from None
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidConfig(f"is {value!r}, not a whole number.")
        if not self.minimum <= value <= self.maximum:
            raise InvalidConfig(f"is {value}, allowed is {self.range_text}.")
        return value


def _parse_address(text: str) -> Address | None:
    """`host:port`; empty or `off`: none."""
    if text in ("", OFF):
        return None
    try:
        return parse_address(text, port_min=0)
    except ValueError:
        raise InvalidConfig(f"is {text!r}, not host:port (for example 127.0.0.1:9292).") from None


_INT, _TEXT, _CHOICE, _ADDRESS = KeyKind.INT, KeyKind.TEXT, KeyKind.CHOICE, KeyKind.ADDRESS
_DAY_MS: Final = 24 * 3_600_000

_KEYS: Final = (
    ConfigKey(
        "data.dir",
        _TEXT,
        "./quiverlog-data",
        "Where topics and metadata are kept. Made when it is missing; one broker at a time.",
    ),
    ConfigKey(
        "listen",
        _ADDRESS,
        "127.0.0.1:9292",
        "Where clients connect. Port 0 takes any free port; the ready line says which.",
    ),
    ConfigKey(
        "advertise",
        _ADDRESS,
        "",
        "What clients are told to connect to. Empty: what `listen` says, or the machine's host name"
        " where that is every address (`0.0.0.0`, `[::]`).",
    ),
    ConfigKey(
        "http.listen",
        _ADDRESS,
        "127.0.0.1:9293",
        "Where `/metrics`, `/healthz` and `/readyz` are served; `off` serves none of them.",
    ),
    ConfigKey(
        "node.id",
        _INT,
        0,
        "This broker's number in its cluster. It is written into the data directory.",
        maximum=2**31 - 1,
    ),
    ConfigKey(
        "cluster.id",
        _TEXT,
        "",
        "The cluster to which the data directory must belong. Empty: whatever it says, or a new"
        " one.",
    ),
    ConfigKey("rack", _TEXT, "", "A label for the place where this broker stands."),
    ConfigKey(
        "connections.max",
        _INT,
        limits.CONNECTIONS_MAX,
        "Connections of clients at once. More are answered TOO_MANY_CONNECTIONS and closed.",
        minimum=1,
        maximum=1_000_000,
    ),
    ConfigKey(
        "connections.idle.ms",
        _INT,
        limits.CONNECTION_IDLE_MS,
        "A connection with no traffic and nothing in flight for so long is closed.",
        unit="ms",
        minimum=100,
        maximum=365 * _DAY_MS,
    ),
    ConfigKey(
        "connections.frame.timeout.ms",
        _INT,
        limits.FRAME_TIMEOUT_MS,
        "A client that began a request, or connected and said nothing, has so long to finish.",
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
    ),
    ConfigKey(
        "connections.write.stall.ms",
        _INT,
        limits.WRITE_STALL_MS,
        "A client that takes nothing of a waiting reply for so long is closed.",
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
    ),
    ConfigKey(
        "connections.write.buffer.bytes",
        _INT,
        limits.WRITE_BUFFER_BYTES_MAX,
        "Replies waiting for one client; above it no further requests are taken from that client.",
        unit="bytes",
        minimum=64 * limits.KIB,
        maximum=limits.GIB,
    ),
    ConfigKey(
        "connections.in.flight.max",
        _INT,
        limits.REQUESTS_IN_FLIGHT_MAX,
        "Unanswered requests of one connection; above it no further requests are taken from it.",
        minimum=1,
        maximum=1_000_000,
    ),
    ConfigKey(
        "frame.bytes.max",
        _INT,
        limits.FRAME_BYTES_MAX,
        "Largest request. A larger one is answered FRAME_TOO_LARGE and the connection closed.",
        unit="bytes",
        minimum=limits.BATCH_BYTES_DEFAULT_MAX + limits.HEADER_BYTES_MAX,
        maximum=limits.FRAME_BYTES_MAX,
    ),
    ConfigKey(
        "disk.reserve.bytes",
        _INT,
        limits.DISK_RESERVE_BYTES_DEFAULT,
        "Writes are refused with DISK_FULL while less room than this is free.",
        unit="bytes",
        minimum=limits.MIB,
        maximum=2**50,
    ),
    ConfigKey("fsync.threads", _INT, 2, "Threads that flush logs to disk.", minimum=1, maximum=64),
    ConfigKey(
        "shutdown.timeout.ms",
        _INT,
        30_000,
        "On SIGTERM, so long for requests in flight and the last flush; then the broker leaves"
        " without the clean-shutdown mark.",
        unit="ms",
        minimum=100,
        maximum=3_600_000,
    ),
    ConfigKey(
        "metrics.topics.max",
        _INT,
        500,
        "So many topics have metrics of their own; the others are counted together as `_other`.",
        maximum=limits.TOPICS_MAX,
    ),
    ConfigKey(
        "log.level",
        _CHOICE,
        "info",
        "The least important log lines that are written.",
        choices=("debug", "info", "warning", "error"),
    ),
    ConfigKey(
        "log.format",
        _CHOICE,
        "logfmt",
        "How log lines are written to standard error.",
        choices=("logfmt", "json"),
    ),
)

CONFIG_KEYS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in _KEYS}
"""By name, in the order in which they are shown."""

_BY_ENV: Final = {key.env: key.name for key in _KEYS} | {
    ENV_PREFIX + (TOPIC_DEFAULTS_PREFIX + name).replace(".", "_").upper(): (
        TOPIC_DEFAULTS_PREFIX + name
    )
    for name in CONFIG_DEFS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All values, typed; a field per key of `CONFIG_KEYS`, dots turned into underscores."""

    data_dir: str
    listen: Address
    advertise: Address | None
    http_listen: Address | None
    node_id: int
    cluster_id: str
    rack: str
    connections_max: int
    connections_idle_ms: int
    connections_frame_timeout_ms: int
    connections_write_stall_ms: int
    connections_write_buffer_bytes: int
    connections_in_flight_max: int
    frame_bytes_max: int
    disk_reserve_bytes: int
    fsync_threads: int
    shutdown_timeout_ms: int
    metrics_topics_max: int
    log_level: str
    log_format: str
    topic_defaults: Mapping[str, str]


class _Setting(NamedTuple):
    """A value and who said it, as a message names it."""

    value: object
    source: str


def load_config(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> BrokerConfig:
    """The configuration of one broker.

    Args:
        path: a TOML file, or None.
        environ: where `QUIVERLOG_*` variables are looked for; None looks nowhere.
        flags: values from the command line by key name (`data.dir`), topic defaults among them
            (`topic.defaults.retention.ms`). None stands for not given.

    Raises:
        InvalidConfig: an unknown key, a value of the wrong type or out of range, two that
            contradict each other, a file that cannot be read; the message says where.
    """
    settings: dict[str, _Setting] = {}
    if path is not None:
        settings.update(_from_file(Path(path)))
    settings.update(_from_environment(environ or {}))
    for name, value in (flags or {}).items():
        if value is not None:
            known = CONFIG_KEYS.get(name)
            settings[name] = _Setting(value, known.flag if known else f"--set {name}")
    return _typed(settings)


def _from_file(path: Path) -> dict[str, _Setting]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}.") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path}: not TOML: {error}.") from error
    return {
        name: _Setting(value, f"{path}:{_line_of(text, name)}: {name}")
        for name, value in _flatten(tables)
    }


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """`[a] b.c = 1` -> `a.b.c`, 1: dotted keys, quoted keys and tables are all the same."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _line_of(text: str, name: str) -> int:
    """The line where the statement of a key begins: after the last prefix of the text that is
    TOML without it. (`tomllib` keeps no positions; a configuration is short.)"""
    lines = text.splitlines()
    before = 0
    for count in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        if name in dict(_flatten(table)):
            return before + 1
        before = count
    return len(lines)


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Setting]:
    settings = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or _ENV_OF_OTHERS.fullmatch(variable):
            continue
        name = _BY_ENV.get(variable)
        if name is None:
            raise InvalidConfig(f"environment variable {variable}: there is no such key.")
        settings[name] = _Setting(value, f"environment variable {variable}")
    return settings


def _typed(settings: Mapping[str, _Setting]) -> BrokerConfig:
    values: dict[str, Any] = {}
    topic_defaults: dict[str, str] = {}
    for name, (value, source) in settings.items():
        topic_key = name.removeprefix(TOPIC_DEFAULTS_PREFIX)
        if topic_key != name and topic_key in CONFIG_DEFS:
            topic_defaults[topic_key] = _parse_topic_default(topic_key, value, source)
        elif name not in CONFIG_KEYS:
            raise InvalidConfig(f"{source}: there is no such key{_suggest(name)}.")
        else:
            try:
                values[CONFIG_KEYS[name].field] = CONFIG_KEYS[name].parse(value)
            except InvalidConfig as error:
                raise InvalidConfig(f"{source} {error.message}") from None
    for key in CONFIG_KEYS.values():
        values.setdefault(key.field, key.parse(key.default))
    _refuse_contradictions(values, topic_defaults, settings)
    return BrokerConfig(topic_defaults=topic_defaults, **values)


def _parse_topic_default(key: str, value: object, source: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidConfig(f"{source} is {value!r}, not {CONFIG_DEFS[key].kind.value}.")
    try:
        CONFIG_DEFS[key].parse(str(value))
    except InvalidConfig as error:
        raise InvalidConfig(f"{source}: {error.message}") from None
    return str(value)


def _suggest(name: str) -> str:
    import difflib

    known = [*CONFIG_KEYS, *(TOPIC_DEFAULTS_PREFIX + key for key in CONFIG_DEFS)]
    close = difflib.get_close_matches(name, known, n=1)
    return f" (is it `{close[0]}`?)" if close else ""


def _refuse_contradictions(
    values: Mapping[str, Any],
    topic_defaults: Mapping[str, str],
    settings: Mapping[str, _Setting],
) -> None:
    def source(*names: str) -> str:
        return ", ".join(settings[n].source for n in names if n in settings) or names[0]

    listen, http, advertise = values["listen"], values["http_listen"], values["advertise"]
    if listen is None:
        raise InvalidConfig(f"{source('listen')}: a broker must listen somewhere.")
    same_port = http is not None and http.port and http.port == listen.port
    if same_port and (http.host == listen.host or _EVERY_ADDRESS & {http.host, listen.host}):
        raise InvalidConfig(
            f"{source('listen', 'http.listen')}: clients and HTTP cannot share port {listen.port}"
            f" of {listen.host}."
        )
    if advertise is not None and advertise.port == 0 and listen.port != 0:
        raise InvalidConfig(f"{source('advertise')}: port 0 can only go with `listen` on port 0.")
    if not values["data_dir"]:
        raise InvalidConfig(f"{source('data.dir')}: a directory is needed.")
    _refuse_topic_defaults(values, topic_defaults, source)


def _refuse_topic_defaults(
    values: Mapping[str, Any], topic_defaults: Mapping[str, str], source: Any
) -> None:
    named = [TOPIC_DEFAULTS_PREFIX + key for key in topic_defaults]
    try:
        # A single broker can hold one replica of anything.
        config = topic_config({}, topic_defaults, 1)
    except InvalidConfig as error:
        raise InvalidConfig(f"{source(*named)}: {error.message}") from None
    room = values["frame_bytes_max"] - limits.HEADER_BYTES_MAX
    if config.batch_bytes_max > room:
        raise InvalidConfig(
            f"{source('frame.bytes.max', TOPIC_DEFAULTS_PREFIX + 'max.message.bytes')}: a batch of"
            f" `max.message.bytes` {config.batch_bytes_max} does not fit into a request of"
            f" `frame.bytes.max` {values['frame_bytes_max']}."
        )
