"""What the client of a connection may do: the one place that decides, at every broker.

`is_on` where a listener of this broker authenticates: what no rule allows is denied then, also to
the clients of the other listeners. Super users and proved brokers may do all.

Invariants: a decision is that of the rules of the image now: what was decided before they changed
is not used. A topic that the client may not describe is answered as one that is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final

from quiverlog.core.controller.internal_topics import STAGED, is_internal
from quiverlog.core.controller.records import UserRecord
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.security.acls import Caller, Decision, RuleSet, address_of
from quiverlog.core.security.principals import ANONYMOUS, Kind, Principal
from quiverlog.errors import NotAuthorized, QuiverlogError, UnknownTopic, UnknownTopicId
from quiverlog.limits import DECISIONS_CACHED_MAX, TOPIC_NAME_CHARS_MAX
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.purgatory import Wakeups, Watched
from quiverlog.node.security.audit import Audit
from quiverlog.node.security.needs import NEEDS, Scope
from quiverlog.types import Operation, ResourceKind
from quiverlog.wire.apis import Api
from quiverlog.wire.messages import Request
from quiverlog.wire.registry import APIS

__all__ = ["WHOLE", "Authoriser", "Guard", "Rights", "asked_of_topic", "no_topic", "no_topic_id"]

_ALLOWED: Final = Decision(True)
_TOPIC, _CLUSTER = ResourceKind.TOPIC, ResourceKind.CLUSTER
_DESCRIBE: Final = Operation.DESCRIBE
_NAME_BYTES_CACHED_MAX: Final = 320
"""Of a name's object: room for each name of a topic or a user. Longer ones are decided anew."""


def no_topic(name: str) -> UnknownTopic:
    return UnknownTopic(f"there is no topic {name[:TOPIC_NAME_CHARS_MAX]!r}.")


def no_topic_id(topic_id: bytes) -> UnknownTopicId:
    return UnknownTopicId(f"there is no topic with id {topic_id[:16].hex()}.")


_SOME_CACHED_MAX: Final = 1_000


def asked_of_topic(operation: Operation, name: str) -> tuple[Operation, ResourceKind, str] | None:
    """Return the right that it takes to do this with a topic, which may be an internal one; None:
    it takes none."""
    if not is_internal(name):
        return operation, _TOPIC, name
    if operation is Operation.WRITE and name == STAGED:
        return None  # Its rows are checked one by one.
    # A reader of `__staged` reads rows of every topic: that is for operators.
    wanted = {Operation.READ: Operation.READ, _DESCRIBE: _DESCRIBE}
    return wanted.get(operation, Operation.ALTER), _CLUSTER, ""


class Decisions:
    """What was decided, of all callers, since the rules changed last."""

    __slots__ = ("_count", "_known", "_rules", "_some", "_version", "_view", "changes")

    def __init__(self, view: MetadataView) -> None:
        self._view = view
        self._rules: RuleSet | None = None
        self._version = 0
        self._known: dict[Caller, dict[tuple[int, int, str], Decision]] = {}
        self._some: dict[tuple[Caller, Operation, ResourceKind], Decision] = {}
        self._count = 0
        self.changes = 0
        """Grows with every change of the rules that a decision has seen."""

    def look(self) -> int:
        """Forget what rests on earlier rules; returns `changes`."""
        rules = self._view.image.rules
        if rules is not self._rules or rules.version != self._version:
            self._rules, self._version = rules, rules.version
            self._forget()
            self.changes += 1
        return self.changes

    def _forget(self) -> None:
        self._known = {}
        self._some = {}
        self._count = 0
        assert self._rules is not None, "rules are looked up before they are forgotten"

    def decide(
        self, caller: Caller, operation: Operation, kind: ResourceKind, name: str
    ) -> Decision:
        self.look()
        rules = self._rules
        assert rules is not None
        # Clients choose names: the number of entries bounds their memory only with this.
        if sys.getsizeof(name) > _NAME_BYTES_CACHED_MAX:
            return rules.decide(caller, operation, kind, name)
        if not rules.networks and caller.address is not None:
            caller = Caller(caller.principal)  # One for all its connections.
        known = self._known.setdefault(caller, {})
        key = (operation, kind, name)
        found = known.get(key)
        if found is None:
            if self._count >= DECISIONS_CACHED_MAX:
                self._forget()
                known = self._known.setdefault(caller, {})
            found = known[key] = rules.decide(caller, operation, kind, name)
            self._count += 1
        assert self._count <= DECISIONS_CACHED_MAX
        assert not found.rule or found.rule in rules.rules, "it rests on a rule that is there"
        return found

    def decide_some(self, caller: Caller, operation: Operation, kind: ResourceKind) -> Decision:
        self.look()
        rules = self._rules
        assert rules is not None
        if not rules.networks:
            caller = Caller(caller.principal)
        # All rules are looked at: once for a caller, until they change.
        key = (caller, operation, kind)
        found = self._some.get(key)
        if found is None:
            if len(self._some) >= _SOME_CACHED_MAX:
                self._some = {}
            found = self._some[key] = rules.decide_some(caller, operation, kind)
        return found


class Rights:
    """Of the client of one connection. `is_all`: of a super user or a broker, as it is now."""

    __slots__ = (
        "_audit", "_decisions", "_guards", "_known", "_view", "caller", "connection_id", "is_all",
        "watched",
    )  # fmt: skip

    def __init__(
        self,
        connection_id: int,
        caller: Caller,
        decisions: Decisions,
        view: MetadataView,
        audit: Audit,
        watched: Watched,
        *,
        is_all: bool,
    ) -> None:
        self.is_all = is_all
        self.watched = watched
        self.connection_id = connection_id
        self.caller = caller
        self._decisions = decisions
        self._view = view
        self._audit = audit
        self._known = audit.caller_of(connection_id)
        # By number: to hash a member of an enum costs as much as the check.
        self._guards: dict[int, Guard] = {}

    @property
    def changes(self) -> int:
        """Another number: what the client may do has changed."""
        return 2 * self._decisions.look() + self.is_all

    def set_all(self, is_all: bool) -> None:
        assert is_all != self.is_all
        self.is_all = is_all
        for guard in self._guards.values():
            guard.forget()

    # --- questions -----------------------------------------------------------------------------
    def decide(self, operation: Operation, kind: ResourceKind, name: str = "") -> Decision:
        if self.is_all:
            return _ALLOWED
        return self._decisions.decide(self.caller, operation, kind, name)

    def may(self, operation: Operation, kind: ResourceKind, name: str = "") -> bool:
        return self.decide(operation, kind, name).is_allowed

    def may_topic(self, operation: Operation, name: str) -> bool:
        return self._topic(operation, name)[0].is_allowed

    def sees(self, name: str) -> bool:
        """True unless the topic is answered as one that is not there. Internal ones are no secret:
        a transaction needs their leaders."""
        return is_internal(name) or self.may_topic(_DESCRIBE, name)

    def _topic(
        self, operation: Operation, name: str
    ) -> tuple[Decision, Operation, ResourceKind, str]:
        assert operation is not Operation.ALL
        found = asked_of_topic(operation, name)
        if found is None:
            return _ALLOWED, operation, _TOPIC, name
        return self.decide(*found), *found

    # --- checks --------------------------------------------------------------------------------
    def check(self, api: Api, operation: Operation, kind: ResourceKind, name: str = "") -> None:
        """Raises NotAuthorized."""
        assert kind is not _TOPIC, "a topic may have to stay hidden: `check_topic`"
        decision = self.decide(operation, kind, name)
        if not decision.is_allowed:
            raise self._refusal(api, operation, kind, name, decision)

    def check_some(self, api: Api, operation: Operation, kind: ResourceKind) -> None:
        """Raises NotAuthorized: the caller may do it with no resource of this kind."""
        assert operation is not Operation.ALL
        if self.is_all:
            return
        decision = self._decisions.decide_some(self.caller, operation, kind)
        if not decision.is_allowed:
            raise self._refusal(api, operation, kind, "", decision)

    def check_topic(
        self, api: Api, operation: Operation, name: str, absent: QuiverlogError | None = None
    ) -> None:
        """Raise NotAuthorized, or `absent` where the caller may not even describe the topic; None:
        there is nothing to hide (the topic is to be created)."""
        decision, wanted, kind, resource = self._topic(operation, name)
        if decision.is_allowed:
            return
        error = self._refusal(api, wanted, kind, resource, decision)
        raise error if absent is None or self.sees(name) else absent

    def rule_for(self, operation: Operation, name: str) -> int:
        """Return the rule by which a topic may be read or written, for the audit."""
        decision = self._topic(operation, name)[0]
        assert decision.is_allowed, "it was checked in the same call"
        return decision.rule

    def hidden(self, api: Api, name: str) -> None:
        """Record that a client asked for a topic that it may not describe."""
        decision = self.decide(_DESCRIBE, _TOPIC, name)
        assert not decision.is_allowed
        self._denied(api, _DESCRIBE, _TOPIC, name, decision.rule)

    def _denied(
        self, api: Api, operation: Operation, kind: ResourceKind, name: str, rule: int
    ) -> None:
        connection_id, known = self.connection_id, self._known
        self._audit.denied(connection_id, api, operation, kind, name, rule, known)

    def _refusal(
        self, api: Api, operation: Operation, kind: ResourceKind, name: str, decision: Decision
    ) -> NotAuthorized:
        assert not decision.is_allowed
        self._denied(api, operation, kind, name, decision.rule)
        resource = kind.label
        if kind is not _CLUSTER:
            resource = f"{kind.label} {name[:512]!r}" if name else f"any {kind.label}"
        why = f"rule {decision.rule} denies it" if decision.rule else "no rule allows it"
        return NotAuthorized(
            f"{self.caller.principal} may not {operation.label} {resource}: {why}.",
            rule=decision.rule,
        )

    def guard(self, api: int) -> Guard:
        found = self._guards.get(api)
        if found is None:
            assert NEEDS[Api(api)].kind is _TOPIC
            found = self._guards[api] = Guard(self, Api(api), self._view)
        return found


class Guard:
    """What one API needs of the topics that a request names by id."""

    __slots__ = (
        "_allowed", "_api", "_operation", "_rules", "_version", "_view", "leading", "lookup",
        "rights",
    )  # fmt: skip

    def __init__(self, rights: Rights, api: Api, view: MetadataView) -> None:
        self.rights = rights
        self.lookup: object = None
        """Made with this guard, once; `leading` is its own."""
        self.leading: Any = None
        self._api = api
        assert NEEDS[api].scope is Scope.EACH
        self._operation = NEEDS[api].operation
        self._view = view
        # Found in a fraction of a microsecond, as most requests name the same topics again.
        self._allowed: set[bytes] = set()
        self._rules: RuleSet | None = None
        self._version = 0

    def check(self, topic_id: bytes) -> None:
        """Raises UnknownTopicId, NotAuthorized."""
        rules = self._view.image.rules  # As `Decisions.look`, without a call.
        if rules is self._rules and rules.version == self._version and topic_id in self._allowed:
            return
        self._decide(topic_id)

    def forget(self) -> None:
        """After another right than by rules."""
        self._allowed = set()
        assert not self._allowed

    def allows(self, topic_id: bytes) -> bool:
        topic = self._view.image.topics_by_id.get(topic_id)
        return topic is not None and self.rights.may_topic(self._operation, topic.name)

    def _decide(self, topic_id: bytes) -> None:
        topic = self._view.image.topics_by_id.get(topic_id)
        if topic is None:
            raise no_topic_id(topic_id)
        self.rights.check_topic(self._api, self._operation, topic.name, no_topic_id(topic_id))
        rules = self._view.image.rules
        is_current = rules is self._rules and rules.version == self._version
        if not is_current or len(self._allowed) >= _GUARDED_MAX:
            self._allowed = set()
            self._rules, self._version = rules, rules.version
        self._allowed.add(topic_id)
        assert len(self._allowed) <= _GUARDED_MAX
        assert self.rights.sees(topic.name), "what may be used may be described"


_NAMES_PER_STEP: Final = 256
_GUARDED_MAX: Final = 1_000
"""Topics that a connection has at hand for one API."""


class Topics:
    """The topics of the image that a client may describe; without rights: all. For one request,
    whose hidden topics are recorded as denied."""

    __slots__ = ("_api", "_view", "rights")

    def __init__(self, view: MetadataView, rights: Rights | None, api: Api) -> None:
        self._view = view
        self.rights = rights
        self._api = api

    def names(self) -> Generator[None, object, list[str]]:
        """Return the names of a list of all, in steps."""
        names = list(self._view.image.topics)
        if self.rights is None:
            return names
        found: list[str] = []
        for number, name in enumerate(names, 1):
            # Internal topics are shown by name to each client, and listed for operators.
            if self.rights.may_topic(_DESCRIBE, name):
                found.append(name)
            if number % _NAMES_PER_STEP == 0:
                yield
        assert len(found) <= len(names)
        return found

    def peek(self, name: str) -> TopicImage | None:
        """As `get`, and nothing is recorded."""
        topic = self._view.image.topics.get(name)
        if topic is None or self.rights is None or self.rights.sees(name):
            return topic
        return None

    def get(self, name: str) -> TopicImage | None:
        return self._seen(self._view.image.topics.get(name))

    def listed(self, name: str) -> TopicImage | None:
        """As `get`; internal topics for operators only."""
        topic = self.get(name)
        if topic is None or self.rights is None or self.rights.may_topic(_DESCRIBE, name):
            return topic
        return None

    def described(self, name: str) -> TopicImage:
        """As `get`. Raises UnknownTopic; NotAuthorized: an internal topic, to be described."""
        topic = self.get(name)
        if topic is None:
            raise no_topic(name)
        if self.rights is not None:
            self.rights.check_topic(self._api, _DESCRIBE, name)
        assert topic.name == name
        return topic

    def by_id(self, topic_id: bytes) -> TopicImage | None:
        return self._seen(self._view.image.topics_by_id.get(topic_id))

    def _seen(self, topic: TopicImage | None) -> TopicImage | None:
        if topic is None or self.rights is None or self.rights.sees(topic.name):
            return topic
        self.rights.hidden(self._api, topic.name)
        return None


class Authoriser:
    """`is_on` False: every client may do all, and nothing is looked up."""

    __slots__ = (
        "_audit", "_clients", "_decisions", "_principals", "_rights", "_super_users", "_users",
        "_view", "_wakeups", "is_on", "watched",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        view: MetadataView,
        clients: Clients,
        wakeups: Wakeups,
        audit: Audit,
    ) -> None:
        self.is_on = config.authorises
        self._view = view
        self._clients = clients
        self._principals = clients.principals
        self._wakeups = wakeups
        self._audit = audit
        self._decisions = Decisions(view)
        self._users: Mapping[str, UserRecord] = {}
        self._super_users = clients.super_users
        # By connection.
        self._rights: dict[int, tuple[Principal, Rights]] = {}
        self.watched = Watched()
        """Long polls: they are looked at when the rules or the super users have changed."""

    def rules_changed(self) -> None:
        """After records of rules, or another image."""
        if self.is_on:
            self._wakeups.changed(self.watched)

    def drop(self, connection_id: int) -> None:
        assert self.is_on or not self._rights
        self._rights.pop(connection_id, None)

    def set_super_users(self, names: Iterable[str]) -> None:
        self._clients.set_super_users(names)
        self.look()

    def look(self) -> None:
        """After an entry of the metadata, or other super users: others may do all now."""
        users, super_users = self._view.image.users, self._clients.super_users
        if users is self._users and super_users is self._super_users:
            return
        self._users, self._super_users = users, super_users
        is_changed = False
        for principal, rights in self._rights.values():
            is_all = self.may_all(principal)
            if is_all != rights.is_all:
                # What waits has these rights, too, and must not outlive them.
                rights.set_all(is_all)
                is_changed = True
        if is_changed:
            self._wakeups.changed(self.watched)

    def may_all(self, principal: Principal) -> bool:
        if principal.kind is Kind.BROKER or principal in self._clients.super_users:
            return True
        user = self._view.image.users.get(principal.name)
        return principal.kind is Kind.USER and user is not None and user.is_admin

    def rights_of(self, connection_id: int) -> Rights | None:
        """Return None for a client that may do all.

        Raises:
            NotAuthorized: the connection is closed, and its principal is known no more.
        """
        if not self.is_on:
            return None
        rights = self._found(connection_id)
        return None if rights.is_all else rights

    def _found(self, connection_id: int) -> Rights:
        principal = self._clients.principal_of(connection_id)
        known = self._rights.get(connection_id)
        if known is not None and known[0] is principal:  # One without a name may get one.
            return known[1]
        if connection_id not in self._clients.accounts:
            # As `anonymous` it would pass a deny that is about its user.
            raise NotAuthorized("the client has closed its connection: its request ends.")
        assert known is None or known[0] == ANONYMOUS, "a connection has one name"
        rights = Rights(
            connection_id,
            Caller(str(principal), address_of(self._clients.host_of(connection_id))),
            self._decisions,
            self._view,
            self._audit,
            self.watched,
            is_all=self.may_all(principal),
        )
        self._rights[connection_id] = (principal, rights)
        return rights

    def guard(self, connection_id: int, api: int) -> Guard | None:
        """`api`: its number. Return None where nothing is authorised."""
        if not self.is_on:
            return None
        known = self._rights.get(connection_id)
        if known is not None and known[0] is self._principals.get(connection_id, ANONYMOUS):
            return known[1].guard(api)
        return self._found(connection_id).guard(api)

    def topics(self, connection_id: int, api: Api) -> Topics:
        return Topics(self._view, self.rights_of(connection_id), api)

    def check_whole(self, connection_id: int, request: Request) -> None:
        """Check a request of WHOLE. Raises NotAuthorized."""
        need = WHOLE[type(request)]
        assert need.kind is _CLUSTER
        rights = self.rights_of(connection_id)
        if rights is not None:
            asks = need.asking is not None and request.only_asks
            operation = need.asking if asks and need.asking is not None else need.operation
            rights.check(request.API, operation, need.kind)


# Needs a right on the cluster. By type: to look a member up in an enum costs more than the check.
WHOLE: Final = {APIS[api].request: need for api, need in NEEDS.items() if need.scope is Scope.WHOLE}
