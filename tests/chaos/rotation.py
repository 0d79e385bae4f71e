"""Certificates, their authority and a password are replaced again and again, under load.

No program may see an error, no acknowledged row may be lost or doubled. Programs log in by a
password that they read from a file; brokers meet by certificates of an authority that each third
round replaces, which ends the connections of the one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import quiverlog.testing
from quiverlog import Security
from quiverlog.client.admin.rules import AccessRule
from quiverlog.local.secret_file import make_secret, write_private
from tests.support.cluster_load import ClusterLoad
from tests.support.rotation import ended, new_authority, new_password, rotate_one
from tests.support.until import until

__all__ = ["Rotation", "rotation"]

EVERY_S: Final = 60.0
PAUSE_S: Final = 0.5
"""Between two requests of a program: half an hour's rows are compared in memory."""
USER: Final = "programs"


@dataclass(slots=True)
class Rotation:
    """What was done and what was wrong."""

    rounds: int = 0
    authorities: int = 0
    ended: int = 0
    """Connections, with the authority that was taken out."""
    rows: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        waits = ", ".join(f"{name} {s:.2f} s" for name, s in sorted(self.longest_s.items()))
        lines = [
            f"{self.rounds} rounds of a certificate for each broker and a password,"
            f" {self.authorities} of an authority, which ended {self.ended} connections",
            f"{self.rows} rows acknowledged; the longest between two answers: {waits}",
        ]
        lines += [f"PROBLEM {problem}" for problem in self.problems]
        if not self.problems:
            lines.append("0 errors, every row once")
        return "\n".join(lines)


def rotation(
    duration_s: float, on_step: Callable[[str], None], *, every_s: float = EVERY_S
) -> Rotation:
    found = Rotation()
    with quiverlog.testing.cluster(3, tls=True, users=True) as cluster:
        file = cluster.directory / "programs.password"
        write_private(file, f"{make_secret()}\n")
        with cluster.client() as client:
            client.create_user(USER, file.read_text().strip())
            rules = [
                AccessRule(f"user:{USER}", True, operation, "topic", is_prefix=True)
                for operation in ("create", "read", "write")
            ]
            client.add_rules(rules)
        ca_file = str(cluster.tls.brokers_ca)
        security = Security(ca_file=ca_file, user=USER, password_file=str(file))
        load = ClusterLoad(
            cluster.bootstrap, "rotated", security=security, partitions=3, pause_s=PAUSE_S
        )
        end_s = time.monotonic() + duration_s
        with load:
            while time.monotonic() < end_s:
                next_s, rows = time.monotonic() + every_s, load.rows
                found.rounds += 1
                for node_id in cluster.brokers:
                    rotate_one(cluster, node_id, found.rounds)
                if found.rounds % 3 == 0:
                    new_authority(cluster)
                    found.authorities += 1
                new_password(cluster, USER, file)
                on_step(f"round {found.rounds}: {load.rows} rows")
                due_s = min(next_s, end_s)
                until(partial(_has_moved_on, load, rows, due_s), timeout_s=every_s + 60)
        outcome = load.done()
        found.ended = ended(cluster)
        logs = [broker.log.read_text() for broker in cluster.brokers.values()]
    found.rows, found.longest_s = outcome.sent.total(), outcome.longest_s
    found.problems = outcome.wrong()
    found.problems += [
        f"broker {node_id}: {line}"
        for node_id, text in enumerate(logs, 1)
        for line in text.splitlines()
        if "internal error" in line
    ]
    return found


def _has_moved_on(load: ClusterLoad, rows: int, due_s: float) -> bool:
    return load.rows > rows and time.monotonic() >= due_s
