"""DESCRIBE_CLUSTER of every broker, asked from this machine in parallel.

The controller's answer is used, else one of a broker that reaches a controller, else the newest
metadata. A broker's metadata may be old, so every given and registered address is asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quiverlog.addresses import PORT_DEFAULT, Address, parse_addresses
from quiverlog.cli.console.security import chosen_security
from quiverlog.errors import QuiverlogError

if TYPE_CHECKING:
    from quiverlog.client.base.results import ClusterDetail, TopicInfo
    from quiverlog.client.base.security import Security

__all__ = ["Probe", "Seen", "look", "look_once", "probe", "probe_brokers", "seen_or_failure"]

_PROBE_S_MAX: Final = 2.0
"""A running broker answers in milliseconds."""
_PROBE_S_MIN: Final = 0.1
_GIVEN_PART: Final = 2 / 3
_AT_ONCE_MAX: Final = 64
_ELECTION_S: Final = 3.0
_PAUSE_S: Final = 0.25
_NAMED_MAX: Final = 8


Dial = Callable[[Address], Any] | None


class Probe(NamedTuple):
    """`found`: the answer of the broker at `address`; None: `failure` is the reason."""

    address: str
    found: ClusterDetail | None
    failure: str = ""
    seconds: float = 0.0

    @property
    def answers(self) -> bool:
        return self.found is not None

    @property
    def node_id(self) -> int | None:
        return None if self.found is None else self.found.reported_by


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster from one broker's metadata, and which brokers answer this machine.

    Attributes:
        few: topics with fewer replicas than they could have.
        not_raised: internal topics to which the controller has to add replicas.
        staging: findings about staged rows, with advice.
    """

    found: ClusterDetail
    probes: list[Probe] = field(default_factory=list)
    few: list[TopicInfo] = field(default_factory=list)
    not_raised: list[TopicInfo] = field(default_factory=list)
    staging: list[tuple[str, str]] = field(default_factory=list)

    @property
    def answering(self) -> set[int]:
        answered = {one.node_id for one in self.probes if one.node_id is not None}
        return {one.node_id for one in self.found.brokers} & answered

    @property
    def as_probed(self) -> ClusterDetail:
        """Return the cluster with silent brokers as fenced."""
        # The controller counts a dead broker as live until its session ends.
        silent = self.silent_brokers
        brokers = [
            replace(one, fenced=True) if one.node_id in silent else one
            for one in self.found.brokers
        ]
        return replace(self.found, brokers=tuple(brokers))

    @property
    def silent_brokers(self) -> dict[int, str]:
        failures = {one.address: one.failure for one in self.probes if not one.answers}
        answering = self.answering
        addresses = {one.node_id: str(Address(one.host, one.port)) for one in self.found.brokers}
        return {
            node_id: failures[address]
            for node_id, address in addresses.items()
            if address in failures and node_id not in answering
        }

    @property
    def silent(self) -> list[str]:
        return [one.address for one in self.probes if not one.answers]


def look(bootstrap: str, timeout_s: float, *, wait_s: float = _ELECTION_S) -> Seen | None:
    """Return the best answer, within `wait_s` a controller's; None: no given address answers."""
    from quiverlog.cli.console.waiting import shown_waits
    from quiverlog.client.base.waits import Waits

    began_s = time.monotonic()
    end_s, until_s = began_s + timeout_s, began_s + min(wait_s, timeout_s)
    given = [str(one) for one in parse_addresses(bootstrap, port_default=PORT_DEFAULT)]
    waits = Waits(time.monotonic)
    longest_s = until_s - began_s + min(timeout_s, _PROBE_S_MAX)
    with shown_waits(waits, lambda: math.inf), waits.of(longest_s) as wait:
        wait.reason = "cluster"
        wait.what = f"answers of {', '.join(given[:_NAMED_MAX])}"
        while True:
            round_began_s = time.monotonic()
            seen = look_once(given, end_s)
            if seen is None:
                return None
            now_s = time.monotonic()
            next_end_s = now_s + _PAUSE_S + (now_s - round_began_s)
            if seen.found.is_current or now_s >= until_s or next_end_s > end_s:
                return seen
            wait.what = "a controller"
            time.sleep(_PAUSE_S)


def look_once(
    given: Sequence[str], end_s: float, security: Security | None = None, dial: Dial = None
) -> Seen | None:
    """Return the best of the answers until `end_s`; None: no given address answers.

    Args:
        security: None takes the command's.
        dial: `BlockingDriver.dial`.
    """
    # The rest of the time is for the brokers that these answers name.
    probes = probe(given, (end_s - time.monotonic()) * _GIVEN_PART, security, dial)
    best = _best(probes)
    if best is None:
        return None
    advertised = [str(Address(one.host, one.port)) for one in best.brokers]
    others = [one for one in advertised if one not in given]
    probes += probe(others, max(_PROBE_S_MIN, end_s - time.monotonic()), security)
    best = _best(probes)
    assert best is not None
    return Seen(best, probes)


def seen_or_failure(bootstrap: str, timeout_s: float) -> Seen:
    """As `look`; where no broker answers that soon, ask with the whole timeout.

    Raises:
        QuiverlogError: none of the addresses answers.
    """
    began_s = time.monotonic()
    seen = look(bootstrap, timeout_s)
    if seen is not None:
        return seen
    from quiverlog.cli.console.options import open_client

    with open_client(
        bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s, began_s=began_s
    ) as client:
        found = client.describe_cluster()
    left_s = began_s + timeout_s - time.monotonic()
    return Seen(found, probe_brokers(found, max(_PROBE_S_MIN, left_s)))


def _best(probes: Sequence[Probe]) -> ClusterDetail | None:
    answers = [one.found for one in probes if one.found is not None]
    return max(
        answers,
        key=lambda one: (one.is_current, not one.is_behind, one.metadata_version),
        default=None,
    )


def probe_brokers(found: ClusterDetail, timeout_s: float = _PROBE_S_MAX) -> list[Probe]:
    return probe([str(Address(one.host, one.port)) for one in found.brokers], timeout_s)


def probe(
    addresses: Iterable[str],
    timeout_s: float,
    security: Security | None = None,
    dial: Dial = None,
) -> list[Probe]:
    """Ask all addresses in parallel; return the probes in order. A late answer is a failure."""
    # Here: other threads have no context of the command.
    security = security or chosen_security()
    asked = list(dict.fromkeys(addresses))
    limit_s = min(timeout_s, _PROBE_S_MAX)
    answers: dict[str, Probe] = {}
    places = threading.Semaphore(_AT_ONCE_MAX)

    def ask(address: str) -> None:
        with places:
            answers[address] = _ask(address, limit_s, security, dial)

    # Daemons: a name lookup may block for longer than the command waits.
    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in asked]
    for thread in threads:
        thread.start()
    rounds = -(-len(asked) // _AT_ONCE_MAX)
    until_s = time.monotonic() + rounds * limit_s + limit_s / 2
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    late = f"no answer within {limit_s:.2g} s"
    return [answers.get(one) or Probe(one, None, late) for one in asked]


def _ask(address: str, timeout_s: float, security: Security | None, dial: Dial) -> Probe:
    from quiverlog.client.admin.cluster import describe_cluster_at
    from quiverlog.client.client import Client

    began_s = time.monotonic()
    try:
        client = Client(
            address,
            client_id="quiverlog-probe",
            connect_timeout=timeout_s,
            request_timeout=timeout_s,
            security=security,
        )
        client.driver.dial = dial
        try:
            found = client.run(describe_cluster_at(client.cluster, client.cluster.bootstrap[0]))
        finally:
            client.close()
    except QuiverlogError as error:
        return Probe(address, None, error.message.rstrip("."))
    return Probe(address, found, seconds=time.monotonic() - began_s)
