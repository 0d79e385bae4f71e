"""Save a topic as one Parquet file, and make a topic of such a file.

    python examples/topic_backup.py save TOPIC FILE.parquet [host:port]
    python examples/topic_backup.py restore FILE.parquet TOPIC [host:port]

Kept: columns, key columns, settings, the partition of each row, the order in it, and each row's
time. Offsets begin at 0 again; `restore` prints which they were. If it is cut off, delete the topic
and begin again.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.parquet as pq

import quiverlog
from quiverlog.batch.codec import encode_batch

ABOUT = b"quiverlog.topic"
PLACE = ["_partition", "_offset", "_timestamp"]
FILE_ROWS_MAX = 65_536


def save(client: quiverlog.Client, topic: str, path: str) -> None:
    found = client.describe_topic(topic)
    about = {
        "partitions": len(found.partitions),
        "key": list(found.key_columns),
        "config": {k: v.value for k, v in found.configs.items() if v.source == "topic"},
    }
    columns = client.schemas(topic).current
    reading = client.read(topic, columns=[*columns.names, *PLACE])
    schema = pa.schema([*columns, *(reading.schema.field(name) for name in PLACE)])
    schema = schema.with_metadata({ABOUT: json.dumps(about).encode()})
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for batch in reading:
            file.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            rows += batch.num_rows
    print(f"{rows} rows of {topic} are in {path}")


def restore(client: quiverlog.Client, path: str, topic: str) -> None:
    file = pq.ParquetFile(path)
    about = json.loads(file.schema_arrow.metadata[ABOUT])
    names = [name for name in file.schema_arrow.names if name not in PLACE]
    schema = pa.schema([file.schema_arrow.field(name) for name in names])
    # These would stamp or refuse the old rows.
    later = {k: v for k, v in about["config"].items() if k.startswith("message.timestamp.")}
    client.create_topic(
        topic,
        schema,
        partitions=about["partitions"],
        key=about["key"] or None,
        config={k: v for k, v in about["config"].items() if k not in later},
    )
    schema_id = client.schemas(topic).current_id
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for rows in file.iter_batches(FILE_ROWS_MAX):
        data = rows.select(names).cast(schema)
        partitions = rows.column("_partition").to_pylist()
        times = rows.column("_timestamp").cast(pa.int64()).to_pylist()
        offsets = rows.column("_offset").to_pylist()
        places = enumerate(zip(partitions, times, strict=True))
        for (partition, time), run in groupby(places, itemgetter(1)):
            at = [place for place, _ in run]
            part = data.slice(at[0], len(at))
            batch = encode_batch(part, schema_id=schema_id, timestamp_us=time)
            client.raw_produce(topic, {partition: [batch]})
            first.setdefault(partition, offsets[at[0]])
            last[partition] = offsets[at[-1]]
    if later:
        client.alter_topic(topic, config=later)
    for partition, offset in sorted(first.items()):
        print(f"partition {partition}: offsets {offset} to {last[partition]} begin at 0 now")


def main(action: str, source: str, target: str, bootstrap: str | None = None) -> None:
    with quiverlog.connect(bootstrap) as client:
        act = {"save": save, "restore": restore}[action]
        act(client, source, target)


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) not in (3, 4) or words[0] not in ("save", "restore"):
        sys.exit(__doc__)
    try:
        main(*words)
    except (quiverlog.QuiverlogError, OSError, pa.ArrowException) as error:
        sys.exit(f"topic_backup: {error}")
