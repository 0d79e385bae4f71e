"""What a header may claim: counts, widths and ids are checked before memory is taken for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from quiverlog import limits
from quiverlog.errors import CorruptFrame, FrameTooLarge, InvalidResponse
from quiverlog.limits import HEADER_BYTES_MAX, MIB
from quiverlog.wire import config_messages as k
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.frames import count_containers
from quiverlog.wire.registry import APIS
from scripts.protocol_model import parts_of

PREAMBLE = 3
EMPTY_ARRAY = b"\x90"


def header_of_empty_arrays(cls: type[m.Message], field: str) -> bytes:
    """A header of 4 MiB whose list `field` holds nothing but empty arrays."""
    at = cls.__struct_fields__.index(field)
    defaults = list(msgspec.to_builtins(cls()))
    defaults[:PREAMBLE] = [int(cls.API), 1, 7]  # type: ignore[attr-defined]
    before = b"".join(map(msgspec.msgpack.encode, defaults[:at]))
    count = HEADER_BYTES_MAX - len(before) - 6
    return (
        bytes([0x90 | at + 1]) + before + b"\xdd" + count.to_bytes(4, "big") + EMPTY_ARRAY * count
    )


def largest_kib() -> int:
    """The most memory that this process ever had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def list_fields() -> list[tuple[type[m.Message], str]]:
    """Every list of parts in a request or response."""
    return [
        (cls, field.encode_name)
        for spec in APIS.values()
        for cls in (spec.request, spec.response)
        for field in msgspec.structs.fields(cls)
        if "Part" in str(field.type) or ".m." in str(field.type) or "messages." in str(field.type)
        if "list[" in str(field.type)
    ]


@pytest.mark.parametrize(
    ("cls", "field"), list_fields(), ids=lambda x: x if isinstance(x, str) else x.__name__
)
def test_lists_of_millions_are_refused_before_they_are_made(
    cls: type[m.Message], field: str
) -> None:
    header = header_of_empty_arrays(cls, field)
    api = int(cls.API)  # type: ignore[attr-defined]
    with pytest.raises((CorruptFrame, InvalidResponse), match=r"length <=|arrays and maps"):
        frames.decode_request(header) if issubclass(cls, m.Request) else frames.decode_response(
            header, api
        )


def test_what_a_header_of_empty_arrays_costs() -> None:
    """In a process of its own: the largest memory that it ever had is known there."""
    script = (
        "from tests.unit.wire.test_bounds import *\n"
        "header = header_of_empty_arrays(m.ProduceRequest, 'partitions')\n"
        "before = largest_kib()\n"
        "try:\n"
        "    frames.decode_request(header)\n"
        "except CorruptFrame: pass\n"
        "print(largest_kib() - before)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(out.stdout) * 1024 < 8 * MIB


def decoded(response: m.Response) -> m.Response:
    """The response as a client gets it."""
    return frames.decode_response(frames.encode(response, 1)[8:], int(response.API))


@pytest.mark.parametrize("api", APIS, ids=lambda api: m.Api(api).name)
def test_each_default_lies_in_its_bounds(api: int) -> None:
    """An answer with an error has them all, and so has an entry with one."""
    spec = APIS[api]
    for cls in (spec.request, spec.response):
        for part in parts_of(cls):
            msgspec.convert(msgspec.to_builtins(part()), part)


Made = Callable[[int], m.Response]
BOUNDS: dict[str, tuple[Made, int, int]] = {
    "error code": (lambda n: m.AlterTopicResponse(error_code=n), 0, 999),
    "error code of an entry": (
        lambda n: m.ProduceResponse(partitions=[m.ProducePartitionResult(error_code=n)]),
        0,
        999,
    ),
    "count": (
        lambda n: m.ProduceResponse(partitions=[m.ProducePartitionResult(row_count=n)]),
        0,
        2**63 - 1,
    ),
    "offset": (
        lambda n: m.ProduceResponse(partitions=[m.ProducePartitionResult(base_offset=n)]),
        -1,
        2**63 - 1,
    ),
    "durability": (
        lambda n: m.ProduceResponse(partitions=[m.ProducePartitionResult(durability=n)]),
        0,
        3,
    ),
    "compression": (lambda n: m.MetadataResponse(topics=[m.TopicMetadata(compression=n)]), 0, 2),
    "node": (lambda n: m.MetadataResponse(brokers=[m.BrokerEndpoint(n)]), -1, 2**31 - 1),
    "port": (lambda n: m.MetadataResponse(brokers=[m.BrokerEndpoint(port=n)]), 0, 65_535),
    "epoch": (
        lambda n: m.FetchResponse(partitions=[m.FetchPartitionResult(leader_epoch=n)]),
        -1,
        2**31 - 1,
    ),
    "producer epoch": (lambda n: m.InitProducerIdResponse(producer_epoch=n), -1, 2**15 - 1),
    "schema": (lambda n: m.AlterTopicResponse(schema_id=n), 0, 2**31 - 1),
    "moment": (
        lambda n: m.TopicSchemasResponse(schemas=[m.SchemaVersion(created_us=n)]),
        0,
        253_402_300_799_999_999,
    ),
    "source of a configuration": (
        lambda n: k.DescribeConfigsResponse(configs=[k.BrokerConfigEntry(source=n)]),
        0,
        5,
    ),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_number_outside_its_bounds_is_an_invalid_response(kind: str) -> None:
    make, low, high = BOUNDS[kind]
    for value in (low, low + 1, high - 1, high):
        assert decoded(make(value)) == make_sent(make, value)
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidResponse, match=f"which is {value}"):
            decoded(make(value))


def make_sent(make: Made, value: int) -> m.Response:
    """The response with the fields that `encode` fills in."""
    response = make(value)
    frames.encode(response, 1)
    return response


def test_the_error_names_the_field_and_the_entry() -> None:
    entries = [m.PartitionMetadata(0), m.PartitionMetadata(1, leader_id=-2)]
    answer = m.MetadataResponse(topics=[m.TopicMetadata("t"), m.TopicMetadata(partitions=entries)])
    with pytest.raises(InvalidResponse, match=r"METADATA.*topics\[1\]\.partitions\[1\]\.leader_id"):
        decoded(answer)
    header = msgspec.msgpack.encode([int(m.Api.METADATA), 1, 1, 0, "", "c", None])
    with pytest.raises(InvalidResponse, match=r"Expected `int`, got `None` at `controller_id`"):
        frames.decode_response(header, int(m.Api.METADATA))


def test_an_answer_cut_short_is_no_message() -> None:
    header = frames.encode(m.MetadataResponse(cluster_id="c"), 1)[8:]
    for cut in range(len(header)):
        with pytest.raises(CorruptFrame):
            frames.decode_response(header[:cut], int(m.Api.METADATA))


def header_of_nested_lists() -> bytes:
    """A METADATA answer of topics with ten thousand empty arrays for partitions each."""
    partitions = b"\xdc" + limits.PARTITIONS_PER_TOPIC_MAX.to_bytes(2, "big")
    partitions += EMPTY_ARRAY * limits.PARTITIONS_PER_TOPIC_MAX
    fields = m.TopicMetadata.__struct_fields__
    before = [getattr(m.TopicMetadata(), name) for name in fields[: fields.index("partitions")]]
    topic = bytes([0x90 | len(before) + 1]) + b"".join(map(msgspec.msgpack.encode, before))
    topic += partitions
    at = m.MetadataResponse.__struct_fields__.index("topics")
    defaults = list(msgspec.to_builtins(m.MetadataResponse()))
    defaults[:PREAMBLE] = [int(m.Api.METADATA), 1, 7]
    head = bytes([0x90 | at + 1]) + b"".join(map(msgspec.msgpack.encode, defaults[:at]))
    count = (HEADER_BYTES_MAX - len(head) - 3) // len(topic)
    return head + b"\xdc" + count.to_bytes(2, "big") + topic * count


def test_what_an_answer_of_lists_within_lists_costs() -> None:
    """Each list within its bound, together 750 MiB: refused before it is decoded."""
    script = (
        "from tests.unit.wire.test_bounds import *\n"
        "header = header_of_nested_lists()\n"
        "assert len(header) > 4_000_000\n"
        "before = largest_kib()\n"
        "try:\n"
        "    frames.decode_response(header, int(m.Api.METADATA))\n"
        "except CorruptFrame: pass\n"
        "print(largest_kib() - before)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(out.stdout) * 1024 < 16 * MIB
    with pytest.raises(CorruptFrame, match="arrays and maps"):
        frames.decode_response(header_of_nested_lists(), int(m.Api.METADATA))


def test_an_answer_that_no_client_would_take_is_not_sent() -> None:
    lists = m.TopicMetadata(partitions=[m.PartitionMetadata()] * 10_000)
    topics = [lists] * (limits.RESPONSE_CONTAINERS_MAX // 30_000 + 1)
    with pytest.raises(FrameTooLarge, match="arrays and maps"):
        frames.encode(m.MetadataResponse(topics=topics), 1)
    fits = m.MetadataResponse(topics=topics[:-2])
    assert frames.decode_response(frames.encode(fits, 1)[8:], int(m.Api.METADATA)) == fits


def containers_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(containers_of, value.values()))
    return 1 + sum(map(containers_of, value)) if isinstance(value, list) else 0


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary(max_size=70_000)
        | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=300)),
        lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(), inner),
    )
)
def test_containers_are_counted_without_decoding(value: object) -> None:
    data = msgspec.msgpack.encode(value)
    assert count_containers(data, 2**32) == containers_of(value)


def test_a_names_field_that_may_not_be_nil_is_refused() -> None:
    header = msgspec.msgpack.encode([int(m.Api.DELETE_TOPICS), 1, 3, None])
    with pytest.raises(CorruptFrame, match=r"Expected `array`, got `None` - at `\$\[3\]`"):
        frames.decode_request(header)


def test_the_largest_count_is_taken() -> None:
    entries = [m.FetchPartition()] * limits.PARTITIONS_PER_REQUEST_MAX
    request = frames.decode_request(frames.encode(m.FetchRequest(partitions=entries), 1)[8:])
    assert isinstance(request, m.FetchRequest)
    assert len(request.partitions) == limits.PARTITIONS_PER_REQUEST_MAX


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31, 2**63, -(2**63)])
def test_correlation_ids_out_of_their_range(correlation_id: int) -> None:
    header = msgspec.msgpack.encode([int(m.Api.METADATA), 1, correlation_id])
    with pytest.raises(CorruptFrame):
        frames.decode_request(header)
    header = msgspec.msgpack.encode([int(m.Api.HELLO), 99, correlation_id])
    with pytest.raises(CorruptFrame):
        frames.decode_request(header)


@pytest.mark.parametrize("correlation_id", [1, 2**31 - 1])
def test_correlation_ids_in_their_range(correlation_id: int) -> None:
    header = msgspec.msgpack.encode([int(m.Api.METADATA), 1, correlation_id])
    assert frames.decode_request(header).correlation_id == correlation_id


@pytest.mark.parametrize("correlation_id", [-1, 2**31, 2**63])
def test_a_client_takes_no_answer_with_an_impossible_id(correlation_id: int) -> None:
    header = msgspec.msgpack.encode([int(m.Api.METADATA), 1, correlation_id, 0, ""])
    with pytest.raises(CorruptFrame):
        frames.peek_preamble(header)


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1])
def test_an_offset_wider_than_64_bits_is_refused(offset: int) -> None:
    entry = [bytes(16), 0, -1, offset]
    header = msgspec.msgpack.encode([int(m.Api.FETCH), 1, 5, 0, 1, 0, 1, "", -1, [entry]])
    with pytest.raises(CorruptFrame):
        frames.decode_request(header)


def test_a_hello_from_the_future_is_read() -> None:
    header = msgspec.msgpack.encode([int(m.Api.HELLO), 200, 9, {"other": "layout"}, [1]])
    request = frames.decode_request(header)
    assert request == m.HelloRequest(int(m.Api.HELLO), 200, 9)


def test_texts_give_way_where_ten_thousand_entries_failed() -> None:
    entries = [m.ProducePartitionResult(bytes(16), n, 50, "why " * 200) for n in range(10_000)]
    response = m.ProduceResponse(partitions=entries)
    got = frames.decode_response(frames.encode(response, 1)[8:], int(m.Api.PRODUCE))
    assert isinstance(got, m.ProduceResponse)
    assert [(e.partition, e.error_code) for e in got.partitions] == [(n, 50) for n in range(10_000)]
    assert not any(entry.error_message for entry in got.partitions)


def test_the_widest_partition_is_within_the_limits() -> None:
    node, offset = -(2**31), -(2**63)
    nodes = [node] * limits.REPLICATION_FACTOR_MAX
    for widest in (
        m.PartitionMetadata(node, node, node, node, nodes, nodes),
        m.PartitionDescription(
            node, node, node, nodes, nodes, offset, offset, offset, offset, offset, node
        ),
    ):
        size = len(msgspec.msgpack.encode(widest))
        assert size <= limits.PARTITION_DESCRIPTION_BYTES_MAX
