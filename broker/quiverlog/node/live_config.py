"""This broker's configuration as it is now: what it was given, and what is decided of it since.

Owns which value of a key wins (docs/adr/0057): what is set for this broker, then what is set for
the cluster, then what the process was given (flag, environment, file), then the default. Looks at
the metadata whenever they change, and says what has changed: to the parts of the node by their
setters, to the server by an effect, to people by a line in the log.

A value that this version does not take (another one has decided it) is as if it was never set.

Must not know: what a key does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller.broker_configs import ALL_BROKERS
from quiverlog.core.controller.image import Image
from quiverlog.node.config import Given
from quiverlog.node.effects import ConfigChanged
from quiverlog.node.outbox import Outbox
from quiverlog.settings import InvalidValue
from quiverlog.types import Now
from quiverlog.wire.config_messages import BrokerConfigEntry, ConfigSource

__all__ = ["LiveConfig"]

_LIVE: Final = tuple(key for key, setting in CONFIG_KEYS.items() if setting.reloadable)


class _Value(NamedTuple):
    text: str
    source: ConfigSource


class LiveConfig:
    """See the module docstring.

    Args:
        given: what the process was started with, by key; other keys have their defaults.
        image: the metadata as they are.
        setters: what of the node follows a key while it runs; they take the typed value and the
            moment.
    """

    __slots__ = ("_given", "_image", "_node_id", "_outbox", "_said", "_setters", "_values")

    def __init__(
        self,
        node_id: int,
        given: Mapping[str, Given],
        image: Callable[[], Image],
        outbox: Outbox,
        setters: Mapping[str, Callable[[Any, Now], None]],
    ) -> None:
        assert setters.keys() <= set(_LIVE), "a key with a setter may change while the broker runs"
        self._node_id = node_id
        assert node_id >= 0
        self._given = dict(given)
        self._image = image
        self._outbox = outbox
        self._setters = setters
        self._said: Mapping[int, Mapping[str, str]] = {}
        self._values = {key: self._value(key) for key in _LIVE}

    def look(self, now: Now) -> None:
        """Decisions may have changed something. Nothing, nearly always: asked at each of them."""
        said = self._image().broker_configs
        if said is not self._said:
            self._said = said
            self._refresh(now)

    def reload(self, given: Mapping[str, Given], now: Now) -> None:
        """The process was told something else: what may change while it runs does."""
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
                continue
            changed[key] = f"{before.text} -> {after.text} ({after.source.label})"
            setter = self._setters.get(key)
            if setter is not None:
                setter(CONFIG_KEYS[key].parse(after.text), now)
        if changed:
            assert changed.keys() <= self._values.keys()
            told = ", ".join(f"{key}: {how}" for key, how in changed.items())
            self._outbox.log("info", "configuration changed", changed=told)
            self._outbox.emit(ConfigChanged({key: v.text for key, v in self._values.items()}))

    def _value(self, key: str) -> _Value:
        found = ((ConfigSource.BROKER, self._node_id), (ConfigSource.CLUSTER, ALL_BROKERS))
        for source, node_id in found:
            text = self._said.get(node_id, {}).get(key)
            if text is not None and _is_taken(key, text):
                return _Value(text, source)
        given = self._given.get(key)
        if given is not None:
            assert given.source < ConfigSource.CLUSTER, "it is what the process was given"
            return _Value(given.value, ConfigSource(given.source))
        return _Value(_default(key), ConfigSource.DEFAULT)

    def overrides(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys for which something else counts than what the process was given."""
        assert ConfigSource.CLUSTER < ConfigSource.BROKER
        return [k for k in keys if self._values[k].source >= ConfigSource.CLUSTER]

    # --- to be shown ---------------------------------------------------------------------------
    def entries(self) -> list[BrokerConfigEntry]:
        """Every key with its value, in the order of the table; then what has names of its own."""
        assert self._values.keys() == set(_LIVE), "every key has a value"
        keys = (*CONFIG_KEYS, *(key for key in self._given if key not in CONFIG_KEYS))
        return [self._entry(key) for key in keys]

    def _entry(self, key: str) -> BrokerConfigEntry:
        value = self._value(key)
        given = self._given.get(key)
        return BrokerConfigEntry(
            key=key,
            value=value.text,
            source=value.source,
            changes_live=key in CONFIG_KEYS and CONFIG_KEYS[key].reloadable,
            default=_default(key),
            given=None if given is None else given.value,
            in_cluster=self._said.get(ALL_BROKERS, {}).get(key),
            in_broker=self._said.get(self._node_id, {}).get(key),
        )


def _default(key: str) -> str:
    setting = CONFIG_KEYS.get(key)
    return "" if setting is None or setting.default is None else str(setting.default)


def _is_taken(key: str, text: str) -> bool:
    setting = CONFIG_KEYS.get(key)
    if setting is None or not setting.reloadable:
        return False
    try:
        setting.parse(text)
    except InvalidValue:
        return False
    return True
