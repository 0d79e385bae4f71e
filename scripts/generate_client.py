"""Writes the blocking client from the asyncio client: both are typed once.

The files on the left of `FILES`, in `broker/quiverlog/client`, are the source; those on the right
are generated and checked in, so that people can read them and editors find them. A unit test runs
`generated()` and compares. Run after every change of a source:

    python scripts/generate_client.py

Two comments direct it where the two cannot be alike:

    def f(self) -> None:  # asyncio only        the function is left out
    # blocking: statement                       the statement is put in
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "broker" / "quiverlog" / "client"

FILES = {
    "async_client.py": ("client.py", "The blocking client: connecting, producers and consumers."),
    "async_methods.py": ("blocking_methods.py", "The blocking client's methods: a question each."),
    "producer/async_producer.py": (
        "producer/producer.py",
        "The blocking producer and its futures.",
    ),
    "transactions/async_transaction.py": (
        "transactions/transaction.py",
        "The blocking client's transactions.",
    ),
    "groups/async_group_consumer.py": (
        "groups/group_consumer.py",
        "The blocking consumer of a group.",
    ),
    "consumer/async_consumer.py": ("consumer/consumer.py", "The blocking consumer."),
    "consumer/async_reading.py": ("consumer/reading.py", "The blocking client's bounded reads."),
}
"""Source -> target and the first line of the target's docstring."""

RULES = (
    (r"^ +(?:async )?def [^\n]*# asyncio only\n(?: {8}[^\n]*\n|\n)+", ""),
    (r"# blocking: ", ""),
    (r"Opening\[(\w+)\]", r"\1"),
    (r"Opening\((\w+)\)", r"\1()"),
    (r"^from (?:quiverlog\.client|)\.base\.opening import Opening\n", ""),
    (r"\basyncio_only\b", "blocking_only"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\[batch for batch in self\]", "list(self)"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\basynchronous import AsyncDriver", "blocking import BlockingDriver"),
    (r"\bAsync(Driver|Methods)\b", r"Blocking\1"),
    (r"\basync_methods\b", "blocking_methods"),
    (r"quiverlog\.aio\.AsyncClient", "quiverlog.Client"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync_", ""),
    ("An asyncio client, for one event loop;", "A blocking client. Threads may share it;"),
    ("For one task at a time;", "For one thread at a time;"),
)
"""Pattern -> replacement, one after the other."""


def generated(source: str) -> str:
    """The text of the file that is generated from `source`."""
    text = (CLIENT / source).read_text()
    _, summary = FILES[source]
    text = re.sub(r'\A""".*?"""\n', "", text, flags=re.DOTALL)
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    assert not re.search("async|await", text, re.IGNORECASE), f"{source}: asyncio is left"
    note = f"Generated from `{source}` by scripts/generate_client.py; do not edit."
    return _formatted(f'"""{summary}\n\n{note}\n"""\n{text}')


def _formatted(text: str) -> str:
    """As ruff wants it: shorter names let lines be joined and leave imports without use."""
    for command in (("check", "--fix", "--quiet", "--select", "F401,I"), ("format", "--quiet")):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "x.py")]
        text = subprocess.run(
            [*ruff, "-"], input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


if __name__ == "__main__":
    for name, (target, _) in FILES.items():
        (CLIENT / target).write_text(generated(name))
        print(f"{target}: written")
