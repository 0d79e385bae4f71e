"""Write rows to a topic and read them back: `python examples/python_quickstart.py [host:port]`.

Needs a running broker (`quiverlog broker`). Removes its topic at the end.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import quiverlog

TOPIC = "quickstart-flights"
SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32()),
        pa.field("delay_min", pa.float64()),
    ]
)


def main(bootstrap: str) -> None:
    with quiverlog.connect(bootstrap) as client:
        client.create_topic(TOPIC, SCHEMA, partitions=4, key=["carrier"], if_not_exists=True)

        with client.producer(TOPIC) as producer:
            future = producer.send(
                [
                    {"carrier": "UA", "flight": 1545, "delay_min": 2.0},
                    {"carrier": "AA", "flight": 1141, "delay_min": -1.5},
                    {"carrier": "UA", "flight": 1714, "delay_min": None},
                ]
            )
            for produced in future.result():
                print(
                    f"partition {produced.partition}: {produced.rows} rows from offset "
                    f"{produced.base_offset}, {produced.durability.label}"
                )

        rows = 0
        for batch in client.consumer(TOPIC, start="earliest", columns=["carrier", "delay_min"]):
            rows += len(batch)
            print(batch.partition, batch.base_offset, batch.to_pylist())
        print(f"{rows} rows; the ends are {client.list_offsets(TOPIC, at='latest')}")
        client.delete_topic(TOPIC)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292")
