"""Guides that need a broker and no Spark: the blocks of a page are one script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiverlog import otel
from tests.support.broker import BrokerProcess
from tests.support.pages import ADDRESS, ROOT, run_python

pytestmark = pytest.mark.process
PAGES = {
    "python-client.md": " 0 [{'carrier': 'UA', 'flight': 1545, 'delay_min': 2.0}]",
    "transactions.md": "",
}
"""And a line that the page's first program prints."""


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        monkeypatch.setenv("QUIVERLOG_BOOTSTRAP_SERVER", process.bootstrap)
        yield process


@pytest.mark.parametrize("name", PAGES)
def test_the_page_runs(
    name: str,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_python(ROOT / "docs" / name, {ADDRESS: broker.bootstrap})
    otel.uninstrument()
    names["client"].close()
    printed = capsys.readouterr().out
    assert PAGES[name] in printed
