"""A client that asks for what no shipped client asks for, and sends what no broker may take.

Owns the rules of such requests: a fetch without a bound, or with a negative one, gives rows where
there are rows; a batch is refused where its producer id or epoch was never given out, and where no
reader could read its rows although its checksum is right; the epoch of a producer never goes back.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.errors import LogTruncated, OffsetOutOfRange
from quiverlog.types import Compression
from quiverlog.wire import messages as m
from tests.support.batches import NO_PRODUCER, encode_data

from .actors import Actor
from .checker import Checker, Key, Violation
from .decoding import rows_of
from .rows import schema_of
from .world import World

__all__ = ["Stranger"]

_BOUNDS = (-1, -(2**40), 0)
_ROWS = 3
_PADDING_BYTES = 400
_LZ4_MAGIC = bytes.fromhex("04224d18")
_EPOCHS_AHEAD = 9
_IDS_AHEAD = 777_777
_NEVER_SENT = -7


class Stranger(Actor):
    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self._identity: tuple[int, int] | None = None
        self._offered = ""
        """What is wrong with the batch that was sent last."""
        super().__init__(world, checker, f"stranger-{number}")

    def act(self) -> None:
        keys = self.checker.live()
        if not keys:
            self.later(10_000)
            return
        key = self.rng.choice(keys)
        what = self.rng.choice(("fetch", "forged", "poison", "identity"))
        if what == "fetch":
            self._fetch(key)
        elif what == "poison":
            self._offer(key, *self._poison())
        elif self._identity is None or what == "identity":
            self._introduce()
        else:
            self._offer(key, *self._forged(*self._identity))

    # --- rows ----------------------------------------------------------------------------------
    def _fetch(self, key: Key) -> None:
        offset = self.checker.partitions[key].log_start_offset
        part = m.FetchPartition(*key, offset=offset, bytes_max=self.rng.choice((-1, 0, 3_000)))
        self.ask(m.FetchRequest(bytes_max=self.rng.choice(_BOUNDS), partitions=[part]))

    def _fetched(self, asked: m.FetchPartition, got: m.FetchPartitionResult, body: bytes) -> None:
        key = (got.topic_id, got.partition)
        if got.error_code in (OffsetOutOfRange.code, LogTruncated.code):
            self.checker.error(got.error_code)
            return
        if got.error_code:
            self.refused(key, got.error_code, got.error_message)
            return
        model = self.checker.partitions[key]
        if got.high_watermark > asked.offset and not got.batch_bytes:
            raise Violation(
                f"{model.name}: a fetch without a bound got nothing at {asked.offset} of"
                f" {got.high_watermark}"
            )
        _, found = rows_of(model, asked.offset, body)
        for base_offset, values in found:
            self.checker.read(key, base_offset, values)
        self.world.events["fetch without a bound"] += bool(found)

    # --- batches -------------------------------------------------------------------------------
    def _offer(self, key: Key, what: str, batch: bytes) -> None:
        self._offered = what
        part = m.ProducePartition(*key, batch_bytes=len(batch))
        self.ask(m.ProduceRequest(partitions=[part]), batch)

    def _forged(self, producer_id: int, epoch: int) -> tuple[str, bytes]:
        if self.rng.random() < 0.5:
            producer = (producer_id + _IDS_AHEAD, 0, 0)
            return "a producer id that was never given out", self._batch(producer)
        producer = (producer_id, epoch + _EPOCHS_AHEAD, 0)
        return "a producer epoch that was never given out", self._batch(producer)

    def _poison(self) -> tuple[str, bytes]:
        """A right checksum over rows that no reader can decode."""
        if self.rng.random() < 0.5:
            batch = bytearray(self._batch(NO_PRODUCER, Compression.LZ4))
            at = batch.rindex(_LZ4_MAGIC) + len(_LZ4_MAGIC)
            batch[at : at + 8] = b"\xff" * 8
        else:
            batch = bytearray(self._batch(NO_PRODUCER))
            offsets = [number * _PADDING_BYTES for number in range(_ROWS + 1)]
            at = batch.rindex(struct.pack(f"<{_ROWS + 1}i", *offsets))
            offsets[1] = 2**30
            batch[at : at + 4 * len(offsets)] = struct.pack(f"<{_ROWS + 1}i", *offsets)
        header = BatchHeader.unpack(memoryview(batch))
        header._replace(crc32c=crc32c(memoryview(batch)[CRC_START:])).pack_into(batch)
        return "rows that no reader can decode", bytes(batch)

    def _batch(
        self, producer: tuple[int, int, int], compression: Compression = Compression.NONE
    ) -> bytes:
        columns = [pa.array([_NEVER_SENT] * _ROWS), pa.array([b"p" * _PADDING_BYTES] * _ROWS)]
        data = pa.record_batch(columns, schema=schema_of(1))
        at_us = self.world.wall_us
        return bytes(encode_data(data, at_us=at_us, producer=producer, compression=compression))

    # --- identities ----------------------------------------------------------------------------
    def _introduce(self) -> None:
        """A new identity, the next epoch of our own, or one that follows an older epoch."""
        if self._identity is None:
            self.ask(m.InitProducerIdRequest())
            return
        producer_id, epoch = self._identity
        asked = epoch if self.rng.random() < 0.5 else max(0, epoch - 1)
        self.ask(m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=asked))

    def _introduced(
        self, asked: m.InitProducerIdRequest, response: m.InitProducerIdResponse
    ) -> None:
        if response.error_code:
            self.checker.error(response.error_code)
            if self._identity == (asked.producer_id, asked.producer_epoch):
                self._identity = None  # The answer with the epoch after it may have been lost.
            return
        given = (response.producer_id, response.producer_epoch)
        self.checker.producer_given(*given)
        if self._identity is not None:
            known_id, known_epoch = self._identity
            if given[0] == known_id and not asked.producer_epoch == known_epoch < given[1]:
                raise Violation(
                    f"producer {known_id} has epoch {known_epoch}, asked with epoch"
                    f" {asked.producer_epoch} it was given {given[1]}"
                )
            self.world.events["next epoch of a producer"] += given[0] == known_id
        self._identity = given

    # --- answers -------------------------------------------------------------------------------
    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.InitProducerIdResponse):
            assert isinstance(request, m.InitProducerIdRequest)
            self._introduced(request, response)
        elif isinstance(response, m.FetchResponse) and response.partitions:
            assert isinstance(request, m.FetchRequest)
            self._fetched(request.partitions[0], response.partitions[0], body)
        elif isinstance(response, m.ProduceResponse):
            result = response.partitions[0] if response.partitions else response
            if not result.error_code:
                raise Violation(f"the broker took {self._offered}")
            self.checker.error(result.error_code)
            self.world.events[f"refused: {self._offered}"] += 1
        self.later(self.rng.randrange(5_000, 100_000))
