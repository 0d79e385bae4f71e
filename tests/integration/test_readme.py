"""The commands of README.md do what it describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import quiverlog
from tests.support.broker import BrokerProcess

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
pytestmark = pytest.mark.process


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def typed(script: str, broker: BrokerProcess, directory: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIVERLOG_")}
    environment["QUIVERLOG_BOOTSTRAP_SERVER"] = broker.bootstrap
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-eu"],
        input=script,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_snippets_run_in_their_order_on_a_fresh_broker(tmp_path: Path) -> None:
    """Spark's is run by tests/spark/test_readme.py; here it must find what it names."""
    python, spark = blocks("python")
    with BrokerProcess() as broker:
        assert "127.0.0.1:9292" in python
        (tmp_path / "program.py").write_text(python.replace("127.0.0.1:9292", broker.bootstrap))
        out = typed("python program.py", broker, tmp_path)
        assert "{'carrier': 'UA', 'delay': 2.0}" in out
        assert "{'carrier': 'AA', 'delay': -5.5}" in out
        topics = set(re.findall(r'"(?:subscribe|topic)", "(\w+)"', spark))
        assert topics == {"flights", "late"}
        with quiverlog.connect(broker.bootstrap) as client:
            assert topics <= set(client.list_topics())
