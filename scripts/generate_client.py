"""Writes the blocking client's methods from the asyncio client's: they are typed once.

`broker/quiverlog/client/async_methods.py` is the source; `blocking_methods.py` is generated and
checked in, so that people can read it and editors find it. A unit test runs `generated()` and
compares. Run after every change of the source:

    python scripts/generate_client.py
"""

from __future__ import annotations

import re
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "broker" / "quiverlog" / "client"
SOURCE = CLIENT / "async_methods.py"
TARGET = CLIENT / "blocking_methods.py"

DOCSTRING = '''"""The blocking client's methods that ask one question each, from question to result.

Generated from `async_methods.py` by scripts/generate_client.py; do not edit.
"""
'''


def generated() -> str:
    """The text of `blocking_methods.py`."""
    text = SOURCE.read_text()
    text = re.sub(r'\A""".*?"""\n', lambda _: DOCSTRING, text, flags=re.DOTALL)
    text = text.replace("async def ", "def ").replace("await ", "")
    text = text.replace("AsyncMethods", "BlockingMethods")
    assert "async" not in text.removeprefix(DOCSTRING), "something asynchronous is left"
    return text


if __name__ == "__main__":
    TARGET.write_text(generated())
    print(f"{TARGET.name}: written")
