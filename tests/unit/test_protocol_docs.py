"""docs/protocol.md says what the messages are."""

from __future__ import annotations

import re
from pathlib import Path

from quiverlog import limits
from scripts import protocol_tables

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
TABLES = {
    "protocol-apis": protocol_tables.apis_table,
    "protocol-key-vectors": protocol_tables.key_vectors_table,
    "protocol-messages": protocol_tables.messages_tables,
}


def test_generated_tables_are_fresh() -> None:
    text = PAGE.read_text()
    found = dict(re.findall(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    assert set(found) == set(TABLES)
    for name, make in TABLES.items():
        assert found[name] == make(), f"{name} is stale: run make docs"


def test_every_field_has_a_meaning_and_every_meaning_a_field() -> None:
    used = {name for cls in protocol_tables.structs() for name in cls.__struct_fields__}
    preamble = {"version", "correlation_id"}
    assert used - preamble == set(protocol_tables.MEANINGS)


def test_bounds_in_the_text_are_the_real_ones() -> None:
    text = " ".join(PAGE.read_text().split())
    for words in (
        f"at most {limits.FRAME_BYTES_MAX // limits.MIB} MiB ({limits.FRAME_BYTES_MAX:,} bytes",
        f"a header at most {limits.HEADER_BYTES_MAX // limits.MIB} MiB",
        f"{limits.REQUESTS_IN_FLIGHT_MAX:,} unanswered requests",
        f"{limits.WRITE_BUFFER_BYTES_MAX // limits.MIB} MiB of replies",
        f"silent for {limits.CONNECTION_IDLE_MS // 60_000} minutes",
        f"more than {limits.FRAME_TIMEOUT_MS // 1000} seconds for one frame",
        f"waiting reply for {limits.WRITE_STALL_MS // 1000} seconds",
        f"`max_wait_ms` (at most {limits.FETCH_MAX_WAIT_MS_MAX:,})",
    ):
        assert words in text, words
