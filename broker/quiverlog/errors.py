"""The table of errors of brokers, clients and the connector; each has a number.

Codes never change and are never reused (names may). Two flags drive every retry: `retriable` (the
same request may succeed later) and `refresh_metadata` (request metadata first). A broker sends
codes below 1000; from 1000 on they are of the client, the command line and the connector.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .limits import ERROR_MESSAGE_CHARS_MAX

__all__ = [
    "AddressInUse",
    "AuthenticationFailed",
    "BatchTooLarge",
    "BrokerAlive",
    "BrokerInUse",
    "BrokerNotProved",
    "BrokerNotReached",
    "BrokerShuttingDown",
    "BufferExhausted",
    "ClientClosed",
    "CommitUnknown",
    "ConfigNeedsRestart",
    "ConnectionClosed",
    "ConnectionFailed",
    "CoordinatorNotReady",
    "CorruptBatch",
    "CorruptFrame",
    "CorruptLog",
    "CredentialsExpired",
    "DataDirectoryInUse",
    "DataLoss",
    "DeliveryTimedOut",
    "DiskFull",
    "DuplicateNodeId",
    "EarlierDiskState",
    "FeatureNotFinalised",
    "FencedInstance",
    "FencedLeaderEpoch",
    "FencedMemberEpoch",
    "FileTooLarge",
    "ForeignDataDirectory",
    "ForkedClient",
    "FrameTooLarge",
    "GroupFull",
    "GroupNotEmpty",
    "IncompatibleSchema",
    "IneligibleReplica",
    "InternalTopic",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidFeatureLevel",
    "InvalidFetchSession",
    "InvalidGroup",
    "InvalidOption",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidReplicaAssignment",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidResponse",
    "InvalidSchema",
    "InvalidSecurity",
    "InvalidTimestamp",
    "InvalidTopicName",
    "InvalidValue",
    "InvalidVoterChange",
    "ListenerWithoutAdministration",
    "LogTruncated",
    "LoginMissing",
    "MechanismNotOffered",
    "NotAuthenticated",
    "NotAuthorized",
    "NotController",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeader",
    "NotNegotiated",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "OutcomeUnknown",
    "OutdatedPartitionEpoch",
    "PeerUnreachable",
    "PolicyViolation",
    "ProcessingTimedOut",
    "QuiverlogError",
    "QuotaExceeded",
    "ReplicaNotAvailable",
    "RequestTimedOut",
    "SchemaMismatch",
    "SequenceTaken",
    "SequenceTooOld",
    "StagedRowsLost",
    "StagingFull",
    "StaleBrokerEpoch",
    "StorageFault",
    "ThrottledBroker",
    "TlsFailed",
    "TlsRequired",
    "TooFewBrokers",
    "TooManyConnections",
    "TooManyConnectionsFromAddress",
    "TopicExists",
    "TransactionBusy",
    "TransactionClosed",
    "TransactionFenced",
    "TransactionTooLarge",
    "UnknownApi",
    "UnknownBroker",
    "UnknownConfig",
    "UnknownLeaderEpoch",
    "UnknownMember",
    "UnknownPartition",
    "UnknownProducerId",
    "UnknownSchema",
    "UnknownToken",
    "UnknownTopic",
    "UnknownTopicId",
    "UnknownTransactionalId",
    "UnknownUser",
    "UnstableOffsets",
    "UnsupportedAssignor",
    "UnsupportedDurability",
    "UnsupportedFeatureLevel",
    "UnsupportedFormat",
    "UnsupportedValue",
    "UnsupportedVersion",
    "UserExists",
    "VoterChangePending",
    "VoterNotReady",
    "WorkersLackPackage",
    "WorkersPythonDiffers",
    "WrongCluster",
    "WrongListener",
    "WrongNode",
]

_BY_CODE: dict[int, type[QuiverlogError]] = {}


class QuiverlogError(Exception):
    """Base of quiverlog's errors.

    Args:
        message: what happened, with the values that matter; empty takes the class's hint alone.
        **details: values a program may want (for example `log_start_offset`), kept in `details`.
    """

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False
    hint: ClassVar[str] = "This is a bug in quiverlog: please report it with the broker's log."

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} needs a code of its own")
        if cls.code in _BY_CODE:
            raise TypeError(f"code {cls.code} of {cls.__name__} is taken")
        _BY_CODE[cls.code] = cls

    def __init__(self, message: str = "", **details: object) -> None:
        self.message = (message or self.hint)[:ERROR_MESSAGE_CHARS_MAX]
        # Any: values are passed on unchanged, `seek(error.details["partition"], ...)`.
        self.details: dict[str, Any] = details
        super().__init__(self.message)

    @classmethod
    def code_name(cls) -> str:
        """Return the name in capitals: `UnknownTopic` -> `UNKNOWN_TOPIC`."""
        letters = (("_" if c.isupper() and i else "") + c for i, c in enumerate(cls.__name__))
        return "".join(letters).upper()

    def __str__(self) -> str:
        text = self.message if self.message == self.hint else f"{self.message} {self.hint}".rstrip()
        return f"{text} [{self.code_name()} {self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark pickles exceptions between workers and driver: keep type and details.
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[QuiverlogError], message: str, details: dict[str, object]) -> QuiverlogError:
    return cls(message, **details)


_BY_CODE[QuiverlogError.code] = QuiverlogError


def error_class(code: int) -> type[QuiverlogError]:
    """Return the class for a code; an unknown code (a newer peer) gives `QuiverlogError`."""
    return _BY_CODE.get(code, QuiverlogError)


def error_from_code(code: int, message: str = "", **details: object) -> QuiverlogError:
    cls = error_class(code)
    if cls is QuiverlogError and code != QuiverlogError.code:
        message = f"error {code}: {message}"
    return cls(message, **details)


# --- protocol and connections -----------------------------------------------------------------
class CorruptFrame(QuiverlogError):
    code = 2
    hint = "The bytes are not quiverlog's protocol: check the address and the port."


class FrameTooLarge(QuiverlogError):
    code = 3
    hint = "Send smaller batches or ask for fewer bytes per fetch."


class UnknownApi(QuiverlogError):
    code = 4
    hint = "Client and broker are too far apart in version: upgrade the older one."


class UnsupportedVersion(QuiverlogError):
    code = 5
    hint = "Client and broker are too far apart in version: upgrade the older one."


class NotNegotiated(QuiverlogError):
    code = 6
    hint = "The first request of a connection must be HELLO."


class InvalidRequest(QuiverlogError):
    code = 7
    hint = ""


class TooManyConnections(QuiverlogError):
    code = 8
    retriable = True
    hint = "Close idle clients or raise `connections.max`."


class BrokerShuttingDown(QuiverlogError):
    code = 9
    retriable = True
    refresh_metadata = True
    hint = "The broker starts or stops; try again in a moment, or ask another broker."


# --- topics and partitions -------------------------------------------------------------------
class UnknownTopic(QuiverlogError):
    code = 20
    refresh_metadata = True
    hint = "List what exists with `quiverlog topic list`."


class UnknownPartition(QuiverlogError):
    code = 21
    retriable = True
    refresh_metadata = True
    hint = "`quiverlog topic describe` shows the partitions of a topic."


class UnknownTopicId(QuiverlogError):
    code = 22
    refresh_metadata = True
    hint = "The topic was deleted, or deleted and created again under the same name."


class TopicExists(QuiverlogError):
    code = 23
    hint = "Choose another name, or alter the topic that exists."


class InvalidTopicName(QuiverlogError):
    code = 24
    hint = (
        "Use 1 to 249 of the characters a-z A-Z 0-9 . _ - (not `.` or `..` alone, no leading `__`)."
    )


class InvalidPartitions(QuiverlogError):
    code = 25
    hint = "A topic has 1 to 10,000 partitions, and their number can only grow."


class InvalidReplicationFactor(QuiverlogError):
    code = 26
    hint = "A replication factor is 1 to 15, and at most the number of brokers that can take one."


class InvalidConfig(QuiverlogError):
    code = 27
    hint = "docs/config.md lists every key with its type and range."


class InvalidSchema(QuiverlogError):
    code = 28
    hint = ""


class IncompatibleSchema(QuiverlogError):
    code = 29
    hint = (
        "A schema may gain nullable columns at its end, wider types and nulls in columns; no more."
    )


class UnknownSchema(QuiverlogError):
    code = 30
    retriable = True
    refresh_metadata = True
    hint = "The broker has no schema of this id for the topic: fetch the topic's schemas again."


class NotLeader(QuiverlogError):
    code = 31
    retriable = True
    refresh_metadata = True
    hint = "`quiverlog topic describe` shows which broker leads the partition, if any."


class FencedLeaderEpoch(QuiverlogError):
    code = 32
    retriable = True
    refresh_metadata = True
    hint = "The leader epoch is older than the broker's: refresh metadata."


class UnknownLeaderEpoch(QuiverlogError):
    code = 33
    retriable = True
    refresh_metadata = True
    hint = "The leader epoch is newer than the broker's metadata: try again in a moment."


class OffsetOutOfRange(QuiverlogError):
    code = 34
    hint = "Start from an offset in the valid range, or from `earliest` or `latest`."


class OffsetNotAvailable(QuiverlogError):
    code = 35
    retriable = True
    hint = "The offset exists but may not be read yet; try again."


class LogTruncated(QuiverlogError):
    code = 36
    hint = "Rows from the diverging offset on were lost; other rows may have their offsets now."


class PolicyViolation(QuiverlogError):
    code = 37
    hint = ""


class NotController(QuiverlogError):
    code = 38
    retriable = True
    refresh_metadata = True
    hint = "Another broker is the controller, which decides about topics, or none is elected yet."


class ReplicaNotAvailable(QuiverlogError):
    code = 39
    retriable = True
    refresh_metadata = True
    hint = "This broker's copy of the partition cannot be read just now: read from the leader."


class InvalidReplicaAssignment(QuiverlogError):
    code = 40
    hint = (
        "Name live brokers that may hold partitions, each once, and as many as the partition has"
        " replicas, unless the move changes their number."
    )


class UnknownConfig(QuiverlogError):
    code = 41
    hint = "docs/config.md lists every key; `quiverlog config get` those of the running brokers."


class ConfigNeedsRestart(QuiverlogError):
    code = 42
    hint = "Set it in the broker's file, environment or flags, and start the broker again."


class UnknownBroker(QuiverlogError):
    code = 43
    hint = "`quiverlog cluster describe` lists the registered brokers."


class FeatureNotFinalised(QuiverlogError):
    code = 44
    hint = (
        "When every broker is new enough `quiverlog cluster upgrade --finalize` raises the level."
    )


class InvalidFeatureLevel(QuiverlogError):
    code = 45
    hint = "`quiverlog cluster features` shows the level, and what each broker supports."


# --- produce -----------------------------------------------------------------------------------
class CorruptBatch(QuiverlogError):
    code = 50
    hint = (
        "Writing: nothing of the batch was stored. Reading: docs/python-client.md shows how to"
        " step "
        "over rows that cannot be decoded."
    )


class BatchTooLarge(QuiverlogError):
    code = 51
    hint = "Send fewer rows per batch or raise the topic's `max.message.bytes`."


class OutOfOrderSequence(QuiverlogError):
    code = 52
    hint = "The batch does not follow the last one of this producer: open a new producer."


class InvalidProducerEpoch(QuiverlogError):
    code = 53
    hint = "A newer producer has the identity, or the epoch was never assigned: close this one."


class UnknownProducerId(QuiverlogError):
    code = 54
    hint = "The leader does not have this producer's state: open a new producer."


class InvalidTimestamp(QuiverlogError):
    code = 55
    hint = "Set the clock that is wrong, or the topic's message.timestamp.*.max.ms."


class DiskFull(QuiverlogError):
    code = 56
    retriable = True
    hint = "Free room, lower retention or trim topics: writes resume by themselves."


class StorageFault(QuiverlogError):
    code = 57
    retriable = True
    hint = "The broker's disk failed: look at the disk and the broker's log, then restart it."


class CorruptLog(QuiverlogError):
    code = 58
    hint = (
        "Stored files are not as they were written here: damaged, missing, or put here from"
        " elsewhere. Follow docs/storage-format.md, Repair."
    )

    def damage(self) -> tuple[int, int]:
        """Return (first unreadable offset, next one that may be readable); -1: unknown."""
        start, end = self.details.get("offset", -1), self.details.get("end_offset", -1)
        return (start if isinstance(start, int) else -1), (end if isinstance(end, int) else -1)


class NotEnoughReplicas(QuiverlogError):
    code = 59
    retriable = True
    hint = "Fewer replicas are in sync than the topic's `min.insync.replicas`."


class RequestTimedOut(QuiverlogError):
    code = 60
    retriable = True
    hint = "See which brokers answer: `quiverlog cluster status`."


class UnsupportedDurability(QuiverlogError):
    code = 61
    hint = (
        "Durabilities are memory, flushed, replicated and replicated_flushed; the last two need"
        " more than one replica."
    )


class ThrottledBroker(QuiverlogError):
    code = 62
    retriable = True
    hint = "The broker has too much to do, or has not finished what this needs: try again."


class NotEnoughReplicasAfterAppend(QuiverlogError):
    code = 63
    retriable = True
    hint = (
        "While the rows waited for replicas, these fell out of sync or the leader changed: the"
        " outcome is unknown."
    )


# --- between brokers ----------------------------------------------------------------------------
class VoterChangePending(QuiverlogError):
    code = 64
    retriable = True
    hint = "Try again: another change of the voters is not committed yet, or the leader is new."


class VoterNotReady(QuiverlogError):
    code = 65
    retriable = True
    hint = "Start the broker with the cluster's controllers in its configuration, and let it join."


class InvalidVoterChange(QuiverlogError):
    code = 66
    hint = "`quiverlog quorum status` shows the quorum as it is."


class BrokerInUse(QuiverlogError):
    code = 68
    hint = "`quiverlog cluster decommission` moves what it holds to others, and takes its vote."


class TooFewBrokers(QuiverlogError):
    code = 69
    hint = "Add a broker first, or give the topic fewer replicas."


class BrokerAlive(QuiverlogError):
    code = 67
    hint = "Stop it first; a dead broker is fenced when its session ends."


class WrongCluster(QuiverlogError):
    code = 70
    hint = "The two brokers belong to different clusters: check `cluster.id` and the addresses."


class WrongNode(QuiverlogError):
    code = 71
    hint = "Another node is reached there: check `node.id` and the advertised addresses."


class WrongListener(QuiverlogError):
    code = 72
    hint = (
        "Brokers connect to each other at the listener that `inter.broker.listener` names, and"
        " to a single broker only when it was started with `cluster.id`."
    )


class InvalidFetchSession(QuiverlogError):
    code = 73
    retriable = True
    hint = "The leader expects another request of this session: begin a new session."


class StaleBrokerEpoch(QuiverlogError):
    code = 74
    hint = "The broker is not registered under this epoch: not yet, or no longer."


class IneligibleReplica(QuiverlogError):
    code = 75
    retriable = True
    hint = "A proposed in-sync replica is fenced, stopping, or has restarted: propose again."


class OutdatedPartitionEpoch(QuiverlogError):
    code = 76
    refresh_metadata = True
    hint = "The partition has changed since: refresh metadata."


class PeerUnreachable(QuiverlogError):
    code = 77
    retriable = True
    hint = "The other broker is down, or cannot be reached from this one; see this broker's log."


class DuplicateNodeId(QuiverlogError):
    code = 78
    retriable = True
    hint = (
        "Each broker needs a `node.id` of its own; after a lost disk, try again in a few seconds."
    )


class UnsupportedFeatureLevel(QuiverlogError):
    code = 79
    hint = "Upgrade that broker, or take `feature.level.max` out of its configuration."


# --- transactions and internal topics -----------------------------------------------------------
class TransactionFenced(QuiverlogError):
    # Not retriable: two holders of one id would fence each other for ever.
    code = 84
    hint = "Another program has opened the id since: end this one, or give each an id of its own."


class TransactionClosed(QuiverlogError):
    code = 85
    hint = (
        "It was aborted, or the cluster ended it: too long without a sign of life, or staged rows"
        " took too much room. Open the id again and write its rows anew."
    )


class UnknownTransactionalId(QuiverlogError):
    code = 86
    hint = "Never opened, or forgotten after a long silence: open it first."


class SequenceTooOld(QuiverlogError):
    code = 87
    hint = "A later transaction of the id has committed: go on above its last sequence."


class SequenceTaken(QuiverlogError):
    code = 88
    hint = (
        "Another transaction has committed under this sequence, and this one has not: go on above"
        " the id's last sequence."
    )


class StagedRowsLost(QuiverlogError):
    # Not retriable: the same COMMIT finds the same rows missing.
    code = 89
    hint = "Nothing was committed: write the rows of the transaction anew, then commit."


class TransactionBusy(QuiverlogError):
    code = 90
    retriable = True
    hint = "The id's transaction before this one is still being published: try again."


class StagingFull(QuiverlogError):
    code = 91
    retriable = True
    hint = "Rows of other transactions take the room: try again when they have ended."


class CoordinatorNotReady(QuiverlogError):
    code = 92
    retriable = True
    refresh_metadata = True
    hint = "The internal topics are being made, or a broker still reads what it is to decide on."


class InternalTopic(QuiverlogError):
    code = 93
    hint = "The cluster itself makes, writes and trims its internal topics: name another topic."


class TransactionTooLarge(QuiverlogError):
    # Not retriable, unlike STAGING_FULL: no other transaction's end makes room for this one.
    code = 109
    hint = "Commit fewer rows at once, or write them without a transaction."


# --- groups ------------------------------------------------------------------------------------
class UnknownMember(QuiverlogError):
    code = 94
    hint = "The group has dropped the member: join it anew, with epoch 0."


class FencedMemberEpoch(QuiverlogError):
    code = 95
    hint = "The partitions were given to other members: drop what was read of them, join anew."


class FencedInstance(QuiverlogError):
    code = 96
    hint = "Give each member an `instance_id` of its own, or stop the other one."


class UnstableOffsets(QuiverlogError):
    code = 97
    retriable = True
    hint = "A transaction that commits them is being decided: ask again."


class GroupNotEmpty(QuiverlogError):
    code = 98
    hint = "Stop the members first, or name partitions that no member has."


class InvalidGroup(QuiverlogError):
    code = 99
    hint = "Choose another group, or another name of the topics' alphabet."


class UnsupportedAssignor(QuiverlogError):
    code = 100
    hint = "`uniform` and `range` are there; all members of a group take the same."


class GroupFull(QuiverlogError):
    code = 101
    hint = "Stop members, delete offsets or groups that are not needed, or use another group."


# --- starting a broker -----------------------------------------------------------------------
class DataDirectoryInUse(QuiverlogError):
    code = 80
    hint = "Stop the other broker or choose another `--data-dir`."


class ForeignDataDirectory(QuiverlogError):
    code = 81
    hint = (
        "Point `--data-dir` to this broker's own directory; an empty one is that of a new broker,"
        " without rows and votes."
    )


class AddressInUse(QuiverlogError):
    code = 82
    hint = "Stop the other program or choose another `--listen` or `--http-listen` port."


class UnsupportedFormat(QuiverlogError):
    code = 83
    hint = (
        "A newer quiverlog wrote it: start that one. If one from before the first release did:"
        " start this one with an empty data directory."
    )


class OutcomeUnknown(QuiverlogError):
    code = 137
    retriable = True
    refresh_metadata = True
    hint = "The request may have been applied, or still be: repeat it, or check its effect."


# --- listeners ---------------------------------------------------------------------------------
class TooManyConnectionsFromAddress(QuiverlogError):
    code = 136
    retriable = True
    hint = "Close idle clients there, or raise `connections.max.per.address`."


class ListenerWithoutAdministration(QuiverlogError):
    code = 135
    hint = "Connect to a listener whose `listeners.<name>.administration` is true."


class NotAuthenticated(QuiverlogError):
    code = 103
    hint = (
        "Clients log in (docs/security.md). Brokers prove by `cluster.secret.file` that they are of"
        " one cluster: give each the same file."
    )


class AuthenticationFailed(QuiverlogError):
    code = 104
    hint = "The log of the broker has the reason."


class CredentialsExpired(QuiverlogError):
    code = 106
    retriable = True
    hint = "Make a new token, with a longer life where the work takes longer than that."


class QuotaExceeded(QuiverlogError):
    code = 107
    retriable = True
    hint = "Close idle clients, or raise the quota: `quiverlog quota list` shows it."


class UnknownUser(QuiverlogError):
    code = 130
    hint = "`quiverlog user list` names the users."


class UserExists(QuiverlogError):
    code = 131
    hint = "`quiverlog user passwd` changes its password."


class UnknownToken(QuiverlogError):
    code = 133
    hint = "It may have expired: `quiverlog token list` names those that count."


class NotAuthorized(QuiverlogError):
    """`rule`: the number of the rule that denies; 0: none allows."""

    code = 105
    hint = (
        "`quiverlog acl list` shows the rules, `quiverlog acl add` makes one; what no rule allows"
        " is denied."
    )


class TlsRequired(QuiverlogError):
    code = 108
    hint = "Give the client a security file (docs/security.md), or another listener's address."


class BrokerNotReached(QuiverlogError):
    code = 138
    retriable = True
    hint = "Is the address that it advertises to other brokers its own, and reachable from them?"


class EarlierDiskState(QuiverlogError):
    code = 132
    retriable = True
    hint = "Start the broker on its newest disk; where that is lost, empty this one first."


# --- of the client, the command line and the connector: never on the wire -----------------------
class LoginMissing(QuiverlogError):
    code = 1025
    hint = "Give a user and its password, or a token: docs/security.md shows where."


class MechanismNotOffered(QuiverlogError):
    code = 1026
    hint = "`listeners.<name>.mechanisms` of the broker has what it takes."


class BrokerNotProved(QuiverlogError):
    code = 1027
    hint = (
        "It may not be the broker that it seems to be. It has the user's name and a proof to try"
        " passwords against: change the password if the connection had no TLS."
    )


class ConnectionFailed(QuiverlogError):
    code = 1000
    retriable = True
    refresh_metadata = True
    hint = (
        "Is the broker running, is the address reachable from here, and is it that of the listener "
        "for clients (port 9292 by default; 9293 is for metrics)? `quiverlog doctor` checks."
    )


class ConnectionClosed(QuiverlogError):
    code = 1001
    retriable = True
    refresh_metadata = True
    hint = "The broker closed the connection; see its log."


class DeliveryTimedOut(QuiverlogError):
    code = 1002
    hint = (
        "The rows were not acknowledged within `delivery_timeout`; they may or may not be stored."
    )


class ClientClosed(QuiverlogError):
    code = 1003
    hint = ""


class InvalidArgument(QuiverlogError):
    code = 1004
    hint = ""


class SchemaMismatch(QuiverlogError):
    code = 1005
    hint = ""


class BufferExhausted(QuiverlogError):
    code = 1006
    retriable = True
    hint = "Rows arrive faster than the broker takes them: wait, or raise `buffer_bytes`."


class DataLoss(QuiverlogError):
    code = 1007
    hint = "Rows that were to be read are gone. Set failOnDataLoss to false to go on without them."


class InvalidOption(QuiverlogError):
    code = 1008
    hint = "docs/spark.md lists every option."


class ForkedClient(QuiverlogError):
    code = 1009
    hint = "A client does not survive fork(): open one in the child process."


class CommitUnknown(QuiverlogError):
    code = 1011
    hint = "The next `transaction()` of this client and id finds out what became of it."


class ProcessingTimedOut(QuiverlogError):
    code = 1012
    hint = (
        "Raise `processing_timeout`, or do less with each batch; rows that were not committed come "
        "again."
    )


class InvalidResponse(QuiverlogError):
    code = 1010
    hint = "The broker broke the protocol; nothing of its answer was used. See the broker's log."


class InvalidValue(SchemaMismatch):
    code = 1020
    hint = "Nothing of it was sent."


class UnsupportedValue(QuiverlogError):
    code = 1021
    hint = ""


class TlsFailed(ConnectionFailed):
    code = 1022
    retriable = False
    refresh_metadata = False
    hint = "docs/security.md says what each cause needs; `quiverlog doctor` looks at the listener."


class InvalidSecurity(QuiverlogError):
    code = 1023
    hint = "docs/security.md lists the keys of a security file."


class FileTooLarge(QuiverlogError):
    code = 1028
    hint = "Reading the file takes more memory than a command may use: write it in smaller pieces."


class WorkersLackPackage(QuiverlogError):
    code = 1029
    hint = "Install quiverlog where Spark's workers run; docs/spark-cluster.md shows how."


class WorkersPythonDiffers(QuiverlogError):
    code = 1030
    hint = "docs/spark-cluster.md shows how the driver and the workers get the same Python."
