"""Reload of the configuration: which keys change at once; a thread reads the file.

A file that cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller.configs import CONFIG_DEFS, TOPIC_DEFAULTS_PREFIX
from quiverlog.errors import QuiverlogError
from quiverlog.server.config.config import BrokerConfig
from quiverlog.server.observe.logs import Logger

__all__ = ["ConfigReloader", "Reload", "compare_configs", "with_values"]


class Reload(NamedTuple):
    """`changed`: key -> (old, new) of keys that change at once. `restart`: keys that need one."""

    config: BrokerConfig
    """The running configuration with the reloadable changes."""
    changed: dict[str, tuple[object, object]]
    restart: tuple[str, ...]

    def log_fields(self, in_cluster: Sequence[str]) -> dict[str, str]:
        """`in_cluster`: changed keys that the cluster's configuration overrides."""
        changed = [f"{key}: {old} -> {new}" for key, (old, new) in self.changed.items()]
        return {
            "changed": ", ".join(changed) or "nothing",
            "needs_restart": ", ".join(self.restart) or "nothing",
            "set_in_cluster": ", ".join(in_cluster) or "nothing",
        }


def with_values(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    typed = {CONFIG_KEYS[key].field: CONFIG_KEYS[key].parse(text) for key, text in values.items()}
    return dataclasses.replace(config, **typed)


def _of_listeners(config: BrokerConfig) -> object:
    return (
        dict(config.listeners),
        config.listeners_without_administration,
        dict(config.authentication),
        dict(config.listeners_tls),
        config.listeners_without_local_reads,
    )


def compare_configs(running: BrokerConfig, found: BrokerConfig) -> Reload:
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
        # Compared with defaults filled in: a key written with its default value changes nothing.
        usual = setting.default if setting.default is not None else setting.default_doc
        pair = old_defaults.get(key, usual), new_defaults.get(key, usual)
        if pair[0] != pair[1]:
            changed[TOPIC_DEFAULTS_PREFIX + key] = pair
    values["topic_defaults"] = new_defaults
    if _of_listeners(running) != _of_listeners(found):
        restart.append("listeners")
    config = dataclasses.replace(running, **values)  # type: ignore[arg-type]
    return Reload(config, changed, tuple(restart))


_EVENT = "configuration not reloaded"


class ConfigReloader:
    """Reads the configuration again on request. All methods are called on the loop.

    Args:
        read: called in a thread; None: there is no file.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read: Callable[[], BrokerConfig] | None,
        *,
        log: Logger,
    ) -> None:
        self._loop = loop
        self._read = read
        self._log = log
        self._apply: Callable[[BrokerConfig], None] | None = None
        self._reading = False
        self._asked_again = False

    def begin(self, apply: Callable[[BrokerConfig], None]) -> None:
        """Give later configurations to `apply`."""
        self._apply = apply

    def request(self) -> None:
        """Read the file soon. Never raises: the broker goes on whatever the file holds."""
        if self._read is None:
            self._log.warning(_EVENT, why="the broker was started without a file")
        elif self._apply is None:
            self._log.warning(_EVENT, why="the broker is starting")
        elif self._reading:
            self._asked_again = True
        else:
            self._start_reading(self._read)

    def _start_reading(self, read: Callable[[], BrokerConfig]) -> None:
        # A daemon: a file system that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._work, args=(read,), name="config", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._log.error(_EVENT, why=str(error))
        else:
            self._reading = True

    def _work(self, read: Callable[[], BrokerConfig]) -> None:
        found: BrokerConfig | Exception
        try:
            found = read()
        except Exception as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has stopped
            self._loop.call_soon_threadsafe(self._done, found)

    def _done(self, found: BrokerConfig | Exception) -> None:
        self._reading = False
        assert self._apply is not None
        try:
            if isinstance(found, Exception):
                raise found
            self._apply(found)
        except QuiverlogError as error:
            self._log.error(_EVENT, why=error.message)
        except Exception as error:
            self._log.error(_EVENT, why=repr(error), exc_info=error)
        if self._asked_again:
            self._asked_again = False
            self.request()
