"""A disk of its own for each broker, small enough to become full.

Owns the file system: a tmpfs where this process may mount one (as root, or in a name space of its
own, see `__main__`), else a bound on the size of the files that the broker may write (RLIMIT_FSIZE,
set from outside while it runs): each write that makes a file longer fails, as on a full disk.

Not here: brokers, beyond the process id.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from pathlib import Path

__all__ = ["Disk", "can_mount"]

FILL_TRIES_MAX = 50


def can_mount(directory: Path) -> bool:
    """Whether this process may mount a tmpfs."""
    probe = directory / "probe"
    probe.mkdir()
    disk = Disk(probe, 1 << 20, is_mounted=True)
    try:
        disk.mount()
    except OSError:
        return False
    disk.unmount()
    return True


class Disk:
    """The file system of one broker, mounted at `directory`."""

    def __init__(self, directory: Path, size_bytes: int, *, is_mounted: bool) -> None:
        self._directory = directory
        self._size_bytes = size_bytes
        self._is_mounted = is_mounted
        self.is_full = False

    @property
    def data_dir(self) -> Path:
        """For the broker."""
        return self._directory / "data"

    @property
    def kind(self) -> str:
        """For the report."""
        return "tmpfs" if self._is_mounted else "RLIMIT_FSIZE"

    def mount(self) -> None:
        """Raises OSError: this process may not, or there is no `mount`."""
        self._directory.mkdir(exist_ok=True)
        if self._is_mounted:
            options = f"size={self._size_bytes},mode=0700"
            _run("mount", "-t", "tmpfs", "-o", options, "quiverlog-chaos", str(self._directory))

    def unmount(self) -> None:
        """Also while files are open in it."""
        if self._is_mounted:
            with contextlib.suppress(OSError):
                _run("umount", "-l", str(self._directory))

    def fill(self, free_bytes: int, pid: int | None) -> None:
        """Leave so much room; the process `pid` writes to this disk."""
        self.is_full = True
        if not self._is_mounted:
            if pid is not None:
                _limit(pid, 1 if free_bytes == 0 else 64 * 1024)
            return
        with (self._directory / "filler").open("wb") as filler:
            for _ in range(FILL_TRIES_MAX):
                room = os.statvfs(self._directory)
                size = room.f_bavail * room.f_frsize - free_bytes
                if size <= 0:
                    break
                # The broker may take of the room meanwhile.
                with contextlib.suppress(OSError):
                    os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, size)

    def empty(self, pid: int | None) -> None:
        """There is room again."""
        self.is_full = False
        if not self._is_mounted:
            if pid is not None:
                _limit(pid, None)
            return
        (self._directory / "filler").unlink(missing_ok=True)


def _limit(pid: int, size_bytes: int | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        soft = hard if size_bytes is None else size_bytes
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
