"""`quiverlog broker`: run one broker in the foreground.

Owns how flags become configuration values. Each key of the broker's configuration table is a flag
of its own, so the table is the only list of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from quiverlog.cli.failures import CommandFailed, ExitCode
from quiverlog.cli.options import config_pairs, debug_option
from quiverlog.server.config import CONFIG_KEYS, ConfigKey

__all__ = ["broker"]


def _flag(key: ConfigKey) -> click.Option:
    text = key.doc if key.default == "" else f"{key.doc} [default: {key.default}]"
    return click.Option([key.flag, key.field], metavar=key.kind.value.upper(), help=text)


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
@debug_option
def _broker(config_file: Path | None, more: dict[str, str], **flags: str | None) -> int:
    """Run a broker until SIGTERM or Ctrl-C.

    With no options at all it keeps its data in ./quiverlog-data and listens on 127.0.0.1:9292,
    with /metrics, /healthz and /readyz on 127.0.0.1:9293. A flag wins over the environment
    (QUIVERLOG_DATA_DIR for --data-dir and so on), which wins over the file. One line on stdout
    says when the broker is ready; log lines go to stderr.
    """
    from quiverlog.errors import InvalidConfig
    from quiverlog.server.config import load_config

    named = {key.name: flags[key.field] for key in CONFIG_KEYS.values()}
    twice = sorted(name for name in more if named.get(name) is not None)
    if twice:
        raise click.UsageError(f"{twice[0]} is given by {CONFIG_KEYS[twice[0]].flag} and by --set.")
    try:
        config = load_config(config_file, environ=os.environ, flags={**named, **more})
    except InvalidConfig as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    from quiverlog.server.run import run_broker

    return run_broker(config)


broker = click.command("broker")(_broker)
broker.params[2:2] = [_flag(key) for key in CONFIG_KEYS.values()]
