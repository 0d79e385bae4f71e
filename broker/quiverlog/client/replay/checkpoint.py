"""The micro-batches that lie in a Spark checkpoint: read, never written.

    offsets/N    planned: "v1" or "v2", a line of settings, a line for each source
    commits/N    done

A source's line is its offset or "-"; in "v2" (`spark.sql.streaming.offsetLog.formatVersion`) it
begins with the source's name and a colon. Spark keeps the last 100 (`minBatchesToRetain`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from quiverlog.errors import InvalidArgument

from .stream_offsets import SourceOffset

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["Checkpoint", "LoggedBatch"]

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one file: some 300,000 partitions."""
FILES_MAX: Final = 1_000_000
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,17}")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]+://.*")
_VERSIONS: Final = ("v1", "v2")
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A planned micro-batch.

    Attributes:
        number: Spark's batch id.
        planned_at: when it was planned, by the driver's clock; None: the file has no time.
        is_committed: it was done; the last one of a query that failed is not.
        ends: source -> its end; None where the source had none yet, or is not quiverlog's.
    """

    number: int
    planned_at: datetime | None
    is_committed: bool
    ends: Mapping[str, SourceOffset | None]

    @property
    def sources(self) -> list[str]:
        """The sources of quiverlog, as the checkpoint names them."""
        return [name for name, end in self.ends.items() if end is not None]


class Checkpoint:
    """A folder, local or of any file system that pyarrow opens (`s3://`, `gs://`, `hdfs://`).

    Raises:
        InvalidArgument: there is no such folder, no checkpoint in it, or no access to it.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.location = os.fspath(location)
        self._files, self._path = _opened(self.location)
        self._committed = set(self._numbers("commits"))
        self.numbers = self._numbers("offsets")
        """The planned micro-batches, in order."""
        if not self.numbers:
            raise InvalidArgument(
                f"{self.location!r} is no checkpoint of a Spark query, or of one that has not"
                " planned a micro-batch yet: there is no file in its folder `offsets`."
            )

    def newest(self) -> int:
        """Return the last one that was planned: where a query has failed, the one that failed."""
        return self.numbers[-1]

    def batch(self, number: int) -> LoggedBatch:
        """Read what was logged of a micro-batch.

        Raises:
            InvalidArgument: the checkpoint does not have it, or its file is damaged or too new.
        """
        if number not in self.numbers:
            raise InvalidArgument(
                f"micro-batch {number} does not lie in {self.location!r}, which has"
                f" {self.numbers[0]} to {self.numbers[-1]}: Spark keeps the last ones alone"
                " (spark.sql.streaming.minBatchesToRetain)."
            )
        where = f"{self._path}/offsets/{number}"
        try:
            at_us, ends = _parsed(self._text(where))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgument(f"{where} is no offset file of Spark ({error}).") from error
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error.message}") from error
        return LoggedBatch(number, at_us, number in self._committed, ends)

    def _numbers(self, folder: str) -> list[int]:
        from pyarrow.fs import FileSelector

        try:
            found = self._files.get_file_info(
                FileSelector(f"{self._path}/{folder}", allow_not_found=True)
            )
        except OSError as error:
            raise InvalidArgument(f"cannot list {self.location!r}: {error}") from error
        if len(found) > FILES_MAX:
            raise InvalidArgument(f"{self._path}/{folder} has more than {FILES_MAX} files.")
        # Others are Spark's temporary files, checksums, and compacted ones of other logs.
        return sorted(int(one.base_name) for one in found if _NUMBER.fullmatch(one.base_name))

    def _text(self, path: str) -> str:
        try:
            with self._files.open_input_stream(path) as stream:
                data: bytes = stream.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidArgument(f"cannot read {path}: {error}") from error
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
        return data.decode()


def _opened(location: str) -> tuple[FileSystem, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem, FileType, LocalFileSystem

    try:
        if _SCHEME.fullmatch(location):
            files, path = FileSystem.from_uri(location)
        else:
            files, path = LocalFileSystem(), os.path.abspath(os.path.expanduser(location))
        kind = files.get_file_info(path).type
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"cannot open the checkpoint {location!r}: {error}") from error
    if kind is not FileType.Directory:
        raise InvalidArgument(f"the checkpoint {location!r} is not a folder that is there.")
    return files, path.rstrip("/")


def _parsed(text: str) -> tuple[datetime | None, dict[str, SourceOffset | None]]:
    """Return the time of planning, and the end of each source."""
    version, *lines = text.rstrip("\n").split("\n")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version[:20]!r}, known are {', '.join(_VERSIONS)}")
    if not lines:
        raise ValueError("it ends after the version")
    settings = json.loads(lines[0]) if lines[0] else {}
    at_ms = settings.get("batchTimestampMs", 0)
    at = datetime.fromtimestamp(at_ms / 1_000, UTC) if at_ms else None
    ends: dict[str, SourceOffset | None] = {}
    for number, line in enumerate(lines[1:]):
        name, offset = str(number), line
        if version == "v2":
            name, colon, offset = line.partition(":")
            if not colon:
                raise ValueError(f"the line of a source has no name: {line[:80]!r}")
        ends[name] = _offset(offset)
    return at, dict(sorted(ends.items()))


def _offset(text: str) -> SourceOffset | None:
    if text == _NONE:
        return None
    try:
        data: Any = json.loads(text)
    except ValueError:
        return None  # Of another source: each has a form of its own.
    is_ours = isinstance(data, dict) and isinstance(data.get("v"), int) and "topics" in data
    return SourceOffset.from_json(data) if is_ours else None
