"""Bugs of rules and rights, each a changed line of brokers."""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .client_plan import NO_CLIENTS
from .transaction_bugs import QUIET

__all__ = ["RIGHTS_BUGS"]

_SPIED: Final[dict[str, object]] = {
    **QUIET,
    "clients": NO_CLIENTS,
    "rules": True,
    "producers": 2,
    "readers": 0,
}
_RESTARTED: Final = {**_SPIED, "stop_interval_ms": 400, "kill_interval_ms": 800, "down_ms": 100}
"""Snapshots of the metadata are read again."""
_RULES: Final = "core.security.acls:RuleSet"
_RIGHTS: Final = "node.security.authoriser"

RIGHTS_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "a deny is lost in a snapshot",
        "core.controller.image:Image.snapshot_records",
        "for number, rule in self.rules.rules.items())",
        "for number, rule in self.rules.rules.items() if rule.allows)",
        seed=1,
        shape={**_RESTARTED, "buggy_everywhere": False},
    ),
    make_bug(
        "a quota is lost in a snapshot",
        "core.controller.image:Image.snapshot_records",
        "for owner, quota in self.quotas.items())",
        "for owner, quota in self.quotas.items() if quota.bytes_in)",
        shape={**_RESTARTED, "buggy_everywhere": True},
    ),
    make_bug(
        "a change of one limit takes the others away",
        "core.security.quotas:change",
        "old if new == UNCHANGED else new",
        "0 if new == UNCHANGED else new",
        seed=5,
        shape={**_SPIED, "buggy_everywhere": True},
    ),
    make_bug(
        "read rows are charged, and the reader is not muted",
        "node.security.quotas:Quotas._charge",
        "self._beyond[connection_id] = None",
        "pass",
        shape={**_SPIED, "buggy_everywhere": True},
    ),
    make_bug(
        "decisions outlive the rules",
        f"{_RIGHTS}:Decisions.look",
        "or rules.version != self._version",
        "",
        seed=1,
        shape=_SPIED,
    ),
    make_bug(
        "a guard keeps what it allowed once",
        f"{_RIGHTS}:Guard.check",
        "if rules is self._rules and rules.version == self._version and topic_id in self._allowed:",
        "if topic_id in self._allowed:",
        shape=_SPIED,
    ),
    make_bug(
        "a prefix is matched as a whole name",
        f"{_RULES}._of",
        "name[:length])",
        "name)",
        seed=1,
        shape=_SPIED,
    ),
    make_bug(
        "a parked fetch is not looked at when rules change",
        f"{_RIGHTS}:Authoriser.rules_changed",
        "self._wakeups.changed(self.watched)",
        "pass",
        shape=_SPIED,
    ),
    make_bug(
        "METADATA shows a hidden topic to one that names it",
        f"{_RIGHTS}:Topics._seen",
        "or self.rights.sees(topic.name):",
        "or True:",
        shape=_SPIED,
    ),
    make_bug(
        "an allow opens what a deny has closed",
        f"{_RULES}.decide",
        "if denying:",
        "if denying and not allowing:",
        shape=_SPIED,
    ),
    make_bug(
        "with a rule go the others of its resource (CVE-2024-27309)",
        f"{_RULES}.remove",
        "del table[key][number]",
        "table[key].clear()",
        shape=_SPIED,
    ),
)
