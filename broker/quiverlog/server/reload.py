"""What a changed configuration changes in a running broker: a pure comparison.

Owns the answer to three questions: which reloadable keys have new values, which keys would need a
restart, and with which words the log says so.

Must not know: signals, files, what a key does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller.configs import CONFIG_DEFS, TOPIC_DEFAULTS_PREFIX
from quiverlog.server.config import BrokerConfig

__all__ = ["Reload", "compare_configs", "with_values"]


class Reload(NamedTuple):
    """`changed`: key -> (old, new) of what changes at once. `restart`: keys that wait for one."""

    config: BrokerConfig
    """The running configuration with all reloadable changes in it."""
    changed: dict[str, tuple[object, object]]
    restart: tuple[str, ...]

    def told(self, in_cluster: Sequence[str]) -> dict[str, str]:
        """The fields of the log line; `in_cluster`: keys for which the file does not count."""
        changed = [f"{key}: {old} -> {new}" for key, (old, new) in self.changed.items()]
        return {
            "changed": ", ".join(changed) or "nothing",
            "needs_restart": ", ".join(self.restart) or "nothing",
            "set_in_cluster": ", ".join(in_cluster) or "nothing",
        }


def with_values(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """The configuration with these keys as these texts say."""
    typed = {CONFIG_KEYS[key].field: CONFIG_KEYS[key].parse(text) for key, text in values.items()}
    return dataclasses.replace(config, **typed)


def _of_listeners(config: BrokerConfig) -> object:
    return dict(config.listeners), config.listeners_without_administration


def compare_configs(running: BrokerConfig, found: BrokerConfig) -> Reload:
    """What becomes of `running` when `found` is read."""
    changed: dict[str, tuple[object, object]] = {}
    values: dict[str, object] = {}
    restart = []
    for key, setting in CONFIG_KEYS.items():
        old, new = getattr(running, setting.field), getattr(found, setting.field)
        if old == new:
            continue
        if setting.reloadable:
            changed[key] = (old, new)
            values[setting.field] = new
        else:
            restart.append(key)
    old_defaults, new_defaults = running.topic_defaults, found.topic_defaults
    for key, setting in CONFIG_DEFS.items():
        usual = setting.default if setting.default is not None else setting.default_doc
        pair = old_defaults.get(key, usual), new_defaults.get(key, usual)
        if pair[0] != pair[1]:
            changed[TOPIC_DEFAULTS_PREFIX + key] = pair
    values["topic_defaults"] = new_defaults
    if _of_listeners(running) != _of_listeners(found):
        restart.append("listeners")
    config = dataclasses.replace(running, **values)  # type: ignore[arg-type]
    return Reload(config, changed, tuple(restart))
