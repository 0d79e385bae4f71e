"""What only the blocking client must do: ranges of a partition, and threads that share it.

Collected like `client_scenarios`, where the class is subclassed.
"""

from __future__ import annotations

import threading
import uuid

import pytest

import quiverlog
from quiverlog.client.tables.fetcher import PartitionFetcher

from .client_scenarios import SCHEMA, read, rows

__all__ = ["BlockingScenarios"]


class BlockingScenarios:
    """What only the blocking client has. Needs the fixture `address`."""

    def test_a_fetcher_reads_one_range(self, address: str) -> None:
        topic = f"f-{uuid.uuid4().hex[:12]}"
        with quiverlog.connect(address) as client:
            info = client.create_topic(topic, SCHEMA)
            assert info is not None
            with client.producer(topic, batch_rows=10) as producer:
                producer.send(rows(200))
            with PartitionFetcher(client, topic, 0, 13, 187, bytes_max=1, columns=["id"]) as found:
                ids = [i for batch in found for i in batch.data.column(0).to_pylist()]
            assert ids == [*range(13, 187)]
            with PartitionFetcher(client, topic, 0, 150, 250) as found:
                assert len(next(found)) == 10
            with pytest.raises(quiverlog.UnknownTopicId):
                list(PartitionFetcher(client, topic, 0, 0, 5, topic_id=bytes(16)))
            client.delete_records(topic, {0: 100})
            with pytest.raises(quiverlog.OffsetOutOfRange, match="100 to 200"):
                list(PartitionFetcher(client, topic, 0, 5, 150))

    def test_a_fetcher_recognises_a_topic_that_was_created_anew_behind_its_client(
        self, address: str
    ) -> None:
        topic = f"f-{uuid.uuid4().hex[:12]}"
        with quiverlog.connect(address) as client, quiverlog.connect(address) as other:
            for first in (0, 100):
                info = other.create_topic(topic, SCHEMA)
                with other.producer(topic) as producer:
                    producer.send(rows(5, first=first))
                with PartitionFetcher(client, topic, 0, 0, 5, topic_id=info.topic_id) as found:
                    ids = [i for batch in found for i in batch.data.column("id").to_pylist()]
                assert ids == [*range(first, first + 5)]
                other.delete_topic(topic)

    def test_threads_share_a_client_and_a_producer(self, address: str) -> None:
        topic = f"s-{uuid.uuid4().hex[:12]}"
        with quiverlog.connect(address) as client:
            client.create_topic(topic, SCHEMA, partitions=3)
            with client.producer(topic, batch_rows=50) as producer:

                def work(first: int) -> None:
                    for i in range(20):
                        producer.send(rows(10, first=first + 10 * i))
                    client.list_offsets(topic)

                threads = [threading.Thread(target=work, args=(1_000 * i,)) for i in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            ids = sorted(row["id"] for row in read(client, topic))
        assert ids == [1_000 * t + i for t in range(4) for i in range(200)]
