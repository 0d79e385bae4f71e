"""`quiverlog config ...`: configuration of cluster, brokers and topics, changed while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quiverlog.cli.console.options import (
    INT32_MAX,
    bootstrap_option,
    complete_topics,
    config_pairs,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import print_json

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["config"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def config() -> None:
    """See and change configuration while the brokers run.

    A value that is set for one broker wins over one that is set for the cluster, and both win over
    what the broker was started with (flag, environment, file). They stay until they are unset.
    """


def _scope_options(command: _Command) -> _Command:
    command = click.option(
        "--topic",
        "-t",
        metavar="NAME",
        shell_complete=complete_topics,
        help="A topic's own configuration.",
    )(command)
    command = click.option(
        "--broker",
        type=click.IntRange(0, INT32_MAX),
        metavar="ID",
        help="One broker.",
    )(command)
    return click.option("--cluster", is_flag=True, help="All brokers of the cluster.")(command)


def _check_scope(cluster: bool, broker: int | None, topic: str | None, *, needed: bool) -> None:
    given = [cluster, broker is not None, topic is not None]
    if sum(given) > 1:
        raise click.UsageError("Give only one of --cluster, --broker and --topic.")
    if needed and not any(given):
        raise click.UsageError("No scope: give --cluster, --broker ID or --topic NAME.")


@config.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@_scope_options
@click.option("--all", "show_all", is_flag=True, help="Also keys that are not set.")
@bootstrap_option
@format_option()
@debug_option
def get(
    keys: tuple[str, ...],
    cluster: bool,
    broker: int | None,
    topic: str | None,
    show_all: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Show values, where they come from, and what other brokers have.

    Without --cluster, --broker and --topic: every broker is asked. Without KEY: what is
    set; --all shows every key.
    """
    from quiverlog.cli.cluster.config_detail import (
        brokers_json,
        compared,
        print_brokers,
        print_topic,
        topic_json,
        topic_settings,
    )

    _check_scope(cluster, broker, topic, needed=False)
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        if topic is not None:
            found = topic_settings(client.describe_topic(topic), keys, show_all=show_all)
            print_json(topic_json(topic, found)) if output_format == "json" else print_topic(found)
            return
        asked = _ask_brokers(client, keys, broker)
    shown = compared(asked, keys, cluster=cluster, broker=broker, show_all=show_all)
    if output_format == "json":
        print_json(brokers_json(shown, asked.silent))
    else:
        print_brokers(shown, asked.silent, with_others=cluster or broker is not None)


def _ask_brokers(client: Client, keys: tuple[str, ...], needed: int | None) -> Any:
    from quiverlog.cli.cluster.config_detail import Asked
    from quiverlog.errors import QuiverlogError, UnknownBroker, UnknownConfig

    brokers = client.describe_cluster().brokers
    if needed is not None and needed not in [one.node_id for one in brokers]:
        raise UnknownBroker(f"broker {needed} is not registered.")
    asked = Asked({}, {})
    for one in brokers:
        if one.fenced and one.node_id != needed:
            asked.silent[one.node_id] = "it is fenced."
            continue
        try:
            asked.by_broker[one.node_id] = client.describe_configs(one.node_id, keys)
        except UnknownConfig:
            raise  # The user's mistake, the same at every broker.
        except QuiverlogError as error:
            if one.node_id == needed:
                raise
            asked.silent[one.node_id] = error.message
    return asked


@config.command(name="set")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...", callback=config_pairs)
@_scope_options
@bootstrap_option
@format_option()
@debug_option
def set_(
    pairs: dict[str, str],
    cluster: bool,
    broker: int | None,
    topic: str | None,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Set keys, all or none of them. No broker has to be restarted."""
    _check_scope(cluster, broker, topic, needed=True)
    _alter(dict(pairs), broker, topic, bootstrap, timeout_s, output_format)


@config.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_scope_options
@bootstrap_option
@format_option()
@debug_option
def unset(
    keys: tuple[str, ...],
    cluster: bool,
    broker: int | None,
    topic: str | None,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Remove what was set: the value of the next source applies again."""
    _check_scope(cluster, broker, topic, needed=True)
    _alter(dict.fromkeys(keys), broker, topic, bootstrap, timeout_s, output_format)


def _alter(
    changes: dict[str, str | None],
    broker: int | None,
    topic: str | None,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    version: int | None = None
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        if topic is not None:
            kept = {key: value for key, value in changes.items() if value is not None}
            gone = [key for key, value in changes.items() if value is None]
            client.alter_topic(topic, config=kept or None, reset_config=gone)
        else:
            version = client.alter_configs(changes, broker=broker)
    whose = f"topic {topic}" if topic is not None else "the cluster"
    if broker is not None:
        whose = f"broker {broker}"
    if output_format == "json":
        scope = {"topic": topic} if topic is not None else {"broker": broker}
        print_json({**scope, "changes": changes, "metadata_version": version})
        return
    for key, value in changes.items():
        click.echo(f"{whose}: {key} unset" if value is None else f"{whose}: {key} = {value}")
