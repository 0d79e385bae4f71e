"""Answers about transactions that do not fit their requests."""

from __future__ import annotations

import pytest

from quiverlog.client.cluster.answers import check_answer
from quiverlog.errors import InvalidResponse, NotLeader
from quiverlog.wire import messages as m
from quiverlog.wire import transaction_messages as t

COMMIT = t.CommitTransactionRequest(
    attempts=[t.CommittedAttempt(b"a" * 16, 2), t.CommittedAttempt(b"b" * 16, 3)]
)
LIST = t.ListTransactionsRequest(first_id="c")
FIRST = t.ListTransactionsRequest()
LATER = t.ListTransactionsRequest(first_id="app-2")
DESCRIBE = t.DescribeTransactionsRequest(first_id="c")


def listed(*ids: str, then: str = "") -> t.ListTransactionsResponse:
    return t.ListTransactionsResponse(
        transactions=[t.TransactionListing(one) for one in ids], next_id=then
    )


def described(*ids: str, then: str = "") -> t.DescribeTransactionsResponse:
    return t.DescribeTransactionsResponse(
        transactions=[t.TransactionDescription(one) for one in ids], next_id=then
    )


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (t.OpenTransactionRequest(), t.OpenTransactionResponse(epoch=0)),
        (t.OpenTransactionRequest(), t.OpenTransactionResponse(error_code=NotLeader.code)),
        (COMMIT, t.CommitTransactionResponse(row_count=5)),
        (COMMIT, t.CommitTransactionResponse(outcome=1, row_count=9)),
        (t.AbortTransactionRequest(), t.AbortTransactionResponse(outcome=1)),
        (LIST, listed()),
        (LIST, listed("c", "d", then="e")),
        (LIST, listed(then="d")),
        (FIRST, listed(then="a")),
        (LATER, listed(then="app-3")),
        (DESCRIBE, described("c", "d", then="e")),
    ],
)
def test_answers_that_fit(request_: m.Request, response: m.Response) -> None:
    check_answer(request_, response, 0)


@pytest.mark.parametrize(
    ("request_", "response", "why"),
    [
        (t.OpenTransactionRequest(), t.OpenTransactionResponse(), "the epoch -1"),
        (COMMIT, t.CommitTransactionResponse(row_count=4), "of 5 rows: 4 were"),
        (COMMIT, t.CommitTransactionResponse(row_count=6), "of 5 rows: 6 were"),
        (LIST, listed("b"), "from 'c' on come as"),
        (LIST, listed("d", "c"), "from 'c' on come as"),
        (LIST, listed("c", "c"), "from 'c' on come as"),
        (LIST, listed(then="c"), "followed by 'c'"),
        (LIST, listed("c", "d", then="d"), "followed by 'd'"),
        (LATER, listed(then="app-1"), "followed by 'app-1'"),
        (DESCRIBE, described("d", "c"), "from 'c' on come as"),
    ],
)
def test_answers_that_do_not(request_: m.Request, response: m.Response, why: str) -> None:
    with pytest.raises(InvalidResponse, match=why):
        check_answer(request_, response, 0)
