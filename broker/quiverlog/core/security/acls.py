"""Rules: which principal may do what with which resource, from where.

What no rule allows is denied, and a deny counts before every allow, however specific. READ, WRITE,
DELETE, ALTER and ALTER_CONFIGS imply DESCRIBE; a deny of DESCRIBE denies everything: what one may
not describe does not exist.

Invariants: the index is that of the rules, however they came and went; `version` grows with each
change; a rule's number is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from quiverlog.errors import InvalidRequest, PolicyViolation
from quiverlog.limits import (
    GROUP_NAME_CHARS_MAX,
    RULES_MAX,
    TOPIC_NAME_CHARS_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
    USER_NAME_CHARS_MAX,
)
from quiverlog.types import GROUP_NAME, TOPIC_NAME, USER_NAME, Operation, ResourceKind

__all__ = [
    "ANYBODY",
    "MEANINGFUL",
    "NO_RULE",
    "Caller",
    "Change",
    "Decision",
    "IpAddress",
    "Rule",
    "RuleSet",
    "address_of",
    "check_name",
    "check_rule",
]

ANYBODY: Final = "*"
"""In place of a principal: each one, `anonymous` too. `user:*` is each user."""
NO_RULE: Final = 0

IpAddress = IPv4Address | IPv6Address

_IMPLY_DESCRIBE: Final = frozenset(
    (
        *(Operation.READ, Operation.WRITE, Operation.DELETE),
        *(Operation.ALTER, Operation.ALTER_CONFIGS),
    )
)

MEANINGFUL: Final[Mapping[ResourceKind, frozenset[Operation]]] = {
    ResourceKind.TOPIC: frozenset(Operation),
    ResourceKind.GROUP: frozenset(
        (Operation.ALL, Operation.READ, Operation.DELETE, Operation.DESCRIBE)
    ),
    ResourceKind.TRANSACTIONAL_ID: frozenset((Operation.ALL, Operation.WRITE, Operation.DESCRIBE)),
    ResourceKind.CLUSTER: frozenset(
        (
            *(Operation.ALL, Operation.READ, Operation.ALTER, Operation.DESCRIBE),
            Operation.ALTER_CONFIGS,
        )
    ),
    ResourceKind.USER: frozenset(
        (
            *(Operation.ALL, Operation.CREATE, Operation.DELETE, Operation.ALTER),
            Operation.DESCRIBE,
        )
    ),
    ResourceKind.TOKEN: frozenset(
        (Operation.ALL, Operation.CREATE, Operation.DELETE, Operation.DESCRIBE)
    ),
}
"""What some request asks for; a rule about another operation would promise nothing."""
assert MEANINGFUL.keys() == set(ResourceKind), "each kind has its operations"


class Rule(NamedTuple):
    """`name`: of the resource, or with `is_prefix` how it begins ("" is all); a cluster has "".

    `operation` and `kind` are numbers, which a later version may have more of. `network`: a rule
    for callers from there only; "": from anywhere.
    """

    principal: str
    allows: bool
    operation: int
    kind: int
    name: str = ""
    is_prefix: bool = False
    network: str = ""

    def concerns(self, operation: Operation) -> bool:
        if self.operation in (operation, Operation.ALL):
            return True
        if self.allows:
            return operation is Operation.DESCRIBE and self.operation in _IMPLY_DESCRIBE
        return self.operation == Operation.DESCRIBE


class Caller(NamedTuple):
    """`principal`: `user:alice`, `anonymous`. `address`: None where the other end has none."""

    principal: str
    address: IpAddress | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The principals in rules that mean this one."""
        kind, colon, _ = self.principal.partition(":")
        if colon:
            return (self.principal, f"{kind}:{ANYBODY}", ANYBODY)
        return (self.principal, ANYBODY)


class Decision(NamedTuple):
    """`rule`: the number of the rule that decided; NO_RULE: none allows it."""

    is_allowed: bool
    rule: int = NO_RULE


class Change(NamedTuple):
    """`numbers`: of the rules that were asked for, in their order."""

    added: dict[int, Rule]
    removed: list[int]
    numbers: list[int]


class RuleSet:
    """All rules by number, and where to find those of a principal and a resource."""

    __slots__ = (
        "_lengths", "_literals", "_numbers", "_prefixes", "networks", "next_id", "rules", "version"
    )  # fmt: skip

    def __init__(self) -> None:
        self.rules: dict[int, Rule] = {}
        self.next_id = 1
        self.version = 0
        self._numbers: dict[Rule, int] = {}
        self.networks: dict[int, IPv4Network | IPv6Network] = {}
        """Of the rules that depend on the caller's address."""
        # Each by (principal, kind, name).
        self._literals: dict[tuple[str, int, str], dict[int, Rule]] = {}
        self._prefixes: dict[tuple[str, int, str], dict[int, Rule]] = {}
        # How long the prefixes of (principal, kind) are.
        self._lengths: dict[tuple[str, int], dict[int, int]] = {}

    def copy(self) -> RuleSet:
        made = RuleSet()
        made.rules, made.networks = dict(self.rules), dict(self.networks)
        made._numbers = dict(self._numbers)
        made.next_id, made.version = self.next_id, self.version
        made._literals = {key: dict(one) for key, one in self._literals.items()}
        made._prefixes = {key: dict(one) for key, one in self._prefixes.items()}
        made._lengths = {key: dict(one) for key, one in self._lengths.items()}
        return made

    def add(self, number: int, rule: Rule) -> None:
        assert number > NO_RULE
        assert number not in self.rules, "a number is never used again"
        self.rules[number] = rule
        self._numbers[rule] = number
        self.next_id = max(self.next_id, number + 1)
        self.version += 1
        if rule.network:
            self.networks[number] = ip_network(rule.network)
        table = self._prefixes if rule.is_prefix else self._literals
        table.setdefault((rule.principal, rule.kind, rule.name), {})[number] = rule
        if rule.is_prefix:
            lengths = self._lengths.setdefault((rule.principal, rule.kind), {})
            lengths[len(rule.name)] = lengths.get(len(rule.name), 0) + 1

    def remove(self, number: int) -> None:
        rule = self.rules.pop(number)
        if self._numbers.get(rule) == number:
            del self._numbers[rule]
        self.version += 1
        self.networks.pop(number, None)
        table = self._prefixes if rule.is_prefix else self._literals
        key = (rule.principal, rule.kind, rule.name)
        # The others of its resource stay: only this number leaves.
        del table[key][number]
        if not table[key]:
            del table[key]
        if rule.is_prefix:
            lengths = self._lengths[rule.principal, rule.kind]
            lengths[len(rule.name)] -= 1
            if not lengths[len(rule.name)]:
                del lengths[len(rule.name)]
            if not lengths:
                del self._lengths[rule.principal, rule.kind]
        # Their number alone: one request removes many rules of many.
        assert len(self.networks) <= len(self.rules)

    def number_from(self, next_id: int) -> None:
        assert next_id >= self.next_id, "numbers grow"
        self.next_id = next_id

    def number_of(self, rule: Rule) -> int:
        """Return the number of an equal rule; NO_RULE: there is none."""
        return self._numbers.get(rule, NO_RULE)

    # --- changing ------------------------------------------------------------------------------
    def change(self, additions: Iterable[Rule], removals: Iterable[int]) -> Change:
        """Return what would change; an equal rule keeps its number.

        A removal of a rule that is gone changes nothing: the answer to the first may be lost.

        Raises:
            InvalidRequest: a rule that promises nothing, or a number that no rule has had.
            PolicyViolation: there would be too many.
        """
        removed: dict[int, None] = {}
        for number in removals:
            if not NO_RULE < number < self.next_id:
                raise InvalidRequest(f"there is no rule {number}, and there was none.")
            if number in self.rules:
                removed[number] = None
        made: dict[Rule, int] = {}
        numbers: list[int] = []
        for asked in additions:
            rule = check_rule(asked)
            number = self.number_of(rule)
            if number in removed or number == NO_RULE:
                number = made.setdefault(rule, self.next_id + len(made))
            numbers.append(number)
        count = len(self.rules) - len(removed) + len(made)
        if made and count > RULES_MAX:
            raise PolicyViolation(f"there would be {count} rules, allowed are {RULES_MAX}.")
        assert not made.values() & self.rules.keys(), "new rules have new numbers"
        return Change({number: rule for rule, number in made.items()}, list(removed), numbers)

    # --- deciding ------------------------------------------------------------------------------
    def decide(
        self, caller: Caller, operation: Operation, kind: ResourceKind, name: str = ""
    ) -> Decision:
        """Return whether the caller may, with the lowest number of the rules that decide it."""
        assert operation is not Operation.ALL, "one operation is asked for"
        assert operation in MEANINGFUL[kind], f"no rule can be about {operation} of {kind}"
        allowing = denying = NO_RULE
        for number, rule in self._of(caller, kind, name):
            if not rule.concerns(operation) or not self._holds(number, rule, caller):
                continue
            if not rule.allows:
                denying = min(denying or number, number)
            else:
                allowing = min(allowing or number, number)
        # A more specific allow would reopen what an operator has closed.
        if denying:
            return Decision(False, denying)
        return Decision(allowing != NO_RULE, allowing)

    def decide_some(self, caller: Caller, operation: Operation, kind: ResourceKind) -> Decision:
        """Return whether there may be a resource of this kind with which the caller may do it;
        else one rule that denies what another allows."""
        names = caller.names
        denies: dict[tuple[bool, str], int] = {}
        allows: dict[int, Rule] = {}
        for number, rule in self.rules.items():
            if rule.kind != kind or rule.principal not in names:
                continue
            if rule.concerns(operation) and self._holds(number, rule, caller):
                if rule.allows:
                    allows[number] = rule
                else:
                    denies.setdefault((rule.is_prefix, rule.name), number)
        # A few look-ups for each: of as many denies as allows every pair would take seconds.
        lengths = {len(name) for is_prefix, name in denies if is_prefix}
        denying = NO_RULE
        for number, rule in allows.items():
            asked = [(True, rule.name[:n]) for n in lengths if n <= len(rule.name)]
            if not rule.is_prefix:
                asked.append((False, rule.name))
            found = next((denies[one] for one in asked if one in denies), NO_RULE)
            if not found:
                return Decision(True, number)
            denying = denying or found
        return Decision(False, denying)

    def _holds(self, number: int, rule: Rule, caller: Caller) -> bool:
        network = self.networks.get(number)
        if network is None:
            return True
        if caller.address is None:  # It may lie in the network: a deny counts, an allow does not.
            return not rule.allows
        return caller.address in network

    def _of(self, caller: Caller, kind: ResourceKind, name: str) -> Iterator[tuple[int, Rule]]:
        # A few look-ups: one for each length of a prefix, however many rules there are.
        for principal in caller.names:
            yield from self._literals.get((principal, kind, name), {}).items()
            for length in self._lengths.get((principal, kind), ()):
                if length <= len(name):
                    yield from self._prefixes.get((principal, kind, name[:length]), {}).items()


def address_of(host: str) -> IpAddress | None:
    """Return the address of a connection's other end, IPv4 also where a socket is for both."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


# --- what a rule may be -------------------------------------------------------------------------
_SHOWN_CHARS_MAX: Final = 64


def check_rule(rule: Rule) -> Rule:
    """Return the rule as it is stored. Raises InvalidRequest."""
    if rule.kind not in set(ResourceKind):
        raise InvalidRequest(f"there is no kind of resource with the number {rule.kind}.")
    kind = ResourceKind(rule.kind)
    if rule.operation not in set(Operation):
        raise InvalidRequest(f"there is no operation with the number {rule.operation}.")
    operation = Operation(rule.operation)
    if operation not in MEANINGFUL[kind]:
        known = ", ".join(one.label for one in sorted(MEANINGFUL[kind]))
        raise InvalidRequest(
            f"nothing asks for {operation.label} of a {kind.label}: its operations are {known}."
        )
    _check_principal(rule.principal)
    if ANYBODY in rule.name:
        raise InvalidRequest(
            f"{rule.name[:_SHOWN_CHARS_MAX]!r}: `*` stands for a prefix at the end of a command's"
            " argument only."
        )
    check_name(kind, rule.name, is_prefix=rule.is_prefix)
    if not rule.network:
        return rule
    try:
        network = ip_network(rule.network)
    except ValueError as error:
        raise InvalidRequest(
            f"{rule.network!r} is no network (for example 10.1.0.0/16): {error}."
        ) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise InvalidRequest(f"write {rule.network!r} as an IPv4 network: callers have such.")
    return rule._replace(network=str(network))


def _check_principal(principal: str) -> None:
    # Another one would never be a caller's, and its deny would protect nothing.
    kind, _, name = principal.partition(":")
    is_user = kind == "user" and bool(name == ANYBODY or USER_NAME.fullmatch(name))
    if principal not in (ANYBODY, "anonymous") and not is_user:
        raise InvalidRequest(
            f"{principal[: 2 * USER_NAME_CHARS_MAX]!r} is no principal of a rule: write user:NAME"
            f" (a name of 1 to {USER_NAME_CHARS_MAX} letters, digits and `._@-`), user:*,"
            " anonymous, or * for each."
        )


def check_name(kind: ResourceKind, name: str, *, is_prefix: bool = False) -> None:
    """Raises InvalidRequest: nothing of this kind can have this name, or one that begins so."""
    if kind is ResourceKind.CLUSTER:
        if name or is_prefix:
            raise InvalidRequest("there is one cluster: leave its name empty.")
        return
    if is_prefix and not name:
        return
    if not name:
        raise InvalidRequest(f"a {kind.label} has a name; all of them are the prefix ''.")
    shown = repr(name[:_SHOWN_CHARS_MAX])
    if kind is ResourceKind.TOPIC:
        is_good = TOPIC_NAME.fullmatch(name) and not name.startswith("__")
        if not is_good or (name in (".", "..") and not is_prefix):
            raise InvalidRequest(
                f"{shown} is no name of a topic: it has 1 to {TOPIC_NAME_CHARS_MAX} letters,"
                " digits and `._-`, and begins with no `__`. A rule is about one name, or prefix."
            )
    elif kind is ResourceKind.GROUP:
        if not GROUP_NAME.fullmatch(name) or name.startswith("__"):
            raise InvalidRequest(
                f"{shown} is no name of a group: it has 1 to {GROUP_NAME_CHARS_MAX} letters,"
                " digits and `._-`, and begins with no `__`. A rule is about one name, or prefix."
            )
    elif kind in (ResourceKind.USER, ResourceKind.TOKEN):
        if not USER_NAME.fullmatch(name):
            raise InvalidRequest(
                f"{shown} is no name of a user: it has 1 to {USER_NAME_CHARS_MAX} letters, digits"
                " and `._@-`. A rule is about one name, or prefix."
            )
    elif len(name) > TRANSACTIONAL_ID_CHARS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"a name is at most {TRANSACTIONAL_ID_CHARS_MAX} printable characters, not {shown}."
        )
