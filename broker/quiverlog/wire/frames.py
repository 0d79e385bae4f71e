"""Frames: bytes in, complete frames out; messages in, bytes out. Does no I/O.

    u32 size | u32 header_size | header: one msgpack array | body: batches, outside msgpack

Little-endian. `size` counts the bytes after itself. Sizes from a peer are checked before memory is
allocated for them, and a header's arrays and maps are counted before it is decoded: an empty one is
one byte, and two hundred bytes of memory. Small frames are views of the event loop's scratch
buffer; the rest of a large one is received into a buffer of its own.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Any, Final, NamedTuple, cast, get_args, get_origin

import msgspec

from quiverlog.errors import (
    CorruptFrame,
    FrameTooLarge,
    InvalidResponse,
    QuiverlogError,
    UnknownApi,
    UnsupportedVersion,
)
from quiverlog.limits import (
    FRAME_BYTES_MAX,
    FRAME_PREFIX_BYTES,
    HEADER_BYTES_MAX,
    KIB,
    RESPONSE_CONTAINERS_MAX,
)

from .buffers import BufferPool, Memory
from .messages import CORRELATION_ID_MAX, Api, HelloRequest, Message, Request, Response
from .registry import APIS, ApiSpec

__all__ = [
    "SCRATCH_BYTES",
    "Frame",
    "FrameReceiver",
    "check_containers",
    "count_containers",
    "decode_error",
    "decode_request",
    "decode_response",
    "encode",
    "encode_error",
    "peek_preamble",
]


# The number of arrays and maps in a msgpack header, counted without decoding it.
_MARKS: Final = bytes((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
"""First bytes of arrays and maps. They also occur inside of texts and numbers."""
_LENGTH_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Binaries and texts: the mark, this many bytes of length, then the content."""
_EXTENSION_BYTES: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""Extensions: like binaries, with a type byte in between."""
_SIZES: Final = {
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), 1),
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xD4, 0xDC, 0xDE), 3),
    0xD5: 4,
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDD, 0xDF), 5),
    0xD6: 6,
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    0xD7: 10,
    0xD8: 18,
}
"""Sizes of all other values, with their mark. The items of an array or map follow it."""


def check_containers(
    header: memoryview | bytes,
    error: type[QuiverlogError],
    count_max: int = RESPONSE_CONTAINERS_MAX,
) -> None:
    """Raise `error` for a header with more than `count_max` arrays and maps."""
    if len(header) <= count_max:
        return  # Each takes at least one byte.
    data = bytes(header)
    # An upper bound by a memory scan settles nearly all headers.
    if len(data) - len(data.translate(None, _MARKS)) <= count_max:
        return
    if count_containers(data, count_max) > count_max:
        raise error(f"this header has at most {count_max} arrays and maps.")


def count_containers(data: bytes, count_max: int) -> int:
    assert count_max >= 0
    at = count = 0
    while at < len(data) and count <= count_max:
        mark = data[at]
        if mark < 0x80 or mark >= 0xE0:  # Small integers.
            at += 1
        elif mark < 0xA0:
            at += 1
            count += 1
        elif mark < 0xC0:
            at += 1 + (mark & 0x1F)
        elif width := _LENGTH_BYTES.get(mark, 0):
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        elif width := _EXTENSION_BYTES.get(mark, 0):
            at += 2 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        else:
            at += _SIZES[mark]
            count += mark >= 0xDC
    return count


SCRATCH_BYTES: Final = 256 * KIB
"""An event loop's scratch buffer: holds many small frames of one receive."""
OWN_SCRATCH_BYTES: Final = 64 * KIB
"""A client connection's scratch buffer, for small frames only."""
DEDICATED_BYTES_MIN: Final = 32 * KIB
"""An incomplete frame of at least this size is received into a buffer of its own."""
PROBE_BYTES: Final = 4 * KIB
"""Bytes to receive first after a large frame: another large one would have to be copied out."""
BODY_ALIGNMENT_BYTES: Final = 64

_PREFIX: Final = struct.Struct("<II")
_FIRST_BYTES: Final = struct.Struct("5B")
_SIZE_FIELD_BYTES: Final = 4
VALUE_CHARS_SHOWN_MAX: Final = 100
_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)

_encode_header: Final = msgspec.msgpack.Encoder().encode
_decode_preamble: Final = msgspec.msgpack.Decoder(Message).decode
_decode_error: Final = msgspec.msgpack.Decoder(Response).decode

assert SCRATCH_BYTES > DEDICATED_BYTES_MIN
assert OWN_SCRATCH_BYTES > DEDICATED_BYTES_MIN > PROBE_BYTES
assert _PREFIX.size == FRAME_PREFIX_BYTES


class Frame(NamedTuple):
    header: memoryview
    body: memoryview


# --- out ------------------------------------------------------------------------------------------
def encode(message: Request | Response, correlation_id: int, body_bytes: int = 0) -> bytes:
    """Return prefix and header of a frame; the caller sends `body_bytes` bytes after them.

    Sets the message's `api`, `version` and `correlation_id`.

    Raises:
        FrameTooLarge: header or frame is above the protocol's bounds.
    """
    message.api = int(message.API)
    message.version = message.VERSION
    message.correlation_id = correlation_id
    header = _encode_header(message)
    if len(header) > RESPONSE_CONTAINERS_MAX and isinstance(message, Response):
        header = _long_response(message, header)
    return _frame_head(header, body_bytes)


def _long_response(response: Response, header: bytes) -> bytes:
    """Return the header of a long response; without the error texts of entries if it does not fit.

    Without an answer, for ten thousand texts, the client could not see which entries were stored.
    """
    if len(header) > HEADER_BYTES_MAX:
        for name in ("partitions", "topics", "results"):
            for entry in getattr(response, name, ()):
                if getattr(entry, "error_message", ""):
                    entry.error_message = ""
        header = _encode_header(response)
    check_containers(header, FrameTooLarge)
    return header


def encode_error(error: QuiverlogError, *, api: int = 0, correlation_id: int = 0) -> bytes:
    """Return a whole frame with an error only, decodable as the response of any API.

    `api` and `correlation_id` are 0 when the request could not be read that far.
    """
    assert 0 <= correlation_id <= CORRELATION_ID_MAX
    # Version 1: a peer that supports no later one can read it.
    response = Response(api, 1, correlation_id, error.code, error.message)
    return _frame_head(_encode_header(response), 0)


def _frame_head(header: bytes, body_bytes: int) -> bytes:
    header_bytes = len(header)
    size = _SIZE_FIELD_BYTES + header_bytes + body_bytes
    if header_bytes > HEADER_BYTES_MAX:
        raise FrameTooLarge(f"a header of {header_bytes} bytes is above {HEADER_BYTES_MAX}.")
    frame_bytes = _SIZE_FIELD_BYTES + size
    if frame_bytes > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {frame_bytes} bytes is above {FRAME_BYTES_MAX}.")
    return _PREFIX.pack(size, header_bytes) + header


# --- in: headers ----------------------------------------------------------------------------------
def peek_preamble(header: memoryview | bytes) -> tuple[int, int, int]:
    """Return (api, version, correlation_id) of any request or response, also of unknown APIs.

    Raises:
        CorruptFrame: not a msgpack array that begins with three integers.
    """
    try:
        message = _decode_preamble(header)
    except _DECODE_ERRORS as error:
        raise CorruptFrame(f"cannot read a header: {error}.") from None
    return message.api, message.version, message.correlation_id


def decode_request(header: memoryview | bytes) -> Request:
    """Decode a request.

    Raises:
        CorruptFrame: not a message, fields of the wrong type or out of their bounds, or a
            correlation id outside 1 to 2^31 - 1.
        UnknownApi: there is no such API.
        UnsupportedVersion: a version that this code does not support. A newer HELLO is no error: it
            is returned with its `version` and default fields.
    """
    api, version = _peek_api(header)
    spec = APIS.get(api)
    if spec is None:
        raise UnknownApi(f"there is no API {api} in this version.")
    if not spec.version_min <= version <= spec.version_max:
        # A newer client must learn the supported versions, or it could never connect.
        if api == Api.HELLO and version > spec.version_max:
            return _newer_hello(header)
        raise UnsupportedVersion(
            f"{spec.api.name} version {version} is not supported here, only "
            f"{spec.version_min} to {spec.version_max}."
        )
    check_containers(header, CorruptFrame, spec.request_containers_max)
    try:
        request = spec.request_decoder.decode(header)
    except _DECODE_ERRORS as error:
        raise CorruptFrame(f"cannot read a {spec.api.name} request: {error}.") from None
    if request.correlation_id == 0:
        raise CorruptFrame("a request has the correlation id 0, which answers use.")
    return request


def _newer_hello(header: memoryview | bytes) -> Request:
    """Decode a HELLO of a newer version: only its first three fields have a fixed meaning.

    The answer has the supported versions, so that a newer client can choose one and ask again
    (KIP-511).
    """
    _, version, correlation_id = peek_preamble(header)
    if correlation_id == 0:
        raise CorruptFrame("a request has the correlation id 0, which answers use.")
    return HelloRequest(int(Api.HELLO), version, correlation_id)


def decode_response(header: memoryview | bytes, api: int) -> Response:
    """Decode the response to a request of `api`.

    Raises:
        CorruptFrame: not a message, or another API's response.
        InvalidResponse: a field is of the wrong type or outside its bounds; the frame is whole.
    """
    spec = APIS[api]
    check_containers(header, CorruptFrame)
    try:
        response = spec.response_decoder.decode(header)
    except _DECODE_ERRORS as error:
        raise _unreadable(header, spec, error) from None
    if response.api != api:
        raise CorruptFrame(f"API {response.api} answered a {spec.api.name} request.")
    return response


def _unreadable(header: memoryview | bytes, spec: ApiSpec, error: Exception) -> QuiverlogError:
    why = str(error)
    if isinstance(error, msgspec.ValidationError) and peek_preamble(header)[0] == spec.api:
        try:
            why = _with_value(why, msgspec.msgpack.decode(header), spec.response)
        except _DECODE_ERRORS:
            pass  # What follows the wrong field is damaged.
        else:
            return InvalidResponse(f"cannot read a {spec.api.name} response: {why}.")
    return CorruptFrame(f"cannot read a {spec.api.name} response: {why}.")


def _with_value(error: str, value: Any, message: type[Message]) -> str:
    """msgspec's words, with the field's name and value where it has a path such as `$[5][0][3]`."""
    words, has_path, path = error.partition(" - at `$")
    if not has_path:
        return error
    hint, name = cast(Any, message), ""
    for number in map(int, re.findall(r"\[(\d+)\]", path)):
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            field = msgspec.structs.fields(hint)[number]
            name, hint = f"{name}.{field.name}", field.type
        else:
            name, hint = f"{name}[{number}]", get_args(hint)[0]
        while get_origin(hint) is Annotated or type(None) in get_args(hint):
            hint = get_args(hint)[0]
        value = value[number]
    return f"{words} at `{name[1:]}`, which is {repr(value)[:VALUE_CHARS_SHOWN_MAX]}"


def decode_error(header: memoryview | bytes) -> Response:
    """Decode the fields that all responses share, of an answer to an unreadable request.

    Raises:
        CorruptFrame
    """
    try:
        return _decode_error(header)
    except _DECODE_ERRORS as error:
        raise CorruptFrame(f"cannot read a response: {error}.") from None


def _peek_api(header: memoryview | bytes) -> tuple[int, int]:
    """Return (api, version); nearly always single bytes right after the array's mark."""
    if len(header) > 4:
        mark, api, version, wide_api, wide_version = _FIRST_BYTES.unpack_from(header)
        if mark & 0xF0 == 0x90 and api < 0x80 and version < 0x80:
            return api, version
        if mark == 0xDC and wide_api < 0x80 and wide_version < 0x80:  # Sixteen fields or more.
            return wide_api, wide_version
    api, version, _ = peek_preamble(header)
    return api, version


# --- in: frames -----------------------------------------------------------------------------------
class FrameReceiver:
    """Cuts received bytes into frames; shaped like `asyncio.BufferedProtocol`.

    Args:
        frame_bytes_max: largest frame accepted, prefix included, in bytes.
        header_bytes_max: largest header accepted, in bytes.
        scratch: buffer shared by the receivers of one thread; their bytes are consumed or copied
            before `buffer_updated` returns. None: a buffer of its own.
        own_bodies: every body gets its own memory, valid as long as a view of it lives (clients:
            decoded Arrow arrays point into it). Otherwise the views of a small frame are valid
            until the next `get_buffer()` of any receiver that shares the scratch.
        pool: source of the buffers for large frames; None: a pool of its own.

    After an exception, or with an `error`, close the connection.
    """

    __slots__ = (
        "_dedicated", "_filled", "_frame_bytes_max", "_header_bytes", "_header_bytes_max",
        "_own_bodies", "_pending", "_pool", "_probe", "_scratch", "error",
    )  # fmt: skip

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        scratch: bytearray | None = None,
        own_bodies: bool = False,
        pool: Memory | None = None,
    ) -> None:
        if scratch is None:
            scratch = bytearray(OWN_SCRATCH_BYTES if own_bodies else SCRATCH_BYTES)
        assert len(scratch) > DEDICATED_BYTES_MIN
        self._scratch = memoryview(scratch)
        self._own_bodies = own_bodies
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._pool = pool
        self._pending = b""
        self._dedicated: memoryview | None = None
        """Room for exactly one large frame's header and body; the first `_filled` bytes are
        received."""
        self._filled = 0
        self._header_bytes = 0
        self._probe = False
        self.error: QuiverlogError | None = None
        """The reason why the bytes after the last returned frames are no frame."""

    @property
    def partial(self) -> bool:
        """True while a frame is incomplete."""
        return self._dedicated is not None or bool(self._pending)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame that are held; memory is used only as they arrive."""
        return len(self._pending) if self._dedicated is None else self._filled

    def bound(self, frame_bytes_max: int) -> None:
        """Accept frames up to this size from the next one on."""
        self._frame_bytes_max = frame_bytes_max

    def fail(self, error: QuiverlogError) -> None:
        """Refuse further bytes, because a returned frame was invalid."""
        self.release()  # The bytes after a bad frame have no known boundary.
        self.error = error

    def release(self) -> None:
        """Drop the incomplete frame: the connection is closed."""
        self._pending = b""
        self._dedicated = None
        self._filled = 0

    def get_buffer(
        self, size_hint: int = -1, *, small_bytes_max: int = SCRATCH_BYTES
    ) -> memoryview:
        """Return where to receive the next bytes (at most `small_bytes_max` of small frames); never
        empty."""
        if self._dedicated is not None:
            return self._dedicated[self._filled :]
        scratch = self._scratch
        at = len(self._pending)
        if at:
            scratch[:at] = self._pending
        return scratch[at : at + (PROBE_BYTES if self._probe else small_bytes_max)]

    def buffer_updated(self, n: int) -> list[Frame]:
        """Process `n` bytes received into `get_buffer()`. Returns the frames that are complete.

        Frames before invalid bytes are returned first: `error` then has the reason, and the next
        call raises it.

        Raises:
            CorruptFrame: the bytes are not frames.
            FrameTooLarge: a frame is above `frame_bytes_max`.
        """
        if self.error is not None:
            raise self.error
        if self._dedicated is not None:
            return self._continue_dedicated(self._dedicated, n)
        return self._cut(len(self._pending) + n)

    def _cut(self, end: int) -> list[Frame]:
        """Return the frames in the first `end` bytes of the scratch; keep the rest."""
        frames: list[Frame] = []
        scratch = self._scratch
        at = 0
        while end - at >= FRAME_PREFIX_BYTES:
            size, header_bytes = _PREFIX.unpack_from(scratch, at)
            try:
                self._check(size, header_bytes)
            except QuiverlogError as error:
                self.fail(error)
                # The caller processes the frames before it first; the next call raises.
                if not frames:
                    raise
                return frames
            next_at = at + _SIZE_FIELD_BYTES + size
            if next_at > end:
                # A smaller frame is completed in the scratch by the next receive.
                if next_at - at >= DEDICATED_BYTES_MIN:
                    self._begin_dedicated(at, end, size, header_bytes)
                    return frames
                break
            body_at = at + FRAME_PREFIX_BYTES + header_bytes
            body = scratch[body_at:next_at]
            # The scratch is overwritten by the next receive.
            if self._own_bodies:
                body = memoryview(bytes(body))
            frames.append(Frame(scratch[at + FRAME_PREFIX_BYTES : body_at], body))
            at = next_at
        self._pending = bytes(scratch[at:end]) if at < end else b""
        self._probe = False
        return frames

    def _check(self, size: int, header_bytes: int) -> None:
        # A header larger than its frame would read into the next one.
        if header_bytes == 0 or header_bytes > size - _SIZE_FIELD_BYTES:
            raise CorruptFrame(
                f"a frame of {size} bytes cannot hold a header of {header_bytes} bytes."
            )
        bound = self._header_bytes_max
        if header_bytes > bound:
            raise CorruptFrame(f"a header of {header_bytes} bytes is above {bound}.")
        bound, frame_bytes = self._frame_bytes_max, size + _SIZE_FIELD_BYTES
        if frame_bytes > bound:
            raise FrameTooLarge(f"a frame of {frame_bytes} bytes is above {bound}.")

    def _begin_dedicated(self, at: int, end: int, size: int, header_bytes: int) -> None:
        if self._pool is None:
            self._pool = BufferPool()
        length = size - _SIZE_FIELD_BYTES
        # Arrow computes faster on buffers that are aligned to cache lines.
        header_at = -header_bytes % BODY_ALIGNMENT_BYTES
        # Checked before: at most `frame_bytes_max`.
        buffer = self._pool.take(header_at + length)[header_at : header_at + length]
        filled = end - at - FRAME_PREFIX_BYTES
        buffer[:filled] = self._scratch[at + FRAME_PREFIX_BYTES : end]
        self._dedicated = buffer
        self._filled = filled
        self._header_bytes = header_bytes
        self._pending = b""

    def _continue_dedicated(self, buffer: memoryview, n: int) -> list[Frame]:
        self._filled += n
        if self._filled < len(buffer):
            return []
        self._dedicated = None
        # The next bytes are likely another large frame.
        self._probe = True
        return [Frame(buffer[: self._header_bytes], buffer[self._header_bytes :])]
