"""A bound on the memory that a user's file may take: kilobytes of Parquet can hold gigabytes.

The operating system enforces it; else it might kill other processes.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

from quiverlog.errors import FileTooLarge
from quiverlog.limits import FILE_MEMORY_BYTES_MAX, MIB

__all__ = ["bounded_memory", "too_large"]

_STACK_BYTES = 8 * MIB
_THREADS = 32
_DATA_PAGES = 5
"""The field of /proc/self/statm that counts what RLIMIT_DATA bounds."""


@contextlib.contextmanager
def bounded_memory(name: str, bytes_max: int = FILE_MEMORY_BYTES_MAX) -> Iterator[None]:
    """Let this process allocate at most `bytes_max` more within a `with`.

    Raises:
        FileTooLarge: that was not enough for the file `name`.
    """
    import pyarrow as pa

    pa.allocate_buffer(1)  # Arrow reserves its arena now: it is not the file's memory.
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # RLIMIT_DATA counts the whole stack of each thread that starts meanwhile.
    threads_bytes = ((os.cpu_count() or 1) + _THREADS) * _STACK_BYTES
    bound = _data_bytes() + threads_bytes + bytes_max
    if before != resource.RLIM_INFINITY:
        bound = min(bound, before)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        yield
    except MemoryError as error:
        raise too_large(name, bytes_max) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def too_large(name: str, bytes_max: int = FILE_MEMORY_BYTES_MAX) -> FileTooLarge:
    return FileTooLarge(
        f"{name}: reading it takes more than {bytes_max // MIB} MiB of memory at once. "
        "Write the file with fewer or smaller values in a row, a batch or a compressed block.",
        file=name,
        bytes_max=bytes_max,
    )


def _data_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[_DATA_PAGES]) * resource.getpagesize()
