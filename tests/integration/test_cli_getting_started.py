"""docs/getting-started.md, typed in as a newcomer would: its output must be what the page shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.pages import typed

pytestmark = pytest.mark.process

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "getting-started.md").read_text()
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(heading: str) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, f"the page has no section {heading!r}"
    return FENCE.findall(section)


def test_the_commands_of_the_page_work(tmp_path: Path):
    with BrokerProcess() as broker:
        ((_, ready),) = [b for b in blocks("A broker") if not b[0]]
        fixed = r"quiverlog broker 0 ready: clients .*, http .*, data .*, durability flushed"
        assert re.fullmatch(fixed, ready.strip())
        assert re.fullmatch(fixed, broker.ready_line.strip())

        ((_, create),) = blocks("A topic")
        assert "price" in typed(create, tmp_path, broker.bootstrap)

        (_, fill), (_, shown) = blocks("Rows in, rows out")
        assert typed(fill, tmp_path, broker.bootstrap).endswith(shown)
        for words in re.findall(r"`(--\S+ [^`]+)`", PAGE.partition("## Rows in")[2]):
            if words.startswith(("--from 0", "--from 2", "--columns")):
                limited = words.replace("0=17", "0=1")
                typed(f"quiverlog consume --topic trips {limited}", tmp_path, broker.bootstrap)

        ((_, python),) = blocks("Python")
        assert "127.0.0.1:9292" in python
        program = python.replace("127.0.0.1:9292", broker.bootstrap)
        out = typed(f"{sys.executable} - <<'END'\n{program}\nEND", tmp_path, broker.bootstrap)
        assert "Pune" in out
        assert "Oslo" in out
