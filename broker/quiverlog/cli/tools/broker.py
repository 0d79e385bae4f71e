"""`quiverlog broker`: run one broker in the foreground. Each configuration key is a flag."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quiverlog.broker_keys import CONFIG_KEYS, flag_of
from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.cli.console.lean_imports import lean_imports
from quiverlog.cli.console.options import config_pairs, debug_option
from quiverlog.settings import Kind, Setting

if TYPE_CHECKING:
    from quiverlog.server.config.config import BrokerConfig
    from quiverlog.server.net.listener import Dial
    from quiverlog.tls import ServerTls

__all__ = ["broker"]


def _for_a_terminal(doc: str) -> str:
    named = re.sub(r"\(\[[^]]+\]\(([\w-]+)\.md[^)]*\)\)", r"(`quiverlog docs \1`)", doc)
    return re.sub(r"\[([^]]+)\]\([\w-]+\.md[^)]*\)", r"\1", named)


def _flag(setting: Setting) -> click.Option:
    text = _for_a_terminal(setting.doc)
    text = text if setting.default == "" else f"{text} [default: {setting.default}]"
    flag = flag_of(setting.key)
    of_kind = "LIST" if setting.kind is Kind.OTHER else setting.kind.value.upper()
    metavar = "|".join(setting.choices) or of_kind
    # A text: `load_config` checks it together with the values of file and environment.
    return click.Option(
        [flag, setting.field],
        # For the shell's completion only: nothing of the file is checked.
        type=click.Path(readable=False) if setting.key.endswith(".file") else click.STRING,
        metavar=metavar,
        help=text,
        shell_complete=_completion(setting),
    )


def _completion(setting: Setting) -> Callable[..., list[str]] | None:
    if not setting.choices:
        return None
    return lambda _ctx, _parameter, begun: [c for c in setting.choices if c.startswith(begun)]


def _as_a_broker_imports() -> AbstractContextManager[None]:
    return lean_imports("numpy")


@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="QUIVERLOG_CONFIG",
    show_envvar=True,
    help="A TOML file; docs/config.md lists its keys.",
)
@click.option(
    "--set",
    "more",
    multiple=True,
    callback=config_pairs,
    metavar="KEY=VALUE",
    help="Any key of docs/config.md, e.g. topic.defaults.retention.ms=3600000; may be repeated.",
)
@click.option(
    "--check-config",
    is_flag=True,
    help="Check all values, the files of the secret and of TLS, and the place of the data; show "
    "what is set and from where, and start nothing. Ports and names are not tried: a broker may "
    "be running.",
)
@debug_option
def _broker(
    config_file: Path | None, more: dict[str, str], check_config: bool, **flags: str | None
) -> int:
    """Run a broker until SIGTERM or Ctrl-C.

    With no options at all it keeps its data in ./quiverlog-data and listens on 127.0.0.1:9292,
    with a page, /metrics, /healthz and /readyz on 127.0.0.1:9293. A flag wins over the environment
    (QUIVERLOG_DATA_DIR for --data-dir and so on), which wins over the file. One line on stdout
    reports that the broker is ready; log lines go to stderr.
    """
    from quiverlog.errors import InvalidConfig

    with _as_a_broker_imports():
        from quiverlog.server.config.config import load_config

    named = {key.key: flags[key.field] for key in CONFIG_KEYS.values()}
    twice = sorted(name for name in more if named.get(name) is not None)
    if twice:
        raise click.UsageError(f"{twice[0]} is given by {flag_of(twice[0])} and by --set.")

    def read_config() -> BrokerConfig:
        return load_config(config_file, environ=os.environ, flags={**named, **more})

    try:
        config = read_config()
        if check_config:
            return _checked(config)
    except InvalidConfig as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    with _as_a_broker_imports():
        from quiverlog.server.process.run import run_broker
    reading = read_config if config_file is not None else None
    return run_broker(config, read_config=reading, page=_page)


def _page(address: str, dial: Dial, tls: ServerTls | None, why_not_ready: str) -> str:
    # Imported at the first request.
    from quiverlog.cli.cluster.status import status_page

    return status_page(address, dial, tls, why_not_ready)


def _checked(config: BrokerConfig) -> int:
    from quiverlog.node.runtime.config import Asked
    from quiverlog.server.config.secret_file import read_secret_file
    from quiverlog.server.net.tls import read_tls
    from quiverlog.wire.config_messages import ConfigSource

    read_secret_file(config.cluster_secret_file)
    read_tls(config.listeners_tls)
    _check_place(Path(config.data_dir))
    for key, given in sorted(config.given.items()):
        print(f"{key} = {given.value}  ({ConfigSource(given.source).name.lower()})")
    asks = any(one.asked is Asked.REQUIRED for one in config.authentication.values())
    if asks and "admin.credential.file" not in config.given:
        print(
            "A listener serves users alone, and `admin.credential.file` is empty: a new cluster has"
            " no user."
        )
    print("The configuration is valid. Whether ports are free and names resolve was not tried.")
    return ExitCode.OK


def _check_place(data_dir: Path) -> None:
    from quiverlog.errors import InvalidConfig

    place = next(p for p in (data_dir, *data_dir.absolute().parents) if p.exists())
    if not place.is_dir():
        raise InvalidConfig(f"data.dir {data_dir}: {place} is a file. Name a directory.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InvalidConfig(
            f"data.dir {data_dir}: this user may not write in {place}. Name another directory, or "
            "start the broker as its owner."
        )


broker = click.command("broker")(_broker)
broker.params[2:2] = [_flag(key) for key in CONFIG_KEYS.values()]
