"""The data directory as a whole: whose it is, who uses it, and whether it was left in order.

Owns:
- `lock`            flock, so that two brokers never share a directory;
- `node.json`       magic, format version, cluster id, node id: written once;
- `clean-shutdown`  there only while a cleanly stopped broker's data lie still: consumed at start,
                    so that a crash at any later moment counts as unclean; it knows how long the
                    metadata log was, so that one that was cut since is noticed;
- `metadata/`       the metadata log (metadata_log.py);
- `data/<topic>-<partition>/`, each with a `partition.json` that carries the topic's id, so that
                    what a deleted topic left behind is never taken for a new topic of that name.

A directory on its way out is renamed to `<name>.<8 hex of the topic id>.deleted` first: a crash in
the middle of the removal leaves something that nobody takes for a partition. Rows are only removed
when the metadata log says that their topic was deleted; rows of a topic that it never heard of are
set aside as `<name>.<8 hex>.orphan`, for the operator to judge.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from quiverlog.errors import CorruptLog, ForeignDataDirectory
from quiverlog.storage.disk import Disk, DiskLock
from quiverlog.storage.frames import check_version, pack_file, unpack_file

__all__ = ["DataDirectory", "NodeFile", "PartitionFile"]

_NODE_MAGIC: Final = "quiverlog-node"
_PARTITION_MAGIC: Final = "quiverlog-partition"
_JSON_VERSION: Final = 1
_CLEAN_MAGIC: Final = b"QVCLEAN\0"
_CLEAN_VERSION: Final = 1
_DELETED: Final = ".deleted"
_ORPHAN: Final = ".orphan"
_CLEAN: Final = struct.Struct("<16sQ")
_CLUSTER_ID_BYTES: Final = 16


class NodeFile(msgspec.Struct, kw_only=True):
    """`node.json`."""

    magic: str = _NODE_MAGIC
    version: int = _JSON_VERSION
    cluster_id: str
    node_id: int


class PartitionFile(msgspec.Struct, kw_only=True):
    """`partition.json`. `topic_id` in hex."""

    magic: str = _PARTITION_MAGIC
    version: int = _JSON_VERSION
    topic_id: str


class DataDirectory:
    """See the module docstring. `incarnation` is new at every start.

    `metadata_bytes`: length of the metadata log at the last clean stop; 0 when that is not known.
    """

    __slots__ = (
        "_disk",
        "_lock",
        "clean",
        "cluster_id",
        "incarnation",
        "metadata_bytes",
        "node_id",
        "path",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: DiskLock,
        node: NodeFile,
        *,
        incarnation: bytes,
        clean: bool,
        metadata_bytes: int,
    ) -> None:
        self._disk = disk
        self._lock = lock
        self.path = path
        self.cluster_id = node.cluster_id
        self.node_id = node.node_id
        self.incarnation = incarnation
        self.clean = clean
        self.metadata_bytes = metadata_bytes

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        node_id: int,
        cluster_id: str = "",
        entropy: Callable[[int], bytes],
    ) -> DataDirectory:
        """Take the directory, making it when missing. A new one counts as clean.

        Args:
            cluster_id: empty takes the directory's own, or makes one up for a new directory.

        Raises:
            DataDirectoryInUse: another broker has it.
            ForeignDataDirectory: it belongs to another cluster or node.
            UnsupportedFormat: a newer quiverlog wrote it.
            CorruptLog: `node.json` is damaged.
        """
        disk.make_dir(f"{path}/data")
        disk.make_dir(f"{path}/metadata")
        lock = disk.lock(path)
        try:
            node, fresh = _load_node(disk, path, node_id, cluster_id, entropy)
            metadata_bytes = _consume_clean_mark(disk, path)
        except BaseException:
            lock.release()
            raise
        return cls(
            disk,
            path,
            lock,
            node,
            incarnation=entropy(16),
            clean=fresh or metadata_bytes > 0,
            metadata_bytes=metadata_bytes,
        )

    @property
    def metadata_path(self) -> str:
        """Where the metadata log lies."""
        return f"{self.path}/metadata"

    @property
    def data_path(self) -> str:
        """Where the partitions lie."""
        return f"{self.path}/data"

    def partition_path(self, name: str) -> str:
        """The directory of the partition `name` (`<topic>-<partition>`)."""
        return f"{self.path}/data/{name}"

    def partitions(self) -> list[str]:
        """Names of the directories that are there; those on their way out or aside left out."""
        names = self._disk.list(self.data_path)
        return [name for name in names if not name.endswith((_DELETED, _ORPHAN))]

    def create_partition(self, name: str, topic_id: bytes) -> str:
        """Make a partition's directory, replacing what another topic left there; its path.

        The directory of this very topic is kept as it is. Its name is durable after
        `sync_partitions`; its `partition.json` may be torn by a power failure, which
        `remove_leftovers` expects: thousands of partitions must not cost as many flushes.
        """
        path = self.partition_path(name)
        if self._disk.exists(path):
            if self.partition_topic_id(name) == topic_id:
                return path
            self.remove_partition(name)
        self._disk.make_dir(path)
        self._disk.write_file_atomic(
            f"{path}/partition.json",
            msgspec.json.encode(PartitionFile(topic_id=topic_id.hex())) + b"\n",
            durable=False,
        )
        return path

    def sync_partitions(self) -> None:
        """Make the names of all partitions' directories durable."""
        self._disk.sync_dir(self.data_path)

    def partition_topic_id(self, name: str) -> bytes:
        """The id of the topic that a directory belongs to; empty when none can be read."""
        path = f"{self.partition_path(name)}/partition.json"
        try:
            file = msgspec.json.decode(self._disk.read_file(path), type=PartitionFile)
            topic_id = bytes.fromhex(file.topic_id)
        except (FileNotFoundError, msgspec.MsgspecError, ValueError, UnicodeDecodeError):
            return b""
        check_version(path, file.version, _JSON_VERSION)
        return topic_id

    def remove_partition(self, name: str) -> None:
        """Remove a partition's directory, whoever's it is."""
        self.remove_partitions({name: None})

    def remove_partitions(self, owners: Mapping[str, bytes | None]) -> None:
        """Remove the directories of these partitions, with one flush for all of them.

        Args:
            owners: topic id by partition name: a directory that is not that topic's is left
                alone. None stands for any.
        """
        doomed: list[str] = []
        for name, topic_id in owners.items():
            path = self.partition_path(name)
            if not self._disk.exists(path):
                continue
            owner = self.partition_topic_id(name)
            if topic_id is not None and owner not in (topic_id, b""):
                continue
            doomed.append(f"{path}.{owner.hex()[:8] or 'unknown'}{_DELETED}")
            self._disk.remove_tree(doomed[-1])
            self._disk.rename(path, doomed[-1])
        if doomed:
            self._disk.sync_dir(self.data_path)
        for path in doomed:
            self._disk.remove_tree(path)

    def remove_leftovers(
        self, owners: Mapping[str, bytes], removed: Collection[bytes]
    ) -> tuple[list[str], list[str]]:
        """Clear away all that no topic owns. Returns (names removed, names set aside).

        Args:
            owners: topic id by partition name. A directory whose `partition.json` cannot be read
                is kept when its name is owned: rows are worth more than the file that labels them.
            removed: ids of topics that are known to have been deleted.
        """
        gone: list[str] = []
        aside: list[str] = []
        for name in self._disk.list(self.data_path):
            if name.endswith(_DELETED):
                self._disk.remove_tree(self.partition_path(name))
                gone.append(name)
                continue
            owner = b"" if name.endswith(_ORPHAN) else self.partition_topic_id(name)
            if name.endswith(_ORPHAN) or (name in owners and owner in (owners[name], b"")):
                continue
            if owner in removed or not self._holds_rows(name):
                self.remove_partition(name)
                gone.append(name)
            else:
                self._set_aside(name, owner)
                aside.append(name)
        return gone, aside

    def _holds_rows(self, name: str) -> bool:
        return any(file.endswith(".log") for file in self._disk.list(self.partition_path(name)))

    def _set_aside(self, name: str, owner: bytes) -> None:
        path = self.partition_path(name)
        self._disk.rename(path, f"{path}.{owner.hex()[:8] or 'unknown'}{_ORPHAN}")
        self._disk.sync_dir(self.data_path)

    def close(self, *, clean: bool, metadata_bytes: int = 0) -> None:
        """Let go. `clean`: all logs were closed cleanly, the next start may trust them."""
        try:
            if clean:
                payload = _CLEAN.pack(self.incarnation, metadata_bytes)
                mark = pack_file(_CLEAN_MAGIC, _CLEAN_VERSION, payload)
                self._disk.write_file_atomic(f"{self.path}/clean-shutdown", mark)
        finally:
            self._lock.release()


def _load_node(
    disk: Disk, path: str, node_id: int, cluster_id: str, entropy: Callable[[int], bytes]
) -> tuple[NodeFile, bool]:
    """(whose directory it is, was it made just now)."""
    file = f"{path}/node.json"
    if not disk.exists(file):
        if disk.list(f"{path}/data") or disk.list(f"{path}/metadata"):
            raise ForeignDataDirectory(f"{path} holds data but {file} is missing.")
        node = NodeFile(cluster_id=cluster_id or entropy(_CLUSTER_ID_BYTES).hex(), node_id=node_id)
        disk.write_file_atomic(file, msgspec.json.encode(node) + b"\n")
        return node, True
    try:
        node = msgspec.json.decode(disk.read_file(file), type=NodeFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptLog(f"{file} cannot be read: {error}.", file=file) from error
    if node.magic != _NODE_MAGIC:
        raise ForeignDataDirectory(f"{file} is not quiverlog's.")
    check_version(file, node.version, _JSON_VERSION)
    if cluster_id and node.cluster_id != cluster_id:
        raise ForeignDataDirectory(
            f"{path} belongs to cluster {node.cluster_id!r}, this broker to {cluster_id!r}."
        )
    if node.node_id != node_id:
        raise ForeignDataDirectory(f"{path} belongs to node {node.node_id}, this is {node_id}.")
    return node, False


def _consume_clean_mark(disk: Disk, path: str) -> int:
    """Length of the metadata log at the last stop if that was clean, else 0.

    The mark is gone, durably, before anything is written.
    """
    mark = f"{path}/clean-shutdown"
    if not disk.exists(mark):
        return 0
    try:
        payload = unpack_file(mark, disk.read_file(mark), _CLEAN_MAGIC, _CLEAN_VERSION)
        metadata_bytes = int(_CLEAN.unpack(payload)[1])
    except (CorruptLog, struct.error):
        metadata_bytes = 0  # A damaged mark proves nothing: scan.
    disk.remove(mark)
    disk.sync_dir(path)
    return metadata_bytes
