"""Rules of access in a cluster: a program that changes them, spies that ask for what they may not
have, and the oracle that looks at every answer to a spy in the moment in which it is made.

Owns these promises, by a model of ten lines of its own:

1. no broker whose metadata have a version answers with what the rules of that version deny: rows,
   offsets, or that a topic exists.
2. a parked fetch whose right has ended is answered in the call that brings the rules.
3. rules that were confirmed are in the controller's metadata at the end, and those whose removal
   was confirmed are not; quotas are there as they were confirmed last.
4. while a spy has a quota at a node, it gets as many bytes as that promises, and one answer more of
   each connection.

Spies do not log in: their connections have names. All other clients are super users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from quiverlog.client.admin.rules import AccessRule
from quiverlog.core.controller.internal_topics import is_internal
from quiverlog.core.security import quotas
from quiverlog.core.security.acls import Rule
from quiverlog.core.security.principals import Principal, of_user
from quiverlog.core.security.quotas import Owner, Quota
from quiverlog.errors import FeatureNotFinalised, NotAuthorized, QuiverlogError
from quiverlog.node.apis.fetch import FetchWaiter
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import LATEST, Operation, QuotaKind
from quiverlog.wire import messages as m
from tests.sim.checker import Checker, Key, Violation
from tests.sim.host import Host

from .clients import _Routed
from .host import ClusterHost
from .programs import Program
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["NAMES", "SUPER_USER", "RightsOracle", "RulesKeeper", "Spy", "principal_of"]

SUPER_USER: Final = "root"
NAMES: Final = ("alice", "bob")
_SPY: Final = "spy"
_OPERATIONS: Final = ("read", "read", "describe", "all")
_PAUSE_US: Final = 60_000
_KEPT_MAX: Final = 12
_QUOTAS: Final = (("user", "alice"), ("user", "bob"), ("client-id", "app"), ("default", ""))
_LIMITS: Final = ("bytes_in", "bytes_out", "connections")
_RATE: Final = 1_000
"""So little that spies are held up."""


def principal_of(client_name: str) -> Principal | None:
    """In whose name a client of this name asks; None: it proves what it is."""
    if client_name.startswith(("node-", "unproved-", "login-")):
        return None
    parts = client_name.split("-")
    return of_user(parts[1] if parts[0] == _SPY else SUPER_USER)


def allowed(rules: Mapping[int, Rule], who: str, operation: Operation, name: str) -> bool:
    """What the rules allow, the slow way: they are about topics alone here."""
    about = [
        rule
        for rule in rules.values()
        if rule.principal in (f"user:{who}", "user:*", "*")
        and (name.startswith(rule.name) if rule.is_prefix else rule.name == name)
    ]
    hiding = {Operation.ALL, operation, Operation.DESCRIBE}
    enough = {Operation.ALL, operation}
    if operation is Operation.DESCRIBE:
        enough.add(Operation.READ)
    is_denied = any(not rule.allows and rule.operation in hiding for rule in about)
    return not is_denied and any(rule.allows and rule.operation in enough for rule in about)


class _Received:
    """What a node gave to one user since its quota there is `rate`; 0: it has none."""

    def __init__(self, rate: int, since_us: int) -> None:
        self.rate, self.since_us = rate, since_us
        self.total = self.largest = 0
        self.connections: set[int] = set()


class RightsOracle:
    """Looks at what nodes answer to spies."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: list[str] = []
        self._received: dict[tuple[int, int, str], _Received] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Judge each answer when the node makes it: later in the same call rules may change."""
        respond, bytes_min = Outbox.respond, quotas.QUOTA_BYTES_MIN

        def watched(
            outbox: Outbox, connection_id: int, correlation_id: int, response: m.Response,
            body: Any = (),
        ) -> None:  # fmt: skip
            respond(outbox, connection_id, correlation_id, response, body)
            for host in self._cluster.hosts:
                if host.node is not None and host.node.broker.outbox is outbox:
                    self._look(host, connection_id, response)

        Outbox.respond = watched  # type: ignore[method-assign]
        quotas.QUOTA_BYTES_MIN = _RATE  # type: ignore[misc]
        try:
            yield
        finally:
            Outbox.respond = respond  # type: ignore[method-assign]
            quotas.QUOTA_BYTES_MIN = bytes_min  # type: ignore[misc]

    def _look(self, host: ClusterHost, connection_id: int, response: m.Response) -> None:
        name = host.client_name(connection_id)
        if not name.startswith(f"{_SPY}-"):
            return
        who = name.split("-")[1]
        if isinstance(response, m.FetchResponse):
            for one in response.partitions:
                operation = Operation.DESCRIBE if one.error_code else Operation.READ
                self._judge(host, who, operation, one.topic_id, one.error_code)
                self._cluster.world.events["rows for spies"] += one.batch_bytes > 0
            self._measure(host, connection_id, who, sum(p.batch_bytes for p in response.partitions))
        elif isinstance(response, m.ListOffsetsResponse):
            for entry in response.partitions:
                self._judge(host, who, Operation.DESCRIBE, entry.topic_id, entry.error_code)
        elif isinstance(response, m.MetadataResponse):
            for topic in response.topics:
                if not topic.error_code and not is_internal(topic.name):
                    self._check(host, who, Operation.DESCRIBE, topic.name)

    def _judge(
        self, host: ClusterHost, who: str, operation: Operation, topic_id: bytes, code: int
    ) -> None:
        assert host.node is not None
        topic = host.node.broker.view.image.topics_by_id.get(topic_id)
        self._cluster.world.events["spies refused"] += code == NotAuthorized.code
        # Any other error is also that of a topic which is not there.
        if topic is not None and code in (0, NotAuthorized.code):
            self._check(host, who, operation, topic.name)

    def _check(self, host: ClusterHost, who: str, operation: Operation, name: str) -> None:
        assert host.node is not None
        image = host.node.broker.view.image
        if not allowed(image.rules.rules, who, operation, name):
            self._found.append(
                f"{host.name} at version {image.version} lets {who} {operation.label} {name}"
            )

    def _measure(self, host: ClusterHost, connection_id: int, who: str, size: int) -> None:
        """Promise 4."""
        assert host.node is not None
        quota = host.node.broker.view.image.quotas.get(Owner(QuotaKind.USER, who))
        rate = 0 if quota is None else quota.bytes_out
        key = (host.node_id, host.life, who)
        found = self._received.get(key)
        if found is None or found.rate != rate:
            found = self._received[key] = _Received(rate, host.now.mono_us)
        found.connections.add(connection_id)
        found.largest = max(found.largest, size)
        may_be = rate * (host.now.mono_us - found.since_us + 1_000_000) // 1_000_000
        if rate and found.total > may_be + found.largest * len(found.connections):
            self._found.append(f"{host.name} gives {who} {found.total} bytes, not {may_be}")
        found.total += size

    def look(self, host: ClusterHost) -> None:
        """Code of this node has run. Raise Violation for what was found; also promise 2."""
        if self._found:  # Not in the node, which would answer a bug of its own.
            raise Violation(self._found[0])
        assert host.node is not None
        broker = host.node.broker
        # None watches in a run without rules.
        if broker.wakeups.busy or not broker.authoriser.watched.waiters:
            return
        image = broker.view.image
        for waiter in broker.authoriser.watched.waiters:
            name = host.client_name(waiter.connection_id)
            if waiter.done or not isinstance(waiter, FetchWaiter) or waiter.looking:
                continue
            if not name.startswith(f"{_SPY}-"):
                continue  # A super user's, which is looked at when that ends.
            for entry in waiter.request.partitions:
                topic = image.topics_by_id.get(entry.topic_id)
                who = name.split("-")[1]
                if topic is not None and not allowed(
                    image.rules.rules, who, Operation.READ, topic.name
                ):
                    raise Violation(f"{host.name}: a fetch of {who} waits on for {topic.name}")


class Spy(_Routed):
    """Asks one node, in the name of a user, for a topic."""

    def __init__(self, world: Any, checker: Checker, node_id: int, who: str, key: Key) -> None:
        self._node_id = node_id
        super().__init__(world, checker, f"{_SPY}-{who}-{node_id}", key)

    @property
    def host(self) -> Host:
        return self.world.hosts[self._node_id]

    def act(self) -> None:
        name = self.checker.partitions[self.key].topic.name
        match self.rng.randrange(5):
            case 0:
                self.ask(m.MetadataRequest(topics=None))
            case 1:
                self.ask(m.MetadataRequest(topics=[name, "missing"]))
            case 2:
                entry = m.ListOffsetsPartition(*self.key, at=LATEST)
                self.ask(m.ListOffsetsRequest(partitions=[entry]))
            case _:
                part = m.FetchPartition(*self.key, offset=0, from_follower=self.rng.random() < 0.5)
                # It waits for more than there is, and gets what there is in the end.
                wait_ms = self.rng.choice((0, 300, 2_000))
                request = m.FetchRequest(
                    max_wait_ms=wait_ms, min_bytes=10**6, bytes_max=10**6, partitions=[part]
                )
                self.ask(request)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        self.later(self.rng.randrange(1_000, _PAUSE_US))


class RulesKeeper(Program):
    """Changes rules through the shipped client."""

    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.stopped = False
        self.is_idle = False
        self.kept: set[int] = set()
        self.removed: set[int] = set()
        self.quotas: dict[tuple[str, str], dict[str, int]] = {one: {} for one in _QUOTAS}
        """As confirmed; one that is missing is not known."""
        super().__init__(cluster, checker, f"rules-keeper-{number}")

    async def main(self) -> None:
        is_final = False
        while not self.stopped:
            await self.nap(self.rng.uniform(0.02, 0.2))
            try:
                if not is_final:
                    found = await self.client().describe_features()
                    await self.client().finalize_features(found.level_max)
                    is_final = True
                await (self._limit() if self.rng.random() < 0.3 else self._change())
            except QuiverlogError as error:
                self.checker.error(error.code)
                if not (error.retriable or isinstance(error, FeatureNotFinalised)):
                    raise Violation(f"{self.name}: {error!r}") from error
        self.is_idle = True

    async def _change(self) -> None:
        if len(self.kept) > self.rng.randrange(_KEPT_MAX):
            number = self.rng.choice(sorted(self.kept))
            self.kept.discard(number)  # Whatever becomes of the request.
            await self.client().remove_rules([number])
            self.removed.add(number)
            self.world.events["rules removed"] += 1
            return
        names = sorted({model.topic.name for model in self.checker.partitions.values()})
        name = self.rng.choice(names)
        is_prefix = self.rng.random() < 0.4
        rule = AccessRule(
            self.rng.choice((*(f"user:{one}" for one in NAMES), "user:*")),
            self.rng.random() < 0.75,
            self.rng.choice(_OPERATIONS),
            "topic",
            name[: self.rng.randrange(len(name))] if is_prefix else name,
            is_prefix,
        )
        (number,) = await self.client().add_rules([rule])
        # An equal rule keeps its number, of which a removal may be under way.
        if number not in self.removed:
            self.kept.add(number)
        self.world.events["rules added"] += 1

    async def _limit(self) -> None:
        owner = self.rng.choice(_QUOTAS)
        before = self.quotas.pop(owner, None)  # Whatever becomes of the request.
        # The default's bytes are those of super users, too, which have work to do.
        limits = _LIMITS[2:] if owner[0] == "default" else _LIMITS
        asked = {
            one: self.rng.choice((0, _RATE, 2 * _RATE))
            for one in self.rng.sample(limits, self.rng.randrange(1, len(limits) + 1))
        }
        await self.client().set_quota(*owner, **asked)
        self.world.events["quotas set"] += 1
        if before is not None:
            self.quotas[owner] = {**before, **asked}

    def check(self) -> None:
        """Promise 3."""
        leader = self._cluster.controller()
        assert leader is not None
        assert leader.node is not None
        self._check_quotas(leader.node.broker.metadata.image.quotas)
        found = leader.node.broker.metadata.image.rules.rules.keys()
        if lost := self.kept - found:
            raise Violation(f"rule {min(lost)} was confirmed, and is not there")
        if back := self.removed & found:
            raise Violation(f"rule {min(back)} was removed, and is there")

    def _check_quotas(self, found: Mapping[Owner, Quota]) -> None:
        labels = {kind.label: kind for kind in QuotaKind}
        for (kind, name), limits in self.quotas.items():
            quota = found.get(Owner(labels[kind], name), Quota())
            wanted = Quota(**limits)
            if quota != wanted:
                raise Violation(f"the quota of {kind} {name} was {wanted}, and is {quota}")
