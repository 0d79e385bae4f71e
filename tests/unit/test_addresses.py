"""The one parser of addresses: what it takes, what it refuses, and that all doors use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.addresses import Address, network_of, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9292", Address("127.0.0.1", 9292)),
        ("broker-1.example:1", Address("broker-1.example", 1)),
        ("[::1]:65535", Address("::1", 65_535)),
        ("[fe80::1%eth0]:7", Address("fe80::1%eth0", 7)),
        (" a:5 ", Address("a", 5)),
    ],
)
def test_host_and_port(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize("text", ["a", "::1", "[::1]", "fe80::1"])
def test_a_missing_port_is_the_default_where_there_is_one(text: str) -> None:
    assert parse_address(text, port_default=9292) == Address(text.strip("[]"), 9292)
    with pytest.raises(ValueError, match="is not host:port"):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":9292", "a:", "a:0", "a:65536", "a:-1", "a:+5", "a:1_000", "a:port", "a:٣"),
        *("[::1", "[]:5", "[::1]5", "[::1]:", "a b:5", "a/b:5", "http://a:5", "a\x1b[2J:5"),
        *("a,b:5", "x" * 256 + ":5"),
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    for port_default in (None, 9292):
        with pytest.raises(ValueError, match="is not host:port") as caught:
            parse_address(text, port_default=port_default)
        assert repr(text) in str(caught.value)


def test_port_zero_is_for_servers_only() -> None:
    assert parse_address("a:0", port_min=0).port == 0


def test_lists_keep_order_and_drop_repetitions() -> None:
    assert parse_addresses("b:2, a:1 ,b:2,") == (Address("b", 2), Address("a", 1))
    for text in ("", " , ", ","):
        with pytest.raises(ValueError, match="at least one address"):
            parse_addresses(text)


@given(st.text(max_size=40))
def test_whatever_is_taken_can_be_written_and_read_again(text: str) -> None:
    try:
        address = parse_address(text, port_default=9292)
    except ValueError:
        return
    assert parse_address(str(address)) == address


def server(text: str) -> object:
    from quiverlog.server.config.config import load_config

    return load_config(flags={"listen": text}).listen


def client(text: str) -> object:
    from quiverlog.client.base.arguments import bootstrap_addresses as parse

    return parse(text)[0]


def connector(text: str) -> object:
    from pyspark_quiverlog.options import Use, parse_read_options

    options = {"bootstrap.servers": text, "subscribe": "t"}
    return parse_address(parse_read_options(options, Use.READ).bootstrap_servers[0])


@pytest.mark.parametrize("door", [server, client, connector])
def test_every_door_reads_addresses_alike(door: Callable[[str], object]) -> None:
    assert door("[::1]:9292") == Address("::1", 9292)
    for text in ("a b:5", "http://a:5", "a:٣", "[::1]5", "a:65536"):
        with pytest.raises(Exception, match="host:port"):
            door(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("a name", "a name", True),
        ("", "10.0.0.1", False),
    ],
)
def test_addresses_of_one_machine(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
