"""A user's program with mistakes, for type checkers:
tests/unit/client/test_typing.py. It is never run.
"""

from __future__ import annotations

from typing import assert_type

import pandas as pd
import polars as pl

import quiverlog


def right() -> int:
    with quiverlog.connect("127.0.0.1:9292", request_timeout=5) as client:
        client.create_topic("flights", "carrier string, delay double", key="carrier")
        with client.producer("flights", linger=0.01) as producer:
            producer.send([{"carrier": "UA", "delay": 2.0}]).result(timeout=10)
        try:
            batch = next(client.consumer("flights", start={0: "earliest"}, columns=["delay"]))
        except quiverlog.UnknownTopic as error:
            return error.code
        return batch.next_offset


def right_choices(client: quiverlog.Client) -> None:
    client.producer("flights", compression="zstd", durability="replicated_flushed")
    client.producer("flights", compression=quiverlog.Compression.LZ4)
    client.producer("flights", durability=quiverlog.Durability.FLUSHED)
    client.producer("flights", compression=None, durability=None)


def right_of_the_guide(client: quiverlog.Client) -> None:
    """The snippet that goes on behind rows that cannot be read."""
    consumer = client.consumer("flights", start="earliest", follow=False)
    try:
        consumer.poll()
    except quiverlog.CorruptBatch as error:
        consumer.seek(error.details["partition"], error.details["next_offset"])


def right_frames(client: quiverlog.Client) -> None:
    reading = client.read("flights", start="latest", end={0: 5})
    assert_type(reading.to_pandas(), pd.DataFrame)
    assert_type(reading.to_polars(), pl.DataFrame)


async def right_too() -> str:
    async with quiverlog.aio.connect() as client:
        assert_type(await (await client.read("flights")).to_polars(), pl.DataFrame)
        opened = await client.consumer("flights")
        await opened.close()
        batch = await anext(client.consumer("flights", follow=True))
        return batch.topic


def wrong(client: quiverlog.Client) -> None:
    quiverlog.conect("127.0.0.1:9292")  # wrong: attr-defined
    quiverlog.connect(9292)  # wrong: arg-type
    quiverlog.connect("127.0.0.1:9292", timeout=5)  # wrong: call-arg
    client.consumer("flights", fetch_from="anybody")  # wrong: call-overload
    client.consumer("flights", columns=5)  # wrong: call-overload
    client.consumer("flights", start="earlest")  # wrong: call-overload
    client.consumer("flights", start={0: "earlest"})  # wrong: dict-item
    client.consumer("flights", end="last")  # wrong: call-overload
    client.read("flights", end="earlest")  # wrong: arg-type
    client.list_offsets("flights", "newest")  # wrong: arg-type
    client.transaction("app", wait="commited")  # wrong: arg-type
    client.producer(topic=b"flights")  # wrong: arg-type
    client.producer("flights", compression="zippo")  # wrong: arg-type
    client.producer("flights", durability="flash")  # wrong: arg-type
    client.list_topic()  # wrong: attr-defined
    for batch in client.consumer("flights"):
        batch.partition.upper()  # wrong: attr-defined
    try:
        client.delete_topic("flights")
    except quiverlog.UnknownTopics:  # wrong: attr-defined
        raise


async def wrong_too(client: quiverlog.aio.AsyncClient) -> list[str]:
    await quiverlog.connect().consumer("flights")  # wrong: misc
    quiverlog.aio.connect().list_topics()  # wrong: attr-defined
    client.producer("flights").send([])  # wrong: attr-defined
    return client.list_topics()  # wrong: return-value
