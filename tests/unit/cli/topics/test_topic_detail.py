"""What `topic describe` shows of partitions whose leader could not be asked."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from quiverlog.cli.topics.topic_detail import detail_json, print_detail
from quiverlog.client.base.results import PartitionDetail, SchemaInfo, TopicDetail

_MADE = datetime(2026, 1, 1, tzinfo=UTC)


def _answered(number: int, rows: int) -> PartitionDetail:
    return PartitionDetail(number, 1, 0, (1, 2), (1, 2), 5, 5 + rows, 5 + rows, 5 + rows, 300, 1)


def _silent(number: int) -> PartitionDetail:
    return PartitionDetail(number, 2, 0, (2, 1), (2,), -1, -1, -1, -1, 0, 0)


def _topic(*partitions: PartitionDetail) -> TopicDetail:
    schema = SchemaInfo(1, _MADE, pa.schema({"n": pa.int64()}))
    return TopicDetail("t", b"\0" * 16, _MADE, (), 2, {}, (schema,), partitions)


def _fields(text: str) -> dict[str, str]:
    """The lines above the tables."""
    lines = text.partition("\n\n")[0].splitlines()
    return {line.split("  ")[0]: line.partition("  ")[2].strip() for line in lines}


@pytest.mark.parametrize(
    ("partitions", "rows", "size"),
    [
        ([_answered(0, 7), _answered(1, 0)], "7", "600 B"),
        ([_answered(0, 7), _silent(1)], "at least 7", "at least 300 B"),
        ([_silent(0), _silent(1)], "unknown", "unknown"),
    ],
)
def test_rows_that_no_leader_counted_are_not_none(
    partitions: list[PartitionDetail], rows: str, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_detail(_topic(*partitions), all_configs=False)
    fields = _fields(capsys.readouterr().out)
    assert (fields["rows"], fields["size"]) == (rows, size)


def test_a_partition_that_was_not_asked_has_a_question_mark_in_every_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_detail(_topic(_silent(0)), all_configs=False)
    tables = capsys.readouterr().out.partition("\npartitions\n")[2].splitlines()
    rows = [line.split() for line in tables if line.strip().startswith("0 ")]
    assert rows == [["0", "2", "?", "?", "?", "?"], ["0", "0", "2,1", "2", "?", "?"]]


def test_json_has_no_sum_where_a_partition_was_not_asked() -> None:
    known, partly = detail_json(_topic(_answered(0, 7))), detail_json(_topic(_silent(0)))
    assert (known["rows"], known["size_bytes"]) == (7, 300)
    assert (partly["rows"], partly["size_bytes"]) == (None, None)


def test_the_repr_of_a_topic_marks_sums_without_silent_partitions() -> None:
    assert "at least 7 rows in 2 partitions" in repr(_topic(_answered(0, 7), _silent(1)))
    assert "TopicDetail('t', unknown rows in 1 partition," in repr(_topic(_silent(0)))
    assert "TopicDetail('t', 7 rows in 1 partition," in repr(_topic(_answered(0, 7)))


def test_a_notebook_shows_no_offsets_of_a_partition_that_was_not_asked() -> None:
    shown = _topic(_silent(0))._repr_html_()
    assert shown.count("<td>?</td>") == 3
    assert "-1" not in shown
