"""Questions that each broker answers for itself, page by page: of its disk, or of what it leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

from msgspec.structs import replace

from quiverlog.client.base.commands import Operation
from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m

from .metadata import check
from .routing import Cluster

__all__ = ["ask_each_broker"]

# A silent broker must not use up the time of the others.
_BROKER_S_MAX: Final = 5.0


def ask_each_broker(
    cluster: Cluster,
    request: m.Request,
    brokers: Collection[int] | None = None,
    *,
    by: Literal["name", "id", "group"] = "name",
) -> Operation[tuple[dict[int, list[Any]], list[int]]]:
    """Return the pages of each broker's answer by node id, and the brokers that did not answer.

    Args:
        brokers: node ids; None means all that are alive.
        by: what a page begins with: with "id" the request has the field `first_id`, its answer
            `next_id`; others likewise.

    Raises:
        QuiverlogError: no broker answered; the last one's error.
    """

    def attempt() -> Operation[tuple[dict[int, list[Any]], list[int]]]:
        yield from cluster.refresh([])
        pages: dict[int, list[Any]] = {}
        silent: list[int] = []
        failure: QuiverlogError | None = None
        for node_id in sorted(cluster.metadata.brokers if brokers is None else brokers):
            try:
                pages[node_id] = yield from _pages(cluster, node_id, request, by)
            except QuiverlogError as error:
                failure = error
                silent.append(node_id)
        if failure is not None and not pages:
            raise failure
        assert not pages.keys() & set(silent), "a broker has answered or not"
        return pages, silent

    return (yield from cluster.retrying(attempt))


def _pages(cluster: Cluster, node_id: int, request: Any, by: str) -> Operation[list[Any]]:
    timeout_s = min(_BROKER_S_MAX, cluster.settings.request_timeout_s)
    pages: list[Any] = []
    first = ""
    while not pages or first:
        page = replace(request, **{f"first_{by}": first})
        reply = yield cluster.call(cluster.address_of(node_id), page, timeout_s=timeout_s)
        check(reply.response)
        following = getattr(reply.response, f"next_{by}")
        assert not following or following > first, "the answer was checked: pages go on"
        first = following
        pages.append(reply.response)
    return pages
