"""The keys of a broker's configuration, except `listeners.*` (server/config/listeners.py).

`reloadable` keys may change while a broker runs: by SIGHUP, and by settings in the cluster.
"""

from __future__ import annotations

from typing import Final

from quiverlog import limits
from quiverlog.roles import read_audit_topics, read_roles, read_seeds, read_super_users
from quiverlog.settings import Kind, Setting, SettingsTable

__all__ = ["CONFIG_KEYS", "ENV_PREFIX", "OWN_KEYS", "env_of", "flag_of"]

ENV_PREFIX: Final = "QUIVERLOG_"


def flag_of(key: str) -> str:
    """The flag of `quiverlog broker`: `data.dir` -> `--data-dir`."""
    return "--" + key.replace(".", "-")


def env_of(key: str) -> str:
    """The environment variable: `data.dir` -> `QUIVERLOG_DATA_DIR`."""
    return ENV_PREFIX + key.replace(".", "_").upper()


_INT, _TEXT, _CHOICE, _ADDRESS = Kind.INTEGER, Kind.TEXT, Kind.CHOICE, Kind.ADDRESS
_OTHER: Final = Kind.OTHER
_DAY_MS: Final = 24 * 3_600_000

_KEYS: Final = (
    Setting(
        "data.dir",
        _TEXT,
        "./quiverlog-data",
        "Where topics and metadata are kept. Made when it is missing; one broker at a time.",
        because="the files of one directory are open",
    ),
    Setting(
        "listen",
        _ADDRESS,
        "127.0.0.1:9292",
        "Where clients connect. Port 0 takes any free port; the ready line shows it. Unless the"
        " listener asks for [logins](security.md#users), every client that reaches the address may"
        " read, write and delete everything.",
        because="its socket is open, and the metadata and all clients have the address",
    ),
    Setting(
        "advertise",
        _ADDRESS,
        "",
        "The address that clients get from the broker to connect to. Empty: the value of `listen`,"
        " or the machine's host name where that is every address (`0.0.0.0`, `[::]`), which no"
        " client can connect to and which is refused here.",
        because="the metadata and all clients have the address",
    ),
    Setting(
        "inter.broker.listener",
        _TEXT,
        "default",
        "The listener for connections between brokers, and the only one that serves their"
        " APIs. `default`: the one of `listen`. One with a name serves nothing to clients where"
        " brokers prove that they are peers ([Security](security.md)).",
        because="the metadata and the other brokers have the address",
    ),
    Setting(
        "http.listen",
        _ADDRESS,
        "127.0.0.1:9293",
        "Where a page of the cluster's state, `/metrics`, `/healthz` and `/readyz` are served,"
        " to all that can reach it unless the listener `http` has TLS"
        " ([Security](security.md#tls)); `off` serves none of them.",
        because="its socket is open",
    ),
    Setting(
        "node.id",
        _INT,
        0,
        "This broker's number in its cluster. It is written into the data directory.",
        maximum=2**31 - 1,
        because="it is the broker's identity in its cluster",
    ),
    Setting(
        "cluster.id",
        _TEXT,
        "",
        f"The cluster of the data directory, of at most {limits.CLUSTER_ID_CHARS_MAX} characters."
        " Empty: that of the directory, or a new one; a lone broker lets no other"
        " [join](cluster.md).",
        because="it is written into the data directory",
    ),
    Setting(
        "cluster.secret.file",
        _TEXT,
        "",
        "A file with the cluster's secret, by which brokers prove to each other that they are"
        " peers ([Security](security.md)): one line, or two while it is replaced, the new one"
        " first. Others than its owner and group must not be able to read it. It is read again on"
        " SIGHUP, and when it has changed. Empty: this broker proves nothing.",
        because="proofs are asked for, or not, from the start",
    ),
    Setting(
        "cluster.secret.required",
        _CHOICE,
        "auto",
        "Whether other brokers must prove that they have the secret. `auto`: where the data"
        " directory was made with one, or the value was `true` before, which the directory"
        " remembers. `false` takes brokers without proof and counts them while it is given, for"
        " the time in which a running cluster gets its secret.",
        choices=("auto", "true", "false"),
        because="proofs are asked for, or not, from the start",
    ),
    Setting(
        "super.users",
        _OTHER,
        "",
        "Users that may do everything at this broker, whatever the rules are, separated by commas."
        " They need a password or a token like all others. For the way back in when the rules have"
        " shut all others out: it is read from this broker's own configuration alone, again on"
        " SIGHUP.",
        read=read_super_users,
        label="name,...",
        reloadable=True,
    ),
    Setting(
        "admin.credential.file",
        _TEXT,
        "",
        "A file with the first user, which may do everything: lines of `quiverlog user hash`. It"
        " counts while the cluster has no user, at the start of a broker that is a cluster by"
        " itself, as the first one of a new cluster is ([Security](security.md)).",
        because="it is for the start",
    ),
    Setting(
        "rack",
        _TEXT,
        "",
        f"A label for the place of this broker, of at most {limits.RACK_CHARS_MAX} characters.",
        because="brokers are registered with it, and replicas were placed by it",
    ),
    Setting(
        "process.roles",
        _OTHER,
        "broker,controller",
        "What this process is for: `broker` holds partitions and serves clients, `controller` may"
        " become a voter of the metadata quorum.",
        read=read_roles,
        label="broker, controller or both",
        because="brokers are registered with them",
    ),
    Setting(
        "controller.quorum.bootstrap.servers",
        _OTHER,
        "",
        "Controllers to ask for the cluster's metadata, as `id@host:port` of the listener between"
        " brokers; all brokers may have the same list. A new data directory of a broker that has it"
        " joins their quorum, without it the broker is a cluster of its own"
        " ([Forming a cluster](cluster.md)). Needs `cluster.id`.",
        read=read_seeds,
        label="id@host:port,...",
        because="they are asked at the start",
    ),
    Setting(
        "controller.quorum.moved.servers",
        _OTHER,
        "",
        "Where controllers are now, as `id@host:port` of the listener between brokers: they count"
        " before those in the metadata, for a cluster whose addresses have all changed at once"
        " ([Forming a cluster](cluster.md)). Take it out when the cluster has come up.",
        read=read_seeds,
        label="id@host:port,...",
        because="they are asked at the start",
    ),
    Setting(
        "controller.quorum.auto.join",
        _CHOICE,
        "true",
        "Whether a broker with the role `controller` becomes a voter of the metadata quorum by"
        " itself once it follows: two at a time, up to five voters"
        " ([Forming a cluster](cluster.md)). `false`: by `quiverlog quorum add` only.",
        choices=("true", "false"),
        because="brokers are registered with it; `quorum add` and `remove` change votes meanwhile",
    ),
    Setting(
        "broker.session.ms",
        _INT,
        limits.BROKER_SESSION_MS_DEFAULT,
        "The controller fences a broker of which no heartbeat has come within this time: others"
        " take"
        " over what it leads. The controller's setting counts. Less makes failover faster, and a"
        " broker that pauses for a moment more likely to be taken for dead.",
        unit="ms",
        minimum=500,
        maximum=600_000,
        because="brokers act on leases that were given under the old one",
    ),
    Setting(
        "connections.max",
        _INT,
        limits.CONNECTIONS_MAX,
        "Connections of clients at once. More are answered TOO_MANY_CONNECTIONS and closed. Other"
        " brokers, and a few clients on this machine, have places of their own"
        " ([Running a broker](broker.md#places-for-connections)).",
        minimum=1,
        maximum=1_000_000,
        reloadable=True,
    ),
    Setting(
        "connections.max.per.address",
        _INT,
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        "Of these, connections from one address (of IPv6: one /64) at once; 127.0.0.1 counts, too."
        " More are answered TOO_MANY_CONNECTIONS_FROM_ADDRESS and closed. Raise it where many"
        " clients share an address ([Running a broker](broker.md#places-for-connections)).",
        minimum=1,
        maximum=1_000_000,
        reloadable=True,
    ),
    Setting(
        "connections.idle.ms",
        _INT,
        limits.CONNECTION_IDLE_MS,
        "A connection with no traffic and nothing in flight for this time is closed.",
        unit="ms",
        minimum=100,
        maximum=365 * _DAY_MS,
        reloadable=True,
    ),
    Setting(
        "connections.frame.timeout.ms",
        _INT,
        limits.FRAME_TIMEOUT_MS,
        "A client must finish a request within this time from its first byte, its first request"
        " from the begin of the connection.",
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
        reloadable=True,
    ),
    Setting(
        "connections.write.stall.ms",
        _INT,
        limits.WRITE_STALL_MS,
        "The connection of a client that takes nothing of a waiting reply for this time is closed.",
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
        reloadable=True,
    ),
    Setting(
        "connections.write.buffer.bytes",
        _INT,
        limits.WRITE_BUFFER_BYTES_MAX,
        "Replies waiting for one client; above it no further requests are taken from that client.",
        unit="bytes",
        minimum=64 * limits.KIB,
        maximum=limits.GIB,
        reloadable=True,
    ),
    Setting(
        "connections.in.flight.max",
        _INT,
        limits.REQUESTS_IN_FLIGHT_MAX,
        "Unanswered requests of one connection; above it no further requests are taken from it.",
        minimum=1,
        maximum=1_000_000,
        reloadable=True,
    ),
    Setting(
        "memory.buffer.bytes",
        _INT,
        limits.CONNECTION_MEMORY_BYTES,
        "What all connections together may hold: requests that are not complete or wait for their"
        " turn, replies that were not taken. Beyond, the connection whose bytes times the time held"
        " are most is closed.",
        unit="bytes",
        minimum=2 * limits.FRAME_BYTES_MAX,
        maximum=2**50,
        reloadable=True,
    ),
    Setting(
        "http.connections.max",
        _INT,
        limits.HTTP_CONNECTIONS_MAX,
        "Connections to `http.listen` at once. Beyond, one that has not finished its request gives"
        " way, or the new one is answered 503.",
        minimum=1,
        maximum=10_000,
        reloadable=True,
    ),
    Setting(
        "http.timeout.ms",
        _INT,
        10_000,
        "The time for the answer to an HTTP request, until the client has it; before that, its head"
        " has five seconds, or this if it is less. Then the connection is closed.",
        unit="ms",
        minimum=100,
        maximum=600_000,
        reloadable=True,
    ),
    Setting(
        "frame.bytes.max",
        _INT,
        limits.FRAME_BYTES_MAX,
        "Largest request. A larger one is answered FRAME_TOO_LARGE and the connection closed.",
        unit="bytes",
        minimum=limits.BATCH_BYTES_DEFAULT_MAX + limits.HEADER_BYTES_MAX,
        maximum=limits.FRAME_BYTES_MAX,
        because="the broker sends it to every connection when that begins",
    ),
    Setting(
        "local.reads",
        _CHOICE,
        "true",
        "Whether the broker answers a client on this machine, which asks for it, with the files of"
        " `data.dir` in which rows lie, and the client reads them by itself"
        " ([Running a broker](broker.md#local-reads)). It needs the right to read them, which the"
        " broker's own user alone has. At a listener that authenticates: only where `true` is set,"
        " not by default.",
        choices=("true", "false"),
        reloadable=True,
    ),
    Setting(
        "disk.reserve.bytes",
        _INT,
        limits.DISK_RESERVE_BYTES_DEFAULT,
        "Writes are refused with DISK_FULL while less room than this is free.",
        unit="bytes",
        minimum=limits.MIB,
        maximum=2**50,
        because="it refuses decisions as well, and one too large could not be taken back",
    ),
    Setting(
        "damaged.replicas.kept",
        _INT,
        limits.DAMAGED_REPLICAS_KEPT,
        "A replica whose rows are damaged is copied from the other brokers again. Its files are"
        " kept under another name while the disk has room, of at most this many replicas, the"
        " newest.",
        unit="replicas",
        minimum=0,
        maximum=1_000,
        reloadable=True,
    ),
    Setting(
        "leader.balance.period.ms",
        _INT,
        limits.LEADER_BALANCE_PERIOD_MS,
        "How often the controller gives partitions back to the first of their replicas, where it is"
        " in sync again, give or take a tenth. 0: only when a request asks for it.",
        unit="ms",
        minimum=0,
        maximum=_DAY_MS,
        reloadable=True,
    ),
    Setting(
        "leader.balance.moves.max",
        _INT,
        limits.LEADER_BALANCE_MOVES_MAX,
        "Partitions that get another leader in one such round: each sends its clients elsewhere.",
        unit="partitions",
        minimum=1,
        maximum=10_000,
        reloadable=True,
    ),
    Setting(
        "partition.move.bytes.per.second",
        _INT,
        0,
        "How much this broker copies in a second of partitions that move to it"
        " (`quiverlog partition reassign`), all together, so that a move leaves room for the rest."
        " A move whose partitions are written faster than this never ends. 0: as fast as it goes.",
        unit="bytes",
        minimum=0,
        maximum=2**50,
        reloadable=True,
    ),
    Setting(
        "staged.bytes.max",
        _INT,
        0,
        "Rows of transactions that wait in `__staged` until they are published: in all partitions"
        " that this broker leads, of which one transactional id has at most half. A commit that"
        " needs more is refused. 0: a quarter of the disk, at most 256 GiB.",
        unit="bytes",
        minimum=0,
        maximum=2**50,
        reloadable=True,
    ),
    Setting(
        "staged.partitions",
        _INT,
        0,
        "With how many partitions the controller makes `__staged`, where rows of transactions wait"
        f" for their commit: {limits.STAGED_PARTITIONS_MIN} or more. 0:"
        f" {limits.STAGED_PARTITIONS_PER_BROKER} for each live broker. The controller's value"
        " counts.",
        unit="partitions",
        maximum=limits.STAGED_PARTITIONS_MAX,
        because="the topic is made once; `quiverlog topic alter __staged --partitions` grows it",
    ),
    Setting(
        "transactional.id.expiry.ms",
        _INT,
        limits.TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT,
        "A transactional id that no client used for this long is forgotten where this broker"
        " coordinates it, and what its last transaction was. A Spark query that rests longer may"
        " repeat its last micro-batch.",
        unit="ms",
        minimum=_DAY_MS,
        maximum=3_650 * _DAY_MS,
        reloadable=True,
    ),
    Setting(
        "offsets.retention.ms",
        _INT,
        limits.OFFSETS_RETENTION_MS_DEFAULT,
        "Offsets of a group that this broker coordinates are forgotten when it has had no members,"
        " and committed nothing, for this long. A consumer that rests longer begins anew.",
        unit="ms",
        minimum=60_000,
        maximum=3_650 * _DAY_MS,
        reloadable=True,
    ),
    Setting(
        "feature.level.max",
        _INT,
        limits.FEATURE_LEVEL_MAX,
        "The newest feature level with which this broker registers. The cluster is not raised past"
        " it, and one that has been refuses this broker"
        " ([Operating a cluster](operating.md#upgrading-by-feature-levels)).",
        minimum=limits.FEATURE_LEVEL_MIN,
        maximum=limits.FEATURE_LEVEL_MAX,
        because="brokers are registered with it",
    ),
    Setting(
        "fsync.threads",
        _INT,
        4,
        "Threads that flush logs to disk, and close them at the end: no acknowledgement waits"
        " behind other disk work. Of several, one client leaves at least one to others.",
        minimum=1,
        maximum=64,
        because="the threads are started with the broker",
    ),
    Setting(
        "work.threads",
        _INT,
        2,
        "Threads for all other work that may wait for the disk: opening and removing logs, the"
        " metadata log, cold reads.",
        minimum=1,
        maximum=64,
        because="the threads are started with the broker",
    ),
    Setting(
        "shutdown.timeout.ms",
        _INT,
        30_000,
        "After SIGTERM, the time for requests in flight and the last flush; then the broker ends"
        " without the clean-shutdown mark.",
        unit="ms",
        minimum=100,
        maximum=3_600_000,
        reloadable=True,
    ),
    Setting(
        "metrics.topics.max",
        _INT,
        500,
        "At most this many topics have metrics of their own; the others are counted together as"
        " `_other`.",
        maximum=limits.TOPICS_MAX,
        reloadable=True,
    ),
    Setting(
        "metrics.partition.offsets",
        _CHOICE,
        "false",
        "Whether `/metrics` has log start, high watermark and log end of each partition: three more"
        " series for each.",
        choices=("true", "false"),
        reloadable=True,
    ),
    Setting(
        "log.level",
        _CHOICE,
        "info",
        "The least important log lines that are written.",
        choices=("debug", "info", "warning", "error"),
        reloadable=True,
    ),
    Setting(
        "audit.file",
        _TEXT,
        "",
        "A file for JSON lines about denials, logins and changes ([Security](security.md#audit));"
        " `log`: standard error. Empty: standard error where a listener authenticates, else"
        " nowhere.",
        because="it is opened before the first client is served",
    ),
    Setting(
        "audit.topics",
        _OTHER,
        "",
        "Topics whose reads and writes are audited, too, separated by commas: names, beginnings"
        " such as `orders-*`, or `*`. It is read from this broker's own configuration alone, again"
        " on SIGHUP.",
        read=read_audit_topics,
        label="name,...",
        reloadable=True,
    ),
    Setting(
        "log.format",
        _CHOICE,
        "logfmt",
        "How log lines are written to standard error.",
        choices=("logfmt", "json"),
        because="a program that reads the log expects one format",
    ),
)

CONFIG_KEYS: Final = SettingsTable(_KEYS)
OWN_KEYS: Final = frozenset(("super.users", "audit.topics"))
"""Never set in the cluster: an administrator of it could lock out the machine's, or end its audit
unseen."""
