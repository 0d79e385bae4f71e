"""Count orders exactly once: `python examples/transactions.py [host:port]`.

Rows that are read, what is made of them and how far the program has come are written to two topics
in one transaction: a program that dies anywhere goes on where its last commit was. Needs a running
broker (`quiverlog broker`). Removes its topics at the end.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import quiverlog

ORDERS, TOTALS, PROGRESS = "example-orders", "example-totals", "example-progress"
SCHEMAS = {
    ORDERS: pa.schema([("customer", pa.string()), ("cents", pa.int64())]),
    TOTALS: pa.schema([("customer", pa.string()), ("cents", pa.int64())]),
    PROGRESS: pa.schema([("next_offset", pa.int64())]),
}


def next_offset(client: quiverlog.Client) -> int:
    rows = client.read(PROGRESS).to_arrow().column("next_offset").to_pylist()
    return max(rows, default=0)


def count_some(client: quiverlog.Client) -> int:
    """Count the orders that no commit has counted."""
    with client.transaction("example-counter") as tx:
        # Behind the opening: what has committed can be read, and no other program commits now.
        start = next_offset(client)
        orders = client.read(ORDERS, start={0: start}).to_arrow()
        if orders.num_rows:
            totals = orders.group_by("customer").aggregate([("cents", "sum")])
            tx.send(TOTALS, totals.rename_columns(["customer", "cents"]))
            tx.send(PROGRESS, {"next_offset": start + orders.num_rows})
    print(f"transaction {tx.sequence}: {orders.num_rows} orders, {tx.result}")
    return orders.num_rows


def main(bootstrap: str) -> None:
    with quiverlog.connect(bootstrap) as client:
        for topic, schema in SCHEMAS.items():
            client.create_topic(topic, schema, if_not_exists=True)
        counted = 0
        for orders in ([("ada", 250), ("bob", 100)], [("ada", 50)], []):
            with client.producer(ORDERS) as producer:
                producer.send([{"customer": name, "cents": cents} for name, cents in orders])
            counted += count_some(client)
        print(client.read(TOTALS).to_arrow().to_pylist())
        print(f"{counted} orders of {client.list_offsets(ORDERS)[0]} were counted once")
        for topic in SCHEMAS:
            client.delete_topic(topic)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292")
