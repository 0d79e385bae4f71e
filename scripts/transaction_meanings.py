"""The meanings of the fields of transactions' messages, for `protocol_model`."""

from __future__ import annotations

from typing import Final

__all__ = ["LEVELS", "TRANSACTIONS"]

LEVELS: Final = "0 memory, 1 flushed, 2 replicated, 3 replicated and flushed"

TRANSACTIONS: Final[dict[str, str]] = {
    "AbortTransactionRequest.epoch": "of the holder that aborts",
    "AbortTransactionRequest.force": "true: the present epoch is meant, whatever it is",
    "AbortTransactionRequest.forget": "true: the id is forgotten, with what it still has to"
    " publish; nothing else is looked at",
    "AbortTransactionRequest.sequence": "of the transaction that is aborted",
    "AbortTransactionResponse.outcome": "0 aborted, 1 had been committed",
    "CommitTransactionRequest.attempts": "those whose rows count; at most 20,000",
    "CommitTransactionRequest.durability": f"wanted of the rows: -1 the topics' own, {LEVELS}",
    "CommitTransactionRequest.offsets": "kept for groups; must be empty",
    "CommitTransactionRequest.timeout_ms": "how long it may wait for the id's transaction before,"
    " and for its own publishing",
    "CommitTransactionRequest.wait": "for the answer until it is: 0 decided, 1 published",
    "CommitTransactionResponse.durability": "the weakest level of decision, staging and, where"
    f" `is_published`, topics: {LEVELS}",
    "CommitTransactionResponse.is_published": "the rows are in their topics",
    "CommitTransactionResponse.outcome": "0 committed, 1 had been committed",
    "CommitTransactionResponse.row_count": "rows that were committed",
    "CommittedAttempt.row_count": "rows of the attempt, in all its parts",
    "CommittedPart.row_count": "rows of the attempt there, for all topics together",
    "CountStagedResponse.durability": f"the weakest level of these rows: {LEVELS}",
    "CountStagedResponse.targets": "for which partitions they are, each once",
    "CountStagedRequest.attempts": "those with rows in the partition, each once",
    "CountedAttempt.row_count": "rows of the attempt there, for all topics together",
    "CountedTarget.row_count": "rows for it",
    "DescribeTransactionsRequest.ids": "transactional ids; nil: all",
    "DescribeTransactionsResponse.staged_bytes": "stored in the partitions of `__staged` that the"
    " broker leads, from the first row that is neither published nor dead",
    "DescribeTransactionsResponse.staged_bytes_max": "the most; 0: the broker leads none",
    "DescribeTransactionsResponse.staged_oldest_ms": "age of the oldest rows there",
    "DescribeTransactionsResponse.waits": "of all ids, the longest first, at most 256",
    "ForwardPartition.durability": f"on which the answer is to rest: {LEVELS}",
    "ForwardPartition.leader_epoch": "the partition's leader epoch in the sender's metadata; -1: no"
    " check",
    "ForwardPartition.producer_id": "number of the publish, from 2^62 on",
    "ForwardPartition.base_sequence": "where the entry begins, from 0 on in each publish"
    " and partition; a first batch that begins later comes after rows that are lost",
    "ForwardRequest.timeout_ms": "after this time the answer is REQUEST_TIMED_OUT",
    "ForwardResult.base_offset": "offset of the first row that this request stored; -1: all were"
    " there",
    "ForwardResult.durability": f"it rests on: {LEVELS}",
    "ForwardResult.end_offset": "offset after the last of these rows",
    "ListTransactionsRequest.states": "0 open, 1 deciding, 2 publishing, 3 closed; nil: all",
    "OpenTransactionRequest.single_use": "true: the id is forgotten an hour after its commit",
    "OpenTransactionRequest.timeout_ms": "after this time without an OPEN_TRANSACTION the cluster"
    " may end it; 1 to 86,400,000 (a day)",
    "OpenTransactionResponse.epoch": "of this instance: each request names it",
    "OpenTransactionResponse.is_publishing": "the last one is decided and not yet in its topics",
    "PublishRequest.attempts": "those that count",
    "PublishRequest.durability": "as the commit asked for it",
    "PublishRequest.first_offset": "no staged row of these attempts lies before it",
    "PublishRequest.next_offset": "no staged row of these attempts lies there or behind it",
    "PublishResponse.durability": f"the weakest of the targets': {LEVELS}",
    "PublishResponse.targets": "the partitions that the rows have reached, each once",
    "PublishWait.reason": "number of the error that its leader answered last",
    "PublishWait.row_count": "rows that wait",
    "PublishWait.since_us": "when it began to wait, microseconds since 1970",
    "PublishedTarget.end_offset": "offset after the last of the rows there; -1: the topic is gone",
    "PublishedTarget.row_count": "rows that it got; 0 where the topic is gone",
    "ResolveStagedRequest.transactions": "each once",
    "ResolveStagedResponse.results": "in the order of the request",
    "ResolvedTransaction.state": "0 live, 1 dead, 2 being published, 3 published",
    "StagedRows.byte_count": "their stored bytes",
    "StagedRows.oldest_ms": "age of the oldest of them",
    "StagedRows.partition": "of `__staged`",
    "StagedRows.row_count": "rows that lie there, for all topics together",
    "TransactionDescription.staged": "by partition of `__staged`",
    "TransactionDescription.waits": "the longest first, at most 256",
    "TransactionListing.state": "0 open, 1 deciding, 2 publishing, 3 closed",
    "attempt": "16 random bytes that name one try to write the rows",
    "digest": "of what was decided; empty: nothing is",
    "epoch": "counts the holders of the transactional id",
    "expected_sequence": "with OUT_OF_ORDER_SEQUENCE: of the next row that is taken; -1: unknown",
    "first_id": "first transactional id of the page that is asked for",
    "first_offset": "offset of the attempt's first staged row there",
    "group": "name of the group",
    "instance": "1 to 64 bytes that tell one life of the holder from the next",
    "is_whole": "all rows are there",
    "last_committed_us": "when that was decided, microseconds since 1970; 0: never",
    "last_sequence": "sequence of the id's last committed transaction; -1: none",
    "listing": "nil: another broker coordinates the id",
    "missing_count": "rows that were decided and are lost",
    "next_id": "`first_id` of the next page; empty: there is none",
    "next_offset": "offset after the attempt's last staged row there",
    "parts": "where its rows are staged",
    "pins_front": "true: an undecided one that is old may be closed for it",
    "reason_text": "what its leader answered, for people",
    "sequence": "number of the transaction, growing within its id",
    "silent_ms": "since its holder's last OPEN_TRANSACTION; -1: not known",
    "single_use": "the id is forgotten an hour after its commit",
    "staged_partition": "number of the partition of `__staged`",
    "timeout_ms": "without a sign of life for this time it may be closed",
    "transactions": "in the order of their ids",
}
