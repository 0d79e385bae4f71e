"""What a changed configuration changes in a running broker: a pure comparison.

Owns the answer to three questions: which reloadable keys have new values, which keys would need a
restart, and with which words the log says so.

Must not know: signals, files, what a key does.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from quiverlog.server.config import BrokerConfig
from quiverlog.server.config_keys import CONFIG_KEYS

__all__ = ["Reload", "compare_configs"]


class Reload(NamedTuple):
    """`changed`: key -> (old, new) of what changes at once. `restart`: keys that wait for one."""

    config: BrokerConfig
    """The running configuration with all reloadable changes in it."""
    changed: dict[str, tuple[object, object]]
    restart: tuple[str, ...]


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
    if dict(running.topic_defaults) != dict(found.topic_defaults):
        restart.append("topic.defaults")
    if dict(running.listeners) != dict(found.listeners):
        restart.append("listeners")
    config = dataclasses.replace(running, **values)  # type: ignore[arg-type]
    return Reload(config, changed, tuple(restart))
