"""Which configuration keys may be set for all running brokers or for one.

Every broker of this version can use an accepted value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quiverlog.broker_keys import CONFIG_KEYS, OWN_KEYS
from quiverlog.core.controller.configs import (
    CONFIG_DEFS,
    TOPIC_DEFAULTS_PREFIX,
    check_default,
)
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import ALL_BROKERS, BrokerConfigRecord, Record
from quiverlog.errors import ConfigNeedsRestart, InvalidConfig, UnknownBroker, UnknownConfig
from quiverlog.settings import InvalidValue

__all__ = ["LEAST", "alter_configs", "why_unknown"]

LEAST: Final = {
    "connections.max": 256,
    "connections.idle.ms": 1_000,
    "connections.frame.timeout.ms": 1_000,
    "connections.write.stall.ms": 1_000,
}
"""With less, the other brokers and the clients that could undo it are shut out."""


def alter_configs(
    image: Image, node_id: int, changes: Iterable[tuple[str, str | None]]
) -> list[Record]:
    if node_id != ALL_BROKERS and node_id not in image.brokers:
        raise UnknownBroker(f"broker {node_id} is not registered.")
    wanted: dict[str, str | None] = {}
    for key, text in changes:
        if key in wanted:
            raise InvalidConfig(f"{key} is named twice.")
        _check_key(key)
        if node_id != ALL_BROKERS and key.startswith(TOPIC_DEFAULTS_PREFIX):
            raise InvalidConfig(
                f"{key} is for the whole cluster: what is set for a topic holds on every"
                " broker that has it."
            )
        wanted[key] = None if text is None else _checked(key, text)
    stored = image.broker_configs.get(node_id, {})
    assert None not in stored.values(), "what is back to the default is not there"
    return [
        BrokerConfigRecord(node_id, key, value)
        for key, value in wanted.items()
        if stored.get(key) != value
    ]


def why_unknown(name: str) -> str:
    key = name.removeprefix(TOPIC_DEFAULTS_PREFIX)
    if key == name and key in CONFIG_DEFS:
        return (
            "it is a setting of topics: `quiverlog config set --topic NAME` sets it for one, and "
            f"`{TOPIC_DEFAULTS_PREFIX}{key}` is the brokers' name for what holds where a topic has "
            "none"
        )
    if key in CONFIG_DEFS.absent:
        return CONFIG_DEFS.absent[key]
    if key != name and (close := CONFIG_DEFS.suggest(key)):
        return f"there is no such key (is it `{TOPIC_DEFAULTS_PREFIX}{close}`?)"
    return CONFIG_KEYS.why_unknown(name)


def _check_key(key: str) -> None:
    if _topic_key(key) is not None:
        return
    setting = CONFIG_KEYS.get(key)
    if setting is None:
        raise UnknownConfig(f"{key}: {why_unknown(key)}.")
    if key in OWN_KEYS:
        raise InvalidConfig(f"{key} is set in the configuration of each broker alone.")
    if not setting.reloadable:
        raise ConfigNeedsRestart(f"{key} does not change while a broker runs: {setting.because}.")


def _topic_key(key: str) -> str | None:
    name = key.removeprefix(TOPIC_DEFAULTS_PREFIX)
    return name if name != key and name in CONFIG_DEFS else None


def _checked(key: str, text: str) -> str:
    topic_key = _topic_key(key)
    assert topic_key is not None or CONFIG_KEYS.get(key) is not None, "the key was checked"
    if topic_key is not None:
        return check_default(topic_key, text)
    try:
        value = CONFIG_KEYS[key].parse(text)
    except InvalidValue as error:
        raise InvalidConfig(f"{key} {error}") from None
    if key in LEAST and value < LEAST[key]:
        raise InvalidConfig(
            f"{key} is {value}: below {LEAST[key]}, set while brokers run, it shuts out the other"
            " brokers and clients that would take it back."
        )
    # As the table writes it: a repeated request finds the same text, and changes nothing.
    return str(value)
