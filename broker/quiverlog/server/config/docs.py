"""docs/config.md, from the tables of keys: `python -m quiverlog.server.config.docs`."""

from __future__ import annotations

from quiverlog.broker_keys import CONFIG_KEYS, ENV_PREFIX, env_of, flag_of
from quiverlog.core.controller.configs import CONFIG_DEFS, TAKEN_AT_CREATION, TOPIC_DEFAULTS_PREFIX
from quiverlog.server.config.listeners import LISTENER_KEYS, LISTENERS_MAX, LISTENERS_PREFIX
from quiverlog.settings import Setting, markdown_table

__all__ = ["render"]

_HEAD = f"""# Configuration

This page is made from the tables in the code (`python -m quiverlog.server.config.docs`); change
those, not this.

## Broker

A broker runs without any configuration. What is to differ from the defaults comes from a TOML file
(`quiverlog broker --config quiverlog.toml`), from environment variables and from flags; a flag wins
over a variable, a variable over the file. In TOML, dotted keys, tables and quoted keys are
equivalent:

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
other are refused before anything is opened, and the error names the line, variable or flag.
`{ENV_PREFIX}*` variables that are no key are refused too, but for those of the clients and tools
(`{ENV_PREFIX}CONFIG`, `{ENV_PREFIX}DEBUG`, `{ENV_PREFIX}BOOTSTRAP_SERVER`, `{ENV_PREFIX}CLIENT_*`,
`{ENV_PREFIX}TEST_*`, `{ENV_PREFIX}DEMO_*`, `{ENV_PREFIX}BENCH_*`) and those that Kubernetes sets
for a service called `quiverlog` (`{ENV_PREFIX}SERVICE_*`, `{ENV_PREFIX}PORT*`).

Keys marked ↻ change while the broker runs, in two ways:

- `quiverlog config set KEY=VALUE --cluster` sets a key for all brokers, `--broker ID` for one. It
  is kept with the cluster's metadata, holds at once and after every start, and wins over
  everything that a broker was given; what is set for a broker wins over what is set for the
  cluster. `quiverlog config unset` takes it back, `quiverlog config get` shows what counts and why
  ([0057](adr/0057-cluster-configuration-overrides-files.md)).
- SIGHUP makes a broker read its configuration file again (not the environment or the flags, which
  win over it as before). A log line names the keys that changed, those that wait for the next
  start, and those set in the cluster. A file that is refused changes nothing. The file must be a
  regular one of at most 64 KiB.

"""

_RESTART_HEAD = """
### What needs a restart

As the read-only settings of Kafka's brokers. `config set` refuses these with CONFIG_NEEDS_RESTART;
give them to the process, and restart the brokers one after the other
([Operating a cluster](operating.md#restarting-brokers-one-after-the-other)).

"""

_LISTENER_HEAD = f"""
## Listeners

`listen` and `advertise` are the listener `default`. A broker may have up to {LISTENERS_MAX} more,
each with a name of at most 31 small letters and digits, a letter first, for networks that see it
under other addresses.
METADATA names the broker's address of the listener at which it was asked. A listener that clients
reach need not serve what takes a cluster apart, or deletes topics and rows at once
(`administration`). It still serves ALTER_TOPIC, which sinks need, and with it a shorter
`retention.ms` of a topic, by which rows go: it is no protection of the rows from those clients. In
the file:

```toml
inter.broker.listener = "internal"

[listeners.default]
administration = false

[listeners.internal]
bind = "10.0.0.1:9294"
advertise = "broker-1.internal:9294"
```

On the command line it is `--set {LISTENERS_PREFIX}internal.bind=...`, in the environment
`{ENV_PREFIX}LISTENERS_INTERNAL_BIND`.

"""

_TOPIC_HEAD = f"""
## Topic

Given at `quiverlog topic create --config key=value`, changed with `quiverlog topic alter`. A broker
may have other defaults: put the key after `{TOPIC_DEFAULTS_PREFIX}` in its own configuration
(`{TOPIC_DEFAULTS_PREFIX}retention.ms` in the file, `--set {TOPIC_DEFAULTS_PREFIX}retention.ms=...`
on the command line, `{ENV_PREFIX}TOPIC_DEFAULTS_RETENTION_MS` in the environment). While
brokers run, `quiverlog config set {TOPIC_DEFAULTS_PREFIX}retention.ms=... --cluster` sets it for
all of them and wins over what each was given, as with the keys above marked ↻; SIGHUP reads the
file's again. A default counts for every topic without the key, existing topics too; only
{", ".join(f"`{key}`" for key in TAKEN_AT_CREATION)} are written into a topic of several
replicas when it is created, and stay.

"""


def render() -> str:
    broker = markdown_table(
        ("key", "default", "allowed", "flag, variable", "meaning"),
        (_broker_row(setting) for setting in CONFIG_KEYS.values()),
    )
    topic = markdown_table(
        ("key", "default", "allowed", "meaning"),
        (_topic_row(setting) for setting in CONFIG_DEFS.values()),
    )
    listener = markdown_table(
        ("key", "default", "meaning"),
        (
            (f"`{LISTENERS_PREFIX}<name>.{key}`", one.default_label, one.doc)
            for key, one in LISTENER_KEYS.items()
        ),
    )
    restart = markdown_table(
        ("key", "why"),
        (
            *((f"`{one.key}`", one.because) for one in CONFIG_KEYS.values() if one.because),
            (
                f"`{LISTENERS_PREFIX}<name>.*`",
                "their sockets are open, and HELLO has named their APIs",
            ),
        ),
    )
    return (
        _HEAD + broker + _RESTART_HEAD + restart + _LISTENER_HEAD + listener + _TOPIC_HEAD + topic
    )


def _broker_row(setting: Setting) -> tuple[str, ...]:
    key = setting.key
    allowed = f"{setting.allowed} {setting.unit}".strip() or setting.type_label
    mark = " ↻" if setting.reloadable else ""
    names = f"`{flag_of(key)}`, `{env_of(key)}`"
    return f"`{key}`{mark}", setting.default_label, allowed, names, setting.doc


def _topic_row(setting: Setting) -> tuple[str, ...]:
    unit = f" ({setting.unit})" if setting.unit else ""
    return f"`{setting.key}`", setting.default_label, setting.allowed + unit, setting.doc


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
