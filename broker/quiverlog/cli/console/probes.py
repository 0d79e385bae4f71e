"""What each broker says of the cluster, asked from here, all at once.

Owns the questions and whom of those that answer is believed: the broker that decides, else one that
reaches a controller, else the one that knows most. A picture that one broker has may be old, and a
broker that it calls live be dead, so every address is asked: those that were given, and those of
all registered brokers. A silent one is given up soon. Must not know what follows from it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from quiverlog.addresses import PORT_DEFAULT, Address, parse_addresses
from quiverlog.errors import QuiverlogError

if TYPE_CHECKING:
    from quiverlog.client.base.results import ClusterDetail, TopicInfo

__all__ = ["Probe", "Seen", "look", "probe", "probe_brokers", "seen_or_failure"]

_PROBE_S_MAX: Final = 2.0
"""A broker that runs answers in milliseconds."""
_PROBE_S_MIN: Final = 0.1
_GIVEN_PART: Final = 2 / 3
_AT_ONCE_MAX: Final = 64
_ELECTION_S: Final = 3.0
"""So long is waited for a controller: an election takes a second."""
_PAUSE_S: Final = 0.25
_NAMED_MAX: Final = 8


class Probe(NamedTuple):
    """One address, asked once. `found`: what the broker there says; None: nothing, for this
    `failure`.
    """

    address: str
    found: ClusterDetail | None
    failure: str = ""
    seconds: float = 0.0

    @property
    def answers(self) -> bool:
        """A broker answered."""
        return self.found is not None

    @property
    def node_id(self) -> int | None:
        """Who answered."""
        return None if self.found is None else self.found.told_by


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster as one broker knows it, and which brokers answer from here.

    Attributes:
        few: topics with fewer replicas than they could have.
    """

    found: ClusterDetail
    probes: list[Probe] = field(default_factory=list)
    few: list[TopicInfo] = field(default_factory=list)

    @property
    def answering(self) -> set[int]:
        """The registered brokers that answered, at whichever address."""
        answered = {one.node_id for one in self.probes if one.node_id is not None}
        return {one.node_id for one in self.found.brokers} & answered

    @property
    def as_probed(self) -> ClusterDetail:
        """The cluster, with the brokers fenced that were asked and did not answer: for a session
        after its end the controller takes a broker for live."""
        silent = self.silent_brokers
        brokers = [
            replace(one, fenced=True) if one.node_id in silent else one
            for one in self.found.brokers
        ]
        return replace(self.found, brokers=tuple(brokers))

    @property
    def silent_brokers(self) -> dict[int, str]:
        """Node id -> why there was no answer, of the brokers that were asked and gave none."""
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
        """Addresses at which nobody answered."""
        return [one.address for one in self.probes if not one.answers]


def look(bootstrap: str, timeout_s: float, *, wait_s: float = _ELECTION_S) -> Seen | None:
    """What the broker says that is believed most; None: no address that was given answers.

    Args:
        wait_s: so long for a controller.
    """
    from quiverlog.cli.console.waiting import told_waits
    from quiverlog.client.base.waits import Waits

    began_s = time.monotonic()
    end_s, until_s = began_s + timeout_s, began_s + min(wait_s, timeout_s)
    given = [str(one) for one in parse_addresses(bootstrap, port_default=PORT_DEFAULT)]
    waits = Waits(time.monotonic)
    longest_s = until_s - began_s + min(timeout_s, _PROBE_S_MAX)
    with told_waits(waits, lambda: math.inf), waits.of(longest_s) as wait:
        wait.reason = "cluster"
        wait.what = f"answers of {', '.join(given[:_NAMED_MAX])}"
        while True:
            round_began_s = time.monotonic()
            # Those that turn up by it are asked as well, in what is left.
            probes = probe(given, (end_s - round_began_s) * _GIVEN_PART)
            best = _best(probes)
            if best is None:
                return None
            advertised = [str(Address(one.host, one.port)) for one in best.brokers]
            others = [one for one in advertised if one not in given]
            probes += probe(others, max(_PROBE_S_MIN, end_s - time.monotonic()))
            best = _best(probes)
            assert best is not None
            now_s = time.monotonic()
            next_end_s = now_s + _PAUSE_S + (now_s - round_began_s)
            if best.is_current or now_s >= until_s or next_end_s > end_s:
                return Seen(best, probes)
            wait.what = "a broker that decides"
            time.sleep(_PAUSE_S)


def seen_or_failure(bootstrap: str, timeout_s: float) -> Seen:
    """As `look`. Where nobody answers that soon, one broker is asked with more patience.

    Raises:
        QuiverlogError: why none of the addresses answers.
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
    told = [one.found for one in probes if one.found is not None]
    return max(
        told,
        key=lambda one: (one.is_current, not one.is_behind, one.metadata_version),
        default=None,
    )


def probe_brokers(found: ClusterDetail, timeout_s: float = _PROBE_S_MAX) -> list[Probe]:
    """Ask every registered broker where it says that it is."""
    return probe([str(Address(one.host, one.port)) for one in found.brokers], timeout_s)


def probe(addresses: Iterable[str], timeout_s: float) -> list[Probe]:
    """Ask all at once; what has not answered in time does not answer. In the given order."""
    asked = list(dict.fromkeys(addresses))
    limit_s = min(timeout_s, _PROBE_S_MAX)
    answers: dict[str, Probe] = {}
    places = threading.Semaphore(_AT_ONCE_MAX)

    def ask(address: str) -> None:
        with places:
            answers[address] = _ask(address, limit_s)

    # Daemons: a name that does not resolve may hold one up for longer than anybody waits here.
    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in asked]
    for thread in threads:
        thread.start()
    rounds = -(-len(asked) // _AT_ONCE_MAX)
    until_s = time.monotonic() + rounds * limit_s + limit_s / 2
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    late = f"no answer within {limit_s:.2g} s"
    return [answers.get(one) or Probe(one, None, late) for one in asked]


def _ask(address: str, timeout_s: float) -> Probe:
    from quiverlog.client.admin.cluster import told_at
    from quiverlog.client.client import Client

    began_s = time.monotonic()
    limits = {"connect_timeout": timeout_s, "request_timeout": timeout_s}
    try:
        client = Client(address, client_id="quiverlog-probe", **limits)
        try:
            found = client.run(told_at(client.cluster, client.cluster.bootstrap[0]))
        finally:
            client.close()
    except QuiverlogError as error:
        return Probe(address, None, error.message.rstrip("."))
    return Probe(address, found, seconds=time.monotonic() - began_s)
