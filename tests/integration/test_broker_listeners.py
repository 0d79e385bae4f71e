"""A broker process with a second listener: its clients get addresses of that listener."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import quiverlog
from quiverlog.errors import ListenerWithoutAdministration, WrongCluster, WrongListener
from quiverlog.wire import messages as m
from quiverlog.wire.quorum_messages import QuorumRequest
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient

pytestmark = pytest.mark.process


def test_each_listener_returns_its_own_address() -> None:
    config = {
        "listeners.internal.bind": "127.0.0.1:0",
        "inter.broker.listener": "internal",
    }
    with BrokerProcess(config=config) as broker:
        found = re.search(r"internal (127\.0\.0\.1):(\d+)", broker.log_text)
        assert found is not None, broker.log_text
        internal = (found[1], int(found[2]))
        assert internal != broker.address
        # Brokers meet at the internal one: there it is checked which broker they mean.
        for address, refusal in ((broker.address, WrongListener), (internal, WrongCluster)):
            with RawClient(address) as client:
                answer = client.ask(m.MetadataRequest())
                assert [(b.host, b.port) for b in answer.brokers] == [address]
                with pytest.raises(refusal):
                    client.ask(QuorumRequest())
            with quiverlog.connect(f"{address[0]}:{address[1]}") as client:
                assert client.list_topics() == []


def test_administration_is_refused_where_the_listener_has_none() -> None:
    config = {
        "listeners.internal.bind": "127.0.0.1:0",
        "listeners.default.administration": "false",
    }
    with BrokerProcess(config=config) as broker:
        found = re.search(r"internal (127\.0\.0\.1:\d+)", broker.log_text)
        assert found is not None, broker.log_text
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", "n long")
            with pytest.raises(ListenerWithoutAdministration, match=f"at 'internal' .{found[1]}"):
                client.delete_topic("t")
            assert client.list_topics() == ["t"]
        for words in (
            ("quorum", "status"),
            ("cluster", "features"),
            ("partition", "reassign", "--status"),
        ):
            command = [sys.executable, "-m", "quiverlog", *words, "-b", broker.bootstrap]
            asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert asked.returncode == 0, (words, asked.stderr)
        with quiverlog.connect(found[1]) as client:
            client.delete_topic("t")
            assert client.list_topics() == []
