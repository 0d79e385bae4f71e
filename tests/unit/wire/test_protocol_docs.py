"""docs/protocol.md describes the messages as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from quiverlog import limits
from quiverlog.client.transactions import questions
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS
from scripts import protocol_model

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
SIDES = ("request", "response")


def test_both_pages_have_their_generated_tables() -> None:
    """tests/unit/test_docs.py holds that they agree with the code."""
    found = {
        page.name: set(re.findall(r"<!-- generated: ([\w-]+) -->\n.", page.read_text()))
        for page in (PAGE, PAGE.with_name("protocol-internal.md"))
    }
    assert found == {
        "protocol.md": {
            "protocol-apis",
            "protocol-errors",
            "protocol-key-vectors",
            "protocol-limits",
            "protocol-messages",
        },
        "protocol-internal.md": {"protocol-internal-errors", "protocol-internal-messages"},
    }


def test_every_api_is_on_one_of_the_pages() -> None:
    clients, brokers = (
        set(re.findall(r"^### (\d+) ", page.read_text(), re.MULTILINE))
        for page in (PAGE, PAGE.with_name("protocol-internal.md"))
    )
    assert clients == {str(int(s.api)) for s in APIS.values() if not s.between_brokers}
    assert brokers == {str(int(s.api)) for s in APIS.values() if s.between_brokers}


def test_every_field_has_a_meaning_and_every_meaning_a_field() -> None:
    used = set()
    for cls in protocol_model.structs():
        for field in protocol_model.fields_of(cls):
            own = f"{cls.__name__}.{field.name}"
            used.add(own if own in protocol_model.MEANINGS else field.name)
    assert used == set(protocol_model.MEANINGS)


def test_the_json_equals_the_classes() -> None:
    document = json.loads((PAGE.parent / "protocol.json").read_text())
    apis = {api["name"]: api for api in document["apis"]}
    parts = {part["name"]: part for part in document["parts"]}
    delete = apis["DELETE_TOPICS"]["request"]["fields"]
    assert [(f["name"], f["type"], f["nullable"]) for f in delete] == [
        ("names", "array of str", False),
        ("topic_ids", "array of bin", False),
    ]
    describe = {f["name"]: f for f in apis["DESCRIBE_TOPICS"]["request"]["fields"]}
    assert describe["names"]["nullable"]
    assert describe["names"]["count_max"] == limits.TOPICS_PER_REQUEST_MAX
    fetch = {f["name"]: f for f in apis["FETCH"]["request"]["fields"]}
    assert (fetch["bytes_max"]["type"], fetch["bytes_max"]["default"]) == ("int64", 0)
    result = {f["name"]: f for f in parts["ProducePartitionResult"]["fields"]}
    assert (result["base_offset"]["value_min"], result["base_offset"]["value_max"]) == (-1, None)
    assert (result["durability"]["value_min"], result["durability"]["value_max"]) == (0, 3)
    assert (result["next_sequence"]["value_min"], result["next_sequence"]["value_max"]) == (
        None,
        None,
    )
    closing = {error["name"] for error in document["errors"] if error["closes_connection"]}
    assert "NOT_NEGOTIATED" in closing
    assert "INVALID_REQUEST" not in closing
    names = {part["name"] for part in (*document["parts"], *document["unions"])}
    assert {a["name"] for a in document["apis"] if a["between_brokers"]} == {
        "QUORUM",
        "REGISTER_BROKER",
        "BROKER_HEARTBEAT",
        "REPLICA_FETCH",
        "ALTER_PARTITION",
        "REPORT_LOG_ENDS",
        "FORWARD",
        "COUNT_STAGED",
        "PUBLISH",
        "RESOLVE_STAGED",
    }
    for struct in [*document["parts"], *(a[side] for a in apis.values() for side in SIDES)]:
        for field in struct["fields"]:
            kind = field["type"].removeprefix("array of ")
            assert kind in {*names, "int32", "int64", "str", "bin", "bool", "map of str to str"}


def test_no_message_repeats_its_base() -> None:
    """A docstring that a class inherits is no text about that class."""
    document = json.loads((PAGE.parent / "protocol.json").read_text())
    structs = [*document["parts"], *(a[side] for a in document["apis"] for side in SIDES)]
    texts = [struct["about"] for struct in structs if struct["about"]]
    assert len(texts) == len(set(texts))
    for base in (m.Message, m.Part, m.Request, m.Response):
        assert " ".join((base.__doc__ or "").split()) not in texts


def test_no_meaning_is_for_one_side_only() -> None:
    """What holds for requests alone is written where a request has the field."""
    assert not [text for text in protocol_model.MEANINGS.values() if "in requests" in text]


def test_errors_that_do_not_always_close_are_documented_so() -> None:
    document = json.loads((PAGE.parent / "protocol.json").read_text())
    errors = {error["name"]: error for error in document["errors"]}
    open_at_times = {name for name, error in errors.items() if error["stays_open"]}
    assert open_at_times == {"UNSUPPORTED_VERSION", "FRAME_TOO_LARGE"}
    assert all(errors[name]["closes_connection"] for name in open_at_times)


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


def test_what_proves_that_a_commit_has_decided_nothing_can_be_answered() -> None:
    """The client goes by the same list as the page."""
    text = " ".join(PAGE.read_text().split())
    listed = re.findall(r"\b[A-Z_]{2,}\b", text.split("decided nothing: ")[1].split(". They")[0])
    assert listed == sorted(listed)
    by_name = {kind.code_name(): kind for kind in questions._REFUSED}
    assert set(listed) == set(by_name)
    answered = {
        *protocol_model.ENTRY_ERRORS[m.Api.COMMIT_TRANSACTION],
        *protocol_model.REQUEST_ERRORS,
    }
    assert set(by_name.values()) <= answered
