"""The commands of README.md do what it describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import quiverlog
from tests.support.broker import BrokerProcess
from tests.support.pages import typed

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
pytestmark = pytest.mark.process


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_snippets_run_in_their_order_on_a_fresh_broker(tmp_path: Path) -> None:
    """Spark's is run by tests/spark/test_readme.py; here it must find what it names."""
    python, spark = blocks("python")
    with BrokerProcess() as broker:
        assert "127.0.0.1:9292" in python
        (tmp_path / "program.py").write_text(python.replace("127.0.0.1:9292", broker.bootstrap))
        out = typed("python program.py", tmp_path, broker.bootstrap)
        assert "{'carrier': 'UA', 'delay': 2.0}" in out
        assert "{'carrier': 'AA', 'delay': -5.5}" in out
        topics = set(re.findall(r'"(?:subscribe|topic)", "(\w+)"', spark))
        assert topics == {"flights", "late"}
        with quiverlog.connect(broker.bootstrap) as client:
            assert topics <= set(client.list_topics())
