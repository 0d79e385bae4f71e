"""The bounds of the messages of transactions: each tried below, at and above."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from quiverlog import limits
from quiverlog.errors import CorruptFrame, InvalidRequest, InvalidResponse
from quiverlog.types import Durability
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire import transaction_messages as t

ATTEMPT = bytes(range(16))


def part(**changes: int) -> t.CommittedPart:
    return t.CommittedPart(
        **{"staged_partition": 0, "first_offset": 0, "next_offset": 4, "row_count": 2, **changes}
    )


def attempt(name: bytes = ATTEMPT, *parts: t.CommittedPart) -> t.CommittedAttempt:
    parts = parts or (part(),)
    return t.CommittedAttempt(name, sum(one.row_count for one in parts), list(parts))


def commit(*attempts: t.CommittedAttempt, **changes: object) -> t.CommitTransactionRequest:
    fields = {"transactional_id": "id", "epoch": 0, "sequence": 0, **changes}
    return t.CommitTransactionRequest(attempts=list(attempts), **fields)  # type: ignore[arg-type]


def opened(**changes: object) -> t.OpenTransactionRequest:
    fields = {"transactional_id": "id", "instance": b"i", **changes}
    return t.OpenTransactionRequest(**fields)  # type: ignore[arg-type]


def aborted(**changes: object) -> t.AbortTransactionRequest:
    fields = {"transactional_id": "id", "epoch": 0, "sequence": 0, **changes}
    return t.AbortTransactionRequest(**fields)  # type: ignore[arg-type]


def resolved(**changes: object) -> t.ResolveStagedRequest:
    fields = {"transactional_id": "id", "epoch": 0, "sequence": 0, **changes}
    return t.ResolveStagedRequest(transactions=[t.StagedTransaction(**fields)])  # type: ignore[arg-type]


def attempts(count: int, parts_each: int = 0) -> list[t.CommittedAttempt]:
    parts = [part(staged_partition=n, row_count=1) for n in range(parts_each)]
    return [
        t.CommittedAttempt(n.to_bytes(16, "big"), parts_each, list(parts)) for n in range(count)
    ]


IDS_MAX, INSTANCE_MAX = limits.TRANSACTIONAL_ID_CHARS_MAX, limits.TRANSACTION_INSTANCE_BYTES_MAX
ATTEMPTS_MAX, PARTS_MAX = limits.TRANSACTION_ATTEMPTS_MAX, limits.TRANSACTION_PARTS_MAX
DAY_MS = limits.TRANSACTION_TIMEOUT_MS_MAX
Checked = (
    t.OpenTransactionRequest
    | t.CommitTransactionRequest
    | t.AbortTransactionRequest
    | t.ResolveStagedRequest
)


def test_the_bounds_are_those_of_the_design() -> None:
    assert (IDS_MAX, INSTANCE_MAX, ATTEMPTS_MAX, PARTS_MAX) == (512, 64, 20_000, 100_000)
    assert DAY_MS == 86_400_000
    assert limits.TRANSACTION_ATTEMPT_BYTES == 16


@pytest.mark.parametrize("make", [opened, commit, aborted, resolved])
@pytest.mark.parametrize(("chars", "is_good"), [(0, False), (1, True), (512, True), (513, False)])
def test_a_transactional_id(make: Callable[..., Checked], chars: int, is_good: bool) -> None:
    judge(make(transactional_id="ü" * chars), is_good, "transactional id")


def test_a_bad_question_refuses_all_of_them_and_is_named() -> None:
    good = t.StagedTransaction("id", 0, 0)
    request = t.ResolveStagedRequest(transactions=[good, good, t.StagedTransaction("", 0, 0)])
    judge(request, False, "transaction 2: a transactional id has")


def judge(request: Checked, is_good: bool, why: str) -> None:
    if is_good:
        request.check()
        return
    with pytest.raises(InvalidRequest, match=why):
        request.check()


@pytest.mark.parametrize(
    ("changes", "is_good"),
    [
        ({"instance": b""}, False),
        ({"instance": b"i" * INSTANCE_MAX}, True),
        ({"instance": b"i" * (INSTANCE_MAX + 1)}, False),
        ({"timeout_ms": 0}, False),
        ({"timeout_ms": 1}, True),
        ({"timeout_ms": DAY_MS}, True),
        ({"timeout_ms": DAY_MS + 1}, False),
    ],
)
def test_an_open(changes: dict[str, object], is_good: bool) -> None:
    judge(opened(**changes), is_good, next(iter(changes)))


@pytest.mark.parametrize("make", [commit, resolved])
@pytest.mark.parametrize(("field", "most"), [("epoch", 2**62 - 1), ("sequence", 2**63 - 2)])
def test_epoch_and_sequence_are_given_and_have_one_that_follows(
    make: Callable[..., Checked], field: str, most: int
) -> None:
    for value, is_good in ((-1, False), (0, True), (most, True), (most + 1, False)):
        judge(make(**{field: value}), is_good, field)


@pytest.mark.parametrize("field", ["epoch", "sequence"])
def test_an_abort_may_name_an_epoch_that_no_id_gets(field: str) -> None:
    for value, is_good in ((-1, False), (0, True), (2**63 - 1, True)):
        judge(aborted(**{field: value}), is_good, field)
    judge(aborted(epoch=-1, sequence=-1, force=True), True, "")


@pytest.mark.parametrize("wait", [-1, 0, 1, 2, 7])
def test_what_a_commit_waits_for(wait: int) -> None:
    judge(commit(wait=wait), wait in (0, 1), "wait")


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1, 2**31 - 1])
def test_how_long_a_commit_waits(timeout_ms: int) -> None:
    judge(commit(timeout_ms=timeout_ms), timeout_ms >= 0, "timeout_ms")


@pytest.mark.parametrize("level", [-2, *Durability, 4])
def test_a_commits_level(level: int) -> None:
    judge(commit(durability=level), -1 <= level <= 3, "durability")


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (attempt(b"a" * 15), "has 15"),
        (attempt(b""), "has 0"),
        (attempt(b"a" * 17), "has 17"),
        (attempt(ATTEMPT, part(staged_partition=-1)), "no such partition"),
        (attempt(ATTEMPT, part(), part(first_offset=4, next_offset=9)), "a second part"),
        (attempt(ATTEMPT, part(), part(first_offset=2)), "a second part"),
        (attempt(ATTEMPT, part(first_offset=-1)), "from -1"),
        (attempt(ATTEMPT, part(first_offset=4)), "from 4 to before 4"),
        (attempt(ATTEMPT, part(row_count=0)), "0 rows from"),
        (t.CommittedAttempt(ATTEMPT, 3, [part()]), "3 rows, its parts have 2"),
        (t.CommittedAttempt(ATTEMPT, -1, []), "-1 rows"),
    ],
)
def test_a_commit_of_an_attempt_that_cannot_be(one: t.CommittedAttempt, why: str) -> None:
    judge(commit(one), False, why)


def test_commits_that_are_good() -> None:
    other = attempt(bytes(16), part(), part(staged_partition=255, first_offset=3))
    for good in (commit(), commit(attempt()), commit(attempt(), other), commit(attempt(bytes(16)))):
        good.check()
    commit(t.CommittedAttempt(ATTEMPT, 0, [])).check()


def test_an_attempt_is_named_once_and_offsets_are_kept() -> None:
    judge(commit(attempt(), attempt()), False, "twice")
    judge(commit(offsets=[t.TransactionOffsets("g")]), False, "offsets")


def received(request: m.Request) -> Checked:
    got = frames.decode_request(frames.encode(request, 1)[8:])
    assert isinstance(got, Checked)
    return got


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_most_attempts(over: int) -> None:
    request = received(commit(*attempts(ATTEMPTS_MAX + over)))
    judge(request, over <= 0, r"20001 attempts")


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_most_parts(over: int) -> None:
    all_but_one = attempts(ATTEMPTS_MAX - 1, 5)
    last = attempt(b"x" * 16, *(part(staged_partition=n) for n in range(5 + over)))
    judge(received(commit(*all_but_one, last)), over <= 0, r"100001 parts")


def test_the_largest_commit_fits_a_header_in_its_widest_form() -> None:
    far = 2**62
    parts = [part(staged_partition=n, first_offset=far, next_offset=far + 1, row_count=2**31)
             for n in range(5)]  # fmt: skip
    names = (n.to_bytes(16, "big") for n in itertools.count())
    every = [attempt(name, *parts) for name in itertools.islice(names, ATTEMPTS_MAX)]
    request = commit(*every, transactional_id="ü" * 512, epoch=far - 1, sequence=far)
    received(request).check()


def test_twice_the_bounds_is_no_message() -> None:
    for many in (
        attempts(2 * ATTEMPTS_MAX + 1),
        [attempt(ATTEMPT, *[part()] * (2 * PARTS_MAX + 1))],
    ):
        with pytest.raises(CorruptFrame, match="length <="):
            received(commit(*many))
    with pytest.raises(CorruptFrame, match="arrays and maps"):
        received(commit(*attempts(2, PARTS_MAX), *attempts(ATTEMPTS_MAX, 3)))


TARGETS_MAX = limits.TRANSACTION_TARGETS_MAX
BETWEEN: dict[str, tuple[Callable[[int], m.Request], int]] = {
    "partitions of a FORWARD": (
        lambda n: t.ForwardRequest(partitions=[t.ForwardPartition()] * n),
        limits.FORWARD_ENTRIES_MAX,
    ),
    "attempts of a COUNT_STAGED": (
        lambda n: t.CountStagedRequest(attempts=[t.CountedAttempt(ATTEMPT)] * n),
        ATTEMPTS_MAX,
    ),
    "bytes of an attempt": (
        lambda n: t.CountStagedRequest(attempts=[t.CountedAttempt(b"a" * n)]),
        16,
    ),
    "characters of an id": (lambda n: t.CountStagedRequest(transactional_id="ü" * n), IDS_MAX),
    "attempts of a PUBLISH": (lambda n: t.PublishRequest(attempts=[ATTEMPT] * n), ATTEMPTS_MAX),
    "transactions of a RESOLVE_STAGED": (
        lambda n: t.ResolveStagedRequest(transactions=[t.StagedTransaction("ü" * IDS_MAX)] * n),
        limits.RESOLVE_STAGED_ENTRIES_MAX,
    ),
}
ANSWERS: dict[str, tuple[Callable[[int], m.Response], int]] = {
    "partitions of a FORWARD": (
        lambda n: t.ForwardResponse(partitions=[t.ForwardResult()] * n),
        limits.FORWARD_ENTRIES_MAX,
    ),
    "targets of a COUNT_STAGED": (
        lambda n: t.CountStagedResponse(targets=[t.CountedTarget(ATTEMPT, 9_999, 2**62)] * n),
        TARGETS_MAX,
    ),
    "targets of a PUBLISH": (
        lambda n: t.PublishResponse(targets=[t.PublishedTarget(ATTEMPT, 9_999, 2**62, 2**30)] * n),
        TARGETS_MAX,
    ),
    "results of a RESOLVE_STAGED": (
        lambda n: t.ResolveStagedResponse(results=[t.ResolvedTransaction()] * n),
        limits.RESOLVE_STAGED_ENTRIES_MAX,
    ),
    "digest": (
        lambda n: t.ResolveStagedResponse(results=[t.ResolvedTransaction(digest=b"d" * n)]),
        32,
    ),
    "state": (
        lambda n: t.ResolveStagedResponse(results=[t.ResolvedTransaction(state=n)]),
        t.ResolvedState.PUBLISHED,
    ),
    "state of a listing": (
        lambda n: t.ListTransactionsResponse(transactions=[t.TransactionListing(state=n)]),
        t.TransactionState.CLOSED,
    ),
    "outcome": (lambda n: t.CommitTransactionResponse(outcome=n), 1),
    "outcome of an abort": (lambda n: t.AbortTransactionResponse(outcome=n), 1),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_requests_between_brokers(what: str) -> None:
    make, most = BETWEEN[what]
    for count in (most - 1, most):
        assert frames.decode_request(frames.encode(make(count), 1)[8:]).API is make(0).API
    with pytest.raises(CorruptFrame, match="length <="):
        frames.decode_request(frames.encode(make(most + 1), 1)[8:])


@pytest.mark.parametrize("what", ANSWERS)
def test_answers(what: str) -> None:
    make, most = ANSWERS[what]
    api = int(make(0).API)
    for count in (most - 1, most):
        frames.decode_response(frames.encode(make(count), 1)[8:], api)
    with pytest.raises(InvalidResponse, match="<="):
        frames.decode_response(frames.encode(make(most + 1), 1)[8:], api)


def test_texts_of_results_give_way_where_a_thousand_would_not_fit() -> None:
    failed = [t.ResolvedTransaction(31, "why " * 1_500) for _ in range(1_000)]
    head = frames.encode(t.ResolveStagedResponse(results=failed), 1)
    got = frames.decode_response(head[8:], int(m.Api.RESOLVE_STAGED))
    assert isinstance(got, t.ResolveStagedResponse)
    assert {(one.error_code, one.error_message) for one in got.results} == {(31, "")}
