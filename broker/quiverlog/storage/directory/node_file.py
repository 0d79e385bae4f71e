"""`node.json`: the cluster, the node and the id of a data directory. Written once, and again when
proofs are required from then on; its values have a checksum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import CorruptLog, ForeignDataDirectory, UnsupportedFormat
from quiverlog.storage.disk.disk import Disk, is_special_file
from quiverlog.storage.disk.frames import check_version

__all__ = ["NodeFile", "load_node", "read_node"]

_NODE_MAGIC: Final = "quiverlog-node"
_JSON_VERSION: Final = 1
_CLUSTER_ID_BYTES: Final = 16
_DIRECTORY_ID_BYTES: Final = 16


class NodeFile(msgspec.Struct, kw_only=True):
    """`directory_id`: random; a replaced disk gets another. A file without it or `crc32c` is from
    before the first release, and refused."""

    magic: str = _NODE_MAGIC
    version: int = _JSON_VERSION
    cluster_id: str
    node_id: int
    directory_id: str = ""
    proof_required: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Other brokers must prove that they have the cluster's secret. It is part of the checksum, so
    that an older version, which would take any, refuses the directory."""
    crc32c: int | None = None


_DECODER: Final = msgspec.json.Decoder(NodeFile)


def _checksum(node: NodeFile) -> int:
    proof = "" if node.proof_required is msgspec.UNSET else "\nproof"
    return crc32c(f"{node.cluster_id}\n{node.node_id}\n{node.directory_id}{proof}".encode())


def _write(disk: Disk, path: str, node: NodeFile) -> None:
    assert node.directory_id
    node.crc32c = _checksum(node)
    disk.write_file_atomic(f"{path}/node.json", msgspec.json.encode(node) + b"\n")


def _restore(file: str, what: str) -> CorruptLog:
    return CorruptLog(
        f"{file} {what}: restore the file from a backup; nothing was changed.", file=file
    )


def load_node(
    disk: Disk,
    path: str,
    node_id: int,
    cluster_id: str,
    entropy: Callable[[int], bytes],
    *,
    proof_required: bool = False,
    also_of_old: bool = False,
) -> tuple[NodeFile, bool]:
    """Return the file, and whether it was made now; then it gets `proof_required`.

    Args:
        also_of_old: so does a file without it.
    """
    file = f"{path}/node.json"
    if not disk.exists(file):
        if disk.list(f"{path}/data") or disk.list(f"{path}/metadata"):
            raise ForeignDataDirectory(
                f"{path} holds data but {file} is missing: restore that file from a backup."
            )
        node = NodeFile(
            cluster_id=cluster_id or entropy(_CLUSTER_ID_BYTES).hex(),
            node_id=node_id,
            directory_id=entropy(_DIRECTORY_ID_BYTES).hex(),
            proof_required=True if proof_required else msgspec.UNSET,
        )
        _write(disk, path, node)
        return node, True
    node = read_node(disk, path)
    if cluster_id and node.cluster_id != cluster_id:
        raise ForeignDataDirectory(
            f"{path} belongs to cluster {node.cluster_id!r}, this broker to {cluster_id!r}."
        )
    if node.node_id != node_id:
        raise ForeignDataDirectory(f"{path} belongs to node {node.node_id}, this is {node_id}.")
    if also_of_old and proof_required and node.proof_required is msgspec.UNSET:
        node.proof_required = True
        _write(disk, path, node)
    return node, False


def read_node(disk: Disk, path: str) -> NodeFile:
    file = f"{path}/node.json"
    try:
        node = _DECODER.decode(disk.read_file(file))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _restore(file, f"is damaged ({error})") from error
    except OSError as error:
        if not is_special_file(error):
            raise
        raise _restore(file, "is not a regular file") from error
    if node.magic != _NODE_MAGIC:
        raise ForeignDataDirectory(f"{file} is not quiverlog's.")
    check_version(file, node.version, _JSON_VERSION)
    if node.crc32c is None:
        raise UnsupportedFormat(f"{file} is of a quiverlog before its first release.")
    if node.crc32c != _checksum(node):
        raise _restore(file, "is damaged (its checksum does not match)")
    return node
