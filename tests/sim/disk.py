"""A disk that loses, tears and fails on demand, all from one seed.

Owns two pictures of every file and directory: what programs see, and what would be there after the
power went. `sync` copies contents from the first to the second, `sync_dir` copies names. `crash`
goes back to the second picture, with chance deciding how much of the difference made it: unsynced
bytes survive up to any byte, unsynced creations, renames and removals happened or did not.

Faults: `flip_bit`, `capacity` (a full disk), `fail_syncs` (each failed fsync drops the bytes that
it stood for: a later success does not bring them to the disk). Slow flushes need nothing here: who
drives the simulation decides when to call `SyncTicket.run`.

Simplifications: directories are durable when made or renamed; a removed tree does not come back.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

from quiverlog.errors import DataDirectoryInUse, DiskFull, StorageFault
from quiverlog.storage.disk import Buffer

__all__ = ["SimDisk", "SimFile"]


class _Inode:
    """Contents: as seen, and as on the disk. `dropped`: ranges that a failed fsync lost."""

    __slots__ = ("data", "dropped", "durable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.dropped: list[tuple[int, int]] = []

    def sync(self) -> None:
        durable = bytearray(self.data)
        for start, end in self.dropped:
            end = min(end, len(durable))
            if start < end:
                durable[start:end] = bytes(end - start)
        self.durable = bytes(durable)

    def rewritten(self, start: int, end: int) -> None:
        """These bytes were written again: they are dirty, the next sync takes them."""
        kept = [(a, min(b, start)) for a, b in self.dropped if a < start]
        kept += [(max(a, end), b) for a, b in self.dropped if b > end]
        self.dropped = kept

    def sync_failed(self) -> None:
        if len(self.data) > len(self.durable):
            self.dropped.append((len(self.durable), len(self.data)))

    def crash(self, chance: random.Random) -> None:
        seen, kept = bytes(self.data), self.durable
        if len(seen) >= len(kept):
            extra = chance.choice(
                [0, len(seen) - len(kept), chance.randint(0, len(seen) - len(kept))]
            )
            lost = _Inode()
            lost.data, lost.dropped = self.data, self.dropped
            lost.sync()
            kept += lost.durable[len(kept) : len(kept) + extra]
        elif chance.random() < 0.5:
            kept = seen
        self.data = bytearray(kept)
        self.durable = kept
        self.dropped = []


class SimFile:
    """See `quiverlog.storage.disk.File`. Dead after a crash."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._life = disk.life
        self._inode = inode
        self.path = path
        self.size = len(inode.data)

    def _check(self) -> None:
        assert self._life == self._disk.life, f"{self.path} is used after a crash"

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        self._disk.take_room(len(data), self.path)
        position = self.size
        del self._inode.data[position:]
        self._inode.data += data
        self._inode.rewritten(position, self.size + len(data))
        self.size += len(data)
        return position

    def rewrite(self, position: int, data: Buffer) -> None:
        self._check()
        end = position + len(data)
        assert self._inode.data[position:end] == data, "rewrite must not change anything"
        self._inode.rewritten(position, end)

    def read(self, position: int, size: int) -> memoryview:
        self._check()
        return memoryview(bytes(self._inode.data[position : min(position + size, self.size)]))

    def truncate(self, size: int) -> None:
        self._check()
        del self._inode.data[size:]
        self.size = size

    def sync(self) -> None:
        self._check()
        if self._disk.sync_fails():
            self._inode.sync_failed()
            raise OSError(errno.EIO, "simulated fsync failure", self.path)
        self._inode.sync()

    def close(self) -> None:
        pass


class _SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    """See the module docstring and `quiverlog.storage.disk.Disk`.

    Args:
        seed: decides everything that chance decides.
        capacity: bytes that fit; None for any number. May be changed at any time.
    """

    def __init__(self, seed: int = 0, *, capacity: int | None = None) -> None:
        self.chance = random.Random(seed)
        self.capacity = capacity
        self.fail_syncs = 0
        """So many of the next fsyncs fail."""
        self.life = 0
        self.locks: set[str] = set()
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._dirs: set[str] = set()

    # --- faults --------------------------------------------------------------------------------
    def crash(self) -> None:
        """The power goes and comes back."""
        self.life += 1
        self.locks.clear()
        self.fail_syncs = 0
        names: dict[str, _Inode] = {}
        for path in sorted(self._names.keys() | self._durable_names.keys()):
            seen, durable = self._names.get(path), self._durable_names.get(path)
            inode = seen if seen is durable or self.chance.random() < 0.5 else durable
            if inode is not None:
                names[path] = inode
        done: set[int] = set()
        for inode in names.values():
            if id(inode) not in done:
                done.add(id(inode))
                inode.crash(self.chance)
        self._names = names
        self._durable_names = dict(names)

    def kill(self) -> None:
        """The process dies, the machine lives: everything written stays."""
        self.life += 1
        self.locks.clear()

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage a file, on the disk and in the cache alike."""
        inode = self._names[path]
        inode.data[bit // 8] ^= 1 << bit % 8
        if bit // 8 < len(inode.durable):
            durable = bytearray(inode.durable)
            durable[bit // 8] ^= 1 << bit % 8
            inode.durable = bytes(durable)

    def durable_size(self, path: str) -> int:
        """Bytes of a file that a crash cannot take."""
        inode = self._durable_names.get(path)
        return len(inode.durable) if inode is not None else 0

    def take_room(self, byte_count: int, path: str) -> None:
        if self.capacity is not None and self.used_bytes + byte_count > self.capacity:
            raise DiskFull(f"writing {path}: simulated full disk.")

    def sync_fails(self) -> bool:
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            return True
        return False

    @property
    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(inode.data) for inode in self._names.values())

    # --- the protocol --------------------------------------------------------------------------
    def open(self, path: str, *, create: bool) -> SimFile:
        if create:
            if path in self._names:
                raise FileExistsError(path)
            self._names[path] = _Inode()
        return SimFile(self, path, self._inode(path))

    def _inode(self, path: str) -> _Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def read_file(self, path: str) -> bytes:
        return bytes(self._inode(path).data)

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        self.take_room(len(data), path)
        inode = _Inode()
        inode.data += data
        if durable:
            if self.sync_fails():
                raise StorageFault(f"writing {path}: simulated fsync failure.")
            inode.sync()
        self._names[path] = inode
        if durable:
            self.sync_dir(path.rpartition("/")[0])

    def rename(self, old: str, new: str) -> None:
        if old in self._names:
            self._names[new] = self._names.pop(old)
            return
        if old not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        for names in (self._names, self._durable_names):
            for path in [p for p in names if p.startswith(f"{old}/")]:
                names[new + path[len(old) :]] = names.pop(path)
        for path in [d for d in self._dirs if d == old or d.startswith(f"{old}/")]:
            self._dirs.discard(path)
            self._dirs.add(new + path[len(old) :])

    def remove(self, path: str) -> None:
        self._inode(path)
        del self._names[path]

    def remove_tree(self, path: str) -> None:
        for names in (self._names, self._durable_names):
            for name in [p for p in names if p.startswith(f"{path}/")]:
                del names[name]
        self._dirs = {d for d in self._dirs if d != path and not d.startswith(f"{path}/")}

    def list(self, path: str) -> list[str]:
        if path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        prefix = f"{path}/"
        below = [p[len(prefix) :] for p in [*self._names, *self._dirs] if p.startswith(prefix)]
        return sorted({name.split("/")[0] for name in below})

    def make_dir(self, path: str) -> None:
        parts = path.split("/")
        self._dirs.update("/".join(parts[: n + 1]) for n in range(len(parts)))

    def sync_dir(self, path: str) -> None:
        if self.sync_fails():
            raise OSError(errno.EIO, "simulated fsync failure", path)
        for name in [p for p in self._durable_names if p.rpartition("/")[0] == path]:
            if name not in self._names:
                del self._durable_names[name]
        for name, inode in self._names.items():
            if name.rpartition("/")[0] == path:
                self._durable_names[name] = inode

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._dirs

    def free_bytes(self, path: str) -> int:
        return 2**40 if self.capacity is None else max(0, self.capacity - self.used_bytes)

    def lock(self, path: str) -> _SimLock:
        if path in self.locks:
            raise DataDirectoryInUse(f"{path} is locked by another broker.")
        self.locks.add(path)
        return _SimLock(self, path)
