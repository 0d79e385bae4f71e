"""Connections of one process, kept across tasks and micro-batches.

Spark reuses its Python workers, so a module global lives as long as it is useful. Workers are
forked: an entry is valid only in its own process, a child starts empty, and nothing is opened at
import.

Also how a query logs in: its own credentials in the driver, a token of them in the tasks. What a
literal `password` option has stays in the driver: tasks are sent a token, which is worth hours and
one user's rights. No text, `repr` or error has either.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quiverlog.errors import InvalidOption, InvalidSecurity, QuiverlogError

from .option_types import Secret

if TYPE_CHECKING:
    from quiverlog.client.base.security import Security
    from quiverlog.client.client import Client

    from .options import ReadOptions, WriteOptions

__all__ = [
    "Access",
    "Endpoint",
    "access_of",
    "client",
    "drop_producer",
    "drop_stager",
    "endpoint",
    "has_producer",
    "options_for_tasks",
    "producer",
    "stager",
    "task_token",
]

STAGERS_MAX: Final = 64
"""Of a worker, the last used: queries that have ended leave theirs."""

CLIENTS_MAX: Final = 16
"""Of a process, with tokens, the last used: a stream's tasks get another token every hour, for
weeks."""

RENEWED_AT: Final = 0.5
"""Of a token's life: tasks that begin then still have the other half."""
RENEWED_AGAIN_AT: Final = 0.05
"""Of its life, after a try that failed."""

logger = logging.getLogger("pyspark_quiverlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`token`: what the driver has sent, in place of its own credentials."""

    file: str = ""
    user: str = ""
    password: Secret | None = None
    password_file: str = ""
    password_env: str = ""
    token_file: str = ""
    token: Secret | None = None

    @property
    def is_drivers(self) -> bool:
        """True for credentials that tasks do not get: the driver sends a token."""
        return bool(self.user) and self.token is None

    def security(self) -> Security | None:
        """Return the client's description. Raises InvalidSecurity, InvalidOption."""
        from quiverlog.client.base.security import Security, security_of

        base = security_of(self.file or None)
        logins = {
            "user": self.user,
            "password": self.password.value if self.password else "",
            "password_file": self.password_file,
            "password_env": self.password_env,
            "token_file": self.token_file,
            "token": "",
        }
        if self.token is not None:
            logins = dict.fromkeys(logins, "") | {"token": self.token.value}
        if not any(logins.values()):
            return base
        try:
            return replace(base or Security(), **logins, mechanism="")  # type: ignore[arg-type]
        except InvalidSecurity as error:
            raise InvalidOption(f"the options for the login: {error.message}") from None


def access_of(options: ReadOptions | WriteOptions) -> Access:
    return Access(
        file=options.security_file or "",
        user=options.user or "",
        password=options.password,
        password_file=options.password_file or "",
        password_env=options.password_env or "",
        token_file=options.token_file or "",
        token=options.token,
    )


def options_for_tasks(options: Any, token: Secret | None = None) -> Any:
    """Return options as tasks may get them: with a token in place of the driver's credentials."""
    if not access_of(options).is_drivers:
        return options
    assert options.token is None, "the driver's own options have none"
    return replace(
        options, token=token, user=None, password=None, password_file=None, password_env=None
    )


class Endpoint(NamedTuple):
    """The settings that distinguish clients. Times in seconds."""

    addresses: tuple[str, ...]
    client_id: str
    connect_timeout: float
    request_timeout: float
    access: Access = Access()
    """Files are read by each process for itself; without any its environment decides."""


class _TaskToken(NamedTuple):
    """Times by the monotonic clock."""

    text: Secret
    renewed_s: float
    ends_s: float


class _Pool:
    """The clients and producers of this process, for all threads."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Held while opening: two threads would open two, and leak one.
        self.lock = threading.RLock()
        # The last used is last.
        self.clients: dict[Endpoint, Client] = {}
        # Endpoint and lifetime -> its login's newest token.
        self.tokens: dict[tuple[Endpoint, float], _TaskToken] = {}
        # Endpoint, topic and settings -> (the topic's version then, the producer).
        self.producers: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        # Endpoint, transactional id, instance and settings -> (the writer that used it last, the
        # stager); the last used is last.
        self.stagers: dict[tuple[Any, ...], tuple[uuid.UUID, Any]] = {}


_pool = _Pool()


def _start_anew() -> None:
    global _pool
    # Without a close: the sockets are the parent's.
    _pool = _Pool()


os.register_at_fork(after_in_child=_start_anew)


def endpoint(options: ReadOptions | WriteOptions) -> Endpoint:
    return Endpoint(
        options.bootstrap_servers,
        options.client_id,
        options.connect_timeout,
        options.request_timeout,
        access_of(options),
    )


def client(where: Endpoint) -> Client:
    """Return this process's client."""
    pool = _pool
    assert pool.process == os.getpid(), "a child would read its parent's answers"
    with pool.lock:
        found = pool.clients.pop(where, None)
        if found is None:
            import quiverlog

            found = quiverlog.connect(
                list(where.addresses),
                client_id=where.client_id,
                connect_timeout=where.connect_timeout,
                request_timeout=where.request_timeout,
                security=where.access.security(),
            )
        pool.clients[where] = found
        with_token = [one for one in pool.clients if one.access.token is not None]
        if len(with_token) > CLIENTS_MAX:
            _drop_client(with_token[0])
        return found


def _drop_client(where: Endpoint) -> None:
    # Its token has ended long ago, or the query that had it.
    for key in [key for key in _pool.stagers if key[0] == where]:
        drop_stager(_pool.stagers[key][1])
    for key in [key for key in _pool.producers if key[0] == where]:
        drop_producer(_pool.producers[key][1])
    _close(_pool.clients.pop(where))


def task_token(options: ReadOptions | WriteOptions) -> Secret | None:
    """Return a token of the driver's login for tasks, new when half of its life is over, or as soon
    after as the cluster makes one; None: tasks need none."""
    where, lifetime_s = endpoint(options), options.token_lifetime
    if not where.access.is_drivers:
        return None
    pool, key = _pool, (where, lifetime_s)
    with pool.lock:
        known = pool.tokens.get(key)
        if known is not None and time.monotonic() < known.renewed_s:
            return known.text
        began_s = time.monotonic()
        try:
            owner = client(where)
            if not owner.who_am_i().mechanism:
                return None
            made = Secret(owner.create_token(lifetime_s).text)
        except QuiverlogError as error:
            now_s = time.monotonic()
            if known is None or now_s >= known.ends_s:
                raise
            logger.warning("tasks keep the token that they have: %s", error.message)
            again_s = min(known.ends_s, now_s + lifetime_s * RENEWED_AGAIN_AT)
            pool.tokens[key] = known._replace(renewed_s=again_s)
            return known.text
        assert made.value, "a token has a text"
        renewed_s, ends_s = began_s + lifetime_s * RENEWED_AT, began_s + lifetime_s
        pool.tokens[key] = _TaskToken(made, renewed_s, ends_s)
        return made


def producer(where: Endpoint, topic: str, **settings: Any) -> Any:
    """Return this process's producer. A task that fails must `drop_producer` it."""
    key = _producer_key(where, topic, settings)
    pool = _pool
    with pool.lock:
        info = client(where).metadata([topic]).topics.get(topic)
        version = info and (info.topic_id, info.schema_id, len(info.partitions))
        known, found = pool.producers.get(key, (None, None))
        # Altered, or created anew. Found by a refusal, an old producer would fail a task in each
        # idle worker, and Spark may have more of these than it retries a task.
        if found is not None and known != version:
            drop_producer(found)
            found = None
        if found is None:
            found = client(where).producer(topic, **settings)
            pool.producers[key] = (version, found)
        return found


def has_producer(where: Endpoint, topic: str, **settings: Any) -> bool:
    """Return whether an earlier task left a producer here; it may be outdated."""
    return _producer_key(where, topic, settings) in _pool.producers


def _producer_key(where: Endpoint, topic: str, settings: dict[str, Any]) -> tuple[Any, ...]:
    return (where, topic, *sorted(settings.items()))


def drop_producer(found: Any) -> None:
    """Close a producer that no task may use any more, without an error."""
    pool = _pool
    with pool.lock:
        keys = [k for k, (_, p) in pool.producers.items() if p is found]
        assert len(keys) <= 1, "each topic and each set of options has a producer of its own"
        for key in keys:
            del pool.producers[key]
    with contextlib.suppress(Exception):  # tasks report which of their rows are not acknowledged
        found.close()


def stager(
    where: Endpoint,
    transactional_id: str,
    instance: bytes,
    writer_id: uuid.UUID,
    **settings: Any,
) -> Any:
    """Return this process's stager. A task that fails must `drop_stager` it."""
    assert instance, "one without a name would fence all others"
    key = (where, transactional_id, instance, *sorted(settings.items()))
    pool = _pool
    with pool.lock:
        last, found = pool.stagers.pop(key, (writer_id, None))
        if last != writer_id:
            # The write before may have failed: then its abort has ended the epoch that is kept.
            _close(found)
            found = None
        if found is None:
            if len(pool.stagers) >= STAGERS_MAX:
                drop_stager(next(iter(pool.stagers.values()))[1])
            found = client(where).stager(transactional_id, instance=instance, **settings)
        pool.stagers[key] = writer_id, found
        assert len(pool.stagers) <= STAGERS_MAX
        return found


def drop_stager(found: Any) -> None:
    """Close a stager that no task may use any more, without an error."""
    pool = _pool
    with pool.lock:
        for key in [k for k, (_, one) in pool.stagers.items() if one is found]:
            del pool.stagers[key]
    _close(found)


def _close(found: Any) -> None:
    with contextlib.suppress(Exception):
        found.close()
