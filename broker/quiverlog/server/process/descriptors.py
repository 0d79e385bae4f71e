"""The plan that shares out the process's open files, made at the start.

    files_max = log files + HTTP connections + clients + connections to other brokers
              + connections of other brokers + of operators on this machine
              + connections that are being refused, or wait at the door + reserve

The reserve belongs to flushes, the metadata log, directories and the runtime: clients cannot keep a
flush from opening its file. Invariant: the parts never add up to more than `files_max`.
"""

from __future__ import annotations

import dataclasses
import resource
from dataclasses import dataclass
from typing import Final

from quiverlog.errors import InvalidConfig
from quiverlog.limits import PEER_CONNECTIONS_MAX
from quiverlog.storage.disk.posix import FILES_OPEN_MAX, RESERVED_DESCRIPTORS

__all__ = ["DescriptorPlan", "plan_descriptors", "raise_file_limit"]

RUNTIME_FILES: Final = 24
"""Standard streams, event loop, listeners, locks, metadata log, root directory: about 20."""
FILES_PER_JOB: Final = 2
"""A running job has a file and its directory open."""
RESERVE_FILES_MAX: Final = 256
LOG_FILES_MIN: Final = 8
CLIENTS_MIN: Final = 10
HTTP_MIN: Final = 4
REFUSALS_MIN: Final = 4
REFUSALS_MAX: Final = 64
PEERS_MIN: Final = 4
"""Two to each of two other brokers, and as many from them."""
OPERATORS_MAX: Final = 8
OPERATORS_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorPlan:
    files_max: int
    reserve: int
    log_files: int
    http: int
    refusals: int
    peers: int
    brokers: int
    operators: int
    clients: int

    @property
    def door(self) -> int:
        """Refused connections that may wait for their HELLO to name a broker."""
        return self.refusals // 4

    def __post_init__(self) -> None:
        shares = dataclasses.astuple(self)[1:]
        assert sum(shares) <= self.files_max, f"{sum(shares)} of {self.files_max} are given away"
        assert min(shares) > 0


def plan_descriptors(
    files_max: int, *, clients_wanted: int, http_wanted: int, job_threads: int, listeners: int = 1
) -> DescriptorPlan:
    """Raises InvalidConfig: too few; the message has the number that is needed."""
    assert job_threads >= 1
    assert listeners >= 1
    at_work = RUNTIME_FILES + RESERVED_DESCRIPTORS + FILES_PER_JOB * job_threads + listeners - 1
    shares = _shares(files_max, http_wanted, at_work)
    reserve, log_files, http, refusals, peers, brokers, operators = shares
    room = files_max - sum(shares)
    if room < CLIENTS_MIN:
        enough = files_max
        while enough - sum(_shares(enough, http_wanted, at_work)) < CLIENTS_MIN:
            enough += 1
        raise InvalidConfig(
            f"the process may open {files_max} files (`ulimit -n`), a broker of this configuration"
            f" needs at least {enough}, and some 20,000 for the default of `connections.max`."
        )
    return DescriptorPlan(
        files_max=files_max,
        reserve=reserve,
        log_files=log_files,
        http=http,
        refusals=refusals,
        peers=peers,
        brokers=brokers,
        operators=operators,
        clients=min(clients_wanted, room),
    )


def _shares(files_max: int, http_wanted: int, at_work: int) -> tuple[int, ...]:
    """Return (reserve, log files, HTTP, refusals, to brokers, from brokers, operators)."""
    reserve = max(at_work, min(RESERVE_FILES_MAX, files_max // 8))
    log_files = max(LOG_FILES_MIN, min(FILES_OPEN_MAX, files_max // 4))
    http = max(HTTP_MIN, min(http_wanted, files_max // 16))
    refusals = max(REFUSALS_MIN, min(REFUSALS_MAX, files_max // 16))
    peers = max(PEERS_MIN, min(PEER_CONNECTIONS_MAX, files_max // 16))
    brokers = max(PEERS_MIN, min(PEER_CONNECTIONS_MAX, files_max // 32))
    operators = max(OPERATORS_MIN, min(OPERATORS_MAX, files_max // 128))
    return reserve, log_files, http, refusals, peers, brokers, operators


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted
