"""Connections of one process, kept from task to task and from micro-batch to micro-batch.

Spark keeps its Python workers for the next tasks (and ends them after a minute of rest or a failed
task), so what is cached here in a module global lives as long as it is useful. Workers are forked:
an entry is only good in the process that made it, a child begins with none, and nothing is opened
at import.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quiverlog.client.client import Client

    from .options import ReadOptions, WriteOptions

__all__ = ["Endpoint", "client", "drop_producer", "endpoint", "has_producer", "producer"]


class Endpoint(NamedTuple):
    """The settings that make clients different; the key of the pool. Times in seconds."""

    addresses: tuple[str, ...]
    client_id: str
    connect_timeout: float
    request_timeout: float


class _Pool:
    """The clients and producers of this process; threads may share it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """While a client or a producer is opened: two threads would open two, and lose one."""
        self.clients: dict[Endpoint, Client] = {}
        self.producers: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        """Endpoint, topic and settings -> (what the topic was then, the producer)."""


_pool = _Pool()


def _start_anew() -> None:
    """In a forked child: the parent's sockets are not ours; forget them, and do not close them."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_start_anew)


def endpoint(options: ReadOptions | WriteOptions) -> Endpoint:
    """The endpoint that the options name."""
    return Endpoint(
        options.bootstrap_servers,
        options.client_id,
        options.connect_timeout,
        options.request_timeout,
    )


def client(where: Endpoint) -> Client:
    """This process's client for `where`, opened at the first call.

    Raises:
        ConnectionFailed: no broker answers; the text names the addresses.
    """
    pool = _pool
    with pool.lock:
        found = pool.clients.get(where)
        if found is None:
            import quiverlog

            found = pool.clients[where] = quiverlog.connect(
                list(where.addresses),
                client_id=where.client_id,
                connect_timeout=where.connect_timeout,
                request_timeout=where.request_timeout,
            )
        return found


def producer(where: Endpoint, topic: str, **settings: Any) -> Any:
    """This process's producer for a topic. A task that fails must `drop_producer` it.

    One request, once per task: a topic that was altered or created anew since the last task gets a
    new producer. Spark may have many idle workers with old ones, more than it retries a task.

    Raises:
        UnknownTopic: there is none of this name.
    """
    key = _producer_key(where, topic, settings)
    pool = _pool
    with pool.lock:
        info = client(where).metadata([topic]).topics.get(topic)
        version = info and (info.topic_id, info.schema_id, len(info.partitions))
        known, found = pool.producers.get(key, (None, None))
        if found is not None and known != version:
            drop_producer(found)
            found = None
        if found is None:
            found = client(where).producer(topic, **settings)
            pool.producers[key] = (version, found)
        return found


def has_producer(where: Endpoint, topic: str, **settings: Any) -> bool:
    """Whether an earlier task left one in this process; it may be out of date."""
    return _producer_key(where, topic, settings) in _pool.producers


def _producer_key(where: Endpoint, topic: str, settings: dict[str, Any]) -> tuple[Any, ...]:
    return (where, topic, *sorted(settings.items()))


def drop_producer(found: Any) -> None:
    """Forget a producer whose state is in doubt; the next task opens a new one."""
    pool = _pool
    with pool.lock:
        for key in [k for k, (_, p) in pool.producers.items() if p is found]:
            del pool.producers[key]
    with contextlib.suppress(Exception):  # its failure is already on its way up
        found.close()
