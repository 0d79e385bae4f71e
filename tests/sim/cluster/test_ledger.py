"""An OPEN may find its id forgotten behind a FORGET, and never otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from quiverlog.types import Durability
from tests.sim.checker import Violation

from .ledger import Ledger
from .promises import ClusterChecker

TID = "spark/query-1"


class Clock(SimpleNamespace):
    now = 0

    def now_us(self) -> int:
        return self.now


def committed(ledger: Ledger, sequence: int) -> None:
    attempt = ledger.begin(TID, sequence, 1, "a program")
    bid = ledger.ask([attempt], attempt, Durability.REPLICATED)
    ledger.committed(bid, Durability.REPLICATED, is_published=True)


def opened(ledger: Ledger, last_sequence: int, before: int, epoch: int, asked_us: int) -> None:
    ledger.opened(TID, last_sequence, before, epoch, -1, asked_us=asked_us)


def test_two_opens_on_their_way_may_both_find_a_forgotten_id() -> None:
    """Seed 446102252: the second was sent before the first was answered, long after FORGET."""
    clock = Clock()
    ledger = Ledger(cast(ClusterChecker, clock))
    committed(ledger, 21)
    ledger.forget(TID)
    ledger.forgot(TID)
    clock.now = 100_000_000
    opened(ledger, -1, ledger.newest(TID), 2, asked_us=90_000_000)
    clock.now += 1
    opened(ledger, -1, 21, 3, asked_us=90_000_000)
    committed(ledger, 22)
    with pytest.raises(Violation, match="the last sequence is -1, 22 had been answered"):
        opened(ledger, -1, ledger.newest(TID), 4, asked_us=clock.now)


def test_a_client_may_remember_a_sequence_that_was_forgotten() -> None:
    """Seed 966688229: a zombie had 11 when 12 committed and its id was forgotten. Its client
    counts on from there; the next OPEN is answered that there is none."""
    clock = Clock()
    ledger = Ledger(cast(ClusterChecker, clock))
    committed(ledger, 11)
    committed(ledger, 12)
    ledger.forget(TID)
    ledger.forgot(TID)
    clock.now = 100_000_000
    opened(ledger, 11, ledger.newest(TID), 2, asked_us=clock.now)
    clock.now += 1
    opened(ledger, -1, ledger.newest(TID), 3, asked_us=clock.now)
    committed(ledger, 0)
    with pytest.raises(Violation, match="the last sequence is -1, 0 had been answered"):
        opened(ledger, -1, ledger.newest(TID), 4, asked_us=clock.now)


def test_an_id_that_was_not_forgotten_keeps_its_last_sequence() -> None:
    ledger = Ledger(cast(ClusterChecker, Clock()))
    committed(ledger, 21)
    with pytest.raises(Violation, match="the last sequence is 20, 21 had been answered"):
        opened(ledger, 20, ledger.newest(TID), 2, asked_us=0)
