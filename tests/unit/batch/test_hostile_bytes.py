"""Whatever bytes a broker sends, a reader raises its errors and lives (docs/adr/0012)."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from quiverlog.batch.schema import deserialize_stored, serialize_schema
from quiverlog.errors import InvalidSchema

BATCHES = 1_500


@pytest.mark.parametrize("seed", [1, 2])
def test_a_reader_survives_damaged_batches_under_good_checksums(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hostile", str(seed), str(BATCHES)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"the reader died: {done.stderr[-2000:]}"
    read = int(done.stdout)
    assert BATCHES // 20 < read < BATCHES // 2, "some damage is harmless, most is not"


@pytest.mark.parametrize(
    "data_type",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.string_view(),
        pa.large_string(),
        pa.list_view(pa.int8()),
        pa.binary(4),
        pa.uuid(),
    ],
    ids=str,
)
def test_a_schema_that_no_topic_may_have_is_not_read_with(data_type: pa.DataType) -> None:
    """Indices, type ids and run ends of these types are not what `read_rows` checks."""
    schema = serialize_schema(pa.schema([("x", data_type)]))
    with pytest.raises(InvalidSchema, match="'x"):
        deserialize_stored(schema)
