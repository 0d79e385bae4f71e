"""Whatever is asked, the codes of the answer are those that docs/protocol.md lists for its API.

Requests are drawn from values that mean something (names, ids, offsets that exist, and neighbours
of them) and go to the whole node, whose driver compares every answer's codes with the list.
"""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa
import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import RegisteredListener
from quiverlog.wire.cluster_messages import DescribeClusterRequest
from quiverlog.wire.group_messages import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FetchOffsetsRequest,
    GroupHeartbeatRequest,
    ListGroupsRequest,
    ReportProgressRequest,
)
from quiverlog.wire.peer_proof import ClusterSecrets
from quiverlog.wire.reassignment_messages import DescribeReplicasRequest
from quiverlog.wire.security.quota_messages import DescribeQuotasRequest
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    DescribeUsersRequest,
    EndTokensRequest,
    ScramCredential,
    UserChange,
    WhoAmIRequest,
)
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommittedAttempt,
    CommitTransactionRequest,
    CountedAttempt,
    CountStagedRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    OpenTransactionRequest,
    PublishRequest,
    ResolveStagedRequest,
)
from tests.support.logins import alter, credential
from tests.support.node import NodeDriver, batch_of, check_codes
from tests.support.staged import make_staged

REQUESTS_PER_KIND = 100
NUMBERS = (-3, -2, -1, 0, 1, 2, 3, 7, 100, 2**31 - 1)
SCHEMAS = [serialize_schema(pa.schema([("id", pa.int64()), ("x", kind)])) for kind in
           (pa.string(), pa.int64(), pa.uint8())]  # fmt: skip


OF_TRANSACTIONS = (
    OpenTransactionRequest,
    CommitTransactionRequest,
    AbortTransactionRequest,
    ListTransactionsRequest,
    DescribeTransactionsRequest,
    CountStagedRequest,
    PublishRequest,
    ResolveStagedRequest,
)
TRANSACTION_POOLS: dict[str, tuple[Any, ...]] = {
    "transactional_id": ("t", "t", "t", "none", ""),
    "instance": (b"one", b"one", b"two", b""),
    "epoch": (1, 1, 1, 2, 0, -1),
    "sequence": (0, 1, 2, 3, -1),
    "wait": (0, 1, 2),
    "timeout_ms": (1_000,),
    "durability": (-1, 1, 2, 9),
    "leader_epoch": (-1, -1, 0, 99),
}
OF_GROUPS = (
    GroupHeartbeatRequest,
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    ListGroupsRequest,
    DescribeGroupsRequest,
    AlterGroupOffsetsRequest,
    DeleteGroupsRequest,
    ReportProgressRequest,
)
GROUP_POOLS: dict[str, tuple[Any, ...]] = {
    "group": ("g", "g", "h", "__x", ""),
    "groups": ("g", "none", ""),
    "member_id": (b"m" * 16, b"m" * 16, b"n" * 16, b"short", b""),
    "next_offset": (0, 3, -1),
    "reporter": (b"m" * 16, b"m" * 16, b"short"),
    "title": ("", "late"),
    "member_epoch": (0, 0, 1, 1, 2, -1),
    "beat": (1, 2, 3, 4, 0),
    "topics": ("a", "b", "none", "__x"),
    "assignor": ("", "", "uniform", "range", "none"),
    "session_timeout_ms": (-1, -1, 6_000, 5),
    "rebalance_timeout_ms": (-1, -1, 6_000, 5),
    "max_wait_ms": (0, 0, 100, -1),
    "offset": (0, 1, 5, -1, -2),
    "page": (b"", b"", b"", b"x"),
    "states": (0, 1, 2, 3, 4),
    "types": (1, 2, 3, 4),
}
OF_USERS = (AlterUsersRequest, DescribeUsersRequest, CreateTokenRequest, EndTokensRequest)
USER_POOLS: dict[str, tuple[Any, ...]] = {
    "name": ("alice", "alice", "bob", "none", "", "a b"),
    "owner": ("alice", "alice", "none", ""),
    "change": tuple(range(10)),
    "credential": (credential(b"1"), credential(b"2"), ScramCredential(), None),
    "lifetime_ms": (0, 60_000, 1, -1),
}
USER_LISTS: dict[str, tuple[Any, ...]] = {
    "credentials": ([credential(b"1")], [credential(b"2")], [], [ScramCredential()]),
    "token_ids": ([], [], ["ab"]),
}
SHORT_ATTEMPTS: dict[type[m.Request], Any] = {
    CommitTransactionRequest: CommittedAttempt(b"short"),
    CountStagedRequest: CountedAttempt(b"short"),
    PublishRequest: b"short",
}


class Drawing:
    """Draws requests about the topics that are there."""

    def __init__(self, seed: int, topic_ids: list[bytes]) -> None:
        self.rng = random.Random(seed)
        self.lists: dict[str, tuple[Any, ...]] = {}
        self.pools: dict[str, tuple[Any, ...]] = {
            "topic_id": (*topic_ids, bytes(16), b"", b"short"),
            "topic_ids": (*topic_ids, bytes(16)),
            "name": ("a", "b", "none", "", "..", "x" * 250, "n1", "n2"),
            "names": ("a", "b", "none", ""),
            "topics": ("a", "b", "none", ""),
            "schema": (*SCHEMAS, b"", b"", b"", b"junk"),
            "key_columns": ("id", "x", "none"),
            "configs": ({}, {"retention.ms": "1000"}, {"none": "1"}, {"durability": "x"}),
            "set_configs": ({}, {}, {"compression.type": "zstd"}, {"none": "1"}),
            "delete_configs": (*["retention.ms"] * 9, "none"),
            "transactional_id": ("", "", "", "t"),
            "partitions": (-1, 1, 2, 3, 0, -3, 2**31 - 1),
            "max_wait_ms": (0,),
            "timeout_ms": (1_000,),
            "cluster_id": ("c", "c", "c", "other"),
            "mechanism": ("CLUSTER-SHA-256", "CLUSTER-SHA-256", "other"),
            "data": (struct.pack("<II32x", 1, 0), struct.pack("<II32x", 1, 7), b"", bytes(32)),
            "source_directory": ("d", "d", ""),
            "source_id": (1,),
            "target_id": (0, 0, 0, 1),
            "term": (0, 1, 2**63 - 1),
            "node_id": (0, 0, 1, 7),
            "broker_epoch": (0, 1, 2, 3, 4, -1),
            "incarnation": (bytes(16), bytes(range(16)), b""),
            "clean_incarnation": (b"", b"", bytes(range(16))),
            "directory_id": ("0" * 32, "0" * 32, ""),
            "host": ("127.0.0.1", "127.0.0.1", ""),
            "port": (9292, 9292, 0),
            "replica_id": (-1, -1, 1),
        }

    def of(self, cls: type[msgspec.Struct]) -> Any:
        hints = get_type_hints(cls)
        skipped = set(m.Message.__struct_fields__) if issubclass(cls, m.Message) else set()
        names = [n for n in cls.__struct_fields__ if n not in skipped]
        return cls(**{name: self._value(name, hints[name]) for name in names})

    def _value(self, name: str, hint: Any) -> Any:
        arguments = get_args(hint)
        if get_origin(hint) is UnionType and type(None) not in arguments:
            return self.of(self.rng.choice(arguments))
        if name == "credential":
            return self.rng.choice(self.pools[name])
        if type(None) in arguments:
            return None if self.rng.random() < 0.2 else self._value(name, arguments[0])
        if get_origin(hint) is list:
            if name in self.lists:
                return self.rng.choice(self.lists[name])
            inner = arguments[0]
            return [self._value(name, inner) for _ in range(self.rng.randrange(4))]
        if hint is RegisteredListener and self.rng.random() < 0.5:
            return RegisteredListener("default", "127.0.0.1", 9292)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self.of(hint)
        if name in self.pools:
            return self.rng.choice(self.pools[name])
        if hint is bool:
            return self.rng.random() < 0.5
        if hint in (str, bytes):
            return hint()
        assert hint is int, (name, hint)
        if name == "partition":
            return self.rng.choice((0, 0, 1, 1, 2, -1))
        return self.rng.choice(NUMBERS)

    def body(self, request: m.ProduceRequest) -> bytes:
        """Batches for the entries of a produce, some of them damaged."""
        body = b""
        for entry in request.partitions:
            producer = self.rng.choice(((-1, -1, -1), (0, 0, 0), (0, 1, 0), (0, 0, 9), (99, 0, 0)))
            batch = bytearray(bytes(batch_of([1, 2], producer=producer)))
            if self.rng.random() < 0.3:
                batch[self.rng.randrange(len(batch))] ^= 1 << self.rng.randrange(8)
            entry.batch_bytes = len(batch)
            body += bytes(batch) * (count := self.rng.choice((0, 1, 1, 1, 2)))
            entry.batch_bytes *= count
        return body


KINDS = sorted(m.Request.__subclasses__(), key=lambda kind: kind.API)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.API.name)
def test_codes_are_those_of_the_list(kind: type[m.Request]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        secrets = ClusterSecrets((b"s" * 32,))
        node = NodeDriver(
            Path(directory), cluster_id="c", cluster_secrets=secrets, proof_required=False
        )
        if kind in OF_TRANSACTIONS:
            make_staged(node)
        topics = [node.create(name, partitions=2) for name in ("a", "b")]
        node.call(m.InitProducerIdRequest())
        for topic in topics:
            node.produced(topic, batch_of([1, 2, 3]))
        drawing = Drawing(int(kind.API), topics)
        if kind in OF_TRANSACTIONS:
            drawing.pools.update(TRANSACTION_POOLS)
            drawing.lists["attempts"] = ([], [], [SHORT_ATTEMPTS.get(kind)])
            drawing.lists["offsets"] = ([],)
            node.request(OpenTransactionRequest(transactional_id="t", instance=b"one"))
        if kind in OF_GROUPS:
            drawing.pools.update(GROUP_POOLS)
            node.request(CommitOffsetsRequest(group="g"))  # Has the topic made.
        if kind in OF_USERS:
            assert not alter(node, "alice", UserChange.CREATE, b"pw").error_code
            drawing.pools.update(USER_POOLS)
            drawing.lists.update(USER_LISTS)
        answered = set()
        for _ in range(REQUESTS_PER_KIND):
            request = drawing.of(kind)
            body = drawing.body(request) if isinstance(request, m.ProduceRequest) else b""
            number = node.request(request, body)
            for _ in range(20):
                if node.answer(number) is not None:
                    break
                while kind in (*OF_TRANSACTIONS, *OF_GROUPS) and node.syncs:
                    node.flush()
                node.advance(1_000)
            answer = node.answer(number)
            assert answer is not None, request
            check_codes(answer[0])
            for name in ("partitions", "topics", "results", "entries", "offsets", "groups"):
                parts = getattr(answer[0], name, [])
                answered |= {getattr(part, "error_code", 0) for part in parts}
            answered.add(answer[0].error_code)
        node.stop()
    assert 0 in answered
    never = (
        m.HelloRequest,
        m.MetadataRequest,
        DescribeClusterRequest,
        DescribeReplicasRequest,
        DescribeTransactionsRequest,
        DescribeQuotasRequest,
        WhoAmIRequest,
        ResolveStagedRequest,
    )
    assert len(answered) > 1 or kind in never, "nothing was refused"
