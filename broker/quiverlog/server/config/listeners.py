"""The listeners of a broker's configuration: `listeners.<name>.bind`, `.administration`, ...

The listener `default` always exists; `listen` and `advertise` configure it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from quiverlog.addresses import Address
from quiverlog.errors import InvalidConfig
from quiverlog.node.runtime.config import LISTENER_DEFAULT, Asked, Authentication
from quiverlog.settings import InvalidValue, Kind, Setting, SettingsTable
from quiverlog.tls import ServerTls
from quiverlog.wire.authentication_messages import CERTIFICATE, DEFAULT_MECHANISMS, MECHANISMS
from quiverlog.wire.registry import ADMINISTRATION, ALSO_ASK

__all__ = [
    "HTTP",
    "LISTENERS_MAX",
    "LISTENERS_PREFIX",
    "LISTENER_KEYS",
    "ListenerConfig",
    "Listeners",
    "check_advertised",
    "check_brokers_tls",
    "listener_key",
    "parse_listeners",
    "refuse_shared_ports",
]

LISTENERS_PREFIX: Final = "listeners."
LISTENERS_MAX: Final = 8


def _read_mechanisms(text: str) -> tuple[str, ...]:
    named = {part.strip().upper() for part in text.split(",")}
    if not named <= set(MECHANISMS):
        raise ValueError(f"some of {', '.join(MECHANISMS)}")
    return tuple(one for one in MECHANISMS if one in named)


_ADMINISTRATION: Final = ", ".join(api.name for api in sorted(ADMINISTRATION))
_ALSO_ASK: Final = ", ".join(api.name for api in sorted(ALSO_ASK))
LISTENER_KEYS: Final = SettingsTable(
    (
        Setting(
            "bind",
            Kind.ADDRESS,
            "",
            "The address where this listener accepts connections. Port 0 takes any free port. Must"
            " be given.",
        ),
        Setting(
            "advertise",
            Kind.ADDRESS,
            "",
            "The address that METADATA returns to clients of this listener. Empty: that of `bind`,"
            " or the machine's host name where that is every address.",
        ),
        Setting(
            "administration",
            Kind.CHOICE,
            "true",
            f"`false`: {_ADMINISTRATION} are refused at this listener"
            " (LISTENER_WITHOUT_ADMINISTRATION, which names those that serve them), also as a dry"
            f" run. The forms of {_ALSO_ASK} that only ask are served. So are CREATE_TOPICS and"
            " ALTER_TOPIC, which sinks use: with ALTER_TOPIC a client at this listener can set the"
            " topic's `retention.ms`, and rows go by that. The listener `default` has this key as"
            " well.",
            choices=("true", "false"),
        ),
        Setting(
            "authentication",
            Kind.CHOICE,
            "none",
            "Whether clients log in here ([Security](security.md)). `none`: all are anonymous."
            " `required`: nothing else is served before. `wanted`: both, and connections that stay"
            " anonymous are counted; it is for the time in which clients get their passwords. With"
            " either, what no rule allows is denied, at every listener of the broker.",
            choices=tuple(Asked),
        ),
        Setting(
            "mechanisms",
            Kind.OTHER,
            ",".join(DEFAULT_MECHANISMS),
            "How clients may log in here, separated by commas: passwords by the first two, tokens"
            " by the third. CERTIFICATE takes the user that a client's certificate names; it needs"
            " `tls.client.auth`.",
            read=_read_mechanisms,
            label="name,...",
        ),
        Setting(
            "allow.plaintext",
            Kind.CHOICE,
            "false",
            "`true`: takes logins without TLS. No password is sent, but a program that records a"
            " login can try passwords against it, and one that rewrites packets can send requests"
            " as the user: for one machine, or a network of its own.",
            choices=("true", "false"),
        ),
        Setting(
            "tls.cert.file",
            Kind.TEXT,
            "",
            "This broker's certificate and its chain, in PEM form: the listener speaks TLS"
            " ([Security](security.md#tls)), and nothing else. Where brokers meet it is also what"
            " this broker shows to the others. Read again on SIGHUP, and when the files have"
            " changed. The listener `default`, and `http` (the port of metrics), have the keys of"
            " TLS as well.",
        ),
        Setting(
            "tls.key.file",
            Kind.TEXT,
            "",
            "The certificate's key, without a password. Others than its owner and group must not be"
            " able to read it. Empty: it is in `tls.cert.file`.",
        ),
        Setting(
            "tls.client.ca.file",
            Kind.TEXT,
            "",
            "The authorities whose certificates count for clients of this listener. Where brokers"
            " meet, also for the brokers to which this one connects.",
        ),
        Setting(
            "tls.client.auth",
            Kind.CHOICE,
            "none",
            "Whether a client shows a certificate: `wanted` takes clients without one, and refuses"
            " a wrong one. Where only brokers meet it must be `required`.",
            choices=("none", "wanted", "required"),
        ),
        Setting(
            "tls.required",
            Kind.CHOICE,
            "true",
            "`false`: connections without TLS are taken as well, and other brokers are connected to"
            " without it unless they require it: for the time in which a running cluster gets TLS.",
            choices=("true", "false"),
        ),
        Setting(
            "tls.version.min",
            Kind.CHOICE,
            "1.3",
            "The oldest version of TLS that is taken.",
            choices=("1.2", "1.3"),
        ),
        Setting(
            "local.reads",
            Kind.CHOICE,
            "auto",
            "Whether clients on the broker's machine may read rows from the files of the log"
            " (`local.reads` of the broker). `auto`: as the broker's, but not where clients must"
            " show a certificate. `true` allows it there, too.",
            choices=("auto", "true", "false"),
        ),
    )
)
HTTP: Final = "http"
"""The name of the port of metrics among the listeners: it has the keys of TLS alone."""
_TLS: Final = "tls."
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,30}")
_EVERY_ADDRESS: Final = frozenset(("0.0.0.0", "::"))


class ListenerConfig(NamedTuple):
    """`advertise` None: the address of `bind`."""

    bind: Address
    advertise: Address | None = None


class Listeners(NamedTuple):
    named: dict[str, ListenerConfig]
    """All but `default`."""
    without_administration: frozenset[str]
    authentication: dict[str, Authentication]
    """Of those that ask for it."""
    tls: dict[str, ServerTls]
    """Of those with TLS; `HTTP` is the port of metrics."""
    without_local_reads: frozenset[str]


def listener_key(name: str) -> tuple[str, str] | None:
    """Return (listener, its key); None: not a listener's key."""
    if not name.startswith(LISTENERS_PREFIX):
        return None
    listener, _, key = name.removeprefix(LISTENERS_PREFIX).partition(".")
    return listener, key


def parse_listeners(given: Mapping[str, tuple[object, str]]) -> Listeners:
    """Parse the keys of all listeners together.

    Args:
        given: configuration key -> (value, where it was given).
    """
    found: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for name, (value, source) in given.items():
        parts = listener_key(name)
        assert parts is not None
        listener, key = parts
        if key not in LISTENER_KEYS or not _NAME.fullmatch(listener):
            keys = "`, `".join(f"{LISTENERS_PREFIX}<name>.{key}" for key in LISTENER_KEYS)
            raise InvalidConfig(
                f"{source}: a listener has `{keys}`, and a name of 1 to 31 small letters and"
                " digits, a letter first."
            )
        if listener == LISTENER_DEFAULT and key in ("bind", "advertise"):
            raise InvalidConfig(
                f"{source}: `listen` and `advertise` configure the default listener."
            )
        if listener == HTTP and not key.startswith(_TLS):
            raise InvalidConfig(
                f"{source}: `{HTTP}` is the port of `http.listen`, which has the keys of TLS alone:"
                " give a listener another name."
            )
        try:
            found.setdefault(listener, {})[key] = LISTENER_KEYS[key].parse(value)
        except InvalidValue as error:
            raise InvalidConfig(f"{source} {error}") from None
        sources[listener] = source
    tls = {name: _tls_of(keys, sources[name]) for name, keys in found.items() if _has_tls(keys)}
    no_files = frozenset(name for name, keys in found.items() if not _reads_files(keys))
    refused = frozenset(n for n, keys in found.items() if keys.get("administration") == "false")
    authentication = _authentication(found, sources, tls)
    found.pop(LISTENER_DEFAULT, None)
    found.pop(HTTP, None)
    if refused >= {LISTENER_DEFAULT, *found}:
        raise InvalidConfig(
            f"{', '.join(sources[name] for name in sorted(refused))}: no listener is left at which"
            " the broker can be administered."
        )
    if len(found) > LISTENERS_MAX:
        raise InvalidConfig(f"{len(found)} listeners are named, at most {LISTENERS_MAX} may be.")
    listeners = {}
    for listener, values in found.items():
        bind, advertise = values.get("bind"), values.get("advertise")
        if bind is None:
            where = f"{LISTENERS_PREFIX}{listener}.bind"
            raise InvalidConfig(f"{sources[listener]}: `{where}` is missing.")
        if advertise is not None and advertise.port == 0 and bind.port != 0:
            raise InvalidConfig(f"{sources[listener]}: port 0 can only go with port 0 of `bind`.")
        if advertise is not None:
            check_advertised(advertise, sources[listener])
        listeners[listener] = ListenerConfig(bind, advertise)
    return Listeners(listeners, refused, authentication, tls, no_files)


def _authentication(
    found: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, str],
    tls: Mapping[str, ServerTls],
) -> dict[str, Authentication]:
    asking: dict[str, Authentication] = {}
    for name, values in found.items():
        asked = Asked(values.get("authentication", Asked.NONE))
        if asked is Asked.NONE:
            continue
        # Half a listener's connections without TLS would send their logins in the open.
        is_hidden = name in tls and tls[name].is_required
        if not is_hidden and values.get("allow.plaintext") != "true":
            raise InvalidConfig(
                f"{sources[name]}: the listener {name!r} asks for logins without TLS: set"
                f" `{LISTENERS_PREFIX}{name}.allow.plaintext` = true on a network of the brokers"
                " and their clients alone."
            )
        mechanisms = values.get("mechanisms", DEFAULT_MECHANISMS)
        # Without a certificate no login by it could ever count.
        if CERTIFICATE in mechanisms and (name not in tls or tls[name].client_auth == "none"):
            raise InvalidConfig(
                f"{sources[name]}: the listener {name!r} takes certificates as users, and asks for"
                f" none: set `{LISTENERS_PREFIX}{name}.tls.client.auth` to wanted or required."
            )
        asking[name] = Authentication(asked, mechanisms)
    return asking


def _has_tls(keys: Mapping[str, Any]) -> bool:
    return any(key.startswith(_TLS) for key in keys)


def _reads_files(keys: Mapping[str, Any]) -> bool:
    given = keys.get("local.reads", "auto")
    return given == "true" if given != "auto" else keys.get("tls.client.auth") != "required"


def _tls_of(keys: Mapping[str, Any], source: str) -> ServerTls:
    found = ServerTls(
        keys.get("tls.cert.file", ""),
        keys.get("tls.key.file", ""),
        keys.get("tls.client.ca.file", ""),
        keys.get("tls.client.auth", "none"),
        keys.get("tls.version.min", "1.3"),
        keys.get("tls.required", "true") == "true",
    )
    if not found.cert_file:
        raise InvalidConfig(f"{source}: a listener with TLS needs `tls.cert.file`.")
    if found.client_auth != "none" and not found.client_ca_file:
        raise InvalidConfig(
            f"{source}: `tls.client.auth` = {found.client_auth} needs `tls.client.ca.file`, the"
            " authorities whose certificates count."
        )
    if found.client_auth == "none" and found.client_ca_file:
        raise InvalidConfig(
            f"{source}: `tls.client.ca.file` is given, and `tls.client.auth` asks for no"
            " certificate: make that wanted or required."
        )
    return found


def check_brokers_tls(
    tls: ServerTls | None, listener: str, source: str, *, is_shared: bool
) -> None:
    """Raise InvalidConfig where brokers meet by TLS and would ask for no certificates.

    Args:
        tls: of the listener where brokers meet.
        is_shared: clients use it, too.
    """
    if tls is None or tls.client_auth == "required" or (is_shared and tls.client_auth == "wanted"):
        return
    wanted = "wanted or required" if is_shared else "required"
    raise InvalidConfig(
        f"{source}: brokers meet at listener {listener!r}, and show each other certificates where"
        f" it has TLS: `tls.client.auth` must be {wanted} there."
    )


def check_advertised(address: Address, source: str) -> None:
    """Raise InvalidConfig for an address that means every address of a machine."""
    try:
        is_every = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        return  # a name
    if is_every:
        raise InvalidConfig(
            f"{source}: no client can connect to {address.host}, which means every address of a"
            " machine. Write the name or address by which clients reach this one, for example"
            f" broker-1.example:{address.port}, or leave it out: then it is the host name."
        )


def refuse_shared_ports(
    bound: Iterable[tuple[str, Address | None]], source: Callable[..., str]
) -> None:
    """Raise InvalidConfig where two of `bound` (key, address) share a port."""
    seen: list[tuple[str, Address]] = []
    for key, address in bound:
        if address is None or not address.port:
            continue
        for other_key, other in seen:
            hosts = {address.host, other.host}
            if address.port == other.port and (len(hosts) == 1 or hosts & _EVERY_ADDRESS):
                raise InvalidConfig(
                    f"{source(other_key, key)}: `{other_key}` and `{key}` cannot share port"
                    f" {address.port} of {other.host}."
                )
        seen.append((key, address))
