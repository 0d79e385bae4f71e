"""Quotas at this broker: clients are measured, answered, and muted while they are in debt.

    PRODUCE comes, its bytes count ─────┐
    FETCH is answered, its rows count ──┴─▶ a debt: the answer has throttle_ms,
                                            then nothing is read until it is paid

Muting holds back requests, no answer: a parked fetch is answered in its time. Brokers are not
measured, so that staged rows count when the client sends them, and not when they are published.

Invariant: a connection is muted for `MUTED_US_MAX` at most before it is looked at again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from quiverlog.core.security.principals import Kind
from quiverlog.core.security.quotas import Bucket, Caller, Found, Limit, Owner, Quota, find
from quiverlog.errors import QuotaExceeded
from quiverlog.limits import MUTED_US_MAX
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.effects import ConnectionMuted, Respond
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now, QuotaKind
from quiverlog.wire import messages as m

__all__ = ["Quotas"]

_BUCKETS_MIN: Final = 1_024
_TOLD_MS_MAX: Final = 2**31 - 1
_MEASURED: Final = (Limit.BYTES_IN, Limit.BYTES_OUT)
_NAMES: Final = {Limit.BYTES_IN: "in", Limit.BYTES_OUT: "out"}


class _Muted(NamedTuple):
    """Until `end_us`, as in `throttle_ms`; `look_us` is sooner, in case that a quota is raised."""

    since_us: int
    look_us: int
    end_us: int
    limit: Limit


class Quotas:
    """`is_on`: there is a quota."""

    __slots__ = (
        "_beyond", "_buckets", "_clients", "_counts", "_due", "_entered", "_measured", "_metrics",
        "_muted", "_outbox", "_seen", "_sweep_at", "_view", "is_on",
    )  # fmt: skip

    def __init__(
        self, view: MetadataView, clients: Clients, outbox: Outbox, metrics: NodeMetrics
    ) -> None:
        self._view = view
        self._clients = clients
        self._outbox = outbox
        self._metrics = metrics
        self.is_on = False
        self._seen: Mapping[Owner, Quota] = {}
        self._buckets: dict[tuple[Owner, Limit], Bucket] = {}
        self._sweep_at = _BUCKETS_MIN
        self._measured: dict[int, tuple[Bucket | None, ...]] = {}
        """The buckets of connections, by `_MEASURED`."""
        self._entered: dict[int, Owner | None] = {}
        """The payer that a connection counts for; None: it has no limit."""
        self._counts: Counter[Owner] = Counter()
        self._beyond: dict[int, None] = {}
        """Connections to mute at the end of the call."""
        self._muted: dict[int, _Muted] = {}
        self._due: list[tuple[int, int]] = []

    # --- connections ---------------------------------------------------------------------------
    def enter(self, connection_id: int, now: Now) -> None:
        """Count a connection for its payer, from now on.

        Raises QuotaExceeded: the payer has as many as it may.
        """
        self.look()
        self._leave(connection_id)
        self._measured.pop(connection_id, None)
        found = self._find(Limit.CONNECTIONS, connection_id) if self.is_on else None
        if found is not None and self._counts[found.payer] >= found.value:
            self._metrics.quota_connections_refused += 1
            raise QuotaExceeded(
                f"{_named(found.payer)} has {found.value} connections to this broker, the most"
                " that its quota allows."
            )
        self._count(connection_id, found)
        if self.is_on and self._longest(connection_id, now) is not None:
            self._mute(connection_id, now)  # Else a new connection would be the way around.

    def drop(self, connection_id: int) -> None:
        self._leave(connection_id)
        assert connection_id not in self._entered
        self._measured.pop(connection_id, None)
        self._muted.pop(connection_id, None)
        self._beyond.pop(connection_id, None)
        self._metrics.quota_connections_muted = len(self._muted)

    def _leave(self, connection_id: int) -> None:
        payer = self._entered.pop(connection_id, None)
        if payer is not None:
            self._counts[payer] -= 1
            assert self._counts[payer] >= 0, "it counted"
            if not self._counts[payer]:
                del self._counts[payer]

    def _count(self, connection_id: int, found: Found | None) -> None:
        assert connection_id not in self._entered, "it counts once"
        self._entered[connection_id] = None if found is None else found.payer
        if found is not None:
            self._counts[found.payer] += 1

    def look(self) -> None:
        """Go by the quotas as they are now; muted connections are looked at in their time."""
        quotas = self._view.image.quotas
        if quotas is self._seen:
            return
        self._seen = quotas
        self.is_on = bool(quotas)
        self._measured.clear()
        self._counts.clear()
        entered, self._entered = self._entered, {}
        for connection_id in entered:
            self._count(connection_id, self._find(Limit.CONNECTIONS, connection_id))
        assert self._entered.keys() == entered.keys(), "no connection is lost"

    def _find(self, limit: Limit, connection_id: int) -> Found | None:
        clients = self._clients
        assert connection_id in clients.accounts, "it has said HELLO"
        principal = clients.principal_of(connection_id)
        if principal.kind is Kind.BROKER:
            return None
        caller = Caller(
            principal.name,
            clients.client_id_of(connection_id),
            clients.network_of(connection_id),
        )
        return find(self._seen, limit, caller)

    # --- bytes ---------------------------------------------------------------------------------
    def received(self, connection_id: int, byte_count: int, now: Now) -> None:
        """Count a PRODUCE."""
        self._charge(connection_id, Limit.BYTES_IN, byte_count, now)

    def settle(self, now: Now) -> None:
        """At the end of a call: count the rows of its answers, mute, and add `throttle_ms`."""
        answers: list[tuple[int, m.FetchResponse | m.ProduceResponse]] = []
        for effect in self._outbox.effects:
            if type(effect) is not Respond:
                continue
            connection_id, response = effect.connection_id, effect.response
            if type(response) is m.FetchResponse:
                # In the body, or in files that the client reads itself.
                byte_count = sum(one.batch_bytes for one in response.partitions)
                self._charge(connection_id, Limit.BYTES_OUT, byte_count, now)
                answers.append((connection_id, response))
            elif type(response) is m.ProduceResponse:
                answers.append((connection_id, response))
        beyond, self._beyond = self._beyond, {}
        for connection_id in beyond:
            self._mute(connection_id, now)
        for connection_id, response in answers if self._muted else ():
            muted = self._muted.get(connection_id)
            if muted is not None:
                wait_us = max(0, muted.end_us - now.mono_us)
                response.throttle_ms = min(_TOLD_MS_MAX, -(-wait_us // 1_000))

    def _charge(self, connection_id: int, limit: Limit, byte_count: int, now: Now) -> None:
        bucket = self._buckets_of(connection_id, now)[limit]
        if bucket is None:
            return
        beyond = bucket.charge(byte_count, now.mono_us)
        assert 0 <= beyond <= byte_count
        if beyond:
            self._metrics.quota_bytes_beyond[_NAMES[limit]] += beyond
            self._beyond[connection_id] = None

    def _buckets_of(self, connection_id: int, now: Now) -> tuple[Bucket | None, ...]:
        known = self._measured.get(connection_id)
        if known is None:
            if connection_id not in self._clients.accounts:
                return (None, None)  # It is gone, and its answer comes late.
            found = [self._find(limit, connection_id) for limit in _MEASURED]
            pairs = zip(_MEASURED, found, strict=True)
            known = tuple(one and self._bucket(limit, one, now) for limit, one in pairs)
            self._measured[connection_id] = known
        return known

    def _bucket(self, limit: Limit, found: Found, now: Now) -> Bucket:
        key = (found.payer, limit)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._sweep(now)
            bucket = self._buckets[key] = Bucket(found.value, now.mono_us)
        assert limit in _MEASURED
        if bucket.rate != found.value:
            bucket.set_rate(found.value, now.mono_us)
        return bucket

    def _sweep(self, now: Now) -> None:
        """Forget buckets without a debt: they begin anew with the same."""
        kept = {k: one for k, one in self._buckets.items() if not one.is_unused(now.mono_us)}
        self._buckets = kept
        self._measured.clear()  # A payer is measured by one.
        self._sweep_at = max(_BUCKETS_MIN, 2 * len(kept))

    # --- muting --------------------------------------------------------------------------------
    def _longest(self, connection_id: int, now: Now) -> tuple[int, Limit] | None:
        """Return the longest wait, and of which limit; None: there is no debt."""
        buckets = self._buckets_of(connection_id, now)
        waits = [0 if one is None else one.wait_us(now.mono_us) for one in buckets]
        wait_us, limit = max(zip(waits, _MEASURED, strict=True))
        return (wait_us, limit) if wait_us else None

    def _mute(self, connection_id: int, now: Now) -> None:
        """Until the debt of this moment is paid: what other connections send later is theirs."""
        longest = self._longest(connection_id, now)
        assert self.is_on or longest is None, "a debt is to a quota"
        if longest is None:
            return
        end_us = now.mono_us + longest[0]
        muted = self._muted.get(connection_id)
        if muted is not None:  # It had several requests under way.
            self._muted[connection_id] = muted._replace(end_us=max(end_us, muted.end_us))
            return
        self._outbox.emit(ConnectionMuted(connection_id, is_muted=True))
        self._go_on(connection_id, end_us, longest, now)

    def _go_on(self, connection_id: int, end_us: int, longest: tuple[int, Limit], now: Now) -> None:
        wait_us, limit = longest
        assert wait_us > 0, "it is in debt"
        look_us = min(end_us, now.mono_us + min(wait_us, MUTED_US_MAX))
        self._muted[connection_id] = _Muted(now.mono_us, look_us, end_us, limit)
        heapq.heappush(self._due, (look_us, connection_id))
        self._metrics.quota_connections_muted = len(self._muted)

    def next_us(self) -> int | None:
        return self._due[0][0] if self._due else None

    def run(self, now: Now) -> None:
        """Look at the muted connections whose time has come."""
        while self._due and self._due[0][0] <= now.mono_us:
            look_us, connection_id = heapq.heappop(self._due)
            muted = self._muted.get(connection_id)
            if muted is None or muted.look_us != look_us:
                continue  # It is gone.
            assert muted.since_us <= look_us <= muted.since_us + MUTED_US_MAX
            self._metrics.quota_muted_us[_NAMES[muted.limit]] += now.mono_us - muted.since_us
            longest = self._longest(connection_id, now)
            if longest is not None and now.mono_us < muted.end_us:
                self._go_on(connection_id, muted.end_us, longest, now)
                continue
            del self._muted[connection_id]
            self._metrics.quota_connections_muted = len(self._muted)
            self._outbox.emit(ConnectionMuted(connection_id, is_muted=False))


def _named(payer: Owner) -> str:
    if not payer.kind:
        return f"the address {payer.name or '(unknown)'}"
    return f"{QuotaKind(payer.kind).label} {payer.name}"
