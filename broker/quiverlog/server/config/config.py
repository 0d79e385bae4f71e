"""A broker's configuration: typed keys (`broker_keys`) from a file, the environment and flags.

Precedence: flag, environment, file, default. A bad value is refused before anything is opened, with
the file and line, the variable or the flag that gave it.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from quiverlog import limits
from quiverlog.addresses import Address
from quiverlog.broker_keys import CONFIG_KEYS, ENV_PREFIX, env_of, flag_of
from quiverlog.core.controller.broker_configs import why_unknown
from quiverlog.core.controller.configs import CONFIG_DEFS, TOPIC_DEFAULTS_PREFIX, topic_config
from quiverlog.errors import InvalidConfig
from quiverlog.node.runtime.config import LISTENER_DEFAULT, Asked, Authentication, Given
from quiverlog.roles import ROLE_CONTROLLER
from quiverlog.server.config.listeners import (
    LISTENERS_PREFIX,
    ListenerConfig,
    check_advertised,
    check_brokers_tls,
    listener_key,
    parse_listeners,
    refuse_shared_ports,
)
from quiverlog.settings import InvalidValue, text_of
from quiverlog.tls import ServerTls
from quiverlog.wire.config_messages import ConfigSource

__all__ = [
    "CONFIG_FILE_BYTES_MAX",
    "BrokerConfig",
    "FileValue",
    "load_config",
    "read_config_file",
    "refuse_lost_brokers",
]


CONFIG_FILE_BYTES_MAX: Final = 65_536


class FileValue(NamedTuple):
    name: str
    value: object
    line: int


def read_config_file(path: Path) -> list[FileValue]:
    """Raises InvalidConfig: not a readable regular file, too large, or not TOML."""
    try:
        text = _read_bounded(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}.") from error
    try:
        values = dict(_flatten(tomllib.loads(text)))
        lines = _lines_of(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path}: not TOML: {error}.") from error
    except RecursionError:
        raise InvalidConfig(f"{path}: nested too deep.") from None
    return [FileValue(name, value, lines[name]) for name, value in values.items()]


def _read_bounded(path: Path) -> bytes:
    # O_NONBLOCK: opening a FIFO would wait until its other end is opened.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidConfig(f"{path}: not a regular file.")
        data = bytearray()
        while piece := file.read(CONFIG_FILE_BYTES_MAX + 1 - len(data)):
            data += piece
    if len(data) > CONFIG_FILE_BYTES_MAX:
        raise InvalidConfig(f"{path}: larger than {CONFIG_FILE_BYTES_MAX} bytes.")
    return bytes(data)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """`[a] b.c = 1` -> `a.b.c`, 1: dotted keys, quoted keys and tables are equivalent."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _lines_of(text: str) -> dict[str, int]:
    """Return the line where each key's statement begins."""
    # `tomllib` keeps no positions: a statement begins behind the longest prefix that is TOML
    # without it.
    lines = text.split("\n")
    found: dict[str, int] = {}
    before = 0
    for count, line in enumerate(lines, 1):
        between_statements = before == count - 1
        if between_statements and (not line.strip() or line.lstrip().startswith("#")):
            before = count
            continue
        try:
            table = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for name, _ in _flatten(table):
            found.setdefault(name, before + 1)
        before = count
    return found


def refuse_lost_brokers(values: Mapping[str, Any], source: Callable[..., str]) -> None:
    """Raise InvalidConfig for a broker that could find no quorum, or might join a foreign one."""
    seeds = values["controller_quorum_bootstrap_servers"]
    if seeds and not values["cluster_id"]:
        raise InvalidConfig(
            f"{source('controller.quorum.bootstrap.servers')}: give the cluster's `cluster.id` as"
            " well; each of its brokers logs it when it starts."
        )
    if not seeds and ROLE_CONTROLLER not in values["process_roles"]:
        raise InvalidConfig(
            f"{source('process.roles')}: a broker that is no controller needs"
            " `controller.quorum.bootstrap.servers`."
        )


_CHARS_MAX: Final = {
    "cluster.id": limits.CLUSTER_ID_CHARS_MAX,
    "rack": limits.RACK_CHARS_MAX,
}
"""Other brokers refuse longer ones."""

_ENV_OF_OTHERS: Final = re.compile(
    # Clients and tools have their own variables; Kubernetes sets the last two kinds in every
    # container of a namespace with a service called `quiverlog`.
    r"QUIVERLOG_(CONFIG|DEBUG|BOOTSTRAP_SERVER|SECURITY_FILE|(CLIENT|TEST|DEMO|BENCH)_\w+|PORT|PORT_\d\w+|SERVICE_\w+)"
)


_ENV_OF_LISTENER: Final = re.compile(r"QUIVERLOG_LISTENERS_([A-Z0-9]+)_([A-Z_]+)")
_BY_ENV: Final = {
    env_of(key): key
    for key in (*CONFIG_KEYS, *(TOPIC_DEFAULTS_PREFIX + key for key in CONFIG_DEFS))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A typed field per key of `CONFIG_KEYS`, with underscores for dots."""

    data_dir: str
    listen: Address
    advertise: Address | None
    inter_broker_listener: str
    http_listen: Address | None
    node_id: int
    cluster_id: str
    cluster_secret_file: str
    cluster_secret_required: str
    super_users: tuple[str, ...]
    admin_credential_file: str
    rack: str
    process_roles: tuple[str, ...]
    controller_quorum_bootstrap_servers: Mapping[int, Address]
    controller_quorum_moved_servers: Mapping[int, Address]
    controller_quorum_auto_join: str
    broker_session_ms: int
    connections_max: int
    connections_max_per_address: int
    connections_idle_ms: int
    connections_frame_timeout_ms: int
    connections_write_stall_ms: int
    connections_write_buffer_bytes: int
    connections_in_flight_max: int
    memory_buffer_bytes: int
    http_connections_max: int
    http_timeout_ms: int
    frame_bytes_max: int
    local_reads: str
    disk_reserve_bytes: int
    feature_level_max: int
    fsync_threads: int
    damaged_replicas_kept: int
    leader_balance_period_ms: int
    leader_balance_moves_max: int
    partition_move_bytes_per_second: int
    staged_bytes_max: int
    transactional_id_expiry_ms: int
    offsets_retention_ms: int
    staged_partitions: int
    work_threads: int
    shutdown_timeout_ms: int
    metrics_topics_max: int
    metrics_partition_offsets: str
    log_level: str
    log_format: str
    audit_file: str
    audit_topics: tuple[str, ...]
    topic_defaults: Mapping[str, str]
    listeners: Mapping[str, ListenerConfig]
    """All but `default`, which is `listen` and `advertise`."""
    listeners_without_administration: frozenset[str]
    authentication: Mapping[str, Authentication]
    """Of the listeners that ask for it, by name."""
    listeners_tls: Mapping[str, ServerTls]
    listeners_without_local_reads: frozenset[str]
    given: Mapping[str, Given]
    """Every configured value, as text."""


class _Given(NamedTuple):
    value: object
    source: str
    kind: ConfigSource


def load_config(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> BrokerConfig:
    """Read the configuration of one broker.

    Args:
        path: a TOML file.
        flags: values by key (`data.dir`, `topic.defaults.retention.ms`); None values: not given.

    Raises:
        InvalidConfig: the message names the file and line, the variable or the flag.
    """
    settings: dict[str, _Given] = {}
    if path is not None:
        settings.update(_from_file(Path(path)))
    settings.update(_from_environment(environ or {}))
    for name, value in (flags or {}).items():
        if value is not None:
            source = flag_of(name) if name in CONFIG_KEYS else f"--set {name}"
            settings[name] = _Given(value, source, ConfigSource.FLAG)
    return _typed(settings)


def _from_file(path: Path) -> dict[str, _Given]:
    return {
        found.name: _Given(found.value, f"{path}:{found.line}: {found.name}", ConfigSource.FILE)
        for found in read_config_file(path)
    }


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    settings = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or _ENV_OF_OTHERS.fullmatch(variable):
            continue
        name = _BY_ENV.get(variable)
        if name is None and (of_listener := _ENV_OF_LISTENER.fullmatch(variable)):
            key = of_listener[2].lower().replace("_", ".")
            name = f"{LISTENERS_PREFIX}{of_listener[1].lower()}.{key}"
        if name is None:
            raise InvalidConfig(f"environment variable {variable}: there is no such key.")
        settings[name] = _Given(value, f"environment variable {variable}", ConfigSource.ENVIRONMENT)
    return settings


def _typed(settings: Mapping[str, _Given]) -> BrokerConfig:
    values: dict[str, Any] = {}
    topic_defaults: dict[str, str] = {}
    of_listeners: dict[str, tuple[object, str]] = {}
    for name, (value, source, _) in settings.items():
        topic_key = name.removeprefix(TOPIC_DEFAULTS_PREFIX)
        if listener_key(name) is not None:
            of_listeners[name] = (value, source)
        elif topic_key != name and topic_key in CONFIG_DEFS:
            topic_defaults[topic_key] = _parse_topic_default(topic_key, value, source)
        elif name not in CONFIG_KEYS:
            raise InvalidConfig(f"{source}: {why_unknown(name)}.")
        else:
            try:
                values[CONFIG_KEYS[name].field] = CONFIG_KEYS[name].parse(value)
            except InvalidValue as error:
                raise InvalidConfig(f"{source} {error}") from None
    for key in CONFIG_KEYS.values():
        values.setdefault(key.field, key.parse(key.default))
    found = parse_listeners(of_listeners)
    values["listeners"] = found.named
    values["listeners_without_administration"] = found.without_administration
    values["authentication"] = found.authentication
    values["listeners_tls"] = found.tls
    values["listeners_without_local_reads"] = found.without_local_reads
    _refuse_contradictions(values, topic_defaults, settings)
    given = {name: Given(text_of(one.value), one.kind) for name, one in settings.items()}
    return BrokerConfig(topic_defaults=topic_defaults, given=given, **values)


def _parse_topic_default(key: str, value: object, source: str) -> str:
    if not isinstance(value, int | str):
        raise InvalidConfig(f"{source} is {value!r}, not {CONFIG_DEFS[key].kind.value}.")
    text = text_of(value)
    try:
        CONFIG_DEFS[key].parse(text)
    except InvalidValue as error:
        raise InvalidConfig(f"{source} {error}") from None
    return text


def _refuse_contradictions(
    values: Mapping[str, Any],
    topic_defaults: Mapping[str, str],
    settings: Mapping[str, _Given],
) -> None:
    def source(*names: str) -> str:
        return ", ".join(settings[n].source for n in names if n in settings) or names[0]

    listen, http, advertise = values["listen"], values["http_listen"], values["advertise"]
    if listen is None:
        raise InvalidConfig(f"{source('listen')}: a broker must listen somewhere.")
    named = values["listeners"]
    others = ((f"{LISTENERS_PREFIX}{name}.bind", one.bind) for name, one in named.items())
    refuse_shared_ports([("listen", listen), ("http.listen", http), *others], source)
    between = values["inter_broker_listener"]
    if between not in (LISTENER_DEFAULT, *named):
        raise InvalidConfig(
            f"{source('inter.broker.listener')}: no listener is called {between!r}."
        )
    meets_others = (
        between != LISTENER_DEFAULT
        or values["cluster_id"]
        or values["controller_quorum_bootstrap_servers"]
        or values["controller_quorum_moved_servers"]
    )
    if meets_others:
        check_brokers_tls(
            values["listeners_tls"].get(between),
            between,
            source("inter.broker.listener"),
            is_shared=between == LISTENER_DEFAULT,
        )
    if advertise is not None:
        check_advertised(advertise, source("advertise"))
    if advertise is not None and advertise.port == 0 and listen.port != 0:
        raise InvalidConfig(f"{source('advertise')}: port 0 can only go with `listen` on port 0.")
    for key, chars_max in _CHARS_MAX.items():
        text = values[key.replace(".", "_")]
        if len(text) > chars_max:
            raise InvalidConfig(
                f"{source(key)} has {len(text)} characters, at most {chars_max} are allowed."
            )
        if any(character < " " for character in text):
            raise InvalidConfig(f"{source(key)}: control characters are not allowed.")
    refuse_lost_brokers(values, source)
    if values["cluster_secret_required"] == "true" and not values["cluster_secret_file"]:
        raise InvalidConfig(
            f"{source('cluster.secret.required')}: the secret is missing: `cluster.secret.file`."
        )
    _refuse_logins_of_brokers(values, between, source)
    least = limits.STAGED_PARTITIONS_MIN
    if 0 < values["staged_partitions"] < least:
        raise InvalidConfig(
            f"{source('staged.partitions')} is {values['staged_partitions']}, allowed are 0, and"
            f" {least} to {limits.STAGED_PARTITIONS_MAX}."
        )
    if not values["data_dir"]:
        raise InvalidConfig(f"{source('data.dir')}: a directory is needed.")
    _refuse_topic_defaults(values, topic_defaults, source)


def _refuse_logins_of_brokers(
    values: Mapping[str, Any], between: str, source: Callable[..., str]
) -> None:
    """Raise InvalidConfig where brokers meet at a listener that would take none of them."""
    asks = values["authentication"].get(between)
    tls = values["listeners_tls"].get(between)
    # Where it is not required, brokers connect without TLS and show no certificate.
    are_certified = tls is not None and tls.is_required and tls.client_auth != "none"
    lets_join = values["cluster_id"] or values["controller_quorum_bootstrap_servers"]
    if asks is None or asks.asked is not Asked.REQUIRED or not lets_join:
        return
    if not values["cluster_secret_file"] and not are_certified:
        raise InvalidConfig(
            f"{source('inter.broker.listener')}: brokers meet at listener {between!r}, which asks"
            " for logins: give them `cluster.secret.file`, by which they prove what they are."
        )


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
