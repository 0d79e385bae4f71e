"""docs/config.md, made from the tables of keys: `python -m quiverlog.server.config_docs`.

Owns the page's words around the tables. A test compares the page with what this prints.
"""

from __future__ import annotations

from quiverlog.core.controller.configs import CONFIG_DEFS, ConfigDef, ConfigKind
from quiverlog.server.config import (
    CONFIG_KEYS,
    ENV_PREFIX,
    TOPIC_DEFAULTS_PREFIX,
    ConfigKey,
    KeyKind,
)

__all__ = ["render"]

_HEAD = f"""# Configuration

This page is made from the tables in the code (`python -m quiverlog.server.config_docs`); change
those, not this.

## Broker

A broker runs without any configuration. What is to differ from the defaults comes from a TOML file
(`quiverlog broker --config quiverlog.toml`), from environment variables and from flags; a flag wins
over a variable, a variable over the file. In TOML, dotted keys, tables and quoted keys say the
same:

```toml
data.dir = "/var/lib/quiverlog"
listen = "0.0.0.0:9292"
advertise = "broker-1.example:9292"

[connections]
max = 2_000
idle.ms = 300_000

[topic.defaults]
retention.ms = 86_400_000
```

An unknown key, a value of the wrong type or out of its range, or two values that contradict each
other are refused before anything is opened, and the message says in which line, variable or flag.
`{ENV_PREFIX}*` variables that are no key are refused too, but for those of the clients and tools
(`{ENV_PREFIX}CONFIG`, `{ENV_PREFIX}DEBUG`, `{ENV_PREFIX}BOOTSTRAP_SERVER`, `{ENV_PREFIX}CLIENT_*`,
`{ENV_PREFIX}TEST_*`, `{ENV_PREFIX}DEMO_*`, `{ENV_PREFIX}BENCH_*`) and those that Kubernetes sets
for a service called `quiverlog` (`{ENV_PREFIX}SERVICE_*`, `{ENV_PREFIX}PORT*`).

| key | default | allowed | flag, variable | meaning |
|---|---|---|---|---|
"""

_TOPIC_HEAD = f"""
## Topic

Given at `quiverlog topic create --config key=value`, changed with `quiverlog topic alter`. A broker
may have other defaults: put the key after `{TOPIC_DEFAULTS_PREFIX}` in its own configuration
(`{TOPIC_DEFAULTS_PREFIX}retention.ms` in the file, `--set {TOPIC_DEFAULTS_PREFIX}retention.ms=...`
on the command line, `{ENV_PREFIX}TOPIC_DEFAULTS_RETENTION_MS` in the environment).

| key | default | allowed | meaning |
|---|---|---|---|
"""


def render() -> str:
    """The page."""
    broker = "".join(_broker_row(key) for key in CONFIG_KEYS.values())
    topic = "".join(_topic_row(key) for key in CONFIG_DEFS.values())
    return _HEAD + broker + _TOPIC_HEAD + topic


def _broker_row(key: ConfigKey) -> str:
    allowed = key.range_text if key.kind is not KeyKind.INT else _number_range(key)
    allowed = allowed or key.kind.value
    default = f"`{key.default}`" if key.default != "" else ""
    return f"| `{key.name}` | {default} | {allowed} | `{key.flag}`, `{key.env}` | {key.doc} |\n"


def _number_range(key: ConfigKey) -> str:
    return f"{key.range_text} {key.unit}".strip()


def _topic_row(key: ConfigDef) -> str:
    choice = key.kind is ConfigKind.CHOICE
    default = key.default if " " in key.default else f"`{key.default}`"
    allowed = key.range_text if choice or not key.unit else f"{key.range_text} ({key.unit})"
    return f"| `{key.key}` | {default} | {allowed} | {key.doc} |\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
