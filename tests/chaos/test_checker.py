"""The checker on a history that is known to be good, and on the same with one thing broken."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from tests.sim.cluster.linear import Operation

from .checker import check
from .history import History, Outcome, Read, Send, Stored, TopicRow, longest_gap_s, value

KEPT, WEAK = ("kept", 0), ("weak", 0)


def send(key: tuple[str, int], number: int, rows: int, base_offset: int) -> Send:
    stored = (Stored(base_offset, number, rows),)
    return Send(key, 1, number, rows, 0.0, Outcome.OK, 1.0, stored)


def read(reader: str, key: tuple[str, int], base_offset: int, *numbers: int) -> Read:
    return Read(reader, key, base_offset, 0, array("q", [value(1, n) for n in numbers]), 2.0)


def good() -> History:
    """Rows 0 to 5 of one producer, of which 3 had no answer, and 4 were refused for good."""
    history = History(
        topics=(TopicRow("kept", "replicated", 3, 1), TopicRow("weak", "memory", 3, 1))
    )
    history.sends = [
        send(KEPT, 0, 3, 0),
        Send(KEPT, 1, 3, 1, 0.0),
        Send(KEPT, 1, 4, 1, 0.0, Outcome.FAILED, error="refused"),
        send(KEPT, 5, 1, 4),
        send(WEAK, 100, 2, 0),
    ]
    history.reads = [read("a", KEPT, 0, 0, 1), read("a", KEPT, 2, 2, 3, 5)]
    history.final = [read("last", KEPT, 0, 0, 1, 2, 3), read("last", KEPT, 4, 5)]
    history.final += [read("last", WEAK, 0, 100, 101)]
    return history


def lost_row(history: History) -> None:
    del history.final[1]
    history.reads = []


def row_in_another_place(history: History) -> None:
    history.final[0] = read("last", KEPT, 0, 0, 2, 1, 3)
    history.reads = []


def torn_transaction(history: History) -> None:
    """The first rows are there; no answer came."""
    for number in (0, 6):
        history.sends.append(Send(KEPT, 2, number, 1, 0.0, transaction=1))
    row = value(2, 0)
    history.final.append(Read("last", KEPT, 5, 0, array("q", [row]), 2.0))
    history.reads.append(Read("a", KEPT, 5, 0, array("q", [row]), 2.0))


def committed_transaction_that_is_not_there(history: History) -> None:
    history.sends.append(Send(KEPT, 2, 0, 1, 0.0, Outcome.OK, 1.0, transaction=1))


def row_twice(history: History) -> None:
    history.final[1] = read("last", KEPT, 4, 5, 0)


def row_that_changed(history: History) -> None:
    history.reads[1] = read("a", KEPT, 2, 2, 4, 5)


def row_that_no_producer_sent(history: History) -> None:
    history.final[1] = read("last", KEPT, 4, 5, 77)


def row_of_another_partition(history: History) -> None:
    history.final[1] = read("last", KEPT, 4, 5, 100)


def gap(history: History) -> None:
    history.sends.pop(3)
    history.final[1] = read("last", KEPT, 5, 5)
    history.reads = []


def order(history: History) -> None:
    """Where their outcome was unknown, too."""
    history.sends[0].outcome = Outcome.UNKNOWN
    history.final[0] = read("last", KEPT, 0, 2, 0, 1, 3)
    history.reads = []


def skipped(history: History) -> None:
    history.reads[1] = read("a", KEPT, 3, 3, 5)


def repeated(history: History) -> None:
    history.reads[1] = read("a", KEPT, 1, 1, 2, 3, 5)


def unseen(history: History) -> None:
    history.reads[1] = read("a", KEPT, 2, 2, 3)


def beyond_the_end(history: History) -> None:
    """A reader got a row that did not stay."""
    history.sends.pop(3)
    del history.final[1]


def refused_and_stored(history: History) -> None:
    history.final[1] = read("last", KEPT, 4, 5, 4)
    history.reads = []


def error(history: History) -> None:
    history.errors.append("error: of a client")


def weak_row_lost(history: History) -> None:
    """No other leader was elected, so no fault had the right to take it."""
    history.final[2] = read("last", WEAK, 0, 100)


def deleted_topic_is_there(history: History) -> None:
    history.changes["t"] = [
        Operation("change", (False, True), True, 0, 1),
        Operation("write", False, None, 2, 3),
        Operation("read", None, True, 4, 5),
    ]


BROKEN: dict[str, Callable[[History], None]] = {
    "acknowledged rows are missing": lost_row,
    "holds": row_in_another_place,
    "lies at offsets": row_twice,
    "changed from": row_that_changed,
    "never sent": row_that_no_producer_sent,
    "offset 5 holds": row_of_another_partition,
    "dense:": gap,
    "order:": order,
    "skipped:": skipped,
    "repeated:": repeated,
    "unseen:": unseen,
    "which ends at 4": beyond_the_end,
    "failed:": refused_and_stored,
    "error:": error,
    "no other leader was elected": weak_row_lost,
    "topics:": deleted_topic_is_there,
    "torn: 1 of 2": torn_transaction,
    "torn: 0 of 1": committed_transaction_that_is_not_there,
}


def test_a_good_history_is_good() -> None:
    verdict = check(good())
    assert verdict.problems == []
    assert verdict.given_up == {}
    assert verdict.rows_read == 12


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_history_is_noticed(what: str) -> None:
    history = good()
    BROKEN[what](history)
    problems = check(history).problems
    assert any(what in problem for problem in problems), problems


def test_rows_below_replicated_may_go_with_a_leader() -> None:
    history = good()
    weak_row_lost(history)
    history.elected[WEAK] = 1
    verdict = check(history)
    assert verdict.problems == []
    assert verdict.given_up == {"weak": 1}


def test_rows_of_one_replica_stay_with_it() -> None:
    assert TopicRow("t", "memory", 1, 1).is_kept
    assert TopicRow("t", "replicated_flushed", 3, 1).is_kept
    assert not TopicRow("t", "flushed", 3, 1).is_kept


def test_the_longest_silence() -> None:
    history = good()
    assert history.longest_silence_s("kept", 0.0, 4.0) == 3.0
    assert longest_gap_s([]) == 0.0
