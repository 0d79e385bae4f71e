"""The table of errors: numbers never change, errors survive the wire and pickling."""

from __future__ import annotations

import pickle

import pytest

from quiverlog import errors
from quiverlog.errors import QuiverlogError, error_class, error_from_code
from quiverlog.limits import ERROR_MESSAGE_CHARS_MAX

ALL = sorted(errors._BY_CODE.items())

NUMBERS = {
    1: "QUIVERLOG_ERROR", 2: "CORRUPT_FRAME", 3: "FRAME_TOO_LARGE", 4: "UNKNOWN_API",
    5: "UNSUPPORTED_VERSION", 6: "NOT_NEGOTIATED", 7: "INVALID_REQUEST",
    8: "TOO_MANY_CONNECTIONS", 9: "BROKER_SHUTTING_DOWN", 20: "UNKNOWN_TOPIC",
    21: "UNKNOWN_PARTITION", 22: "UNKNOWN_TOPIC_ID", 23: "TOPIC_EXISTS",
    24: "INVALID_TOPIC_NAME", 25: "INVALID_PARTITIONS", 26: "INVALID_REPLICATION_FACTOR",
    27: "INVALID_CONFIG", 28: "INVALID_SCHEMA", 29: "INCOMPATIBLE_SCHEMA", 30: "UNKNOWN_SCHEMA",
    31: "NOT_LEADER", 32: "FENCED_LEADER_EPOCH", 33: "UNKNOWN_LEADER_EPOCH",
    34: "OFFSET_OUT_OF_RANGE", 35: "OFFSET_NOT_AVAILABLE", 36: "LOG_TRUNCATED",
    37: "POLICY_VIOLATION", 50: "CORRUPT_BATCH", 51: "BATCH_TOO_LARGE",
    52: "OUT_OF_ORDER_SEQUENCE", 53: "INVALID_PRODUCER_EPOCH", 54: "UNKNOWN_PRODUCER_ID",
    55: "INVALID_TIMESTAMP", 56: "DISK_FULL", 57: "STORAGE_FAULT", 58: "CORRUPT_LOG",
    59: "NOT_ENOUGH_REPLICAS", 60: "REQUEST_TIMED_OUT", 61: "UNSUPPORTED_DURABILITY",
    62: "THROTTLED_BROKER", 80: "DATA_DIRECTORY_IN_USE", 81: "FOREIGN_DATA_DIRECTORY",
    82: "ADDRESS_IN_USE", 83: "UNSUPPORTED_FORMAT", 84: "TRANSACTION_FENCED",
    85: "TRANSACTION_CLOSED", 86: "UNKNOWN_TRANSACTIONAL_ID", 87: "SEQUENCE_TOO_OLD",
    88: "SEQUENCE_TAKEN", 89: "STAGED_ROWS_LOST", 90: "TRANSACTION_BUSY", 91: "STAGING_FULL",
    92: "COORDINATOR_NOT_READY", 93: "INTERNAL_TOPIC", 94: "UNKNOWN_MEMBER",
    95: "FENCED_MEMBER_EPOCH", 96: "FENCED_INSTANCE", 97: "UNSTABLE_OFFSETS",
    98: "GROUP_NOT_EMPTY", 99: "INVALID_GROUP", 100: "UNSUPPORTED_ASSIGNOR", 101: "GROUP_FULL",
    109: "TRANSACTION_TOO_LARGE",
}  # fmt: skip


def test_numbers_on_the_wire_never_change() -> None:
    now = {code: cls.code_name() for code, cls in ALL if code < 1000}
    assert {code: now.get(code) for code in NUMBERS} == NUMBERS


@pytest.mark.parametrize(("code", "cls"), ALL, ids=lambda value: str(value))
def test_every_error_survives_the_wire_and_a_pickle(code: int, cls: type[QuiverlogError]) -> None:
    error = error_from_code(code, "it broke.", where="here")
    assert type(error) is cls is error_class(code)
    assert str(error).startswith("it broke.")
    assert str(error).endswith(f"[{cls.code_name()} {code}]")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.message, copy.details) == ("it broke.", {"where": "here"})
    assert str(cls()).startswith(f"{cls.hint} ["), "a hint alone appears once"


def test_a_code_of_the_future_is_an_error_too() -> None:
    error = error_from_code(987, "unheard of")
    assert type(error) is QuiverlogError
    assert "987" in str(error)
    assert "unheard of" in str(error)


def test_messages_are_bounded() -> None:
    assert len(QuiverlogError("x" * 10_000).message) == ERROR_MESSAGE_CHARS_MAX


def test_a_code_is_needed_and_taken_once() -> None:
    with pytest.raises(TypeError, match="needs a code"):
        type("Codeless", (QuiverlogError,), {})
    with pytest.raises(TypeError, match="taken"):
        type("Second", (QuiverlogError,), {"code": 2})
