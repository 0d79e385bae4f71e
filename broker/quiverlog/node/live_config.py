"""This broker's configuration as it is now.

Of a key, the first of these counts (docs/adr/0057): set for this broker, set for the cluster, given
to the process (flag, environment, file), default. A value that this version refuses is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from quiverlog.broker_keys import CONFIG_KEYS, OWN_KEYS
from quiverlog.core.controller.configs import CONFIG_DEFS, TOPIC_DEFAULTS_PREFIX, defaults_among
from quiverlog.core.controller.records import ALL_BROKERS
from quiverlog.node.runtime.config import Given
from quiverlog.node.runtime.effects import ConfigChanged
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.settings import InvalidValue, Setting
from quiverlog.types import Now
from quiverlog.wire.config_messages import BrokerConfigEntry, ConfigSource

__all__ = ["LiveConfig"]


_TOPIC_DEFAULTS: Final = {TOPIC_DEFAULTS_PREFIX + key: one for key, one in CONFIG_DEFS.items()}
_KEYS: Final[Mapping[str, Setting]] = {**CONFIG_KEYS, **_TOPIC_DEFAULTS}
_LIVE: Final = (*(key for key, one in CONFIG_KEYS.items() if one.reloadable), *_TOPIC_DEFAULTS)


class _Value(NamedTuple):
    text: str
    source: ConfigSource


class LiveConfig:
    """The values in effect; changed ones go to the setters, the server and the log.

    Args:
        given: what the process was started with, by key.
        setters: by key; they take the typed value and the moment.
        give_defaults: takes the process's topic defaults; those of the cluster are in the image.
    """

    __slots__ = (
        "_broker_configs",
        "_give_defaults",
        "_given",
        "_in_force",
        "_metadata",
        "_node_id",
        "_outbox",
        "_setters",
        "_values",
    )

    def __init__(
        self,
        node_id: int,
        given: Mapping[str, Given],
        metadata: MetadataView,
        outbox: Outbox,
        setters: Mapping[str, Callable[[Any, Now], None]],
        give_defaults: Callable[[Mapping[str, str]], None],
    ) -> None:
        assert setters.keys() <= set(_LIVE), "a key with a setter may change while the broker runs"
        self._node_id = node_id
        assert node_id >= 0
        self._given = dict(given)
        self._metadata = metadata
        self._outbox = outbox
        self._setters = setters
        self._give_defaults = give_defaults
        self._broker_configs: Mapping[int, Mapping[str, str]] = {}
        # Shown in place of what was given, by key.
        self._in_force: dict[str, str] = {}
        self._values = {key: self._value(key) for key in _LIVE}

    def look(self, now: Now) -> None:
        # Called for each decision: nearly always it is the same object.
        configs = self._metadata.image.broker_configs
        if configs is not self._broker_configs:
            self._broker_configs = configs
            self._refresh(now)

    def reload(self, given: Mapping[str, Given], now: Now) -> None:
        for key in _LIVE:
            self._given.pop(key, None)
            if key in given:
                self._given[key] = given[key]
        self._refresh(now)

    def _refresh(self, now: Now) -> None:
        changed = {}
        for key in _LIVE:
            before, after = self._values[key], self._value(key)
            if before == after:
                continue
            self._values[key] = after
            if before.text == after.text:
                continue  # Set now to what it was by default.
            changed[key] = f"{before.text} -> {after.text} ({after.source.label})"
            setter = self._setters.get(key)
            if setter is not None:
                setter(_KEYS[key].parse(after.text), now)
        if not changed:
            return
        assert changed.keys() <= self._values.keys()
        changes = ", ".join(f"{key}: {how}" for key, how in changed.items())
        self._outbox.log("info", "configuration changed", changed=changes)
        if not changed.keys().isdisjoint(_TOPIC_DEFAULTS):
            self._give_defaults(defaults_among({k: one.value for k, one in self._given.items()}))
        if not changed.keys() <= _TOPIC_DEFAULTS.keys():
            of_server = self._values.keys() - _TOPIC_DEFAULTS.keys()
            self._outbox.emit(ConfigChanged({key: self._values[key].text for key in of_server}))

    def _value(self, key: str) -> _Value:
        found = ((ConfigSource.BROKER, self._node_id), (ConfigSource.CLUSTER, ALL_BROKERS))
        for source, node_id in found:
            text = self._broker_configs.get(node_id, {}).get(key)
            if text is not None and _is_taken(key, text):
                return _Value(text, source)
        given = self._given.get(key)
        if given is not None:
            assert given.source < ConfigSource.CLUSTER, "the process got it at its start"
            return _Value(given.value, ConfigSource(given.source))
        return _Value(_default(key), ConfigSource.DEFAULT)

    def overrides(self, keys: Iterable[str]) -> list[str]:
        assert ConfigSource.CLUSTER < ConfigSource.BROKER
        return [k for k in keys if self._values[k].source >= ConfigSource.CLUSTER]

    # --- to be shown ---------------------------------------------------------------------------
    def took_effect(self, key: str, value: str) -> None:
        """Show this value from now on: what `auto` has come to."""
        assert key in _KEYS
        self._in_force[key] = value

    def entries(self) -> list[BrokerConfigEntry]:
        """Return every key with its value: in the order of the table, then those outside of it."""
        assert self._values.keys() == set(_LIVE), "every key has a value"
        keys = (*_KEYS, *(key for key in self._given if key not in _KEYS))
        return [self._entry(key) for key in keys]

    def _entry(self, key: str) -> BrokerConfigEntry:
        value = self._value(key)
        given = self._given.get(key)
        return BrokerConfigEntry(
            key=key,
            value=self._in_force.get(key, value.text),
            source=value.source,
            changes_live=key in self._values,
            default=_default(key),
            given=None if given is None else given.value,
            in_cluster=self._broker_configs.get(ALL_BROKERS, {}).get(key),
            in_broker=self._broker_configs.get(self._node_id, {}).get(key),
        )


def _default(key: str) -> str:
    setting = _KEYS.get(key)
    if setting is None:
        return ""
    return setting.default_doc if setting.default is None else str(setting.default)


def _is_taken(key: str, text: str) -> bool:
    if key in _TOPIC_DEFAULTS:
        return bool(defaults_among({key: text}))
    setting = CONFIG_KEYS.get(key)
    if setting is None or not setting.reloadable or key in OWN_KEYS:
        return False
    try:
        setting.parse(text)
    except InvalidValue:
        return False
    return True
