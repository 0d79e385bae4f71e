"""The name of a broker in its certificate: one of its cluster, and nothing like it."""

from __future__ import annotations

import pytest

from quiverlog.wire.peer_proof import broker_in, broker_uri


def test_a_cluster_id_is_quoted() -> None:
    assert broker_uri("a/b c", 3) == "quiverlog://a%2Fb%20c/broker/3"
    assert broker_in(["URI:quiverlog://a%2Fb%20c/broker/3"], "a/b c") == 3
    assert broker_in(["URI:quiverlog://a/broker/3"], "a/broker/3") is None


@pytest.mark.parametrize("text", ["0", "1", "10", "4294967295"])
def test_node_ids(text: str) -> None:
    assert broker_in([f"URI:quiverlog://c/broker/{text}"], "c") == int(text)


@pytest.mark.parametrize("text", ["", "01", "-1", "1/", "1x", " 1", "\u0661", "1" * 11])
def test_what_is_no_node_id(text: str) -> None:
    assert broker_in([f"URI:quiverlog://c/broker/{text}"], "c") is None


@pytest.mark.parametrize("other", range(2, 20))
def test_a_certificate_of_two_brokers_is_that_of_none(other: int) -> None:
    assert (
        broker_in(["URI:quiverlog://c/broker/1", f"URI:quiverlog://c/broker/{other}"], "c") is None
    )


def test_one_name_twice_is_one() -> None:
    assert broker_in(["URI:quiverlog://c/broker/1"] * 2, "c") == 1
