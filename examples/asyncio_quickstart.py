"""A producer and a follower side by side: `python examples/asyncio_quickstart.py [host:port]`.

Needs a running broker (`quiverlog broker`). Removes its topic at the end.
"""

from __future__ import annotations

import asyncio
import sys

import pyarrow as pa

import quiverlog.aio

TOPIC = "quickstart-ticks"
SCHEMA = pa.schema([("symbol", pa.string()), ("price", pa.float64())])
ROWS = 20


async def produce(client: quiverlog.aio.AsyncClient) -> None:
    async with client.producer(TOPIC) as producer:
        for i in range(ROWS):
            await producer.send({"symbol": f"S{i % 3}", "price": 100 + i / 4})
            await asyncio.sleep(0.01)


async def follow(client: quiverlog.aio.AsyncClient) -> int:
    seen = 0
    async with client.consumer(TOPIC, follow=True) as consumer:
        async for batch in consumer:
            seen += len(batch)
            print(f"{batch!r}: {batch.to_pylist()[0]}")
            if seen == ROWS:
                break
    return seen


async def main(bootstrap: str) -> None:
    async with quiverlog.aio.connect(bootstrap) as client:
        await client.create_topic(TOPIC, SCHEMA, partitions=2, if_not_exists=True)
        _, seen = await asyncio.gather(produce(client), follow(client))
        print(f"{seen} rows seen")
        await client.delete_topic(TOPIC)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9292"))
