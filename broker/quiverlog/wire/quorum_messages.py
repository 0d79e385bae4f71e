"""QUORUM: the metadata quorum's messages between brokers.

One struct per kind of message, with the kind's number at its first place. Entries and snapshot
chunks are in the body, in the order of the messages. The request is answered on receipt: the answer
to a message is a message of its own, in a request the other way.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar

from msgspec import Meta

from quiverlog.limits import (
    CLUSTER_ID_CHARS_MAX,
    DIRECTORY_ID_CHARS_MAX,
    ENDPOINT_CHARS_MAX,
    QUORUM_BODY_BYTES_MAX,
    QUORUM_ENTRIES_MAX,
    QUORUM_MESSAGES_MAX,
    QUORUM_VOTERS_MAX,
)

from .messages import Api, Int32, Part, Request, Response, UInt31, UInt63

__all__ = [
    "QUORUM_CONTAINERS_MAX",
    "QuorumAppend",
    "QuorumAppendResponse",
    "QuorumEntry",
    "QuorumHeartbeat",
    "QuorumHeartbeatResponse",
    "QuorumMessage",
    "QuorumObserve",
    "QuorumPreVote",
    "QuorumPreVoteResponse",
    "QuorumRequest",
    "QuorumResponse",
    "QuorumSnapshotChunk",
    "QuorumSnapshotChunkResponse",
    "QuorumTimeoutNow",
    "QuorumVote",
    "QuorumVoteResponse",
    "QuorumVoter",
]

_T = TypeVar("_T")

BodyBytes = Annotated[int, Meta(ge=0, le=QUORUM_BODY_BYTES_MAX)]
ClusterId = Annotated[str, Meta(max_length=CLUSTER_ID_CHARS_MAX)]
DirectoryId = Annotated[str, Meta(max_length=DIRECTORY_ID_CHARS_MAX)]
Endpoint = Annotated[str, Meta(max_length=ENDPOINT_CHARS_MAX)]
PerEntry = Annotated[list[_T], Meta(max_length=QUORUM_ENTRIES_MAX)]
PerVoter = Annotated[list[_T], Meta(max_length=QUORUM_VOTERS_MAX)]
PerMessage = Annotated[list[_T], Meta(max_length=QUORUM_MESSAGES_MAX)]


class QuorumPreVote(Part, array_like=True, gc=False, tag=1):
    """Asks whether an election would be won, without starting one."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    last_index: UInt63 = 0
    last_term: UInt63 = 0


class QuorumPreVoteResponse(Part, array_like=True, gc=False, tag=2):
    target_directory: DirectoryId = ""
    term: UInt63 = 0
    granted: bool = False
    asked_term: UInt63 = 0


class QuorumVote(Part, array_like=True, gc=False, tag=3):
    """Asks for a vote in `term`."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    last_index: UInt63 = 0
    last_term: UInt63 = 0


class QuorumVoteResponse(Part, array_like=True, gc=False, tag=4):
    target_directory: DirectoryId = ""
    term: UInt63 = 0
    granted: bool = False
    silent_us: UInt63 = 0


class QuorumEntry(Part, array_like=True, gc=False):
    """One entry of the log. The first one of a message follows its `prev_index`."""

    term: UInt63 = 0
    kind: UInt31 = 0
    data_bytes: BodyBytes = 0


class QuorumAppend(Part, array_like=True, gc=False, tag=5):
    """The leader's log after `prev_index`. Body: the data of `entries`, one after the other."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    prev_index: UInt63 = 0
    prev_term: UInt63 = 0
    commit: UInt63 = 0
    entries: PerEntry[QuorumEntry] = []


class QuorumAppendResponse(Part, array_like=True, gc=False, tag=6):
    """`accepted`: the log equals the leader's up to `index`, durably. Otherwise `index` is the
    `prev_index` that did not match, and the hint is the newest place that may match."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    accepted: bool = False
    index: UInt63 = 0
    hint_index: UInt63 = 0
    hint_term: UInt63 = 0


class QuorumHeartbeat(Part, array_like=True, gc=False, tag=7):
    """`sent_us` is returned in the answer."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    commit: UInt63 = 0
    sent_us: UInt63 = 0


class QuorumHeartbeatResponse(Part, array_like=True, gc=False, tag=8):
    """The sender is alive in this term. `sent_us` is the heartbeat's."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    sent_us: UInt63 = 0


class QuorumVoter(Part, array_like=True, gc=False):
    node_id: UInt31 = 0
    directory_id: DirectoryId = ""
    endpoint: Endpoint = ""


class QuorumSnapshotChunk(Part, array_like=True, gc=False, tag=9):
    """A chunk of the snapshot of all entries up to `index`. Body: the chunk."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0
    index: UInt63 = 0
    index_term: UInt63 = 0
    voters: PerVoter[QuorumVoter] = []
    offset: UInt63 = 0
    data_bytes: BodyBytes = 0
    done: bool = False


class QuorumSnapshotChunkResponse(Part, array_like=True, gc=False, tag=10):
    target_directory: DirectoryId = ""
    term: UInt63 = 0
    snapshot_index: UInt63 = 0
    offset: UInt63 = 0
    installed: bool = False


class QuorumTimeoutNow(Part, array_like=True, gc=False, tag=11):
    """The leader asks its chosen successor to begin an election at once."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0


class QuorumObserve(Part, array_like=True, gc=False, tag=12):
    """A replica without a vote asks the leader for the log."""

    target_directory: DirectoryId = ""
    term: UInt63 = 0


QuorumMessage: TypeAlias = (
    QuorumPreVote
    | QuorumPreVoteResponse
    | QuorumVote
    | QuorumVoteResponse
    | QuorumAppend
    | QuorumAppendResponse
    | QuorumHeartbeat
    | QuorumHeartbeatResponse
    | QuorumSnapshotChunk
    | QuorumSnapshotChunkResponse
    | QuorumTimeoutNow
    | QuorumObserve
)


class QuorumRequest(Request, array_like=True, gc=False):
    """Messages of the metadata quorum from one replica to one node. Body: the bytes of their
    entries and chunks, in their order."""

    API: ClassVar[Api] = Api.QUORUM
    cluster_id: ClusterId = ""
    source_id: UInt31 = 0
    source_directory: DirectoryId = ""
    target_id: UInt31 = 0
    messages: PerMessage[QuorumMessage] = []
    source_endpoint: Endpoint = ""
    source_is_controller: bool = True


class QuorumResponse(Response, array_like=True, gc=False):
    """Without an error the messages were received; their processing is not confirmed."""

    API: ClassVar[Api] = Api.QUORUM
    directory_id: DirectoryId = ""
    leader_id: Int32 = -1
    leader_directory: DirectoryId = ""
    leader_endpoint: Endpoint = ""


QUORUM_CONTAINERS_MAX: Final = 2 + 2 * QUORUM_MESSAGES_MAX + QUORUM_ENTRIES_MAX + QUORUM_VOTERS_MAX
"""Arrays in the header of a request at all its bounds at once."""
