"""A disk that loses, tears and fails on demand, all from one seed.

`SimDisk` keeps the promises of `quiverlog.storage.disk.disk.Disk` and not one more: contents are
durable after `sync`, names after `sync_dir`, whatever else a power failure may take (`inodes`). A
file's descriptor may go at any time; the next use opens the file again, by its name.

Faults from outside: `crash` (power), `kill` (the process), `flip_bit`, `capacity` (a full disk),
`fail_syncs` (each failed fsync drops the bytes that it was for: a later success does not bring them
to the disk). Every operation passes `step` first, where `faults.FaultyDisk` may raise.

Simplification: the data directory itself is durable at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from quiverlog.errors import (
    DataDirectoryInUse,
    DiskFull,
    QuiverlogError,
    StorageFault,
)
from quiverlog.storage.disk.disk import Buffer, File

from .files import SimFile, SimLock, refused
from .inodes import Directory, Inode, Node

__all__ = ["SimDisk", "SimFile"]

_NAME_BYTES_MAX = 255
_NAME_CHARS_SAFE = _NAME_BYTES_MAX // 4
"""Names up to here fit whatever their characters are; four bytes is the longest."""


class SimDisk:
    """The disk of `quiverlog.storage.disk.disk.Disk`, in memory.

    Args:
        seed: decides everything that is left to it.
        capacity: bytes that fit; None for any number. May be changed at any time.
    """

    def __init__(self, seed: int = 0, *, capacity: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.capacity = capacity
        self.fail_syncs = 0
        """How many of the next fsyncs fail."""
        self.reorder_pages = False
        """May pages of one file reach the disk out of order?"""
        self.pages_reordered = 0
        self.undone: Counter[str] = Counter()
        """Changes of names that crashes took back, by kind."""
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
        self.undone.update(directory.crash(self.rng))
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if id(node) in done:
                continue
            done.add(id(node))
            if isinstance(node, Directory):
                self._crash(node, done)
            else:
                self.pages_reordered += node.crash(self.rng, reorder=self.reorder_pages)

    def kill(self) -> None:
        """The process dies, the machine lives: everything written stays."""
        self.life += 1
        self.locks.clear()

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage a file, on the disk and in the cache alike."""
        self.inode(path).flip(bit)

    def exchange(self, path: str, data: bytes) -> None:
        """Put another file in the place of one, behind the broker's back and for good."""
        inode = self.inode(path)
        inode.truncate(0)
        inode.write(0, data)
        inode.sync()

    def vanish(self, path: str) -> None:
        """Take a file away, behind the broker's back and for good."""
        self.inode(path)
        directory, name = self._parent(path)
        directory.change({name: None})
        directory.sync()

    def image(self) -> Directory:
        """A copy of what is on the plate, as a snapshot of the volume would be."""
        return self._root.on_plate()

    def become(self, image: Directory | None) -> None:
        """Another disk is in its place: a copy of an earlier one, or (None) an empty one."""
        assert not self.locks, "no process is there"
        self._root = Directory() if image is None else image.on_plate()
        self.capacity = None

    def durable_size(self, path: str) -> int:
        """Bytes of a file that a crash cannot take."""
        directory, name = self._parent(path)
        node = directory.durable.get(name)
        return len(node.durable) if isinstance(node, Inode) else 0

    def take_room(self, byte_count: int, path: str) -> None:
        """Raises DiskFull when these bytes do not fit any more."""
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
    def _look(self, path: str) -> Node:
        """What has this name. Raises as `stat` does."""
        node: Node = self._root
        for name in path.split("/"):
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            _check_length(name, path)
            found = node.entries.get(name)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = found
        return node

    def _find(self, path: str) -> Node | None:
        try:
            return self._look(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        directory = self._directory(above) if above else self._root
        _check_length(name, path)
        return directory, name

    def inode(self, path: str) -> Inode:
        """The file of this name. Raises OSError."""
        node = self._look(path)
        if not isinstance(node, Inode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._look(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    # --- the protocol --------------------------------------------------------------------------
    def open(self, path: str, *, create: bool) -> SimFile:
        if create:
            try:
                self.step("create", path)
                directory, name = self._parent(path)
            except OSError as error:
                raise refused(path, error) from error
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
            with contextlib.suppress(OSError):
                directory, name = self._parent(temporary)
                if isinstance(directory.entries.get(name), Inode):
                    directory.change({name: None})
            if isinstance(error, OSError):
                raise refused(path, error) from error
            raise

    def _write_file(self, path: str, temporary: str, data: Buffer, durable: bool) -> None:
        self.step("atomic", path)
        directory, name = self._parent(temporary)
        if isinstance(directory.entries.get(name), Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", temporary)
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
        final = path.rpartition("/")[2]
        if isinstance(directory.entries.get(final), Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        directory.change({name: None, final: inode})
        if durable:
            self.sync_dir(path.rpartition("/")[0])

    def overwrite(self, path: str, data: Buffer) -> None:
        try:
            self.step("overwrite", path)
            directory, name = self._parent(path)
            inode = directory.entries.get(name)
            if inode is None:
                inode = Inode()
                directory.change({name: inode})
            if not isinstance(inode, Inode):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            self.take_room(max(0, len(data) - len(inode.data)), path)
            inode.rewrite(0, bytes(data))
        except OSError as error:
            raise refused(path, error) from error

    def rename(self, old: str, new: str) -> None:
        self.step("rename", old)
        source, old_name = self._parent(old)
        node = source.entries.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        target, new_name = self._parent(new)
        assert source is target, "renames stay in their directory"
        there = target.entries.get(new_name)
        if there is node:
            return
        if isinstance(there, Directory) and isinstance(node, Inode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", new)
        if isinstance(there, Inode) and isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", new)
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
        try:
            node = self._directory(path)
        except FileNotFoundError:
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

    def entries(self, path: str) -> dict[str, bool]:
        return {name: self.is_file(f"{path}/{name}") for name in self.list(path)}

    def make_dir(self, path: str) -> None:
        above: list[str] = []
        for name in path.split("/"):
            directory = self._directory("/".join(above)) if above else self._root
            above.append(name)
            if isinstance(directory.entries.get(name), Directory):
                continue
            if name in directory.entries:
                raise NotADirectoryError(errno.ENOTDIR, "is no directory", path)
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

    def directories(self, path: str) -> tuple[str, ...]:
        return tuple(name for name in self.list(path) if self._is_dir(f"{path}/{name}"))

    def _is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def restrict(self, path: str) -> bool:
        return False

    def free_bytes(self, path: str) -> int:
        return 2**40 if self.capacity is None else max(0, self.capacity - self.used_bytes)

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> SimLock:
        self.step("open", path)
        if path in self.locks:
            raise DataDirectoryInUse(f"{path} is locked by another broker.")
        self.locks.add(path)
        return SimLock(self, path)


def _check_length(name: str, path: str) -> None:
    if len(name) > _NAME_CHARS_SAFE and len(os.fsencode(name)) > _NAME_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, "File name too long", path)
