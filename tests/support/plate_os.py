"""System calls on files in memory, of which a power failure keeps what the adversary likes.

Takes the place of `os` in the modules of the real disk, so that their own code runs, and ends the
process or the machine before any call that changes something. What is not synced reaches the plate
sector by sector, each as any write since the last sync has left it; a file's size is that of any of
them. Names: `tests.sim.inodes.Directory`.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import random
import stat
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest import mock

from quiverlog.storage.disk import descriptors, posix, posix_file
from tests.sim.faults import Death
from tests.sim.inodes import Directory, Node

__all__ = ["PlateOs"]

_SECTOR_BYTES: Final = 512
_FIRST_NUMBER: Final = 1_000_000
_NUMBERS: Final = itertools.count(_FIRST_NUMBER)
"""Of descriptors: never used twice, as late ones are closed in a later life."""


class _Inode:
    """`versions`: the contents that the last sync brought to the plate, and all since then."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.versions = [b""]

    def wrote(self) -> None:
        self.versions.append(bytes(self.data))

    def sync(self) -> None:
        self.versions = [bytes(self.data)]

    def crash(self, rng: random.Random) -> None:
        size = len(rng.choice(self.versions))
        kept = bytearray()
        for at in range(0, size, _SECTOR_BYTES):
            sector = rng.choice(self.versions)[at : at + _SECTOR_BYTES]
            kept += sector.ljust(_SECTOR_BYTES, b"\0")
        self.data = kept[:size]
        self.sync()


class _Path:
    def __init__(self, plate: PlateOs) -> None:
        self._plate = plate

    def __getattr__(self, name: str) -> Any:
        return getattr(os.path, name)

    def isdir(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            return isinstance(self._plate.find(path), Directory)
        return False


class PlateOs:
    """`calls`: those that changed something, in this life."""

    def __init__(self) -> None:
        self.path = _Path(self)
        self.calls: list[str] = []
        self._root = Directory()
        self._open: dict[int, _Inode | Directory] = {}
        self._fuse = -1
        self._dead = False
        self._numbers = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        assert not callable(found) or name in ("fspath", "strerror", "fsencode"), name
        return found

    def begin_anew(self) -> None:
        """Another machine, with an empty plate."""
        self.kill()
        self._root = Directory()

    def take(self, path: str) -> None:
        """Take a file away, for good."""
        directory, name = self._parent(path)
        directory.change({name: None})
        directory.sync()

    # --- lives ---------------------------------------------------------------------------------
    def die_after(self, calls: int | None) -> None:
        """Raise Death before the so-manieth call from now that changes something."""
        self.calls = []
        self._fuse = -1 if calls is None else calls

    def kill(self) -> None:
        """The process is gone; another one may begin."""
        self._open.clear()
        self._dead = False
        self.die_after(None)

    def crash(self, rng: random.Random) -> None:
        """The machine is gone, and comes back."""
        self.kill()
        seen: set[int] = set()
        self._crash(self._root, rng, seen)

    def _crash(self, directory: Directory, rng: random.Random, seen: set[int]) -> None:
        directory.crash(rng)
        for name in sorted(directory.entries):
            node = cast(Any, directory.entries[name])
            if id(node) not in seen:
                seen.add(id(node))
                if isinstance(node, Directory):
                    self._crash(node, rng, seen)
                else:
                    node.crash(rng)

    def _change(self, what: str) -> None:
        if self._dead or len(self.calls) == self._fuse:
            self._dead = True
            raise Death
        self.calls.append(what)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The real disk makes its calls here."""
        with contextlib.ExitStack() as stack:
            for module in (posix, posix_file, descriptors, posix_file, posix):
                stack.enter_context(mock.patch.object(module, "os", self))
            try:
                yield
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Descriptors with a reference left must not be closed as numbers of this process.

        A caught traceback, for example, keeps them longer than `os` is replaced by this.
        """
        for one in gc.get_objects():
            if type(one) is descriptors.Descriptor and one.fd >= _FIRST_NUMBER:
                self.close(one.fd)
                one.fd = -1

    # --- names ---------------------------------------------------------------------------------
    def find(self, path: str) -> _Inode | Directory:
        node: Any = self._root
        for name in filter(None, path.split("/")):
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            if name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = node.entries[name]
        return cast("_Inode | Directory", node)

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.strip("/").rpartition("/")
        node = self.find(above) if above else self._root
        assert isinstance(node, Directory)
        return node, name

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._change("mkdir")
        directory, name = self._parent(path)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        directory.change({name: Directory()})
        directory.sync()

    def rename(self, old: str, new: str) -> None:
        self._change("rename")
        directory, name = self._parent(old)
        node = cast(Node, self.find(old))
        directory.change({name: None, self._parent(new)[1]: node})

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._change(f"rmdir {path}")
        directory, name = self._parent(path)
        directory.change({name: None})

    def unlink(self, path: str) -> None:
        assert isinstance(self.find(path), _Inode)
        self._change("unlink")
        directory, name = self._parent(path)
        directory.change({name: None})

    def listdir(self, path: str) -> list[str]:
        node = self.find(path)
        assert isinstance(node, Directory)
        return list(node.entries)

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[Any]]:
        def entry(name: str) -> Any:
            is_file = isinstance(self.find(f"{path}/{name}"), _Inode)
            return SimpleNamespace(
                name=name,
                path=f"{path}/{name}",
                is_file=lambda *, follow_symlinks=True: is_file,
                is_dir=lambda: not is_file,
                is_symlink=lambda: False,
            )

        yield map(entry, self.listdir(path))

    def stat(self, path: str) -> Any:
        return _stat_of(self.find(path))

    lstat = stat

    # --- files ---------------------------------------------------------------------------------
    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        try:
            node = self.find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            self._change("open")
            self._numbers += 1
            node = _Inode(self._numbers)
            directory, name = self._parent(path)
            directory.change({name: cast(Node, node)})
        else:
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, "File exists", path)
        if flags & os.O_TRUNC and isinstance(node, _Inode) and node.data:
            self._change("open")
            node.data.clear()
            node.wrote()
        fd = next(_NUMBERS)
        self._open[fd] = node
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def fstat(self, fd: int) -> Any:
        return _stat_of(self._open[fd])

    def _file(self, fd: int) -> _Inode:
        node = self._open[fd]
        assert isinstance(node, _Inode)
        return node

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._file(fd).data[position : position + size])

    def preadv(self, fd: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        file = self._file(fd)
        self._change("pwrite")
        assert position <= len(file.data)
        file.data[position : position + len(data)] = data
        file.wrote()
        return len(data)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return self.pwrite(fd, b"".join(buffers), position)

    def ftruncate(self, fd: int, size: int) -> None:
        self._change("ftruncate")
        file = self._file(fd)
        del file.data[size:]
        file.wrote()

    def fsync(self, fd: int) -> None:
        self._change("fsync")
        self._open[fd].sync()

    fdatasync = fsync


def _stat_of(node: _Inode | Directory) -> Any:
    if isinstance(node, Directory):
        return SimpleNamespace(st_mode=stat.S_IFDIR | 0o700, st_dev=1, st_ino=id(node), st_size=0)
    mode = stat.S_IFREG | 0o600
    return SimpleNamespace(st_mode=mode, st_dev=1, st_ino=node.number, st_size=len(node.data))
