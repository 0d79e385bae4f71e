"""The topics of a consumer: what each is read with, and which partition is asked for first.

A partition is named by its topic's id and its number. `TopicReader` owns one topic's options,
decoder and search for positions; `Turns` the order of partitions in the next request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.metadata import partition_info
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.cluster.topic_identity import topic_with_id
from quiverlog.client.rows.decoding import BatchDecoder
from quiverlog.errors import UnknownTopicId

from .options import ConsumerOptions
from .positions import PartitionKey, Position, PositionFinder

__all__ = ["TopicReader", "Turns"]


class TopicReader:
    __slots__ = ("_cluster", "decoder", "finder", "name", "options", "topic_id")

    def __init__(self, cluster: Cluster, name: str, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self.name = name
        self.options = options
        self.topic_id = options.topic_id
        self.finder = PositionFinder(cluster, name, b"", options)
        self.decoder = BatchDecoder(cluster, name, b"")

    def open(self, *, fresh: bool) -> Operation[list[int]]:
        """Find the topic; return the partitions that are read. No retry."""
        options = self.options
        topic = yield from self._cluster.topic(self.name, fresh=fresh)
        if options.topic_id and topic.topic_id != options.topic_id:
            raise UnknownTopicId(
                f"Topic {self.name!r} is not the one that is read any more.", topic=self.name
            )
        self.topic_id = topic.topic_id
        self.finder = PositionFinder(self._cluster, self.name, topic.topic_id, options)
        self.decoder = BatchDecoder(
            self._cluster,
            self.name,
            topic.topic_id,
            columns=options.columns,
            reader_schema=options.reader_schema,
        )
        yield from self.decoder.prepare(topic.schema_id)
        wanted = options.partitions
        chosen = [p.partition for p in topic.partitions] if wanted is None else list(wanted)
        for partition in self.finder.named_partitions(chosen):
            partition_info(topic, partition)
        return chosen

    def learn(self, partitions: Collection[int]) -> Operation[None]:
        """Ask the controller about partitions that the cached metadata lacks. No retry."""
        assert self.topic_id, "open comes first"
        topic = yield from topic_with_id(self._cluster, self.name, self.topic_id)
        if not {*partitions} <= {info.partition for info in topic.partitions}:
            yield from topic_with_id(self._cluster, self.name, self.topic_id, from_controller=True)

    def resolve(self, partitions: Iterable[int]) -> Operation[dict[PartitionKey, Position]]:
        found = yield from self.finder.resolve(list(partitions))
        return {position.key: position for position in found.values()}


class Turns:
    """Partitions in the order of the next request. Never changed; each change makes another one.

    One that returned rows goes behind the others of its topic, and its topic behind other topics:
    a topic with many partitions does not fill all answers.
    """

    __slots__ = ("_topics",)

    def __init__(self, topics: Mapping[bytes, Sequence[PartitionKey]] | None = None) -> None:
        self._topics = topics or {}

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def __iter__(self) -> Iterator[PartitionKey]:
        """One partition of each topic, then a second one of each, and so on."""
        for row in zip_longest(*self._topics.values()):
            for key in row:
                if key is not None:
                    yield key

    def added(self, keys: Iterable[PartitionKey]) -> Turns:
        topics = {topic_id: list(mine) for topic_id, mine in self._topics.items()}
        for key in keys:
            mine = topics.setdefault(key[0], [])
            assert key not in mine, "a partition has one turn"
            mine.append(key)
        return Turns(topics)

    def without(self, keys: Collection[PartitionKey]) -> Turns:
        kept = {t: [key for key in mine if key not in keys] for t, mine in self._topics.items()}
        return Turns({topic_id: mine for topic_id, mine in kept.items() if mine})

    def served(self, key: PartitionKey) -> Turns:
        assert key in self._topics[key[0]], "a partition that is read has a turn"
        mine = [other for other in self._topics[key[0]] if other != key]
        others = {topic_id: keys for topic_id, keys in self._topics.items() if topic_id != key[0]}
        return Turns({**others, key[0]: [*mine, key]})
