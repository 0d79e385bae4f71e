"""In which order a client asks brokers for what any of them can answer, and which answer it takes.

Owns the memory of who answered and who failed, and the rule by which a picture of the cluster is
believed: a broker that is cut off from the others still answers, with what it knew before. It says
so itself (`is_behind`), or its metadata version is below one that this client has seen. Such an
answer is taken only when nobody has a better one.

One instance serves all threads of a client: what it remembers are frozen values that are replaced.

Must not know: requests, clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from quiverlog.errors import (
    BrokerShuttingDown,
    ThrottledBroker,
    TooManyConnections,
    TooManyConnectionsFromAddress,
    error_from_code,
)
from quiverlog.wire.cluster_messages import DescribeClusterResponse
from quiverlog.wire.messages import MetadataResponse, Response

from .results import Address, ClusterMetadata

__all__ = ["NOT_READY", "Doubt", "KnownBrokers", "check_ready", "doubt_of"]

NOT_READY: Final = (
    BrokerShuttingDown,
    TooManyConnections,
    TooManyConnectionsFromAddress,
    ThrottledBroker,
)
"""The broker that was asked does not answer now: what any broker knows is asked of another."""
_NOT_READY_CODES: Final = frozenset(kind.code for kind in NOT_READY)


def check_ready(response: Response) -> None:
    """Raises one of `NOT_READY` where the broker answers so."""
    if response.error_code in _NOT_READY_CODES:
        raise error_from_code(response.error_code, response.error_message)


class Doubt(NamedTuple):
    """About an answer; the smallest one is about the best of several."""

    is_behind: bool
    minus_version: int


class KnownBrokers:
    """See the module docstring."""

    __slots__ = ("_failed", "_good", "_silent")

    def __init__(self) -> None:
        self._good: Address | None = None
        self._failed: tuple[Address, ...] = ()  # Who failed last is last.
        self._silent: frozenset[Address] = frozenset()

    def order(self, addresses: Iterable[Address]) -> list[Address]:
        """Each once: who answered last first; those that failed at the back, silent ones last.

        What fails without a silence costs no time, and may have answered with too little only.
        """
        good = self._good
        known = dict.fromkeys([*([] if good is None else [good]), *addresses])
        failed = [address for address in self._failed if address in known]
        failed.sort(key=self.is_silent)
        return [*(address for address in known if address not in failed), *failed]

    def is_silent(self, address: Address) -> bool:
        """The broker there left a question without an answer, and answered none since."""
        return address in self._silent

    def answered(self, address: Address) -> None:
        """The first choice from now on is this one."""
        self._good = address
        self._silent -= {address}
        if address in self._failed:
            self._failed = tuple(one for one in self._failed if one != address)

    def failed(
        self, address: Address, among: Iterable[Address], *, is_silent: bool = False
    ) -> None:
        """This one gave no answer, or knew too little. `among`: who may be asked."""
        kept = {address, *among}
        self._silent = (self._silent | ({address} if is_silent else set())) & kept
        self._failed = (*(one for one in self._failed if one != address and one in kept), address)
        if self._good == address:
            self._good = None


def doubt_of(found: Response, known: ClusterMetadata) -> Doubt | None:
    """Why another broker may well know more; None: nothing speaks against this answer."""
    if not isinstance(found, MetadataResponse | DescribeClusterResponse) or found.error_code:
        return None
    is_older = found.metadata_version < known.metadata_version
    if found.is_behind or (is_older and found.cluster_id == known.cluster_id):
        return Doubt(found.is_behind, -found.metadata_version)
    return None
