"""A disk that loses, tears and fails on demand, all from one seed.

`SimDisk` keeps the promises of `quiverlog.storage.disk.Disk` and not one more: contents are durable
after `sync`, names after `sync_dir`, whatever else a power failure may take (`inodes`). A file's
descriptor may go at any time; the next use opens the file again, by its name.

Faults from outside: `crash` (power), `kill` (the process), `flip_bit`, `capacity` (a full disk),
`fail_syncs` (each failed fsync drops the bytes that it stood for: a later success does not bring
them to the disk). Every operation passes `step` first, where `faults.FaultyDisk` may raise.

Simplification: the data directory itself is durable at once.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence

from quiverlog.errors import (
    DataDirectoryInUse,
    DiskFull,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.storage.disk import Buffer, File, out_of_descriptors, short_name

from .inodes import Directory, Inode, Node

__all__ = ["SimDisk", "SimFile"]

_NAME_BYTES_MAX = 255
_COPY_BYTES_MAX = 512
"""Reads up to here are copies; larger ones are mappings."""


def _refused(path: str, error: OSError) -> QuiverlogError:
    """The error table's name for a failed write, as the real disk has it."""
    what = f"writing {short_name(path)}: {error.strerror}."
    return (ThrottledBroker if out_of_descriptors(error) else StorageFault)(what, file=path)


class SimFile:
    """See `quiverlog.storage.disk.File`. Dead after a crash."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._life = disk.life
        self._inode: Inode | None = inode
        self.path = path
        self.size = len(inode.data)

    def _use(self, kind: str) -> Inode:
        """The file's contents; opened again by name when the descriptor is gone."""
        disk = self._disk
        assert self._life == disk.life, f"{self.path} is used after a crash"
        if self._inode is not None and disk.evicts():
            self._inode = None
        if self._inode is None:
            disk.step("open", self.path)
            self._inode = disk.inode(self.path)
        disk.step(kind, self.path)
        return self._inode

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        position = self.size
        try:
            inode = self._use("append")
        except OSError as error:
            left = self._disk.half_written(len(data))
            if left and self._inode is not None:
                self._inode.write(position, data[:left])
            raise _refused(self.path, error) from error
        self._disk.take_room(len(data), self.path)
        inode.write(position, data)
        self.size += len(data)
        return position

    def rewrite(self, position: int, data: Buffer) -> None:
        try:
            inode = self._use("append")
        except OSError as error:
            raise _refused(self.path, error) from error
        end = position + len(data)
        assert inode.data[position:end] == data, "rewrite must not change anything"
        inode.rewrite(position, bytes(data))

    def write_head(self, data: Buffer) -> None:
        assert len(data) <= self.size
        try:
            inode = self._use("append")
        except OSError as error:
            raise _refused(self.path, error) from error
        inode.rewrite(0, bytes(data))

    def read(self, position: int, size: int) -> memoryview:
        inode = self._use("read")
        end = min(position + size, self.size)
        if end > len(inode.data):
            raise OSError(errno.EIO, f"is shorter than {self.size} bytes", self.path)
        inode.warm(position, end)
        if end - position <= _COPY_BYTES_MAX:
            return memoryview(bytes(inode.data[position:end]))
        return inode.view(position, end)

    def read_copy(self, position: int, size: int) -> bytes:
        inode = self._use("read")
        end = min(position + size, self.size)
        inode.warm(position, end)
        return bytes(inode.data[position:end])

    def read_cached(self, position: int, size: int) -> bytearray | None:
        if self._inode is None or not self.resident(position, size):
            return None
        return bytearray(self._inode.data[position : position + size])

    def resident(self, position: int, size: int) -> bool:
        assert self._life == self._disk.life, f"{self.path} is used after a crash"
        inode = self._disk.inode(self.path) if self._inode is None else self._inode
        return inode.resident(position, min(position + size, self.size))

    def truncate(self, size: int) -> None:
        self._use("truncate").truncate(size)
        self.size = size

    def retract(self, size: int) -> None:
        self._use("retract").truncate(size)
        self.size = size

    def sync(self) -> None:
        inode = self._use("fsync")
        if self._disk.sync_fails():
            inode.sync_failed()
            raise OSError(errno.EIO, "simulated fsync failure", self.path)
        inode.sync()

    def close(self) -> None:
        self._inode = None


class _SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        self._disk.locks.discard(self._path)

    def claim(self, owner: bytes) -> None:
        pass

    def holds(self) -> bool:
        return self._path in self._disk.locks


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
        self.reorder_pages = False
        """May pages of one file reach the disk out of order?"""
        self.pages_reordered = 0
        self.directories_durable = True
        """Is a new directory's name durable at once? For tests of what lies in it."""
        self.life = 0
        self.locks: set[str] = set()
        self._root = Directory()

    # --- faults --------------------------------------------------------------------------------
    def step(self, kind: str, path: str) -> None:
        """Called before every operation, with its kind; may raise."""

    def evicts(self) -> bool:
        """Is this file's descriptor wanted for another file just now?"""
        return False

    def half_written(self, byte_count: int) -> int:
        """How much of a failed write is left in the file."""
        return 0

    def crash(self) -> None:
        """The power goes and comes back."""
        self.kill()
        self.fail_syncs = 0
        done: set[int] = set()
        self._crash(self._root, done)

    def _crash(self, directory: Directory, done: set[int]) -> None:
        directory.crash(self.chance)
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if id(node) in done:
                continue
            done.add(id(node))
            if isinstance(node, Directory):
                self._crash(node, done)
            else:
                self.pages_reordered += node.crash(self.chance, reorder=self.reorder_pages)

    def kill(self) -> None:
        """The process dies, the machine lives: everything written stays."""
        self.life += 1
        self.locks.clear()

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage a file, on the disk and in the cache alike."""
        self.inode(path).flip(bit)

    def durable_size(self, path: str) -> int:
        """Bytes of a file that a crash cannot take."""
        directory, name = self._parent(path)
        node = directory.durable.get(name)
        return len(node.durable) if isinstance(node, Inode) else 0

    def take_room(self, byte_count: int, path: str) -> None:
        """Raises DiskFull when so many bytes do not fit any more."""
        if self.capacity is not None and self.used_bytes + byte_count > self.capacity:
            raise DiskFull(f"writing {path}: simulated full disk.")

    def sync_fails(self) -> bool:
        """Does this fsync fail?"""
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            return True
        return False

    @property
    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(inode.data) for _, inode in self._walk("", self._root))

    def paths(self) -> list[str]:
        """All files."""
        return sorted(path for path, _ in self._walk("", self._root))

    def _walk(self, above: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
        for name, node in directory.entries.items():
            if isinstance(node, Directory):
                yield from self._walk(f"{above}{name}/", node)
            else:
                yield f"{above}{name}", node

    # --- names ---------------------------------------------------------------------------------
    def _find(self, path: str) -> Node | None:
        node: Node = self._root
        for name in path.split("/"):
            if not isinstance(node, Directory):
                return None
            found = node.entries.get(name)
            if found is None:
                return None
            node = found
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        if len(os.fsencode(name)) > _NAME_BYTES_MAX:
            raise OSError(errno.ENAMETOOLONG, "File name too long", path)
        node = self._find(above) if above else self._root
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node, name

    def inode(self, path: str) -> Inode:
        """The file of this name. Raises FileNotFoundError."""
        node = self._find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    # --- the protocol --------------------------------------------------------------------------
    def open(self, path: str, *, create: bool) -> SimFile:
        if create:
            try:
                self.step("create", path)
                directory, name = self._parent(path)
            except OSError as error:
                raise _refused(path, error) from error
            if name in directory.entries:
                raise StorageFault(f"writing {path}: File exists.")
            directory.change({name: Inode()})
        else:
            self.step("stat", path)
        return SimFile(self, path, self.inode(path))

    def read_file(self, path: str) -> bytes:
        self.step("open", path)
        self.step("read", path)
        return bytes(self.inode(path).data)

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        temporary = f"{path}.tmp"
        try:
            self._write_file(path, temporary, data, durable)
        except (OSError, QuiverlogError) as error:
            directory, _, name = temporary.rpartition("/")
            node = self._find(directory) if directory else self._root
            if isinstance(node, Directory) and name in node.entries:
                node.change({name: None})
            if isinstance(error, OSError):
                raise _refused(path, error) from error
            raise

    def _write_file(self, path: str, temporary: str, data: Buffer, durable: bool) -> None:
        self.step("atomic", path)
        directory, name = self._parent(temporary)
        inode = Inode()
        directory.change({name: inode})
        self.take_room(len(data), path)
        inode.write(0, bytes(data))
        if durable:
            self.step("fsync", path)
            if self.sync_fails():
                inode.sync_failed()
                raise OSError(errno.EIO, "simulated fsync failure", path)
            inode.sync()
        self.step("rename", path)
        directory.change({name: None, path.rpartition("/")[2]: inode})
        if durable:
            self.sync_dir(path.rpartition("/")[0])

    def rename(self, old: str, new: str) -> None:
        self.step("rename", old)
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        assert source is target, "renames stay in their directory"
        node = source.entries.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        there = target.entries.get(new_name)
        if isinstance(there, Directory) and there.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        source.change({old_name: None, new_name: node})

    def replace(self, file: File, path: str) -> None:
        self.rename(file.path, path)
        file.path = path

    def remove(self, path: str) -> None:
        self.step("unlink", path)
        self.inode(path)
        directory, name = self._parent(path)
        directory.change({name: None})

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if not isinstance(node, Directory):
            return
        for name in sorted(node.entries):
            if isinstance(node.entries[name], Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.step("unlink", path)
        directory, name = self._parent(path)
        directory.change({name: None})

    def list(self, path: str) -> list[str]:
        self.step("open", path)
        return sorted(self._directory(path).entries)

    def make_dir(self, path: str) -> None:
        above: list[str] = []
        for name in path.split("/"):
            directory = self._directory("/".join(above)) if above else self._root
            above.append(name)
            if name in directory.entries:
                continue
            self.step("mkdir", path)
            self._parent("/".join(above))
            directory.change({name: Directory()})
            if directory is self._root or self.directories_durable:
                directory.sync()

    def sync_dir(self, path: str) -> None:
        self.step("open", path)
        self.step("fsync_dir", path)
        if self.sync_fails():
            raise OSError(errno.EIO, "simulated fsync failure", path)
        self._directory(path).sync()

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_file(self, path: str) -> bool:
        return isinstance(self._find(path), Inode)

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def restrict(self, path: str) -> bool:
        return False

    def free_bytes(self, path: str) -> int:
        return 2**40 if self.capacity is None else max(0, self.capacity - self.used_bytes)

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> _SimLock:
        self.step("open", path)
        if path in self.locks:
            raise DataDirectoryInUse(f"{path} is locked by another broker.")
        self.locks.add(path)
        return _SimLock(self, path)
