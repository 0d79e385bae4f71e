"""Is a history one that the cluster may show? The Jepsen list, with the simulator's checker.

Owns the rules that need a whole history:

1. lost: an acknowledged row of a topic that keeps its rows is at its offset (`tests.sim.checker`).
2. once, stable, sent: no value twice, none changes, none that no producer sent (the same).
3. dense: offsets of a partition have no gap.
4. order: rows of one producer ascend.
5. skipped, repeated: each reader is handed each offset once, in order, and comes to the end.
6. failed: rows of a send that was refused for good are nowhere.
7. errors: no client got an error that no fault may cause.
8. topics: creations and deletions are linearizable (`tests.sim.cluster.linear`).
9. rows below `replicated` are gone only where another leader was elected.
10. torn: all rows of a transaction are there, or none; all where its commit was answered.

Not here: brokers, files, clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.sim.checker import Checker, TopicModel, Violation
from tests.sim.cluster.linear import is_linearizable, register_model

from .history import History, Key, Outcome, Read, Send, TopicRow, value

__all__ = ["Verdict", "check"]

PROBLEMS_MAX = 20


@dataclass(slots=True, eq=False)
class Verdict:
    """What was wrong, and what was lost where that is allowed."""

    problems: list[str] = field(default_factory=list)
    given_up: dict[str, int] = field(default_factory=dict)
    """Acknowledged rows that are gone, as their level allows, by topic."""
    rows_read: int = 0


def check(history: History) -> Verdict:
    """Every rule over the whole history."""
    verdict = Verdict(problems=list(dict.fromkeys(history.errors))[:PROBLEMS_MAX])
    topics = {topic.name: topic for topic in history.topics}
    _shared_rules(history, topics, verdict)
    final = {key: _joined(reads, verdict) for key, reads in _by_key(history.final).items()}
    for key in _keys(history.topics):
        _order(key, final.get(key, {}), verdict)
    _failed(history.sends, final, verdict)
    _readers(history, final, verdict)
    _given_up(history, topics, final, verdict)
    _torn(history.sends, final, verdict)
    for name, operations in history.changes.items():
        if not is_linearizable(operations, register_model, False):
            verdict.problems.append(f"topics: {name} has no order of {operations}")
    del verdict.problems[PROBLEMS_MAX:]
    return verdict


def _keys(topics: tuple[TopicRow, ...]) -> Iterator[Key]:
    for topic in topics:
        for partition in range(topic.partitions):
            yield topic.name, partition


def _shared_rules(history: History, topics: dict[str, TopicRow], verdict: Verdict) -> None:
    """Rules 1 and 2: the single node's, with topic names for ids."""
    checker = Checker()
    for topic in history.topics:
        name = topic.name.encode()
        # Whether a row may go is decided here, not by its level alone.
        checker.add(TopicModel(topic.name, name, {"durability": "flushed"}), topic.partitions)
    for send in history.sends:
        key = send.key[0].encode(), send.key[1]
        checker.sent(key, _values(send.producer, send.number, send.rows))
    for send in history.sends:
        if send.outcome is Outcome.OK and topics[send.key[0]].is_kept:
            key = send.key[0].encode(), send.key[1]
            for run in send.stored:
                values = _values(send.producer, run.number, run.rows)
                _caught(verdict, checker.acked, key, run.base_offset, values, 0, True)
    for read in (*history.reads, *history.final):
        key = read.key[0].encode(), read.key[1]
        _caught(verdict, checker.read, key, read.base_offset, list(read.values))
    ends: dict[Key, int] = defaultdict(int)
    for read in history.final:
        ends[read.key] = max(ends[read.key], read.base_offset + len(read.values))
    for name, partition in _keys(history.topics):
        key = name.encode(), partition
        _caught(verdict, checker.finish, key, 0, ends[name, partition])
    verdict.rows_read = checker.rows_seen


def _caught(verdict: Verdict, rule: Callable[..., object], *facts: object) -> None:
    try:
        rule(*facts)
    except Violation as violation:
        if len(verdict.problems) < PROBLEMS_MAX:
            verdict.problems.append(str(violation))


def _values(producer: int, number: int, rows: int) -> list[int]:
    return [value(producer, each) for each in range(number, number + rows)]


def _by_key(reads: list[Read]) -> dict[Key, list[Read]]:
    found: dict[Key, list[Read]] = defaultdict(list)
    for read in reads:
        found[read.key].append(read)
    return found


def _joined(reads: list[Read], verdict: Verdict) -> dict[int, int]:
    """offset -> value, of reads that follow one another (rule 3)."""
    found: dict[int, int] = {}
    expected = 0
    for read in reads:
        if read.base_offset != expected:
            verdict.problems.append(
                f"dense: {read.key} goes on at {read.base_offset} instead of {expected}"
            )
        found.update(enumerate(read.values, read.base_offset))
        expected = read.base_offset + len(read.values)
    return found


def _order(key: Key, rows: dict[int, int], verdict: Verdict) -> None:
    """Rule 4."""
    last: dict[int, int] = {}
    for offset, row in sorted(rows.items()):
        producer, number = row >> 32, row & 0xFFFFFFFF
        if last.get(producer, -1) >= number:
            verdict.problems.append(
                f"order: {key} has row {number} of producer {producer} at {offset}, after row"
                f" {last[producer]}"
            )
            return
        last[producer] = number


def _failed(sends: list[Send], final: dict[Key, dict[int, int]], verdict: Verdict) -> None:
    """Rule 6."""
    there = {key: set(rows.values()) for key, rows in final.items()}
    for send in sends:
        if send.outcome is Outcome.FAILED:
            values = set(_values(send.producer, send.number, send.rows))
            if values & there.get(send.key, set()):
                verdict.problems.append(
                    f"failed: rows {send.number} to {send.number + send.rows} of producer"
                    f" {send.producer} are in {send.key}, and its send failed: {send.error}"
                )


def _torn(sends: list[Send], final: dict[Key, dict[int, int]], verdict: Verdict) -> None:
    """Rule 10."""
    there = {key: set(rows.values()) for key, rows in final.items()}
    found: dict[tuple[int, int], list[tuple[Send, int]]] = defaultdict(list)
    for send in sends:
        if send.transaction >= 0:
            values = _values(send.producer, send.number, send.rows)
            count = len(there.get(send.key, set()).intersection(values))
            found[send.producer, send.transaction].append((send, count))
    for (producer, number), parts in found.items():
        count, whole = sum(count for _, count in parts), sum(send.rows for send, _ in parts)
        is_committed = any(send.outcome is Outcome.OK for send, _ in parts)
        if count != whole and (count or is_committed):
            verdict.problems.append(
                f"torn: {count} of {whole} rows of transaction {number} of producer {producer} are"
                f" there, its outcome is {parts[0][0].outcome.value}"
            )


def _readers(history: History, final: dict[Key, dict[int, int]], verdict: Verdict) -> None:
    """Rule 5."""
    expected: dict[tuple[str, Key], int] = {}
    for read in history.reads:
        position = expected.setdefault((read.reader, read.key), 0)
        if read.base_offset != position:
            what = "repeated" if read.base_offset < position else "skipped"
            verdict.problems.append(
                f"{what}: {read.reader} was at {position} of {read.key} and was handed"
                f" {read.base_offset}"
            )
        expected[read.reader, read.key] = read.base_offset + len(read.values)
    for (reader, key), position in expected.items():
        if position != len(final.get(key, {})):
            verdict.problems.append(
                f"unseen: {reader} came to {position} of {key}, which ends at"
                f" {len(final.get(key, {}))}"
            )


def _given_up(
    history: History,
    topics: dict[str, TopicRow],
    final: dict[Key, dict[int, int]],
    verdict: Verdict,
) -> None:
    """Rule 9."""
    gone: dict[Key, int] = defaultdict(int)
    for send in history.sends:
        if send.outcome is not Outcome.OK or topics[send.key[0]].is_kept:
            continue
        rows = final.get(send.key, {})
        for run in send.stored:
            for index in range(run.rows):
                at = run.base_offset + index
                gone[send.key] += rows.get(at) != value(send.producer, run.number + index)
    for key, count in gone.items():
        if count:
            verdict.given_up[key[0]] = verdict.given_up.get(key[0], 0) + count
            if not history.elected.get(key):
                verdict.problems.append(
                    f"lost: {count} rows of {key} are gone, and no other leader was elected"
                )
