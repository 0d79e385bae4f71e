"""The output of `quiverlog config get`: brokers' values compared, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from quiverlog.cli.console.output import print_table

if TYPE_CHECKING:
    from quiverlog.client.admin.topics import BrokerSetting, BrokerSettings
    from quiverlog.client.base.results import TopicDetail

__all__ = [
    "Asked",
    "Shown",
    "TopicSetting",
    "brokers_json",
    "compared",
    "print_brokers",
    "print_topic",
    "topic_json",
    "topic_settings",
]


_CELL_CHARS_MAX = 60
"""A bound in tables; JSON has the whole value."""


class Asked(NamedTuple):
    by_broker: dict[int, BrokerSettings]
    silent: dict[int, str]


class Shown(NamedTuple):
    """One line: a key's value at `brokers`, and the values of the others."""

    key: str
    brokers: tuple[int, ...]
    value: str | None
    source: str
    default: str
    changes_live: bool
    others: dict[int, str]


def compared(
    asked: Asked,
    keys: Sequence[str],
    *,
    cluster: bool,
    broker: int | None,
    show_all: bool,
) -> list[Shown]:
    """Return the lines to show. Without a scope brokers of one value and source share a line."""
    by_key: dict[str, dict[int, BrokerSetting]] = {}
    for node_id, found in asked.by_broker.items():
        for key, one in found.settings.items():
            by_key.setdefault(key, {})[node_id] = one
    shown: list[Shown] = []
    for key, settings in by_key.items():
        wanted = bool(keys) or show_all
        if cluster:
            line = _of_cluster(key, settings)
            shown += [line] if wanted or line.value is not None else []
        elif broker is not None:
            line = _of_broker(key, settings, broker)
            shown += [line] if wanted or line.source != "default" else []
        elif wanted or any(one.source != "default" for one in settings.values()):
            shown += _of_all(key, settings)
    return shown


def _of_cluster(key: str, settings: Mapping[int, BrokerSetting]) -> Shown:
    """Return the value set for the cluster. `others` have their own, or have not applied it yet."""
    value = next((one.in_cluster for one in settings.values() if one.in_cluster is not None), None)
    some = next(iter(settings.values()))
    now = value if value is not None else some.default
    others = {node_id: one.value for node_id, one in settings.items() if one.value != now}
    source = "cluster" if value is not None else "-"
    brokers = tuple(node_id for node_id in settings if node_id not in others)
    return Shown(key, brokers, value, source, some.default, some.changes_live, others)


def _of_broker(key: str, settings: Mapping[int, BrokerSetting], broker: int) -> Shown:
    one = settings[broker]
    others = {n: other.value for n, other in settings.items() if other.value != one.value}
    return Shown(key, (broker,), one.value, one.source, one.default, one.changes_live, others)


def _of_all(key: str, settings: Mapping[int, BrokerSetting]) -> list[Shown]:
    alike: dict[tuple[str, str], list[int]] = {}
    for node_id, one in settings.items():
        alike.setdefault((one.value, one.source), []).append(node_id)
    lines = []
    for (value, source), nodes in alike.items():
        one = settings[nodes[0]]
        others = {n: other.value for n, other in settings.items() if other.value != value}
        lines.append(Shown(key, tuple(nodes), value, source, one.default, one.changes_live, others))
    return lines


def brokers_json(shown: Sequence[Shown], silent: Mapping[int, str]) -> dict[str, object]:
    return {
        "configs": [
            {
                "key": one.key,
                "value": one.value,
                "source": one.source,
                "default": one.default,
                "needs_restart": not one.changes_live,
                "brokers": list(one.brokers),
                "others": {str(n): value for n, value in one.others.items()},
            }
            for one in shown
        ],
        "unreachable": {str(n): why for n, why in silent.items()},
    }


def print_brokers(shown: Sequence[Shown], silent: Mapping[int, str], *, with_others: bool) -> None:
    """`with_others`: print the values of brokers without a line too."""
    for node_id, why in silent.items():
        click.echo(f"Broker {node_id} does not answer: {why}", err=True)
    if not shown:
        click.echo("Nothing is set; --all shows every key.", err=True)
        return
    heads = ["KEY", "VALUE", "SOURCE", "DEFAULT", "CHANGES", "BROKERS"]
    rows = [
        [
            one.key,
            _cut("-" if one.value is None else one.value or '""'),
            one.source,
            one.default or "-",
            "at once" if one.changes_live else "at a restart",
            ",".join(map(str, one.brokers)) or "-",
        ]
        for one in shown
    ]
    if with_others:
        heads.append("OTHERS")
        for row, one in zip(rows, shown, strict=True):
            row.append(_cut(", ".join(f"{n}: {value}" for n, value in one.others.items()) or "-"))
    print_table(heads, rows)


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[: _CELL_CHARS_MAX - 1]}…"


class TopicSetting(NamedTuple):
    key: str
    value: str
    source: str
    default: str


def topic_settings(
    detail: TopicDetail, keys: Sequence[str], *, show_all: bool
) -> list[TopicSetting]:
    from quiverlog.core.controller.configs import CONFIG_DEFS, default_text
    from quiverlog.errors import UnknownConfig

    for key in keys:
        if key not in detail.configs:
            raise UnknownConfig(f"{key}: {CONFIG_DEFS.why_unknown(key)}.")
    return [
        TopicSetting(
            key,
            one.value,
            one.source,
            default_text(key, detail.replication_factor) if key in CONFIG_DEFS else "",
        )
        for key, one in detail.configs.items()
        if key in keys or (not keys and (show_all or one.source != "default"))
    ]


def topic_json(topic: str, found: Sequence[TopicSetting]) -> dict[str, object]:
    return {
        "topic": topic,
        "configs": [{**one._asdict(), "needs_restart": False} for one in found],
    }


def print_topic(found: Sequence[TopicSetting]) -> None:
    if not found:
        click.echo("Nothing is set; --all shows every key.", err=True)
        return
    rows = [(one.key, one.value, one.source, one.default or "-", "at once") for one in found]
    print_table(["KEY", "VALUE", "SOURCE", "DEFAULT", "CHANGES"], rows)
