"""Bounds on size, count and time, with the unit in the name. Those of one module may stand there.

Where a user may set a bound, the value here is the default of the setting or its limit. Relations
between bounds are asserted at import: a wrong pair must not reach a running system.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- wire -------------------------------------------------------------------------------------
FRAME_PREFIX_BYTES: Final = 8
"""`u32 size | u32 header_size`."""
FRAME_BYTES_MAX: Final = 64 * MIB
"""A larger frame, of either side, closes the connection with FRAME_TOO_LARGE."""
HEADER_BYTES_MAX: Final = 4 * MIB
"""Bounds what decoding may allocate (metadata of 5,000 partitions fits)."""
RESPONSE_CONTAINERS_MAX: Final = 512 * KIB
"""Arrays and maps in the header of a response: bounds lists within lists to some 100 MiB."""
REQUESTS_IN_FLIGHT_MAX: Final = 1_024
"""Unanswered requests of a connection; beyond, the broker stops reading from it."""
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
PARKED_ENTRIES_MAX: Final = 200_000
"""Partitions that all long polls together may wait for: fifty of 4,000. A connection, and one
client id, may have as many as are free, so half at most; a long poll beyond is answered at once."""
PARKED_ENTRY_BYTES: Final = 512
"""Upper bound of the memory of one."""
TOPICS_PER_REQUEST_MAX: Final = 10_000
REQUESTS_WAITING_BYTES_MAX: Final = 64 * MIB
"""Requests answered in steps that wait for their turn: two of the largest and many small ones. A
connection may have as much as is free, so half at most."""
REQUEST_WAITING_BYTES: Final = 1 * KIB
"""Upper bound of the memory of one, without the entries of its lists."""
REQUEST_ENTRY_BYTES: Final = 512
"""Upper bound of the memory of such an entry, without its characters."""
CONFIGS_PER_REQUEST_MAX: Final = 256
"""Entries of the small lists and maps in a message: configurations, key columns, replicas."""
REPLY_PAGE_BYTES: Final = 2 * MIB
"""A reply in pages is cut after this; one entry may take more, but fits a header."""
PARTITION_DESCRIPTION_BYTES_MAX: Final = 256
"""One partition in METADATA or DESCRIBE_TOPICS, with every number at its widest."""
SCHEMAS_DESCRIBED_BYTES_MAX: Final = 512 * KIB
"""Newest schemas in one topic's description; TOPIC_SCHEMAS has the others."""
CONNECTIONS_MAX: Final = 12_000
CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
"""A leak in one program leaves places for the others."""
DOOR_MS: Final = 1_000
"""Time for a connection without a place to name a broker in its HELLO."""
CONNECTION_IDLE_MS: Final = 600_000
"""A connection with no traffic and nothing in flight is closed after this."""
FRAME_TIMEOUT_MS: Final = 30_000
"""To finish a frame, from its first byte or the connection's begin."""
WRITE_BUFFER_BYTES_MAX: Final = 16 * MIB
"""Replies that wait for a slow client; above it the broker stops reading its requests."""
WRITE_STALL_MS: Final = 60_000
"""A client that takes nothing of a waiting reply is closed after this."""
CONNECTION_MEMORY_BYTES: Final = 256 * MIB
"""All connections together: four of the largest requests at once, or 32 of the default's largest
batches."""
HTTP_CONNECTIONS_MAX: Final = 64
"""A few scrapers, a supervisor and a load balancer need ten."""
CLIENT_ID_CHARS_MAX: Final = 249
ERROR_MESSAGE_CHARS_MAX: Final = 2_000

# --- topics -----------------------------------------------------------------------------------
TOPIC_NAME_CHARS_MAX: Final = 249
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
PARTITIONS_PER_BROKER_MAX: Final = 20_000
TOPICS_MAX: Final = 10_000
TRANSACTIONS_PARTITIONS: Final = 16
"""Fixed: an id's partition follows from their number."""
STAGED_PARTITIONS_PER_BROKER: Final = 2
STAGED_PARTITIONS_MIN: Final = 4
STAGED_PARTITIONS_MAX: Final = 256
STAGED_BYTES_DEFAULT_MAX: Final = 256 * GIB
STAGED_BYTES_DISK_SHARE: Final = 4
"""Rows of transactions that are not published take at most this part of a broker's disk."""
INTERNAL_RAISE_MS: Final = 300_000
"""After the last registration: brokers that join together count together."""
INTERNAL_RAISE_RETRY_MS: Final = 60_000
DAMAGED_REPLICAS_KEPT: Final = 4
"""Enough to examine a disk's fault; each may be as large as a partition."""
LEADER_BALANCE_PERIOD_MS: Final = 60_000
LEADER_BALANCE_MOVES_MAX: Final = 200
"""In a period: 2,000 partitions that a restart has moved are back in ten minutes."""
SCHEMA_BYTES_MAX: Final = 256 * KIB
SCHEMA_FIELDS_MAX: Final = 2_000
SCHEMA_NESTING_MAX: Final = 32
SCHEMAS_PER_TOPIC_MAX: Final = 1_000
SCHEMA_HISTORY_BYTES_MAX: Final = 32 * MIB
"""All schemas of a topic together: brokers and the topic's clients hold them in memory."""
KEY_COLUMNS_MAX: Final = 16
REPLICATION_FACTOR_MAX: Final = 15
REPLICATION_FACTOR_DEFAULT: Final = 3
"""Where none is requested; fewer where fewer brokers can take replicas."""

# --- batches ----------------------------------------------------------------------------------
BATCH_HEADER_BYTES: Final = 64
BATCH_ALIGNMENT_BYTES: Final = 64
BATCH_BYTES_MAX: Final = 32 * MIB
"""Of a stored batch; `max.message.bytes` of a topic is at most this."""
BATCH_ROWS_MAX: Final = 16 * 1024 * 1024
BATCH_DECODED_BYTES_MAX: Final = 256 * MIB
"""What a compressed batch may claim to hold: bounds what a reader allocates for it."""
PRODUCE_BATCHES_MAX: Final = 10_000
"""Batches of one PRODUCE; an entry above it is refused, those beyond are throttled."""
PRODUCE_ROWS_MAX: Final = 4 * BATCH_ROWS_MAX
"""Rows of one PRODUCE, by what its headers claim: read before anything is decompressed."""
PRODUCE_DECODED_BYTES_MAX: Final = 2 * BATCH_DECODED_BYTES_MAX
"""What the compressed batches of one PRODUCE may claim to hold, all together."""
PRODUCE_CHECKS_MAX: Final = 256
"""Produces that wait for a check of their rows off the loop, and those behind them."""
PRODUCE_CHECK_BYTES_MAX: Final = 128 * MIB
"""Copies of their bodies: two of the largest requests."""
BATCH_BYTES_DEFAULT_MAX: Final = 8 * MIB
TIMESTAMP_AHEAD_MS_DEFAULT: Final = 3_600_000

# --- storage ----------------------------------------------------------------------------------
SEGMENT_BYTES_DEFAULT: Final = 256 * MIB
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 2 * GIB - 1
SEGMENT_ROWS_MAX: Final = 2**31 - 1
"""Rows of a segment, and so of one append: relative offsets in an index are unsigned 32-bit."""
SEGMENT_MS_DEFAULT: Final = 7 * 24 * 3_600_000
RETENTION_MS_DEFAULT: Final = 7 * 24 * 3_600_000
RETENTION_CHECK_MS: Final = 10_000
"""Well under the minute within which a bound must hold."""
INDEX_INTERVAL_BYTES: Final = 4 * KIB
INDEX_INTERVAL_BYTES_MAX: Final = 64 * KIB
"""Whatever a topic asks for: the headers in between are walked on the loop."""
INDEX_MEMORY_BYTES_MAX: Final = 64 * MIB
"""Loaded indexes of finished segments, of which one always stays; unused ones go first."""
UNFLUSHED_BYTES_MAX: Final = 64 * MIB
"""A log with this many unflushed bytes is flushed, whatever its topic's durability."""
STAGED_UNFLUSHED_BYTES_MAX: Final = 16 * MIB
"""The same of staged rows: a publish waits until they are flushed."""
UNFLUSHED_MS_MAX: Final = 30_000
"""A flush of a row is due this long after its write, whatever its topic's durability."""
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
PRODUCER_BATCHES_REMEMBERED: Final = 5
"""Batches per producer that are recognised as duplicates (Kafka's five; in flight <= this)."""
PUBLISH_STATES_MAX: Final = 1_024
"""Staging partitions, of all clusters, whose newest publish a partition remembers: as many as the
own cluster can have."""
PUBLISH_RUNS_REMEMBERED: Final = 5
"""More than are on their way to one partition from one staging partition: a copy that gets the
state as of the log start finds in them what lies below the high watermark."""
PRODUCER_EPOCHS_REMEMBERED: Final = 100_000
"""Producers with an epoch above 0 that the metadata keep; one that was dropped gets a new id."""
PRODUCERS_UNSEEN_MS_MAX: Final = 5_000
"""A producer id or epoch that is still missing at a broker after this counts as never assigned."""
PRODUCERS_UNSEEN_MAX: Final = 1_000
"""Such ids and epochs at a time; the oldest goes first."""
EPOCH_WAITS_MAX: Final = 10_000
"""Requests that wait at the controller until all brokers have the end of a producer's epoch."""
REMOVED_TOPICS_REMEMBERED: Final = 10_000
"""Ids of removed topics in the metadata: they separate leftovers from other rows."""
PRODUCER_EXPIRY_MS: Final = 24 * 3_600_000
DISK_RESERVE_BYTES_DEFAULT: Final = 64 * MIB
"""Below this writes are refused: indexes and marks can still be written."""

# --- quorum -----------------------------------------------------------------------------------
RAFT_ELECTION_TIMEOUT_MS: Final = 750
"""A follower without a leader asks for votes after this to twice this: a controller is usually
replaced within 2 s."""
RAFT_HEARTBEAT_MS: Final = 100
RAFT_APPEND_BYTES_MAX: Final = 1 * MIB
"""Entries in one message of the quorum, and the largest proposal."""
RAFT_CHUNK_BYTES_MAX: Final = 1 * MIB
"""Bytes of a snapshot in one message: a follower holds one chunk at a time."""
RAFT_OBSERVERS_MAX: Final = 1_000
"""Replicas without a vote to which a leader sends the log."""
RAFT_TERM_JUMP_MAX: Final = 1 << 32
"""A term this far ahead is no term: one election a second takes a hundred years."""
RAFT_WAITING_MESSAGES_MAX: Final = 1_000
"""Answers of a replica that wait for its disk; beyond, the oldest counts as lost on the way."""
QUORUM_REPLICAS_SHOWN_MAX: Final = 1_300
"""Replicas of the metadata log in one answer: all voters and observers."""
QUORUM_AUTO_VOTERS_MAX: Final = 5
"""Voters by auto join: the quorum survives the loss of two, and with more each decision waits for
more disks."""
QUORUM_SEEDS_MAX: Final = 16
QUORUM_MESSAGES_MAX: Final = 64
"""Messages of the quorum in one QUORUM request; more go into the next one."""
QUORUM_ENTRIES_MAX: Final = 32 * KIB
"""Entries of the metadata log in one QUORUM request, in all its messages together."""
QUORUM_BODY_BYTES_MAX: Final = 4 * MIB
"""Body of one QUORUM request: four of the largest messages."""
QUORUM_VOTERS_MAX: Final = 256
"""Voters that a snapshot may name."""
PEER_REQUESTS_WAITING_MAX: Final = 256
"""Requests with a waiting caller to one peer."""
PEER_ANSWER_MS_DEFAULT: Final = 10_000
"""The connection to a peer without a response is closed after this."""
PEER_IN_FLIGHT_MAX: Final = 128
"""Unanswered requests to a peer; more wait in the queue."""
PEER_QUEUE_REQUESTS_MAX: Final = 256
PEER_QUEUE_BYTES_MAX: Final = 8 * MIB
"""Bytes waiting to be sent to one peer for one purpose; beyond, the oldest message of the quorum is
dropped, and a request with a waiting caller is refused."""
PEER_CONNECTIONS_MAX: Final = 64
"""Connections to other brokers at once, at most: two to each of 32."""
PEER_CONNECT_MS: Final = 2_000
"""Until a peer is connected: time for one lost packet."""
PEER_SILENCE_MS: Final = 3_000
"""A peer with a pending response that sends nothing gets a new connection after this: TCP repeats
lost packets ever more rarely."""
PEER_BACKOFF_MS_MIN: Final = 50
PEER_BACKOFF_MS_MAX: Final = 1_000
"""The longest pause before the next try to connect."""
PEER_WRONG_BACKOFF_MS: Final = 5_000
"""Another cluster or node is at the address: only an operator can mend that."""
PROOF_MS: Final = 5_000
"""A broker that has connected proves in this time that it is one."""
UNPROVED_FRAME_BYTES_MAX: Final = 64 * KIB
"""Of a broker that has not proved yet that it is one."""
PEER_LOG_INTERVAL_MS: Final = 60_000
"""Between two logs of the same failure of one peer."""
USER_NAME_CHARS_MAX: Final = 128
SUPER_USERS_MAX: Final = 100
AUDIT_TOPICS_MAX: Final = 100
LOGIN_MS: Final = 10_000
"""For all of a client's login, from its connection on."""
USERS_MAX: Final = 10_000
USERS_PER_PAGE_MAX: Final = 1_000
TOKENS_MAX: Final = 10_000
TOKENS_PER_USER_MAX: Final = 1_000
TOKEN_LIFETIME_MS_MAX: Final = 24 * 3_600_000
TOKEN_LIFETIME_MS_DEFAULT: Final = 3_600_000
TOKEN_REMEMBERED_US: Final = 3_600_000_000
"""After its end."""
TOKENS_FORGOTTEN_MAX: Final = 100
"""Expired ones that go with one new token."""
PASSWORD_BYTES_MAX: Final = 1_024
PASSWORD_FILE_BYTES_MAX: Final = 4_096
SCRAM_ITERATIONS_DEFAULT: Final = 8_192
SCRAM_ITERATIONS_MIN: Final = 4_096
SCRAM_ITERATIONS_MAX: Final = 100_000
"""Clients refuse to make more: a broker could hold their processor."""
CREDENTIALS_PER_MECHANISM_MAX: Final = 2
"""While a password is replaced the new one and the old one count."""
CLUSTER_ID_CHARS_MAX: Final = 249
DIRECTORY_ID_CHARS_MAX: Final = 64
ENDPOINT_CHARS_MAX: Final = 512
"""A host name and a port."""

RULES_MAX: Final = 10_000
"""Of all principals together."""
RULES_PER_REQUEST_MAX: Final = 1_000
"""Also the most of a page."""
PRINCIPAL_CHARS_MAX: Final = 256
DECISIONS_CACHED_MAX: Final = 50_000

QUOTAS_MAX: Final = 1_000
"""One answer has them all."""
QUOTA_BYTES_MIN: Final = 64 * KIB
"""A second. A request of 1 MiB would mute its client for longer than clients wait."""
QUOTA_BYTES_MAX: Final = 1_024 * GIB
QUOTA_CONNECTIONS_MAX: Final = 1_000_000
MUTED_US_MAX: Final = 1_000_000
"""Until the broker looks again whether a client is still over its quota."""
THROTTLE_MS_MAX: Final = 60_000
"""The longest that a client waits for the `throttle_ms` of an answer."""

FEATURE_LEVEL_MIN: Final = 1
FEATURE_LEVEL_MAX: Final = 4
"""See core/controller/features.py."""
BROKER_CONFIGS_SHOWN_MAX: Final = 1_000
"""Several times as many as there are."""
BROKERS_MAX: Final = 1_000
"""Every METADATA answer names those that are alive."""
BROKER_SESSION_MS_DEFAULT: Final = 2_000
"""A broker silent for this is fenced, and its partitions get other leaders: of the 3 s in which
writes go on, one is left for the decision and for clients (docs/adr/0031)."""
BROKER_HEARTBEATS_PER_SESSION: Final = 5
"""One lost packet, sent again after 200 ms, costs one of them."""
BROKER_SUSPECT_MS: Final = 100
"""A silent broker is fenced after the controller has read its sockets for this long again."""
BROKER_SUSPICIONS_MAX: Final = 5
"""A controller that is late this often in a row trusts its clock."""
BROKER_RETRY_MS: Final = 100
"""Until a broker repeats a failed request to the controller."""
BROKER_DISPLACED_MS_MAX: Final = 30_000
"""Until a repeatedly displaced broker registers again."""
BROKER_STOP_MS_MAX: Final = 10_000
"""A stopping broker waits at most this long until others have its partitions."""
BROKER_LISTENERS_MAX: Final = 16
LISTENER_NAME_CHARS_MAX: Final = 31
HOST_CHARS_MAX: Final = 255
RACK_CHARS_MAX: Final = 255

# --- replication ------------------------------------------------------------------------------
REPLICA_LAG_MS_MAX: Final = 10_000
"""A follower without all rows for this long is out of sync, and rows wait as long for one that
hangs: a third of Kafka's default."""
REPLICA_FETCH_WAIT_MS: Final = 500
"""A leader without news holds a follower's fetch for this."""
REPLICA_FETCH_WATERMARK_WAIT_MS: Final = 10
"""A new high watermark reaches a follower without waiting readers at most this much later."""
REPLICA_FETCH_BYTES_MAX: Final = 16 * MIB
"""One answer to a follower, all partitions together; one batch may exceed it."""
REPLICA_FETCH_PARTITION_BYTES_MAX: Final = 4 * MIB
REPLICA_FETCH_ENTRIES_MAX: Final = 1_000
"""Partitions in one request of a follower, and in one answer: the rest comes with the next."""
ALTER_PARTITION_ENTRIES_MAX: Final = 1_000
"""Partitions in one ALTER_PARTITION: others wait for the next."""
IN_SYNC_RETRY_MS: Final = 500
"""Until a leader repeats a refused or unanswered ALTER_PARTITION."""
REPLICA_SESSIONS_MAX: Final = 256
"""The longest silent one goes first."""
REPLICA_SESSION_ENTRIES_MAX: Final = PARTITIONS_PER_BROKER_MAX
"""Partitions in one session: a follower has no more."""
REPLICA_SESSIONS_ENTRIES_MAX: Final = (REPLICATION_FACTOR_MAX - 1) * PARTITIONS_PER_BROKER_MAX
"""Partitions in all sessions together: a leader has no more, each with this many followers."""

# --- transactions -----------------------------------------------------------------------------
TRANSACTIONAL_ID_CHARS_MAX: Final = 512
TRANSACTION_INSTANCE_BYTES_MAX: Final = 64
TRANSACTION_EPOCH_MAX: Final = 2**62 - 1
TRANSACTION_SEQUENCE_MAX: Final = 2**63 - 2
"""The one that follows is an int64, too."""
TRANSACTION_ATTEMPT_BYTES: Final = 16
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 900_000
TRANSACTION_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT: Final = 30 * 24 * 3_600_000
TRANSACTION_ATTEMPTS_MAX: Final = 20_000
TRANSACTION_PARTS_MAX: Final = 100_000
"""Of all attempts of a COMMIT_TRANSACTION together."""
TRANSACTION_TARGETS_MAX: Final = 100_000
"""Partitions that a transaction reaches from one partition of `__staged`."""
FORWARD_ENTRIES_MAX: Final = 1_000
RESOLVE_STAGED_ENTRIES_MAX: Final = 1_000

# --- groups -----------------------------------------------------------------------------------
GROUPS_PARTITIONS: Final = 16
"""Fixed: a group's partition follows from their number."""
GROUP_NAME_CHARS_MAX: Final = 255
GROUP_INSTANCE_CHARS_MAX: Final = 255
GROUP_RACK_CHARS_MAX: Final = 255
GROUP_TITLE_CHARS_MAX: Final = 255
"""Of a Spark query."""
ASSIGNOR_CHARS_MAX: Final = 64
MEMBER_ID_BYTES: Final = 16
GROUPS_PER_BROKER_MAX: Final = 10_000
MEMBERS_PER_BROKER_MAX: Final = 50_000
GROUP_MEMBERS_MAX: Final = 1_000
GROUP_TOPICS_MAX: Final = 10_000
"""Of one member's subscription."""
GROUP_PARTITIONS_MAX: Final = 10_000
"""In one heartbeat, or one request about offsets."""
GROUP_OFFSETS_MAX: Final = 100_000
GROUP_METADATA_BYTES_MAX: Final = 4 * KIB
"""What a member commits with an offset, for itself or for people."""
GROUP_SESSION_TIMEOUT_MS_MIN: Final = 6_000
GROUP_SESSION_TIMEOUT_MS_DEFAULT: Final = 45_000
GROUP_SESSION_TIMEOUT_MS_MAX: Final = 1_800_000
GROUP_REBALANCE_TIMEOUT_MS_MIN: Final = 1_000
GROUP_REBALANCE_TIMEOUT_MS_DEFAULT: Final = 300_000
GROUP_REBALANCE_TIMEOUT_MS_MAX: Final = 3_600_000
GROUP_HEARTBEAT_MS_MAX: Final = 5_000
OFFSETS_RETENTION_MS_DEFAULT: Final = 7 * 24 * 3_600_000

# --- forwarding of committed rows -------------------------------------------------------------
FORWARD_PIECE_BYTES: Final = 1 * MIB
"""Of committed rows that are read and sent together; a larger batch goes alone."""
FORWARD_TARGET_BYTES: Final = 4 * MIB
"""Of one partition's rows under way at once; its last batch may exceed it."""
FORWARD_BYTES_MAX: Final = 32 * MIB
"""Of a broker's committed rows on their way to their partitions."""
FORWARD_QUEUE_BYTES_MAX: Final = FORWARD_BYTES_MAX + MIB
"""Of a link: all that is under way may be for one broker."""
FORWARD_BATCHES_MAX: Final = 256
"""Of rows that are sent together: each costs its check."""
FORWARD_READ_BYTES: Final = 16 * MIB
"""Of mapped staged batches that are kept for the rows of several partitions."""
FORWARD_BACKOFF_MS_MIN: Final = 50
FORWARD_BACKOFF_MS_MAX: Final = 2_000
FORWARD_TIMEOUT_MS: Final = 10_000
FORWARD_ANSWER_MS: Final = 15_000
"""The leader answers before: what has no answer ends the connection."""

# --- client -----------------------------------------------------------------------------------
FILE_MEMORY_BYTES_MAX: Final = 1 * GIB
"""Memory for reading a file: some kilobytes of Parquet or of compressed Arrow can hold any
amount."""
FILE_BATCH_BYTES: Final = 64 * MIB
PRODUCER_BATCH_ROWS_DEFAULT: Final = 65_536
PRODUCER_BATCH_BYTES_DEFAULT: Final = 1 * MIB
PRODUCER_LINGER_MS_DEFAULT: Final = 5
PRODUCER_BUFFER_BYTES_DEFAULT: Final = 64 * MIB
PRODUCER_IN_FLIGHT_MAX: Final = 5
DELIVERY_TIMEOUT_MS_DEFAULT: Final = 120_000
REQUEST_TIMEOUT_MS_DEFAULT: Final = 30_000
CONNECT_TIMEOUT_MS_DEFAULT: Final = 10_000
FETCH_MAX_WAIT_MS_DEFAULT: Final = 500
FETCH_MAX_WAIT_MS_MAX: Final = 300_000
FETCH_BYTES_DEFAULT: Final = 16 * MIB
FETCH_PARTITION_BYTES_DEFAULT: Final = 4 * MIB
RETRY_BACKOFF_MS_MIN: Final = 20
RETRY_BACKOFF_MS_MAX: Final = 1_000
ELSEWHERE_BACKOFF_MS_MAX: Final = 250
"""While another leader may be elected: writes go on within 3 s of a leader's death, and a longer
pause would use them up."""
LEADER_SILENCE_MS: Final = 2_000
"""A client asks the others for the leader when this one has sent no response for this long, as of a
machine without power. A broker's session timeout: the first answer names the successor."""
ELSEWHERE_TRIES: Final = 40
"""Tries with such short pauses, about 5 s: longer than an election."""

assert BATCH_BYTES_DEFAULT_MAX <= BATCH_BYTES_MAX
assert BATCH_BYTES_MAX <= BATCH_DECODED_BYTES_MAX
assert BATCH_BYTES_MAX + HEADER_BYTES_MAX <= FRAME_BYTES_MAX
assert PARTITIONS_PER_REQUEST_MAX <= PRODUCE_BATCHES_MAX, "every entry may have its batch"
assert BATCH_ROWS_MAX <= PRODUCE_ROWS_MAX, "a batch that is allowed fits a request"
assert BATCH_DECODED_BYTES_MAX <= PRODUCE_DECODED_BYTES_MAX
assert FRAME_BYTES_MAX <= PRODUCE_CHECK_BYTES_MAX <= CONNECTION_MEMORY_BYTES
assert SCHEMA_BYTES_MAX + KIB <= REPLY_PAGE_BYTES, "a page holds the largest schema"
assert REPLY_PAGE_BYTES + 64 * KIB <= HEADER_BYTES_MAX, "a page fits a header"
assert SCHEMA_BYTES_MAX <= SCHEMAS_DESCRIBED_BYTES_MAX, "a description has the current schema"
assert (
    PARTITIONS_PER_TOPIC_MAX * PARTITION_DESCRIPTION_BYTES_MAX
    + SCHEMAS_DESCRIBED_BYTES_MAX
    + SCHEMA_BYTES_MAX  # names of key columns
    + 64 * KIB  # configuration, names
    <= HEADER_BYTES_MAX
), "the largest description of one topic fits a header"
assert PARTITIONS_PER_TOPIC_MAX <= PARTITIONS_PER_REQUEST_MAX
assert RESPONSE_CONTAINERS_MAX <= HEADER_BYTES_MAX, "a container takes a byte at least"
assert 4 * PARTITIONS_PER_TOPIC_MAX <= RESPONSE_CONTAINERS_MAX, "a topic's lists fit an answer"
assert REPLY_PAGE_BYTES <= RESPONSE_CONTAINERS_MAX * 4, "entries of a page take 4 bytes a list"
assert SCHEMA_BYTES_MAX <= SCHEMA_HISTORY_BYTES_MAX
assert 2 * FRAME_BYTES_MAX <= CONNECTION_MEMORY_BYTES
assert WRITE_BUFFER_BYTES_MAX <= CONNECTION_MEMORY_BYTES
assert 2 * PARTITIONS_PER_REQUEST_MAX <= PARKED_ENTRIES_MAX, "the largest long poll may wait"
assert PARKED_ENTRIES_MAX * PARKED_ENTRY_BYTES <= CONNECTION_MEMORY_BYTES // 2
assert PRODUCER_IN_FLIGHT_MAX <= PRODUCER_BATCHES_REMEMBERED
assert FETCH_BYTES_DEFAULT + HEADER_BYTES_MAX <= FRAME_BYTES_MAX
assert REQUESTS_WAITING_BYTES_MAX <= CONNECTION_MEMORY_BYTES // 2
assert 2 * TOPICS_PER_REQUEST_MAX * REQUEST_ENTRY_BYTES + 4 * HEADER_BYTES_MAX <= (
    REQUESTS_WAITING_BYTES_MAX
), "the largest request may wait"
assert FETCH_PARTITION_BYTES_DEFAULT <= FETCH_BYTES_DEFAULT
assert RAFT_APPEND_BYTES_MAX + HEADER_BYTES_MAX <= FRAME_BYTES_MAX
assert RAFT_CHUNK_BYTES_MAX + HEADER_BYTES_MAX <= FRAME_BYTES_MAX
assert 3 * RAFT_HEARTBEAT_MS <= RAFT_ELECTION_TIMEOUT_MS, "two heartbeats may be lost"
assert max(RAFT_APPEND_BYTES_MAX, RAFT_CHUNK_BYTES_MAX) <= QUORUM_BODY_BYTES_MAX, (
    "the largest message of the quorum fits a request"
)
assert QUORUM_VOTERS_MAX < RAFT_WAITING_MESSAGES_MAX, "a candidate asks all voters at once"
assert QUORUM_BODY_BYTES_MAX + HEADER_BYTES_MAX <= FRAME_BYTES_MAX
assert QUORUM_ENTRIES_MAX * 16 + QUORUM_MESSAGES_MAX * KIB <= HEADER_BYTES_MAX, (
    "the entries and messages that a header describes fit it"
)
assert (
    QUORUM_VOTERS_MAX * (DIRECTORY_ID_CHARS_MAX + ENDPOINT_CHARS_MAX) * 4 + KIB <= HEADER_BYTES_MAX
), "a header that describes one snapshot fits it"
assert REPLICA_FETCH_PARTITION_BYTES_MAX <= REPLICA_FETCH_BYTES_MAX
assert REPLICA_FETCH_BYTES_MAX + BATCH_BYTES_MAX + HEADER_BYTES_MAX <= FRAME_BYTES_MAX
assert REPLICA_FETCH_ENTRIES_MAX <= PARTITIONS_PER_REQUEST_MAX
assert 40 * TRANSACTION_ATTEMPTS_MAX + 32 * TRANSACTION_PARTS_MAX + 64 * KIB <= HEADER_BYTES_MAX, (
    "the largest COMMIT_TRANSACTION fits a header"
)
assert 40 * TRANSACTION_TARGETS_MAX + 64 * KIB <= HEADER_BYTES_MAX, "and so do all its targets"
assert TRANSACTION_TARGETS_MAX < RESPONSE_CONTAINERS_MAX
assert 4 * TRANSACTIONAL_ID_CHARS_MAX * RESOLVE_STAGED_ENTRIES_MAX + 64 * KIB <= HEADER_BYTES_MAX
assert TRANSACTION_ATTEMPTS_MAX <= 2 * TOPICS_PER_REQUEST_MAX, "the largest COMMIT may wait"
assert GROUP_TOPICS_MAX <= TOPICS_PER_REQUEST_MAX, "the largest heartbeat may wait"
assert GROUP_PARTITIONS_MAX <= PARTITIONS_PER_REQUEST_MAX
assert GROUP_METADATA_BYTES_MAX + KIB <= REPLY_PAGE_BYTES, "a page holds the largest offset"
assert GROUP_REBALANCE_TIMEOUT_MS_DEFAULT >= GROUP_SESSION_TIMEOUT_MS_DEFAULT
assert 10 * REPLICA_FETCH_WAIT_MS <= REPLICA_LAG_MS_MAX, "one that waits is not one that lags"
assert QUORUM_BODY_BYTES_MAX <= PEER_QUEUE_BYTES_MAX, "the largest QUORUM may wait"
assert PEER_IN_FLIGHT_MAX < REQUESTS_IN_FLIGHT_MAX, "a peer reads on"
assert PEER_BACKOFF_MS_MAX < PEER_SILENCE_MS < PEER_ANSWER_MS_DEFAULT
assert RETENTION_CHECK_MS * 2 <= 60_000
assert BATCH_ROWS_MAX <= SEGMENT_ROWS_MAX < 2**32
assert BATCH_BYTES_MAX <= SEGMENT_BYTES_MAX < 2**32
assert BATCH_HEADER_BYTES % BATCH_ALIGNMENT_BYTES == 0
assert FORWARD_PIECE_BYTES <= FORWARD_TARGET_BYTES <= FORWARD_BYTES_MAX
assert FORWARD_TIMEOUT_MS < FORWARD_ANSWER_MS
